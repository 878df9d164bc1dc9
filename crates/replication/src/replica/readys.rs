//! The work that the Raft library has for a replica, carried out in order: entries are written, messages leave, what is committed is
//! applied.

use super::effects::Outgoing;
use super::entry_log::EntrySink;
use super::{Replica, leader_epoch};
use crate::error::ReplicaError;
use crate::group::{Configuration, ReplicaId};
use crate::journal::{Frame, Start, Vote};
use crate::store::is_stub;
use crate::unsynced::{Durable, Writes};
use raft::eraftpb::{Entry, HardState, Message, MessageType};
use raft::{ReadState, Ready};

impl Replica {
    pub(super) fn drive_into(&mut self) -> Result<(), ReplicaError> {
        self.check_running()?;
        if self.space.is_awaited() {
            return Ok(());
        }
        let driven = self.take_readys();
        self.group.draw_election_timeout();
        driven.or_else(|error| self.handle_write_error(error))
    }

    fn take_readys(&mut self) -> Result<(), ReplicaError> {
        while let Some(ready) = self.group.next_ready() {
            self.take_ready(ready)?;
        }
        Ok(())
    }

    fn take_ready(&mut self, mut ready: Ready) -> Result<(), ReplicaError> {
        let mut frames = Vec::from_iter(self.vote_to_write(&ready)?.map(Frame::Vote));
        let (number, has_vote) = (ready.number(), !frames.is_empty());
        let restored = self.begin_behind(ready.snapshot(), &mut frames)?;
        let log_upto = self.write_entries(&ready.take_entries(), &mut frames)?;
        let journal_upto = self.journal.write(&mut frames)?;
        let writes = Writes { number, has_vote, journal_upto, log_upto };
        let (now, later) = (ready.take_messages(), ready.take_persisted_messages());
        let committed = ready.take_committed_entries();
        self.note_confirmed(ready.take_read_states());
        let has_state = ready.ss().is_some() || ready.hs().is_some();
        self.group.note_written(ready);
        self.send(now)?;
        let mut out = Vec::new();
        self.log.wait_for_disk(writes, later, &mut out);
        self.send(out)?;
        if has_state {
            self.note_role();
        }
        self.apply(&committed)?;
        self.note_committed()?;
        self.note_lost();
        self.settle();
        if let Some(start) = restored {
            // The library knows by now that all of it is on disk.
            self.group.note_applied(start.index);
        }
        Ok(())
    }

    /// The term and vote that have to be written, if they are others than those in the journal.
    fn vote_to_write(&self, ready: &Ready) -> Result<Option<Vote>, ReplicaError> {
        let Some(vote) = ready.hs().filter(|_| ready.must_sync()).map(vote_of) else { return Ok(None) };
        // Before it is written: in a term without an epoch nothing could be appended.
        leader_epoch(vote.term)?;
        Ok((vote != self.journal.vote()).then_some(vote))
    }

    /// Writes entries behind those that stay; returns up to where the log has to be durable for them.
    fn write_entries(&mut self, entries: &[Entry], frames: &mut Vec<Frame>) -> Result<i64, ReplicaError> {
        let Some(first) = entries.first() else { return Ok(0) };
        if first.index <= self.group.index().last() {
            self.cut(first.index, frames)?;
        }
        let (index, now_ms) = (self.group.index_mut(), self.now_ms);
        self.log.write(entries, &mut EntrySink { index, journal: &mut self.journal, frames, now_ms })
    }

    /// Removes the entries from `index` on: another leader has others. Durable when this returns, so that a power cut
    /// brings nothing back.
    pub(super) fn cut(&mut self, index: u64, frames: &mut Vec<Frame>) -> Result<(), ReplicaError> {
        let end = self.end_of_entry(index - 1)?;
        self.promises.forget_regained(index);
        self.promises.lower(end)?;
        self.log.cut(end.offset, self.now_ms)?;
        frames.push(Frame::Cut { index });
        self.journal.note_terms(end.offset);
        self.group.index_mut().cut(index, end.offset);
        Ok(())
    }

    /// The place behind an entry that has to be here.
    pub(super) fn end_of_entry(&self, index: u64) -> Result<Start, ReplicaError> {
        let entries = self.group.index();
        let offset = entries.offset_behind(index, self.log())?;
        let offset =
            offset.ok_or_else(|| ReplicaError::Damaged(format!("no entry precedes {}", index + 1)))?;
        Ok(Start { index, term: entries.term(index).unwrap_or(0), offset })
    }

    /// Notes the questions whether it leads that were answered.
    fn note_confirmed(&mut self, states: Vec<ReadState>) {
        let numbers = states.into_iter().map(|state| state.request_ctx.try_into());
        self.effects.confirmed.extend(numbers.flatten().map(u64::from_be_bytes));
    }

