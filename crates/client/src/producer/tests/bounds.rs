//! Bounds of a producer's memory, requests and times, with brokers that do not do their part.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::FutureExt;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::end_txn_response::EndTxnResponse;
use mainstem_wire::messages::produce_request::ProduceRequest;
use mainstem_wire::messages::produce_response::{
    PartitionProduceResponse, ProduceResponse, TopicProduceResponse,
};
use mainstem_wire::{ApiKey, Uuid};

use super::super::transaction::name_of;
use super::*;
use crate::testing::{Answered, Asked, ScriptedBroker, answer};

/// Longer than any step of these tests takes.
const LIMIT: Duration = Duration::from_secs(60);

fn record(partition: i32, bytes: usize) -> Record {
    Record::new("t", vec![b'x'; bytes]).partition(partition)
}

/// The records and bytes of all batches of a request together, and the partitions.
fn load(request: &ProduceRequest<'_>) -> (usize, usize, Vec<i32>) {
    let (mut records, mut bytes, mut partitions) = (0, 0, Vec::new());
    for one in request.topic_data.iter().flat_map(|topic| &topic.partition_data) {
        let Some(Records::Bytes(batch)) = &one.records else { panic!("no records") };
        records += Batch::split_first(batch).unwrap().0.record_count() as usize;
        bytes += batch.len();
        partitions.push(one.index);
    }
    (records, bytes, partitions)
}

fn written(asked: &Asked<'_>, partitions: &[i32]) -> Answered {
    let partition = |index: &i32| PartitionProduceResponse { index: *index, ..Default::default() };
    let topic = TopicProduceResponse {
        name: "t".into(),
        topic_id: Uuid::from_u128(7),
        partition_responses: partitions.iter().map(partition).collect(),
        ..Default::default()
    };
    answer(asked, &ProduceResponse { responses: vec![topic], ..Default::default() })
}

#[tokio::test]
async fn a_broker_that_does_not_read_holds_back_what_is_not_acknowledged() {
    let arrived = Arc::new(AtomicUsize::new(0));
    let counted = arrived.clone();
    let broker = ScriptedBroker::start(1, move |asked| {
        counted.fetch_add(load(&asked.decode().unwrap()).0, Ordering::Relaxed);
        None
    });
    let config = ProducerConfig {
        buffer_bytes: 64 << 10,
        request_bytes_max: 8 << 10,
        batch_bytes: 4 << 10,
        max_block: Duration::from_millis(200),
        ..ProducerConfig::new(broker.client()).acks(Acks::None).linger(Duration::ZERO)
    };
    let producer = Producer::new(config).unwrap();
    // A machine that stands still may take the time of one attempt.
    eventually("the topic is known", async || producer.topic("t").await.is_ok()).await;
    broker.set_reading(false);
    let mut sent = Vec::new();
    let full = loop {
        match producer.send(record(0, 1_000)).await {
            Ok(delivery) => sent.push(delivery),
            Err(full) => break full,
        }
    };
    assert!(full.to_string().contains("waiting for room among the 65536 bytes"), "{full}");
    let size = record_bytes(&record(0, 1_000));
    let open = sent.iter().filter(|delivery| delivery.poll_outcome().is_none()).count();
    assert!(open * size <= 64 << 10, "{open} of {} are open", sent.len());
    assert!((open + 1) * size > 64 << 10, "the kernel has the other {}; {open} are open", sent.len() - open);
    assert_eq!(producer.owner.shared.memory.available_permits(), (64 << 10) - open * size);
    broker.set_reading(true);
    producer.flush().await;
    assert!(sent.iter().all(|delivery| delivery.poll_outcome().unwrap().is_ok()));
    assert_eq!(producer.owner.shared.memory.available_permits(), 64 << 10);
    eventually("all arrive", async || arrived.load(Ordering::Relaxed) == sent.len()).await;
}

#[tokio::test]
async fn batches_of_one_request_take_no_more_than_a_request_may() {
    let loads = Arc::new(Mutex::new(Vec::new()));
    let seen = loads.clone();
    let broker = ScriptedBroker::start(3, move |asked| {
        let (_, bytes, partitions) = load(&asked.decode().unwrap());
        let answer = written(asked, &partitions);
        seen.lock().push((bytes, partitions));
        answer
    });
    let config = ProducerConfig {
        request_bytes_max: 4_000,
        batch_bytes: 1 << 20,
        ..ProducerConfig::new(broker.client()).acks(Acks::Leader).linger(Duration::from_secs(60))
    };
    let producer = Producer::new(config).unwrap();
    for (partition, bytes) in [(0, 1_900), (1, 3_500), (2, 300), (2, 300)] {
        let _ = producer.send(record(partition, bytes)).await.unwrap();
    }
    producer.flush().await;
    let loads = loads.lock();
    assert!(loads.iter().all(|(bytes, _)| *bytes <= 4_000), "{loads:?}");
    let mut partitions: Vec<i32> = loads.iter().flat_map(|(_, partitions)| partitions.clone()).collect();
    partitions.sort_unstable();
    assert_eq!(partitions, [0, 1, 2], "a batch is no larger than a request, and no smaller than it may be");
}

#[tokio::test]
async fn closing_has_an_end() {
    let broker = ScriptedBroker::start(1, |_| None);
    let config = ProducerConfig::new(broker.client()).acks(Acks::Leader).linger(Duration::ZERO);
    let producer = Producer::new(config).unwrap();
    let delivery = producer.send(record(0, 1)).await.unwrap();
    let closed = tokio::time::timeout(LIMIT, producer.close_within(Duration::from_millis(20)));
    closed.await.expect("it does not wait for the broker");
    assert_eq!(delivery.poll_outcome(), Some(Err(Error::Closed)));
}

