//! The state of one consumer group (KIP-848): the contents of its records, and what follows from them.

mod invariants;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::super::member::MemberId;
use super::super::members::Members;
use super::super::memory;
use super::super::shared_map::SharedMap;
use super::change::{Change, GroupEpoch, Resolved, TargetEpoch};
use super::counts::Counts;
use super::member::{Current, Member, Profile, Timers};
use super::partitions::{Assignment, Partition};

/// Both epochs of a group that has no records of them.
const FIRST_EPOCH: i32 = 1;

/// The states of a consumer group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// No members.
    Empty,
    /// The target is of an earlier epoch than the group.
    Assigning,
    /// Members are on their way to the target.
    Reconciling,
    /// Every member has its target.
    Stable,
    /// Its deletion is being written.
    Dead,
}

impl State {
    /// As Kafka shows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Assigning => "Assigning",
            State::Reconciling => "Reconciling",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }
}

/// A group of the consumer protocol (KIP-848): its members with their current assignments, and the target assignment.
#[derive(Debug)]
pub(crate) struct ConsumerGroup {
    pub(crate) id: Arc<str>,
    epoch: Option<GroupEpoch>,
    target_epoch: Option<TargetEpoch>,
    has_partition_metadata: bool,
    members: Members<Member>,
    targets: SharedMap<MemberId, Assignment>,
    regexes: BTreeMap<Arc<str>, Resolved>,
    /// Instance id to member id (KIP-345).
    static_members: BTreeMap<Arc<str>, MemberId>,
    counts: Counts,
    /// Accounted bytes of targets and patterns, see [`memory`].
    bytes: usize,
    /// Time-outs of removed members, to be cancelled.
    gone: VecDeque<(MemberId, Timers)>,
    /// Something about the topics may have changed since the epoch was computed.
    pub(crate) topics_changed: bool,
    /// When the target was last computed by this coordinator, monotonic milliseconds.
    pub(crate) assigned_at_ms: Option<u64>,
    /// When patterns were last matched against all topics, monotonic milliseconds.
    pub(crate) resolved_at_ms: Option<u64>,
    /// [`created`](super::topics::ClusterTopics::created) at that time.
    pub(crate) resolved_created: u64,
    /// Appends of this group's records in flight.
    pub(crate) pending_writes: usize,
    /// A record of the group is durable.
    pub(crate) stored: bool,
    /// Its tombstones are being written.
    pub(crate) dead: bool,
    /// Accounted bytes of the group when it was last added to the totals.
    pub(crate) counted: usize,
}

impl ConsumerGroup {
    /// A group without records.
    pub(crate) fn new(id: Arc<str>) -> Self {
        Self {
            id,
            epoch: None,
            target_epoch: None,
            has_partition_metadata: false,
            members: Members::default(),
            targets: SharedMap::default(),
            regexes: BTreeMap::new(),
            static_members: BTreeMap::new(),
            counts: Counts::default(),
            bytes: 0,
            gone: VecDeque::new(),
            topics_changed: true,
            assigned_at_ms: None,
            resolved_at_ms: None,
            resolved_created: 0,
            pending_writes: 0,
            stored: false,
            dead: false,
            counted: 0,
        }
    }

    /// The group's epoch: it moves when members, subscriptions or topics change.
    pub(crate) fn epoch(&self) -> i32 {
        self.epoch.map_or(FIRST_EPOCH, |epoch| epoch.epoch)
    }

    /// The hash of the topics that the epoch was computed from.
    pub(crate) fn metadata_hash(&self) -> i64 {
        self.epoch.map_or(0, |epoch| epoch.metadata_hash)
    }

    /// The epoch of the target.
    pub(crate) fn assignment_epoch(&self) -> i32 {
        self.target_epoch.map_or(FIRST_EPOCH, |epoch| epoch.epoch)
    }

    /// Returns true if the log has Kafka's earlier record of the group's topics (ConsumerGroupPartitionMetadata).
    pub(crate) fn has_partition_metadata(&self) -> bool {
        self.has_partition_metadata
    }

    pub(crate) fn members(&self) -> &Members<Member> {
        &self.members
    }

