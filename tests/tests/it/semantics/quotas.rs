//! Quotas: a client that exceeds one gets its answer without a delay, and is then not read until the throttle time is over (KIP-219).

use std::time::{Duration, Instant};

use mainstem_broker::ManualClock;
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{
    BY_NAME, batch, bytes_of, fetch_request, fetch_topic, produce_request, records_in,
};
use mainstem_tests::machine::SimulatedBroker;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_client_quotas_request::{
    AlterClientQuotasRequest, EntityData, EntryData, OpData,
};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::describe_client_quotas_request::DescribeClientQuotasRequest;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};

use crate::semantics::TOPIC;

/// The client id of throttled clients.
const SLOW: &str = "slow";

/// The error of measured times: a thousandth of a second by rounding, and some more between the broker's clock and the test's.
const ROUNDING: Duration = Duration::from_millis(5);

/// A broker with two quota windows of a second, so that tests wait for a short time.
fn broker_with_topic(name: &str) -> (Broker, Client) {
    let windows = [("quota.window.num", 2), ("controller.quota.window.num", 2)];
    let setup = windows.iter().fold(Setup::new(name), |setup, (key, value)| setup.set(key, value));
    let broker = setup.start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    (broker, client)
}

/// The same in this process, with a clock that the test advances.
fn broker_at(clock: &ManualClock) -> (SimulatedBroker, Client) {
    let settings = [("quota.window.num", "2"), ("mainstem.http.listener", "127.0.0.1:0")];
    let broker = SimulatedBroker::start_at(clock, &settings);
    let mut client = broker.connect();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    (broker, client)
}

/// Checks that a client is not read for so long and then is, and that another one is read meanwhile.
fn check_held_back(clock: &ManualClock, (slow, other): (&mut Client, &mut Client), held: Duration) {
    const LAST: Duration = Duration::from_millis(1);
    slow.send(&ApiVersionsRequest::default(), 0).unwrap();
    clock.advance(held - LAST);
    round_trip(other);
    assert!(!slow.has_answer(), "it is read before {held:?} are over");
    clock.advance(LAST);
    slow.receive::<ApiVersionsRequest<'_>>(0).unwrap();
}

fn set_quota(client: &mut Client, kind: &str, name: Option<&str>, key: &str, value: f64) {
    let entity =
        EntityData { entity_type: kind.into(), entity_name: name.map(Into::into), ..Default::default() };
    let op = OpData { key: key.into(), value, ..Default::default() };
    let entries = vec![EntryData { entity: vec![entity], ops: vec![op], ..Default::default() }];
    let request = AlterClientQuotasRequest { entries, ..Default::default() };
    let response = client.call(&request, 1);
    let answer = &response.entries[0];
    assert_eq!(answer.error_code, 0, "{:?}", answer.error_message);
}

/// The time of a request without work.
fn round_trip(client: &mut Client) -> Duration {
    let begin = Instant::now();
    client.call(&ApiVersionsRequest::default(), 0);
    begin.elapsed()
}

fn milliseconds(throttle_time_ms: i32) -> Duration {
    Duration::from_millis(u64::try_from(throttle_time_ms).unwrap())
}

#[test]
fn a_producer_over_its_quota_is_reported_at_once_and_held_back() {
    let clock = ManualClock::new();
    let (broker, mut client) = broker_at(&clock);
    set_quota(&mut client, "client-id", Some(SLOW), "producer_byte_rate", 10_000.0);
    let mut slow = broker.connect().named(SLOW);
    let batch = batch(&[&vec![b'x'; 40_000]]);
    for acks in [1, -1] {
        let response = slow.call(&produce_request(TOPIC, 0, acks, &batch), BY_NAME);
        let held = milliseconds(response.throttle_time_ms);
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0, "it is appended all the same");
        assert!(
            held >= Duration::from_millis(2_500),
            "40,000 bytes in a second are three seconds' too many: {held:?}"
        );
        check_held_back(&clock, (&mut slow, &mut client), held);
    }
    let metrics = broker.http("/metrics");
    let labels = r#"{resource="Produce",user="",clientId="slow"}"#;
    let throttled = metrics.lines().find(|line| line.starts_with("kafka_server_quota_throttle_time"));
    assert!(throttled.is_some_and(|line| line.contains(labels) && !line.ends_with(" 0")), "{throttled:?}");
}

