//! Members of groups, of the consumer protocol (KIP-848) and of the classic one: they join, read from the committed offset, commit,
//! leave, die, and stall for longer than their session timeout.

mod classic;

use super::Cluster;
use super::calls::{Answer, Calls, Request};
use super::reading::fetch;
use super::{DATA_PARTITIONS, OFFSETS, TOPIC};
use crate::clients::At;
use crate::node::SESSION_TIMEOUT_MS;
use crate::world::World;
use mainstem_coordination::groups::{self, Reply, Token};
use mainstem_log::VerificationGuard;
use mainstem_replication::history::{Operation, Outcome};
use mainstem_wire::messages::consumer_group_heartbeat_request::{
    ConsumerGroupHeartbeatRequest, TopicPartitions,
};
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_commit_response::OffsetCommitResponse;
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use mainstem_wire::messages::offset_fetch_response::OffsetFetchResponseGroup;
use mainstem_wire::{ErrorCode, Uuid};
use std::collections::{BTreeMap, BTreeSet};

/// A group, its protocol, and the isolation level of its members.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    /// Its number in the history.
    pub(crate) number: u64,
    name: &'static str,
    committed_only: bool,
    is_classic: bool,
}

/// All groups with members. Number 3 is the group of the producer that processes records.
pub(crate) const GROUPS: [Group; 3] = [
    Group { number: 1, name: "readers", committed_only: false, is_classic: false },
    Group { number: 2, name: "readers-of-committed", committed_only: true, is_classic: false },
    Group { number: 4, name: "classic-readers", committed_only: true, is_classic: true },
];

/// Returns true if a group uses the classic protocol.
pub(crate) fn is_classic(name: &str) -> bool {
    GROUPS.iter().any(|group| group.is_classic && group.name == name)
}

/// Members of each group: one more than there are partitions.
const MEMBERS: usize = DATA_PARTITIONS + 1;
/// The process of the first member.
const FIRST_PROCESS: i32 = 20;
/// Time after which a request without an answer is sent again, in ms.
const ANSWER_MAX_MS: u64 = 900;
/// Delay of a member after a refusal, in ms.
const BACKOFF_MS: u64 = 40;
/// Time after an answered heartbeat in which no other member can own its partitions, in ms.
const OWNS_MS: u64 = SESSION_TIMEOUT_MS as u64 - 300;
/// Turns between two deaths or leaves of a member, on average, and its longest absence.
const LIFE_TURNS: u64 = 1_200;
const AWAY_MAX_MS: u64 = 4_000;
/// Turns between two stalls of a member, on average, and the longest stall.
const STALL_TURNS: u64 = 2_400;
const STALL_MAX_MS: u64 = 4_000;

const HEARTBEAT_VERSION: i16 = 1;
const COMMIT_VERSION: i16 = 9;
const FETCH_VERSION: i16 = 9;

/// All members of all groups, which subscribe to the topic of data with this id.
pub(crate) fn all(topic_id: Uuid) -> Vec<Member> {
    let of = |(at, group): (usize, Group)| {
        let process = move |number: usize| FIRST_PROCESS + (at * MEMBERS + number) as i32;
        (0..MEMBERS).map(move |number| Member::new(process(number), group, number, topic_id))
    };
    GROUPS.into_iter().enumerate().flat_map(of).collect()
}

/// Position of a member in a partition.
#[derive(Debug, Clone, Copy, Default)]
struct Position {
    /// Next offset to read; `None`: the committed offset is not fetched yet.
    next: Option<i64>,
    /// Last offset that it knows to be committed.
    committed: Option<i64>,
}

impl Position {
    fn uncommitted(&self) -> Option<i64> {
        self.next.filter(|next| Some(*next) != self.committed)
    }
}

