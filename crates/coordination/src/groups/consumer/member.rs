//! One member of a consumer group: its own description, and its partitions.

use std::sync::Arc;

use mainstem_wire::Uuid;

use super::super::deadlines::Timer;
use super::super::member::{MemberId, Protocol};
use super::super::memory;
use super::partitions::Owned;

/// The state of a member on its way to its target (KIP-848).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum MemberState {
    /// It has what the target of its epoch gives it.
    #[default]
    Stable,
    /// It was asked to revoke partitions and has not confirmed that.
    UnrevokedPartitions,
    /// It waits for partitions that other members have not released.
    UnreleasedPartitions,
    /// A state of a later version than this one: the member is asked to join again.
    Unknown,
}

impl MemberState {
    /// As the record has it.
    pub(crate) fn value(self) -> i8 {
        match self {
            MemberState::Stable => 0,
            MemberState::UnrevokedPartitions => 1,
            MemberState::UnreleasedPartitions => 2,
            MemberState::Unknown => 127,
        }
    }

    /// The state of a record's value.
    pub(crate) fn from_value(value: i8) -> Self {
        match value {
            0 => MemberState::Stable,
            1 => MemberState::UnrevokedPartitions,
            2 => MemberState::UnreleasedPartitions,
            _ => MemberState::Unknown,
        }
    }
}

/// A member that speaks the classic protocol within a consumer group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClassicMember {
    pub(crate) session_timeout_ms: i32,
    /// Never empty; the first one is its choice.
    pub(crate) protocols: Vec<Protocol>,
}

/// The member's own description: the value of its ConsumerGroupMemberMetadata record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) instance_id: Option<Arc<str>>,
    pub(crate) rack_id: Option<Box<str>>,
    pub(crate) client_id: Box<str>,
    pub(crate) client_host: Box<str>,
    /// Sorted, each once.
    pub(crate) topics: Vec<Box<str>>,
    /// Never empty if there is one.
    pub(crate) regex: Option<Arc<str>>,
    pub(crate) rebalance_timeout_ms: i32,
    pub(crate) server_assignor: Option<Box<str>>,
    /// Set for a member of the classic protocol.
    pub(crate) classic: Option<Box<ClassicMember>>,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            instance_id: None,
            rack_id: None,
            client_id: "".into(),
            client_host: "".into(),
            topics: Vec::new(),
            regex: None,
            rebalance_timeout_ms: -1,
            server_assignor: None,
            classic: None,
        }
    }
}

impl Profile {
    /// Returns true if two members name the same topics and bring the same pattern.
    pub(crate) fn subscribes_like(&self, other: &Self) -> bool {
        self.topics == other.topics && self.regex == other.regex
    }
}

/// Topic names as a profile has them.
pub(crate) fn topic_names<'n>(names: impl Iterator<Item = &'n str>) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = names.map(Box::from).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The current assignment of a member: the value of its ConsumerGroupCurrentMemberAssignment record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Current {
    pub(crate) epoch: i32,
    pub(crate) previous_epoch: i32,
    pub(crate) state: MemberState,
    /// The partitions that it may read.
    pub(crate) assigned: Owned,
    /// The partitions that it was asked to revoke.
    pub(crate) revoking: Owned,
}

impl Default for Current {
    /// The state of a new member.
    fn default() -> Self {
        Self {
            epoch: 0,
            previous_epoch: -1,
            state: MemberState::Stable,
            assigned: Owned::default(),
            revoking: Owned::default(),
        }
    }
}

impl Current {
    /// Returns true if the member has all that the target of an epoch gives it.
    pub(crate) fn is_reconciled_to(&self, target_epoch: i32) -> bool {
        self.state == MemberState::Stable && self.epoch == target_epoch
    }

    /// The same in another epoch.
    pub(crate) fn moved_to(&self, epoch: i32, state: MemberState, assigned: Owned, revoking: Owned) -> Self {
        Self { epoch, previous_epoch: self.epoch, state, assigned, revoking }
    }

    /// Returns true if the member was asked to revoke partitions; then it has a deadline for that.
    pub(crate) fn must_revoke(&self) -> bool {
        self.state == MemberState::UnrevokedPartitions
    }

    /// All partitions that the member may read or has not confirmed to have revoked: no other member may have them.
    pub(crate) fn held(&self) -> impl Iterator<Item = &(Uuid, i32)> {
        self.assigned.partitions().chain(self.revoking.partitions())
    }
}

/// The time-outs of a member. They are not in the log: a new coordinator sets them again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Timers {
    pub(crate) session: Option<Timer>,
    /// The deadline to revoke partitions, by the rebalance time-out; of a classic member, to rejoin.
    pub(crate) rebalance: Option<Timer>,
    /// The epoch that the member must have left by then.
    pub(crate) rebalance_epoch: i32,
    /// The deadline of a classic member to sync.
    pub(crate) sync: Option<Timer>,
}

/// A member: its profile, its partitions with their epochs, and its time-outs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Member {
    pub(crate) id: MemberId,
    pub(crate) profile: Profile,
    /// Its profile was in the log.
    pub(crate) has_profile: bool,
    pub(crate) current: Current,
    pub(crate) timers: Timers,
}

impl Member {
    pub(crate) fn new(id: MemberId) -> Self {
        let (profile, current, timers) = <(Profile, Current, Timers)>::default();
        Self { id, profile, has_profile: false, current, timers }
    }

    pub(crate) fn uses_classic_protocol(&self) -> bool {
        self.profile.classic.is_some()
    }

    /// Returns the accounted bytes of the member, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        profile_bytes(&self.id, &self.profile)
            + memory::PARTITION * (self.current.assigned.len() + self.current.revoking.len())
    }
}

/// Returns the accounted bytes of a member without partitions.
pub(crate) fn profile_bytes(id: &str, profile: &Profile) -> usize {
    let names = [id, profile.instance_id.as_deref().unwrap_or_default(), &profile.client_id];
    let more = [&profile.client_host, profile.rack_id.as_deref().unwrap_or_default()];
    let topics: usize = profile.topics.iter().map(|topic| 2 * memory::name(topic)).sum();
    let classic = profile.classic.as_ref().map_or(0, |classic| memory::protocols(&classic.protocols));
    let assignor = profile.server_assignor.as_deref().map_or(0, str::len);
    let regex = profile.regex.as_deref().map_or(0, |regex| 2 * memory::name(regex));
    let names = names.iter().chain(&more).map(|name| name.len()).sum::<usize>();
    memory::MEMBER + names + assignor + topics + regex + classic
}
