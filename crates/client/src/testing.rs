//! Brokers for tests: every test that needs one runs against ours and against Apache Kafka's, of several releases.

mod broken_network;
mod kafka;
mod no_broker;
pub(crate) mod releases;
mod scripted;
pub(crate) mod secured;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mainstem_broker::EmbeddedBroker;
use tokio::time::Instant;

pub(crate) use broken_network::BrokenNetwork;
pub(crate) use kafka::{JavaMember, KafkaPeer, java_writes};
pub(crate) use no_broker::NoBroker;
pub(crate) use releases::Release;
pub(crate) use scripted::{Answered, Asked, ScriptedBroker, answer, versions};

use crate::{Admin, ClientConfig, GroupProtocol, NewTopic, TopicPartition};

/// Settings of both brokers: groups and transactions wait only for short times. Records stay, whatever their timestamps are:
/// Kafka's broker looks for old records half a minute after its start, in the midst of the tests, and would remove those of
/// 1970. It looks every second, so that a test that depends on what retention leaves fails each time.
const SETTINGS: &[(&str, &str)] = &[
    ("log.retention.ms", "-1"),
    ("log.retention.check.interval.ms", "1000"),
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "100"),
    ("group.consumer.min.heartbeat.interval.ms", "50"),
    ("group.consumer.heartbeat.interval.ms", "50"),
    ("group.consumer.assignment.interval.ms", "0"),
    // Patterns are looked at again after this time at the earliest.
    ("group.consumer.regex.refresh.interval.ms", "10000"),
    ("offsets.topic.num.partitions", "1"),
    ("transaction.state.log.num.partitions", "1"),
];

/// The longest time that a test waits, unless it is about time: far more than a busy machine needs that runs several JVMs.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(240);

/// Numbers the tests, whose names differ by it, as they share Kafka's broker.
static WORLDS: AtomicU32 = AtomicU32::new(0);

/// Defines each test for a function of that name that takes a [`World`]: as `mainstem::NAME`, and as [`on_kafka`] does. In
/// brackets: arguments of `tokio::test`.
macro_rules! on_both_brokers {
    ($($test:ident $([$($flavor:tt)*])?),+ $(,)?) => {
        mod mainstem {
            $(#[tokio::test $(($($flavor)*))?]
            async fn $test() {
                $crate::testing::boxed(super::$test($crate::testing::World::mainstem())).await;
            })+
        }
        $crate::testing::on_kafka!($($test $([$($flavor)*])?),+);
    };
}
pub(crate) use on_both_brokers;

/// Defines each test once for each release of Kafka: as `kafka::NAME` and `kafka_3_9::NAME`.
macro_rules! on_kafka {
    ($($test:ident $([$($flavor:tt)*])?),+ $(,)?) => {
        $crate::testing::on_release!(kafka, NEWEST, $($test $([$($flavor)*])?),+);
        $crate::testing::on_release!(kafka_3_9, OLDEST, $($test $([$($flavor)*])?),+);
    };
}
pub(crate) use on_kafka;

/// The same for one release.
macro_rules! on_release {
    ($module:ident, $release:ident, $($test:ident $([$($flavor:tt)*])?),+) => {
        mod $module {
            $(#[tokio::test $(($($flavor)*))?]
            async fn $test() {
                let name = concat!(module_path!(), "::", stringify!($test));
                if let Some(world) = $crate::testing::World::kafka(&$crate::testing::releases::$release, name) {
                    $crate::testing::boxed(super::$test(world)).await;
                }
            })+
        }
    };
}
pub(crate) use on_release;

/// A test behind a pointer: it is compiled once, and not into each of its callers.
pub(crate) fn boxed<'t>(test: impl Future<Output = ()> + 't) -> Pin<Box<dyn Future<Output = ()> + 't>> {
    Box::pin(test)
}

/// A broker, and names that no other test uses.
pub(crate) struct World {
    broker: Broker,
    /// Name of a topic, which does not exist before it is used or created.
    pub(crate) topic: Arc<str>,
    /// Name of a group.
    pub(crate) group: Arc<str>,
    /// The protocol by which its members agree on an assignment.
    pub(crate) group_protocol: GroupProtocol,
}

enum Broker {
    Mainstem(Box<EmbeddedBroker>),
    Kafka(&'static KafkaPeer),
}

impl World {
    /// A world with a broker of its own in this process.
    pub(crate) fn mainstem() -> World {
        World::with_settings(&[])
    }

    fn with_settings(settings: &[(&str, &str)]) -> World {
        World::new(Broker::Mainstem(Box::new(EmbeddedBroker::start(&[SETTINGS, settings].concat()))))
    }

    /// A world with Apache Kafka's broker of a release, which all tests of this process share. None, with a message, if it cannot
    /// run, or lacks a feature that the test of this name needs.
    pub(crate) fn kafka(release: &'static Release, test: &str) -> Option<World> {
        let kafka = release.takes(test).then(|| KafkaPeer::broker(release, test)).flatten()?;
        Some(World::new(Broker::Kafka(kafka)))
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

    /// The release of Kafka, if it is Kafka's broker.
    pub(crate) fn kafka_release(&self) -> Option<&'static Release> {
        match &self.broker {
            Broker::Mainstem(_) => None,
            Broker::Kafka(kafka) => Some(kafka.release),
        }
    }

    pub(crate) fn address(&self) -> &str {
        match &self.broker {
            Broker::Mainstem(broker) => broker.address(),
            Broker::Kafka(kafka) => kafka.address(),
        }
    }

    /// The configuration of clients.
    pub(crate) fn client(&self) -> ClientConfig {
        ClientConfig {
            retry_backoff: Duration::from_millis(5),
            // Less than a test waits, so that the client reports what did not happen.
            operation_timeout: WAIT_TIMEOUT / 3 * 2,
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

    /// A topic with one copy.
    pub(crate) fn new_topic(&self, name: impl Into<Arc<str>>, partitions: i32) -> NewTopic {
        NewTopic { replication_factor: Some(1), ..NewTopic::new(name).partitions(partitions) }
    }

    /// Creates the topic with so many partitions.
    pub(crate) async fn create(&self, partitions: i32, configs: &[(&str, &str)]) {
        let topic = self.new_topic(self.topic.clone(), partitions);
        let with = |topic: NewTopic, (name, value): &(&str, &str)| topic.config(*name, *value);
        self.admin().create_topic(&configs.iter().fold(topic, with)).await.unwrap();
    }
}

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while !holds().await {
        assert!(Instant::now() < deadline, "not within {WAIT_TIMEOUT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
