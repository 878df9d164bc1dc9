//! The state of one group of the classic protocol, and the rules that depend on that state alone.
//!
//! Changes by requests and time-outs are in [`join`](super::join), [`rebalance`](super::rebalance), [`sync`](super::sync),
//! [`heartbeat`](super::heartbeat) and [`leave`](super::leave).

mod invariants;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mainstem_wire::ErrorCode;

use super::deadlines::Timer;
use super::member::{Member, MemberId, Protocol};
use super::members::Members;
use super::{memory, subscription};

/// The protocol type of consumers; the coordinator reads their subscriptions to know which offsets are in use.
const CONSUMER: &str = "consumer";

/// The states of a classic group. See [`super`] for the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum State {
    /// No members. It may have offsets and pending joins.
    Empty,
    /// Waits until all members have (re)joined.
    PreparingRebalance,
    /// Waits for the leader's assignment and until it is durable.
    CompletingRebalance,
    /// Every member may have its assignment.
    Stable,
    /// Its deletion is being written.
    Dead,
}

impl State {
    /// As Kafka shows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }
}

/// The two ways in which the phase of joining ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinPhase {
    /// An empty group's first rebalance: it is held open by `group.initial.rebalance.delay.ms` at a time while new
    /// members come, up to the rebalance time-out.
    Initial { delay_ms: i32, remaining_ms: i32 },
    /// It ends as soon as all members have rejoined, or at the rebalance time-out.
    Rebalance,
}

/// A group of the classic protocol.
#[derive(Debug)]
pub(crate) struct ClassicGroup {
    pub(crate) id: Arc<str>,
    pub(crate) state: State,
    pub(crate) generation: i32,
    /// None for a group that only stores offsets.
    pub(crate) protocol_type: Option<Box<str>>,
    pub(crate) protocol_name: Option<Box<str>>,
    pub(crate) leader: Option<MemberId>,
    /// Wall clock milliseconds of the last change of state; None when a record of an old schema did not say.
    pub(crate) state_timestamp_ms: Option<i64>,
    pub(crate) members: Members<Member>,
    /// Instance id to member id (KIP-345).
    pub(crate) static_members: HashMap<Arc<str>, MemberId>,
    /// Pending joins: clients that were given their member id and have not rejoined (KIP-394).
    pub(crate) pending_joins: BTreeMap<MemberId, Option<Timer>>,
    pub(crate) pending_syncs: BTreeSet<MemberId>,
    pub(crate) phase: JoinPhase,
    /// A member came since the initial delay last began.
    pub(crate) new_member_added: bool,
    pub(crate) join_timer: Option<Timer>,
    pub(crate) sync_timer: Option<Timer>,
    /// None if they cannot be known: other protocol types, or metadata that does not parse.
    pub(crate) subscribed_topics: Option<BTreeSet<Box<str>>>,
    /// The leader's assignment of this generation is being written.
    pub(crate) assignment_pending: bool,
    /// Appends of this group's own record in flight.
    pub(crate) pending_writes: usize,
    /// The group's own record is durable.
    pub(crate) stored: bool,
    /// The number of members that offer a protocol, by its name.
    offered: HashMap<Box<str>, usize>,
    /// Accounted bytes of members and of pending joins.
    member_bytes: usize,
    /// Accounted bytes of `subscribed_topics`.
    topic_bytes: usize,
    /// Accounted bytes of the group when it was last added to the totals.
    pub(crate) counted: usize,
}

impl ClassicGroup {
    /// A group without members.
    pub(crate) fn new(id: Arc<str>, wall_ms: i64) -> Self {
        Self {
            id,
            state: State::Empty,
            generation: 0,
            protocol_type: None,
            protocol_name: None,
            leader: None,
            state_timestamp_ms: Some(wall_ms),
            members: Members::default(),
            static_members: HashMap::new(),
            pending_joins: BTreeMap::new(),
            pending_syncs: BTreeSet::new(),
            phase: JoinPhase::Rebalance,
            new_member_added: false,
            join_timer: None,
            sync_timer: None,
            subscribed_topics: None,
            assignment_pending: false,
            pending_writes: 0,
            stored: false,
            offered: HashMap::new(),
            member_bytes: 0,
            topic_bytes: 0,
            counted: 0,
        }
    }

    /// Begins again without members.
    pub(crate) fn reset(&mut self, wall_ms: i64) {
        *self = Self { counted: self.counted, ..Self::new(self.id.clone(), wall_ms) };
    }

