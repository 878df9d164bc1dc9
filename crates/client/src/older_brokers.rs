//! Features that older releases of Kafka lack are refused by name, and no others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::testing::{World, on_kafka};
use crate::{
    Compression, ConfigChange, ConfigResource, ConsumerConfig, Error, GroupConfig, GroupConsumer,
    GroupProtocol, NewTopic, Producer, ProducerConfig, Record, Subscription,
};

on_kafka!(what_a_broker_lacks_is_reported);

/// A call, the first release that serves it, and the feature that the error names for older ones. The feature is empty if
/// all releases serve the call.
struct Asked {
    outcome: Result<(), Error>,
    since: (u32, u32),
    lacks: &'static str,
}

async fn what_a_broker_lacks_is_reported(world: World) {
    let release = world.kafka_release().expect("it runs on Kafka alone");
    world.create(1, &[("max.message.bytes", "2000")]).await;
    let mut asked = of_admin(&world).await;
    asked.extend(of_groups(&world).await);
    asked.extend(of_producers(&world).await);
    for Asked { outcome, since, lacks } in asked {
        if lacks.is_empty() {
            outcome.unwrap();
            continue;
        }
        if release.is_at_least(since.0, since.1) {
            assert!(!matches!(outcome, Err(Error::Unsupported { .. })), "{outcome:?} since {since:?}");
            continue;
        }
        let error = outcome.expect_err(lacks);
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let expected = format!("the broker at {} does not serve {lacks}", world.address());
        assert!(error.to_string().starts_with(&expected), "{error}, not {expected}");
    }
}

async fn of_admin(world: &World) -> Vec<Asked> {
    let admin = world.admin();
    let topic = ConfigResource::Topic(world.topic.to_string());
    let change = ConfigChange::Set("retention.ms".to_owned(), "1000".to_owned());
    let partition = BTreeSet::from([world.t(0)]);
    let asked = |since, lacks, outcome| Asked { outcome, since, lacks };
    vec![
        asked((0, 11), "", admin.cluster().await.map(drop)),
        asked((0, 11), "", admin.groups().await.map(drop)),
        asked((0, 11), "", admin.set_group_offsets(&world.group, &BTreeMap::from([(world.t(0), 0)])).await),
        asked((0, 11), "", admin.group_offsets(&world.group).await.map(drop)),
        asked((0, 11), "", admin.describe_group(&world.group).await.map(drop)),
        asked((1, 0), "CreatePartitions", admin.create_partitions(&world.topic, 2).await),
        asked(
            (1, 1),
            "DescribeConfigs in versions 1..=4, which are spoken here, but 0..=0",
            admin.configs(&topic).await.map(drop),
        ),
        asked((1, 1), "DeleteGroups", admin.delete_group(&world.name("none")).await),
        asked((2, 3), "IncrementalAlterConfigs", admin.alter_configs(&topic, &[change], false).await),
        asked(
            (2, 4),
            "CreateTopics 4, which is needed for a topic without a number of partitions or replicas (KIP-464); the newest there is ",
            admin.create_topic(&NewTopic::new(world.name("defaults"))).await.map(drop),
        ),
        asked((2, 4), "OffsetDelete", admin.delete_group_offsets(&world.group, &partition).await),
        asked((2, 4), "ListPartitionReassignments", admin.reassignments().await.map(drop)),
        asked((2, 6), "DescribeClientQuotas", admin.quotas(&[], false).await.map(drop)),
        asked((2, 7), "DescribeUserScramCredentials", admin.scram_credentials(None).await.map(drop)),
        asked((2, 8), "UnregisterBroker", admin.unregister_broker(4711).await),
        asked((2, 8), "DescribeProducers", admin.producers(&world.t(0)).await.map(drop)),
        asked((3, 3), "DescribeQuorum", admin.quorum().await.map(drop)),
        asked((3, 8), "DescribeTopicPartitions", admin.replicas(&world.topic).await.map(drop)),
    ]
}

