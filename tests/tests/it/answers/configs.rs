//! DescribeConfigs of every key: value, source, read-only, sensitive, type and synonyms, as Apache Kafka describes a
//! node with the same properties.
//!
//! Kafka's answers are in `answers/configs-kafka-4.3.0.txt`. A difference is a fault, or a section of
//! `answers/configs-differences.txt` with the sentence of `docs/deviations.md` that says why. `TEST_KAFKA_LIVE=1` and
//! `UPDATE_EXPECT=1` are as for the answers.

use std::fmt::Write as _;
use std::fs;

use mainstem_tests::client::Client;
use mainstem_tests::kafka_node::{Home, NEWEST};
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use super::{Answers, Known, differences, file, parse, print};

const TOPIC: &str = "described";
const GROUP: &str = "described-group";
/// Types of resources: topic, broker, group.
const RESOURCES: [(&str, i8, &str); 4] =
    [("topic", 2, TOPIC), ("broker", 4, "1"), ("cluster", 4, ""), ("group", 32, GROUP)];
/// Settings at the start, so that some values have the source of a file.
const AT_START: [(&str, &str); 6] = [
    ("num.partitions", "3"),
    ("log.retention.hours", "24"),
    ("log.roll.hours", "12"),
    ("message.max.bytes", "2000000"),
    ("compression.type", "lz4"),
    ("max.connections.per.ip", "500"),
];
/// Settings while it runs: type and name of the resource, key, value.
const WHILE_RUNNING: [(i8, &str, &str, &str); 6] = [
    (4, "", "log.cleaner.threads", "2"),
    (4, "", "message.max.bytes", "3000000"),
    (4, "1", "num.io.threads", "9"),
    (2, TOPIC, "retention.ms", "100000"),
    (2, TOPIC, "max.message.bytes", "1000000"),
    (32, GROUP, "consumer.session.timeout.ms", "50000"),
];

#[test]
fn every_key_is_described_as_by_kafka() {
    let update = std::env::var_os("UPDATE_EXPECT").is_some();
    let is_live = std::env::var_os("TEST_KAFKA_LIVE").is_some();
    if is_live && let Some(said) = kafkas() {
        match update {
            true => fs::write(file("configs-kafka-4.3.0.txt"), print(&said)).unwrap(),
            false => {
                let expected = parse(&fs::read_to_string(file("configs-kafka-4.3.0.txt")).unwrap());
                let differing: Vec<_> = differences(&expected, &said).into_keys().collect();
                assert!(differing.is_empty(), "Kafka describes otherwise than the file says: {differing:?}");
            }
        }
    }
    let expected = parse(&fs::read_to_string(file("configs-kafka-4.3.0.txt")).unwrap());
    let found = differences(&expected, &ours());
    let known = Known::read("configs-differences.txt");
    if update {
        known.write_updated(&found);
    }
    Known::read("configs-differences.txt").judge(&found);
}

fn home() -> Option<Home> {
    let home = Home::new("configs", &NEWEST)?;
    home.set(&AT_START.map(|(key, value)| (key, value.to_owned())));
    home.set(&[("log.dirs", home.path("one").display().to_string())]);
    Some(home)
}

fn kafkas() -> Option<Answers> {
    let home = home()?;
    home.format(&[]);
    let _kafka = home.start_kafka();
    Some(described(&home))
}

fn ours() -> Answers {
    let home = Home::without_kafka("configs");
    home.set(&AT_START.map(|(key, value)| (key, value.to_owned())));
    home.set(&[("log.dirs", home.path("one").display().to_string())]);
    let _mainstem = home.start_mainstem(&[]);
    described(&home)
}

fn described(home: &Home) -> Answers {
    let mut client = Client::connect(&home.bootstrap()).unwrap();
    eventually("a topic", || client.create_topic(TOPIC, 1, &[]).ok());
    for (resource_type, name, key, value) in WHILE_RUNNING {
        let change = AlterableConfig { name: key.into(), value: Some(value.into()), ..Default::default() };
        let resource = AlterConfigsResource {
            resource_type,
            resource_name: name.into(),
            configs: vec![change],
            ..Default::default()
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
        let answer = client.call(&request, 1);
        assert_eq!(answer.responses[0].error_code, 0, "{key}: {:?}", answer.responses[0].error_message);
    }
    eventually("the last change is seen", || {
        let said = describe(home, &mut client);
        let is_seen = |(_, name, key, value): &(i8, &str, &str, &str)| {
            let lines = said.iter().filter(|(section, _)| section.ends_with(&format!(" {key}")));
            let mut lines = lines.flat_map(|(_, lines)| lines);
            lines.any(|line| line.contains(&format!("value={value:?}"))) || name.is_empty()
        };
        WHILE_RUNNING.iter().all(is_seen).then_some(said)
    })
}

/// A section for each key of each resource.
fn describe(home: &Home, client: &mut Client) -> Answers {
    let resources = RESOURCES.map(|(_, resource_type, name)| DescribeConfigsResource {
        resource_type,
        resource_name: name.into(),
        configuration_keys: None,
        ..Default::default()
    });
    let request = DescribeConfigsRequest {
        resources: resources.into(),
        include_synonyms: true,
        include_documentation: false,
        ..Default::default()
    };
    let answer = client.call(&request, 4);
    // Paths and ports differ in each run.
    let port = home.bootstrap();
    let port = port.rsplit_once(':').unwrap().1.to_owned();
    let folder = home.path("").display().to_string();
    let settled = |value: Option<&str>| match value {
        None => "none".to_owned(),
        Some(value) => {
            let value =
                value.replace(folder.trim_end_matches('/'), "HOME").replace(&format!(":{port}"), ":PORT");
            format!("{:?}", home.without_controller_port(&value))
        }
    };
    let mut said = Answers::new();
    for ((shown, ..), result) in RESOURCES.iter().zip(&answer.results) {
        assert_eq!(result.error_code, 0, "{shown}: {:?}", result.error_message);
        for config in &result.configs {
            let mut line = format!(
                "value={} source={} read_only={} sensitive={} type={} synonyms=",
                settled(config.value.as_deref()),
                config.config_source,
                config.read_only,
                config.is_sensitive,
                config.config_type,
            );
            for one in &config.synonyms {
                write!(line, "[{}={} {}]", one.name, settled(one.value.as_deref()), one.source).unwrap();
            }
            said.insert(format!("{shown} {}", config.name), vec![line]);
        }
    }
    said
}
