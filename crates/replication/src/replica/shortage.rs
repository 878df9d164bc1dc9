//! A disk without free space, or a process without descriptors or memory: what was half done is taken back, the replica stays in
//! its group as well as it can, and a leader that cannot append gives leadership away.

use super::Replica;
use super::offers::begin_log_again;
use crate::error::ReplicaError;
use crate::group::ReplicaId;
use crate::index::EntryIndex;
use crate::setback::Setback;
use crate::store::is_stub;
use mainstem_log::storage::StorageFault;
use raft::eraftpb::{Message, MessageType};

impl Replica {
    /// Returns true if a message asks for what the disk has no space for. Batches wait for space, in this group alone; no-ops are small,
    /// and go into the journal. And a replica that could not append does not take over.
    pub(super) fn has_no_space_for(&self, message: &Message) -> bool {
        let takes_space = match message.get_msg_type() {
            MessageType::MsgAppend => message.get_entries().iter().any(is_stub),
            MessageType::MsgTimeoutNow => true,
            _ => false,
        };
        takes_space && self.log.is_full()
    }

    /// Deals with what could not be read or written. Where that was a shortage, what was half done is taken back.
    pub(super) fn handle_write_error(&mut self, error: ReplicaError) -> Result<(), ReplicaError> {
        if !self.is_no_more_than_short(&error) {
            return Err(self.fail(error));
        }
        let of_journal = matches!(error, ReplicaError::Journal(_));
        self.note_shortage(&error);
        let begun = self.begin_again();
        self.group.draw_election_timeout();
        match begun {
            // Votes need the journal.
            Ok(()) if !of_journal => {}
            Ok(()) => self.wait_for_space(),
            Err(error) if self.is_no_more_than_short(&error) => self.wait_for_space(),
            Err(error) => return Err(self.fail(error)),
        }
        Ok(())
    }

    /// Makes a full disk known to all that is on it.
    fn note_shortage(&mut self, error: &ReplicaError) {
        if error.fault() == Some(StorageFault::NoSpace) {
            self.log().dir().note_full();
        }
    }

    /// Returns true if an error is of a shortage, and log and journal are as they were before it, or can be made so.
    fn is_no_more_than_short(&self, error: &ReplicaError) -> bool {
        error.fault().is_some_and(StorageFault::is_temporary)
            && self.log().stopped().is_none()
            && !self.journal.has_failed()
    }

    /// Lets nothing leave that answers for durable entries: these could not be noted.
    pub(super) fn handle_promise_error(&mut self, error: ReplicaError) {
        if !error.fault().is_some_and(StorageFault::is_temporary) {
            self.fail(error);
            return;
        }
        self.effects.messages.clear();
        self.note_shortage(&error);
        self.wait_for_space();
    }

    /// Begins with what is in log and journal, as at a start: what the library has wanted written is not all there. What is
    /// there and not durable is not taken for persisted.
    pub(super) fn begin_again(&mut self) -> Result<(), ReplicaError> {
        self.log.log_mut().finish_cut(self.now_ms)?;
        let mut state = self.journal.state()?;
        state.applied = state.applied.max(self.group.applied());
        // What the library has as committed may be of entries that were to take the place of those here.
        state.committed = state.committed.max(self.log.committed().0);
        if state.restoring {
            // The journal had space for what the log is to begin with, and not for more.
            begin_log_again(self.log.log_mut(), &self.journal, state.start, self.now_ms)?;
            self.note_restored(state.start, state.configuration.clone());
        }
        let index = EntryIndex::open(&state, None, self.log.log_mut(), self.now_ms)?;
        let last = self.group.restart(&state, index, self.log.ends().log_start)?;
        let journal_upto = self.journal.appended();
        self.journal.note_terms_written(journal_upto);
        self.log.restart(journal_upto, last);
        self.peers.restart();
        self.note_role();
        self.note_committed()?;
        self.settle();
        self.note_found_marks()
    }

    /// Takes part in nothing until there is space.
    fn wait_for_space(&mut self) {
        self.space.wait(self.now_ms);
        if let Some(role) = self.group.withdraw() {
            self.effects.role = Some(role);
        }
        self.peers.end_all_coalesced();
        tracing::debug!(partition = %self.log().partition(), "the replica waits for space, descriptors or memory");
        self.effects.setbacks.push(Setback::WaitsForSpace);
    }

    /// Takes part again, if there is space.
    pub(super) fn retry_after_disk_full(&mut self) {
        if !self.space.try_again(self.log.is_full(), self.now_ms) {
            return;
        }
        if let Err(error) = self.begin_again() {
            // It says so, or waits on.
            let _ = self.handle_write_error(error);
        }
        self.group.draw_election_timeout();
    }

    /// Has a leader that cannot append for want of space or descriptors give leadership to a replica that has what is committed. That one
    /// does not take it if it has no space either.
    pub(super) fn hand_off_leadership_if_full(&mut self) {
        let may = self.group.is_leader() && !self.group.hands_over();
        if !may || !self.space.is_hand_off_due(self.log.is_full(), self.now_ms) {
            return;
        }
        if let Some(to) = self.group.best_successor(self.space.offered_to()) {
            self.space.note_hand_off(to, self.now_ms);
            let to_node = ReplicaId(to).node();
            tracing::debug!(partition = %self.log().partition(), to_node, "leadership is given away: this node has no space, descriptors or memory for an append");
            self.effects.setbacks.push(Setback::HandedOffLeadership);
            self.group.transfer(to);
        }
    }
}
