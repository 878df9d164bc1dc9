//! DescribeTransactions and ListTransactions.

use expect_test::expect;

use super::transcript::{check, check_after, stored};
use crate::transactions::TransactionConfig;
use crate::transactions::state::State;

#[test]
fn transactional_ids_are_described() {
    check(
        "
        init A timeout=5000
        describe D
        add A t-0 u-1
        describe D ids=t,x,
        end A commit
        describe D
        ",
        expect![[r#"
            > init A timeout=5000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > describe D
              D: t Empty 1000/0 timeout 5000 since -1 []
            > add A t-0 u-1
              append t Ongoing 1000/0 [t-0 u-1]
              A: t-0 NONE, u-1 NONE
            > describe D ids=t,x,
              D: t Ongoing 1000/0 timeout 5000 since 1000000 [t-0 u-1]; x TRANSACTIONAL_ID_NOT_FOUND;  INVALID_REQUEST
            > end A commit
              append t PrepareCommit 1000/1 [t-0 u-1]
              A: NONE, go on as 1000/1
              markers t commit 1000/1 version 2 coordinator 1 [t-0 u-1]
              append t CompleteCommit 1000/1 []
            > describe D
              D: t CompleteCommit 1000/1 timeout 5000 since 1000000 []
        "#]],
    );
}

#[test]
fn transactional_ids_are_listed_as_they_are_asked_for() {
    check_after(
        TransactionConfig::default(),
        vec![
            stored("orders-1", State::Ongoing, (1, 0), &["t-0"]),
            stored("orders-2", State::Empty, (2, 0), &[]),
            stored("payments", State::CompleteAbort, (3, 0), &[]),
        ],
        "
        wait 500
        list L
        list L states=Ongoing
        list L states=Empty,CompleteCommit
        list L states=Ongoing,Nonsense
        list L states=Nonsense
        list L pids=2,9
        list L duration=0
        list L duration=499
        list L duration=500
        list L pattern=orders-.*
        list L pattern=orders
        list L pattern=
        list L pattern=(
        list L pattern=o.*|x states=Ongoing pids=1,3
        ",
        expect![[r#"
            > wait 500
            > list L
              L: NONE [orders-1 1 Ongoing, orders-2 2 Empty, payments 3 CompleteAbort]
            > list L states=Ongoing
              L: NONE [orders-1 1 Ongoing]
            > list L states=Empty,CompleteCommit
              L: NONE [orders-2 2 Empty]
            > list L states=Ongoing,Nonsense
              L: NONE [orders-1 1 Ongoing], no states: Nonsense
            > list L states=Nonsense
              L: NONE [], no states: Nonsense
            > list L pids=2,9
              L: NONE [orders-2 2 Empty]
            > list L duration=0
              L: NONE [orders-1 1 Ongoing, orders-2 2 Empty, payments 3 CompleteAbort]
            > list L duration=499
              L: NONE [orders-1 1 Ongoing, orders-2 2 Empty, payments 3 CompleteAbort]
            > list L duration=500
              L: NONE [orders-2 2 Empty, payments 3 CompleteAbort]
            > list L pattern=orders-.*
              L: NONE [orders-1 1 Ongoing, orders-2 2 Empty]
            > list L pattern=orders
              L: NONE []
            > list L pattern=
              L: NONE [orders-1 1 Ongoing, orders-2 2 Empty, payments 3 CompleteAbort]
            > list L pattern=(
              L: INVALID_REGULAR_EXPRESSION []
            > list L pattern=o.*|x states=Ongoing pids=1,3
              L: NONE [orders-1 1 Ongoing]
        "#]],
    );
}

#[test]
fn a_state_that_no_record_has_lists_nothing() {
    check(
        "
        init A
        list L states=Dead
        list L states=PrepareEpochFence,Empty
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > list L states=Dead
              L: NONE []
            > list L states=PrepareEpochFence,Empty
              L: NONE [t 1000 Empty]
        "#]],
    );
}
