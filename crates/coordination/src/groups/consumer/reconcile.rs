//! The next step of a member from its current assignment to its target (KIP-848).
//!
//! A member first revokes partitions, in its old epoch, and moves to the target's epoch when it has confirmed that. It gets new partitions
//! when other members have released them. So no partition has two readers.

use std::collections::BTreeSet;

use mainstem_wire::Uuid;

use super::group::ConsumerGroup;
use super::member::{Current, Member, MemberState};
use super::partitions::{Assignment, Owned, Partition};
use super::topics::ClusterTopics;

/// The inputs of a reconciliation of one member.
pub(crate) struct Reconciliation<'a> {
    pub(crate) group: &'a ConsumerGroup,
    pub(crate) topics: &'a ClusterTopics,
    pub(crate) member: &'a Member,
    pub(crate) target: &'a Assignment,
    pub(crate) target_epoch: i32,
    /// The member's request has changed its subscription.
    pub(crate) subscription_changed: bool,
    /// The partitions that the member reports as its own, if it reports any.
    pub(crate) owned: Option<&'a Assignment>,
}

/// The member must drop everything and join again: its state is of a version that is not known here.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fenced;

impl Reconciliation<'_> {
    /// Returns the next state of the member; None if nothing changes.
    ///
    /// # Errors
    /// [`Fenced`].
    pub(crate) fn next(&self) -> Result<Option<Current>, Fenced> {
        let current = &self.member.current;
        if !self.subscription_changed && current.is_reconciled_to(self.target_epoch) {
            return Ok(None);
        }
        let next = match current.state {
            MemberState::Stable if current.epoch != self.target_epoch => self.advance(current.epoch),
            MemberState::Stable if self.subscription_changed => return Ok(self.narrow()),
            MemberState::Stable => return Ok(None),
            MemberState::UnrevokedPartitions if self.still_owns(&current.revoking) => {
                return Ok(if self.subscription_changed { self.narrow() } else { None });
            }
            MemberState::UnrevokedPartitions | MemberState::UnreleasedPartitions => {
                self.advance(current.epoch)
            }
            MemberState::Unknown if self.owned.is_none_or(|owned| !owned.is_empty()) => return Err(Fenced),
            MemberState::Unknown => self.advance(self.target_epoch),
        };
        Ok((next != *current).then_some(next))
    }

    /// Returns the state as close to the target as possible now. `epoch` is the member's epoch while it revokes partitions.
    fn advance(&self, epoch: i32) -> Current {
        let current = &self.member.current;
        let subscribed = self.subscribed();
        let is_target = |at: &Partition| subscribed.contains(&at.0) && self.target.contains(at);
        let (keeps, revokes): (Vec<_>, Vec<_>) =
            current.assigned.iter().copied().partition(|(at, _)| is_target(at));
        let (keeps, revokes): (Owned, Owned) = (keeps.into_iter().collect(), revokes.into_iter().collect());
        if !revokes.is_empty() && self.still_owns(&revokes) {
            return current.moved_to(epoch, MemberState::UnrevokedPartitions, keeps, revokes);
        }
        let wanted = self.target.iter().filter(|at| subscribed.contains(&at.0) && !keeps.contains(at));
        // Partitions that the member itself was asked to revoke are held by no other.
        let is_free = |at: &Partition| !self.group.is_owned(at) || current.revoking.contains(at);
        let (free, held): (Vec<Partition>, Vec<Partition>) = wanted.copied().partition(is_free);
        // Partitions that it revokes in this very step stay its own until the step is made.
        let state = if held.is_empty() { MemberState::Stable } else { MemberState::UnreleasedPartitions };
        let gets = free.into_iter().map(|at| (at, self.target_epoch));
        let assigned = keeps.iter().copied().chain(gets).collect();
        current.moved_to(self.target_epoch, state, assigned, Owned::default())
    }

    /// Revokes partitions of topics that the member does not subscribe to any more, without a new target.
    fn narrow(&self) -> Option<Current> {
        let current = &self.member.current;
        let subscribed = self.subscribed();
        let is_subscribed = |(at, _): &(Partition, i32)| subscribed.contains(&at.0);
        let (keeps, drops): (Vec<_>, Vec<_>) = current.assigned.iter().copied().partition(is_subscribed);
        if drops.is_empty() {
            return None;
        }
        let revoking: Owned = current.revoking.iter().copied().chain(drops).collect();
        let keeps = keeps.into_iter().collect();
        let next = if self.still_owns(&revoking) {
            current.moved_to(current.epoch, MemberState::UnrevokedPartitions, keeps, revoking)
        } else {
            current.moved_to(current.epoch, current.state, keeps, current.revoking.clone())
        };
        Some(next)
    }

    /// Returns true if the member may still read one of these partitions: it reports one, or reports nothing.
    fn still_owns(&self, partitions: &Owned) -> bool {
        self.owned.is_none_or(|owned| owned.iter().any(|at| partitions.contains(at)))
    }

    /// The existing topics that the member subscribes to.
    fn subscribed(&self) -> BTreeSet<Uuid> {
        subscribed_topics(self.group, self.topics, self.member)
    }
}

/// The existing topics that a member subscribes to, by name or by what its pattern has matched.
pub(crate) fn subscribed_topics(
    group: &ConsumerGroup,
    topics: &ClusterTopics,
    member: &Member,
) -> BTreeSet<Uuid> {
    let resolved = member.profile.regex.as_ref().and_then(|regex| group.regexes().get(regex));
    let matched = resolved.iter().flat_map(|resolved| &resolved.topics);
    let names = member.profile.topics.iter().chain(matched);
    names.filter_map(|name| topics.get(name)).map(|topic| topic.id).collect()
}
