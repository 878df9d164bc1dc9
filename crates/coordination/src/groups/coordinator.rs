//! The coordinator itself: routes requests, timers and append completions to the group that they concern.

mod invariants;
mod loading;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;

use mainstem_records::TransactionEnd;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::heartbeat_response::HeartbeatResponse;
use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::list_groups_response::ListGroupsResponse;
use mainstem_wire::messages::offset_commit_request::OffsetCommitRequest;
use mainstem_wire::messages::offset_delete_request::OffsetDeleteRequest;
use mainstem_wire::messages::sync_group_request::SyncGroupRequest;
use mainstem_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;
use mainstem_wire::{ErrorCode, Uuid};

use super::api::{Effect, Reply, Request, append_error};
use super::completion::Completion;
use super::config::GroupConfig;
use super::consumer::heartbeat::{Beat, JOIN};
use super::consumer::patterns::DuePatterns;
use super::consumer::refusal::Refusal;
use super::consumer::subscription::due_ahead;
use super::consumer::topics::ClusterTopics;
use super::consumer::{self, classic_member};
use super::deadlines::Deadlines;
use super::describe::{ListFilter, ListPart, ListPosition};
use super::group::{Group, Protocol};
use super::io::{Io, Usage, may_wait};
use super::join::Join;
use super::offset_fetch::{Fetch, Fetched};
use super::offsets::TopicNames;
use super::partition::partition_for;
use super::request_context::RequestContext;
use super::served::{Partition, PartitionContext};
use super::token::{Ticket, Token};
use super::{
    describe, heartbeat, join, leave, lifetime, offset_commit, offset_fetch, refused, removal, sync,
    txn_offset_commit,
};
use crate::time::Now;
use mainstem_config::ConsumerGroupConfig;

/// The group coordinator of one node. See the [module](super) for the contract.
#[derive(Debug)]
pub struct GroupCoordinator {
    config: GroupConfig,
    partitions: BTreeMap<i32, Partition>,
    effects: VecDeque<Effect>,
    deadlines: Deadlines,
    tickets: u64,
    topics: TopicNames,
    cluster: ClusterTopics,
    usage: Usage,
    /// The latest monotonic time seen.
    mono_ms: u64,
    /// The partition of the last request that was refused because that partition is being loaded.
    wanted: Option<i32>,
}

/// The sizes of the coordinator's state, for metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Groups of all served partitions.
    pub groups: usize,
    /// Members, and pending joins: clients that have been given a member id and have not rejoined.
    pub members: usize,
    /// Committed offsets.
    pub offsets: usize,
    /// Durable offsets of open transactions; they are committed when, and if, these are.
    pub pending_offsets: usize,
    /// Appends (and reads that wait for them) in flight.
    pub pending_appends: usize,
    /// Bytes of all of it, as counted against [`memory_bytes_max`](GroupConfig::memory_bytes_max).
    pub bytes: usize,
}

impl GroupCoordinator {
    /// A coordinator that serves no partition yet.
    pub fn new(config: GroupConfig) -> Self {
        Self {
            config,
            partitions: BTreeMap::new(),
            effects: VecDeque::new(),
            deadlines: Deadlines::default(),
            tickets: 0,
            topics: TopicNames::default(),
            cluster: ClusterTopics::default(),
            usage: Usage::default(),
            mono_ms: 0,
            wanted: None,
        }
    }

    /// Drains the work for the driver, oldest first.
    pub fn effects(&mut self) -> impl Iterator<Item = Effect> {
        self.effects.drain(..)
    }