/// A request that has no answer yet.
#[derive(Debug, Clone, Copy)]
struct Call {
    token: Token,
    what: What,
    sent_ms: u64,
    until_ms: u64,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// JoinGroup of a classic group.
    Join,
    /// SyncGroup of a classic group.
    Sync,
    Heartbeat,
    Leave,
    Fetch {
        partition: usize,
    },
    Commit {
        partition: usize,
        offset: i64,
    },
}

impl What {
    /// Timeout of the request. JoinGroup is answered when the other members have joined too.
    fn answer_max_ms(self) -> u64 {
        match self {
            What::Join => classic::REBALANCE_TIMEOUT_MS as u64 + ANSWER_MAX_MS,
            _ => ANSWER_MAX_MS,
        }
    }
}

/// Protocol of a member, with its state.
#[derive(Debug)]
enum Protocol {
    Consumer {
        /// The next heartbeat carries all fields, with the owned partitions.
        tells: bool,
    },
    Classic(classic::Membership),
}

/// A member of a group.
#[derive(Debug)]
pub(crate) struct Member {
    process: i32,
    pub(crate) group: Group,
    /// The id of the topic that it subscribes to.
    topic_id: Uuid,
    /// Number of its current life: it comes back as another member.
    life: u32,
    protocol: Protocol,
    /// Member epoch, or in a classic group the generation.
    epoch: i32,
    assigned: BTreeSet<usize>,
    positions: BTreeMap<usize, Position>,
    call: Option<Call>,
    heartbeat_at_ms: u64,
    /// Time at which the last answered heartbeat was sent.
    heard_ms: u64,
    pause_until_ms: u64,
    away_until_ms: Option<u64>,
    stalled_until_ms: u64,
    /// After a stall it commits first, before it learns what it has missed.
    commits_first: bool,
    is_stopped: bool,
}

impl Member {
    fn new(process: i32, group: Group, number: usize, topic_id: Uuid) -> Member {
        let protocol = match group.is_classic {
            true => Protocol::Classic(classic::Membership::new(&group, number)),
            false => Protocol::Consumer { tells: true },
        };
        Member {
            process,
            group,
            topic_id,
            life: 1,
            protocol,
            epoch: 0,
            assigned: BTreeSet::new(),
            positions: BTreeMap::new(),
            call: None,
            heartbeat_at_ms: 0,
            heard_ms: 0,
            pause_until_ms: 0,
            away_until_ms: None,
            stalled_until_ms: 0,
            commits_first: false,
            is_stopped: false,
        }
    }

    /// Stops it: it sends no request and reads no record any more.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns true if it owns a partition, and has read it and committed up to `end`.
    pub(crate) fn has_committed(&self, partition: usize, end: i64) -> bool {
        let position = self.positions.get(&partition);
        self.assigned.contains(&partition)
            && position.is_some_and(|at| at.next == Some(end) && at.committed == Some(end))
    }

    fn id(&self) -> String {
        match &self.protocol {
            Protocol::Consumer { .. } => format!("member-{}-{}", self.process, self.life),
            Protocol::Classic(membership) => membership.id.clone(),
        }
    }

    /// Drops all its partitions, and joins as a new member.
    fn rejoin(&mut self) {
        self.assigned.clear();
        self.positions.clear();
        (self.epoch, self.heartbeat_at_ms) = (0, 0);
        match &mut self.protocol {
            Protocol::Consumer { tells } => *tells = true,
            Protocol::Classic(membership) => membership.begin_as_new(),
        }
    }

    /// Has its next heartbeat carry all fields, in the consumer protocol.
    fn tell_all(&mut self) {
        if let Protocol::Consumer { tells } = &mut self.protocol {
            *tells = true;
        }
    }

    fn tells(&self) -> bool {
        matches!(self.protocol, Protocol::Consumer { tells: true })
    }

    fn back_off(&mut self, now_ms: u64) {
        self.pause_until_ms = now_ms + BACKOFF_MS;
        self.heartbeat_at_ms = now_ms + BACKOFF_MS;
    }

