//! The group coordinator on the [driver](super::driver): its records go into `__consumer_offsets`.

use std::collections::BTreeMap;

use mainstem_controller::{MetadataImage, ResourceKind, TopicImage};
use mainstem_coordination::groups::{
    self, ConsumerGroupConfig, DuePatterns, GroupCoordinator, GroupTimes, LogEntry, Producer, Reply, Request,
    RequestContext as GroupContext, Stats, Ticket, Token, TransactionEnd, VisibleTopics,
};
use mainstem_coordination::writes;
use mainstem_log::TransactionMarker;
use mainstem_records::LeaderEpoch;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;

use mainstem_config::BrokerConfig;
use mainstem_runtime::clock::Now;

use crate::driver::{Coordinator, Driver, Effect, OnWritten, RequestOrigin};

/// The topic of groups and their offsets.
pub const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// The coordinator of all groups on this node.
pub type Groups = Driver<GroupCoordinator>;

/// A reply of the coordinator, now or later.
pub type Asked = crate::driver::Asked<Reply>;

/// Groups by state, as the APIs spell them.
pub type StateCounts = BTreeMap<String, usize>;

impl Coordinator for GroupCoordinator {
    type Request<'a> = Request<'a>;
    type Reply = Reply;
    type Ticket = Ticket;
    type Other = std::convert::Infallible;

    const TOPIC: &'static str = OFFSETS_TOPIC;

    fn step(&mut self, now: Now, token: Token, origin: &RequestOrigin<'_>, request: Request<'_>) {
        let host = format!("/{}", origin.address.to_canonical());
        let from = GroupContext {
            api_version: origin.version,
            client_id: origin.client_id,
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

    fn begin_load(&mut self, partition: i32, _leader_epoch: LeaderEpoch) -> Self {
        GroupCoordinator::begin_load(self, partition)
    }

    fn load(&mut self, now: Now, partition: i32, entry: LogEntry<'_>) -> u64 {
        GroupCoordinator::load(self, now, partition, Some(entry)).malformed
    }

    fn finish_load(&mut self, now: Now, partition: i32, loader: Self) {
        GroupCoordinator::finish_load(self, now, partition, loader);
    }

    fn take_wanted(&mut self) -> Option<i32> {
        GroupCoordinator::take_wanted(self)
    }

    fn unload(&mut self, now: Now, partition: i32) {
        GroupCoordinator::unload(self, now, partition);
    }

    fn check(&self) {
        GroupCoordinator::check(self);
    }
}

impl Groups {
    /// The topic patterns that have to be matched before the coordinator is asked about a heartbeat.
    pub fn patterns_due(&self, request: &ConsumerGroupHeartbeatRequest<'_>) -> Option<DuePatterns> {
        self.look(|coordinator| coordinator.patterns_due(self.clock().now(), request))
    }

    /// Returns the sizes of the coordinator's state, and the states of groups if there are at most `groups_max`.
    pub fn counts(&self, groups_max: usize) -> (Stats, Option<StateCounts>) {
        self.look(|coordinator| {
            let stats = coordinator.stats();
            (stats, (stats.groups <= groups_max).then(|| coordinator.count_by_state()))
        })
    }

    /// Reports topics that were created or have more partitions: members of consumer groups get new assignments.
    pub fn topics_changed(&self, topics: &[TopicImage]) {
        self.set(|coordinator| {
            for topic in topics {
                // The index of a partition is an i32.
                let count = i32::try_from(topic.partitions.len()).unwrap_or(i32::MAX);
                coordinator.topic_changed(&topic.name, topic.id, count);
            }
        });
    }

    /// Applies the configuration of consumer groups, and that of single groups in the metadata.
    pub fn reconfigure(&self, config: &BrokerConfig, image: &MetadataImage) {
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
        self.set(|coordinator| coordinator.set_consumer_config(consumer));
    }

    /// Reports a deleted topic: its committed offsets are removed.
    pub fn topic_deleted(&self, topic: &str) {
        self.change(|coordinator, now| coordinator.topic_deleted(now, topic));
    }

    /// Ends a producer's transaction in a partition of `__consumer_offsets`: its marker is appended, and its offsets are committed or
    /// dropped when that is durable.
    pub fn end_transaction(&self, partition: i32, marker: TransactionMarker, on_written: OnWritten) {
        let producer = Producer { id: marker.producer_id, epoch: marker.producer_epoch };
        let end = TransactionEnd { producer, committed: marker.committed };
        let begin = |coordinator: &mut GroupCoordinator, now| {
            coordinator.may_end_transaction(partition)?;
            coordinator.transaction_ended(now, partition, end).ok_or(ErrorCode::NOT_COORDINATOR)
        };
        self.write_marker(marker, begin, on_written);
    }
}
