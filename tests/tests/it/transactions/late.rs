//! Requests that are late, repeated, or from an unknown producer.

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{Failure, produce_request};
use mainstem_tests::wait::TIMEOUT;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::produce_request::ProduceRequest;
use mainstem_wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};

use crate::transactions::eventually;
use crate::transactions::producer::{PRODUCE_VERSION, Producer};
use crate::transactions::reader::{ends, read_committed};

const TOPIC: &str = "late";

fn broker() -> Broker {
    let broker = Setup::new("transactions-late")
        .set("transaction.state.log.num.partitions", 2)
        .set("transaction.abort.timed.out.transaction.cleanup.interval.ms", 50)
        .start();
    broker.connect().create_topic(TOPIC, 2, &[]).expect("a topic");
    broker
}

fn producer(broker: &Broker, id: &str, timeout_ms: i32) -> Producer {
    Producer::init(broker.connect(), id, timeout_ms).expect("a producer")
}

fn state(client: &mut Client, id: &str) -> String {
    let request = DescribeTransactionsRequest { transactional_ids: vec![id.into()], ..Default::default() };
    client.call(&request, 0).transaction_states[0].transaction_state.to_string()
}

/// KIP-890: a batch that was delayed on its way begins no transaction that never ends.
#[test]
fn a_late_batch_of_a_transaction_that_has_ended_is_refused() {
    let broker = broker();
    let mut producer = producer(&broker, "id", 60_000);
    let late = producer.batch(1, &[b"late"]);
    producer.send(TOPIC, 0, &[b"in time"]).expect("it is written");
    producer.end(true).expect("it is committed");
    let mut client = broker.connect();
    eventually("it is complete", || (state(&mut client, "id") == "CompleteCommit").then_some(()));
    for version in [9, 11, PRODUCE_VERSION] {
        for partition in [0, 1] {
            let request = ProduceRequest {
                transactional_id: Some("id".into()),
                ..produce_request(TOPIC, partition, -1, &late)
            };
            let response = producer.client.call(&request, version);
            let error = ErrorCode::from(response.responses[0].partition_responses[0].error_code);
            assert_eq!(error, ErrorCode::INVALID_PRODUCER_EPOCH, "v{version} partition {partition}");
        }
    }
    let (stable, end) = ends(&mut client, TOPIC, 0);
    assert_eq!(stable, end, "nothing is open");
    assert_eq!(read_committed(&mut client, TOPIC, 0), ["in time"]);
    assert_eq!(read_committed(&mut client, TOPIC, 1), [""; 0]);
}

#[test]
fn a_transaction_without_its_id_or_with_another_producer_is_refused() {
    let broker = broker();
    let producer = producer(&broker, "id", 60_000);
    let batch = producer.batch(0, &[b"a"]);
    let mut client = broker.connect();
    let mut refused = |transactional_id: Option<&str>| {
        let request = ProduceRequest {
            transactional_id: transactional_id.map(Into::into),
            ..produce_request(TOPIC, 0, -1, &batch)
        };
        let response = client.call(&request, PRODUCE_VERSION);
        ErrorCode::from(response.responses[0].partition_responses[0].error_code)
    };
    assert_eq!(refused(None), ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED);
    assert_eq!(refused(Some("other")), ErrorCode::INVALID_PRODUCER_ID_MAPPING);
}

#[test]
fn a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced() {
    let broker = broker();
    // Its timeout may pass before the record is written.
    let mut slow = eventually("a record is written in time", || {
        let mut slow = producer(&broker, "slow", 500);
        slow.send(TOPIC, 0, &[b"never"]).is_ok().then_some(slow)
    });
    let mut client = broker.connect();
    eventually("it is aborted", || (state(&mut client, "slow") == "CompleteAbort").then_some(()));
    match slow.end(true) {
        Err(Failure::Refused(ErrorCode::PRODUCER_FENCED | ErrorCode::INVALID_TXN_STATE)) => {}
        other => panic!("{other:?}"),
    }
    let (stable, end) = ends(&mut client, TOPIC, 0);
    assert_eq!((stable, read_committed(&mut client, TOPIC, 0)), (end, Vec::<String>::new()));
}

#[test]
fn a_newer_producer_fences_the_older_one() {
    let broker = broker();
    let mut older = producer(&broker, "id", 60_000);
    older.send(TOPIC, 0, &[b"never"]).expect("it is written");
    let mut newer = producer(&broker, "id", 60_000);
    let fenced = older.send(TOPIC, 0, &[b"never either"]);
    assert!(matches!(fenced, Err(Failure::Refused(ErrorCode::INVALID_PRODUCER_EPOCH))), "{fenced:?}");
    newer.send(TOPIC, 0, &[b"seen"]).expect("it is written");
    newer.end(true).expect("it is committed");
    let mut client = broker.connect();
    eventually("it is seen", || (read_committed(&mut client, TOPIC, 0) == ["seen"]).then_some(()));
}

