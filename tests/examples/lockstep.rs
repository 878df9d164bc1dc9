//! A producer and a consumer in lockstep: a record is acknowledged and consumed before the next one is sent.
//!
//! `cargo xtask counts` loads a broker with it under callgrind: the work for each message does not depend on the
//! speed of anything. Records have 1,024 bytes, one in a batch, over six partitions in turn, with acks=1. Requests
//! are those of Kafka 4.3's Java client, fetches those of a session.
//!
//! `cargo run --release -p mainstem-tests --example lockstep -- HOST:PORT MESSAGES`

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{FETCH_BY_ID, PRODUCE_BY_ID, batch, bytes_of};
use mainstem_wire::Records;
use mainstem_wire::Uuid;
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};

const TOPIC: &str = "lockstep";
const PARTITIONS: i32 = 6;
const VALUE_BYTES: usize = 1_024;
const WAIT_MS: i32 = 60_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().expect("the address of a broker");
    let messages: i32 = arguments.next().and_then(|text| text.parse().ok()).expect("a number of messages");
    let connect = || Client::connect(&address).expect("the broker accepts connections");
    let mut producer = connect();
    let topic = producer.create_topic(TOPIC, PARTITIONS, &[]).expect("the topic can be made");
    let mut consumer = Consumer { client: connect(), topic, session_id: 0, session_epoch: 0 };
    consumer.begin();
    let batch = batch(&[&[b'x'; VALUE_BYTES]]);
    for message in 0..messages {
        consumer.ask(message);
        produce(&mut producer, topic, message % PARTITIONS, &batch);
        consumer.take(message % PARTITIONS, &batch);
    }
}

fn produce(producer: &mut Client, topic: Uuid, index: i32, batch: &[u8]) {
    let data =
        PartitionProduceData { index, records: Some(Records::Bytes(batch.into())), ..Default::default() };
    let topic_data = TopicProduceData { topic_id: topic, partition_data: vec![data], ..Default::default() };
    let request =
        ProduceRequest { acks: 1, timeout_ms: WAIT_MS, topic_data: vec![topic_data], ..Default::default() };
    let response = producer.call(&request, PRODUCE_BY_ID);
    assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
}

/// A consumer of all partitions by a fetch session (KIP-227).
struct Consumer {
    client: Client,
    topic: Uuid,
    session_id: i32,
    session_epoch: i32,
}

impl Consumer {
    /// Opens the session at the start of each partition.
    fn begin(&mut self) {
        let partitions = (0..PARTITIONS).map(|partition| position(partition, 0)).collect();
        let request = self.request(partitions, 0);
        self.session_id = self.client.call(&request, FETCH_BY_ID).session_id;
        self.session_epoch = 1;
    }

    /// Sends the next fetch. It names the one partition whose position the last message has moved.
    fn ask(&mut self, message: i32) {
        let moved = (message > 0).then(|| {
            let partition = (message - 1) % PARTITIONS;
            position(partition, i64::from((message - 1) / PARTITIONS) + 1)
        });
        let request = self.request(moved.into_iter().collect(), WAIT_MS);
        self.client.send(&request, FETCH_BY_ID).expect("the broker reads");
        self.session_epoch += 1;
    }

    /// Takes the answer, which must have the batch.
    fn take(&mut self, partition: i32, batch: &[u8]) {
        let (_, response) = self.client.receive::<FetchRequest<'_>>(FETCH_BY_ID).expect("the broker answers");
        let data = &response.responses[0].partitions[0];
        assert_eq!((response.error_code, data.error_code, data.partition_index), (0, 0, partition));
        assert_eq!(bytes_of(&data.records).len(), batch.len());
    }

    fn request(&self, partitions: Vec<FetchPartition<'static>>, max_wait_ms: i32) -> FetchRequest<'static> {
        // The first request after the one that opens the session names no partition.
        let is_empty = partitions.is_empty();
        let topic = FetchTopic { topic_id: self.topic, partitions, ..Default::default() };
        FetchRequest {
            max_wait_ms,
            min_bytes: 1,
            session_id: self.session_id,
            session_epoch: self.session_epoch,
            topics: if is_empty { Vec::new() } else { vec![topic] },
            ..Default::default()
        }
    }
}

fn position(partition: i32, fetch_offset: i64) -> FetchPartition<'static> {
    FetchPartition {
        partition,
        fetch_offset,
        partition_max_bytes: 1 << 20,
        current_leader_epoch: -1,
        ..Default::default()
    }
}
