//! Markers: the requests for them, their time and their number.

use expect_test::expect;

use super::transcript::{check, check_with};
use crate::transactions::TransactionConfig;

#[test]
fn a_transaction_has_ended_when_all_its_partitions_have_their_markers() {
    check(
        "
        init A
        add A t-0 t-1 u-0
        hold-markers
        end A commit
        mark 5 u-0
        describe D
        mark 5 t-1
        # A partition that was deleted has nothing to end.
        mark 5 t-0 Gone
        describe D
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0 t-1 u-0
              append t Ongoing 1000/0 [t-0 t-1 u-0]
              A: t-0 NONE, t-1 NONE, u-0 NONE
            > hold-markers
            > end A commit
              append t PrepareCommit 1000/1 [t-0 t-1 u-0]
              A: NONE, go on as 1000/1
              markers #5 t commit 1000/1 version 2 coordinator 1 [t-0 t-1 u-0]
            > mark 5 u-0
            > describe D
              D: t PrepareCommit 1000/1 timeout 60000 since 1000000 [t-0 t-1]
            > mark 5 t-1
            > # A partition that was deleted has nothing to end.
            > mark 5 t-0 Gone
              append t CompleteCommit 1000/1 []
            > describe D
              D: t CompleteCommit 1000/1 timeout 60000 since 1000000 []
        "#]],
    );
}

#[test]
fn a_marker_that_fails_is_asked_for_again() {
    check(
        "
        init A
        add A t-0 t-1 u-0
        hold-markers
        end A abort
        mark 5 t-0 NOT_LEADER_OR_FOLLOWER
        mark 5 u-0 KAFKA_STORAGE_ERROR
        wait 99
        wait 1
        mark 5 u-0
        mark 5 t-0 UNKNOWN_TOPIC_OR_PARTITION
        mark 5 t-1
        wait 100
        mark 5 t-0
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0 t-1 u-0
              append t Ongoing 1000/0 [t-0 t-1 u-0]
              A: t-0 NONE, t-1 NONE, u-0 NONE
            > hold-markers
            > end A abort
              append t PrepareAbort 1000/1 [t-0 t-1 u-0]
              A: NONE, go on as 1000/1
              markers #5 t abort 1000/1 version 2 coordinator 1 [t-0 t-1 u-0]
            > mark 5 t-0 NOT_LEADER_OR_FOLLOWER
            > mark 5 u-0 KAFKA_STORAGE_ERROR
            > wait 99
            > wait 1
              at 100
              markers #5 t abort 1000/1 version 2 coordinator 1 [t-0 u-0]
            > mark 5 u-0
            > mark 5 t-0 UNKNOWN_TOPIC_OR_PARTITION
            > mark 5 t-1
            > wait 100
              at 200
              markers #5 t abort 1000/1 version 2 coordinator 1 [t-0]
            > mark 5 t-0
              append t CompleteAbort 1000/1 []
        "#]],
    );
}

#[test]
fn a_partition_that_cannot_hold_markers_is_left_out() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        mark 5 t-0 UNSUPPORTED_FOR_MESSAGE_FORMAT
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold-markers
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers #5 t commit 1000/1 version 2 coordinator 1 [t-0]
            > mark 5 t-0 UNSUPPORTED_FOR_MESSAGE_FORMAT
              append t CompleteCommit 1000/1 []
        "#]],
    );
}

/// The partition has seen a newer epoch of the producer: the transaction has ended there.
#[test]
fn a_marker_that_is_refused_as_late_does_not_keep_its_transactional_id() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        mark 5 t-0 INVALID_PRODUCER_EPOCH
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold-markers
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers #5 t commit 1000/1 version 2 coordinator 1 [t-0]
            > mark 5 t-0 INVALID_PRODUCER_EPOCH
              append t CompleteCommit 1000/1 []
        "#]],
    );
}

#[test]
fn a_coordinator_that_was_replaced_gives_up() {
    check(
        "
        init A
        add A t-0 t-1 t-2
        hold-markers
        end A commit
        mark 5 t-1 REQUEST_TIMED_OUT
        mark 5 t-0 TRANSACTION_COORDINATOR_FENCED
        mark 5 t-2
        wait 1000
        init B
        describe D
        reload
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0 t-1 t-2
              append t Ongoing 1000/0 [t-0 t-1 t-2]
              A: t-0 NONE, t-1 NONE, t-2 NONE
            > hold-markers
            > end A commit
              append t PrepareCommit 1000/1 [t-0 t-1 t-2]
              A: NONE, go on as 1000/1
              markers #5 t commit 1000/1 version 2 coordinator 1 [t-0 t-1 t-2]
            > mark 5 t-1 REQUEST_TIMED_OUT
            > mark 5 t-0 TRANSACTION_COORDINATOR_FENCED
            > mark 5 t-2
            > wait 1000
            > init B
              B: CONCURRENT_TRANSACTIONS
            > describe D
              D: t PrepareCommit 1000/1 timeout 60000 since 1000000 [t-0 t-1 t-2]
            > reload
              markers #6 t commit 1000/1 version 2 coordinator 2 [t-0 t-1 t-2]
        "#]],
    );
}

#[test]
fn a_transaction_without_partitions_needs_no_markers() {
    check_with(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        "
        init A
        add A v=3
        end A v=4 commit
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A v=3
              append t Ongoing 1000/0 []
              A: 
            > end A v=4 commit
              append t PrepareCommit 1000/0 []
              A: NONE
              append t CompleteCommit 1000/0 []
        "#]],
    );
}
