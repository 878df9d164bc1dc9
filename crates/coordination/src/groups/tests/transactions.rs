//! Offsets that are committed with the records of a transaction (KIP-98, KIP-447).

mod members;
mod removal;

use expect_test::expect;

use super::transcript::{check, check_with, config};
use crate::groups::GroupConfig;

#[test]
fn offsets_of_a_transaction_are_read_after_its_marker() {
    check(
        "
        txn A t-0=5:note u-3=6
        fetch F t-0 u-3
        fetch F stable t-0 u-3 t-1
        fetch F stable
        list L
        describe D
        end 1 commit
        fetch F stable t-0 u-3
        # The next transaction of the producer changes its mind.
        txn A t-0=7
        txn A t-0=8 t-1=1
        fetch F t-0 t-1
        fetch F stable
        end 1 abort
        fetch F stable t-0 t-1
        # Nothing is open: markers do no harm.
        end 1 commit
        end 2 abort
        fetch F stable
        ",
        expect![[r#"
            > txn A t-0=5:note u-3=6
              append by 1 g t-0=5; g u-3=6
              A: t-0 NONE, u-3 NONE
            > fetch F t-0 u-3
              F: offsets [t-0=-1 u-3=-1]
            > fetch F stable t-0 u-3 t-1
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT u-3=-1UNSTABLE_OFFSET_COMMIT t-1=-1]
            > fetch F stable
              F: offsets []
            > list L
              L: NONE [g Empty "" classic]
            > describe D
              D: Empty "" "" []
            > end 1 commit
            > fetch F stable t-0 u-3
              F: offsets [t-0=5:note u-3=6]
            > # The next transaction of the producer changes its mind.
            > txn A t-0=7
              append by 1 g t-0=7
              A: t-0 NONE
            > txn A t-0=8 t-1=1
              append by 1 g t-0=8; g t-1=1
              A: t-0 NONE, t-1 NONE
            > fetch F t-0 t-1
              F: offsets [t-0=5:note t-1=-1]
            > fetch F stable
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT u-3=6]
            > end 1 abort
            > fetch F stable t-0 t-1
              F: offsets [t-0=5:note t-1=-1]
            > # Nothing is open: markers do no harm.
            > end 1 commit
            > end 2 abort
            > fetch F stable
              F: offsets [t-0=5:note u-3=6]
        "#]],
    );
}

#[test]
fn a_group_that_a_transaction_made_goes_with_it() {
    check(
        "
        txn A g=h t-0=5
        list L
        txn A gen=0 g=none t-0=5
        txn A g= t-0=5
        fetch F g=h t-0
        end 1 abort
        list L
        fetch F stable g=h t-0
        ",
        expect![[r#"
            > txn A g=h t-0=5
              append by 1 h t-0=5
              A: t-0 NONE
            > list L
              L: NONE [h Empty "" classic]
            > txn A gen=0 g=none t-0=5
              A: t-0 ILLEGAL_GENERATION
            > txn A g= t-0=5
              A: t-0 INVALID_GROUP_ID
            > fetch F g=h t-0
              F: offsets [t-0=-1]
            > end 1 abort
            > list L
              L: NONE []
            > fetch F stable g=h t-0
              F: offsets [t-0=-1]
        "#]],
    );
}

#[test]
fn the_later_record_counts_whenever_its_transaction_ends() {
    check(
        "
        # A plain commit behind that of a transaction.
        txn A t-0=1
        commit B t-0=2
        end 1 commit
        fetch F stable t-0
        # A plain commit before it.
        commit B t-0=3
        txn A t-0=4
        end 1 commit
        fetch F stable t-0
        # Two transactions that end the other way round.
        txn A pid=1 t-0=5
        txn A pid=2 t-0=6
        end 2 commit
        fetch F t-0
        fetch F stable t-0
        end 1 commit
        fetch F stable t-0
        # One that commits once more gets behind the plain commit again.
        txn A t-0=7
        commit B t-0=8
        txn A t-0=9
        end 1 commit
        fetch F stable t-0
        # What is aborted overtakes nothing.
        txn A pid=1 t-0=10
        txn A pid=2 t-0=11
        end 2 abort
        end 1 commit
        fetch F stable t-0
        ",
        expect![[r#"
            > # A plain commit behind that of a transaction.
            > txn A t-0=1
              append by 1 g t-0=1
              A: t-0 NONE
            > commit B t-0=2
              append g t-0=2
              B: t-0 NONE
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=2]
            > # A plain commit before it.
            > commit B t-0=3
              append g t-0=3
              B: t-0 NONE
            > txn A t-0=4
              append by 1 g t-0=4
              A: t-0 NONE
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=4]
            > # Two transactions that end the other way round.
            > txn A pid=1 t-0=5
              append by 1 g t-0=5
              A: t-0 NONE
            > txn A pid=2 t-0=6
              append by 2 g t-0=6
              A: t-0 NONE
            > end 2 commit
            > fetch F t-0
              F: offsets [t-0=6]
            > fetch F stable t-0
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=6]
            > # One that commits once more gets behind the plain commit again.
            > txn A t-0=7
              append by 1 g t-0=7
              A: t-0 NONE
            > commit B t-0=8
              append g t-0=8
              B: t-0 NONE
            > txn A t-0=9
              append by 1 g t-0=9
              A: t-0 NONE
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=9]
            > # What is aborted overtakes nothing.
            > txn A pid=1 t-0=10
              append by 1 g t-0=10
              A: t-0 NONE
            > txn A pid=2 t-0=11
              append by 2 g t-0=11
              A: t-0 NONE
            > end 2 abort
            > end 1 commit
            > fetch F stable t-0
              F: offsets [t-0=10]
        "#]],
    );
}