    pub(crate) fn member(&self, id: &str) -> Option<&Member> {
        self.members.get(id)
    }

    /// The time-outs of a member.
    pub(crate) fn timers(&mut self, id: &str) -> Option<&mut Timers> {
        self.members.get_mut(id).map(|member| &mut member.timers)
    }

    /// The member of an instance id.
    pub(crate) fn static_member(&self, instance: &str) -> Option<&Member> {
        self.member(self.static_members.get(instance)?)
    }

    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(crate) fn regexes(&self) -> &BTreeMap<Arc<str>, Resolved> {
        &self.regexes
    }

    /// Returns the target assignments, by member.
    pub(crate) fn targets(&self) -> &SharedMap<MemberId, Assignment> {
        &self.targets
    }

    /// Returns the target assignment of a member.
    pub(crate) fn target(&self, member: &str) -> Option<&Assignment> {
        self.targets.get(member)
    }

    /// Returns true if a member holds a partition, or has not confirmed its revocation.
    pub(crate) fn is_owned(&self, partition: &Partition) -> bool {
        self.counts.owners.contains_key(partition)
    }

    /// Returns true if members subscribe to a topic, by its name or a pattern.
    pub(crate) fn is_subscribed_to(&self, topic: &str) -> bool {
        self.counts.topics.contains_key(topic)
    }

    pub(crate) fn state(&self) -> State {
        let target = self.assignment_epoch();
        if self.dead {
            State::Dead
        } else if self.members.is_empty() {
            State::Empty
        } else if self.epoch() > target {
            State::Assigning
        } else if self.counts.stable.get(&target) == Some(&self.members.len()) {
            State::Stable
        } else {
            State::Reconciling
        }
    }

    /// Returns true if the group has a record, or changes that will be one.
    pub(crate) fn has_records(&self) -> bool {
        self.epoch.is_some()
            || self.target_epoch.is_some()
            || self.has_partition_metadata
            || !(self.members.is_empty() && self.targets.is_empty() && self.regexes.is_empty())
    }

