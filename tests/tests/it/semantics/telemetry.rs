//! Client telemetry (KIP-714): subscriptions of clients, and their pushed metrics at `/metrics`.

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_wire::messages::get_telemetry_subscriptions_request::GetTelemetrySubscriptionsRequest;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::push_telemetry_request::PushTelemetryRequest;
use mainstem_wire::{ErrorCode, Uuid};

/// CLIENT_METRICS.
const CLIENT_METRICS: i8 = 16;

fn subscribe(client: &mut Client, name: &str, values: &[(&str, &str)]) -> ErrorCode {
    let configs = values.iter().map(|(key, value)| AlterableConfig {
        name: (*key).into(),
        config_operation: 0,
        value: Some((*value).into()),
        ..Default::default()
    });
    let resource = AlterConfigsResource {
        resource_type: CLIENT_METRICS,
        resource_name: name.into(),
        configs: configs.collect(),
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    ErrorCode::from(client.call(&request, 1).responses[0].error_code)
}

fn varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A field of a protobuf message with a length-delimited value.
fn field(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(value.len(), &mut out);
    out.extend_from_slice(value);
    out
}

/// OTLP: a gauge with one number.
fn gauge(name: &str, value: f64) -> Vec<u8> {
    let point = [&[4 << 3 | 1][..], &value.to_le_bytes()].concat();
    let metric = [field(1, name.as_bytes()), field(5, &field(1, &point))].concat();
    field(1, &field(2, &field(2, &metric)))
}

fn push(client: &mut Client, id: Uuid, subscription_id: i32, codec: i8, metrics: &[u8]) -> ErrorCode {
    let request = PushTelemetryRequest {
        client_instance_id: id,
        subscription_id,
        compression_type: codec,
        metrics: metrics.into(),
        ..Default::default()
    };
    ErrorCode::from(client.call(&request, 0).error_code)
}

#[test]
fn what_a_subscribed_client_pushes_is_at_metrics() {
    let broker = Setup::new("telemetry").start();
    let mut admin = broker.connect();
    let values = [("metrics", "org.apache.kafka."), ("interval.ms", "60000"), ("match", "client_id=pay.*")];
    assert_eq!(subscribe(&mut admin, "all", &values), ErrorCode::NONE);
    let mut client = broker.connect().named("pay-1");
    let request = GetTelemetrySubscriptionsRequest::default();
    let answer = client.call(&request, 0);
    assert_eq!((answer.error_code, answer.push_interval_ms, answer.delta_temporality), (0, 60_000, true));
    assert_eq!(answer.requested_metrics, ["org.apache.kafka."]);
    assert_eq!(answer.accepted_compression_types, [4, 3, 1, 2], "zstd first");
    assert_eq!(answer.telemetry_max_bytes, 1 << 20);
    let (id, subscription_id) = (answer.client_instance_id, answer.subscription_id);
    assert!(!id.is_zero(), "a client without an id gets one");
    let payload = gauge("org.apache.kafka.producer.record.queue.time.avg", 2.5);
    assert_eq!(push(&mut client, id, subscription_id, 0, &payload), ErrorCode::NONE);
    let line = format!(
        "kafka_client_producer_record_queue_time_avg{{client_instance_id=\"{id}\",client_id=\"pay-1\"}} 2.5"
    );
    let metrics = broker.http("/metrics");
    assert!(metrics.lines().any(|shown| shown == line), "no {line} in\n{metrics}");
    assert_eq!(push(&mut client, id, subscription_id, 0, &payload), ErrorCode::THROTTLING_QUOTA_EXCEEDED);
    let mut other = broker.connect().named("other");
    assert_eq!(other.call(&request, 0).requested_metrics, [""; 0], "it does not match");
}

#[test]
fn payloads_that_cannot_be_read_are_refused_and_bombs_do_not_grow() {
    let mut broker = Setup::new("telemetry-bombs").set("telemetry.max.bytes", 1000).start();
    let mut client = broker.connect();
    // Each push is from a new client, for which it is the first.
    let mut outcome = |number: u128, codec: i8, metrics: &[u8]| {
        let id = Uuid::from_u128(number);
        let request = GetTelemetrySubscriptionsRequest { client_instance_id: id, ..Default::default() };
        let subscription_id = client.call(&request, 0).subscription_id;
        push(&mut client, id, subscription_id, codec, metrics)
    };
    assert_eq!(outcome(0x11, 0, &gauge("a", 1.0)), ErrorCode::NONE);
    assert_eq!(outcome(0x12, 0, b"\xff\xff\xff"), ErrorCode::INVALID_RECORD);
    assert_eq!(outcome(0x13, 4, b"no zstd"), ErrorCode::INVALID_RECORD);
    assert_eq!(outcome(0x14, 5, &[]), ErrorCode::UNSUPPORTED_COMPRESSION_TYPE);
    assert_eq!(outcome(0x15, 0, &[0; 1001]), ErrorCode::TELEMETRY_TOO_LARGE);
    // A zstd block that repeats one byte 100,000 times (RFC 8878), in ten bytes.
    let bomb = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58, 0x03, 0x35, 0x0c, 0x00];
    assert_eq!(outcome(0x16, 4, &bomb), ErrorCode::TELEMETRY_TOO_LARGE);
    assert_eq!(push(&mut broker.connect(), Uuid::ZERO, 0, 0, &[]), ErrorCode::INVALID_REQUEST);
    broker.assert_healthy();
}

#[test]
fn subscriptions_outlive_a_restart() {
    let mut broker = Setup::new("telemetry-restart").start();
    let mut client = broker.connect();
    assert_eq!(subscribe(&mut client, "all", &[("metrics", "*")]), ErrorCode::NONE);
    assert_eq!(subscribe(&mut client, "all", &[("interval.ms", "5")]), ErrorCode::INVALID_REQUEST);
    broker.stop();
    broker.start_again();
    let requested =
        broker.connect().call(&GetTelemetrySubscriptionsRequest::default(), 0).requested_metrics.len();
    assert_eq!(requested, 1);
}