    fn go_away(&mut self, until_ms: u64) {
        self.rejoin();
        self.life += 1;
        (self.call, self.away_until_ms, self.commits_first) = (None, Some(until_ms), false);
    }

    /// A partition that it still reads, and that is not assigned to it any more.
    fn revoked(&self) -> Option<usize> {
        self.positions.keys().copied().find(|partition| !self.assigned.contains(partition))
    }

    fn heartbeat(&self, epoch: i32) -> groups::Request<'static> {
        let owned = self.positions.keys().map(|partition| *partition as i32).collect::<Vec<_>>();
        let topics = TopicPartitions { topic_id: self.topic_id, partitions: owned, ..Default::default() };
        let owned: Vec<_> = (!topics.partitions.is_empty()).then_some(topics).into_iter().collect();
        let tells = self.tells() && epoch >= 0;
        let request = ConsumerGroupHeartbeatRequest {
            group_id: self.group.name.into(),
            member_id: self.id().into(),
            member_epoch: epoch,
            rebalance_timeout_ms: if tells { SESSION_TIMEOUT_MS } else { -1 },
            subscribed_topic_names: tells.then(|| vec![TOPIC.into()]),
            topic_partitions: tells.then_some(owned),
            ..Default::default()
        };
        groups::Request::ConsumerGroupHeartbeat { request, random: [0; 16], patterns: None }
    }

    fn offset_fetch(&self, partition: usize) -> groups::Request<'static> {
        let topic = OffsetFetchRequestTopics {
            name: TOPIC.into(),
            partition_indexes: vec![partition as i32],
            ..Default::default()
        };
        let is_consumer = matches!(self.protocol, Protocol::Consumer { .. });
        let group = OffsetFetchRequestGroup {
            group_id: self.group.name.into(),
            member_id: is_consumer.then(|| self.id().into()),
            member_epoch: if is_consumer { self.epoch } else { -1 },
            topics: Some(vec![topic]),
            ..Default::default()
        };
        groups::Request::OffsetFetch { group, require_stable: true }
    }

    fn offset_commit(&self, partition: usize, offset: i64) -> groups::Request<'static> {
        let partition = OffsetCommitRequestPartition {
            partition_index: partition as i32,
            committed_offset: offset,
            ..Default::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        };
        let instance = match &self.protocol {
            Protocol::Consumer { .. } => None,
            Protocol::Classic(membership) => membership.instance.clone(),
        };
        groups::Request::OffsetCommit(OffsetCommitRequest {
            group_id: self.group.name.into(),
            generation_id_or_member_epoch: self.epoch,
            member_id: self.id().into(),
            group_instance_id: instance.map(Into::into),
            topics: vec![topic],
            ..Default::default()
        })
    }

    /// Its next request, if one is due.
    fn next_question(&self, world: &mut World) -> Option<What> {
        if let Some(commit) = self.next_commit().filter(|_| self.commits_first) {
            return Some(commit);
        }
        if let Some(partition) = self.revoked() {
            let offset = self.positions.get(&partition).and_then(Position::uncommitted);
            return offset.map(|offset| What::Commit { partition, offset });
        }
        if let Protocol::Classic(membership) = &self.protocol
            && let Some(what) = membership.next_question()
        {
            return Some(what);
        }
        if world.now_ms >= self.heartbeat_at_ms || self.tells() {
            return Some(What::Heartbeat);
        }
        let unknown = self.positions.iter().find(|(_, at)| at.next.is_none());
        if let Some((partition, _)) = unknown {
            return Some(What::Fetch { partition: *partition });
        }
        self.next_commit().filter(|_| world.random.chance(4))
    }

    fn next_commit(&self) -> Option<What> {
        let mut positions = self.positions.iter();
        let (partition, offset) = positions.find_map(|(of, at)| Some((*of, at.uncommitted()?)))?;
        Some(What::Commit { partition, offset })
    }

    /// Returns true if it is away, or leaves or dies in this turn.
    fn is_away(&mut self, world: &mut World, calls: &mut Calls, may_go: bool) -> bool {
        if let Some(until_ms) = self.away_until_ms {
            if world.now_ms < until_ms {
                return true;
            }
            self.away_until_ms = None;
        }
        let goes = may_go && world.random.below(LIFE_TURNS) == 0;
        if goes {
            if world.random.chance(50) && self.can_leave() {
                self.ask(world, calls, What::Leave);
            }
            let until_ms = world.now_ms + 100 + world.random.below(AWAY_MAX_MS);
            self.go_away(until_ms);
        }
        goes
    }

    /// A static member does not leave, and a member without an id cannot.
    fn can_leave(&self) -> bool {
        match &self.protocol {
            Protocol::Consumer { .. } => true,
            Protocol::Classic(membership) => membership.instance.is_none() && !membership.id.is_empty(),
        }
    }

    /// Returns true if it stalls, or begins to in this turn.
    fn is_stalled(&mut self, world: &mut World, may_stall: bool) -> bool {
        if world.now_ms < self.stalled_until_ms {
            return true;
        }
        let stalls = may_stall && world.random.below(STALL_TURNS) == 0;
        if stalls {
            self.stalled_until_ms = world.now_ms + 100 + world.random.below(STALL_MAX_MS);
            self.commits_first = true;
        }
        stalls
    }

    fn ask(&mut self, world: &mut World, calls: &mut Calls, what: What) {
        // Mostly the leader of the newest term, sometimes any node.
        let node = match world.random.chance(92) {
            true => world.leader(OFFSETS),
            false => Some(world.random.below(world.nodes.len() as u64) as usize),
        };
        let Some(node) = node else { return };
        let (version, request) = match (what, &self.protocol) {
            (What::Fetch { partition }, _) => (FETCH_VERSION, self.offset_fetch(partition)),
            (What::Commit { partition, offset }, _) => {
                (COMMIT_VERSION, self.offset_commit(partition, offset))
            }
            (what, Protocol::Classic(membership)) => membership.request(&self.group, self.epoch, what),
            (What::Leave, _) => (HEARTBEAT_VERSION, self.heartbeat(-1)),
            (What::Heartbeat | What::Join | What::Sync, _) => (HEARTBEAT_VERSION, self.heartbeat(self.epoch)),
        };
        match what {
            What::Fetch { partition } => {
                self.note(world, Operation::Committed, Outcome::Invoke, (partition, -1))
            }
            What::Commit { partition, offset } => {
                self.note(world, Operation::Commit, Outcome::Invoke, (partition, offset));
                self.commits_first = false;
            }
            What::Heartbeat | What::Leave | What::Join | What::Sync => {}
        }
        let (sent_ms, until_ms) = (world.now_ms, world.now_ms + what.answer_max_ms());
        let request = Request::Groups { request, version, guard: VerificationGuard::NONE };
        let token = calls.ask(world.transit(), node, request);
        self.call = Some(Call { token, what, sent_ms, until_ms });
    }

    fn note(
        &self,
        world: &mut World,
        operation: Operation,
        outcome: Outcome,
        (partition, offset): (usize, i64),
    ) {
        world.note(self.process, operation, outcome, At::new(partition, offset, self.group.number));
    }

    /// Reads the partitions of which it knows its position.
    fn poll(&mut self, world: &mut World) {
        for partition in self.assigned.iter().copied() {
            let Some(Position { next: Some(next), .. }) = self.positions.get(&partition).copied() else {
                continue;
            };
            if !world.random.chance(15) {
                continue;
            }
            let node = match world.random.chance(80) {
                true => world.leader(partition),
                false => Some(world.random.below(world.nodes.len() as u64) as usize),
            };
            let Some(node) = node.filter(|node| world.nodes[*node].partition(partition).is_some()) else {
                continue;
            };
            let next = world.position_at(node, self.process, partition, next);
            let committed_only = self.group.committed_only;
            let fetched = world.nodes[node].with_log(partition, |log| fetch(log, next, committed_only));
            let Some(fetched) = fetched else { continue };
            let operation =
                if self.group.committed_only { Operation::ReadCommitted } else { Operation::Read };
            for (offset, value) in fetched.records {
                world.note(self.process, operation, Outcome::Ok, At::new(partition, offset, value));
            }
            if let Some(position) = self.positions.get_mut(&partition) {
                position.next = Some(fetched.next);
            }
        }
    }
}

