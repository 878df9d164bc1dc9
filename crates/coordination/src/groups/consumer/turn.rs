//! One request or time-out of a consumer group.
//!
//! The group changes before its records are durable: a change takes effect at once, and its record is in the append that ends the turn. The
//! request is answered when that is durable. A failed append undoes its changes.

use super::super::config::GroupConfig;
use super::super::io::Io;
use super::super::log::CoordinatorRecord;
use super::change::Change;
use super::group::ConsumerGroup;
use super::topics::ClusterTopics;
use crate::time::Now;

/// A turn on a group.
pub(crate) struct Turn<'t> {
    pub(crate) group: &'t mut ConsumerGroup,
    pub(crate) topics: &'t ClusterTopics,
    pub(crate) config: &'t GroupConfig,
    pub(crate) now: Now,
    pub(crate) records: Vec<CoordinatorRecord>,
    /// The changes that undo the turn, oldest first.
    pub(crate) undo: Vec<Change>,
    members_before: usize,
}

/// The result of a turn: its records, and the changes that undo it.
pub(crate) struct Outcome {
    pub(crate) records: Vec<CoordinatorRecord>,
    pub(crate) undo: Vec<Change>,
}

impl Outcome {
    /// Returns true if the turn has changed a member's current assignment.
    pub(crate) fn moves(&self, id: &str) -> bool {
        self.undo.iter().any(|change| matches!(change, Change::Current(member, _) if **member == *id))
    }
}

impl<'t> Turn<'t> {
    pub(crate) fn new(group: &'t mut ConsumerGroup, io: &Io<'t>) -> Self {
        let members_before = group.members().len();
        Self {
            group,
            topics: io.cluster,
            config: io.config,
            now: io.now,
            records: Vec::new(),
            undo: Vec::new(),
            members_before,
        }
    }

    /// Makes a change.
    pub(crate) fn put(&mut self, change: Change) {
        self.records.push(change.record(&self.group.id));
        self.undo.push(self.group.apply(change));
    }

    /// Ends the turn.
    pub(crate) fn finish(self, io: &mut Io<'_>) -> Outcome {
        settle(self.group, io, self.members_before);
        Outcome { records: self.records, undo: self.undo }
    }

    /// Undoes the turn.
    pub(crate) fn abort(self, io: &mut Io<'_>) {
        take_back(self.group, self.undo);
        settle(self.group, io, self.members_before);
    }
}

/// Undoes changes, the newest first.
pub(crate) fn take_back(group: &mut ConsumerGroup, undo: Vec<Change>) {
    for change in undo.into_iter().rev() {
        group.apply(change);
    }
    // The decisions of the turn have to be made again.
    group.topics_changed = true;
    group.assigned_at_ms = None;
    group.resolved_at_ms = None;
}

/// Counts the group as it is now, and cancels the time-outs of members that are gone.
pub(crate) fn settle(group: &mut ConsumerGroup, io: &mut Io<'_>, members_before: usize) {
    io.usage.members = io.usage.members + group.members().len() - members_before;
    while let Some((id, mut timers)) = group.take_gone() {
        io.cancel_timers(&group.id, &id, &mut timers);
    }
    io.recount_consumer(group);
}