    /// The monotonic time, in milliseconds, before which [`tick`](Self::tick) has nothing to do.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.next_ms()
    }

    /// Returns the sizes of the coordinator's state.
    pub fn stats(&self) -> Stats {
        let Usage { groups, members, offsets, pending_offsets, bytes, in_flight_bytes } = self.usage;
        let bytes = bytes + self.topics.bytes() + in_flight_bytes;
        let pending_appends = self.partitions.values().map(|partition| partition.appends.len()).sum();
        Stats { groups, members, offsets, pending_offsets, pending_appends, bytes }
    }

    /// Groups by state, as ListGroups spells them.
    pub fn count_by_state(&self) -> BTreeMap<String, usize> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        let loaded = self.partitions.values().filter(|partition| partition.service.loaded);
        for group in loaded.flat_map(|partition| partition.groups.values()).filter(|group| group.is_stored())
        {
            *counts.entry(group.state_name()).or_default() += 1;
        }
        counts.into_iter().map(|(state, count)| (state.to_owned(), count)).collect()
    }

    /// The partition of `__consumer_offsets` that a group lives in.
    pub fn partition_for(&self, group_id: &str) -> i32 {
        partition_for(group_id, self.config.offsets_topic_num_partitions)
    }

    /// Sets the real number of partitions of `__consumer_offsets`.
    ///
    /// # Panics
    /// If it is another number, and a partition is being served: its groups would be looked for elsewhere.
    pub fn set_partition_count(&mut self, count: i32) {
        if self.config.offsets_topic_num_partitions == count {
            return;
        }
        assert!(self.partitions.is_empty(), "{} partitions are served already", self.partitions.len());
        self.config.offsets_topic_num_partitions = count;
    }

    /// Serves a request. The one answer carries `token`.
    pub fn step(&mut self, now: Now, token: Token, context: RequestContext<'_>, request: Request<'_>) {
        match request {
            Request::JoinGroup { request, random } => {
                self.join_group(now, Join::new(token, context, &request, random));
            }
            Request::SyncGroup(request) => self.sync_group(now, token, &request),
            Request::Heartbeat(request) => self.heartbeat(now, token, &request),
            Request::LeaveGroup(request) => self.leave_group(now, token, context, &request),
            Request::OffsetCommit(request) => self.offset_commit(now, token, context, &request),
            Request::TxnOffsetCommit(request) => self.txn_offset_commit(now, token, context, &request),
            Request::OffsetFetch { group, require_stable } => {
                self.offset_fetch(now, token, context, group, require_stable);
            }
            Request::ListGroups { filter, after } => self.list_groups(token, &filter, after),
            Request::DescribeGroups(request) => self.describe_groups(token, context, &request),
            Request::DeleteGroup(id) => self.delete_group(now, token, id),
            Request::OffsetDelete(request) => self.offset_delete(now, token, &request),
            Request::ConsumerGroupHeartbeat { request, random, patterns } => {
                self.consumer_heartbeat(now, token, &Beat::new(&request, context, random, patterns.as_ref()));
            }
            Request::ConsumerGroupDescribe(request) => self.describe_consumers(token, &request),
        }
    }

    /// The topic patterns that a heartbeat of a consumer group would match now. A driver matches them before it gives the
    /// heartbeat to [`step`](Self::step), on a thread of its own and without the coordinator.
    pub fn patterns_due(&self, now: Now, request: &ConsumerGroupHeartbeatRequest<'_>) -> Option<DuePatterns> {
        let partition = self.served(&request.group_id).ok().filter(|_| request.member_epoch >= JOIN)?;
        let group = self.partitions[&partition].groups.get(&*request.group_id);
        let consumers = match group.map(|group| &group.protocol) {
            Some(Protocol::Consumer(group)) => Some(group),
            Some(Protocol::Classic(_)) | None => None,
        };
        let new = request.subscribed_topic_regex.as_deref().filter(|regex| !regex.is_empty());
        let now = Now { mono_ms: self.mono_ms.max(now.mono_ms), ..now };
        due_ahead(consumers, &self.cluster, &self.config, now, new)
    }

    /// Takes the outcome of an append, and releases the requests that wait for it alone. An error is that of the log or the replicator.
    pub fn appended(&mut self, now: Now, ticket: Ticket, outcome: Result<(), ErrorCode>) {
        let Some(PartitionContext { groups, mut io, .. }) = self.partition_context(now, ticket.partition)
        else {
            return;
        };
        let outcome = outcome.map_err(append_error);
        if let Err(error) = outcome {
            consumer::appended::failed(groups, &mut io, ticket.number, error);
        }
        io.appends.note(ticket.number, outcome);
        while let Some((completion, outcome)) = io.appends.next() {
            io.left_queue(&completion);
            completion.apply(groups, &mut io, outcome);
        }
    }

    /// Refuses the marker of a transaction in a partition if this coordinator cannot apply it now.
    ///
    /// # Errors
    /// NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, or COORDINATOR_NOT_AVAILABLE if too much is in flight. Kafka gives
    /// the coordinator of the transaction NOT_LEADER_OR_FOLLOWER in their place, on which it tries again.
    pub fn may_end_transaction(&mut self, partition: i32) -> Result<(), ErrorCode> {
        self.ready(partition).inspect_err(|error| self.note_wanted(partition, *error))?;
        let in_flight = &self.partitions[&partition].appends;
        if may_wait(in_flight, &self.config, &self.usage) {
            Ok(())
        } else {
            Err(ErrorCode::COORDINATOR_NOT_AVAILABLE)
        }
    }

    /// Takes the marker of a transaction. The marker is in the log of a partition behind all appends that this coordinator has requested so
    /// far: there is no other append between [`may_end_transaction`](Self::may_end_transaction), the append of the marker and this call.
    /// The driver reports by [`appended`](Self::appended) when the marker is durable; then the offsets of the producer are committed or
    /// dropped. Returns None if the partition is not served.
    pub fn transaction_ended(&mut self, now: Now, partition: i32, end: TransactionEnd) -> Option<Ticket> {
        let PartitionContext { service, mut io, .. } = self.partition_context(now, partition)?;
        service.loaded.then(|| io.enqueue(Completion::Ended(end)))
    }

    /// Handles every time-out that is due.
    pub fn tick(&mut self, now: Now) {
        self.mono_ms = self.mono_ms.max(now.mono_ms);
        while let Some((at, key)) = self.deadlines.pop(self.mono_ms) {
            let partition = key.partition();
            if let Some(mut context) = self.partition_context(now, partition) {
                context.fire(at, &key);
            }
        }
    }

    /// Adds a topic, or changes its number of partitions: consumer groups that subscribe to it get another target with the next heartbeat
    /// of a member. The driver calls this for every topic before it loads, and whenever one is created or grows.
    pub fn topic_changed(&mut self, topic: &str, id: Uuid, partitions: i32) {
        if self.cluster.put(topic, id, partitions) {
            self.look_again_at(topic);
        }
    }

    /// Makes consumer groups check a topic again.
    fn look_again_at(&mut self, topic: &str) {
        for group in self.partitions.values_mut().flat_map(|partition| partition.groups.values_mut()) {
            if let Protocol::Consumer(group) = &mut group.protocol {
                group.topics_changed |= group.is_subscribed_to(topic);
            }
        }
    }

    /// Sets the configuration of consumer groups. Members get their intervals with their next heartbeats.
    pub fn set_consumer_config(&mut self, config: ConsumerGroupConfig) {
        self.config.consumer = config;
    }

    /// Removes a topic that was deleted with its offsets, so that a new topic of the same name begins without them. Consumer groups remove
    /// it from their targets.
    pub fn topic_deleted(&mut self, now: Now, topic: &str) {
        if self.cluster.remove(topic) {
            self.look_again_at(topic);
        }
        let served: Vec<i32> = self.partitions.keys().copied().collect();
        for partition in served {
            if let Some(mut context) =
                self.partition_context(now, partition).filter(|context| context.service.loaded)
            {
                removal::forget_topic(context.groups, &mut context.io, topic);
            }
        }
    }

    /// The groups of a partition, for tests.
    #[cfg(test)]
    pub(super) fn groups(&self, partition: i32) -> &super::group::Groups {
        &self.partitions[&partition].groups
    }

    /// Time-outs that are set, for tests.
    #[cfg(test)]
    pub(super) fn deadline_count(&self) -> usize {
        self.deadlines.len()
    }

    /// Topic names that are held, for tests.
    #[cfg(test)]
    pub(super) fn topic_count(&self) -> usize {
        self.topics.len()
    }

    fn join_group(&mut self, now: Now, request: Join<'_>) {
        let (waiter, message) = (request.waiter, request.request);
        let (id, member) = (&*message.group_id, &*message.member_id);
        if let Err(error) = join::validate(&request, &self.config) {
            return self.reply(waiter.token, refused::join(member, error));
        }
        let PartitionContext { groups, mut io, .. } = match self.writer(now, id) {
            Ok(context) => context,
            Err(error) => return self.reply(waiter.token, refused::join("", error)),
        };
        let created = !groups.contains_key(id);
        if created {
            if let Err(error) = join::may_create(&io, member) {
                return io.reply(waiter.token, refused::join(member, error));
            }
            let id: Arc<str> = id.into();
            groups.insert(id.clone(), Group::new(id, now.wall_ms));
            io.usage.groups += 1;
        }
        let group = groups.get_mut(id).expect("it was there or put there");
        if group.converting {
            return classic_member::not_now(&mut io, waiter, member);
        }
        let Protocol::Classic(classic) = &mut group.protocol else {
            return classic_member::join(group, &mut io, &request);
        };
        join::join(classic, &mut io, request);
        io.recount(classic);
        if created && !join::write_created(classic, &mut io, waiter.token) {
            lifetime::drop_if_nothing(groups, &mut io, id);
        }
    }

    fn sync_group(&mut self, now: Now, token: Token, request: &SyncGroupRequest<'_>) {
        let context = named(&request.group_id).and_then(|id| self.writer(now, id));
        match context {
            Ok(PartitionContext { groups, mut io, .. }) => match groups.get_mut(&*request.group_id) {
                Some(group) if group.converting => {
                    io.reply(token, refused::sync(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
                }
                Some(Group { protocol: Protocol::Classic(classic), .. }) => {
                    sync::sync(classic, &mut io, token, request);
                }
                Some(Group { protocol: Protocol::Consumer(group), .. }) => {
                    classic_member::sync(group, &mut io, token, request);
                }
                None => io.reply(token, refused::sync(ErrorCode::UNKNOWN_MEMBER_ID)),
            },
            Err(error) => self.reply(token, refused::sync(error)),
        }
    }

    fn heartbeat(&mut self, now: Now, token: Token, request: &HeartbeatRequest<'_>) {
        let outcome = match named(&request.group_id).and_then(|id| self.owner(now, id)) {
            Ok(PartitionContext { groups, mut io, .. }) => match groups.get_mut(&*request.group_id) {
                Some(group) if group.converting => Ok(()),
                Some(Group { protocol: Protocol::Classic(classic), .. }) => {
                    heartbeat::heartbeat(classic, &mut io, request)
                }
                Some(Group { protocol: Protocol::Consumer(group), .. }) => {
                    classic_member::heartbeat(group, &mut io, request)
                }
                None => Err(ErrorCode::UNKNOWN_MEMBER_ID),
            },
            // Members of a group that is being loaded count as alive.
            Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS) => Ok(()),
            Err(error) => Err(error),
        };
        let error_code = outcome.err().unwrap_or(ErrorCode::NONE).0;
        self.reply(token, Reply::Heartbeat(HeartbeatResponse { error_code, ..Default::default() }));
    }

    fn leave_group(
        &mut self,
        now: Now,
        token: Token,
        context: RequestContext<'_>,
        request: &LeaveGroupRequest<'_>,
    ) {
        let version = context.api_version;
        match named(&request.group_id).and_then(|id| self.writer(now, id)) {
            Ok(PartitionContext { groups, mut io, .. }) => match groups.get_mut(&*request.group_id) {
                Some(group) if group.converting => {
                    io.reply(token, refused::leave(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS));
                }
                Some(group) if matches!(group.protocol, Protocol::Consumer(_)) => {
                    classic_member::leave(group, &mut io, token, version, request);
                }
                Some(group) => {
                    let classic = group.classic().expect("it was just looked at");
                    leave::leave(classic, &mut io, token, version, request);
                    io.recount(classic);
                }
                None => io.reply(token, leave::unknown_group(version, request)),
            },
            Err(error) => self.reply(token, refused::leave(error)),
        }
    }

    fn offset_commit(
        &mut self,
        now: Now,
        token: Token,
        context: RequestContext<'_>,
        request: &OffsetCommitRequest<'_>,
    ) {
        match self.writer(now, &request.group_id) {
            Ok(PartitionContext { groups, mut io, .. }) => {
                offset_commit::commit(groups, &mut io, token, context.api_version, request);
            }
            Err(error) => self.reply(token, offset_commit::refused(request, error)),
        }
    }

    fn txn_offset_commit(
        &mut self,
        now: Now,
        token: Token,
        context: RequestContext<'_>,
        request: &TxnOffsetCommitRequest<'_>,
    ) {
        let version = context.api_version;
        match named(&request.group_id).and_then(|id| self.writer(now, id)) {
            Ok(PartitionContext { groups, mut io, .. }) => {
                txn_offset_commit::commit(groups, &mut io, token, version, request);
            }
            Err(error) => {
                let refused = txn_offset_commit::refused(request, error, version);
                self.reply(token, Reply::TxnOffsetCommit(refused));
            }
        }
    }

    fn offset_fetch(
        &mut self,
        now: Now,
        token: Token,
        context: RequestContext<'_>,
        request: Fetch,
        require_stable: bool,
    ) {
        let version = context.api_version;
        match self.owner(now, &request.group_id) {
            Ok(PartitionContext { groups, mut io, .. }) => {
                if !require_stable || io.appends.is_empty() {
                    let answer = offset_fetch::fetch(groups, io.topics, request, require_stable);
                    io.reply(token, Reply::OffsetFetch(answer));
                } else if !io.may_wait() {
                    let error = ErrorCode::COORDINATOR_NOT_AVAILABLE;
                    io.reply(token, Reply::OffsetFetch(Fetched::refused(request, error, version)));
                } else {
                    io.wait(token, request);
                }
            }
            Err(error) => {
                self.reply(token, Reply::OffsetFetch(Fetched::refused(request, error, version)));
            }
        }
    }

    fn list_groups(&mut self, token: Token, filter: &ListFilter, after: Option<ListPosition>) {
        let mut part = ListPart { response: ListGroupsResponse::default(), looked_at: 0, next: None };
        if self.partitions.values().any(|partition| !partition.service.loaded) {
            part.response.error_code = ErrorCode::COORDINATOR_LOAD_IN_PROGRESS.0;
            return self.reply(token, Reply::ListGroups(part));
        }
        let first = after.as_ref().map_or(i32::MIN, |after| after.partition);
        for (&partition, served) in self.partitions.range(first..) {
            let after = after.as_ref().filter(|after| after.partition == partition).map(|after| &after.group);
            if let Some(last) = describe::list(&served.groups, filter, after, &mut part) {
                part.next = Some(ListPosition { partition, group: last });
                break;
            }
        }
        self.reply(token, Reply::ListGroups(part));
    }

    fn describe_groups(
        &mut self,
        token: Token,
        context: RequestContext<'_>,
        request: &DescribeGroupsRequest<'_>,
    ) {
        let describe = |id: &str| match self.served(id) {
            Ok(partition) => describe::describe(&self.partitions[&partition].groups, id, context.api_version),
            Err(error) => describe::refused(id, error),
        };
        let groups = distinct(&request.groups).map(describe).collect();
        self.reply(token, Reply::DescribeGroups(groups));
    }

    fn consumer_heartbeat(&mut self, now: Now, token: Token, beat: &Beat<'_>) {
        let valid = consumer::heartbeat::validate(beat, &self.config);
        let context = valid.and_then(|()| {
            let refusal = |error: ErrorCode| Refusal::new(error, error.message());
            self.writer(now, &beat.request.group_id).map_err(refusal)
        });
        match context {
            Ok(PartitionContext { groups, mut io, .. }) => {
                consumer::serve::heartbeat(groups, &mut io, token, beat)
            }
            Err(refusal) => self.reply(token, consumer::refusal::refused(refusal)),
        }
    }

    fn describe_consumers(&mut self, token: Token, request: &ConsumerGroupDescribeRequest<'_>) {
        let describe = |id: &str| match named(id).and_then(|id| self.served(id)) {
            Ok(partition) => {
                let groups = &self.partitions[&partition].groups;
                consumer::describe::describe(groups, &self.cluster, &self.config, id)
            }
            Err(error) => consumer::describe::refused(id, error, error.message().to_owned()),
        };
        let groups = distinct(&request.group_ids).map(describe).collect();
        self.reply(token, Reply::ConsumerGroupDescribe(groups));
    }

    fn delete_group(&mut self, now: Now, token: Token, id: &str) {
        match self.writer(now, id) {
            Ok(PartitionContext { groups, mut io, .. }) => removal::delete_group(groups, &mut io, token, id),
            Err(error) => self.reply(token, Reply::DeleteGroup(error)),
        }
    }

    fn offset_delete(&mut self, now: Now, token: Token, request: &OffsetDeleteRequest<'_>) {
        match named(&request.group_id).and_then(|id| self.writer(now, id)) {
            Ok(PartitionContext { groups, mut io, .. }) => {
                removal::delete_offsets(groups, &mut io, token, request)
            }
            Err(error) => self.reply(token, refused::offset_delete(error)),
        }
    }

    fn reply(&mut self, token: Token, reply: Reply) {
        self.effects.push_back(Effect::Reply { token, reply });
    }

    /// The partition of a group, if it is ours and loaded.
    fn served(&self, group_id: &str) -> Result<i32, ErrorCode> {
        let id = self.partition_for(group_id);
        self.ready(id).map(|()| id)
    }

    /// Refuses a partition that this node does not coordinate, or has not loaded.
    fn ready(&self, partition: i32) -> Result<(), ErrorCode> {
        match self.partitions.get(&partition) {
            Some(partition) if partition.service.loaded => Ok(()),
            Some(_) => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            None => Err(ErrorCode::NOT_COORDINATOR),
        }
    }

    /// The partition of a group, for a request that appends nothing.
    fn owner(&mut self, now: Now, group_id: &str) -> Result<PartitionContext<'_>, ErrorCode> {
        let partition = self.partition_for(group_id);
        self.ready(partition).inspect_err(|error| self.note_wanted(partition, *error))?;
        Ok(self.partition_context(now, partition).expect("it is served"))
    }

    /// The partition of a group, for a request that may append: the number of appends in flight is bounded.
    fn writer(&mut self, now: Now, group_id: &str) -> Result<PartitionContext<'_>, ErrorCode> {
        let context = self.owner(now, group_id)?;
        if context.io.may_wait() { Ok(context) } else { Err(ErrorCode::COORDINATOR_NOT_AVAILABLE) }
    }

    /// A partition's groups, and beside them everything that a handler needs.
    fn partition_context(&mut self, now: Now, partition: i32) -> Option<PartitionContext<'_>> {
        self.mono_ms = self.mono_ms.max(now.mono_ms);
        self.topics.release_late();
        let Partition { service, groups, appends, transactions } = self.partitions.get_mut(&partition)?;
        let io = Io {
            now: Now { mono_ms: self.mono_ms, ..now },
            partition,
            config: &self.config,
            cluster: &self.cluster,
            effects: &mut self.effects,
            deadlines: &mut self.deadlines,
            appends,
            transactions,
            tickets: &mut self.tickets,
            topics: &mut self.topics,
            usage: &mut self.usage,
        };
        Some(PartitionContext { service, groups, io })
    }
}

/// Names in their order, each once. A repeated name is answered once, so that an answer is no larger than the stored state.
fn distinct<'a>(names: &'a [Cow<'_, str>]) -> impl Iterator<Item = &'a str> {
    let mut seen = HashSet::new();
    names.iter().map(|name| &**name).filter(move |name| seen.insert(*name))
}

/// Groups of the membership APIs must have a name; offsets may be kept under the empty one, which DescribeGroups and
/// DeleteGroups take too, as in Kafka.
fn named(group_id: &str) -> Result<&str, ErrorCode> {
    if group_id.is_empty() { Err(ErrorCode::INVALID_GROUP_ID) } else { Ok(group_id) }
}
