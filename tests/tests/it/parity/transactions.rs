//! A request that succeeds, for the APIs of transactions.

use mainstem_tests::client::Client;
use mainstem_wire::ApiKey;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use mainstem_wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};

use crate::parity::sensible::in_every_version;

const TOPIC: &str = "transactions";
const GROUP: &str = "of-transactions";

/// A transactional id for each version, with its producer id; each has an open transaction.
fn open(client: &mut Client, what: &str) -> Vec<(String, i64)> {
    let one = |version: i32| {
        let id = format!("{what}-{version}");
        let init = InitProducerIdRequest {
            transactional_id: Some(id.as_str().into()),
            transaction_timeout_ms: 60_000,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        let response = client.call(&init, 4);
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        let producer_id = response.producer_id;
        let added = client.call(&add(3, &id, producer_id), 3);
        assert_eq!(added.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code, 0);
        (id, producer_id)
    };
    (0..=5).map(one).collect()
}

fn add(version: i16, id: &str, producer_id: i64) -> AddPartitionsToTxnRequest<'static> {
    let topic = AddPartitionsToTxnTopic { name: TOPIC.into(), partitions: vec![0], ..Default::default() };
    let id = id.to_owned().into();
    if version < 4 {
        return AddPartitionsToTxnRequest {
            v3_and_below_transactional_id: id,
            v3_and_below_producer_id: producer_id,
            v3_and_below_topics: vec![topic],
            ..Default::default()
        };
    }
    let transaction = AddPartitionsToTxnTransaction {
        transactional_id: id,
        producer_id,
        topics: vec![topic],
        ..Default::default()
    };
    AddPartitionsToTxnRequest { transactions: vec![transaction], ..Default::default() }
}

/// Checks all and returns their keys.
pub(crate) fn check_all(client: &mut Client) -> [ApiKey; 7] {
    client.create_topic(TOPIC, 1, &[]).expect("a topic");
    let find =
        FindCoordinatorRequest { key_type: 1, coordinator_keys: vec!["any".into()], ..Default::default() };
    assert_eq!(client.call(&find, 6).coordinators[0].error_code, 0);
    client.find_coordinator(GROUP).expect("a coordinator");
    let ids = open(client, "id");
    let of = |version: i16| (ids[version as usize].0.as_str(), ids[version as usize].1);
    let added = in_every_version(
        client,
        |version| add(version, of(version).0, of(version).1),
        |response, version| {
            let topics = match version {
                0..4 => &response.results_by_topic_v3_and_below,
                _ => &response.results_by_transaction[0].topic_results,
            };
            assert_eq!(topics[0].results_by_partition[0].partition_error_code, 0);
        },
    );
    let offsets = |version| AddOffsetsToTxnRequest {
        transactional_id: of(version).0.into(),
        producer_id: of(version).1,
        group_id: GROUP.into(),
        ..Default::default()
    };
    let offsets = in_every_version(client, offsets, |response, _| assert_eq!(response.error_code, 0));
    let commit = |version| TxnOffsetCommitRequest {
        transactional_id: of(version).0.into(),
        group_id: GROUP.into(),
        producer_id: of(version).1,
        topics: vec![TxnOffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![TxnOffsetCommitRequestPartition { committed_offset: 1, ..Default::default() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let committed = in_every_version(client, commit, |response, _| {
        assert_eq!(response.topics[0].partitions[0].error_code, 0);
    });
    let describe =
        |_| DescribeTransactionsRequest { transactional_ids: vec![of(0).0.into()], ..Default::default() };
    let described = in_every_version(client, describe, |response, _| {
        let state = &response.transaction_states[0];
        assert_eq!((state.error_code, &*state.transaction_state), (0, "Ongoing"));
    });
    let list = |_| ListTransactionsRequest { duration_filter: -1, ..Default::default() };
    let listed = in_every_version(client, list, |response, _| {
        assert_eq!((response.error_code, response.transaction_states.len()), (0, 6));
    });
    let end = |version| EndTxnRequest {
        transactional_id: of(version).0.into(),
        producer_id: of(version).1,
        committed: true,
        ..Default::default()
    };
    let ended = in_every_version(client, end, |response, version| {
        let epoch = if version < 5 { -1 } else { 1 };
        assert_eq!((response.error_code, response.producer_epoch), (0, epoch));
    });
    let mark = |version: i16| WriteTxnMarkersRequest {
        markers: vec![WritableTxnMarker {
            producer_id: 1_000_000,
            producer_epoch: version,
            topics: vec![WritableTxnMarkerTopic {
                name: TOPIC.into(),
                partition_indexes: vec![0],
                ..Default::default()
            }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let marked = in_every_version(client, mark, |response, _| {
        assert_eq!(response.markers[0].topics[0].partitions[0].error_code, 0);
    });
    [added, offsets, committed, described, listed, ended, marked]
}
