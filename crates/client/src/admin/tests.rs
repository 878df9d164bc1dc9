//! An administrator's calls to brokers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainstem_wire::ErrorCode;

use super::*;
use crate::testing::{World, eventually, on_both_brokers};
use crate::{
    ConsumerConfig, GroupConfig, GroupConsumer, Isolation, Position, Producer, ProducerConfig, Record,
};

on_both_brokers!(
    topics_come_grow_and_go,
    settings_are_changed_and_say_where_they_come_from,
    groups_are_described_and_their_offsets_moved,
    what_a_partition_takes_is_told,
);

async fn topics_come_grow_and_go(world: World) {
    let admin = world.admin();
    let (t, a) = (&*world.topic, &*world.name("a"));
    let names = async || -> Vec<String> {
        let all = admin.topics().await.unwrap();
        let own =
            all.iter().map(|topic| topic.name.to_string()).filter(|name| [t, a].contains(&name.as_str()));
        own.collect()
    };
    let checked = NewTopic { validate_only: true, ..NewTopic::new(t) };
    admin.create_topic(&checked).await.unwrap();
    assert!(names().await.is_empty());
    admin.create_topic(&NewTopic::new(t).partitions(2)).await.unwrap();
    admin.create_topic(&NewTopic::new(a)).await.unwrap();
    // Kafka's controller answers before its broker knows.
    eventually("both are listed", async || names().await == [t, a]).await;
    let again = admin.create_topic(&NewTopic::new(t)).await.unwrap_err();
    assert_eq!(again.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
    assert!(again.to_string().starts_with(&format!("cannot create topic {t}: ")), "{again}");
    admin.create_partitions(t, 5).await.unwrap();
    eventually("it has grown", async || admin.topic(t).await.unwrap().partitions.len() == 5).await;
    let fewer = admin.create_partitions(t, 3).await.unwrap_err();
    assert_eq!(fewer.code(), Some(ErrorCode::INVALID_PARTITIONS));
    admin.delete_topic(t).await.unwrap();
    eventually("it is gone", async || names().await == [a]).await;
    let config = ClientConfig { operation_timeout: Duration::from_millis(200), ..world.client() };
    let gone = Admin::new(config).topic(t).await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
}

async fn settings_are_changed_and_say_where_they_come_from(world: World) {
    let admin = world.admin();
    admin.create_topic(&NewTopic::new(world.topic.clone()).config("retention.ms", "1000")).await.unwrap();
    let topic = ConfigResource::Topic(world.topic.to_string());
    let shown = async |resource: &ConfigResource, name: &str| {
        let configs = admin.configs(resource).await.unwrap();
        let found = configs.into_iter().find(|config| config.name == name);
        found.map(|config| (config.value.unwrap(), config.source))
    };
    let set = |name: &str, value: &str| ConfigChange::Set(name.to_owned(), value.to_owned());
    let becomes = async |resource: &ConfigResource, name: &str, value: &str, source: ConfigSource| {
        let expected = Some((value.to_owned(), source));
        eventually(&format!("{name} is {value}"), async || shown(resource, name).await == expected).await;
    };
    becomes(&topic, "retention.ms", "1000", ConfigSource::Topic).await;
    admin.alter_configs(&topic, &[set("retention.ms", "5")], true).await.unwrap();
    becomes(&topic, "retention.ms", "1000", ConfigSource::Topic).await;
    let append = ConfigChange::Append("cleanup.policy".to_owned(), "compact".to_owned());
    let delete = ConfigChange::Delete("retention.ms".to_owned());
    admin.alter_configs(&topic, &[append, delete], false).await.unwrap();
    becomes(&topic, "cleanup.policy", "delete,compact", ConfigSource::Topic).await;
    assert_eq!(shown(&topic, "retention.ms").await.unwrap().1, ConfigSource::Default);
    let wrong = admin.alter_configs(&topic, &[set("retention.ms", "soon")], false).await.unwrap_err();
    assert_eq!(wrong.code(), Some(ErrorCode::INVALID_CONFIG));
    let node = admin.nodes().await.unwrap()[0];
    assert_eq!(shown(&ConfigResource::Broker(node), "log.dirs").await.unwrap().1, ConfigSource::StaticBroker);
    for (resource, name, value, source) in [
        (ConfigResource::AllBrokers, "log.retention.ms", "7000", ConfigSource::DynamicDefaultBroker),
        (
            ConfigResource::Group(world.group.to_string()),
            "consumer.session.timeout.ms",
            "50000",
            ConfigSource::Group,
        ),
        (ConfigResource::ClientMetrics("m".to_owned()), "interval.ms", "1000", ConfigSource::ClientMetrics),
        (ConfigResource::Loggers(node), "root", "WARN", ConfigSource::Logger),
    ] {
        admin.alter_configs(&resource, &[set(name, value)], false).await.unwrap();
        becomes(&resource, name, value, source).await;
    }
}

async fn groups_are_described_and_their_offsets_moved(world: World) {
    let admin = world.admin();
    let (g, other, third) = (&*world.group, &*world.name("other"), &*world.name("third"));
    let producer = Producer::new(ProducerConfig::new(world.client())).unwrap();
    producer.send(Record::new(world.topic.clone(), "a")).await.unwrap().await.unwrap();
    assert_eq!(admin.describe_group(g).await.unwrap(), None);
    let own = GroupConfig {
        start: Position::Beginning,
        instance_id: Some("one".into()),
        ..GroupConfig::new(world.group.clone(), [world.topic.clone()], ConsumerConfig::new(world.client()))
    };
    let mut member = GroupConsumer::new(own).unwrap();
    let _ = member.next().await.unwrap();
    member.commit().await.unwrap();
    let key = world.t(0);
    let group = admin.describe_group(g).await.unwrap().unwrap();
    assert_eq!((group.state.as_str(), group.assignor.as_str()), ("Stable", "cooperative-sticky"));
    assert_eq!(group.members[0].instance_id.as_deref(), Some("one"));
    assert_eq!(group.members[0].assignment, BTreeSet::from([key.clone()]));
    assert!(admin.groups().await.unwrap().iter().any(|listed| listed.group_id == *world.group));
    assert_eq!(admin.group_offsets(g).await.unwrap(), BTreeMap::from([(key.clone(), 1)]));
    let busy = admin.delete_group(g).await.unwrap_err();
    assert_eq!(busy.code(), Some(ErrorCode::NON_EMPTY_GROUP));
    let moved = BTreeMap::from([(key.clone(), 0)]);
    assert!(admin.set_group_offsets(g, &moved).await.is_err(), "its members know better");
    admin.set_group_offsets(other, &moved).await.unwrap();
    assert_eq!(admin.group_offsets(other).await.unwrap(), moved);
    admin.delete_group_offsets(other, &BTreeSet::from([key.clone()])).await.unwrap();
    assert!(admin.group_offsets(other).await.unwrap().is_empty());
    admin.set_group_offsets(third, &moved).await.unwrap();
    admin.delete_group(third).await.unwrap();
    assert_eq!(admin.describe_group(third).await.unwrap(), None);
    let end = admin.offsets([(key.clone(), Position::End)], Isolation::ReadUncommitted).await.unwrap();
    assert_eq!(end, BTreeMap::from([(key, Some(1))]));
}

async fn what_a_partition_takes_is_told(world: World) {
    let admin = world.admin();
    let producer = Producer::new(ProducerConfig::new(world.client())).unwrap();
    producer.send(Record::new(world.topic.clone(), vec![b'x'; 5_000])).await.unwrap().await.unwrap();
    let nodes = admin.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1);
    let dirs = admin.log_dirs(nodes[0]).await.unwrap();
    assert_eq!((dirs.len(), &dirs[0].error), (1, &None));
    assert!(dirs[0].usable_bytes.unwrap() <= dirs[0].total_bytes.unwrap());
    let key = world.t(0);
    let replica = dirs[0].replicas.iter().find(|replica| replica.partition == key).unwrap();
    assert!((5_000..6_000).contains(&replica.size_bytes) && !replica.is_future, "{replica:?}");
}
