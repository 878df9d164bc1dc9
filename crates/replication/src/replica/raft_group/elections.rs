//! Time, and when a replica asks for votes.

use super::super::ticks::{ELECTION_TICKS, QUIESCENT_TICKS, TICK_MS};
use super::super::vote_hold::VoteHold;
use super::{RaftGroup, Role, RoleState};
use crate::group::ReplicaId;
use crate::store::Store;
use raft::eraftpb::{Message, MessageType};
use raft::{Raft, StateRole};
use std::cmp::Reverse;

/// Ticks after which one of the candidates between which a vote was split asks again: 200 ms, and not another time-out.
const SPLIT_VOTE_TICKS: usize = 4;

/// The randomness of elections, and what a split vote leaves.
#[derive(Debug)]
pub(super) struct Election {
    /// The library's state when the time-out was drawn.
    drawn_in: (u64, StateRole),
    /// The state of the generator.
    random: u64,
    /// The term in which this replica's vote was split with that of another candidate, for as long as it may ask again early; 0: none.
    split_term: u64,
}

/// No state that the library has.
const UNDRAWN: (u64, StateRole) = (u64::MAX, StateRole::Follower);

impl Election {
    pub(super) fn new(seed: u64) -> Election {
        Election { drawn_in: UNDRAWN, random: seed, split_term: 0 }
    }

    /// Draws again in any state, and forgets a split vote.
    pub(super) fn restart(&mut self) {
        (self.drawn_in, self.split_term) = (UNDRAWN, 0);
    }

    /// Draws a time-out in ticks, where term or role have changed since the last one.
    fn draw(&mut self, state: (u64, StateRole)) -> Option<usize> {
        if state == self.drawn_in {
            return None;
        }
        (self.drawn_in, self.random) = (state, mix(self.random));
        Some(ELECTION_TICKS + (self.random % ELECTION_TICKS as u64) as usize)
    }

    /// Has a replica ask for votes again soon after a split vote, also where the others have refused it meanwhile: the other
    /// candidate waits for its whole time-out.
    fn ask_again_soon(&mut self, raft: &mut Raft<Store>, own: ReplicaId) {
        let is_leaderless = raft.state == StateRole::Candidate
            || (raft.state == StateRole::Follower && raft.leader_id == 0 && raft.vote == own.0);
        if is_leaderless && raft.term == self.split_term {
            let soon = raft.randomized_election_timeout().saturating_sub(SPLIT_VOTE_TICKS);
            raft.election_elapsed = raft.election_elapsed.max(soon);
            if raft.state == StateRole::Follower {
                // Once: what refuses the next request may have more than this replica.
                self.split_term = 0;
            }
        }
    }
}

