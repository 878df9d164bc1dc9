//! Messages from brokers that speak Kafka's protocol, over the native client.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mainstem_client::{
    Admin, CommittedOffset, ConfigResource, Error, ErrorCode, GroupConfig, GroupConsumer, GroupEvent,
    GroupOffsets, NewTopic, Position, Producer, Record, Revoking, TopicPartition,
};
use parking_lot::Mutex;

use mainstem_lines::OneLine;

use crate::letter;
use crate::transport::{BoxFuture, Commit, Event, Sink, Source};

/// Time to write what the producer still has when an application stops.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// Kafka's name of the largest batch that a topic takes.
const MESSAGE_BYTES_MAX: &str = "max.message.bytes";
/// The reason of a loss of partitions, for the log.
const LOST: &str =
    "the group has given them to others, as it has received no heartbeat of this process for too long";

/// A member of a group.
pub(crate) struct KafkaSource {
    consumer: GroupConsumer,
    revoking: HashMap<u64, Revoking>,
    revocations: u64,
}

impl KafkaSource {
    pub(crate) fn new(config: GroupConfig) -> Result<KafkaSource, Error> {
        Ok(KafkaSource { consumer: GroupConsumer::new(config)?, revoking: HashMap::new(), revocations: 0 })
    }
}

impl Source for KafkaSource {
    async fn next(&mut self) -> crate::Result<Event> {
        loop {
            match self.consumer.next_event().await? {
                GroupEvent::Assigned(assigned) => return Ok(Event::Assigned(assigned)),
                GroupEvent::Batch(batch) => return Ok(Event::Batch(batch)),
                GroupEvent::Lost(lost) => return Ok(Event::Lost(lost, LOST)),
                GroupEvent::Revoking(revoking) => {
                    self.revocations += 1;
                    let partitions = revoking.partitions().clone();
                    self.revoking.insert(self.revocations, revoking);
                    return Ok(Event::Revoking(self.revocations, partitions));
                }
                // The client may get more events.
                _ => {}
            }
        }
    }

    fn hold(&mut self, partition: &TopicPartition) {
        // A partition that was revoked meanwhile brings nothing anyway.
        let _ = self.consumer.hold(partition);
    }

    fn release(&mut self, partition: &TopicPartition) {
        let _ = self.consumer.release(partition);
    }

    fn seek(&mut self, partition: &TopicPartition, offset: i64) {
        let _ = self.consumer.seek(partition, Position::Offset(offset));
    }

    fn end(&self, partition: &TopicPartition) -> Option<i64> {
        let position = self.consumer.position(partition).ok().flatten();
        let lag = self.consumer.lag(partition).ok().flatten();
        position.zip(lag).map(|(position, lag)| position.saturating_add(lag))
    }

    fn is_member(&self) -> bool {
        self.consumer.is_member()
    }

    fn committer(&self) -> Arc<dyn Commit> {
        Arc::new(KafkaCommit(self.consumer.offsets().clone()))
    }

    fn finish_revocation(&mut self, number: u64) {
        if let Some(revoking) = self.revoking.remove(&number) {
            self.consumer.finish_revocation(revoking);
        }
    }

    async fn leave(self) {
        self.consumer.leave().await;
    }
}

struct KafkaCommit(GroupOffsets);

impl Commit for KafkaCommit {
    fn commit(
        &self,
        positions: BTreeMap<TopicPartition, CommittedOffset>,
    ) -> BoxFuture<'static, Result<BTreeSet<TopicPartition>, Error>> {
        let offsets = self.0.clone();
        Box::pin(async move {
            let refused = match offsets.commit_existing(&positions).await {
                Err(error) if error.code() == Some(ErrorCode::OFFSET_METADATA_TOO_LARGE) => error,
                done => return done,
            };
            tracing::warn!(
                "{refused}; offsets are committed without what is finished behind them, which runs again after a crash: \
                 raise offset.metadata.max.bytes of the brokers to its usual 4096"
            );
            let bare = |(partition, position): (_, CommittedOffset)| {
                (partition, CommittedOffset { metadata: String::new(), ..position })
            };
            offsets.commit_existing(&positions.into_iter().map(bare).collect()).await
        })
    }
}

/// Writes by a producer of its own.
pub(crate) struct KafkaSink {
    producer: Producer,
    admin: Admin,
    /// Numbers of partitions of topics of dead letters.
    partitions: Arc<Mutex<HashMap<String, i32>>>,
}

impl KafkaSink {
    pub(crate) fn new(producer: Producer, admin: Admin) -> KafkaSink {
        KafkaSink { producer, admin, partitions: Arc::default() }
    }
}

