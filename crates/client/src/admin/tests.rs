//! An administrator's calls to a broker in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainstem_broker::EmbeddedBroker;
use mainstem_wire::ErrorCode;

use super::*;
use crate::{
    ConsumerConfig, GroupConfig, GroupConsumer, Isolation, Position, Producer, ProducerConfig, Record,
    TopicPartition,
};

fn broker() -> EmbeddedBroker {
    EmbeddedBroker::start(&[("group.initial.rebalance.delay.ms", "0"), ("offsets.topic.num.partitions", "1")])
}

fn config(broker: &EmbeddedBroker) -> ClientConfig {
    ClientConfig { operation_timeout: Duration::from_secs(2), ..ClientConfig::new(broker.address()).unwrap() }
}

#[tokio::test]
async fn topics_come_grow_and_go() {
    let broker = broker();
    let admin = Admin::new(config(&broker));
    let names = async || -> Vec<String> {
        admin.topics().await.unwrap().iter().map(|topic| topic.name.to_string()).collect()
    };
    let checked = NewTopic { validate_only: true, ..NewTopic::new("t") };
    admin.create_topic(&checked).await.unwrap();
    assert!(names().await.is_empty());
    admin.create_topic(&NewTopic::new("t").partitions(2)).await.unwrap();
    admin.create_topic(&NewTopic::new("a")).await.unwrap();
    assert_eq!(names().await, ["a", "t"]);
    let again = admin.create_topic(&NewTopic::new("t")).await.unwrap_err();
    assert_eq!(again.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
    assert!(again.to_string().starts_with("cannot create topic t: "), "{again}");
    admin.create_partitions("t", 5).await.unwrap();
    assert_eq!(admin.topic("t").await.unwrap().partitions.len(), 5);
    let fewer = admin.create_partitions("t", 3).await.unwrap_err();
    assert_eq!(fewer.code(), Some(ErrorCode::INVALID_PARTITIONS));
    admin.delete_topic("t").await.unwrap();
    assert_eq!(names().await, ["a"]);
    let config = ClientConfig { operation_timeout: Duration::from_millis(200), ..config(&broker) };
    let gone = Admin::new(config).topic("t").await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
}

#[tokio::test]
async fn settings_are_changed_and_say_where_they_come_from() {
    let broker = broker();
    let admin = Admin::new(config(&broker));
    admin.create_topic(&NewTopic::new("t").config("retention.ms", "1000")).await.unwrap();
    let topic = ConfigResource::Topic("t".to_owned());
    let shown = async |resource: &ConfigResource, name: &str| {
        let configs = admin.configs(resource).await.unwrap();
        let config = configs.into_iter().find(|config| config.name == name).expect("the setting is shown");
        (config.value.unwrap(), config.source)
    };
    let set = |name: &str, value: &str| ConfigChange::Set(name.to_owned(), value.to_owned());
    assert_eq!(shown(&topic, "retention.ms").await, ("1000".to_owned(), ConfigSource::Topic));
    admin.alter_configs(&topic, &[set("retention.ms", "5")], true).await.unwrap();
    assert_eq!(shown(&topic, "retention.ms").await.0, "1000", "it was only tried");
    let append = ConfigChange::Append("cleanup.policy".to_owned(), "compact".to_owned());
    let delete = ConfigChange::Delete("retention.ms".to_owned());
    admin.alter_configs(&topic, &[append, delete], false).await.unwrap();
    assert_eq!(shown(&topic, "cleanup.policy").await.0, "delete,compact");
    assert_eq!(shown(&topic, "retention.ms").await.1, ConfigSource::Default);
    let wrong = admin.alter_configs(&topic, &[set("retention.ms", "soon")], false).await.unwrap_err();
    assert_eq!(wrong.code(), Some(ErrorCode::INVALID_CONFIG));
    let node = admin.nodes().await.unwrap()[0];
    assert_eq!(shown(&ConfigResource::Broker(node), "log.dirs").await.1, ConfigSource::StaticBroker);
    for (resource, name, value, source) in [
        (ConfigResource::AllBrokers, "log.retention.ms", "7000", ConfigSource::DynamicDefaultBroker),
        (ConfigResource::Group("g".to_owned()), "consumer.session.timeout.ms", "50000", ConfigSource::Group),
        (ConfigResource::ClientMetrics("m".to_owned()), "interval.ms", "1000", ConfigSource::ClientMetrics),
        (ConfigResource::Loggers(node), "root", "WARN", ConfigSource::Logger),
    ] {
        admin.alter_configs(&resource, &[set(name, value)], false).await.unwrap();
        assert_eq!(shown(&resource, name).await, (value.to_owned(), source), "{resource}");
    }
}

#[tokio::test]
async fn groups_are_described_and_their_offsets_moved() {
    let broker = broker();
    let admin = Admin::new(config(&broker));
    let producer = Producer::new(ProducerConfig::new(config(&broker))).unwrap();
    producer.send(Record::new("t", "a")).await.unwrap().await.unwrap();
    assert_eq!(admin.describe_group("g").await.unwrap(), None);
    let own = GroupConfig {
        start: Position::Beginning,
        instance_id: Some("one".into()),
        ..GroupConfig::new("g", ["t"], ConsumerConfig::new(config(&broker)))
    };
    let mut member = GroupConsumer::new(own).unwrap();
    let _ = member.next().await.unwrap();
    member.commit().await.unwrap();
    let key = TopicPartition::new("t", 0);
    let group = admin.describe_group("g").await.unwrap().unwrap();
    assert_eq!((group.state.as_str(), group.assignor.as_str()), ("Stable", "cooperative-sticky"));
    assert_eq!(group.members[0].instance_id.as_deref(), Some("one"));
    assert_eq!(group.members[0].assignment, BTreeSet::from([key.clone()]));
    assert_eq!(admin.groups().await.unwrap()[0].group_id, "g");
    assert_eq!(admin.group_offsets("g").await.unwrap(), BTreeMap::from([(key.clone(), 1)]));
    let busy = admin.delete_group("g").await.unwrap_err();
    assert_eq!(busy.code(), Some(ErrorCode::NON_EMPTY_GROUP));
    let moved = BTreeMap::from([(key.clone(), 0)]);
    assert!(admin.set_group_offsets("g", &moved).await.is_err(), "its members know better");
    admin.set_group_offsets("other", &moved).await.unwrap();
    assert_eq!(admin.group_offsets("other").await.unwrap(), moved);
    admin.delete_group_offsets("other", &BTreeSet::from([key.clone()])).await.unwrap();
    assert!(admin.group_offsets("other").await.unwrap().is_empty());
    admin.set_group_offsets("third", &moved).await.unwrap();
    admin.delete_group("third").await.unwrap();
    assert_eq!(admin.describe_group("third").await.unwrap(), None);
    let end = admin.offsets([(key.clone(), Position::End)], Isolation::ReadUncommitted).await.unwrap();
    assert_eq!(end, BTreeMap::from([(key, Some(1))]));
}

#[tokio::test]
async fn what_a_partition_takes_is_told() {
    let broker = broker();
    let admin = Admin::new(config(&broker));
    let producer = Producer::new(ProducerConfig::new(config(&broker))).unwrap();
    producer.send(Record::new("t", vec![b'x'; 5_000])).await.unwrap().await.unwrap();
    let nodes = admin.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1);
    let dirs = admin.log_dirs(nodes[0]).await.unwrap();
    assert_eq!((dirs.len(), &dirs[0].error), (1, &None));
    assert!(dirs[0].usable_bytes.unwrap() <= dirs[0].total_bytes.unwrap());
    let key = TopicPartition::new("t", 0);
    let replica = dirs[0].replicas.iter().find(|replica| replica.partition == key).unwrap();
    assert!((5_000..6_000).contains(&replica.size_bytes) && !replica.is_future, "{replica:?}");
}