#[tokio::test]
async fn who_waits_for_a_sender_that_panics_is_reported() {
    let broker = ScriptedBroker::start(1, |_| None);
    let config = ProducerConfig {
        request_bytes_max: 1_500,
        buffer_bytes: 1_500,
        ..ProducerConfig::new(broker.client())
    };
    let producer = Producer::new(config.linger(Duration::from_secs(60))).unwrap();
    let delivery = producer.send(record(0, 1_000)).await.unwrap();
    let mut blocked = Box::pin(producer.send(record(0, 1_000)));
    assert!(blocked.as_mut().now_or_never().is_none());
    let sender = Sender::new(producer.owner.shared.clone());
    let panics = tokio::spawn(async move {
        let _sender = sender;
        panic!("on purpose");
    });
    let expected = Error::Panicked { what: "the sender of the producer".into() };
    let outcome = tokio::time::timeout(LIMIT, delivery.outcome()).await.expect("the delivery has an outcome");
    assert_eq!(outcome.unwrap_err(), expected);
    let outcome = tokio::time::timeout(LIMIT, blocked).await.expect("no caller waits for memory");
    assert_eq!(outcome.unwrap_err(), expected);
    producer.flush().await;
    assert_eq!(producer.send(record(0, 1)).await.unwrap_err(), expected);
    assert!(panics.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn a_transaction_is_neither_ended_nor_waited_for_when_another_clone_closes() {
    for commit in [true, false] {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let broker = ScriptedBroker::start(1, move |asked| {
            seen.lock().push(asked.api_key);
            None
        });
        let config = ProducerConfig::new(broker.client()).transactional_id("id").linger(Duration::ZERO);
        let producer = Producer::new(config).unwrap();
        producer.owner.shared.state.lock().transactions.as_mut().unwrap().initialized(name_of(7, 0), true);
        producer.begin_transaction().unwrap();
        let _ = producer.send(record(0, 1)).await.unwrap();
        eventually("it is under way", async || !asked.lock().is_empty()).await;
        let clone = producer.clone();
        let mut ending = Box::pin(async move {
            match commit {
                true => clone.commit_transaction().await,
                false => clone.abort_transaction().await,
            }
        });
        assert!(ending.as_mut().now_or_never().is_none());
        producer.close_within(Duration::ZERO).await;
        let ended = tokio::time::timeout(LIMIT, ending).await.expect("it does not wait");
        assert_eq!(ended.unwrap_err(), Error::Closed);
        assert_eq!(*asked.lock(), [ApiKey::Produce], "a record is missing");
    }
}

/// A broker that writes everything and ends transactions. It reports how it was asked to end them.
fn ends_transactions() -> (ScriptedBroker, Arc<Mutex<Vec<bool>>>) {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let seen = ends.clone();
    let broker = ScriptedBroker::start(1, move |asked| match asked.api_key {
        ApiKey::Produce => {
            let (_, _, partitions) = load(&asked.decode().unwrap());
            written(asked, &partitions)
        }
        ApiKey::EndTxn => {
            let request: EndTxnRequest<'_> = asked.decode().unwrap();
            seen.lock().push(request.committed);
            answer(asked, &EndTxnResponse { producer_id: 7, producer_epoch: 1, ..Default::default() })
        }
        _ => None,
    });
    (broker, ends)
}

/// A producer with a transaction that has a record.
async fn in_transaction(broker: &ScriptedBroker) -> Producer {
    let config = ProducerConfig::new(broker.client()).transactional_id("id").linger(Duration::from_secs(60));
    let producer = Producer::new(config).unwrap();
    producer.owner.shared.state.lock().transactions.as_mut().unwrap().initialized(name_of(7, 0), true);
    producer.begin_transaction().unwrap();
    let first = producer.send(record(0, 1)).await.unwrap();
    producer.flush().await;
    assert!(first.poll_outcome().unwrap().is_ok());
    producer
}

#[tokio::test]
async fn closing_aborts_an_open_transaction() {
    let (broker, ends) = ends_transactions();
    let producer = in_transaction(&broker).await;
    let waiting = producer.send(record(0, 1)).await.unwrap();
    tokio::time::timeout(LIMIT, producer.close()).await.expect("everybody answers");
    assert_eq!(*ends.lock(), [false]);
    assert_eq!(waiting.poll_outcome(), Some(Err(Error::Aborted)));
}

#[tokio::test]
async fn closing_aborts_a_commit_that_no_caller_continues() {
    let (broker, ends) = ends_transactions();
    let producer = in_transaction(&broker).await;
    let _waiting = producer.send(record(0, 1)).await.unwrap();
    let (clone, mut committing) = (producer.clone(), Box::pin(producer.commit_transaction()));
    assert!(committing.as_mut().now_or_never().is_none(), "the record is on its way");
    tokio::time::timeout(LIMIT, clone.close()).await.expect("everybody answers");
    assert_eq!(committing.await, Err(Error::Closed));
    assert_eq!(*ends.lock(), [false]);
}

#[tokio::test]
async fn closing_without_a_transaction_ends_none() {
    let (broker, ends) = ends_transactions();
    let producer = in_transaction(&broker).await;
    producer.commit_transaction().await.unwrap();
    tokio::time::timeout(LIMIT, producer.close()).await.expect("everybody answers");
    assert_eq!(*ends.lock(), [true]);
}