impl Sink for KafkaSink {
    fn write(&self, records: Vec<Record>) -> BoxFuture<'static, Result<(), Error>> {
        let (producer, partitions) = (self.producer.clone(), self.partitions.clone());
        Box::pin(async move {
            let mut deliveries = Vec::with_capacity(records.len());
            for record in records {
                let topic = record.topic.clone();
                let sent = producer.send(record).await.map_err(named);
                deliveries.push((sent.inspect_err(|_| forget(&partitions, &topic))?, topic));
            }
            for (delivery, topic) in deliveries {
                delivery.outcome().await.inspect_err(|_| forget(&partitions, &topic))?;
            }
            Ok(())
        })
    }

    fn close(&self) -> BoxFuture<'static, ()> {
        // All other records have their outcome already.
        let producer = self.producer.clone();
        Box::pin(async move { producer.close_within(CLOSE_LIMIT).await })
    }

    fn letter_partitions(&self, letters: String, source: Arc<str>) -> BoxFuture<'static, Result<i32, Error>> {
        if let Some(known) = self.partitions.lock().get(&letters) {
            return Box::pin(std::future::ready(Ok(*known)));
        }
        let (admin, partitions) = (self.admin.clone(), self.partitions.clone());
        Box::pin(async move {
            let count = create_if_missing(&admin, &letters, &source).await?;
            partitions.lock().insert(letters, count);
            Ok(count)
        })
    }
}

/// Forgets the number of partitions of a topic. It may be outdated, for example if the topic was deleted, and writes fail because of that.
fn forget(partitions: &Mutex<HashMap<String, i32>>, topic: &str) {
    partitions.lock().remove(topic);
}

/// Adds to an error of the producer's own limits that the application can change them.
fn named(error: Error) -> Error {
    match error {
        Error::Invalid(reason) => Error::Invalid(format!("{reason} (App::producer sets it)")),
        other => other,
    }
}

/// Returns the number of partitions of a topic of dead letters. A missing one is created with as many partitions as its source, and a
/// larger `max.message.bytes`, by as much as a letter may add. If the source does not exist, the brokers' defaults apply.
async fn create_if_missing(admin: &Admin, letters: &str, source: &str) -> Result<i32, Error> {
    if admin.find_topic(letters).await?.is_none() {
        let mut topic = NewTopic::new(letters);
        if let Some(source) = admin.find_topic(source).await? {
            let wide = source.partitions.len();
            topic = topic.partitions(i32::try_from(wide).unwrap_or(i32::MAX));
            if let Some(bytes) = message_bytes_max(admin, &source.name).await? {
                topic =
                    topic.config(MESSAGE_BYTES_MAX, (bytes + letter::OVERHEAD_BYTES_MAX as u64).to_string());
            }
        }
        create(admin, topic).await?;
    }
    let found = admin.topic(letters).await?;
    Ok(i32::try_from(found.partitions.len()).unwrap_or(i32::MAX))
}

/// Creates a topic, with the brokers' settings if they refuse its own. An existing one is fine.
async fn create(admin: &Admin, mut topic: NewTopic) -> Result<(), Error> {
    loop {
        let Err(error) = admin.create_topic(&topic).await else { return Ok(()) };
        match error.code() {
            Some(ErrorCode::TOPIC_ALREADY_EXISTS) => return Ok(()),
            Some(ErrorCode::POLICY_VIOLATION | ErrorCode::INVALID_CONFIG) if !topic.configs.is_empty() => {
                tracing::warn!(
                    "{} is created without {MESSAGE_BYTES_MAX} of its own: {error}",
                    OneLine(&topic.name)
                );
                topic.configs.clear();
            }
            _ => return Err(error),
        }
    }
}

/// Returns the size of the largest batch that a topic takes; none if the brokers do not show it to this user.
async fn message_bytes_max(admin: &Admin, topic: &str) -> Result<Option<u64>, Error> {
    let configs = match admin.configs(&ConfigResource::Topic(topic.to_owned())).await {
        Ok(configs) => configs,
        Err(error) if error.is_retriable() => return Err(error),
        Err(error) => {
            tracing::warn!(
                "{MESSAGE_BYTES_MAX} of {} is not known, so that the topic of its dead letters gets the usual one: {error}",
                OneLine(topic)
            );
            return Ok(None);
        }
    };
    let entry = configs.into_iter().find(|entry| entry.name == MESSAGE_BYTES_MAX);
    let bytes = entry.and_then(|entry| entry.value?.parse().ok());
    // Kafka's own limit is a 32-bit number.
    Ok(bytes.filter(|bytes: &u64| *bytes <= i32::MAX as u64 - letter::OVERHEAD_BYTES_MAX as u64))
}
