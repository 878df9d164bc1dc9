//! The shell of the group coordinator: its records go into `__consumer_offsets`, its replies to their connections.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_controller::{ResourceKind, TopicImage};
use mainstem_coordination::groups::{
    ConsumerGroupConfig, CoordinatorRecord, Effect, GroupConfig, GroupCoordinator, GroupTimes, LogEntry,
    Producer, Reply, Request, RequestContext as GroupContext, Stats, Ticket, Token,
};
use mainstem_log::Origin;
use mainstem_records::{BatchBuilder, BatchOptions, ProducerFields};
use mainstem_wire::ErrorCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::broker::Broker;
use crate::coordinators::replay::{Checksums, replay};
use crate::net::context::RequestContext;
use crate::net::dispatch::Handled;
use crate::net::output::ResponseBuffer;
use crate::scratch::with_scratch;
use crate::storage::partition::{Durable, Partition};

/// The topic of groups and their offsets.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The coordinator of all groups on this node.
pub(crate) struct Groups {
    heart: Mutex<Heart>,
    /// The deadline that the timer waits for, so that a step knows whether to wake it.
    armed_ms: AtomicU64,
    rearm: Notify,
}

struct Heart {
    coordinator: GroupCoordinator,
    waiting: HashMap<Token, oneshot::Sender<Reply>>,
    last_token: u64,
}

/// A reply that is there, or will be.
pub(crate) enum Asked {
    Now(Reply),
    Later(oneshot::Receiver<Reply>),
}

impl Asked {
    /// The reply, on a thread where waiting is allowed.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE when the broker stops first.
    pub(crate) fn wait(self) -> Result<Reply, ErrorCode> {
        match self {
            Asked::Now(reply) => Ok(reply),
            Asked::Later(receiver) => {
                receiver.blocking_recv().map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)
            }
        }
    }
}

/// An append whose durability the coordinator waits for.
struct Appended {
    ticket: Ticket,
    partition: Arc<Partition>,
    upto: i64,
}

/// Groups by state, as the APIs spell them.
pub(crate) type StateCounts = BTreeMap<String, usize>;

impl Groups {
    /// How much the coordinator holds, and, unless there are more than so many groups, their states.
    pub(crate) fn counts(&self, groups_max: usize) -> (Stats, Option<StateCounts>) {
        let heart = self.heart.lock();
        let stats = heart.coordinator.stats();
        let states = (stats.groups <= groups_max).then(|| heart.coordinator.count_by_state());
        (stats, states)
    }

    /// A coordinator without groups.
    pub(crate) fn new(config: GroupConfig) -> Self {
        let coordinator = GroupCoordinator::new(config);
        let heart = Mutex::new(Heart { coordinator, waiting: HashMap::new(), last_token: 0 });
        Groups { heart, armed_ms: AtomicU64::new(NEVER), rearm: Notify::new() }
    }

    /// Asks the coordinator.
    pub(crate) fn ask(&self, broker: &Arc<Broker>, context: &RequestContext, request: Request<'_>) -> Asked {
        let host = format!("/{}", context.connection.peer.ip().to_canonical());
        let from = GroupContext {
            api_version: context.version,
            client_id: context.client_id.as_deref().unwrap_or(""),
            client_host: &host,
        };
        let mut heart = self.heart.lock();
        heart.last_token += 1;
        let token = Token(heart.last_token);
        let (sender, mut receiver) = oneshot::channel();
        heart.waiting.insert(token, sender);
        heart.coordinator.step(broker.clock.now(), token, from, request);
        self.carry_out(broker, heart);
        match receiver.try_recv() {
            Ok(reply) => Asked::Now(reply),
            Err(_) => Asked::Later(receiver),
        }
    }