#[test]
fn a_producer_without_acknowledgements_is_held_back_too() {
    let (broker, mut client) = broker_with_topic("quota-acks-0");
    set_quota(&mut client, "user", None, "producer_byte_rate", 10_000.0);
    let mut slow = broker.connect();
    let begin = Instant::now();
    slow.send(&produce_request(TOPIC, 0, 0, &batch(&[&vec![b'x'; 15_000]])), BY_NAME).unwrap();
    round_trip(&mut slow);
    assert!(begin.elapsed() + ROUNDING >= Duration::from_millis(500), "{:?}", begin.elapsed());
}

#[test]
fn a_consumer_over_its_quota_gets_nothing_until_it_may_and_then_all() {
    let (broker, mut client) = broker_with_topic("quota-fetch");
    for _ in 0..3 {
        client.produce(TOPIC, 0, 1, &batch(&[&vec![b'x'; 9_000]])).unwrap();
    }
    set_quota(&mut client, "client-id", None, "consumer_byte_rate", 10_000.0);
    let mut slow = broker.connect().named(SLOW);
    let (mut offset, mut held, begin) = (0, Duration::ZERO, Instant::now());
    let mut epoch = 0;
    let mut session_id = 0;
    while offset < 3 {
        let mut request = fetch_request(vec![fetch_topic(TOPIC, 0, offset)]);
        (request.session_id, request.session_epoch) = (session_id, epoch);
        let response = slow.call(&request, BY_NAME);
        assert_eq!(response.error_code, 0);
        if response.throttle_time_ms > 0 {
            assert!(response.responses.is_empty(), "the answer is empty");
            held += milliseconds(response.throttle_time_ms);
        }
        let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
        let records: usize = partitions.map(|data| records_in(bytes_of(&data.records)).len()).sum();
        assert!(records <= 1, "a fetch gets no more than a window may hold");
        offset += records as i64;
        session_id = response.session_id;
        epoch = if session_id == 0 { 0 } else { epoch + 1 };
    }
    let took = begin.elapsed();
    // A client that is slower than the quota by itself is not throttled.
    let is_slow = took >= Duration::from_secs(2);
    assert!(held >= Duration::from_millis(500) || is_slow, "27,000 bytes at 10,000 a second: {held:?}");
    assert!(took + ROUNDING >= held, "{took:?} of {held:?}");
}

/// Kafka never delivers it, and does not say so.
#[test]
fn a_batch_that_is_larger_than_the_windows_of_a_quota_is_delivered() {
    let (broker, mut client) = broker_with_topic("quota-large-batch");
    client.produce(TOPIC, 0, 1, &batch(&[&vec![b'x'; 9_000]])).unwrap();
    set_quota(&mut client, "client-id", None, "consumer_byte_rate", 100.0);
    let mut slow = broker.connect().named(SLOW);
    let response = slow.call(&fetch_request(vec![fetch_topic(TOPIC, 0, 0)]), BY_NAME);
    assert_eq!(records_in(bytes_of(&response.responses[0].partitions[0].records)).len(), 1);
    assert!((90_000..100_000).contains(&response.throttle_time_ms), "{} ms", response.throttle_time_ms);
}

#[test]
fn a_client_that_takes_too_much_time_is_held_back_for_a_window_at_most() {
    let clock = ManualClock::new();
    let (broker, mut client) = broker_at(&clock);
    set_quota(&mut client, "client-id", Some(SLOW), "request_percentage", 1e-9);
    let mut slow = broker.connect().named(SLOW);
    let versions = slow.call(&ApiVersionsRequest::default(), 1);
    assert_eq!(versions.throttle_time_ms, 1000);
    check_held_back(&clock, (&mut slow, &mut client), Duration::from_millis(1000));
}

#[test]
fn what_is_done_for_a_client_in_the_background_is_its_time() {
    let (broker, mut client) = broker_with_topic("quota-background");
    // 5 ms of each second; the event loop works on a request for microseconds.
    set_quota(&mut client, "client-id", Some(SLOW), "request_percentage", 0.5);
    let response = broker.connect().named(SLOW).call(&create("many", 500), 7).throttle_time_ms;
    assert!(response > 0, "500 directories are made in no time");
}

