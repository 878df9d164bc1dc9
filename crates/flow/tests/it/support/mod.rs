//! A broker in this process, and the reads and writes of tests there.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(clippy::unwrap_used, reason = "it is for tests")]

pub(crate) mod address;
pub(crate) mod kafka;
pub(crate) mod logs;
pub(crate) mod process;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) use address::free_address;
use mainstem_broker::EmbeddedBroker;
use mainstem_client::{
    Admin, ClientConfig, CommittedOffset, Consumer, ConsumerConfig, GroupConfig, GroupConsumer, GroupEvent,
    GroupProtocol, NewTopic, OwnedRecord, Position, Producer, ProducerConfig, Record, TopicPartition,
};
use mainstem_flow::App;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const LIMIT: Duration = Duration::from_secs(30);

/// Settings with short waits of groups.
const SETTINGS: &[(&str, &str)] = &[
    ("group.initial.rebalance.delay.ms", "0"),
    ("group.min.session.timeout.ms", "100"),
    ("group.consumer.min.heartbeat.interval.ms", "50"),
    ("group.consumer.heartbeat.interval.ms", "50"),
    ("group.consumer.assignment.interval.ms", "0"),
    ("offsets.topic.num.partitions", "1"),
];

/// Both protocols of groups.
pub(crate) fn protocols() -> [GroupProtocol; 2] {
    [GroupProtocol::Classic, GroupProtocol::Consumer { assignor: None }]
}

enum Broker {
    Mainstem(Box<EmbeddedBroker>),
    Process(process::BrokerProcess),
    Kafka(kafka::Kafka),
}

pub(crate) struct World {
    broker: Broker,
    producer: Producer,
    address: String,
    was_killed: bool,
}

impl World {
    pub(crate) fn start() -> World {
        World::with(&[])
    }

    pub(crate) fn with(settings: &[(&str, &str)]) -> World {
        let broker = EmbeddedBroker::start(&[SETTINGS, settings].concat());
        let address = broker.address().to_owned();
        World::of(Broker::Mainstem(Box::new(broker)), address)
    }

    /// With our broker as a process, which is killed by [`World::restart`]. The test's program has to have a test
    /// `broker_process` that calls [`process::run`].
    pub(crate) fn process(settings: &[(&str, &str)]) -> World {
        let broker = process::BrokerProcess::start(&[SETTINGS, settings].concat());
        let address = broker.address.clone();
        World::of(Broker::Process(broker), address)
    }

    /// With Apache Kafka's broker; none where it cannot run.
    pub(crate) fn kafka(test: &str) -> Option<World> {
        let kafka = kafka::Kafka::broker(test)?;
        let address = kafka.address.clone();
        Some(World::of(Broker::Kafka(kafka), address))
    }

    fn of(broker: Broker, address: String) -> World {
        let producer = Producer::new(ProducerConfig::new(ClientConfig::new(&address).unwrap())).unwrap();
        World { broker, producer, address, was_killed: false }
    }

    /// Starts the broker again: in this process after a stop in order, as a process of its own after a kill. Apache Kafka is restarted the
    /// first time only, as its start takes long.
    pub(crate) fn restart(&mut self) {
        match &mut self.broker {
            Broker::Mainstem(broker) => broker.start_again(),
            Broker::Process(broker) => broker.kill_and_start(),
            Broker::Kafka(kafka) if !self.was_killed => kafka.kill_and_start(),
            Broker::Kafka(_) => {}
        }
        self.was_killed = true;
    }

