//! Time, and when a replica asks for votes.

use super::{ELECTION_TICKS, HEARTBEAT_TICKS, Replica, RoleState, SPLIT_VOTE_TICKS, TICK_MS, mix};
use crate::setback::Setback;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};
use std::cmp::Reverse;

impl Replica {
    /// Lets the time pass. Of ticks that were missed, one is made up for, or those of a rest: a process that was stopped
    /// asks before it campaigns.
    pub fn tick(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
        self.begin_doubt();
        let late_ms = now_ms.saturating_sub(self.ticked_ms);
        if late_ms < TICK_MS || self.failed.is_some() {
            return;
        }
        if self.waits_for_room {
            (self.ticked_ms, self.rested) = (now_ms, false);
            self.look_for_room();
            return;
        }
        let mut ticks = if self.rested { (late_ms / TICK_MS).min(self.rest_ticks()) } else { 1 };
        let given_ms = ticks * TICK_MS;
        self.ticked_ms = if late_ms < given_ms + TICK_MS { self.ticked_ms + given_ms } else { now_ms };
        if self.waits_alone() || self.doubts() {
            return;
        }
        self.note_tail();
        if self.lacks_promised() {
            return self.pass_lease(ticks);
        }
        if std::mem::take(&mut self.is_heard) {
            self.node.raft.election_elapsed = 0;
            ticks = ticks.min(now_ms.saturating_sub(self.heard_ms) / TICK_MS);
        }
        let successor = self.successor(ticks);
        let led = self.leads_in();
        (0..ticks).for_each(|_| _ = self.node.tick());
        // A leader is no more one in its own term for this cause alone.
        if led.is_some_and(|term| self.node.raft.term == term) && self.leads_in().is_none() {
            self.effects.setbacks.push(Setback::LostMajority);
        }
        if let Some(successor) = successor.filter(|_| self.node.raft.state == StateRole::Follower) {
            self.node.raft.send_timeout_now(successor);
        }
        self.make_way();
        self.heartbeat_ticks += ticks;
        self.rested = self.rests();
        if self.heartbeat_ticks >= HEARTBEAT_TICKS {
            self.heartbeat_ticks = 0;
            if !self.rested {
                self.node.ping();
            }
        }
        if self.role.state == RoleState::Leader {
            self.watch_offers();
        }
        self.choose_election_timeout();
    }

    /// The term in which it leads, as the library has it.
    fn leads_in(&self) -> Option<u64> {
        let raft = &self.node.raft;
        (raft.state == StateRole::Leader).then_some(raft.term)
    }

    /// The library draws election time-outs from the thread's generator; they are drawn here instead, so that equal
    /// seeds give equal runs. It draws whenever term or role change.
    pub(super) fn choose_election_timeout(&mut self) {
        let state = (self.node.raft.term, self.node.raft.state);
        if state != self.election {
            self.election = state;
            self.random = mix(self.random);
            let ticks = ELECTION_TICKS + (self.random % ELECTION_TICKS as u64) as usize;
            self.node.raft.set_randomized_election_timeout(ticks);
            self.ask_again_soon();
        }
    }

    /// Asks for votes now, not when the time-out ends: the leader is known to be gone.
    pub fn campaign(&mut self) {
        if self.is_taking_part() && !self.waits_alone() && !self.doubts() && !self.lacks_promised() {
            // A replica that must not campaign does not.
            let _ = self.node.campaign();
        }
    }

    /// Asks for votes in the place of a leader that is known to be gone, unless votes are under way.
    pub fn succeed(&mut self) {
        if matches!(self.node.raft.state, StateRole::Follower | StateRole::PreCandidate) {
            self.campaign();
        }
    }

    /// The leader is known to be gone: this replica votes for another one before its lease is over. A follower within
    /// it leaves requests for its vote without an answer.
    pub fn expect_no_leader(&mut self) {
        if self.is_taking_part() && self.role.state != RoleState::Leader {
            self.node.raft.election_elapsed = self.node.raft.election_elapsed.max(ELECTION_TICKS);
            (self.stands_from, self.is_heard, self.rested) = (None, false, false);
        }
    }

    /// Alone in its group, it would lead with a tail that is not durable.
    pub(super) fn waits_alone(&self) -> bool {
        self.configuration.voters.len() == 1 && !self.unsynced.is_empty()
    }

    /// Who asks for votes at once where a leader finds, within so many ticks, that no majority answers, and leads no more. Where nothing
    /// gets to it any more, others still hear its heartbeats, and would begin to wait for their time-outs when those end. It is the
    /// voter that had most, of those that have not answered: those that have are no majority.
    pub(super) fn successor(&self, ticks: u64) -> Option<u64> {
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader || raft.election_elapsed + (ticks as usize) < ELECTION_TICKS {
            return None;
        }
        let voters = self.configuration.voters.iter().filter(|voter| **voter != self.own);
        let of_voters = voters.filter_map(|voter| Some((voter.0, raft.prs().get(voter.0)?)));
        let silent = of_voters.filter(|(_, progress)| !progress.recent_active);
        silent.max_by_key(|(id, progress)| (progress.matched, Reverse(*id))).map(|(id, _)| id)
    }

    /// Whether a message is of another candidate in the term in which this replica is one: each has its own vote, and perhaps none
    /// gets enough. Of the two, this replica has more, or as much and the greater id: it is not refused for what it lacks.
    pub(super) fn has_the_same_term_as_candidate(&self, message: &Message) -> bool {
        let (raft, log) = (&self.node.raft, &self.node.raft.raft_log);
        message.get_msg_type() == MessageType::MsgRequestVote
            && message.term == raft.term
            && raft.state == StateRole::Candidate
            && (message.log_term, message.index, message.from)
                < (log.last_term(), log.last_index(), self.own.0)
    }

    /// Has this replica ask for votes again soon after a split vote, also where the others have refused it meanwhile: the other
    /// candidate waits for its whole time-out.
    pub(super) fn ask_again_soon(&mut self) {
        let raft = &mut self.node.raft;
        let is_leaderless = raft.state == StateRole::Candidate
            || (raft.state == StateRole::Follower && raft.leader_id == 0 && raft.vote == self.own.0);
        if is_leaderless && raft.term == self.split_term {
            let soon = raft.randomized_election_timeout().saturating_sub(SPLIT_VOTE_TICKS);
            raft.election_elapsed = raft.election_elapsed.max(soon);
            if raft.state == StateRole::Follower {
                // Once: what refuses the next request may have more than this replica.
                self.split_term = 0;
            }
        }
    }

    /// Whether a message asks for a vote that this replica will refuse because the other one's log lacks what its own has, while
    /// there is no leader: the other one cannot win, and this one need not wait for its time-out to try.
    pub(super) fn could_win_instead_of(&self, message: &Message) -> bool {
        let (raft, log) = (&self.node.raft, &self.node.raft.raft_log);
        let is_leaderless = raft.leader_id == 0 || raft.election_elapsed >= ELECTION_TICKS;
        message.get_msg_type() == MessageType::MsgRequestPreVote
            && message.term > raft.term
            && raft.state == StateRole::Follower
            && is_leaderless
            && (message.log_term, message.index) < (log.last_term(), log.last_index())
    }
}
