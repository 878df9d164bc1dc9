//! A producer that begins its next transaction while markers of the last one are written.

use expect_test::expect;

use super::transcript::{check, check_after, check_with, stored};
use crate::transactions::TransactionConfig;
use crate::transactions::state::State;

#[test]
fn the_next_transaction_begins_when_the_last_one_has_ended() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        add A epoch=1 t-0 t-1
        mark 5 t-0
        describe D
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
            > add A epoch=1 t-0 t-1
            > mark 5 t-0
              append t CompleteCommit 1000/1 []
              append t Ongoing 1000/1 [t-0 t-1]
              A: t-0 NONE, t-1 NONE
            > describe D
              D: t Ongoing 1000/1 timeout 60000 since 1000000 [t-0 t-1]
        "#]],
    );
}

#[test]
fn the_same_for_offsets_and_transactions_of_version_1() {
    check_with(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        "
        init A
        add A v=3 t-0
        hold-markers
        end A v=4 commit
        offsets A
        mark 5 t-0
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold-markers
            > end A v=4 commit
              append t PrepareCommit 1000/0 [t-0]
              A: NONE
              markers #5 t commit 1000/0 version 0 coordinator 1 [t-0]
            > offsets A
            > mark 5 t-0
              append t CompleteCommit 1000/0 []
              append t Ongoing 1000/0 [__consumer_offsets-3]
              A: NONE
        "#]],
    );
}

#[test]
fn it_waits_for_the_record_too() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        hold
        mark 5 t-0
        add A epoch=1 t-1
        ok 6
        ok 7
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
            > add A epoch=1 t-1
            > ok 6
              append #7 t Ongoing 1000/1 [t-1]
            > ok 7
              A: t-1 NONE
        "#]],
    );
}

#[test]
fn one_request_waits_and_not_for_ever() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        add A epoch=1 t-0
        add A epoch=1 t-1
        wait 999
        wait 1
        add A epoch=1 t-1
        wait 500
        mark 5 t-0
        wait 500
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
            > add A epoch=1 t-0
            > add A epoch=1 t-1
              A: t-1 CONCURRENT_TRANSACTIONS
            > wait 999
            > wait 1
              at 1000
              A: t-0 CONCURRENT_TRANSACTIONS
            > add A epoch=1 t-1
            > wait 500
            > mark 5 t-0
              append t CompleteCommit 1000/1 []
              append t Ongoing 1000/1 [t-1]
              A: t-1 NONE
            > wait 500
        "#]],
    );
}

#[test]
fn who_would_be_refused_afterwards_does_not_wait() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        add A epoch=0 t-0
        add A epoch=2 t-0
        add A pid=7 epoch=1 t-0
        offsets A
        mark 5 t-0
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
            > add A epoch=0 t-0
              A: t-0 CONCURRENT_TRANSACTIONS
            > add A epoch=2 t-0
              A: t-0 CONCURRENT_TRANSACTIONS
            > add A pid=7 epoch=1 t-0
              A: t-0 CONCURRENT_TRANSACTIONS
            > offsets A
              A: CONCURRENT_TRANSACTIONS
            > mark 5 t-0
              append t CompleteCommit 1000/1 []
        "#]],
    );
}

#[test]
fn waiting_can_be_switched_off() {
    check_with(
        TransactionConfig { ending_wait_ms: 0, ..TransactionConfig::default() },
        "
        init A
        add A t-0
        hold-markers
        end A commit
        add A epoch=1 t-0
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
            > add A epoch=1 t-0
              A: t-0 CONCURRENT_TRANSACTIONS
        "#]],
    );
}

#[test]
fn a_producer_with_another_id_waits_under_it() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        hold-markers
        end A pid=7 epoch=32766 commit
        add A t-0
        add A pid=7 epoch=32767 t-0
        mark 3 t-0
        ",
        expect![[r#"
            > hold-markers
            > end A pid=7 epoch=32766 commit
              wants a producer id
              append t PrepareCommit 7/32767, next 1000 [t-0]
              A: NONE, go on as 1000/0
              markers #3 t commit 7/32767 version 2 coordinator 1 [t-0]
            > add A t-0
            > add A pid=7 epoch=32767 t-0
              A: t-0 CONCURRENT_TRANSACTIONS
            > mark 3 t-0
              append t CompleteCommit 1000/0, before 7 []
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
        "#]],
    );
}

#[test]
fn who_waits_is_reported_when_the_coordinator_moves() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        add A epoch=1 t-0
        reload
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
            > add A epoch=1 t-0
            > reload
              A: t-0 NOT_COORDINATOR
              markers #6 t commit 1000/1 version 2 coordinator 2 [t-0]
        "#]],
    );
}

#[test]
fn a_request_that_has_waited_can_still_fail() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        add A epoch=1 t-0
        hold
        mark 5 t-0
        ok 6
        fail 7 NOT_ENOUGH_REPLICAS
        describe D
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
            > add A epoch=1 t-0
            > hold
            > mark 5 t-0
              append #6 t CompleteCommit 1000/1 []
            > ok 6
              append #7 t Ongoing 1000/1 [t-0]
            > fail 7 NOT_ENOUGH_REPLICAS
              A: t-0 COORDINATOR_NOT_AVAILABLE
            > describe D
              D: t CompleteCommit 1000/1 timeout 60000 since 1000000 []
        "#]],
    );
}
