//! Replicas at rest: heartbeats that stand, so that a group in which nothing happens says nothing by itself.

use super::{ELECTION_TICKS, REST_TICKS, Replica, Role, RoleState, TICK_MS};
use crate::group::ReplicaId;
use raft::eraftpb::Message;

impl Replica {
    /// When [`Replica::tick`] is due: later where nothing is to be done before.
    pub fn next_tick_ms(&self) -> u64 {
        let ticks = if self.rested && self.rests() { self.rest_ticks() } else { 1 };
        self.ticked_ms + ticks * TICK_MS
    }

    /// Ticks that may wait for each other. Those of a leader end where it looks who has answered since it looked last: answers that
    /// come after that count for the next time.
    pub(super) fn rest_ticks(&self) -> u64 {
        match self.role.state {
            RoleState::Leader => {
                let left = ELECTION_TICKS.saturating_sub(self.node.raft.election_elapsed);
                REST_TICKS.min(left as u64).max(1)
            }
            RoleState::Follower { .. } | RoleState::Candidate => REST_TICKS,
        }
    }

    /// Whether it has nothing to do by itself for a while: a follower that hears of its leader with all others of that
    /// node, or a leader whose followers have all that there is and know it.
    pub(super) fn rests(&self) -> bool {
        match self.role.state {
            RoleState::Follower { .. } => {
                self.stands_from.is_some() && self.now_ms < self.heard_ms + REST_TICKS * TICK_MS
            }
            RoleState::Leader => {
                let raft = &self.node.raft;
                let mut others = raft.prs().iter().filter(|(id, _)| **id != self.own.0);
                let committed = raft.raft_log.committed;
                raft.lead_transferee.is_none()
                    && raft.pending_read_count() == 0
                    && others.all(|(id, progress)| {
                        self.has_everything(progress) && self.standing.contains(&(*id, committed))
                    })
            }
            RoleState::Candidate => false,
        }
    }

    /// Whether all that a leader has is committed, and a follower has it.
    pub(super) fn has_everything(&self, progress: &raft::Progress) -> bool {
        let log = &self.node.raft.raft_log;
        let last = log.last_index();
        progress.state == raft::ProgressState::Replicate && progress.matched == last && log.committed == last
    }

    /// Of a heartbeat that the library wants sent, without context: whether it stands from now on; `None`: it does
    /// already.
    pub(super) fn stand(&mut self, heartbeat: &Message) -> Option<bool> {
        let (to, commit) = (heartbeat.to, heartbeat.commit);
        // A leader begins to say less when it has noted that it is one. To a follower that lacks something it says all: what that one
        // has dropped for want of room is sent again when it answers.
        let leads = self.role.state == RoleState::Leader && heartbeat.term == self.role.term;
        let progress = self.node.raft.prs().get(to);
        let stands = leads
            && commit == self.node.raft.raft_log.committed
            && progress.is_some_and(|progress| self.has_everything(progress));
        if stands && self.standing.contains(&(to, commit)) {
            return None;
        }
        self.standing.retain(|(id, _)| *id != to);
        if stands {
            self.standing.push((to, commit));
        }
        Some(stands)
    }

    /// A heartbeat of this leader, which was just taken, stands from now on. Returns false where this replica does not
    /// follow it, or owes another a term or a vote.
    pub fn let_stand(&mut self, from: ReplicaId, term: u64) -> bool {
        let follows = self.role == Role { term, state: RoleState::Follower { leader: Some(from) } };
        if !follows || !self.unsynced.is_empty() || !self.is_taking_part() {
            return false;
        }
        (self.stands_from, self.heard_ms) = (Some((from, term)), self.now_ms);
        true
    }

    /// The term of the heartbeat that stands here; `None`: none does.
    pub fn stands_in(&self) -> Option<u64> {
        self.stands_from.map(|(_, term)| term)
    }

    /// The heartbeat that stands was repeated, the last time at `at_ms`. To be followed by [`Replica::tick`].
    pub fn hear(&mut self, at_ms: u64) {
        if self.stands_from.is_some() && at_ms > self.heard_ms {
            (self.heard_ms, self.is_heard) = (at_ms, true);
        }
    }

    /// A follower has answered to the heartbeat that stands.
    pub fn note_answer(&mut self, from: ReplicaId) {
        if self.role.state == RoleState::Leader
            && let Some(progress) = self.node.raft.mut_prs().get_mut(from.0)
        {
            progress.recent_active = true;
        }
    }

    /// A follower takes no heartbeat for one that stands: it gets the next one in full.
    pub fn note_refusal(&mut self, from: ReplicaId) {
        self.standing.retain(|(id, _)| *id != from.0);
    }
}
