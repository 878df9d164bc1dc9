//! EndTxn: the end of transactions, and the answers to producers that try again.

use expect_test::expect;

use super::transcript::{check, check_after, check_with, stored};
use crate::transactions::TransactionConfig;
use crate::transactions::state::State;

#[test]
fn a_transaction_is_committed_and_the_epoch_rises() {
    check(
        "
        init A
        add A t-0 u-3
        end A commit
        add A epoch=1 t-1
        end A epoch=1 abort
        describe D
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0 u-3
              append t Ongoing 1000/0 [t-0 u-3]
              A: t-0 NONE, u-3 NONE
            > end A commit
              append t PrepareCommit 1000/1 [t-0 u-3]
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0 u-3]
              append t CompleteCommit 1000/1 []
            > add A epoch=1 t-1
              append t Ongoing 1000/1 [t-1]
              A: t-1 NONE
            > end A epoch=1 abort
              append t PrepareAbort 1000/2 [t-1]
              A: NONE, go on as 1000/2
              markers t abort 1000/2 version 2 coordinator 1 [t-1]
              append t CompleteAbort 1000/2 []
            > describe D
              D: t CompleteAbort 1000/2 timeout 60000 since 1000000 []
        "#]],
    );
}

#[test]
fn an_end_can_be_asked_for_again() {
    check(
        "
        init A
        add A t-0
        end A commit
        end A commit
        # The other way round it never was.
        end A abort
        add A epoch=1 t-0
        end A epoch=1 abort
        end A epoch=1 abort
        end A epoch=1 commit
        end A epoch=0 abort
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0]
              append t CompleteCommit 1000/1 []
            > end A commit
              A: NONE, go on as 1000/1
            > # The other way round it never was.
            > end A abort
              A: INVALID_TXN_STATE
            > add A epoch=1 t-0
              append t Ongoing 1000/1 [t-0]
              A: t-0 NONE
            > end A epoch=1 abort
              append t PrepareAbort 1000/2 [t-0]
              A: NONE, go on as 1000/2
              markers t abort 1000/2 version 2 coordinator 1 [t-0]
              append t CompleteAbort 1000/2 []
            > end A epoch=1 abort
              A: NONE, go on as 1000/2
            > end A epoch=1 commit
              A: INVALID_TXN_STATE
            > end A epoch=0 abort
              A: PRODUCER_FENCED
        "#]],
    );
}

#[test]
fn what_has_not_begun_can_be_aborted() {
    check(
        "
        init A
        end A commit
        end A abort
        end A epoch=1 abort
        end A epoch=2 commit
        add A epoch=2 t-0
        end A epoch=2 commit
        end A epoch=3 abort
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > end A commit
              A: INVALID_TXN_STATE
            > end A abort
              append t PrepareAbort 1000/1 []
              A: NONE, go on as 1000/1
              append t CompleteAbort 1000/1 []
            > end A epoch=1 abort
              append t PrepareAbort 1000/2 []
              A: NONE, go on as 1000/2
              append t CompleteAbort 1000/2 []
            > end A epoch=2 commit
              A: INVALID_TXN_STATE
            > add A epoch=2 t-0
              append t Ongoing 1000/2 [t-0]
              A: t-0 NONE
            > end A epoch=2 commit
              append t PrepareCommit 1000/3 [t-0]
              A: NONE, go on as 1000/3
              markers t commit 1000/3 version 2 coordinator 1 [t-0]
              append t CompleteCommit 1000/3 []
            > end A epoch=3 abort
              append t PrepareAbort 1000/4 []
              A: NONE, go on as 1000/4
              append t CompleteAbort 1000/4 []
        "#]],
    );
}

