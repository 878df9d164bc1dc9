//! Events between a decision and its record, and records that cannot be written.

use expect_test::expect;

use super::membership::with_two;
use super::transcript::check;

#[test]
fn an_offset_is_neither_acknowledged_nor_readable_before_it_is_durable() {
    check(
        "
        hold
        commit A t-0=5
        fetch F t-0
        list L
        fetch G stable t-0
        ok 1
        fetch F t-0
        ",
        expect![[r#"
            > hold
            > commit A t-0=5
              append #1 g t-0=5
            > fetch F t-0
              F: offsets [t-0=-1]
            > list L
              L: NONE []
            > fetch G stable t-0
            > ok 1
              A: t-0 NONE
              G: offsets [t-0=5]
            > fetch F t-0
              F: offsets [t-0=5]
        "#]],
    );
}

/// A coordinator that does not lead any more has not seen what its successor has acknowledged. A read that comes later is confirmed by the
/// driver.
#[test]
fn a_read_behind_a_write_that_another_coordinator_is_to_make_is_sent_there() {
    check(
        "
        hold
        commit A t-0=5
        fetch F stable t-0
        fail 1 NOT_LEADER_OR_FOLLOWER
        commit B t-0=6
        fetch G stable t-0
        fail 3 NOT_ENOUGH_REPLICAS
        ",
        expect![[r#"
            > hold
            > commit A t-0=5
              append #1 g t-0=5
            > fetch F stable t-0
            > fail 1 NOT_LEADER_OR_FOLLOWER
              A: t-0 NOT_COORDINATOR
              F: NOT_COORDINATOR
            > commit B t-0=6
              append #3 g t-0=6
            > fetch G stable t-0
            > fail 3 NOT_ENOUGH_REPLICAS
              B: t-0 COORDINATOR_NOT_AVAILABLE
              G: offsets [t-0=-1]
        "#]],
    );
}

#[test]
fn commits_take_effect_in_the_order_of_the_log() {
    check(
        "
        hold
        commit A t-0=5
        commit B t-0=6
        commit C t-1=7
        # The outcomes come in any order.
        ok 3
        ok 2
        fetch F t-0
        ok 1
        fetch F t-0 t-1
        ",
        expect![[r#"
            > hold
            > commit A t-0=5
              append #1 g t-0=5
            > commit B t-0=6
              append #2 g t-0=6
            > commit C t-1=7
              append #3 g t-1=7
            > # The outcomes come in any order.
            > ok 3
            > ok 2
            > fetch F t-0
              F: offsets [t-0=-1]
            > ok 1
              A: t-0 NONE
              B: t-0 NONE
              C: t-1 NONE
            > fetch F t-0 t-1
              F: offsets [t-0=6 t-1=7]
        "#]],
    );
}

#[test]
fn a_commit_that_cannot_be_written_has_not_happened() {
    check(
        "
        commit A t-0=5
        hold
        commit A t-0=6 t-1=1
        commit B t-0=7
        fetch F stable t-0 t-1
        fail 2 NOT_LEADER_OR_FOLLOWER
        fetch G t-0 t-1
        fail 3 REQUEST_TIMED_OUT
        fetch G t-0 t-1
        commit C g=h t-0=1
        fail 5 MESSAGE_TOO_LARGE
        list L
        ",
        expect![[r#"
            > commit A t-0=5
              append g t-0=5
              A: t-0 NONE
            > hold
            > commit A t-0=6 t-1=1
              append #2 g t-0=6; g t-1=1
            > commit B t-0=7
              append #3 g t-0=7
            > fetch F stable t-0 t-1
            > fail 2 NOT_LEADER_OR_FOLLOWER
              A: t-0 NOT_COORDINATOR, t-1 NOT_COORDINATOR
            > fetch G t-0 t-1
              G: offsets [t-0=5 t-1=-1]
            > fail 3 REQUEST_TIMED_OUT
              B: t-0 COORDINATOR_NOT_AVAILABLE
              F: NOT_COORDINATOR
            > fetch G t-0 t-1
              G: offsets [t-0=5 t-1=-1]
            > commit C g=h t-0=1
              append #5 h t-0=1
            > fail 5 MESSAGE_TOO_LARGE
              C: t-0 UNKNOWN_SERVER_ERROR
            > list L
              L: NONE [g Empty "" classic]
        "#]],
    );
}

#[test]
fn an_assignment_reaches_members_when_it_is_durable() {
    check(
        "
        join A v=3
        join B v=3
        wait 6000
        hold
        sync B id=c-2
        sync A id=c-1 assign=c-1:P0,c-2:P1
        beat A id=c-1
        commit A id=c-1 gen=1 t-0=1
        describe D
        ok 2
        describe D
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
            > sync A id=c-1 assign=c-1:P0,c-2:P1
              append #2 g generation 1 [c-1=P0 c-2=P1]
            > beat A id=c-1
              A: NONE
            > commit A id=c-1 gen=1 t-0=1
              A: t-0 REBALANCE_IN_PROGRESS
            > describe D
              D: CompletingRebalance "consumer" "" [c-1 c/host metadata 0 bytes, assigned ""; c-2 c/host metadata 0 bytes, assigned ""]
            > ok 2
              A: synced consumer range: "P0"
              B: synced consumer range: "P1"
            > describe D
              D: Stable "consumer" "range" [c-1 c/host metadata 10 bytes, assigned "P0"; c-2 c/host metadata 10 bytes, assigned "P1"]
        "#]],
    );
}

#[test]
fn an_assignment_that_cannot_be_written_is_an_error_and_a_rebalance() {
    check(
        "
        join A v=3
        join B v=3
        wait 6000
        hold
        sync A id=c-1 assign=c-1:P0,c-2:P1
        sync B id=c-2
        fail 2 KAFKA_STORAGE_ERROR
        beat A id=c-1
        join A id=c-1
        join B id=c-2
        sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1
        ok 3
        sync B id=c-2 gen=2
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
            > sync A id=c-1 assign=c-1:P0,c-2:P1
              append #2 g generation 1 [c-1=P0 c-2=P1]
            > sync B id=c-2
            > fail 2 KAFKA_STORAGE_ERROR
              A: NOT_COORDINATOR
              B: NOT_COORDINATOR
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1
            > join B id=c-2
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1
              append #3 g generation 2 [c-1=P0 c-2=P1]
            > ok 3
              A: synced consumer range: "P0"
            > sync B id=c-2 gen=2
              B: synced consumer range: "P1"
        "#]],
    );
}

#[test]
fn an_assignment_of_a_generation_that_is_over_reaches_no_member() {
    check(
        "
        join A v=3
        wait 3000
        hold
        sync A id=c-1 assign=c-1:P0
        join B v=3
        ok 2
        beat A id=c-1
        ",
        expect![[r#"
            > join A v=3
              append g generation 0 []
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > hold
            > sync A id=c-1 assign=c-1:P0
              append #2 g generation 1 [c-1=P0]
            > join B v=3
              A: REBALANCE_IN_PROGRESS
            > ok 2
            > beat A id=c-1
              A: REBALANCE_IN_PROGRESS
        "#]],
    );
}

#[test]
fn a_group_that_forms_while_writes_are_slow_rebalances_only_for_its_members() {
    check(
        "
        hold
        join A
        join A id=c-1
        wait 3000
        sync A id=c-1 assign=c-1:P0
        join B
        # A client that is given its id causes no rebalance yet.
        beat A id=c-1
        join B id=c-2
        join A id=c-1
        sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1
        sync B id=c-2 gen=2
        # The group that was made, and the generation that is over, are late news.
        ok 1
        ok 2
        beat A id=c-1 gen=2
        ok 3
        # Longer than B had to come back with its id.
        wait 9000
        beat A id=c-1 gen=2
        beat B id=c-2 gen=2
        wait 9000
        beat A id=c-1 gen=2
        beat B id=c-2 gen=2
        ",
        expect![[r#"
            > hold
            > join A
              A: MEMBER_ID_REQUIRED "c-1"
              append #1 g generation 0 []
            > join A id=c-1
            > wait 3000
              at 3000
              A: joined as c-1: generation 1, range, leader c-1, members [c-1]
            > sync A id=c-1 assign=c-1:P0
              append #2 g generation 1 [c-1=P0]
            > join B
              B: MEMBER_ID_REQUIRED "c-2"
            > # A client that is given its id causes no rebalance yet.
            > beat A id=c-1
              A: NONE
            > join B id=c-2
              A: REBALANCE_IN_PROGRESS
            > join A id=c-1
              A: joined as c-1: generation 2, range, leader c-1, members [c-1 c-2]
              B: joined as c-2: generation 2, range, leader c-1, members []
            > sync A id=c-1 gen=2 assign=c-1:P0,c-2:P1
              append #3 g generation 2 [c-1=P0 c-2=P1]
            > sync B id=c-2 gen=2
            > # The group that was made, and the generation that is over, are late news.
            > ok 1
            > ok 2
            > beat A id=c-1 gen=2
              A: NONE
            > ok 3
              A: synced consumer range: "P0"
              B: synced consumer range: "P1"
            > # Longer than B had to come back with its id.
            > wait 9000
            > beat A id=c-1 gen=2
              A: NONE
            > beat B id=c-2 gen=2
              B: NONE
            > wait 9000
            > beat A id=c-1 gen=2
              A: NONE
            > beat B id=c-2 gen=2
              B: NONE
        "#]],
    );
}

#[test]
fn a_group_that_cannot_be_written_is_not_made() {
    check(
        "
        hold
        join A
        list L
        fail 1 NOT_ENOUGH_REPLICAS
        join A id=c-1
        join B v=3
        fail 2 KAFKA_STORAGE_ERROR
        list L
        wait 10000
        ",
        expect![[r#"
            > hold
            > join A
              A: MEMBER_ID_REQUIRED "c-1"
              append #1 g generation 0 []
            > list L
              L: NONE []
            > fail 1 NOT_ENOUGH_REPLICAS
            > join A id=c-1
              A: UNKNOWN_MEMBER_ID "c-1"
            > join B v=3
              append #2 g generation 0 []
            > fail 2 KAFKA_STORAGE_ERROR
              B: NOT_COORDINATOR ""
            > list L
              L: NONE []
            > wait 10000
        "#]],
    );
}

#[test]
fn leaving_is_answered_when_the_empty_group_is_durable() {
    check(
        &with_two(
            "
            hold
            leave X c-1 c-2
            ok 3
            join A v=3
            wait 3000
            leave Y v=2 c-3
            fail 4 REQUEST_TIMED_OUT
            # Nothing is undone: the member is gone.
            beat A id=c-3 gen=4
            ",
        ),
        expect![[r#"
            > hold
            > leave X c-1 c-2
              append #3 g generation 2 []
            > ok 3
              X: left NONE c-1 NONE c-2 NONE
            > join A v=3
            > wait 3000
              at 9000
              A: joined as c-3: generation 3, range, leader c-3, members [c-3]
            > leave Y v=2 c-3
              append #4 g generation 4 []
            > fail 4 REQUEST_TIMED_OUT
              Y: left COORDINATOR_NOT_AVAILABLE
            > # Nothing is undone: the member is gone.
            > beat A id=c-3 gen=4
              A: UNKNOWN_MEMBER_ID
        "#]],
    );
}

#[test]
fn a_static_member_whose_new_id_cannot_be_written_keeps_the_old_one() {
    check(
        "
        join A instance=i
        wait 3000
        sync A id=i-1 instance=i assign=i-1:P0
        hold
        join B instance=i protocols=range:t
        fail 3 KAFKA_STORAGE_ERROR
        beat A id=i-1 instance=i
        describe D
        # With a later record on its way the old id cannot come back.
        join B instance=i
        join C instance=i
        fail 4 KAFKA_STORAGE_ERROR
        ok 5
        beat A id=i-1 instance=i
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
            > join B instance=i protocols=range:t
              append #3 g generation 1 [i-2=P0]
            > fail 3 KAFKA_STORAGE_ERROR
              B: NOT_COORDINATOR ""
            > beat A id=i-1 instance=i
              A: NONE
            > describe D
              D: Stable "consumer" "range" [i-1/i c/host metadata 10 bytes, assigned "P0"]
            > # With a later record on its way the old id cannot come back.
            > join B instance=i
              append #4 g generation 1 [i-3=P0]
            > join C instance=i
              B: FENCED_INSTANCE_ID "i-3"
              append #5 g generation 1 [i-4=P0]
            > fail 4 KAFKA_STORAGE_ERROR
              C: joined as i-4: generation 2, range, leader i-4, members [i-4/i]
            > ok 5
            > beat A id=i-1 instance=i
              A: FENCED_INSTANCE_ID
            > describe D
              D: CompletingRebalance "consumer" "" [i-4/i c/host metadata 0 bytes, assigned ""]
        "#]],
    );
}
