//! Brokers for tests: every test that needs one runs against ours and against Apache Kafka's.

mod broken_network;
mod kafka;
mod scripted;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainstem_broker::EmbeddedBroker;
use tokio::time::Instant;

pub(crate) use broken_network::BrokenNetwork;
pub(crate) use kafka::{JavaMember, KafkaPeer};
pub(crate) use scripted::{Answered, Asked, ScriptedBroker, answer};

use crate::{Admin, ClientConfig, GroupProtocol, NewTopic, TopicPartition};

/// Settings of both brokers: what groups and transactions wait for is short.
const SETTINGS: &[(&str, &str)] = &[
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "100"),
    ("group.consumer.min.heartbeat.interval.ms", "50"),
    ("group.consumer.heartbeat.interval.ms", "50"),
    ("group.consumer.assignment.interval.ms", "0"),
    // Patterns are looked at again after this time at the earliest.
    ("group.consumer.regex.refresh.interval.ms", "10000"),
    ("offsets.topic.num.partitions", "1"),
];

/// Tells the names of one test from those of another, as Kafka's broker is shared.
static WORLDS: AtomicU32 = AtomicU32::new(0);

/// Defines each test twice, for a function of that name that takes a [`World`]: as `mainstem::NAME` and `kafka::NAME`.
/// In brackets: arguments of `tokio::test`.
macro_rules! on_both_brokers {
    ($($test:ident $([$($flavor:tt)*])?),+ $(,)?) => {
        mod mainstem {
            $(#[tokio::test $(($($flavor)*))?]
            async fn $test() {
                super::$test($crate::testing::World::mainstem()).await;
            })+
        }
        mod kafka {
            $(#[tokio::test $(($($flavor)*))?]
            async fn $test() {
                if let Some(world) = $crate::testing::World::kafka() {
                    super::$test(world).await;
                }
            })+
        }
    };
}
pub(crate) use on_both_brokers;

/// The same for tests of what only Kafka's broker serves.
macro_rules! on_kafka {
    ($($test:ident),+ $(,)?) => {
        mod kafka {
            $(#[tokio::test]
            async fn $test() {
                if let Some(world) = $crate::testing::World::kafka() {
                    super::$test(world).await;
                }
            })+
        }
    };
}
pub(crate) use on_kafka;

/// A broker, and names that no other test uses.
pub(crate) struct World {
    broker: Broker,
    /// Name of a topic, which does not exist before it is used or created.
    pub(crate) topic: Arc<str>,
    /// Name of a group.
    pub(crate) group: Arc<str>,
    /// How its members share out what they read.
    pub(crate) group_protocol: GroupProtocol,
}

enum Broker {
    Mainstem(Box<EmbeddedBroker>),
    Kafka(&'static KafkaPeer),
}

impl World {
    /// With a broker of its own in this process.
    pub(crate) fn mainstem() -> World {
        World::with_settings(&[])
    }

    fn with_settings(settings: &[(&str, &str)]) -> World {
        World::new(Broker::Mainstem(Box::new(EmbeddedBroker::start(&[SETTINGS, settings].concat()))))
    }

    /// With Apache Kafka's broker, which all tests of this process share; none where it cannot run, which is said.
    pub(crate) fn kafka() -> Option<World> {
        Some(World::new(Broker::Kafka(KafkaPeer::broker()?)))
    }

    fn new(broker: Broker) -> World {
        let number = WORLDS.fetch_add(1, Ordering::Relaxed);
        World {
            broker,
            topic: format!("t{number}").into(),
            group: format!("g{number}").into(),
            group_protocol: GroupProtocol::Classic,
        }
    }

    /// The same with groups of the consumer protocol.
    pub(crate) fn with_consumer_groups(mut self) -> World {
        self.group_protocol = GroupProtocol::Consumer { assignor: None };
        self
    }

    pub(crate) fn is_kafka(&self) -> bool {
        matches!(self.broker, Broker::Kafka(_))
    }

    pub(crate) fn address(&self) -> &str {
        match &self.broker {
            Broker::Mainstem(broker) => broker.address(),
            Broker::Kafka(kafka) => kafka.address(),
        }
    }

    /// How to connect.
    pub(crate) fn client(&self) -> ClientConfig {
        ClientConfig {
            retry_backoff: Duration::from_millis(5),
            operation_timeout: Duration::from_secs(20),
            ..ClientConfig::new(self.address()).unwrap()
        }
    }

    pub(crate) fn admin(&self) -> Admin {
        Admin::new(self.client())
    }

    /// Another name that no other test uses.
    pub(crate) fn name(&self, what: &str) -> String {
        format!("{}-{what}", self.topic)
    }

    /// A partition of the topic.
    pub(crate) fn t(&self, partition: i32) -> TopicPartition {
        TopicPartition::new(self.topic.clone(), partition)
    }

    /// Creates the topic with so many partitions.
    pub(crate) async fn create(&self, partitions: i32, configs: &[(&str, &str)]) {
        let topic = NewTopic::new(self.topic.clone()).partitions(partitions);
        let with = |topic: NewTopic, (name, value): &(&str, &str)| topic.config(*name, *value);
        self.admin().create_topic(&configs.iter().fold(topic, with)).await.unwrap();
    }
}

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds().await {
        assert!(Instant::now() < deadline, "not within 20 s: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