#[test]
fn commits_and_markers_take_effect_in_the_order_of_the_log() {
    check(
        "
        hold
        txn A t-0=5
        fetch F stable t-0
        ok 1
        end 1 commit
        txn B pid=1 t-1=6
        fetch F stable t-0 t-1
        fetch G t-0 t-1
        ok 4
        ok 3
        fetch G t-0 t-1
        # A marker that is not in the log after all.
        end 1 commit
        fail 6 NOT_LEADER_OR_FOLLOWER
        fetch F stable t-0 t-1
        ",
        expect![[r#"
            > hold
            > txn A t-0=5
              append #1 by 1 g t-0=5
            > fetch F stable t-0
            > ok 1
              A: t-0 NONE
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
              marker #3
            > txn B pid=1 t-1=6
              append #4 by 1 g t-1=6
            > fetch F stable t-0 t-1
            > fetch G t-0 t-1
              G: offsets [t-0=-1 t-1=-1]
            > ok 4
            > ok 3
              B: t-1 NONE
              F: offsets [t-0=5 t-1=-1UNSTABLE_OFFSET_COMMIT]
            > fetch G t-0 t-1
              G: offsets [t-0=5 t-1=-1]
            > # A marker that is not in the log after all.
            > end 1 commit
              marker #6
            > fail 6 NOT_LEADER_OR_FOLLOWER
            > fetch F stable t-0 t-1
              F: offsets [t-0=5 t-1=-1UNSTABLE_OFFSET_COMMIT]
        "#]],
    );
}

#[test]
fn a_commit_that_cannot_be_written_is_no_part_of_its_transaction() {
    check(
        "
        hold
        txn A t-0=5
        txn B pid=2 t-0=6
        fail 1 INVALID_PRODUCER_EPOCH
        fail 2 NOT_ENOUGH_REPLICAS
        list L
        txn A t-0=7
        # It takes too long; then it is there nevertheless.
        wait 5000
        ok 3
        fetch F stable t-0
        end 1 commit
        ok 4
        fetch F t-0
        ",
        expect![[r#"
            > hold
            > txn A t-0=5
              append #1 by 1 g t-0=5
            > txn B pid=2 t-0=6
              append #2 by 2 g t-0=6
            > fail 1 INVALID_PRODUCER_EPOCH
              A: t-0 INVALID_PRODUCER_EPOCH
            > fail 2 NOT_ENOUGH_REPLICAS
              B: t-0 COORDINATOR_NOT_AVAILABLE
            > list L
              L: NONE []
            > txn A t-0=7
              append #3 by 1 g t-0=7
            > # It takes too long; then it is there nevertheless.
            > wait 5000
              at 5000
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > ok 3
            > fetch F stable t-0
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
              marker #4
            > ok 4
            > fetch F t-0
              F: offsets [t-0=7]
        "#]],
    );
}

#[test]
fn metadata_and_names_are_bounded_as_in_any_commit() {
    check(
        "
        txn A t-0=1:x4096 t-1=1:x4097
        end 1 commit
        fetch F t-1
        ",
        expect![[r#"
            > txn A t-0=1:x4096 t-1=1:x4097
              append by 1 g t-0=1
              A: t-0 NONE, t-1 OFFSET_METADATA_TOO_LARGE
            > end 1 commit
            > fetch F t-1
              F: offsets [t-1=-1]
        "#]],
    );
}

#[test]
fn a_coordinator_that_takes_over_knows_of_open_transactions() {
    check(
        "
        commit A t-0=1 t-1=1 t-2=1
        txn A t-0=2
        txn A pid=2 t-1=2
        txn A pid=3 t-2=3
        commit A t-2=4
        txn A pid=4 t-0=5
        end 4 commit
        reload
        fetch F stable t-0 t-1 t-2
        end 1 commit
        end 2 abort
        end 3 commit
        fetch F stable t-0 t-1 t-2
        reload
        fetch F stable t-0 t-1 t-2
        ",
        expect![[r#"
            > commit A t-0=1 t-1=1 t-2=1
              append g t-0=1; g t-1=1; g t-2=1
              A: t-0 NONE, t-1 NONE, t-2 NONE
            > txn A t-0=2
              append by 1 g t-0=2
              A: t-0 NONE
            > txn A pid=2 t-1=2
              append by 2 g t-1=2
              A: t-1 NONE
            > txn A pid=3 t-2=3
              append by 3 g t-2=3
              A: t-2 NONE
            > commit A t-2=4
              append g t-2=4
              A: t-2 NONE
            > txn A pid=4 t-0=5
              append by 4 g t-0=5
              A: t-0 NONE
            > end 4 commit
            > reload
            > fetch F stable t-0 t-1 t-2
              F: offsets [t-0=-1UNSTABLE_OFFSET_COMMIT t-1=-1UNSTABLE_OFFSET_COMMIT t-2=-1UNSTABLE_OFFSET_COMMIT]
            > end 1 commit
            > end 2 abort
            > end 3 commit
            > fetch F stable t-0 t-1 t-2
              F: offsets [t-0=5 t-1=1 t-2=4]
            > reload
            > fetch F stable t-0 t-1 t-2
              F: offsets [t-0=5 t-1=1 t-2=4]
        "#]],
    );
}

#[test]
fn markers_wait_until_the_partition_is_served_and_the_queue_has_space() {
    check_with(
        GroupConfig { pending_appends_max: 2, ..config() },
        "
        hold
        txn A t-0=1
        ok 1
        txn A t-1=1
        end 1 commit
        end 2 commit
        txn B pid=2 t-1=1
        ok 2
        end 2 abort
        unload
        end 1 commit
        txn A t-0=1
        txn A v=1 t-0=1
        begin-load
        end 1 commit
        txn A t-0=1
        txn A v=1 t-0=1
        ",
        expect![[r#"
            > hold
            > txn A t-0=1
              append #1 by 1 g t-0=1
            > ok 1
              A: t-0 NONE
            > txn A t-1=1
              append #2 by 1 g t-1=1
            > end 1 commit
              marker #3
            > end 2 commit
              COORDINATOR_NOT_AVAILABLE
            > txn B pid=2 t-1=1
              B: t-1 COORDINATOR_NOT_AVAILABLE
            > ok 2
              A: t-1 NONE
            > end 2 abort
              marker #4
            > unload
            > end 1 commit
              NOT_COORDINATOR
            > txn A t-0=1
              A: t-0 NOT_COORDINATOR
            > txn A v=1 t-0=1
              A: t-0 NOT_COORDINATOR
            > begin-load
            > end 1 commit
              COORDINATOR_LOAD_IN_PROGRESS
            > txn A t-0=1
              A: t-0 COORDINATOR_LOAD_IN_PROGRESS
            > txn A v=1 t-0=1
              A: t-0 COORDINATOR_NOT_AVAILABLE
        "#]],
    );
}

#[test]
fn offsets_of_open_transactions_are_bounded() {
    check_with(
        GroupConfig { offsets_max: 3, ..config() },
        "
        commit A t-0=1
        txn A t-0=2 t-1=2
        txn A t-0=3
        txn B pid=2 t-0=3
        commit A t-2=1
        end 1 commit
        txn B pid=2 t-0=3
        ",
        expect![[r#"
            > commit A t-0=1
              append g t-0=1
              A: t-0 NONE
            > txn A t-0=2 t-1=2
              append by 1 g t-0=2; g t-1=2
              A: t-0 NONE, t-1 NONE
            > txn A t-0=3
              append by 1 g t-0=3
              A: t-0 NONE
            > txn B pid=2 t-0=3
              B: t-0 INVALID_COMMIT_OFFSET_SIZE
            > commit A t-2=1
              A: t-2 INVALID_COMMIT_OFFSET_SIZE
            > end 1 commit
            > txn B pid=2 t-0=3
              append by 2 g t-0=3
              B: t-0 NONE
        "#]],
    );
    check_with(
        GroupConfig { memory_bytes_max: 1_300, ..config() },
        "
        txn A t-0=1:x200
        txn A t-1=1:x600
        txn A pid=2 t-0=1:x200
        txn A t-0=2:x200
        commit A t-0=3:x200
        txn A t-1=1:x200
        end 1 abort
        txn A t-1=1:x200
        ",
        expect![[r#"
            > txn A t-0=1:x200
              append by 1 g t-0=1
              A: t-0 NONE
            > txn A t-1=1:x600
              A: t-1 INVALID_COMMIT_OFFSET_SIZE
            > txn A pid=2 t-0=1:x200
              A: t-0 INVALID_COMMIT_OFFSET_SIZE
            > txn A t-0=2:x200
              append by 1 g t-0=2
              A: t-0 NONE
            > commit A t-0=3:x200
              append g t-0=3
              A: t-0 NONE
            > txn A t-1=1:x200
              A: t-1 INVALID_COMMIT_OFFSET_SIZE
            > end 1 abort
            > txn A t-1=1:x200
              append by 1 g t-1=1
              A: t-1 NONE
        "#]],
    );
}