    /// Does what the coordinator decided: appends in order, then replies. Whoever waits for an append's durability is
    /// registered without the coordinator's lock, since the answer may come at once.
    fn carry_out(&self, broker: &Arc<Broker>, mut heart: MutexGuard<'_, Heart>) {
        let mut appended = Vec::new();
        loop {
            let effects: Vec<_> = heart.coordinator.effects().collect();
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                heart.carry_out(broker, effect, &mut appended);
            }
        }
        let deadline = heart.coordinator.next_deadline_ms().unwrap_or(NEVER);
        drop(heart);
        if deadline < self.armed_ms.load(Ordering::Acquire) {
            self.rearm.notify_one();
        }
        for Appended { ticket, partition, upto } in appended {
            let broker = broker.clone();
            let when = Durable::Call(Box::new(move |result| broker.groups.durable(&broker, ticket, result)));
            if partition.settings().write_caching {
                when.done(Ok(()));
            } else {
                partition.when_durable(upto, when);
            }
        }
    }

    fn durable(&self, broker: &Arc<Broker>, ticket: Ticket, result: Result<(), ErrorCode>) {
        let mut heart = self.heart.lock();
        match result {
            Ok(()) => heart.coordinator.appended(broker.clock.now(), ticket, Ok(())),
            // Whether the records will be there after a restart cannot be told: the partition is given up.
            Err(_) => heart.coordinator.unload(broker.clock.now(), ticket.partition),
        }
        self.carry_out(broker, heart);
    }

    /// Topics are there that were not, or have more partitions: members of consumer groups get their share.
    pub(crate) fn topics_changed(&self, topics: &[TopicImage]) {
        let mut heart = self.heart.lock();
        for topic in topics {
            // No topic has more partitions than its index can say.
            let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
            heart.coordinator.topic_changed(&topic.name, topic.id, count);
        }
    }

    /// What the operator says of consumer groups, and of single ones, is what the metadata say now.
    pub(crate) fn reconfigure(&self, broker: &Broker) {
        let config = broker.config();
        let image = broker.controller.image();
        let times = |group: &str| {
            let values = image.group_config(group, &config.values);
            GroupTimes {
                session_timeout_ms: values.consumer_session_timeout_ms,
                heartbeat_interval_ms: values.consumer_heartbeat_interval_ms,
                assignment_interval_ms: values.consumer_assignment_interval_ms,
            }
        };
        let groups = image.configured(ResourceKind::Group);
        let own_times = groups.map(|group| (group.into(), times(group))).collect();
        let consumer = ConsumerGroupConfig { own_times, ..config.groups.consumer.clone() };
        drop(image);
        self.heart.lock().coordinator.set_consumer_config(consumer);
    }

    /// A topic was deleted, and with it what groups have read of it.
    pub(crate) fn topic_deleted(&self, broker: &Arc<Broker>, topic: &str) {
        let mut heart = self.heart.lock();
        heart.coordinator.topic_deleted(broker.clock.now(), topic);
        self.carry_out(broker, heart);
    }

    /// Gives partitions of `__consumer_offsets` up: they are gone.
    pub(crate) fn unload(&self, broker: &Arc<Broker>, partitions: &[Arc<Partition>]) {
        let mut heart = self.heart.lock();
        for partition in partitions {
            heart.coordinator.unload(broker.clock.now(), partition.index);
        }
        self.carry_out(broker, heart);
    }

    /// Takes over the partitions of `__consumer_offsets` that are not served yet, which are all of them: their groups
    /// are read from them. Where one cannot be read, the groups of the others are served.
    pub(crate) fn load(&self, broker: &Broker, partitions: &[Arc<Partition>]) {
        if let Ok(count @ 1..) = i32::try_from(partitions.len()) {
            self.heart.lock().coordinator.set_partition_count(count);
        }
        for partition in partitions {
            let now = broker.clock.now();
            let mut heart = self.heart.lock();
            let coordinator = &mut heart.coordinator;
            coordinator.begin_load(partition.index);
            let mut malformed = 0;
            let replayed = partition.with_log(|log| {
                replay(log, Checksums::Unread, |record| {
                    let value = record.value;
                    let record = record.key.map(|key| LogEntry::Record { key, value, producer: None });
                    malformed += coordinator.load(now, partition.index, record).malformed;
                })
            });
            if malformed > 0 {
                tracing::error!(
                    partition = partition.index,
                    malformed,
                    "{OFFSETS_TOPIC} has records that do not decode"
                );
            }
            match replayed {
                Ok(Ok(())) => coordinator.finish_load(now, partition.index),
                Ok(Err(error)) => {
                    coordinator.unload(now, partition.index);
                    tracing::error!(
                        "partition {OFFSETS_TOPIC}-{} cannot be read: {error}; mend or move away its directory, then \
                         start again; until then its groups are not served",
                        partition.index
                    );
                }
                // It is offline, or was deleted.
                Err(_) => coordinator.unload(now, partition.index),
            }
        }
    }

    /// The partition of `__consumer_offsets` that has a group.
    pub(crate) fn partition_for(&self, group_id: &str) -> i32 {
        self.heart.lock().coordinator.partition_for(group_id)
    }

    /// Fires the time-outs that are due; returns when the next one is.
    fn tick(&self, broker: &Arc<Broker>) -> u64 {
        let mut heart = self.heart.lock();
        heart.coordinator.tick(broker.clock.now());
        let deadline = heart.coordinator.next_deadline_ms().unwrap_or(NEVER);
        self.armed_ms.store(deadline, Ordering::Release);
        self.carry_out(broker, heart);
        deadline
    }

    /// Fires time-outs until the broker stops.
    pub(crate) async fn run_timer(broker: Arc<Broker>) {
        let groups = &broker.groups;
        let mut stopping = std::pin::pin!(broker.stopping.notified());
        while !broker.stopping.is_stopping() {
            let deadline = groups.tick(&broker);
            let due = async {
                match deadline {
                    NEVER => std::future::pending().await,
                    deadline => tokio::time::sleep_until(broker.clock.instant(deadline).into()).await,
                }
            };
            tokio::select! {
                () = due => {}
                () = groups.rearm.notified() => {}
                () = &mut stopping => return,
            }
        }
    }
}

