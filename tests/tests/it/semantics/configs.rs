//! Changed configurations take effect without a restart.

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{BY_NAME, batch, produce_request, refusal};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use crate::semantics::{TOPIC, broker_with_topic};

pub(crate) const RESOURCE_TOPIC: i8 = 2;
const SET: i8 = 0;
const DELETE: i8 = 1;
/// `config_source` of a topic's own setting.
pub(crate) const TOPIC_CONFIG: i8 = 1;

fn alter(client: &mut Client, topic: &str, operation: i8, name: &str, value: Option<&str>) -> ErrorCode {
    let config = AlterableConfig {
        name: name.into(),
        config_operation: operation,
        value: value.map(Into::into),
        ..Default::default()
    };
    let resource = AlterConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: topic.into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    ErrorCode::from(client.call(&request, 1).responses[0].error_code)
}

/// The value of a key, with its source.
pub(crate) fn describe(client: &mut Client, name: &str) -> (String, i8) {
    let resource = DescribeConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: TOPIC.into(),
        configuration_keys: Some(vec![name.into()]),
        ..Default::default()
    };
    let request = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    let response = client.call(&request, 4);
    let config = &response.results[0].configs[0];
    (config.value.as_deref().unwrap_or_default().to_owned(), config.config_source)
}

#[test]
fn max_message_bytes_takes_effect_at_once_and_survives() {
    let (mut broker, mut client) = broker_with_topic("max-message", 1, &[("max.message.bytes", "1000")]);
    let large = batch(&[&[b'x'; 2_000]]);
    assert_eq!(refusal(client.produce(TOPIC, 0, 1, &large)), ErrorCode::MESSAGE_TOO_LARGE);
    assert_eq!(alter(&mut client, TOPIC, SET, "max.message.bytes", Some("5000")), ErrorCode::NONE);
    assert_eq!(describe(&mut client, "max.message.bytes"), ("5000".to_owned(), TOPIC_CONFIG));
    assert_eq!(client.produce(TOPIC, 0, 1, &large).unwrap(), 0);
    assert_eq!(alter(&mut client, TOPIC, SET, "max.message.bytes", Some("1000")), ErrorCode::NONE);
    broker.kill();
    broker.start_again();
    client = broker.connect();
    assert_eq!(refusal(client.produce(TOPIC, 0, 1, &large)), ErrorCode::MESSAGE_TOO_LARGE);
    assert_eq!(alter(&mut client, TOPIC, DELETE, "max.message.bytes", None), ErrorCode::NONE);
    assert_ne!(describe(&mut client, "max.message.bytes").1, TOPIC_CONFIG);
    assert_eq!(client.produce(TOPIC, 0, 1, &large).unwrap(), 1);
}

#[test]
fn configurations_that_cannot_be_are_refused() {
    let (_broker, mut client) = broker_with_topic("bad-configs", 1, &[]);
    for (name, value) in [("max.message.bytes", "-1"), ("no.such.key", "1"), ("cleanup.policy", "shred")] {
        let refused = alter(&mut client, TOPIC, SET, name, Some(value));
        assert_eq!(refused, ErrorCode::INVALID_CONFIG, "{name}={value}");
    }
    let unknown = alter(&mut client, "no-such-topic", SET, "max.message.bytes", Some("1"));
    assert_eq!(unknown, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!(refusal(client.create_topic("bad", 1, &[("no.such.key", "1")])), ErrorCode::INVALID_CONFIG);
}

/// The durable end at the HTTP listener, which is below the log end while nothing is synced.
fn durable_end(broker: &mainstem_tests::broker::Broker) -> i64 {
    let metrics = broker.http("/metrics");
    let line = metrics.lines().find(|line| {
        line.starts_with("mainstem_partition_durable_end_offset") && line.contains(&format!("\"{TOPIC}\""))
    });
    let value = line.and_then(|line| line.rsplit(' ').next()).expect("the partition has a metric");
    value.parse::<f64>().expect("metrics are numbers") as i64
}

#[test]
fn write_caching_of_a_topic_decides_what_acks_all_waits_for() {
    let (broker, mut client) = broker_with_topic("write-caching", 1, &[("write.caching", "true")]);
    client.produce(TOPIC, 0, -1, &batch(&[b"cached"])).unwrap();
    assert_eq!(durable_end(&broker), 0, "acknowledged from the page cache");
    assert_eq!(alter(&mut client, TOPIC, SET, "write.caching", Some("false")), ErrorCode::NONE);
    client.produce(TOPIC, 0, -1, &batch(&[b"synced"])).unwrap();
    assert_eq!(durable_end(&broker), 2, "acknowledged when it was on disk");
    client.produce(TOPIC, 0, 1, &batch(&[b"acks=1"])).unwrap();
    assert_eq!(durable_end(&broker), 2);
}

#[test]
fn flush_messages_makes_acks_1_wait_too() {
    let (broker, mut client) = broker_with_topic("flush-messages", 1, &[("flush.messages", "1")]);
    for offset in 0..5 {
        client.produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
        assert_eq!(durable_end(&broker), offset + 1);
    }
}

#[test]
fn no_more_replicas_are_asked_for_than_there_are() {
    let (_broker, mut client) = broker_with_topic("min-insync", 1, &[("min.insync.replicas", "3")]);
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"a"])).unwrap(), 0);
}

#[test]
fn responses_are_not_throttled() {
    let (_broker, mut client) = broker_with_topic("throttle", 1, &[]);
    let one = batch(&[b"a"]);
    assert_eq!(client.call(&produce_request(TOPIC, 0, 1, &one), BY_NAME).throttle_time_ms, 0);
}
