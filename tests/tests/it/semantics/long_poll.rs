//! Fetches that wait: they miss no append, and return neither too early nor too late.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use mainstem_tests::kafka::{BY_NAME, batch, bytes_of, fetch_request, fetch_topic, records_in};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::fetch_request::FetchRequest;

use crate::semantics::{TOPIC, broker_with_topic};

/// A wait that is longer than the test if all is well.
const LONG_MS: i32 = 30_000;

#[test]
fn min_bytes_is_remembered_after_the_first_wake_up() {
    let (broker, mut client) = broker_with_topic("min-bytes", 2, &[]);
    let one = batch(&[&[b'x'; 400]]);
    let min_bytes = i32::try_from(one.len() * 3).unwrap();
    let topics = vec![fetch_topic(TOPIC, 0, 0), fetch_topic(TOPIC, 1, 0)];
    let request = FetchRequest { max_wait_ms: LONG_MS, min_bytes, ..fetch_request(topics) };
    let begin = Instant::now();
    client.send(&request, BY_NAME).unwrap();
    let mut producer = broker.connect();
    for partition in [0, 1, 0] {
        producer.produce(TOPIC, partition, 1, &one).unwrap();
    }
    let (_, response) = client.receive::<FetchRequest<'_>>(BY_NAME).unwrap();
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let bytes: usize = partitions.map(|data| bytes_of(&data.records).len()).sum();
    assert_eq!(bytes, one.len() * 3, "an answer before min_bytes were there");
    assert!(begin.elapsed() < Duration::from_millis(LONG_MS as u64), "it waited for its time-out");
}

#[test]
fn a_long_poll_sees_an_append_that_races_with_its_registration() {
    const ROUNDS: i64 = 1_000;
    let (broker, mut client) = broker_with_topic("race", 1, &[]);
    let (sender, offsets) = mpsc::channel();
    let mut producer = broker.connect();
    let producing = std::thread::spawn(move || {
        for offset in offsets {
            assert_eq!(producer.produce(TOPIC, 0, 1, &batch(&[b"x"])).unwrap(), offset);
        }
    });
    for offset in 0..ROUNDS {
        let begin = Instant::now();
        sender.send(offset).unwrap();
        let topics = vec![fetch_topic(TOPIC, 0, offset)];
        let request = FetchRequest { max_wait_ms: LONG_MS, ..fetch_request(topics) };
        let response = client.call(&request, BY_NAME);
        let data = &response.responses[0].partitions[0];
        let records = records_in(bytes_of(&data.records));
        assert_eq!(records.len(), 1, "woken before there was anything to read, or not at all");
        assert!(data.high_watermark > records[0].offset, "records above the high watermark");
        assert!(begin.elapsed() < Duration::from_millis(LONG_MS as u64), "a wake-up was missed");
    }
    drop(sender);
    producing.join().unwrap();
}

#[test]
fn a_long_poll_ends_when_its_time_is_over() {
    let (_broker, mut client) = broker_with_topic("timeout", 1, &[]);
    let wait = Duration::from_millis(200);
    let begin = Instant::now();
    let request = FetchRequest {
        max_wait_ms: wait.as_millis() as i32,
        ..fetch_request(vec![fetch_topic(TOPIC, 0, 0)])
    };
    let response = client.call(&request, BY_NAME);
    let took = begin.elapsed();
    assert_eq!(bytes_of(&response.responses[0].partitions[0].records), b"");
    assert!(took >= wait && took < Duration::from_millis(LONG_MS as u64), "{took:?}");
}

#[test]
fn each_long_poll_of_a_connection_has_its_own_time() {
    let (broker, mut client) = broker_with_topic("timeouts", 1, &[]);
    let mut producer = broker.connect();
    let fetch = |offset, wait: Duration| FetchRequest {
        max_wait_ms: wait.as_millis() as i32,
        ..fetch_request(vec![fetch_topic(TOPIC, 0, offset)])
    };
    let long = Duration::from_millis(LONG_MS as u64);
    // The wait of one that is woken, and of the one behind it, which ends earlier or later.
    for (round, (woken, idle)) in (0..).zip([(600, 1_000), (15_000, 300), (300, 700)]) {
        let begin = Instant::now();
        client.send(&fetch(round, Duration::from_millis(woken)), BY_NAME).unwrap();
        producer.produce(TOPIC, 0, 1, &batch(&[b"x"])).unwrap();
        client.receive::<FetchRequest<'_>>(BY_NAME).unwrap();
        let idle = Duration::from_millis(idle);
        let asked = Instant::now();
        let response = client.call(&fetch(round + 1, idle), BY_NAME);
        let took = asked.elapsed();
        assert_eq!(bytes_of(&response.responses[0].partitions[0].records), b"");
        assert!(took >= idle, "it ended after {took:?} in place of {idle:?}");
        assert!(begin.elapsed() < long, "nothing ended it");
    }
}

#[test]
fn a_long_poll_ends_when_its_topic_is_deleted() {
    let (broker, mut client) = broker_with_topic("poll-deleted", 1, &[]);
    let begin = Instant::now();
    let request = FetchRequest { max_wait_ms: LONG_MS, ..fetch_request(vec![fetch_topic(TOPIC, 0, 0)]) };
    client.send(&request, BY_NAME).unwrap();
    broker.connect().delete_topic(TOPIC).unwrap();
    let (_, response) = client.receive::<FetchRequest<'_>>(BY_NAME).unwrap();
    let error = ErrorCode::from(response.responses[0].partitions[0].error_code);
    assert_eq!(error, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert!(begin.elapsed() < Duration::from_millis(LONG_MS as u64));
}

#[test]
fn a_fetch_that_wants_nothing_more_does_not_wait() {
    let (_broker, mut client) = broker_with_topic("no-wait", 1, &[]);
    let begin = Instant::now();
    for (min_bytes, max_wait_ms) in [(0, LONG_MS), (1, 0)] {
        let topics = vec![fetch_topic(TOPIC, 0, 0)];
        client.call(&FetchRequest { max_wait_ms, min_bytes, ..fetch_request(topics) }, BY_NAME);
    }
    assert!(begin.elapsed() < Duration::from_millis(LONG_MS as u64));
}
