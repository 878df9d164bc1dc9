//! Time of a replica: ticks, elections, and coalesced heartbeats, so that a group in which nothing happens says nothing by itself.

use super::Replica;
use super::role::RoleState;
use crate::group::ReplicaId;
use crate::setback::Setback;

impl Replica {
    /// Lets the time pass. Of ticks that were missed, one is made up for, or those of a quiescent replica: a process that was stopped
    /// asks before it campaigns.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.group.vote_hold_mut().begin(now_ms);
        if !self.group.is_tick_due(now_ms) || self.failed.is_some() {
            return;
        }
        if self.space.is_awaited() {
            self.group.skip_ticks(now_ms);
            return self.retry_after_disk_full();
        }
        let ticks = self.group.take_ticks(now_ms);
        if self.waits_alone() || self.holds_votes() {
            return;
        }
        self.note_tail();
        if self.lacks_promised() || self.holds_campaign() {
            return self.group.pass_lease(ticks);
        }
        let (ticks, has_lost_majority) = self.group.pass(ticks, now_ms);
        if has_lost_majority {
            self.effects.setbacks.push(Setback::LostMajority);
        }
        self.hand_off_leadership_if_full();
        self.group.ping_if_due(ticks, self.is_quiescent());
        if self.group.is_leader() {
            self.offer_idle_again();
        }
        self.group.draw_election_timeout();
    }

    /// The time at which [`Replica::tick`] is due: later where nothing is to be done before.
    pub fn next_tick_ms(&self) -> u64 {
        self.group.next_tick_ms(self.is_quiescent())
    }

    /// Asks for votes now, not when the time-out ends: the leader is known to be gone.
    pub fn campaign(&mut self) {
        let may_campaign = self.is_taking_part() && !self.waits_alone() && !self.holds_campaign();
        if may_campaign && !self.lacks_promised() {
            self.group.campaign();
        }
    }

    /// Asks for votes in the place of a leader that is known to be gone, unless votes are under way.
    pub fn succeed(&mut self) {
        if self.group.may_succeed() {
            self.campaign();
        }
    }

    /// Has this replica vote for another leader before the lease of the present one is over: it is known to be gone.
    pub fn expect_no_leader(&mut self) {
        if self.is_taking_part() && !self.group.is_leader() {
            self.group.expect_no_leader();
        }
    }

    /// Returns true if it is alone in its group, and would lead with a tail that is not durable.
    fn waits_alone(&self) -> bool {
        self.configuration().is_alone(self.own()) && !self.log.unsynced().is_empty()
    }

    /// Returns true if it may lack what it has acknowledged, and so takes no part in elections.
    pub(super) fn holds_votes(&self) -> bool {
        self.group.vote_hold().holds_votes(self.now_ms)
    }

    /// Returns true if it may lack what it has acknowledged, and so asks for no votes. It may give its own.
    pub(super) fn holds_campaign(&self) -> bool {
        self.group.vote_hold().holds_campaign(self.now_ms)
    }

    /// Returns true if it has nothing to do by itself for a while: a follower whose leader's heartbeats come with all others of that
    /// node, or a leader whose followers have all that there is and know it.
    fn is_quiescent(&self) -> bool {
        match self.role().state {
            RoleState::Follower { .. } => self.group.has_recent_contact(self.now_ms),
            RoleState::Leader => self.group.is_at_ease(|peer, commit| self.peers.is_coalesced(peer, commit)),
            RoleState::Candidate => false,
        }
    }

    /// Has the heartbeats of a leader coalesced from the one on that was just taken. Returns false where this replica does not
    /// follow it, or owes another a term or a vote.
    pub fn accept_coalesced(&mut self, from: ReplicaId, term: u64) -> bool {
        let may_accept = self.log.unsynced().is_empty() && self.is_taking_part();
        may_accept && self.group.accept_coalesced(from, term, self.now_ms)
    }

    /// The term of the leader whose heartbeats are coalesced here; `None`: no leader's are.
    pub fn coalesced_term(&self) -> Option<u64> {
        self.group.coalesced_term()
    }

    /// Notes that the coalesced heartbeat was repeated, the last time at `at_ms`. To be followed by [`Replica::tick`].
    pub fn note_contact(&mut self, at_ms: u64) {
        self.group.note_contact(at_ms);
    }

    /// Notes that a follower has answered to its coalesced heartbeat.
    pub fn note_answer(&mut self, from: ReplicaId) {
        // The answer is its node's, which may have another replica of the group.
        if self.peers.has_coalesced(from.0) {
            self.group.note_answer(from);
        }
    }

    /// Notes that nodes have answered to the coalesced heartbeats of their replicas. An earlier replica of a node, which is gone, gets none.
    pub fn note_answers(&mut self, nodes: &[i32]) {
        let has_answered = |id: &ReplicaId| nodes.contains(&id.node()) && self.peers.has_coalesced(id.0);
        let answered: Vec<_> = self.configuration().replicas().filter(has_answered).collect();
        answered.into_iter().for_each(|id| self.note_answer(id));
    }

    /// Notes that a follower has refused its coalesced heartbeat: it gets the next one in full.
    pub fn note_refusal(&mut self, from: ReplicaId) {
        self.peers.end_coalesced(from.0);
    }
}