impl Heart {
    fn carry_out(&mut self, broker: &Broker, effect: Effect, appended: &mut Vec<Appended>) {
        match effect {
            Effect::Reply { token, reply } => {
                if let Some(waiting) = self.waiting.remove(&token) {
                    // The connection may be gone; the group finds out by its session time-out.
                    let _ = waiting.send(reply);
                }
            }
            Effect::Append { ticket, timestamp_ms, producer, records } => {
                match append(broker, ticket.partition, batch_of(producer), timestamp_ms, &records) {
                    Ok((partition, upto)) => appended.push(Appended { ticket, partition, upto }),
                    Err(error) => self.coordinator.appended(broker.clock.now(), ticket, Err(error)),
                }
            }
        }
    }
}

/// A batch of a producer's transaction, or of none. A coordinator's sequence numbers are 0, and are not checked.
fn batch_of(producer: Option<Producer>) -> BatchOptions {
    let Some(Producer { id: producer_id, epoch: producer_epoch }) = producer else {
        return BatchOptions::default();
    };
    let producer = ProducerFields { producer_id, producer_epoch, base_sequence: 0 };
    BatchOptions { producer, is_transactional: true, ..BatchOptions::default() }
}

/// Appends coordinator records as one batch.
fn append(
    broker: &Broker,
    partition: i32,
    batch: BatchOptions,
    timestamp_ms: i64,
    records: &[CoordinatorRecord],
) -> Result<(Arc<Partition>, i64), ErrorCode> {
    let partition =
        broker.topics.partition(OFFSETS_TOPIC, partition).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
    let mut builder = BatchBuilder::new(batch);
    for record in records {
        builder
            .append(timestamp_ms, Some(&record.key), record.value.as_deref(), &[])
            .map_err(|_| ErrorCode::MESSAGE_TOO_LARGE)?;
    }
    let bytes = builder.build().map_err(|_| ErrorCode::MESSAGE_TOO_LARGE)?;
    let outcome =
        with_scratch(|scratch| partition.append(&bytes, Origin::Coordinator, &broker.clock, scratch));
    let outcome = outcome.map_err(|refused| refused.code())?;
    Ok((partition, outcome.appended.last_offset + 1))
}

/// Asks the coordinator and encodes its reply, now or later.
pub(crate) fn answer(
    broker: &Arc<Broker>,
    context: RequestContext,
    request: Request<'_>,
    out: &mut ResponseBuffer,
    encode: impl FnOnce(&RequestContext, Reply, &mut ResponseBuffer) -> Handled + Send + 'static,
) -> Handled {
    match broker.groups.ask(broker, &context, request) {
        Asked::Now(reply) => encode(&context, reply, out),
        Asked::Later(receiver) => {
            let response = Box::pin(async move {
                let mut out = ResponseBuffer::pooled();
                let reply = receiver.await.map_err(|_| "the coordinator ended".to_owned())?;
                encode(&context, reply, &mut out);
                Ok(out)
            });
            Handled::Later { response, holds: true }
        }
    }
}
