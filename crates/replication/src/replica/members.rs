//! Changes of the members of a group, by its leader: one step at a time, towards those that are wanted.

use super::Replica;
use super::queries::SEEN_MS;
use super::raft_group::RaftGroup;
use crate::change::MemberChange;
use crate::error::LeaderAppendError;
use crate::group::ReplicaId;
use crate::reconcile::{LeaderView, PeerView, Step, WantedMembers};
use raft::Progress;

/// A peer that lacks more entries than this is not looked at closely.
const LACKING_ENTRIES_MAX: u64 = 1_024;

/// A learner that lacks no more entries than this is sent all at once.
const NEAR_ENTRIES: u64 = 256;

impl RaftGroup {
    /// Returns true if a peer lacks a few entries at most.
    pub(super) fn is_near(&self, id: ReplicaId) -> bool {
        let progress = self.raft().prs().get(id.0);
        progress
            .is_some_and(|progress| progress.matched > 0 && self.lacking_entries(progress) <= NEAR_ENTRIES)
    }

    fn lacking_entries(&self, progress: &Progress) -> u64 {
        self.index().last().saturating_sub(progress.matched)
    }

    /// The view of a leader of its peers, of which `was_there` says whether they had all that there was a moment ago.
    fn peer_views(&self, was_there: impl Fn(u64) -> bool) -> Vec<PeerView> {
        let lacking_bytes = |progress: &Progress| match self.lacking_entries(progress) {
            0..=LACKING_ENTRIES_MAX => {
                (progress.matched + 1..=self.index().last()).map(|index| self.index().size_of(index)).sum()
            }
            _ => u64::MAX,
        };
        let view = |(id, progress): (u64, &Progress)| PeerView {
            id: ReplicaId(id),
            is_active: progress.matched > 0 && was_there(id),
            lacking_bytes: lacking_bytes(progress),
        };
        self.others().map(view).collect()
    }
}

impl Replica {
    /// Returns true if members of the group may change: all nodes know of that.
    pub(super) fn may_change_members(&mut self) -> bool {
        if !self.members_may_change {
            self.members_may_change = self.journal.members_may_change();
        }
        self.members_may_change
    }

    /// Takes it from now on from a leader's change of members that members may change. For the group of the metadata, which would say so
    /// otherwise: what says so may come in one message with the first change, or in a snapshot that names other members.
    pub fn believe_changes(&mut self) {
        self.believes_changes = true;
    }

    /// Has members of the groups of its journal change from now on.
    pub(super) fn let_members_change(&mut self) {
        self.journal.let_members_change();
        self.members_may_change = true;
    }

    /// Takes the next step of a leader towards the members that are wanted. Returns what it was:
    /// [`Step::Wait`] also where this replica does not lead, or an earlier change is not applied yet. A change is in the journal, durably,
    /// when this returns, and the log before it. To be followed by [`Replica::drive`]. Called each 100 ms or so, for as long as it returns
    /// anything but [`Step::Done`].
    ///
    /// # Errors
    /// The replica is out of service, or has just lost leadership.
    pub fn reconcile(&mut self, wanted: &WantedMembers) -> Result<Step, LeaderAppendError> {
        self.check_running()?;
        self.drive_into()?;
        let term = self.role().term;
        if self.reconciler.0 != term {
            self.reconciler = (term, Default::default());
        }
        if !self.is_taking_part() || !self.group.may_change_members() || !self.may_change_members() {
            return Ok(Step::Wait);
        }
        let peers = self.group.peer_views(|id| self.peers.is_in_sync(id, self.now_ms, SEEN_MS));
        let view = LeaderView { own: self.own(), configuration: self.group.configuration(), peers: &peers };
        let step = self.reconciler.1.next(wanted, view, self.now_ms);
        match &step {
            Step::Change(change) => self.propose_change(change)?,
            Step::Transfer(to) => self.transfer(*to),
            Step::Wait | Step::Done => {}
        }
        Ok(step)
    }

    /// Proposes a change of members. It is in the journal, durably, when this returns.
    fn propose_change(&mut self, change: &MemberChange) -> Result<(), LeaderAppendError> {
        let term = self.role().term;
        if self.group.propose_change(change).is_ok() {
            self.drive_into()?;
        }
        // Without space for it the replica has begun again, as a follower.
        match self.leads() && self.role().term == term {
            true => Ok(()),
            false => Err(self.not_leader()),
        }
    }
}
