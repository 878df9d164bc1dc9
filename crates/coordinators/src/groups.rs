//! The group coordinator on the [driver](super::driver): its records go into `__consumer_offsets`.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_controller::{ResourceKind, TopicImage};
use mainstem_coordination::groups::{
    self, ConsumerGroupConfig, DuePatterns, GroupCoordinator, GroupTimes, LogEntry, MatchedPatterns,
    Producer, Reply, Request, RequestContext as GroupContext, Stats, Ticket, Token, TransactionEnd,
    VisibleTopics,
};
use mainstem_coordination::writes;
use mainstem_log::TransactionMarker;
use mainstem_records::LeaderEpoch;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;

use crate::broker::Broker;
use crate::coordinators::driver::{Coordinator, Driver, Effect, OnWritten};
use crate::net::context::{Operation, RequestContext, Resource, permits};
use crate::net::dispatch::Handled;
use crate::net::output::ResponseBuffer;
use mainstem_runtime::clock::Now;

/// The topic of groups and their offsets.
pub(crate) const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// The coordinator of all groups on this node.
pub(crate) type Groups = Driver<GroupCoordinator>;

/// A reply of the coordinator, now or later.
pub(crate) type Asked = super::driver::Asked<Reply>;

/// Groups by state, as the APIs spell them.
pub(crate) type StateCounts = BTreeMap<String, usize>;

impl Coordinator for GroupCoordinator {
    type Request<'a> = Request<'a>;
    type Reply = Reply;
    type Ticket = Ticket;
    type Other = std::convert::Infallible;

    const TOPIC: &'static str = OFFSETS_TOPIC;

    fn driver(broker: &Broker) -> &Driver<Self> {
        &broker.groups
    }

    fn step(&mut self, now: Now, token: Token, context: &RequestContext, request: Request<'_>) {
        let host = format!("/{}", context.connection.peer.ip().to_canonical());
        let from = GroupContext {
            api_version: context.version,
            client_id: context.client_id.as_deref().unwrap_or(""),
            client_host: &host,
            // Patterns are matched before, see `match_patterns`.
            visible: VisibleTopics::ALL,
        };
        GroupCoordinator::step(self, now, token, from, request);
    }

    fn effects(&mut self) -> Vec<Effect<Self>> {
        let effects = GroupCoordinator::effects(self).map(|effect| match effect {
            groups::Effect::Reply { token, reply } => Effect::Reply { token, reply },
            groups::Effect::Append { ticket, timestamp_ms, producer, records } => {
                Effect::Append { ticket, timestamp_ms, batch: writes::options_of(producer), records }
            }
        });
        effects.collect()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        GroupCoordinator::next_deadline_ms(self)
    }

    fn tick(&mut self, now: Now) {
        GroupCoordinator::tick(self, now);
    }

    fn appended(&mut self, now: Now, ticket: Ticket, outcome: Result<(), ErrorCode>) {
        GroupCoordinator::appended(self, now, ticket, outcome);
    }

    fn partition_of(ticket: Ticket) -> i32 {
        ticket.partition
    }

    fn partition_for(&self, key: &str) -> i32 {
        GroupCoordinator::partition_for(self, key)
    }

    fn set_partition_count(&mut self, count: i32) {
        GroupCoordinator::set_partition_count(self, count);
    }

    fn begin_load(&mut self, partition: i32, _leader_epoch: LeaderEpoch) {
        GroupCoordinator::begin_load(self, partition);
    }

    fn load(&mut self, now: Now, partition: i32, entry: LogEntry<'_>) -> u64 {
        GroupCoordinator::load(self, now, partition, Some(entry)).malformed
    }

    fn finish_load(&mut self, now: Now, partition: i32) {
        GroupCoordinator::finish_load(self, now, partition);
    }

    fn unload(&mut self, now: Now, partition: i32) {
        GroupCoordinator::unload(self, now, partition);
    }

    fn perform(_broker: &Arc<Broker>, other: Self::Other) {
        match other {}
    }
}

/// Matches patterns, on a thread that may take its time: against the topics that the sender of a request may describe.
pub(crate) fn match_patterns(context: &RequestContext, due: DuePatterns) -> MatchedPatterns {
    let may_describe = |topic: &str| permits(context, Operation::Describe, Resource::Topic(topic));
    due.matched(match context.connection.authorization {
        Some(_) => VisibleTopics::by(&may_describe),
        None => VisibleTopics::ALL,
    })
}

impl Groups {
    /// The topic patterns that have to be matched before the coordinator is asked about a heartbeat.
    pub(crate) fn patterns_due(
        &self,
        broker: &Broker,
        request: &ConsumerGroupHeartbeatRequest<'_>,
    ) -> Option<DuePatterns> {
        self.look(|coordinator| coordinator.patterns_due(broker.clock.now(), request))
    }

    /// How much the coordinator holds, and, unless there are more than so many groups, their states.
    pub(crate) fn counts(&self, groups_max: usize) -> (Stats, Option<StateCounts>) {
        self.look(|coordinator| {
            let stats = coordinator.stats();
            (stats, (stats.groups <= groups_max).then(|| coordinator.count_by_state()))
        })
    }

    /// Topics are there that were not, or have more partitions: members of consumer groups get their share.
    pub(crate) fn topics_changed(&self, topics: &[TopicImage]) {
        self.set(|coordinator| {
            for topic in topics {
                // No topic has more partitions than its index can say.
                let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
                coordinator.topic_changed(&topic.name, topic.id, count);
            }
        });
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
        self.set(|coordinator| coordinator.set_consumer_config(consumer));
    }

    /// A topic was deleted, and with it what groups have read of it.
    pub(crate) fn topic_deleted(&self, broker: &Arc<Broker>, topic: &str) {
        self.change(broker, |coordinator, now| coordinator.topic_deleted(now, topic));
    }

    /// Ends a producer's transaction in a partition of `__consumer_offsets`: its marker goes into the log, and its offsets
    /// are committed or gone when that is durable.
    pub(crate) fn end_transaction(
        &self,
        broker: &Arc<Broker>,
        partition: i32,
        marker: TransactionMarker,
        on_written: OnWritten,
    ) {
        let producer = Producer { id: marker.producer_id, epoch: marker.producer_epoch };
        let end = TransactionEnd { producer, committed: marker.committed };
        let begin = |coordinator: &mut GroupCoordinator, now| {
            coordinator.may_end_transaction(partition)?;
            coordinator.transaction_ended(now, partition, end).ok_or(ErrorCode::NOT_COORDINATOR)
        };
        self.write_marker(broker, marker, begin, on_written);
    }
}

/// Asks the coordinator and encodes its reply, now or later.
pub(crate) fn answer(
    broker: &Arc<Broker>,
    context: RequestContext,
    request: Request<'_>,
    out: &mut ResponseBuffer,
    encode: impl FnOnce(&RequestContext, Reply, &mut ResponseBuffer) -> Handled + Send + 'static,
) -> Handled {
    Groups::answer(broker, context, request, out, encode)
}