async fn of_groups(world: &World) -> Vec<Asked> {
    let config = |name: &str| {
        let consumer = ConsumerConfig::new(world.client());
        GroupConfig::new(world.name(name), [world.topic.clone()], consumer)
    };
    let modern = |name: &str| config(name).protocol(GroupProtocol::Consumer { assignor: None });
    let pattern = Subscription::Pattern(format!("{}.*", world.topic).into());
    let asked = async |since, lacks, config| Asked { outcome: joined(config).await.map(drop), since, lacks };
    vec![
        asked((0, 11), "", config("plain")).await,
        asked(
            (2, 3),
            "JoinGroup 5, which is needed for a static member (KIP-345); the newest there is ",
            GroupConfig { instance_id: Some("one".into()), ..config("static") },
        )
        .await,
        asked((3, 7), "ConsumerGroupHeartbeat", modern("modern")).await,
        asked(
            (4, 0),
            if world.kafka_release().is_some_and(|release| release.is_at_least(3, 7)) {
                "ConsumerGroupHeartbeat 1, which is needed for subscribing to a pattern; the newest there is 0"
            } else {
                "ConsumerGroupHeartbeat"
            },
            GroupConfig { subscription: pattern, ..modern("pattern") },
        )
        .await,
    ]
}

/// Takes part in a group, until there is an assignment.
async fn joined(config: GroupConfig) -> Result<GroupConsumer, Error> {
    let mut member = GroupConsumer::new(config)?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while member.assignment().is_empty() {
        assert!(Instant::now() < deadline, "nothing is assigned");
        if let Ok(next) = tokio::time::timeout(Duration::from_millis(20), member.next()).await {
            drop(next?);
        }
    }
    Ok(member)
}

async fn of_producers(world: &World) -> Vec<Asked> {
    let config = ProducerConfig::new(world.client());
    let written = async |config: ProducerConfig| {
        let producer = Producer::new(config).expect("the configuration is right");
        producer.send(Record::new(world.topic.clone(), "a")).await?.await.map(drop)
    };
    let lacks = "Produce 7, which is needed for writing records that zstd compresses; the newest there is ";
    vec![
        Asked { outcome: written(config.clone()).await, since: (0, 11), lacks: "" },
        Asked { outcome: written(config.compression(Compression::Zstd)).await, since: (2, 1), lacks },
        Asked {
            outcome: offsets_in_transaction(world).await,
            since: (2, 5),
            lacks: "TxnOffsetCommit 3, which is needed for committing the offsets of a group's member in a transaction (KIP-447); ",
        },
        Asked {
            outcome: next_after_failure(world).await,
            since: (2, 5),
            lacks: "InitProducerId 3, which is needed for going on after a transaction that has failed (KIP-360); ",
        },
    ]
}

async fn transactional(world: &World, name: &str) -> Producer {
    let config = ProducerConfig::new(world.client()).transactional_id(world.name(name));
    let producer = Producer::new(config).expect("the configuration is right");
    producer.init_transactions().await.unwrap();
    producer.begin_transaction().unwrap();
    producer
}

async fn offsets_in_transaction(world: &World) -> Result<(), Error> {
    let producer = transactional(world, "offsets").await;
    let consumer = ConsumerConfig::new(world.client());
    let own = GroupConfig {
        auto_commit: None,
        ..GroupConfig::new(world.name("of"), [world.topic.clone()], consumer)
    };
    let member = joined(own).await.unwrap();
    let sent = producer.send_offsets(&BTreeMap::from([(world.t(0), 0)]), member.offsets()).await;
    producer.abort_transaction().await.unwrap();
    member.close().await.unwrap();
    sent.map_err(reason)
}

async fn next_after_failure(world: &World) -> Result<(), Error> {
    let producer = transactional(world, "failure").await;
    let large = Record::new(world.topic.clone(), vec![b'x'; 5_000]);
    let refused = producer.send(large).await?;
    producer.flush().await;
    assert!(refused.await.is_err(), "it is larger than the topic takes");
    let aborted = producer.abort_transaction().await;
    assert_eq!(producer.begin_transaction().err(), aborted.clone().err(), "it can continue, or never again");
    aborted.map_err(reason)
}

/// The failure of a transaction or its producer.
fn reason(error: Error) -> Error {
    match error {
        Error::TransactionFailed { reason } | Error::ProducerFailed { reason } => *reason,
        error => panic!("{error}"),
    }
}