/// The finaliser of splitmix64.
fn mix(state: u64) -> u64 {
    let mut x = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

impl RaftGroup {
    /// Draws the election time-out whenever term or role change. The library draws it from the thread's generator; it is drawn here
    /// instead, so that equal seeds give equal runs.
    pub(in crate::replica) fn draw_election_timeout(&mut self) {
        let raft = &mut self.node.raft;
        if let Some(ticks) = self.election.draw((raft.term, raft.state)) {
            raft.set_randomized_election_timeout(ticks);
            self.election.ask_again_soon(raft, self.own);
        }
    }

    /// Notes that the vote of a term was split between this candidate and another one: it asks again soon.
    pub(in crate::replica) fn note_split_vote(&mut self, term: u64) {
        self.election.split_term = term;
        self.election.ask_again_soon(&mut self.node.raft, self.own);
    }

    /// Asks for votes now, not when the time-out ends: the leader is known to be gone.
    pub(in crate::replica) fn campaign(&mut self) {
        // A replica that must not campaign does not.
        let _ = self.node.campaign();
    }

    /// Returns true if it does not lead, and no votes are under way.
    pub(in crate::replica) fn may_succeed(&self) -> bool {
        matches!(self.node.raft.state, StateRole::Follower | StateRole::PreCandidate)
    }

    /// Votes for another leader before the lease of the present one is over: it is known to be gone. A follower within the lease leaves
    /// requests for its vote without an answer.
    pub(in crate::replica) fn expect_no_leader(&mut self) {
        self.node.raft.election_elapsed = self.node.raft.election_elapsed.max(ELECTION_TICKS);
        self.contact.end();
        self.ticks.set_quiescent(false);
    }

    /// The hold on this replica's votes.
    pub(in crate::replica) fn vote_hold(&self) -> &VoteHold {
        &self.hold
    }

    pub(in crate::replica) fn vote_hold_mut(&mut self) -> &mut VoteHold {
        &mut self.hold
    }

    /// Has the heartbeats of a leader coalesced from the one on that was just taken. Returns false where this replica does not follow it.
    pub(in crate::replica) fn accept_coalesced(&mut self, from: ReplicaId, term: u64, now_ms: u64) -> bool {
        let follows = self.role == Role { term, state: RoleState::Follower { leader: Some(from) } };
        if follows {
            self.contact.begin(from, term, now_ms);
        }
        follows
    }

    /// Notes when the last coalesced heartbeat came.
    pub(in crate::replica) fn note_contact(&mut self, at_ms: u64) {
        self.contact.note(at_ms);
    }

    /// The term of the leader whose heartbeats are coalesced; `None`: no leader's are.
    pub(in crate::replica) fn coalesced_term(&self) -> Option<u64> {
        self.contact.leader().map(|(_, term)| term)
    }

    /// Returns true if a coalesced heartbeat came a short time ago.
    pub(in crate::replica) fn has_recent_contact(&self, now_ms: u64) -> bool {
        self.contact.is_recent(now_ms)
    }

    /// Returns true if a tick is due.
    pub(in crate::replica) fn is_tick_due(&self, now_ms: u64) -> bool {
        self.ticks.is_due(now_ms)
    }

    /// The time of the next tick of a replica that is quiescent or not.
    pub(in crate::replica) fn next_tick_ms(&self, is_quiescent: bool) -> u64 {
        self.ticks.next_ms(is_quiescent, self.quiescent_ticks())
    }

    /// Takes the ticks that are due.
    pub(in crate::replica) fn take_ticks(&mut self, now_ms: u64) -> u64 {
        self.ticks.take(now_ms, self.quiescent_ticks())
    }

    /// Lets all time pass without a tick.
    pub(in crate::replica) fn skip_ticks(&mut self, now_ms: u64) {
        self.ticks.skip_to(now_ms);
    }

    /// Ticks that may wait for each other. Those of a leader end where it looks who has answered since it looked last: answers that
    /// come after that count for the next time.
    fn quiescent_ticks(&self) -> u64 {
        match self.role.state {
            RoleState::Leader => {
                let left = ELECTION_TICKS.saturating_sub(self.node.raft.election_elapsed);
                QUIESCENT_TICKS.min(left as u64).max(1)
            }
            RoleState::Follower { .. } | RoleState::Candidate => QUIESCENT_TICKS,
        }
    }

    /// Lets ticks pass for the library; after a contact with the leader, those alone that came since. Returns how many passed, and true
    /// if a leader has got nothing from a majority for too long, and leads no more.
    pub(in crate::replica) fn pass(&mut self, mut ticks: u64, now_ms: u64) -> (u64, bool) {
        if let Some(contact_ms) = self.contact.take_new() {
            self.node.raft.election_elapsed = 0;
            ticks = ticks.min(now_ms.saturating_sub(contact_ms) / TICK_MS);
        }
        let successor = self.successor(ticks);
        let led = self.leads_in();
        (0..ticks).for_each(|_| _ = self.node.tick());
        // A leader is no more one in its own term for this cause alone.
        let has_lost_majority =
            led.is_some_and(|term| self.node.raft.term == term) && self.leads_in().is_none();
        if let Some(successor) = successor.filter(|_| self.node.raft.state == StateRole::Follower) {
            self.node.raft.send_timeout_now(successor);
        }
        (ticks, has_lost_majority)
    }

    /// Lets ticks pass for a replica that does not ask for votes, and gives them: a leader without contact for too long has its lease no
    /// more.
    pub(in crate::replica) fn pass_lease(&mut self, ticks: u64) {
        let raft = &mut self.node.raft;
        match self.contact.take_new() {
            Some(_) => raft.election_elapsed = 0,
            None if raft.leader_id != 0 => {
                raft.election_elapsed = raft.election_elapsed.saturating_add(ticks as usize)
            }
            // Several of them may ask for votes from the same time on: each waits for its own time-out then.
            None => {}
        }
        if raft.leader_id != 0 && raft.election_elapsed >= raft.randomized_election_timeout() {
            // It knows of no leader then, and says nothing of it.
            raft.become_follower(raft.term, 0);
            raft.election_elapsed = ELECTION_TICKS;
            // The library has drawn another one by that.
            self.election.drawn_in = UNDRAWN;
            self.draw_election_timeout();
        }
    }

    /// Sends heartbeats, if they are due after these ticks and the replica is not quiescent.
    pub(in crate::replica) fn ping_if_due(&mut self, ticks: u64, is_quiescent: bool) {
        self.ticks.set_quiescent(is_quiescent);
        if self.ticks.is_heartbeat_due(ticks) && !is_quiescent {
            self.node.ping();
        }
    }

    /// The term in which it leads, as the library has it.
    fn leads_in(&self) -> Option<u64> {
        let raft = &self.node.raft;
        (raft.state == StateRole::Leader).then_some(raft.term)
    }

    /// The voter that asks for votes at once where a leader finds, within so many ticks, that no majority answers, and leads no more. Where
    /// nothing gets to it any more, others still get its heartbeats, and would begin to wait for their time-outs when those end. It is
    /// the one that had most, of those that have not answered: those that have are no majority.
    fn successor(&self, ticks: u64) -> Option<u64> {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader || raft.election_elapsed + (ticks as usize) < ELECTION_TICKS {
            return None;
        }
        let voters = self.configuration.voters.iter().filter(|voter| **voter != self.own);
        let of_voters = voters.filter_map(|voter| Some((voter.0, raft.prs().get(voter.0)?)));
        let silent = of_voters.filter(|(_, progress)| !progress.recent_active);
        silent.max_by_key(|(id, progress)| (progress.matched, Reverse(*id))).map(|(id, _)| id)
    }

    /// Returns true if a message is of another candidate in the term in which this replica is one: each has its own vote, and perhaps none
    /// gets enough. Of the two, this replica has more, or as much and the greater id: it is not refused for what it lacks.
    pub(in crate::replica) fn splits_vote(&self, message: &Message) -> bool {
        let (raft, log) = (&self.node.raft, &self.node.raft.raft_log);
        message.get_msg_type() == MessageType::MsgRequestVote
            && message.term == raft.term
            && raft.state == StateRole::Candidate
            && (message.log_term, message.index, message.from)
                < (log.last_term(), log.last_index(), self.own.0)
    }

    /// Returns true if a message asks for a vote that this replica will refuse because the other one's log lacks what its own has, while
    /// there is no leader: the other one cannot win, and this one need not wait for its time-out to try.
    pub(in crate::replica) fn could_win_instead_of(&self, message: &Message) -> bool {
        let (raft, log) = (&self.node.raft, &self.node.raft.raft_log);
        let is_leaderless = raft.leader_id == 0 || raft.election_elapsed >= ELECTION_TICKS;
        message.get_msg_type() == MessageType::MsgRequestPreVote
            && message.term > raft.term
            && raft.state == StateRole::Follower
            && is_leaderless
            && (message.log_term, message.index) < (log.last_term(), log.last_index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_is_drawn_once_for_each_term_and_role_and_from_the_seed_alone() {
        let states = [
            (1, StateRole::Follower),
            (1, StateRole::Follower),
            (2, StateRole::PreCandidate),
            (2, StateRole::Candidate),
            (2, StateRole::Candidate),
            (2, StateRole::Leader),
        ];
        let drawn = |seed| {
            let mut election = Election::new(seed);
            states.map(|state| election.draw(state))
        };
        let first = drawn(7);
        assert_eq!(first.map(|one| one.is_some()), [true, false, true, true, false, true]);
        assert!(first.into_iter().flatten().all(|ticks| (20..40).contains(&ticks)), "{first:?}");
        assert_eq!(first, drawn(7));
        assert_ne!(first, drawn(8));
        let mut election = Election::new(7);
        election.draw(states[0]);
        election.restart();
        assert!(election.draw(states[0]).is_some(), "a replica that begins again draws again");
    }
}