    /// Returns the accounted bytes of the group, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        let protocol_type = self.protocol_type.as_deref().map_or(0, str::len);
        memory::GROUP + self.id.len() + protocol_type + self.topic_bytes + self.member_bytes
    }

    /// Adds a pending join: a client was given its member id and has to rejoin before the time-out.
    pub(crate) fn add_pending_join(&mut self, id: MemberId, timer: Option<Timer>) {
        self.member_bytes += memory::pending_join(&id);
        self.pending_joins.insert(id, timer);
    }

    /// Removes a pending join; the time-out is the caller's to cancel.
    pub(crate) fn remove_pending_join(&mut self, id: &str) -> Option<(MemberId, Option<Timer>)> {
        let removed = self.pending_joins.remove_entry(id)?;
        self.member_bytes -= memory::pending_join(id);
        Some(removed)
    }

    /// Gives a member its assignment, if the member is still there.
    pub(crate) fn assign(&mut self, id: &str, assignment: Arc<[u8]>) {
        if let Some(member) = self.members.get_mut(id) {
            self.member_bytes = self.member_bytes - member.assignment.len() + assignment.len();
            member.assignment = assignment;
        }
    }

    /// Takes the assignments of all members away.
    pub(crate) fn clear_assignments(&mut self) {
        for member in self.members.values_mut() {
            self.member_bytes -= member.assignment.len();
            member.assignment = Arc::from([]);
        }
    }

    /// Moves to another state; the time of it goes into the group's record.
    pub(crate) fn transition_to(&mut self, state: State, wall_ms: i64) {
        self.state = state;
        self.state_timestamp_ms = Some(wall_ms);
        self.assignment_pending = false;
    }

    pub(crate) fn is_leader(&self, member: &str) -> bool {
        self.leader.as_deref() == Some(member)
    }

    /// Returns true if a rebalance may begin in this state.
    pub(crate) fn can_rebalance(&self) -> bool {
        matches!(self.state, State::Empty | State::CompletingRebalance | State::Stable)
    }

    /// Members whose JoinGroup waits.
    pub(crate) fn awaiting_join(&self) -> usize {
        self.members.values().filter(|member| member.awaiting_join.is_some()).count()
    }

    pub(crate) fn all_have_joined(&self) -> bool {
        self.pending_joins.is_empty() && self.members.values().all(|member| member.awaiting_join.is_some())
    }

    /// The longest rebalance time-out of the members, in milliseconds.
    pub(crate) fn rebalance_timeout_ms(&self) -> i32 {
        self.members.values().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0).max(0)
    }

    pub(crate) fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER)
    }

    /// Returns true if members may be reading this topic; unknown subscriptions of consumers count as all topics.
    pub(crate) fn is_subscribed_to(&self, topic: &str) -> bool {
        match &self.subscribed_topics {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    /// Returns true if a member with these protocols fits in: it shares at least one with all the others.
    pub(crate) fn supports(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if self.state == State::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| self.is_offered_by_all(&protocol.name))
    }

    fn is_offered_by_all(&self, protocol: &str) -> bool {
        self.offered.get(protocol).copied().unwrap_or(0) == self.members.len()
    }

    /// Adds a member; it must fit in ([`supports`](Self::supports)) and be unknown.
    pub(crate) fn add(&mut self, protocol_type: &str, member: Member) {
        assert!(!self.members.contains_key(&member.id), "member {} is added twice to {}", member.id, self.id);
        if self.members.is_empty() {
            self.protocol_type = Some(protocol_type.into());
        }
        if let Some(instance) = &member.instance_id {
            let known = self.static_members.insert(instance.clone(), member.id.clone());
            assert!(known.is_none(), "instance {instance} of {} is taken by {known:?}", self.id);
        }
        if self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        self.count_protocols(&member.protocols, true);
        self.member_bytes += memory::member(&member);
        self.members.insert(member.id.clone(), member);
    }

    /// Removes a member; if it was the leader, the next one becomes the leader. The caller ends its waiting requests and its session.
    pub(crate) fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        self.member_bytes -= memory::member(&member);
        self.count_protocols(&member.protocols, false);
        if let Some(instance) = &member.instance_id {
            self.static_members.remove(instance);
        }
        self.pending_syncs.remove(id);
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        Some(member)
    }

    /// Gives a static member another id and keeps everything else, its place as the leader included.
    pub(crate) fn rename(&mut self, old: &str, new: &MemberId) {
        let mut member = self.members.remove(old).expect("the caller looked the static member up");
        self.member_bytes = self.member_bytes - member.id.len() + new.len();
        member.id = new.clone();
        if let Some(instance) = &member.instance_id {
            self.static_members.insert(instance.clone(), new.clone());
        }
        if self.is_leader(old) {
            self.leader = Some(new.clone());
        }
        if self.pending_syncs.remove(old) {
            self.pending_syncs.insert(new.clone());
        }
        self.members.insert(new.clone(), member);
    }

    /// Replaces the protocols of a member.
    pub(crate) fn set_protocols(&mut self, id: &str, protocols: Vec<Protocol>) {
        let member = self.members.get_mut(id).expect("the caller looked the member up");
        let old = std::mem::replace(&mut member.protocols, protocols.clone());
        self.member_bytes = self.member_bytes - memory::protocols(&old) + memory::protocols(&protocols);
        self.count_protocols(&old, false);
        self.count_protocols(&protocols, true);
    }

    fn count_protocols(&mut self, protocols: &[Protocol], add: bool) {
        for protocol in protocols {
            let count = self.offered.entry(protocol.name.clone()).or_insert(0);
            *count = if add { *count + 1 } else { *count - 1 };
            if *count == 0 {
                self.offered.remove(&protocol.name);
            }
        }
    }

    /// Keeps the leader if it has rejoined, else elects a member that has. Returns false if none has.
    pub(crate) fn elect_joined_leader(&mut self) -> bool {
        let joined = |member: &Member| member.awaiting_join.is_some();
        if let Some(leader) = &self.leader
            && self.members.get(leader).is_some_and(joined)
        {
            return true;
        }
        let elected = self.members.values().find(|member| joined(member)).map(|member| member.id.clone());
        let found = elected.is_some();
        if found {
            self.leader = elected;
        }
        found
    }

    /// The protocol that most members prefer among those that all of them offer; in a tie the one that the first member prefers.
    pub(crate) fn select_protocol(&self) -> Option<Box<str>> {
        let mut votes: HashMap<&str, usize> = HashMap::new();
        for member in self.members.values() {
            if let Some(vote) =
                member.protocols.iter().find(|protocol| self.is_offered_by_all(&protocol.name))
            {
                *votes.entry(&vote.name).or_insert(0) += 1;
            }
        }
        let most = votes.values().copied().max()?;
        let first = self.members.values().next()?;
        let mut preferred = first.protocols.iter().map(|protocol| &protocol.name);
        preferred.find(|name| votes.get(&***name) == Some(&most)).cloned()
    }

    /// Begins the next generation: with members it waits for the leader's assignment, without it is empty.
    /// `free_bytes` is for the topics that members subscribe to.
    pub(crate) fn next_generation(&mut self, wall_ms: i64, free_bytes: usize) {
        self.generation = self.generation.wrapping_add(1).max(0);
        self.protocol_name = self.select_protocol();
        self.subscribe(free_bytes);
        self.pending_syncs.clear();
        let next = if self.members.is_empty() { State::Empty } else { State::CompletingRebalance };
        self.transition_to(next, wall_ms);
    }

    /// Recomputes the topics that the members subscribe to; see [`compute_subscribed_topics`](Self::compute_subscribed_topics).
    pub(crate) fn subscribe(&mut self, free_bytes: usize) {
        self.subscribed_topics = self.compute_subscribed_topics(free_bytes);
        self.topic_bytes = self.subscribed_topics.iter().flatten().map(|topic| memory::name(topic)).sum();
    }

    /// The topics that the members subscribe to. None if they are no consumers, if their metadata does not parse, or if the topics take
    /// more than `free_bytes` bytes. Unknown topics count as subscribed to, so no offset is lost.
    fn compute_subscribed_topics(&self, mut free_bytes: usize) -> Option<BTreeSet<Box<str>>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        if self.members.is_empty() {
            return Some(BTreeSet::new());
        }
        let protocol = self.protocol_name.as_deref()?;
        let mut topics = BTreeSet::new();
        for member in self.members.values() {
            for topic in subscription::topics(&member.metadata(protocol))? {
                if !topics.contains(&topic) {
                    free_bytes = free_bytes.checked_sub(memory::name(&topic))?;
                    topics.insert(topic);
                }
            }
        }
        Some(topics)
    }

    /// Checks that a request speaks for a member: KIP-345 fences an older holder of the same instance id.
    pub(crate) fn validate_member(&self, member: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.static_members.get(instance) {
                None => return Err(ErrorCode::UNKNOWN_MEMBER_ID),
                Some(current) if **current != *member => return Err(ErrorCode::FENCED_INSTANCE_ID),
                Some(_) => {}
            }
        }
        if self.members.contains_key(member) { Ok(()) } else { Err(ErrorCode::UNKNOWN_MEMBER_ID) }
    }
}
