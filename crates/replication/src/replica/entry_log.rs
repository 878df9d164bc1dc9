//! The log of a replica, and the entries of its group on their way into it.
//!
//! A leader writes a batch before the library has its entry; a follower gets the batch with the message that has the entry. Entries wait
//! for the disk in the order in which they were written, and with them the messages that answer for them. Which entry is where is in the
//! [`EntryIndex`], which the library reads as well.

use super::group_journal::GroupJournal;
use crate::change;
use crate::error::ReplicaError;
use crate::incoming::Incoming;
use crate::index::{EntryIndex, Position, term_of};
use crate::journal::{EntryKind, Frame, Mark};
use crate::store::{from_raft, is_stub};
use crate::unsynced::{Durable, Settled, Unsynced, Writes};
use mainstem_log::{AppendError, Appended, Ends, Log, Origin, prepare};
use mainstem_records::{LeaderEpoch, Scratch};
use raft::eraftpb::{Entry, EntryType, Message};
use std::collections::VecDeque;

/// A batch that a leader has appended and the library has not listed yet.
#[derive(Debug, Clone, Copy)]
struct Appending {
    position: Position,
    /// The segment that it began, if it did.
    begins_segment: bool,
}

/// Targets of a write of entries, beside the log.
pub(super) struct EntrySink<'a> {
    pub(super) index: &'a mut EntryIndex,
    pub(super) journal: &'a mut GroupJournal,
    /// Frames that are not written yet.
    pub(super) frames: &'a mut Vec<Frame>,
    pub(super) now_ms: u64,
}

/// The log of a replica, with its entries that are not durable.
pub(super) struct EntryLog {
    log: Log,
    appending: VecDeque<Appending>,
    incoming: Incoming,
    unsynced: Unsynced,
    /// Index of the last entry that is known to be committed, and the offset behind it.
    committed: (u64, i64),
    scratch: Scratch,
}

