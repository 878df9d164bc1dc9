//! Events between a decision and its record, and records that cannot be written.

use expect_test::expect;

use super::transcript::{check, check_with};
use crate::transactions::TransactionConfig;

#[test]
fn nothing_is_answered_or_seen_before_it_is_durable() {
    check(
        "
        hold
        init A
        describe D
        ok 2
        add A t-0
        add A verify t-0
        describe D
        ok 3
        end A commit
        describe D
        ok 4
        describe D
        ok 6
        describe D
        ",
        expect![[r#"
            > hold
            > init A
              wants a producer id
              append #2 t Empty 1000/0 []
            > describe D
              D: t TRANSACTIONAL_ID_NOT_FOUND
            > ok 2
              A: producer 1000/0
            > add A t-0
              append #3 t Ongoing 1000/0 [t-0]
            > add A verify t-0
              A: t-0 TRANSACTION_ABORTABLE
            > describe D
              D: t Empty 1000/0 timeout 60000 since -1 []
            > ok 3
              A: t-0 NONE
            > end A commit
              append #4 t PrepareCommit 1000/1 [t-0]
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 [t-0]
            > ok 4
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0]
              append #6 t CompleteCommit 1000/1 []
            > describe D
              D: t PrepareCommit 1000/1 timeout 60000 since 1000000 []
            > ok 6
            > describe D
              D: t CompleteCommit 1000/1 timeout 60000 since 1000000 []
        "#]],
    );
}

#[test]
fn a_change_at_a_time() {
    check(
        "
        init A
        hold
        init A
        init B
        add A t-0
        offsets A
        end A commit
        end A v=4 commit
        ok 3
        add A epoch=1 t-0
        add A epoch=1 t-1
        init B
        end A epoch=1 abort
        ok 4
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > hold
            > init A
              append #3 t Empty 1000/1 []
            > init B
              B: CONCURRENT_TRANSACTIONS
            > add A t-0
              A: t-0 CONCURRENT_TRANSACTIONS
            > offsets A
              A: CONCURRENT_TRANSACTIONS
            > end A commit
              A: CONCURRENT_TRANSACTIONS
            > end A v=4 commit
              A: CONCURRENT_TRANSACTIONS
            > ok 3
              A: producer 1000/1
            > add A epoch=1 t-0
              append #4 t Ongoing 1000/1 [t-0]
            > add A epoch=1 t-1
              A: t-1 CONCURRENT_TRANSACTIONS
            > init B
              B: CONCURRENT_TRANSACTIONS
            > end A epoch=1 abort
              A: CONCURRENT_TRANSACTIONS
            > ok 4
              A: t-0 NONE
        "#]],
    );
}

#[test]
fn a_first_producer_that_cannot_be_written_is_forgotten() {
    check(
        "
        hold
        init A
        fail 2 NOT_ENOUGH_REPLICAS
        list L
        init A
        ok 4
        ",
        expect![[r#"
            > hold
            > init A
              wants a producer id
              append #2 t Empty 1000/0 []
            > fail 2 NOT_ENOUGH_REPLICAS
              A: COORDINATOR_NOT_AVAILABLE
            > list L
              L: NONE []
            > init A
              wants a producer id
              append #4 t Empty 1001/0 []
            > ok 4
              A: producer 1001/0
        "#]],
    );
}

#[test]
fn what_cannot_be_written_has_not_happened() {
    check(
        "
        init A
        hold
        init B
        fail 3 KAFKA_STORAGE_ERROR
        add A t-0
        fail 4 NOT_LEADER_OR_FOLLOWER
        describe D
        add A t-0
        ok 5
        add A t-1
        fail 6 REQUEST_TIMED_OUT
        describe D
        end A commit
        fail 7 MESSAGE_TOO_LARGE
        describe D
        end A abort
        ok 8
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > hold
            > init B
              append #3 t Empty 1000/1 []
            > fail 3 KAFKA_STORAGE_ERROR
              B: NOT_COORDINATOR
            > add A t-0
              append #4 t Ongoing 1000/0 [t-0]
            > fail 4 NOT_LEADER_OR_FOLLOWER
              A: t-0 NOT_COORDINATOR
            > describe D
              D: t Empty 1000/0 timeout 60000 since -1 []
            > add A t-0
              append #5 t Ongoing 1000/0 [t-0]
            > ok 5
              A: t-0 NONE
            > add A t-1
              append #6 t Ongoing 1000/0 [t-0 t-1]
            > fail 6 REQUEST_TIMED_OUT
              A: t-1 COORDINATOR_NOT_AVAILABLE
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 [t-0]
            > end A commit
              append #7 t PrepareCommit 1000/1 [t-0]
            > fail 7 MESSAGE_TOO_LARGE
              A: UNKNOWN_SERVER_ERROR
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 [t-0]
            > end A abort
              append #8 t PrepareAbort 1000/1 [t-0]
            > ok 8
              A: NONE, go on as 1000/1
              markers t abort 1000/1 version 2 coordinator 1 [t-0]
              append #10 t CompleteAbort 1000/1 []
        "#]],
    );
}

#[test]
fn a_fence_that_cannot_be_written_fences_no_producer() {
    check_with(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        "
        init A
        add A v=3 t-0
        hold
        init B
        fail 4 NOT_ENOUGH_REPLICAS
        add A v=3 t-1
        ok 5
        init B
        ok 6
        go
        init B
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold
            > init B
              append #4 t PrepareAbort 1000/1 [t-0]
            > fail 4 NOT_ENOUGH_REPLICAS
              B: COORDINATOR_NOT_AVAILABLE
            > add A v=3 t-1
              append #5 t Ongoing 1000/0 [t-0 t-1]
            > ok 5
              A: t-1 NONE
            > init B
              append #6 t PrepareAbort 1000/1 [t-0 t-1]
            > ok 6
              B: CONCURRENT_TRANSACTIONS
              markers t abort 1000/1 version 1 coordinator 1 [t-0 t-1]
              append #8 t CompleteAbort 1000/1 []
            > go
            > init B
              append t Empty 1000/2 []
              B: producer 1000/2
        "#]],
    );
}

#[test]
fn the_record_of_the_end_is_tried_until_it_is_there() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        hold
        mark 5 t-0
        fail 6 NOT_ENOUGH_REPLICAS
        init A
        wait 100
        fail 7 KAFKA_STORAGE_ERROR
        wait 100
        ok 8
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
            > hold
            > mark 5 t-0
              append #6 t CompleteCommit 1000/1 []
            > fail 6 NOT_ENOUGH_REPLICAS
            > init A
              A: CONCURRENT_TRANSACTIONS
            > wait 100
              at 100
              append #7 t CompleteCommit 1000/1 []
            > fail 7 KAFKA_STORAGE_ERROR
            > wait 100
              at 200
              append #8 t CompleteCommit 1000/1 []
            > ok 8
        "#]],
    );
}
