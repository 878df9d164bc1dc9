//! Answers come in the order of their requests, and requests without an answer get none.

use std::time::{Duration, Instant};

use mainstem_tests::kafka::{BY_NAME, LATEST, batch, fetch_request, fetch_topic, produce_request};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::metadata_request::MetadataRequest;
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest};

use crate::semantics::{TOPIC, broker_with_topic};

#[test]
fn acks_0_gets_no_answer() {
    let (_broker, mut client) = broker_with_topic("acks-0", 1, &[]);
    for _ in 0..10 {
        client.send(&produce_request(TOPIC, 0, 0, &batch(&[b"a"])), BY_NAME).unwrap();
    }
    // The client checks the correlation id: an answer to one of the ten would come first.
    assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), 10);
}

#[test]
fn acks_0_loses_its_connection_when_it_fails() {
    let (_broker, mut client) = broker_with_topic("acks-0-fails", 1, &[]);
    client.send(&produce_request("no-such-topic", 0, 0, &batch(&[b"a"])), BY_NAME).unwrap();
    client.wait_for_close().unwrap();
}

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let (_broker, mut client) = broker_with_topic("pipeline", 1, &[]);
    let one = batch(&[b"a"]);
    let mut sent = Vec::new();
    for round in 0..20 {
        let poll = FetchRequest { max_wait_ms: 10, ..fetch_request(vec![fetch_topic(TOPIC, 0, round * 3)]) };
        sent.push(client.send(&produce_request(TOPIC, 0, -1, &one), BY_NAME).unwrap());
        sent.push(client.send(&MetadataRequest { topics: None, ..Default::default() }, 12).unwrap());
        sent.push(client.send(&produce_request(TOPIC, 0, 1, &one), BY_NAME).unwrap());
        sent.push(client.send(&poll, BY_NAME).unwrap());
        sent.push(client.send(&produce_request(TOPIC, 0, -1, &one), BY_NAME).unwrap());
    }
    for (rank, expected) in sent.iter().enumerate() {
        let id = match rank % 5 {
            1 => client.receive::<MetadataRequest<'_>>(12).unwrap().0,
            3 => client.receive::<FetchRequest<'_>>(BY_NAME).unwrap().0,
            place => {
                let (id, response) = client.receive::<ProduceRequest<'_>>(BY_NAME).unwrap();
                let expected = rank as i64 / 5 * 3 + place as i64 / 2;
                assert_eq!(response.responses[0].partition_responses[0].base_offset, expected);
                id
            }
        };
        assert_eq!(id, *expected);
    }
}

/// An acks=all produce to many partitions costs about one round of syncs, not one for each.
#[test]
fn partitions_of_one_produce_wait_together() {
    const PARTITIONS: i32 = 48;
    let (_broker, mut client) = broker_with_topic("together", PARTITIONS, &[]);
    let one = batch(&[&[b'x'; 1000]]);
    let mut together = produce_request(TOPIC, 0, -1, &one);
    let first = together.topic_data[0].partition_data[0].clone();
    together.topic_data[0].partition_data =
        (0..PARTITIONS).map(|index| PartitionProduceData { index, ..first.clone() }).collect();
    let mut best = [Duration::MAX; 2];
    for _ in 0..10 {
        let begin = Instant::now();
        let response = client.call(&together, BY_NAME);
        let answers = &response.responses[0].partition_responses;
        assert!(answers.iter().all(|answer| answer.error_code == 0));
        best[0] = best[0].min(begin.elapsed());
        let begin = Instant::now();
        for index in 0..PARTITIONS {
            client.produce(TOPIC, index, -1, &one).unwrap();
        }
        best[1] = best[1].min(begin.elapsed());
    }
    let [together, apart] = best;
    assert!(together * 2 < apart, "{PARTITIONS} partitions: {together:?} together, {apart:?} one by one");
}

#[test]
fn one_bad_partition_does_not_spoil_a_produce() {
    let (_broker, mut client) = broker_with_topic("one-bad", 1, &[]);
    let one = batch(&[b"a"]);
    let mut request = produce_request(TOPIC, 0, -1, &one);
    let unknown = produce_request("no-such-topic", 7, -1, &one).topic_data.remove(0);
    request.topic_data.push(unknown);
    let response = client.call(&request, BY_NAME);
    let code = |rank: usize| ErrorCode::from(response.responses[rank].partition_responses[0].error_code);
    assert_eq!((code(0), code(1)), (ErrorCode::NONE, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
}
