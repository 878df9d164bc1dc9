//! Transactions that take too long, and transactional ids that are not used.

use expect_test::expect;

use super::transcript::{check, check_after, check_with, stored};
use crate::transactions::TransactionConfig;
use crate::transactions::state::State;

#[test]
fn a_transaction_that_takes_too_long_is_aborted() {
    check(
        "
        init A timeout=25000
        add A t-0
        wait 20000
        add A t-1
        wait 10000
        add A t-0
        end A commit
        end A abort
        add A epoch=1 t-0
        ",
        expect![[r#"
            > init A timeout=25000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > wait 20000
            > add A t-1
              append t Ongoing 1000/0 [t-0 t-1]
              A: t-1 NONE
            > wait 10000
              at 30000
              append t PrepareAbort 1000/1 [t-0 t-1]
              markers t abort 1000/1 version 2 coordinator 1 [t-0 t-1]
              append t CompleteAbort 1000/1 []
            > add A t-0
              A: t-0 PRODUCER_FENCED
            > end A commit
              A: INVALID_TXN_STATE
            > end A abort
              A: NONE, go on as 1000/1
            > add A epoch=1 t-0
              append t Ongoing 1000/1 [t-0]
              A: t-0 NONE
        "#]],
    );
}

#[test]
fn the_same_with_transactions_of_version_1() {
    check_with(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        "
        init A timeout=25000
        add A v=3 t-0
        wait 30000
        add A v=3 t-0
        end A v=4 abort
        init A pid=1000 epoch=0
        init A
        ",
        expect![[r#"
            > init A timeout=25000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > wait 30000
              at 30000
              append t PrepareAbort 1000/1 [t-0]
              markers t abort 1000/1 version 1 coordinator 1 [t-0]
              append t CompleteAbort 1000/1 []
            > add A v=3 t-0
              A: t-0 PRODUCER_FENCED
            > end A v=4 abort
              A: PRODUCER_FENCED
            > init A pid=1000 epoch=0
              A: PRODUCER_FENCED
            > init A
              append t Empty 1000/2 []
              A: producer 1000/2
        "#]],
    );
}

#[test]
fn the_wall_clock_aborts_nothing() {
    check(
        "
        init A timeout=25000
        add A t-0
        wall 100000000
        wait 20000
        end A commit
        ",
        expect![[r#"
            > init A timeout=25000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > wall 100000000
            > wait 20000
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0]
              append t CompleteCommit 1000/1 []
        "#]],
    );
}

#[test]
fn what_is_on_its_way_is_not_disturbed() {
    check(
        "
        init A timeout=5000
        add A t-0
        hold
        end A commit
        wait 30000
        ok 4
        ",
        expect![[r#"
            > init A timeout=5000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold
            > end A commit
              append #4 t PrepareCommit 1000/1 [t-0]
            > wait 30000
            > ok 4
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0]
              append #6 t CompleteCommit 1000/1 []
        "#]],
    );
}

#[test]
fn an_abort_by_time_that_fails_is_tried_again() {
    check(
        "
        init A timeout=5000
        add A t-0
        hold
        wait 10000
        fail 4 NOT_ENOUGH_REPLICAS
        wait 10000
        ok 5
        ",
        expect![[r#"
            > init A timeout=5000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold
            > wait 10000
              at 10000
              append #4 t PrepareAbort 1000/1 [t-0]
            > fail 4 NOT_ENOUGH_REPLICAS
            > wait 10000
              at 20000
              append #5 t PrepareAbort 1000/1 [t-0]
            > ok 5
              markers t abort 1000/1 version 2 coordinator 1 [t-0]
              append #7 t CompleteAbort 1000/1 []
        "#]],
    );
}

#[test]
fn at_the_last_epoch_time_takes_another_id() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        hold-ids
        wait 70000
        no-id 1 COORDINATOR_LOAD_IN_PROGRESS
        wait 10000
        id 2
        end A pid=7 epoch=32766 abort
        ",
        expect![[r#"
            > hold-ids
            > wait 70000
              at 70000
              wants a producer id #1
            > no-id 1 COORDINATOR_LOAD_IN_PROGRESS
            > wait 10000
              at 80000
              wants a producer id #2
            > id 2
              append t PrepareAbort 7/32767, next 1000 [t-0]
              markers t abort 7/32767 version 2 coordinator 1 [t-0]
              append t CompleteAbort 1000/0, before 7 []
            > end A pid=7 epoch=32766 abort
              A: NONE, go on as 1000/0
        "#]],
    );
}

#[test]
fn a_transaction_with_all_the_time_there_is_does_not_time_out() {
    check_with(
        TransactionConfig { transaction_max_timeout_ms: i32::MAX, ..TransactionConfig::default() },
        "
        init A timeout=2147483647
        add A t-0
        wait 300000000
        describe D
        ",
        expect![[r#"
            > init A timeout=2147483647
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > wait 300000000
            > describe D
              D: t Ongoing 1000/0 timeout 2147483647 since 1000000 [t-0]
        "#]],
    );
}

#[test]
fn transactional_ids_expire() {
    check_with(
        TransactionConfig {
            tombstones_per_append_max: 2,
            transactional_id_expiration_ms: 5_400_000,
            ..TransactionConfig::default()
        },
        "
        init A
        init B id=u
        init C id=v
        init D id=w
        add D id=w pid=1003 t-0
        wait 3600000
        init B id=u
        wait 3600000
        list L
        init A
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > init B id=u
              wants a producer id
              append u Empty 1001/0 []
              B: producer 1001/0
            > init C id=v
              wants a producer id
              append v Empty 1002/0 []
              C: producer 1002/0
            > init D id=w
              wants a producer id
              append w Empty 1003/0 []
              D: producer 1003/0
            > add D id=w pid=1003 t-0
              append w Ongoing 1003/0 [t-0]
              D: t-0 NONE
            > wait 3600000
              at 70000
              append w PrepareAbort 1003/1 [t-0]
              markers w abort 1003/1 version 2 coordinator 1 [t-0]
              append w CompleteAbort 1003/1 []
            > init B id=u
              append u Empty 1001/1 []
              B: producer 1001/1
            > wait 3600000
              at 7200000
              append t gone; v gone
              append w gone
            > list L
              L: NONE [u 1001 Empty]
            > init A
              wants a producer id
              append t Empty 1004/0 []
              A: producer 1004/0
        "#]],
    );
}

#[test]
fn an_expired_id_that_cannot_be_written_lives_on() {
    check_with(
        TransactionConfig { transactional_id_expiration_ms: 3_600_000, ..TransactionConfig::default() },
        "
        init A
        hold
        wait 3600000
        init A pid=1000 epoch=0
        add A t-0
        end A abort
        describe D
        fail 3 KAFKA_STORAGE_ERROR
        init A pid=1000 epoch=0
        ok 4
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > hold
            > wait 3600000
              at 3600000
              append #3 t gone
            > init A pid=1000 epoch=0
              A: CONCURRENT_TRANSACTIONS
            > add A t-0
              A: t-0 CONCURRENT_TRANSACTIONS
            > end A abort
              A: CONCURRENT_TRANSACTIONS
            > describe D
              D: t Empty 1000/0 timeout 60000 since -1 []
            > fail 3 KAFKA_STORAGE_ERROR
            > init A pid=1000 epoch=0
              append #4 t Empty 1000/1 []
            > ok 4
              A: producer 1000/1
        "#]],
    );
}

#[test]
fn an_expired_id_is_answered_so() {
    check_with(
        TransactionConfig { transactional_id_expiration_ms: 3_600_000, ..TransactionConfig::default() },
        "
        init A
        wait 3600000
        add A t-0
        end A commit
        describe D
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > wait 3600000
              at 3600000
              append t gone
            > add A t-0
              A: t-0 INVALID_PRODUCER_ID_MAPPING
            > end A commit
              A: INVALID_PRODUCER_ID_MAPPING
            > describe D
              D: t TRANSACTIONAL_ID_NOT_FOUND
        "#]],
    );
}