impl Cluster {
    /// Members take their answers, send their next requests, and read.
    pub(crate) fn turn_members(&mut self) {
        for number in 0..self.members.len() {
            if !self.members[number].is_stopped {
                self.turn_member(number);
            }
        }
    }

    fn turn_member(&mut self, number: usize) {
        let (world, calls) = (&mut self.world, &mut self.calls);
        let member = &mut self.members[number];
        let is_lively = !self.producers.is_stopped();
        if member.is_away(world, calls, is_lively && member.call.is_none()) {
            return;
        }
        if member.is_stalled(world, is_lively) {
            return;
        }
        if let Some(call) = member.call {
            match calls.take(call.token) {
                Some(answer) => {
                    member.call = None;
                    self.answer_member(number, call, answer);
                }
                None if world.now_ms >= call.until_ms => {
                    calls.forget(call.token);
                    member.call = None;
                    self.answer_member(number, call, Answer::Gone);
                }
                None => {}
            }
        }
        let (world, calls) = (&mut self.world, &mut self.calls);
        let member = &mut self.members[number];
        if member.call.is_none() && world.now_ms >= member.pause_until_ms {
            match member.next_question(world) {
                Some(what) => member.ask(world, calls, what),
                None => {
                    // Everything read of the revoked partition is committed: it is released now.
                    if let Some(partition) = member.revoked() {
                        member.positions.remove(&partition);
                        member.tell_all();
                    }
                }
            }
        }
        member.poll(world);
    }