    /// Returns the accounted bytes of the group, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        memory::GROUP + self.id.len() + self.bytes + self.counts.bytes
    }

    /// Returns the time-outs of a removed member.
    pub(crate) fn take_gone(&mut self) -> Option<(MemberId, Timers)> {
        self.gone.pop_front()
    }

    /// Makes a change; returns the one that undoes it.
    pub(crate) fn apply(&mut self, change: Change) -> Change {
        match change {
            Change::Group(epoch) => Change::Group(std::mem::replace(&mut self.epoch, epoch)),
            Change::PartitionMetadata(there) => {
                Change::PartitionMetadata(std::mem::replace(&mut self.has_partition_metadata, there))
            }
            Change::TargetEpoch(epoch) => {
                Change::TargetEpoch(std::mem::replace(&mut self.target_epoch, epoch))
            }
            Change::Profile(id, profile) => {
                let before = self.set_profile(&id, profile);
                Change::Profile(id, before)
            }
            Change::Current(id, current) => {
                let before = self.set_current(&id, current);
                Change::Current(id, before)
            }
            Change::Target(id, target) => {
                let before = self.set_target(&id, target);
                Change::Target(id, before)
            }
            Change::Regex(regex, resolved) => {
                let before = self.set_resolved(&regex, resolved);
                Change::Regex(regex, before)
            }
        }
    }

    /// Returns the change that writes the present value for the key of a record.
    pub(crate) fn statement(&self, of: &Change) -> Change {
        match of {
            Change::Group(_) => Change::Group(self.epoch),
            Change::PartitionMetadata(_) => Change::PartitionMetadata(false),
            Change::TargetEpoch(_) => Change::TargetEpoch(self.target_epoch),
            Change::Profile(id, _) => {
                let known = self.member(id).filter(|member| member.has_profile);
                Change::Profile(id.clone(), known.map(|member| member.profile.clone()))
            }
            Change::Current(id, _) => {
                Change::Current(id.clone(), self.member(id).map(|member| member.current.clone()))
            }
            Change::Target(id, _) => Change::Target(id.clone(), self.target(id).cloned()),
            Change::Regex(regex, _) => Change::Regex(regex.clone(), self.regexes.get(regex).cloned()),
        }
    }

    /// The tombstones of everything that the group has in the log, in the order in which Kafka writes them.
    pub(crate) fn tombstones(&self) -> Vec<Change> {
        let mut tombstones: Vec<Change> = Vec::with_capacity(3 * self.members.len() + 4);
        tombstones.extend(self.members.keys().map(|id| Change::Current(id.clone(), None)));
        tombstones.extend(self.members.keys().map(|id| Change::Target(id.clone(), None)));
        let strays = self.targets.keys().filter(|id| !self.members.contains_key(id));
        tombstones.extend(strays.map(|id| Change::Target(id.clone(), None)));
        tombstones.push(Change::TargetEpoch(None));
        tombstones.extend(self.members.keys().map(|id| Change::Profile(id.clone(), None)));
        tombstones.extend(self.regexes.keys().map(|regex| Change::Regex(regex.clone(), None)));
        tombstones.push(Change::PartitionMetadata(false));
        tombstones.push(Change::Group(None));
        tombstones
    }

    /// A member without its profile is no member.
    fn set_profile(&mut self, id: &MemberId, profile: Option<Profile>) -> Option<Profile> {
        let Some(profile) = profile else {
            let member = self.take(id)?;
            let had_profile = member.has_profile;
            self.gone.push_back((member.id, member.timers));
            return had_profile.then_some(member.profile);
        };
        let mut member = self.take(id).unwrap_or_else(|| Member::new(id.clone()));
        let before = std::mem::replace(&mut member.profile, profile);
        let had_profile = std::mem::replace(&mut member.has_profile, true);
        self.put(member);
        had_profile.then_some(before)
    }

    /// The log may have the current assignment of a member before its profile, or without it.
    fn set_current(&mut self, id: &MemberId, current: Option<Current>) -> Option<Current> {
        let known = self.take(id);
        if known.is_none() && current.is_none() {
            return None;
        }
        let mut member = known.unwrap_or_else(|| Member::new(id.clone()));
        let is_gone = current.is_none() && !member.has_profile;
        let before = std::mem::replace(&mut member.current, current.unwrap_or_default());
        if is_gone {
            self.gone.push_back((member.id, member.timers));
        } else {
            self.put(member);
        }
        (before != Current::default()).then_some(before)
    }

    fn set_target(&mut self, id: &MemberId, target: Option<Assignment>) -> Option<Assignment> {
        self.bytes += target.as_ref().map_or(0, |target| target_bytes(id, target));
        let before = match target {
            Some(target) => self.targets.insert(id.clone(), target),
            None => self.targets.remove(id),
        };
        self.bytes -= before.as_ref().map_or(0, |before| target_bytes(id, before));
        before
    }

    fn set_resolved(&mut self, regex: &Arc<str>, resolved: Option<Resolved>) -> Option<Resolved> {
        let before = self.regexes.remove(regex);
        if let Some(before) = &before {
            self.counts.subtract_resolved(before);
            self.bytes -= regex_bytes(regex, before);
        }
        if let Some(resolved) = resolved {
            self.counts.add_resolved(&resolved);
            self.bytes += regex_bytes(regex, &resolved);
            self.regexes.insert(regex.clone(), resolved);
        }
        before
    }

    fn take(&mut self, id: &str) -> Option<Member> {
        let member = self.members.remove(id)?;
        self.counts.subtract(&member);
        if let Some(instance) = &member.profile.instance_id
            && self.static_members.get(instance) == Some(&member.id)
        {
            self.static_members.remove(instance);
        }
        Some(member)
    }

    fn put(&mut self, member: Member) {
        self.counts.add(&member);
        if let Some(instance) = &member.profile.instance_id {
            self.static_members.insert(instance.clone(), member.id.clone());
        }
        self.members.insert(member.id.clone(), member);
    }
}

fn target_bytes(id: &str, target: &Assignment) -> usize {
    memory::NAME + id.len() + memory::PARTITION * target.len()
}

fn regex_bytes(regex: &str, resolved: &Resolved) -> usize {
    let topics = resolved.topics.iter().map(|topic| 2 * memory::name(topic));
    memory::name(regex) + topics.sum::<usize>()
}
