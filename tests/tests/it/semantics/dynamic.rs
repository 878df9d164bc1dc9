//! Configuration of the node and of the cluster that changes while the broker runs.

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{batch, refusal};
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use crate::semantics::TOPIC;

const BROKER: i8 = 4;
const BROKER_LOGGER: i8 = 8;
const NODE: &str = "1";
const ALL_NODES: &str = "";
const SET: i8 = 0;
const DELETE: i8 = 1;

const DYNAMIC_BROKER: i8 = 2;
const DYNAMIC_DEFAULT_BROKER: i8 = 3;
const STATIC_BROKER: i8 = 4;
const DEFAULT: i8 = 5;

/// Sets a key, or removes it. Returns the error and its message.
fn alter(
    client: &mut Client,
    (kind, resource): (i8, &'static str),
    name: &'static str,
    value: Option<&'static str>,
) -> (ErrorCode, String) {
    let config = AlterableConfig {
        name: name.into(),
        config_operation: if value.is_some() { SET } else { DELETE },
        value: value.map(Into::into),
        ..Default::default()
    };
    let resource = AlterConfigsResource {
        resource_type: kind,
        resource_name: resource.into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let response = client.call(&request, 1);
    let answer = &response.responses[0];
    let message = answer.error_message.as_deref().unwrap_or_default();
    (ErrorCode::from(answer.error_code), message.to_owned())
}

/// Sets a key of the node or the cluster; it has to be accepted.
fn set(client: &mut Client, resource: &'static str, name: &'static str, value: &'static str) {
    let (error, message) = alter(client, (BROKER, resource), name, Some(value));
    assert_eq!(error, ErrorCode::NONE, "{message}");
}

/// The description of a key: value, source, and the sources of its synonyms; none if the key is not shown.
fn describe(
    client: &mut Client,
    (kind, resource): (i8, &'static str),
    name: &str,
) -> Option<(String, i8, Vec<i8>)> {
    let resource = DescribeConfigsResource {
        resource_type: kind,
        resource_name: resource.into(),
        configuration_keys: Some(vec![name.to_owned().into()]),
        ..Default::default()
    };
    let request = DescribeConfigsRequest {
        resources: vec![resource],
        include_synonyms: true,
        include_documentation: true,
        ..Default::default()
    };
    let response = client.call(&request, 4);
    assert_eq!(response.results[0].error_code, 0);
    let config = response.results[0].configs.first()?;
    let synonyms = config.synonyms.iter().map(|synonym| synonym.source).collect();
    assert_eq!(config.documentation.is_some(), kind == BROKER, "keys are documented, loggers are not");
    Some((config.value.as_deref().unwrap_or("hidden").to_owned(), config.config_source, synonyms))
}

fn start(name: &str) -> (Broker, Client) {
    let broker = Setup::new(name).set("message.max.bytes", 5_000).start();
    let client = broker.connect();
    (broker, client)
}

#[test]
fn defaults_of_topics_change_at_once_and_survive() {
    let (mut broker, mut client) = start("dynamic-topics");
    client.create_topic(TOPIC, 1, &[]).unwrap();
    let large = batch(&[&[b'x'; 2_000]]);
    client.produce(TOPIC, 0, 1, &large).unwrap();
    set(&mut client, ALL_NODES, "message.max.bytes", "1000");
    assert_eq!(refusal(client.produce(TOPIC, 0, 1, &large)), ErrorCode::MESSAGE_TOO_LARGE);
    set(&mut client, NODE, "message.max.bytes", "3000");
    client.produce(TOPIC, 0, 1, &large).expect("the node's value counts before the cluster's");
    let described = ("3000".to_owned(), DYNAMIC_BROKER, vec![2, 3, 4, 5]);
    assert_eq!(describe(&mut client, (BROKER, NODE), "message.max.bytes"), Some(described));
    broker.kill();
    broker.start_again();
    client = broker.connect();
    client.produce(TOPIC, 0, 1, &large).expect("it is remembered");
    assert_eq!(alter(&mut client, (BROKER, NODE), "message.max.bytes", None).0, ErrorCode::NONE);
    assert_eq!(refusal(client.produce(TOPIC, 0, 1, &large)), ErrorCode::MESSAGE_TOO_LARGE);
    let described = ("1000".to_owned(), DYNAMIC_DEFAULT_BROKER, vec![3]);
    assert_eq!(describe(&mut client, (BROKER, ALL_NODES), "message.max.bytes"), Some(described));
    assert_eq!(alter(&mut client, (BROKER, ALL_NODES), "message.max.bytes", None).0, ErrorCode::NONE);
    client.produce(TOPIC, 0, 1, &large).expect("what the node was started with counts");
    let described = ("5000".to_owned(), STATIC_BROKER, vec![4, 5]);
    assert_eq!(describe(&mut client, (BROKER, NODE), "message.max.bytes"), Some(described));
    assert_eq!(describe(&mut client, (BROKER, ALL_NODES), "message.max.bytes"), None);
}

/// Returns true if a further connection is served.
fn is_admitted(broker: &Broker) -> bool {
    let mut client = broker.connect();
    client.topics().is_ok()
}

#[test]
fn limits_of_connections_change_at_once() {
    let (broker, mut client) = start("dynamic-connections");
    set(&mut client, NODE, "max.connections", "1");
    assert!(!is_admitted(&broker), "this connection is the only one");
    set(&mut client, NODE, "max.connections", "100");
    eventually("a connection", || is_admitted(&broker).then_some(()));
    set(&mut client, ALL_NODES, "max.connections.per.ip", "1");
    eventually("a refusal", || (!is_admitted(&broker)).then_some(()));
    set(&mut client, ALL_NODES, "max.connections.per.ip.overrides", "127.0.0.1:50");
    eventually("a connection", || is_admitted(&broker).then_some(()));
}

#[test]
fn event_loops_come_and_go() {
    let (mut broker, mut client) = start("dynamic-threads");
    client.create_topic(TOPIC, 1, &[]).unwrap();
    for threads in ["1", "2", "4", "2", "1"] {
        set(&mut client, NODE, "num.network.threads", threads);
        let mut others: Vec<Client> = (0..4).map(|_| broker.connect()).collect();
        for other in others.iter_mut().chain([&mut client]) {
            other.produce(TOPIC, 0, 1, &batch(&[b"a"])).expect("every connection is served");
        }
    }
    let (error, message) = alter(&mut client, (BROKER, NODE), "num.network.threads", Some("3"));
    assert_eq!(error, ErrorCode::INVALID_REQUEST);
    assert!(message.contains("should not be greater than double the current value 1"), "{message}");
    broker.kill();
    broker.start_again();
    broker.connect().produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
    broker.stop();
}

#[test]
fn what_cannot_change_is_refused() {
    let (_broker, mut client) = start("dynamic-refused");
    let mut refused = |resource, name, value, expect: &str| {
        let (error, message) = alter(&mut client, (BROKER, resource), name, Some(value));
        assert_eq!((error, message.as_str()), (ErrorCode::INVALID_REQUEST, expect));
    };
    refused(NODE, "num.partitions", "2", "Cannot update these configs dynamically: [num.partitions]");
    refused("7", "max.connections", "2", "Unexpected broker id, expected 1, but received 7");
    refused("x", "max.connections", "2", "Node id must be an integer, but it is: x");
    refused(
        NODE,
        "message.max.bytes",
        "-1",
        "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
    );
    refused(
        ALL_NODES,
        "sasl.jaas.config",
        "x",
        "Cannot update these configs at default cluster level, broker id must be specified: [sasl.jaas.config]",
    );
}

#[test]
fn secrets_are_kept_and_not_shown() {
    let (_broker, mut client) = start("dynamic-secrets");
    const USERS: &str = "listener.name.other.plain.sasl.jaas.config";
    for name in [USERS, "some.plugin.key"] {
        set(&mut client, NODE, name, "s3cret");
    }
    let shown = describe(&mut client, (BROKER, NODE), USERS);
    assert_eq!(shown, Some(("hidden".to_owned(), DYNAMIC_BROKER, vec![DYNAMIC_BROKER])));
}

#[test]
fn levels_of_loggers_change_what_is_logged() {
    let (mut broker, mut client) = start("dynamic-loggers");
    const LOGGERS: (i8, &str) = (BROKER_LOGGER, NODE);
    let level = |client: &mut Client, name| describe(client, LOGGERS, name).map(|(level, ..)| level);
    assert_eq!(level(&mut client, "root").as_deref(), Some("INFO"));
    let refused_connection = |broker: &Broker| {
        let before = broker.log().matches("connection closed").count();
        let mut client = broker.connect();
        client.send_body(0x7000, 0, 1, &[]).expect("it is accepted");
        client.wait_for_close().expect("there is no such API");
        move |broker: &Broker| broker.log().matches("connection closed").count() > before
    };
    let logged = refused_connection(&broker);
    eventually("a line", || logged(&broker).then_some(()));
    assert_eq!(alter(&mut client, LOGGERS, "mainstem_net", Some("FATAL")).0, ErrorCode::NONE);
    assert_eq!(level(&mut client, "mainstem_net").as_deref(), Some("FATAL"));
    assert_eq!(level(&mut client, "mainstem_log").as_deref(), Some("INFO"));
    let _ = refused_connection(&broker);
    assert_eq!(alter(&mut client, LOGGERS, "mainstem_net", None).0, ErrorCode::NONE);
    let logged = refused_connection(&broker);
    eventually("a line", || logged(&broker).then_some(()));
    let lines = broker.log().matches("connection closed").count();
    assert_eq!(lines, 2, "the one between was not logged");
    let (error, _) = alter(&mut client, LOGGERS, "no.such.logger", Some("INFO"));
    assert_eq!(error, ErrorCode::INVALID_CONFIG);
    let (error, message) = alter(&mut client, (BROKER_LOGGER, "7"), "root", Some("INFO"));
    assert_eq!(
        (error, message.as_str()),
        (ErrorCode::INVALID_REQUEST, "Unexpected node id. Expected 1, but received 7")
    );
    broker.kill();
    broker.start_again();
    client = broker.connect();
    assert_eq!(alter(&mut client, LOGGERS, "root", Some("WARN")).0, ErrorCode::NONE);
    assert_eq!(level(&mut client, "mainstem_net").as_deref(), Some("WARN"), "it follows the root");
    assert_eq!(
        describe(&mut client, (BROKER, NODE), "num.network.threads").map(|found| found.1),
        Some(DEFAULT)
    );
}
