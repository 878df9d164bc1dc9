//! AddPartitionsToTxn and AddOffsetsToTxn: the partitions of a transaction.

use expect_test::expect;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnRequest;

use super::script::{self, Words};
use super::transcript::{check, check_with};
use crate::transactions::TransactionConfig;
use crate::transactions::add_partitions::{refused, response, transactions_of};

#[test]
fn a_transaction_begins_with_its_first_partition_and_gets_more() {
    check(
        "
        init A
        add A t-0
        wait 10
        add A t-1 u-0 t-0
        # These are in it.
        add A u-0 t-0
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
            > wait 10
            > add A t-1 u-0 t-0
              append t Ongoing 1000/0 [t-0 t-1 u-0]
              A: t-0 NONE, t-1 NONE, u-0 NONE
            > # These are in it.
            > add A u-0 t-0
              A: t-0 NONE, u-0 NONE
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 [t-0 t-1 u-0]
        "#]],
    );
}

#[test]
fn offsets_add_the_partition_of_their_group() {
    check_with(
        TransactionConfig { offsets_topic_num_partitions: 50, ..TransactionConfig::default() },
        "
        init A
        offsets A g=a
        offsets A g=a
        offsets A g=polygenelubricants
        offsets A g=
        end A v=4 abort
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > offsets A g=a
              append t Ongoing 1000/0 [__consumer_offsets-47]
              A: NONE
            > offsets A g=a
              A: NONE
            > offsets A g=polygenelubricants
              append t Ongoing 1000/0 [__consumer_offsets-0 __consumer_offsets-47]
              A: NONE
            > offsets A g=
              A: NONE
            > end A v=4 abort
              append t PrepareAbort 1000/0 [__consumer_offsets-0 __consumer_offsets-47]
              A: NONE
              markers t abort 1000/0 version 0 coordinator 1 [__consumer_offsets-0 __consumer_offsets-47]
              append t CompleteAbort 1000/0 []
        "#]],
    );
}

#[test]
fn who_is_not_the_producer_adds_nothing() {
    check(
        "
        add A t-0
        offsets A
        add A id= t-0
        offsets A id=
        init A
        add A pid=999 t-0
        add A epoch=1 t-0
        add A epoch=-1 t-0 u-1
        offsets A pid=999
        offsets A epoch=1
        ",
        expect![[r#"
            > add A t-0
              A: t-0 INVALID_PRODUCER_ID_MAPPING
            > offsets A
              A: INVALID_PRODUCER_ID_MAPPING
            > add A id= t-0
              A: t-0 INVALID_REQUEST
            > offsets A id=
              A: INVALID_REQUEST
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A pid=999 t-0
              A: t-0 INVALID_PRODUCER_ID_MAPPING
            > add A epoch=1 t-0
              A: t-0 PRODUCER_FENCED
            > add A epoch=-1 t-0 u-1
              A: t-0 PRODUCER_FENCED, u-1 PRODUCER_FENCED
            > offsets A pid=999
              A: INVALID_PRODUCER_ID_MAPPING
            > offsets A epoch=1
              A: PRODUCER_FENCED
        "#]],
    );
}

#[test]
fn partitions_can_be_verified() {
    check(
        "
        add V verify t-0
        init A
        add V verify t-0
        add A t-0
        add V verify t-0 t-1
        add V verify pid=999 t-0
        add V verify epoch=1 t-0
        add V verify id= t-0
        hold-markers
        end A abort
        add V verify epoch=0 t-0
        add V verify epoch=1 t-0
        ",
        expect![[r#"
            > add V verify t-0
              V: t-0 INVALID_PRODUCER_ID_MAPPING
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add V verify t-0
              V: t-0 TRANSACTION_ABORTABLE
            > add A t-0
              append t Ongoing 1000/0 [t-0]
              A: t-0 NONE
            > add V verify t-0 t-1
              V: t-0 NONE, t-1 TRANSACTION_ABORTABLE
            > add V verify pid=999 t-0
              V: t-0 INVALID_PRODUCER_ID_MAPPING
            > add V verify epoch=1 t-0
              V: t-0 PRODUCER_FENCED
            > add V verify id= t-0
              V: t-0 INVALID_REQUEST
            > hold-markers
            > end A abort
              append t PrepareAbort 1000/1 [t-0]
              A: NONE, go on as 1000/1
              markers #5 t abort 1000/1 version 2 coordinator 1 [t-0]
            > add V verify epoch=0 t-0
              V: t-0 PRODUCER_FENCED
            > add V verify epoch=1 t-0
              V: t-0 CONCURRENT_TRANSACTIONS
        "#]],
    );
}

#[test]
fn a_transaction_without_partitions_may_begin() {
    check(
        "
        init A
        add A
        describe D
        end A commit
        ",
        expect![[r#"
            > init A
              wants a producer id
              append t Empty 1000/0 []
              A: producer 1000/0
            > add A
              append t Ongoing 1000/0 []
              A: 
            > describe D
              D: t Ongoing 1000/0 timeout 60000 since 1000000 []
            > end A commit
              append t PrepareCommit 1000/1 []
              A: NONE, go on as 1000/1
              append t CompleteCommit 1000/1 []
        "#]],
    );
}

#[test]
fn requests_of_all_versions_are_taken_apart_and_put_together() {
    let one = script::add(&Words::parse("add A pid=5 epoch=6 t-0 u-1"));
    let old = AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: one.transactional_id.clone(),
        v3_and_below_producer_id: one.producer_id,
        v3_and_below_producer_epoch: one.producer_epoch,
        v3_and_below_topics: one.topics.clone(),
        ..Default::default()
    };
    assert_eq!(transactions_of(old, 3), vec![one.clone()]);
    let other = script::add(&Words::parse("add A id=u verify t-0"));
    let new =
        AddPartitionsToTxnRequest { transactions: vec![one.clone(), other.clone()], ..Default::default() };
    assert_eq!(transactions_of(new, 4), [one.clone(), other]);

    let result = refused(&one, ErrorCode::PRODUCER_FENCED);
    let topics = result.topic_results.clone();
    assert_eq!(topics.len(), 2);
    assert!(topics.iter().all(|topic| topic.results_by_partition[0].partition_error_code == 90));
    assert_eq!(response(vec![result.clone()], 3).results_by_topic_v3_and_below, topics);
    assert_eq!(response(vec![result.clone()], 4).results_by_transaction, [result]);
    assert!(response(Vec::new(), 3).results_by_topic_v3_and_below.is_empty());
}