    fn send(&mut self, messages: Vec<Message>) -> Result<(), ReplicaError> {
        for message in messages {
            let begins_coalescing = match message.get_msg_type() {
                MessageType::MsgAppend if self.was_just_asked(&message) => continue,
                MessageType::MsgHeartbeat if message.context.is_empty() => {
                    let has_everything = self.group.says_all(&message);
                    let coalesced = self.peers.coalesce(message.to, message.commit, has_everything);
                    let Some(begins) = coalesced else { continue };
                    begins
                }
                _ => false,
            };
            let outgoing = Outgoing::of(message, self.group.index(), self.log.log())?;
            self.effects.messages.extend(outgoing.map(|outgoing| Outgoing { begins_coalescing, ..outgoing }));
        }
        Ok(())
    }

    /// Returns true if the library wants an append sent again that its replica was sent a moment ago, over the same link: it answers
    /// heartbeats, and its disk is full. The library asks with each heartbeat.
    fn was_just_asked(&mut self, append: &Message) -> bool {
        let Message { to, index, .. } = *append;
        let is_probe = self.group.is_probed(to);
        !append.get_entries().is_empty() && self.peers.was_just_asked(to, index, is_probe, self.now_ms)
    }

    /// Finds the replicas that need entries which are not here any more. A leader's knowledge may be older than what a replica has: each is
    /// asked first for the entry that precedes those here.
    pub(super) fn find_too_far_behind(&mut self) -> Result<Vec<ReplicaId>, ReplicaError> {
        let behind = self.group.take_behind();
        let (asked, behind): (Vec<u64>, Vec<u64>) =
            behind.into_iter().partition(|id| self.ask_for_start(*id));
        if !asked.is_empty() {
            self.drive_into()?;
        }
        Ok(behind.into_iter().map(ReplicaId).collect())
    }

    /// Asks a replica whether it has the entry that precedes those here; `false`: it was asked already.
    fn ask_for_start(&mut self, id: u64) -> bool {
        let start = self.start().index;
        let asks = !self.peers.was_asked_for_start(id, start) && self.group.ask_for_start(id);
        if asks {
            self.peers.note_asked_for_start(id, start);
        }
        asks
    }

    pub(super) fn note_role(&mut self) {
        if let Some(role) = self.group.follow_role() {
            self.peers.begin_role();
            self.effects.role = Some(role);
        }
    }

    /// Applies what was committed: changes of members here, all other internal entries outside.
    fn apply(&mut self, committed: &[Entry]) -> Result<(), ReplicaError> {
        let Some(last) = committed.last().map(|entry| entry.index) else { return Ok(()) };
        for entry in committed.iter().filter(|entry| !is_stub(entry)) {
            match self.group.apply(entry)? {
                Some(configuration) => self.note_configuration(entry.index, configuration)?,
                None if entry.data.is_empty() => {}
                None => self.effects.applied.extend(self.group.index().internal(entry.index).cloned()),
            }
        }
        self.group.note_applied(last);
        Ok(())
    }

    fn note_configuration(&mut self, index: u64, configuration: Configuration) -> Result<(), ReplicaError> {
        self.journal.append(self.journal.configuration_frame(index, configuration.clone()))?;
        self.group.set_configuration(configuration.clone());
        // A member may have come that it does not name.
        self.group.set_offer(None);
        self.effects.configuration = Some(configuration);
        Ok(())
    }

    /// Moves the high watermark to what is committed.
    pub(super) fn note_committed(&mut self) -> Result<(), ReplicaError> {
        let committed = self.group.committed();
        if self.log.commit(committed, self.group.index_mut())? {
            self.effects.high_watermark = Some(self.log.ends().high_watermark);
        }
        Ok(())
    }

    /// Notifies the library of what is durable, and lets the messages leave that waited for it.
    pub(super) fn settle(&mut self) {
        self.note_tail();
        let journal = self.journal.durable();
        let log = self.losses.persisted_end(&self.log.ends(), journal);
        let mut out = Vec::new();
        let settled = self.log.settle(Durable { journal, log }, &mut out);
        self.group.note_durable(&settled);
        // Answers have no batches, so that nothing is looked up.
        self.effects.messages.extend(out.into_iter().map(Outgoing::plain));
        if let Err(error) = self.note_promise() {
            self.handle_promise_error(error);
        }
    }
}

fn vote_of(state: &HardState) -> Vote {
    Vote { term: state.term, candidate: (state.vote != 0).then_some(ReplicaId(state.vote)) }
}