    fn answer_member(&mut self, number: usize, call: Call, answer: Answer) {
        let now_ms = self.world.now_ms;
        let member = &mut self.members[number];
        let reply = match answer {
            Answer::Groups(reply) => Ok(reply),
            Answer::Gone | Answer::Transactions(_) => Err(()),
        };
        match (call.what, reply) {
            (What::Heartbeat, Ok(Reply::ConsumerGroupHeartbeat(response))) => {
                member.take_heartbeat(&response, call.sent_ms, now_ms);
            }
            (What::Join | What::Sync | What::Heartbeat, Ok(reply)) => {
                let done = member.take_classic(&reply, call.sent_ms, now_ms);
                done.into_iter().for_each(|name| self.done.add(name));
            }
            (What::Join | What::Sync | What::Heartbeat | What::Leave, _) => {
                // The lost answer may have changed its assignment.
                member.tell_all();
                member.miss(call.what, now_ms);
            }
            (What::Fetch { partition }, Ok(Reply::OffsetFetch(response))) => {
                self.take_fetch(number, partition, &response.response());
            }
            (What::Commit { partition, offset }, Ok(Reply::OffsetCommit(response))) => {
                self.take_commit(number, (partition, offset), &response);
            }
            (What::Fetch { .. }, _) => member.pause_until_ms = now_ms + BACKOFF_MS,
            (What::Commit { partition, offset }, _) => {
                member.note(&mut self.world, Operation::Commit, Outcome::Info, (partition, offset));
                member.pause_until_ms = now_ms + BACKOFF_MS;
            }
        }
    }