    /// Stops the broker of this process in order.
    pub(crate) fn stop(&mut self) {
        match &mut self.broker {
            Broker::Mainstem(broker) => broker.stop(),
            _ => panic!("a broker that is a process of its own is only restarted"),
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    fn client(&self) -> ClientConfig {
        ClientConfig { retry_backoff: Duration::from_millis(5), ..ClientConfig::new(&self.address).unwrap() }
    }

    pub(crate) fn admin(&self) -> Admin {
        Admin::new(self.client())
    }

    pub(crate) fn app(&self, name: &str) -> App {
        let app = App::new(name, &format!("kafka://{}", self.address)).unwrap();
        app.client(|client| ClientConfig { retry_backoff: Duration::from_millis(5), ..client })
    }

    pub(crate) fn t(&self, topic: &str, partition: i32) -> TopicPartition {
        TopicPartition::new(topic, partition)
    }

    pub(crate) async fn create(&self, topic: &str, partitions: i32) {
        self.admin().create_topic(&NewTopic::new(topic).partitions(partitions)).await.unwrap();
    }

    pub(crate) async fn delete(&self, topic: &str) {
        self.admin().delete_topic(topic).await.unwrap();
    }

    pub(crate) async fn exists(&self, topic: &str) -> bool {
        self.admin().find_topic(topic).await.unwrap().is_some()
    }

    pub(crate) fn record(&self, topic: &str, value: &str) -> Record {
        Record::new(topic, value.to_owned())
    }

    pub(crate) async fn write(&self, topic: &str, key: Option<&str>, value: &str) {
        let record = self.record(topic, value);
        self.write_record(match key {
            Some(key) => record.key(key.to_owned()),
            None => record,
        })
        .await;
    }

    pub(crate) async fn write_record(&self, record: Record) {
        self.producer.send(record).await.unwrap().await.unwrap();
    }

    /// Gives a record to the producer, and does not wait for it.
    pub(crate) async fn write_some(&self, topic: &str, key: &str, value: &str) {
        drop(self.producer.send(self.record(topic, value).key(key.to_owned())).await.unwrap());
    }

    /// Waits until all is written.
    pub(crate) async fn flush(&self) {
        self.producer.flush().await;
    }

    /// The first records of a topic, at least so many; waits for it and them.
    pub(crate) async fn read(&self, topic: &str, count: usize) -> Vec<OwnedRecord> {
        let deadline = Instant::now() + LIMIT;
        while !self.exists(topic).await {
            assert!(Instant::now() < deadline, "there is no topic {topic}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let partitions = self.admin().topic(topic).await.unwrap().partitions.len() as i32;
        let mut consumer = Consumer::new(ConsumerConfig::new(self.client())).unwrap();
        consumer.assign((0..partitions).map(|one| (self.t(topic, one), Position::Beginning)));
        let mut records = Vec::new();
        while records.len() < count {
            let batch = tokio::time::timeout(LIMIT, consumer.next()).await;
            let batch = batch.unwrap_or_else(|_| panic!("{topic} has {} of {count}", records.len())).unwrap();
            records.extend(batch.owned_records().map(Result::unwrap));
        }
        records
    }

    /// The same, as they would be written.
    pub(crate) async fn read_records(&self, topic: &str, count: usize) -> Vec<Record> {
        let record = |one: OwnedRecord| Record { value: one.value, ..Record::new(topic, "") };
        self.read(topic, count).await.into_iter().map(record).collect()
    }

    pub(crate) async fn committed(&self, group: &str) -> BTreeMap<TopicPartition, i64> {
        self.admin().group_offsets(group).await.unwrap()
    }

    /// Waits until a group has committed an offset in the first partition of a topic.
    pub(crate) async fn until_committed(&self, group: &str, topic: &str, offset: i64) {
        let (deadline, partition) = (Instant::now() + LIMIT, self.t(topic, 0));
        while self.committed(group).await.get(&partition) != Some(&offset) {
            assert!(Instant::now() < deadline, "not within {LIMIT:?}: {offset} is committed in {topic}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Commits as a member of a group.
    pub(crate) async fn commit(
        &self,
        group: &str,
        topic: &str,
        offsets: BTreeMap<TopicPartition, CommittedOffset>,
    ) {
        let config = GroupConfig::new(group, [topic], ConsumerConfig::new(self.client()));
        let mut member = GroupConsumer::new(GroupConfig { auto_commit: None, ..config }).unwrap();
        let wanted: BTreeSet<_> = offsets.keys().cloned().collect();
        while !matches!(member.next_event().await.unwrap(), GroupEvent::Assigned(has) if wanted.iter().all(|one| has.contains_key(one)))
        {
        }
        member.offsets().commit_with_metadata(&offsets).await.unwrap();
        member.leave().await;
    }
}

/// A directory that goes with this.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Directory {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mainstem-{name}-{}-{number}", std::process::id()));
        // A process with the same id that was killed may have left files there. They are not in use.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // If it cannot be removed it stays in the directory for temporary files, which the system cleans.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits for a condition.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until something listens at an address.
pub(crate) async fn until_listening(address: &str) {
    let deadline = Instant::now() + LIMIT;
    while tokio::net::TcpStream::connect(address).await.is_err() {
        assert!(Instant::now() < deadline, "nothing listens at {address}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Sends a GET request to an address. Returns the whole answer.
pub(crate) async fn get(address: &str, path: &str) -> String {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}
