//! Producers that write in transactions.

use std::future::Future;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
use mainstem_records::{BatchBuilder, BatchOptions, ProducerFields};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::ProduceResponse;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::{ApiKey, Decoder, Message, Records, frame};

/// A version that names topics, and whose response header is the correlation id alone.
const PRODUCE_VERSION: i16 = 8;

/// Runs a future that waits for brokers.
pub(crate) fn wait_for<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A producer with an open transaction, in which it has written values to partition 0 of a topic. The transaction
/// stays open when the producer is dropped.
pub(crate) async fn begun(bootstrap: &str, id: &str, topic: &str, values: &[&str]) -> Producer {
    let config = ProducerConfig::new(ClientConfig::new(bootstrap).unwrap()).transactional_id(id);
    let producer = Producer::new(config).unwrap();
    producer.init_transactions().await.unwrap();
    producer.begin_transaction().unwrap();
    for value in values {
        let record = Record::new(topic, (*value).to_owned()).partition(0);
        producer.send(record).await.unwrap().await.unwrap();
    }
    producer
}

/// Setting of a broker that accepts records of transactions unknown to their coordinator.
pub(crate) const UNVERIFIED: &str = "transaction.partition.verification.enable=false";

/// Writes a record of a transaction unknown to all coordinators, as a producer with a defect would. The broker needs
/// [`UNVERIFIED`].
pub(crate) fn write_hanging(address: &str, topic: &str, partition: i32, producer_id: i64) {
    let producer = ProducerFields { producer_id, producer_epoch: 0, base_sequence: 0 };
    let options = BatchOptions { producer, is_transactional: true, ..Default::default() };
    let mut batch = BatchBuilder::new(options);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    batch.append(i64::try_from(now).unwrap(), None, Some(b"hangs"), &[]).unwrap();
    let records = Records::Bytes(batch.build().unwrap().into());
    let data = PartitionProduceData { index: partition, records: Some(records), ..Default::default() };
    let data = TopicProduceData { name: topic.into(), partition_data: vec![data], ..Default::default() };
    let request = ProduceRequest {
        transactional_id: Some("unheard".into()),
        acks: -1,
        timeout_ms: 30_000,
        topic_data: vec![data],
        ..Default::default()
    };
    let header = RequestHeader {
        request_api_key: ApiKey::Produce as i16,
        request_api_version: PRODUCE_VERSION,
        ..Default::default()
    };
    let mut bytes = Vec::new();
    frame::write_request(&mut bytes, &header, &request).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut length = [0; frame::LENGTH_BYTES];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap()];
    stream.read_exact(&mut body).unwrap();
    let mut decoder = Decoder::new(&body[size_of::<i32>()..]);
    let response = ProduceResponse::decode(&mut decoder, PRODUCE_VERSION).unwrap();
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
}