fn create(name: &'static str, num_partitions: i32) -> CreateTopicsRequest<'static> {
    CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: name.into(),
            num_partitions,
            replication_factor: 1,
            ..Default::default()
        }],
        timeout_ms: 10_000,
        ..Default::default()
    }
}

#[test]
fn topics_that_are_created_for_who_asks_for_them_count_against_the_quota() {
    let (broker, mut client) = broker_with_topic("quota-auto-create");
    set_quota(&mut client, "client-id", Some(SLOW), "controller_mutation_rate", 1.0);
    let mut slow = broker.connect().named(SLOW);
    assert_eq!(
        slow.call(&create("a", 30), 7).topics[0].error_code,
        0,
        "a burst of two is free, and one request more"
    );
    let ask = |client: &mut Client| {
        let topics = vec![MetadataRequestTopic { name: Some("b".into()), ..Default::default() }];
        let request =
            MetadataRequest { topics: Some(topics), allow_auto_topic_creation: true, ..Default::default() };
        let response = client.call(&request, 12);
        (ErrorCode::from(response.topics[0].error_code), response.throttle_time_ms)
    };
    assert_eq!(ask(&mut slow), (ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, 0));
    assert_eq!(ask(&mut client), (ErrorCode::NONE, 0), "another client may");
    assert_eq!(ask(&mut slow), (ErrorCode::NONE, 0), "it is there now");
}

#[test]
fn partitions_beyond_the_quota_are_refused_or_slow_old_clients_down() {
    let (broker, mut client) = broker_with_topic("quota-mutations");
    set_quota(&mut client, "client-id", Some(SLOW), "controller_mutation_rate", 1.0);
    let mut slow = broker.connect().named(SLOW);
    // Ten more than the burst allows, which takes ten seconds to make up for.
    let response = slow.call(&create("a", 12), 7);
    assert_eq!((response.topics[0].error_code, response.throttle_time_ms), (0, 0), "a burst of 2 is free");
    let response = slow.call(&create("b", 1), 7);
    assert_eq!(ErrorCode::from(response.topics[0].error_code), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    assert!(matches!(response.throttle_time_ms, 1..=10_000), "{}", response.throttle_time_ms);
    let mut old = broker.connect().named(SLOW);
    let response = old.call(&create("c", 5), 5);
    assert_eq!(response.topics[0].error_code, 0, "it does not know the error");
    assert!(matches!(response.throttle_time_ms, 1..=15_000), "{}", response.throttle_time_ms);
}

#[test]
fn an_address_that_connects_too_fast_is_not_served() {
    let (broker, mut client) = broker_with_topic("quota-connections");
    set_quota(&mut client, "ip", Some("127.0.0.1"), "connection_creation_rate", 2.0);
    let is_served = |client: &mut Client| client.try_call(&ApiVersionsRequest::default(), 0).is_ok();
    let begin = Instant::now();
    // All of them wait to be accepted at the same time, for however long each is served.
    let mut clients: Vec<_> = (0..50).map(|_| broker.connect()).collect();
    let served = clients.iter_mut().map(is_served).filter(|is_served| *is_served).count();
    assert!((1..50).contains(&served), "{served} of 50");
    assert!(
        begin.elapsed() + ROUNDING >= Duration::from_millis(500),
        "a connection is closed late: {:?}",
        begin.elapsed()
    );
    mainstem_tests::wait::eventually("a connection that comes later", || {
        is_served(&mut broker.connect()).then_some(())
    });
    let fastest = (0..5).map(|_| round_trip(&mut client)).min();
    assert!(fastest < Some(Duration::from_secs(1)), "open connections are served: {fastest:?}");
}

#[test]
fn quotas_outlive_a_restart() {
    let (mut broker, mut client) = broker_with_topic("quota-restart");
    set_quota(&mut client, "client-id", Some(SLOW), "producer_byte_rate", 10_000.0);
    broker.stop();
    broker.start_again();
    let mut slow = broker.connect().named(SLOW);
    let described = slow.call(&DescribeClientQuotasRequest::default(), 1);
    let entries = described.entries.expect("it is answered");
    assert_eq!((entries.len(), entries[0].values[0].value), (1, 10_000.0));
    let batch = batch(&[&vec![b'x'; 15_000]]);
    assert!(slow.call(&produce_request(TOPIC, 0, 1, &batch), BY_NAME).throttle_time_ms > 0);
}
