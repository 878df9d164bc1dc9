//! A disk without room, or a process without descriptors or memory: what was half done is taken back, the replica stays in
//! its group as well as it can, and a leader without room makes way for another one.

use super::offers::begin_log_anew;
use super::{Replica, Role, RoleState, new_node};
use crate::error::ReplicaError;
use crate::group::ReplicaId;
use crate::incoming::Incoming;
use crate::index::EntryIndex;
use crate::setback::Setback;
use crate::store::is_stub;
use crate::unsynced::Durable;
use mainstem_log::storage::StorageFault;
use raft::StateRole;
use raft::eraftpb::{Message, MessageType};

/// A leader without room looks for another one so often, at most.
const MAKE_WAY_MS: u64 = 2_000;

/// For so long after an append that found no handle a leader looks for another one.
pub(super) const SHORT_MS: u64 = 1_000;

/// A replica that waits for descriptors or memory looks for them so often.
const RETRY_MS: u64 = 500;

impl Replica {
    /// Batches wait for room, in this group alone; no-ops are small, and go into the journal. And a replica that could not
    /// append does not take over.
    pub(super) fn has_no_room_for(&self, message: &Message) -> bool {
        let takes_room = match message.get_msg_type() {
            MessageType::MsgAppend => message.get_entries().iter().any(is_stub),
            MessageType::MsgTimeoutNow => true,
            _ => false,
        };
        takes_room && self.log.dir().is_full()
    }

    /// Deals with what could not be read or written. Where that was a shortage, what was half done is taken back.
    pub(super) fn make_do(&mut self, error: ReplicaError) -> Result<(), ReplicaError> {
        if !self.is_no_more_than_short(&error) {
            return Err(self.fail(error));
        }
        let of_journal = matches!(error, ReplicaError::Journal(_));
        self.note_shortage(&error);
        let begun = self.begin_anew();
        self.choose_election_timeout();
        match begun {
            // Votes need the journal.
            Ok(()) if !of_journal => Ok(()),
            Ok(()) => {
                self.wait_for_room();
                Ok(())
            }
            Err(error) if self.is_no_more_than_short(&error) => {
                self.wait_for_room();
                Ok(())
            }
            Err(error) => Err(self.fail(error)),
        }
    }

    /// A full disk is known to all that is on it.
    pub(super) fn note_shortage(&mut self, error: &ReplicaError) {
        if error.fault() == Some(StorageFault::NoSpace) {
            self.log.dir().note_full();
        }
    }

    /// Returns true if an error is of a shortage, and log and journal are as they were before it, or can be made so.
    fn is_no_more_than_short(&self, error: &ReplicaError) -> bool {
        error.fault().is_some_and(StorageFault::is_temporary)
            && self.log.stopped().is_none()
            && !self.journal.lock().has_failed()
    }

    /// Begins with what is in log and journal, as at a start: what the library has wanted written is not all there. What is
    /// there and not durable is not taken for persisted.
    pub(super) fn begin_anew(&mut self) -> Result<(), ReplicaError> {
        self.log.finish_cut(self.now_ms)?;
        let before = &self.node.raft.raft_log;
        let persisted = before.persisted;
        let mut state = self.journal.lock().group(self.group).cloned().ok_or(ReplicaError::Unknown)?;
        state.applied = state.applied.max(before.applied);
        // What the library has as committed may be of entries that were to take the place of those here.
        state.committed = state.committed.max(self.committed_offset.0);
        if state.restoring {
            // The journal had room for what the log is to begin with, and not for more.
            begin_log_anew(&mut self.log, self.group, &self.journal, state.start, self.now_ms)?;
            self.note_restored(state.start, state.configuration.clone());
        }
        let index = EntryIndex::open(&state, None, &mut self.log, self.now_ms)?;
        let last = index.last();
        let entry = (last, index.term(last).unwrap_or(0));
        let offer = self.node.mut_store().offer.take();
        self.node = new_node(self.own, &state, index, &self.log)?;
        self.node.mut_store().offer = offer;
        self.node.skip_bcast_commit(!self.options.broadcast_commit);
        let log = &mut self.node.raft.raft_log;
        log.persisted = persisted.clamp(log.applied, last);
        let durable = Durable { journal: self.journal.lock().appended(), log: self.log.ends().log_end };
        self.note_terms_written(durable.journal);
        self.unsynced.begin_anew(durable, entry);
        self.appending.clear();
        self.incoming = Incoming::default();
        self.configuration = state.configuration;
        self.standing.clear();
        self.asked_for_start.clear();
        self.fetching.clear();
        (self.stands_from, self.is_heard) = (None, false);
        (self.rested, self.heartbeat_ticks, self.split_term) = (false, 0, 0);
        self.election = (u64::MAX, StateRole::Follower);
        self.note_role();
        self.note_committed()?;
        self.settle();
        Ok(())
    }

    pub(super) fn wait_for_room(&mut self) {
        self.waits_for_room = true;
        let role = Role { state: RoleState::Follower { leader: None }, ..self.role };
        if role != self.role {
            self.role = role;
            self.effects.role = Some(role);
        }
        self.standing.clear();
        (self.stands_from, self.is_heard) = (None, false);
        tracing::debug!(partition = %self.log.partition(), "the replica waits for space, descriptors or memory");
        self.effects.setbacks.push(Setback::WaitsForRoom);
        self.retry_ms = self.now_ms + RETRY_MS;
    }

    pub(super) fn look_for_room(&mut self) {
        if self.log.dir().is_full() || self.now_ms < self.retry_ms {
            return;
        }
        self.waits_for_room = false;
        if let Err(error) = self.begin_anew() {
            // It says so, or waits on.
            let _ = self.make_do(error);
        }
        self.choose_election_timeout();
    }

    /// A leader that cannot append for want of room or handles gives leadership to a replica that has what is committed. That one does
    /// not take it if it has no room either.
    pub(super) fn make_way(&mut self) {
        let (next_ms, tried) = self.make_way;
        let may = self.role.state == RoleState::Leader && self.node.raft.lead_transferee.is_none();
        let is_short = self.log.dir().is_full() || self.now_ms < self.short_until_ms;
        if !may || self.now_ms < next_ms || !is_short {
            return;
        }
        let committed = self.node.raft.raft_log.committed;
        let others = self.voters().filter(|(id, progress)| {
            *id != self.own.0 && progress.recent_active && progress.matched >= committed
        });
        let best = others.max_by_key(|(id, progress)| (*id != tried, progress.matched, *id));
        if let Some((to, _)) = best {
            self.make_way = (self.now_ms + MAKE_WAY_MS, to);
            let to_node = ReplicaId(to).node();
            tracing::debug!(partition = %self.log.partition(), to_node, "leadership is given away: this node has no space, descriptors or memory for an append");
            self.effects.setbacks.push(Setback::MadeWay);
            self.node.transfer_leader(to);
        }
    }
}