#[test]
fn who_is_not_the_producer_ends_nothing() {
    check(
        "
        end A commit
        end A id= commit
        init A
        add A t-0
        end A pid=999 commit
        end A epoch=1 commit
        end A epoch=-1 abort
        end A v=4 pid=999 commit
        end A v=4 epoch=1 commit
        end A v=4 id= commit
        end A v=4 id=u commit
        ",
        expect![[r#"
            > end A commit
              A: INVALID_PRODUCER_ID_MAPPING
            > end A id= commit
              A: INVALID_REQUEST
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A pid=999 commit
              A: INVALID_PRODUCER_ID_MAPPING
            > end A epoch=1 commit
              A: PRODUCER_FENCED
            > end A epoch=-1 abort
              A: PRODUCER_FENCED
            > end A v=4 pid=999 commit
              A: INVALID_PRODUCER_ID_MAPPING
            > end A v=4 epoch=1 commit
              A: PRODUCER_FENCED
            > end A v=4 id= commit
              A: INVALID_REQUEST
            > end A v=4 id=u commit
              A: INVALID_PRODUCER_ID_MAPPING
        "#]],
    );
}

#[test]
fn while_markers_are_written_the_end_is_not_over() {
    check(
        "
        init A
        add A t-0
        hold-markers
        end A commit
        end A commit
        end A abort
        end A epoch=7 commit
        # Of the next transaction.
        end A epoch=1 abort
        end A v=4 epoch=1 commit
        init B
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
            > end A commit
              A: CONCURRENT_TRANSACTIONS
            > end A abort
              A: CONCURRENT_TRANSACTIONS
            > end A epoch=7 commit
              A: PRODUCER_FENCED
            > # Of the next transaction.
            > end A epoch=1 abort
              A: CONCURRENT_TRANSACTIONS
            > end A v=4 epoch=1 commit
              A: CONCURRENT_TRANSACTIONS
            > init B
              B: CONCURRENT_TRANSACTIONS
        "#]],
    );
}

#[test]
fn transactions_of_version_1_keep_the_epoch() {
    check_with(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        "
        init A
        end A v=4 commit
        end A v=4 abort
        add A v=3 t-0
        end A v=4 commit
        end A v=4 commit
        end A v=4 abort
        add A v=3 t-0
        end A v=4 abort
        end A v=4 abort
        end A v=4 commit
        add A v=3 t-0
        hold-markers
        end A v=4 commit
        end A v=4 commit
        end A v=4 epoch=1 commit
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > end A v=4 commit
              A: INVALID_TXN_STATE
            > end A v=4 abort
              A: INVALID_TXN_STATE
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A v=4 commit
              append t PrepareCommit 1000/0 [t-0]
              A: NONE
              markers t commit 1000/0 version 0 coordinator 1 [t-0]
              append t CompleteCommit 1000/0 []
            > end A v=4 commit
              A: NONE
            > end A v=4 abort
              A: INVALID_TXN_STATE
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A v=4 abort
              append t PrepareAbort 1000/0 [t-0]
              A: NONE
              markers t abort 1000/0 version 0 coordinator 1 [t-0]
              append t CompleteAbort 1000/0 []
            > end A v=4 abort
              A: NONE
            > end A v=4 commit
              A: INVALID_TXN_STATE
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > hold-markers
            > end A v=4 commit
              append t PrepareCommit 1000/0 [t-0]
              A: NONE
              markers #13 t commit 1000/0 version 0 coordinator 1 [t-0]
            > end A v=4 commit
              A: CONCURRENT_TRANSACTIONS
            > end A v=4 epoch=1 commit
              A: PRODUCER_FENCED
        "#]],
    );
}

#[test]
fn an_end_at_the_last_epoch_takes_another_id() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        end A pid=7 epoch=32766 commit
        end A pid=7 epoch=32766 commit
        end A pid=7 epoch=32766 abort
        add A pid=7 epoch=32766 t-0
        add A t-0
        end A commit
        end A pid=7 epoch=32766 commit
        ",
        expect![[r#"
            > end A pid=7 epoch=32766 commit
              wants a producer id
              append t PrepareCommit 7/32767, next 1000 [t-0]
              A: NONE, go on as 1000/0
              markers t commit 7/32767 version 2 coordinator 1 [t-0]
              append t CompleteCommit 1000/0, before 7 []
            > end A pid=7 epoch=32766 commit
              A: NONE, go on as 1000/0
            > end A pid=7 epoch=32766 abort
              A: INVALID_TXN_STATE
            > add A pid=7 epoch=32766 t-0
              A: t-0 INVALID_PRODUCER_ID_MAPPING
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A commit
              append t PrepareCommit 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0]
              append t CompleteCommit 1000/1 []
            > end A pid=7 epoch=32766 commit
              A: INVALID_PRODUCER_ID_MAPPING
        "#]],
    );
}

#[test]
fn the_end_waits_for_the_id_that_it_takes() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        hold-ids
        end A pid=7 epoch=32766 commit
        end A pid=7 epoch=32766 commit
        no-id 1 COORDINATOR_LOAD_IN_PROGRESS
        describe D
        end A pid=7 epoch=32766 commit
        hold-markers
        id 2
        # Its next transaction, under the id that it was given.
        end A abort
        add A t-1
        go
        ",
        expect![[r#"
            > hold-ids
            > end A pid=7 epoch=32766 commit
              wants a producer id #1
            > end A pid=7 epoch=32766 commit
              A: CONCURRENT_TRANSACTIONS
            > no-id 1 COORDINATOR_LOAD_IN_PROGRESS
              A: COORDINATOR_LOAD_IN_PROGRESS
            > describe D
              D: t Ongoing 7/32766 timeout 60000 since 1000000 [t-0]
            > end A pid=7 epoch=32766 commit
              wants a producer id #2
            > hold-markers
            > id 2
              append t PrepareCommit 7/32767, next 1000 [t-0]
              A: NONE, go on as 1000/0
              markers #4 t commit 7/32767 version 2 coordinator 1 [t-0]
            > # Its next transaction, under the id that it was given.
            > end A abort
              A: CONCURRENT_TRANSACTIONS
            > add A t-1
            > go
              append t CompleteCommit 1000/0, before 7 []
              append t Ongoing 1000/0 [t-1]
              A: t-1 NONE
        "#]],
    );
}

#[test]
fn a_client_of_version_1_is_served_where_others_have_version_2() {
    check(
        "
        init A
        add A v=3 t-0
        end A v=4 commit
        add A v=3 t-0
        end A v=4 commit
        # It was updated.
        add A t-0
        end A abort
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A v=4 commit
              append t PrepareCommit 1000/0 [t-0]
              A: NONE
              markers t commit 1000/0 version 0 coordinator 1 [t-0]
              append t CompleteCommit 1000/0 []
            > add A v=3 t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A v=4 commit
              append t PrepareCommit 1000/0 [t-0]
              A: NONE
              markers t commit 1000/0 version 0 coordinator 1 [t-0]
              append t CompleteCommit 1000/0 []
            > # It was updated.
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > end A abort
              append t PrepareAbort 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers t abort 1000/1 version 2 coordinator 1 [t-0]
              append t CompleteAbort 1000/1 []
        "#]],
    );
}

#[test]
fn a_fenced_producer_does_not_share_in_its_successors_end() {
    check(
        "
        init A
        init B
        add B v=3 epoch=1 t-0
        end B v=4 epoch=1 commit
        # Its epoch is the one before; B's stays where it is.
        end A epoch=0 commit
        end B v=4 epoch=1 commit
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > init B
              append t Empty 1000/1 []
              B: producer 1000/1
            > add B v=3 epoch=1 t-0
              append t Ongoing 1000/1 [t-0]
              B: t-0 NONE
            > end B v=4 epoch=1 commit
              append t PrepareCommit 1000/1 [t-0]
              B: NONE
              markers t commit 1000/1 version 0 coordinator 1 [t-0]
              append t CompleteCommit 1000/1 []
            > # Its epoch is the one before; B's stays where it is.
            > end A epoch=0 commit
              A: PRODUCER_FENCED
            > end B v=4 epoch=1 commit
              B: NONE
        "#]],
    );
}