    fn take_fetch(&mut self, number: usize, partition: usize, response: &OffsetFetchResponseGroup<'_>) {
        let now_ms = self.world.now_ms;
        let member = &mut self.members[number];
        let found = response.topics.iter().flat_map(|topic| &topic.partitions).next();
        let found = found.filter(|found| response.error_code == 0 && found.error_code == 0);
        let Some(found) = found else {
            // It may not be a member any more. The next heartbeat shows that.
            member.pause_until_ms = now_ms + BACKOFF_MS;
            member.heartbeat_at_ms = member.heartbeat_at_ms.min(now_ms + BACKOFF_MS);
            return;
        };
        let offset = found.committed_offset;
        member.note(&mut self.world, Operation::Committed, Outcome::Ok, (partition, offset));
        // Another member may have the partition by now.
        if now_ms >= member.heard_ms + OWNS_MS || !member.assigned.contains(&partition) {
            return;
        }
        let Some(position) = member.positions.get_mut(&partition) else { return };
        let next = offset.max(0);
        *position = Position { next: Some(next), committed: (offset >= 0).then_some(offset) };
        member.note(&mut self.world, Operation::Assign, Outcome::Ok, (partition, next));
    }

    fn take_commit(
        &mut self,
        number: usize,
        (partition, offset): (usize, i64),
        response: &OffsetCommitResponse<'_>,
    ) {
        let member = &mut self.members[number];
        let codes = response.topics.iter().flat_map(|topic| &topic.partitions);
        let error = codes.map(|partition| ErrorCode(partition.error_code)).next().unwrap_or(ErrorCode::NONE);
        match error {
            ErrorCode::NONE => {
                member.note(&mut self.world, Operation::Commit, Outcome::Ok, (partition, offset));
                if let Some(position) = member.positions.get_mut(&partition) {
                    position.committed = Some(offset);
                }
                let group = member.group.number;
                self.serve("offset committed", group);
            }
            error if member.group.is_classic && classic::refuses_commit(error) => {
                member.note(&mut self.world, Operation::Commit, Outcome::Fail, (partition, offset));
                let done = member.take_refused_commit(error, self.world.now_ms);
                self.done.add("classic commit refused");
                done.into_iter().for_each(|name| self.done.add(name));
            }
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH | ErrorCode::GROUP_ID_NOT_FOUND => {
                member.note(&mut self.world, Operation::Commit, Outcome::Fail, (partition, offset));
                member.rejoin();
            }
            ErrorCode::STALE_MEMBER_EPOCH => {
                member.note(&mut self.world, Operation::Commit, Outcome::Fail, (partition, offset));
                member.tell_all();
                member.heartbeat_at_ms = 0;
                // It drops a partition that it may not commit any more.
                if !member.assigned.contains(&partition) {
                    member.positions.remove(&partition);
                }
            }
            _ => {
                member.note(&mut self.world, Operation::Commit, Outcome::Info, (partition, offset));
                member.pause_until_ms = self.world.now_ms + BACKOFF_MS;
            }
        }
    }
}

impl Member {
    fn take_heartbeat(&mut self, response: &ConsumerGroupHeartbeatResponse<'_>, sent_ms: u64, now_ms: u64) {
        match ErrorCode(response.error_code) {
            ErrorCode::NONE => {}
            ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::FENCED_MEMBER_EPOCH => return self.rejoin(),
            _ => {
                self.tell_all();
                return self.back_off(now_ms);
            }
        }
        (self.epoch, self.heard_ms) = (response.member_epoch, sent_ms);
        self.protocol = Protocol::Consumer { tells: false };
        self.heartbeat_at_ms = now_ms + u64::try_from(response.heartbeat_interval_ms).unwrap_or(0);
        let Some(assignment) = &response.assignment else { return };
        let partitions = assignment.topic_partitions.iter().flat_map(|topic| &topic.partitions);
        self.assigned = partitions.map(|index| *index as usize).collect();
        for partition in self.assigned.clone() {
            self.positions.entry(partition).or_default();
        }
    }
}
