//! InitProducerId: ids, epochs, and fencing.

use expect_test::expect;

use super::transcript::{check, check_after, check_with, stored};
use crate::transactions::TransactionConfig;
use crate::transactions::state::State;

#[test]
fn each_producer_of_a_transactional_id_fences_the_one_before() {
    check(
        "
        init A
        init B
        describe D
        add A t-0
        end A commit
        add B epoch=1 t-0
        init C id=u
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > init B
              append t Empty 1000/1 []
              B: producer 1000/1
            > describe D
              D: t Empty 1000/1 timeout 60000 since -1 []
            > add A t-0
              A: t-0 PRODUCER_FENCED
            > end A commit
              A: PRODUCER_FENCED
            > add B epoch=1 t-0
              append t Ongoing 1000/1 [t-0]
              B: t-0 NONE
            > init C id=u
              wants a producer id
              append u Empty 1001/0 []
              C: producer 1001/0
        "#]],
    );
}

#[test]
fn a_request_that_cannot_be_served_is_refused() {
    check(
        "
        init A id=
        init A timeout=0
        init A timeout=-1
        init A timeout=900001
        init A pid=5
        init A epoch=0
        init A 2pc
        init A keep
        init A idempotent epoch=0
        init A timeout=900000
        ",
        expect![[r#"
            > init A id=
              A: INVALID_REQUEST
            > init A timeout=0
              A: INVALID_TRANSACTION_TIMEOUT
            > init A timeout=-1
              A: INVALID_TRANSACTION_TIMEOUT
            > init A timeout=900001
              A: INVALID_TRANSACTION_TIMEOUT
            > init A pid=5
              A: INVALID_REQUEST
            > init A epoch=0
              A: INVALID_REQUEST
            > init A 2pc
              A: TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            > init A keep
              A: UNSUPPORTED_VERSION
            > init A idempotent epoch=0
              A: INVALID_REQUEST
            > init A timeout=900000
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
        "#]],
    );
}

#[test]
fn a_producer_without_transactions_gets_an_id_that_no_client_has() {
    check(
        "
        init A idempotent
        init B idempotent
        init A idempotent pid=1000 epoch=0
        hold-ids
        init C idempotent
        no-id 4 COORDINATOR_LOAD_IN_PROGRESS
        ",
        expect![[r#"
            > init A idempotent
              wants a producer id
              A: producer 1000/0
            > init B idempotent
              wants a producer id
              B: producer 1001/0
            > init A idempotent pid=1000 epoch=0
              wants a producer id
              A: producer 1002/0
            > hold-ids
            > init C idempotent
              wants a producer id #4
            > no-id 4 COORDINATOR_LOAD_IN_PROGRESS
              C: COORDINATOR_LOAD_IN_PROGRESS
        "#]],
    );
}

#[test]
fn a_producer_that_names_its_identity_gets_the_next_epoch() {
    check(
        "
        # An id that no producer has is as good as none.
        init A pid=5 epoch=3
        init A pid=1000 epoch=0
        # Asked again, since the answer was lost.
        init A pid=1000 epoch=0
        init A pid=1000 epoch=1
        init A pid=1000 epoch=0
        init B
        init A pid=1000 epoch=2
        init A pid=1001 epoch=3
        init B pid=1000 epoch=3
        ",
        expect![[r#"
            > # An id that no producer has is as good as none.
            > init A pid=5 epoch=3
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > init A pid=1000 epoch=0
              append t Empty 1000/1 []
              A: producer 1000/1
            > # Asked again, since the answer was lost.
            > init A pid=1000 epoch=0
              append t Empty 1000/1 []
              A: producer 1000/1
            > init A pid=1000 epoch=1
              append t Empty 1000/2 []
              A: producer 1000/2
            > init A pid=1000 epoch=0
              A: PRODUCER_FENCED
            > init B
              append t Empty 1000/3 []
              B: producer 1000/3
            > init A pid=1000 epoch=2
              A: PRODUCER_FENCED
            > init A pid=1001 epoch=3
              A: PRODUCER_FENCED
            > init B pid=1000 epoch=3
              append t Empty 1000/4 []
              B: producer 1000/4
        "#]],
    );
}

#[test]
fn a_producer_whose_epochs_are_used_up_gets_another_id() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Empty, (7, 32_765), &[])],
        "
        init A pid=7 epoch=32765
        # The last epoch but for fencing; asked again.
        init A pid=7 epoch=32765
        init A pid=7 epoch=32766
        # It has not heard of its new id.
        init A pid=7 epoch=32766
        init A pid=7 epoch=32765
        init A pid=1000 epoch=0
        init A pid=7 epoch=32766
        ",
        expect![[r#"
            > init A pid=7 epoch=32765
              append t Empty 7/32766 []
              A: producer 7/32766
            > # The last epoch but for fencing; asked again.
            > init A pid=7 epoch=32765
              append t Empty 7/32766 []
              A: producer 7/32766
            > init A pid=7 epoch=32766
              wants a producer id
              append t Empty 1000/0, before 7 []
              A: producer 1000/0
            > # It has not heard of its new id.
            > init A pid=7 epoch=32766
              append t Empty 1000/0 []
              A: producer 1000/0
            > init A pid=7 epoch=32765
              A: PRODUCER_FENCED
            > init A pid=1000 epoch=0
              append t Empty 1000/1 []
              A: producer 1000/1
            > init A pid=7 epoch=32766
              A: PRODUCER_FENCED
        "#]],
    );
}

#[test]
fn a_new_producer_gets_a_new_id_when_the_epochs_are_used_up() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::CompleteCommit, (7, 32_766), &[])],
        "
        init B
        init A pid=7 epoch=32766
        init B
        ",
        expect![[r#"
            > init B
              wants a producer id
              append t Empty 1000/0, before 7 []
              B: producer 1000/0
            > init A pid=7 epoch=32766
              A: PRODUCER_FENCED
            > init B
              append t Empty 1000/1 []
              B: producer 1000/1
        "#]],
    );
}

#[test]
fn an_ongoing_transaction_is_aborted_before_its_id_gets_a_producer() {
    check(
        "
        init A
        add A t-0 t-1
        init B
        init B
        add A t-0
        end A commit
        end A abort
        add B epoch=2 t-0
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A t-0 t-1
              append t Ongoing 1000/0 [t-0 t-1]
              A: t-0 NONE, t-1 NONE
            > init B
              append t PrepareAbort 1000/1 [t-0 t-1]
              B: CONCURRENT_TRANSACTIONS
              markers t abort 1000/1 version 2 coordinator 1 [t-0 t-1]
              append t CompleteAbort 1000/1 []
            > init B
              append t Empty 1000/2 []
              B: producer 1000/2
            > add A t-0
              A: t-0 PRODUCER_FENCED
            > end A commit
              A: PRODUCER_FENCED
            > end A abort
              A: PRODUCER_FENCED
            > add B epoch=2 t-0
              append t Ongoing 1000/2 [t-0]
              B: t-0 NONE
        "#]],
    );
}

#[test]
fn the_same_with_transactions_of_version_1() {
    check_with(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        "
        init A
        add A v=3 t-0 t-1
        init B
        init B
        add A v=3 t-0
        end A v=4 commit
        add B v=3 epoch=2 t-0
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A v=3 t-0 t-1
              append t Ongoing 1000/0 [t-0 t-1]
              A: t-0 NONE, t-1 NONE
            > init B
              append t PrepareAbort 1000/1 [t-0 t-1]
              B: CONCURRENT_TRANSACTIONS
              markers t abort 1000/1 version 1 coordinator 1 [t-0 t-1]
              append t CompleteAbort 1000/1 []
            > init B
              append t Empty 1000/2 []
              B: producer 1000/2
            > add A v=3 t-0
              A: t-0 PRODUCER_FENCED
            > end A v=4 commit
              A: PRODUCER_FENCED
            > add B v=3 epoch=2 t-0
              append t Ongoing 1000/2 [t-0]
              B: t-0 NONE
        "#]],
    );
}

#[test]
fn a_fence_at_the_last_epoch_takes_another_id() {
    check_after(
        TransactionConfig::default(),
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        init B
        init B
        add A pid=7 epoch=32766 t-0
        add B epoch=1 t-1
        ",
        expect![[r#"
            > init B
              wants a producer id
              append t PrepareAbort 7/32767, next 1000 [t-0]
              B: CONCURRENT_TRANSACTIONS
              markers t abort 7/32767 version 2 coordinator 1 [t-0]
              append t CompleteAbort 1000/0, before 7 []
            > init B
              append t Empty 1000/1 []
              B: producer 1000/1
            > add A pid=7 epoch=32766 t-0
              A: t-0 INVALID_PRODUCER_ID_MAPPING
            > add B epoch=1 t-1
              append t Ongoing 1000/1 [t-1]
              B: t-1 NONE
        "#]],
    );
}

#[test]
fn the_same_at_the_last_epoch_with_transactions_of_version_1() {
    check_after(
        TransactionConfig { transaction_version: 1, ..TransactionConfig::default() },
        vec![stored("t", State::Ongoing, (7, 32_766), &["t-0"])],
        "
        init B
        init B
        ",
        expect![[r#"
            > init B
              append t PrepareAbort 7/32767 [t-0]
              B: CONCURRENT_TRANSACTIONS
              markers t abort 7/32767 version 1 coordinator 1 [t-0]
              append t CompleteAbort 7/32767 []
            > init B
              wants a producer id
              append t Empty 1000/0, before 7 []
              B: producer 1000/0
        "#]],
    );
}

#[test]
fn a_transactional_id_without_a_producer_id_is_not_there_yet() {
    check(
        "
        hold-ids
        init A
        init B
        add B t-0
        add B verify t-0
        offsets B
        end B commit
        describe D
        list L
        no-id 1 COORDINATOR_LOAD_IN_PROGRESS
        list L
        init A
        id 2
        ",
        expect![[r#"
            > hold-ids
            > init A
              wants a producer id #1
            > init B
              B: CONCURRENT_TRANSACTIONS
            > add B t-0
              B: t-0 CONCURRENT_TRANSACTIONS
            > add B verify t-0
              B: t-0 INVALID_PRODUCER_ID_MAPPING
            > offsets B
              B: CONCURRENT_TRANSACTIONS
            > end B commit
              B: INVALID_PRODUCER_ID_MAPPING
            > describe D
              D: t TRANSACTIONAL_ID_NOT_FOUND
            > list L
              L: NONE []
            > no-id 1 COORDINATOR_LOAD_IN_PROGRESS
              A: COORDINATOR_LOAD_IN_PROGRESS
            > list L
              L: NONE []
            > init A
              wants a producer id #2
            > id 2
              append t Empty 1000/0 []
              A: producer 1000/0
        "#]],
    );
}