/// An answer is no larger than the stored data, however often a request names something.
#[test]
fn what_is_named_often_is_answered_once() {
    let broker = broker();
    let mut producer = producer(&broker, "id", 60_000);
    producer.send(TOPIC, 0, &[b"a"]).expect("it is written");
    let mut client = broker.connect();
    let transactional_ids = vec!["id".into(); 50_000];
    let request = DescribeTransactionsRequest { transactional_ids, ..Default::default() };
    assert_eq!(client.call(&request, 0).transaction_states.len(), 1);
    let topic = || WritableTxnMarkerTopic {
        name: TOPIC.into(),
        partition_indexes: vec![1; 5_000],
        ..Default::default()
    };
    let marker = WritableTxnMarker {
        producer_id: 4_711,
        producer_epoch: 0,
        transaction_result: false,
        topics: vec![topic(), topic()],
        ..Default::default()
    };
    let request = WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
    let response = client.call(&request, 1);
    assert_eq!(response.markers[0].topics.len(), 1);
    assert_eq!(response.markers[0].topics[0].partitions.len(), 1);
    let (_, end) = ends(&mut client, TOPIC, 1);
    assert_eq!(end, 1, "one marker was written");
}

/// KIP-664: an administrator ends a transaction that its coordinator has lost.
#[test]
fn an_administrator_ends_an_open_transaction_in_a_partition() {
    let broker = broker();
    let mut producer = producer(&broker, "id", 60_000);
    producer.send(TOPIC, 0, &[b"a"]).expect("it is written");
    let mut client = broker.connect();
    let listed = client.call(&ListTransactionsRequest { duration_filter: -1, ..Default::default() }, 1);
    let listed: Vec<_> =
        listed.transaction_states.iter().map(|one| one.transaction_state.to_string()).collect();
    assert_eq!(listed, ["Ongoing"]);
    let topic =
        WritableTxnMarkerTopic { name: TOPIC.into(), partition_indexes: vec![0], ..Default::default() };
    let marker = WritableTxnMarker {
        producer_id: producer.producer_id,
        producer_epoch: producer.epoch,
        transaction_result: false,
        topics: vec![topic],
        ..Default::default()
    };
    let request = WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
    assert_eq!(client.call(&request, 1).markers[0].topics[0].partitions[0].error_code, 0);
    assert_eq!(ends(&mut client, TOPIC, 0), (2, 2));
    // The coordinator's own marker follows; the id is not stuck.
    producer.end(false).expect("it is aborted");
    producer.send(TOPIC, 0, &[b"b"]).expect("the next transaction works");
    producer.end(true).expect("it is committed");
    eventually("it is seen", || (read_committed(&mut client, TOPIC, 0) == ["b"]).then_some(()));
}

/// A topic that is deleted under an open transaction does not prevent its end.
#[test]
fn a_transaction_ends_without_a_topic_that_is_gone() {
    let broker = broker();
    broker.connect().create_topic("gone", 1, &[]).expect("a topic");
    let mut producer = producer(&broker, "id", 60_000);
    producer.send("gone", 0, &[b"a"]).expect("it is written");
    producer.send(TOPIC, 0, &[b"b"]).expect("it is written");
    broker.connect().delete_topic("gone").expect("it is deleted");
    producer.end(true).expect("it is committed");
    let mut client = broker.connect();
    eventually("it is complete", || (state(&mut client, "id") == "CompleteCommit").then_some(()));
    assert_eq!(read_committed(&mut client, TOPIC, 0), ["b"]);
}

/// A repeated EndTxn gets the same answer as the first; the coordinator knows it after a kill, too.
#[test]
fn an_end_that_comes_again_after_a_kill_is_answered_alike() {
    let mut broker = broker();
    let mut producer = producer(&broker, "id", 60_000);
    producer.send(TOPIC, 0, &[b"a"]).expect("it is written");
    let (producer_id, producer_epoch) = (producer.producer_id, producer.epoch);
    producer.end(true).expect("it is committed");
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    client.set_read_timeout(TIMEOUT).expect("a time-out can be set");
    let answer = eventually("the end is answered", || {
        let request = EndTxnRequest {
            transactional_id: "id".into(),
            producer_id,
            producer_epoch,
            committed: true,
            ..Default::default()
        };
        let response = client.call(&request, 5);
        let error = ErrorCode::from(response.error_code);
        (error != ErrorCode::CONCURRENT_TRANSACTIONS).then_some((error, response.producer_epoch))
    });
    assert_eq!(answer, (ErrorCode::NONE, producer.epoch));
    eventually("it is seen", || (read_committed(&mut client, TOPIC, 0) == ["a"]).then_some(()));
}