impl EntryLog {
    pub(super) fn new(log: Log) -> EntryLog {
        EntryLog {
            log,
            appending: VecDeque::new(),
            incoming: Incoming::default(),
            unsynced: Unsynced::default(),
            committed: (0, 0),
            scratch: Scratch::new(),
        }
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    pub(super) fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    pub(super) fn into_log(self) -> Log {
        self.log
    }

    pub(super) fn ends(&self) -> Ends {
        self.log.ends()
    }

    /// Returns true if the disk of the log has no free space.
    pub(super) fn is_full(&self) -> bool {
        self.log.dir().is_full()
    }

    /// Appends a batch of a leader, of about `size` bytes; its entry is listed later. Returns it, and true if an entry has to be proposed.
    pub(super) fn append(
        &mut self,
        size: u32,
        append: impl FnOnce(&mut Log) -> Result<Appended, AppendError>,
    ) -> Result<(Appended, bool), AppendError> {
        let appended = append(&mut self.log)?;
        if appended.duplicate {
            return Ok((appended, false));
        }
        self.appending.push_back(self.appending_of(&appended, size));
        Ok((appended, true))
    }

    /// Returns true if a leader has appended batches that are not listed yet.
    pub(super) fn is_appending(&self) -> bool {
        !self.appending.is_empty()
    }

    fn appending_of(&self, appended: &Appended, size: u32) -> Appending {
        let next_offset = appended.last_offset + 1;
        let position = Position { offset: appended.base_offset, next_offset, size };
        Appending { position, begins_segment: self.log.active_base_offset() == position.offset }
    }

    /// Has the batches that came with a message, for the entries that the library lists next.
    pub(super) fn set_incoming(&mut self, incoming: Incoming) {
        self.incoming = incoming;
    }

    /// Writes entries behind those that stay; returns up to where the log has to be durable for them.
    pub(super) fn write(&mut self, entries: &[Entry], sink: &mut EntrySink<'_>) -> Result<i64, ReplicaError> {
        for entry in entries {
            if is_stub(entry) {
                self.write_batch(entry, sink)?;
                continue;
            }
            if entry.get_entry_type() != EntryType::EntryNormal {
                // It counts only behind what precedes it: a power cut must not take that, and with it who decides.
                self.log.sync_now()?;
                note_base(entry, sink)?;
            }
            write_internal(entry, sink)?;
        }
        self.incoming = Incoming::default();
        Ok(sink.index.end_offset())
    }

    /// Writes a follower's batch; a leader has written it.
    fn write_batch(&mut self, entry: &Entry, sink: &mut EntrySink<'_>) -> Result<(), ReplicaError> {
        let appending = match self.appending.pop_front() {
            Some(appending) => appending,
            None => self.append_incoming(entry.index, sink.now_ms)?,
        };
        let Appending { position, begins_segment } = appending;
        if begins_segment {
            let mark = Mark { index: entry.index, offset: position.offset };
            sink.frames.extend(sink.index.mark(mark).map(Frame::Mark));
        }
        let pushed = sink.index.push_batch(position);
        assert_eq!(pushed, entry.index, "entries are listed in order");
        Ok(())
    }

    fn append_incoming(&mut self, index: u64, now_ms: u64) -> Result<Appending, ReplicaError> {
        let Some(bytes) = self.incoming.batch(index) else {
            return Err(ReplicaError::Damaged(format!("the batch of entry {index} did not come with it")));
        };
        let (config, mut out) = (self.log.config().clone(), Vec::new());
        let prepared = prepare(bytes, &config, 0, Origin::Replication, &mut self.scratch, &mut out)?;
        let end = self.log.ends().log_end;
        let appended = self.log.append(&prepared, LeaderEpoch::NONE, now_ms)?;
        if appended.base_offset != end {
            let offset = appended.base_offset;
            return Err(ReplicaError::Damaged(format!(
                "the batch at {offset} does not follow the log end {end}"
            )));
        }
        let size = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        Ok(self.appending_of(&appended, size))
    }

    /// Cuts the log to an offset. Durable when this returns, so that a power cut brings nothing back.
    pub(super) fn cut(&mut self, offset: i64, now_ms: u64) -> Result<(), ReplicaError> {
        assert!(self.appending.is_empty(), "a leader's log is not cut");
        let end = self.log.truncate_suffix(offset, now_ms)?;
        assert_eq!(end, offset, "a cut falls between batches");
        self.unsynced.cut(offset);
        Ok(())
    }

    /// Lets nothing wait for what is behind an offset: the log ends there, durably.
    pub(super) fn wait_no_further_than(&mut self, offset: i64) {
        self.unsynced.cut(offset);
    }

    /// Lets messages wait until what was written before them is durable. Those that need not wait are added to `out`.
    pub(super) fn wait_for_disk(&mut self, writes: Writes, messages: Vec<Message>, out: &mut Vec<Message>) {
        self.unsynced.push(writes, messages, out);
    }

    /// Returns what is durable by now, for the library, and adds the messages that have waited for it to `out`.
    pub(super) fn settle(&mut self, durable: Durable, out: &mut Vec<Message>) -> Settled {
        self.unsynced.settle(durable, out)
    }

    /// The writes that are not durable, and what waits for them.
    pub(super) fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    /// Begins with the entries that are in the log, the last of which has this index and term. Nothing of them counts as durable.
    pub(super) fn restart(&mut self, journal_upto: u64, last: (u64, u64)) {
        self.unsynced.restart(Durable { journal: journal_upto, log: self.log.ends().log_end }, last);
        self.appending.clear();
        self.incoming = Incoming::default();
    }

    /// Index of the last entry that is known to be committed, and the offset behind it.
    pub(super) fn committed(&self) -> (u64, i64) {
        self.committed
    }

    /// Notes that entries up to an index are committed. Returns true if the high watermark has moved.
    pub(super) fn commit(&mut self, committed: u64, index: &mut EntryIndex) -> Result<bool, ReplicaError> {
        let committed = committed.min(index.last());
        if committed <= self.committed.0 {
            return Ok(false);
        }
        let Some(offset) = index.offset_behind(committed, &self.log)? else { return Ok(false) };
        self.committed = (committed, offset);
        index.forget_committed(committed);
        Ok(self.log.set_high_watermark(offset))
    }

    /// Takes back that entries behind an index and an offset are committed.
    pub(super) fn uncommit(&mut self, index: u64, offset: i64) {
        self.committed = self.committed.min((index, offset));
    }

    /// Asserts what holds between any two calls.
    pub(super) fn check(&self, index: &EntryIndex) {
        index.check(&self.log);
        let end = self.log.ends().log_end;
        let appending = self.appending.back().map_or(index.end_offset(), |last| last.position.next_offset);
        assert_eq!(end, appending, "every batch has an entry");
        assert!(self.committed.1 <= end, "{:?}", self.committed);
        assert_eq!(
            index.term(index.last()),
            term_of_last(&self.log, index),
            "the last batch has another term"
        );
    }
}

/// Writes the members that an entry changes before that entry, in the same sync: they are committed. A replica that has the entry after a
/// power cut decides by these or later ones.
fn note_base(entry: &Entry, sink: &mut EntrySink<'_>) -> Result<(), ReplicaError> {
    let base = change::decode_own(&entry.data)?.base;
    let before = sink.index.internal_entries().iter().rev();
    let made_by =
        before.filter(|before| before.kind == EntryKind::ConfigurationChangeV2).map(|one| one.index);
    let index = made_by.filter(|index| *index < entry.index).max().unwrap_or(sink.index.start().index);
    sink.frames.push(sink.journal.configuration_frame(index, base));
    Ok(())
}

/// Writes an internal entry. One with data is durable when this returns: another entry may follow it.
fn write_internal(entry: &Entry, sink: &mut EntrySink<'_>) -> Result<(), ReplicaError> {
    let before = sink.index.term(entry.index.saturating_sub(1));
    let internal = from_raft(entry, sink.index.end_offset(), before);
    let (is_noop, offset) = (internal.kind == EntryKind::NoOp, internal.offset);
    sink.frames.push(Frame::Entry(internal.clone()));
    sink.index.push_internal(internal);
    if is_noop {
        sink.journal.note_terms(offset);
        return Ok(());
    }
    sink.journal.write(sink.frames)?;
    Ok(sink.journal.sync_now()?)
}

/// The term that the log says its last entry has, unless that is internal, or retention has removed it.
fn term_of_last(log: &Log, index: &EntryIndex) -> Option<u64> {
    let last = index.last();
    match index.internal(last) {
        None if last > index.start().index && index.end_offset() > log.ends().log_start => {
            log.leader_epochs().epoch_of(index.end_offset() - 1).map(term_of)
        }
        _ => index.term(last),
    }
}
