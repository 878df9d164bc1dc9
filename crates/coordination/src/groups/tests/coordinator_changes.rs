//! Changes of coordinator, as seen by groups and their waiting members: another broker becomes the coordinator, or this one does.

use expect_test::expect;

use super::membership::with_two;
use super::transcript::{check, played};

#[test]
fn members_of_a_stable_group_go_on_after_a_change_of_coordinator() {
    check(
        &with_two(
            "
            commit A id=c-1 gen=1 t-0=5:note
            join C
            wait 5000
            reload
            wait 9000
            beat A id=c-1
            beat B id=c-2
            sync B id=c-2
            join B id=c-2
            fetch F
            # A client that had only been given its id is not known any more.
            join C id=c-3
            wait 9000
            beat A id=c-1
            wait 9000
            ",
        ),
        expect![[r#"
            > commit A id=c-1 gen=1 t-0=5:note
              append g t-0=5
              A: t-0 NONE
            > join C
              C: MEMBER_ID_REQUIRED "c-3"
            > wait 5000
            > reload
            > wait 9000
            > beat A id=c-1
              A: NONE
            > beat B id=c-2
              B: NONE
            > sync B id=c-2
              B: synced consumer range: "P1"
            > join B id=c-2
              B: joined as c-2: generation 1, range, leader c-1, members []
            > fetch F
              F: offsets [t-0=5:note]
            > # A client that had only been given its id is not known any more.
            > join C id=c-3
              C: UNKNOWN_MEMBER_ID "c-3"
            > wait 9000
            > beat A id=c-1
              A: NONE
            > wait 9000
        "#]],
    );
}

#[test]
fn a_group_that_is_too_large_for_its_new_coordinator_rebalances() {
    check(
        "
        join A v=3
        join B v=3
        wait 6000
        sync A id=c-1 assign=c-1:P0,c-2:P1
        reload 1
        beat A id=c-1
        join A id=c-1
        join B id=c-2
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > join B v=3
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
            > sync A id=c-1 assign=c-1:P0,c-2:P1
              append g generation 1 [c-1=P0 c-2=P1]
              A: synced consumer range: "P0"
            > reload 1
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1
            > join B id=c-2
              B: GROUP_MAX_SIZE_REACHED ""
              A: joined as c-1: generation 2, range, leader c-1, members [c-1]
        "#]],
    );
}

#[test]
fn waiting_members_are_refused_when_a_partition_is_unloaded() {
    check(
        &with_two(
            "
            join A id=c-1
            hold
            commit B id=c-2 gen=1 t-0=1
            commit S g=h t-0=1
            fetch F stable t-0
            delete D g=x
            join J v=3 g=j
            unload
            ok 3
            beat B id=c-2
            join X
            sync X id=c-1
            leave X c-1
            commit X t-0=1
            fetch X t-0
            fetch X v=1 t-0
            describe X
            list X
            begin-load
            beat B id=c-2
            join X
            sync X id=c-1
            leave X c-1
            commit X t-0=1
            fetch X t-0
            describe X
            delete X
            offset-delete X t-0
            list X
            ",
        ),
        expect![[r#"
            > join A id=c-1
            > hold
            > commit B id=c-2 gen=1 t-0=1
              append #3 g t-0=1
            > commit S g=h t-0=1
              append #4 h t-0=1
            > fetch F stable t-0
            > delete D g=x
              D: GROUP_ID_NOT_FOUND
            > join J v=3 g=j
              append #6 j generation 0 []
            > unload
              B: t-0 NOT_COORDINATOR
              S: t-0 NOT_COORDINATOR
              F: NOT_COORDINATOR
              A: NOT_COORDINATOR ""
              J: NOT_COORDINATOR ""
            > ok 3
            > beat B id=c-2
              B: NOT_COORDINATOR
            > join X
              X: NOT_COORDINATOR ""
            > sync X id=c-1
              X: NOT_COORDINATOR
            > leave X c-1
              X: left NOT_COORDINATOR
            > commit X t-0=1
              X: t-0 NOT_COORDINATOR
            > fetch X t-0
              X: NOT_COORDINATOR
            > fetch X v=1 t-0
              X: NOT_COORDINATOR
            > describe X
              X:  NOT_COORDINATOR 
            > list X
              X: NONE []
            > begin-load
            > beat B id=c-2
              B: NONE
            > join X
              X: COORDINATOR_LOAD_IN_PROGRESS ""
            > sync X id=c-1
              X: COORDINATOR_LOAD_IN_PROGRESS
            > leave X c-1
              X: left COORDINATOR_LOAD_IN_PROGRESS
            > commit X t-0=1
              X: t-0 COORDINATOR_LOAD_IN_PROGRESS
            > fetch X t-0
              X: COORDINATOR_LOAD_IN_PROGRESS
            > describe X
              X:  COORDINATOR_LOAD_IN_PROGRESS 
            > delete X
              X: COORDINATOR_LOAD_IN_PROGRESS
            > offset-delete X t-0
              X: COORDINATOR_LOAD_IN_PROGRESS
            > list X
              X: COORDINATOR_LOAD_IN_PROGRESS []
        "#]],
    );
}

#[test]
fn members_that_wait_for_an_assignment_are_sent_away_too() {
    check(
        "
        join A v=3
        join B v=3
        wait 6000
        hold
        sync B id=c-2
        sync A id=c-1 assign=c-1:P
        unload
        ok 2
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > join B v=3
            > wait 6000
              at 6000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 1, range, leader c-1, members []
            > hold
            > sync B id=c-2
            > sync A id=c-1 assign=c-1:P
              append #2 g generation 1 [c-1=P c-2=]
            > unload
              A: NOT_COORDINATOR
              B: NOT_COORDINATOR
            > ok 2
        "#]],
    );
}

/// Two threads may say the same of a topic that was just created, one of them after a partition was taken over.
#[test]
fn the_number_of_partitions_may_be_said_again_while_one_is_served() {
    let mut coordinator = played("join A v=3");
    // That of the clusters of these tests.
    coordinator.set_partition_count(1);
    coordinator.check();
}
