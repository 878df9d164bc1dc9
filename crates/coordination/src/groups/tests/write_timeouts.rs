//! The time that requests wait for their records (`offsets.commit.timeout.ms`), and the state of the group afterwards.

use expect_test::expect;

use super::membership::with_two;
use super::transcript::check;

#[test]
fn requests_wait_for_their_records_only_so_long() {
    check(
        "
        commit A t-0=5
        commit A g=h t-0=1
        commit A g=i t-0=1
        hold
        commit A t-0=6
        wait 1000
        fetch F stable t-0
        delete D g=h
        offset-delete E g=i t-0
        wait 3999
        wait 1
        commit B t-0=7
        wait 1000
        fetch F t-0
        # What was answered too early takes effect all the same.
        ok 4
        fetch F t-0
        ok 6
        list L
        fail 7 NOT_ENOUGH_REPLICAS
        wait 3000
        ok 8
        fetch F g=i t-0
        fetch F t-0
        wait 60000
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > commit A g=h t-0=1
              append h t-0=1
              A: t-0 NONE
            > commit A g=i t-0=1
              append i t-0=1
              A: t-0 NONE
            > hold
            > commit A t-0=6
              append #4 g t-0=6
            > wait 1000
            > fetch F stable t-0
            > delete D g=h
              append #6 h t-0 gone; h gone
            > offset-delete E g=i t-0
              append #7 i t-0 gone
            > wait 3999
            > wait 1
              at 5000
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > commit B t-0=7
              append #8 g t-0=7
            > wait 1000
              at 6000
              F: COORDINATOR_NOT_AVAILABLE
              D: COORDINATOR_NOT_AVAILABLE
              E: COORDINATOR_NOT_AVAILABLE
            > fetch F t-0
              F: offsets [t-0=5]
            > # What was answered too early takes effect all the same.
            > ok 4
            > fetch F t-0
              F: offsets [t-0=6]
            > ok 6
            > list L
              L: NONE [g Empty "" classic, i Empty "" classic]
            > fail 7 NOT_ENOUGH_REPLICAS
            > wait 3000
            > ok 8
              B: t-0 NONE
            > fetch F g=i t-0
              F: offsets [t-0=1]
            > fetch F t-0
              F: offsets [t-0=7]
            > wait 60000
        "#]],
    );
}

#[test]
fn members_that_leave_wait_for_the_empty_generation_only_so_long() {
    check(
        &with_two(
            "
            hold
            leave X c-1 c-2
            wait 5000
            ok 3
            describe D
            ",
        ),
        expect![[r#"
            > hold
            > leave X c-1 c-2
              append #3 g generation 2 []
            > wait 5000
              at 11000
              X: left COORDINATOR_NOT_AVAILABLE
            > ok 3
            > describe D
              D: Empty "consumer" "" []
        "#]],
    );
}

#[test]
fn an_assignment_is_waited_for_only_so_long() {
    check(
        &with_two(
            "
            hold
            join A id=c-1
            join B id=c-2
            sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1
            sync B id=c-2 gen=2
            wait 5000
            beat A id=c-1 gen=2
            # The generation is over, so its assignment is void.
            ok 3
            join A id=c-1
            join B id=c-2
            sync A id=c-1 gen=3 assign=c-1:P1,c-2:P0
            ok 4
            sync B id=c-2 gen=3
            ",
        ),
        expect![[r#"
            > hold
            > join A id=c-1
            > join B id=c-2
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1
              append #3 g generation 2 [c-1=P0 c-2=P1]
            > sync B id=c-2 gen=2
            > wait 5000
              at 11000
              A: COORDINATOR_NOT_AVAILABLE
              B: COORDINATOR_NOT_AVAILABLE
            > beat A id=c-1 gen=2
              A: REBALANCE_IN_PROGRESS
            > # The generation is over, so its assignment is void.
            > ok 3
            > join A id=c-1
            > join B id=c-2
              A: joined as c-1: generation 3, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 3, range, leader c-1, members []
            > sync A id=c-1 gen=3 assign=c-1:P1,c-2:P0
              append #4 g generation 3 [c-1=P1 c-2=P0]
            > ok 4
              A: synced consumer range: "P1"
            > sync B id=c-2 gen=3
              B: synced consumer range: "P0"
        "#]],
    );
}

#[test]
fn the_record_of_a_new_group_is_waited_for_only_so_long() {
    check(
        "
        hold
        join A v=3
        join B v=3
        wait 5000
        # The first member is not waited for any more.
        wait 1000
        ok 1
        list L
        ",
        expect![[r#"
            > hold
            > join A v=3
              append #1 g generation 0 []
            > join B v=3
            > wait 5000
              at 5000
              A: COORDINATOR_NOT_AVAILABLE ""
            > # The first member is not waited for any more.
            > wait 1000
              at 6000
              B: joined as c-2: generation 1, range, leader c-2, members [c-2]
            > ok 1
            > list L
              L: NONE [g CompletingRebalance "consumer" classic]
        "#]],
    );
}

#[test]
fn the_new_id_of_a_static_member_is_waited_for_only_so_long() {
    check(
        "
        join A instance=i
        wait 3000
        sync A id=i-1 instance=i assign=i-1:P0
        hold
        join B instance=i
        wait 5000
        # The new id may be in the log already: a new generation brings log and group together.
        join B instance=i
        fail 3 NOT_ENOUGH_REPLICAS
        sync B id=i-3 instance=i gen=2 assign=i-3:P0
        ok 4
        describe D
        ",
        expect![[r#"
            > join A instance=i
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as i-1: generation 1, range, leader i-1, members [i-1/i]
            > sync A id=i-1 instance=i assign=i-1:P0
              append g generation 1 [i-1=P0]
              A: synced consumer range: "P0"
            > hold
            > join B instance=i
              append #3 g generation 1 [i-2=P0]
            > wait 5000
              at 8000
              B: COORDINATOR_NOT_AVAILABLE ""
            > # The new id may be in the log already: a new generation brings log and group together.
            > join B instance=i
              B: joined as i-3: generation 2, range, leader i-3, members [i-3/i]
            > fail 3 NOT_ENOUGH_REPLICAS
            > sync B id=i-3 instance=i gen=2 assign=i-3:P0
              append #4 g generation 2 [i-3=P0]
            > ok 4
              B: synced consumer range: "P0"
            > describe D
              D: Stable "consumer" "range" [i-3/i c/host metadata 10 bytes, assigned "P0"]
        "#]],
    );
}

#[test]
fn a_member_that_was_answered_in_time_is_not_answered_when_the_partition_is_unloaded() {
    check(
        "
        hold
        commit A t-0=5
        wait 3000
        commit B t-0=6
        wait 2000
        unload
        wait 60000
        ",
        expect![[r#"
            > hold
            > commit A t-0=5
              append #1 g t-0=5
            > wait 3000
            > commit B t-0=6
              append #2 g t-0=6
            > wait 2000
              at 5000
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > unload
              B: t-0 NOT_COORDINATOR
            > wait 60000
        "#]],
    );
}
