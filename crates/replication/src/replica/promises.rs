//! The promise of a replica, and a look whether its disk still keeps it.
//!
//! All that it answers for is noted beside the journal before the answer leaves ([`Promised`]). A start that finds less in the log
//! than was noted has lost files, or a part of one: then the replica asks for no vote, and gives one only to who has all that it had. So
//! who leads has all that was acknowledged, and sends it again; when that is durable here, the replica is one as any other. An operator
//! who knows that no one has it any more says so by an empty file `accept-loss` in the partition's directory.

use crate::error::ReplicaError;
use crate::index::EntryIndex;
use crate::journal::{Promise, Promised, Start};
use mainstem_log::dir::LastStop;
use mainstem_log::{Ends, Log};
use raft::eraftpb::{Message, MessageType};

/// The part of its promise that a replica lacks.
#[derive(Debug, Clone, Copy)]
struct Lacking {
    /// All that it had: no one with less may lead by its vote.
    promised: Promised,
    /// All is here once this entry is durable.
    regained_at: Option<u64>,
}

impl Lacking {
    /// After a power cut the note may be older than what was acknowledged last: nothing of the terms that there were is enough then.
    fn allow_for_power_cut(&mut self, log: &Log, term: u64) {
        if log.dir().last_stop() == LastStop::UncleanOtherBoot && self.promised.index < u64::MAX {
            (self.promised.term, self.promised.index) = (term.max(self.promised.term), u64::MAX);
        }
    }
}

/// The state of a replica for which it answers.
pub(super) struct Answered<'a> {
    /// Index of the last entry that counts as persisted.
    pub(super) persisted: u64,
    pub(super) term: u64,
    /// A term or a vote is not durable yet.
    pub(super) has_unsynced_vote: bool,
    /// Batches count as persisted that are not durable.
    pub(super) is_cached: bool,
    pub(super) entries: &'a EntryIndex,
    pub(super) ends: Ends,
}

/// The promise of a replica, and what it lacks of it.
#[derive(Debug)]
pub(super) struct Promises {
    /// `None`: the disk had no space for one.
    slot: Option<Promise>,
    /// The part that its log has lost with files.
    lacking: Option<Lacking>,
    /// That is here again, and was not noted yet.
    is_regained: bool,
}

impl Promises {
    /// The promise that is in a slot, of a replica that lacks something or not.
    pub(super) fn new(slot: Option<Promise>, lacking: Option<Promised>) -> Promises {
        let lacking = lacking.map(|promised| Lacking { promised, regained_at: None });
        Promises { slot, lacking, is_regained: false }
    }

    /// Returns true if the replica lacks a part of what it had promised.
    pub(super) fn are_lacking(&self) -> bool {
        self.lacking.is_some()
    }

    /// Returns true if a message asks for what a replica does not do that lacks something: to lead, or to vote for one that lacks it too.
    pub(super) fn refuse(&self, message: &Message) -> bool {
        let Some(lacking) = &self.lacking else { return false };
        match message.get_msg_type() {
            MessageType::MsgTimeoutNow => true,
            MessageType::MsgRequestPreVote | MessageType::MsgRequestVote => {
                !lacking.promised.is_kept_by(message.log_term, message.index)
            }
            _ => false,
        }
    }

    /// Notes what is lacking from the start on. Returns true if nothing is, or there is no slot: what is here is noted then as always.
    pub(super) fn begin(&mut self, log: &Log, term: u64) -> Result<bool, ReplicaError> {
        let (Some(lacking), Some(slot)) = (&mut self.lacking, &mut self.slot) else { return Ok(true) };
        lacking.allow_for_power_cut(log, term);
        if lacking.promised != *slot.written() {
            slot.write_durably(lacking.promised)?;
        }
        Ok(false)
    }

    /// Notes that files are gone, with what was promised. Blocks on the disk.
    pub(super) fn begin_lacking(&mut self, promised: Promised) -> Result<(), ReplicaError> {
        // Where it cannot be noted, the next message has it noted.
        if let Some(slot) = &mut self.slot {
            slot.write_durably(promised)?;
        }
        self.lacking = Some(Lacking { promised, regained_at: None });
        Ok(())
    }

    /// Notes that a replica has all that there was up to its last entry, as soon as that is durable, if it is no less than what the replica
    /// had. A leader that does not know yet what this replica had acknowledged may call less committed.
    pub(super) fn note_regained(&mut self, last_term: u64, last: u64) {
        if let Some(lacking) = &mut self.lacking
            && (lacking.promised.index == u64::MAX || lacking.promised.is_kept_by(last_term, last))
        {
            lacking.regained_at.get_or_insert(last);
        }
    }

    /// Notes that entries from an index on are gone.
    pub(super) fn forget_regained(&mut self, index: u64) {
        if let Some(lacking) = &mut self.lacking {
            lacking.regained_at.take_if(|at| *at >= index);
        }
    }

    /// Ends the lack, if all is durable again. Returns true if it is.
    pub(super) fn end_lacking(&mut self, persisted: u64) -> bool {
        let regained_at = self.lacking.as_ref().and_then(|lacking| lacking.regained_at);
        let is_over = regained_at.is_some_and(|at| at <= persisted);
        if is_over {
            (self.lacking, self.is_regained) = (None, true);
        }
        is_over
    }

    /// Returns true if nothing new has to be noted of a replica in a term.
    pub(super) fn are_noted(&self, persisted: u64, term: u64) -> bool {
        let is_noted = |slot: &Promise| (slot.written().index, slot.written().vote_term) == (persisted, term);
        self.lacking.is_some() || self.slot.as_ref().is_none_or(is_noted)
    }

    /// Notes what is durable, before anything leaves that answers for it.
    pub(super) fn note(&mut self, answered: &Answered<'_>) -> Result<(), ReplicaError> {
        if self.are_noted(answered.persisted, answered.term) {
            return Ok(());
        }
        let Some(slot) = &mut self.slot else { return Ok(()) };
        let written = *slot.written();
        let promised = promised_now(written, self.is_regained, answered);
        self.is_regained = false;
        if promised == written {
            return Ok(());
        }
        // A power cut must not bring back what is not promised any more: it would be lacking.
        match written.is_kept_by(promised.term, promised.index) {
            true => slot.write(promised)?,
            false => slot.write_durably(promised)?,
        }
        Ok(())
    }

    /// Promises nothing behind an entry any more, durably: the log is about to be cut there. What is lacking stays noted.
    pub(super) fn lower(&mut self, to: Start) -> Result<(), ReplicaError> {
        let Some(slot) = self.slot.as_mut().filter(|_| self.lacking.is_none()) else { return Ok(()) };
        let written = *slot.written();
        if !written.is_kept_by(to.term, to.index) {
            let lowered = Promised { term: to.term, index: to.index, offset: to.offset, ..written };
            slot.write_durably(lowered)?;
        }
        Ok(())
    }

    /// Asserts what holds between any two calls, of a replica in a term.
    pub(super) fn check(&self, term: u64) {
        let voted = self.slot.as_ref().map_or(0, |slot| slot.written().vote_term);
        assert!(voted <= term, "a promise of votes in term {voted}, and the term is {term}");
    }
}

/// The promise of a replica that has written another one before.
fn promised_now(written: Promised, is_regained: bool, answered: &Answered<'_>) -> Promised {
    let Answered { persisted, term, entries, ends, .. } = answered;
    let mut promised = written;
    if !answered.has_unsynced_vote {
        promised.vote_term = (*term).max(written.vote_term);
    }
    // What counts as persisted and is not (write.caching) a power cut may take.
    let is_on_disk = !answered.is_cached || ends.durable_end == ends.log_end;
    if *persisted != written.index && is_on_disk {
        promised.offset = entries.offset_before(*persisted).unwrap_or(written.offset);
        (promised.term, promised.index) = (entries.term(*persisted).unwrap_or(0), *persisted);
    } else if is_regained {
        // What was lacking is here, and no more than that is known.
        let known = entries.last_known_at(ends.durable_end);
        (promised.term, promised.index, promised.offset) = (known.term, known.index, known.offset);
    }
    promised
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{GroupId, ReplicaId};
    use crate::journal::{EntryKind, InternalEntry, Journal};
    use mainstem_log::sim::SimStorage;
    use mainstem_log::storage::Storage;
    use std::path::Path;
    use std::sync::Arc;

    const GROUP: GroupId = GroupId { topic_id: [7; 16], partition: 0 };
    const OWN: ReplicaId = ReplicaId(1 << 32 | 1);

    /// A disk with a log directory, and the journal in it.
    fn journal() -> (SimStorage, Journal) {
        let storage = SimStorage::new();
        storage.create_dir(Path::new("/data")).expect("a directory");
        storage.sync_dir(Path::new("/")).expect("a sync");
        let journal = open(&storage);
        (storage, journal)
    }

    fn open(storage: &SimStorage) -> Journal {
        Journal::open(Arc::new(storage.clone()), Path::new("/data")).expect("a journal").0
    }

    fn noted(storage: &SimStorage) -> Promised {
        open(storage).promised(GROUP, OWN).expect("a read").expect("a promise")
    }

    /// Entries 1 to `last` of term 3, none of which has records.
    fn entries(last: u64) -> EntryIndex {
        let mut index = EntryIndex::begin(Start::default());
        for entry in 1..=last {
            let kind = if entry == 1 { EntryKind::NoOp } else { EntryKind::Data };
            index.push_internal(InternalEntry { index: entry, term: 3, offset: 0, kind, data: vec![] });
        }
        index
    }

    fn answered(entries: &EntryIndex, persisted: u64, has_unsynced_vote: bool) -> Answered<'_> {
        let ends = Ends {
            log_start: 0,
            local_log_start: 0,
            log_end: 0,
            durable_end: 0,
            high_watermark: 0,
            last_stable: 0,
        };
        Answered { persisted, term: 3, has_unsynced_vote, is_cached: false, entries, ends }
    }

    fn vote(log_term: u64, index: u64) -> Message {
        Message { msg_type: MessageType::MsgRequestVote, log_term, index, ..Message::default() }
    }

    #[test]
    fn a_promise_is_written_before_it_is_relied_upon_and_a_vote_when_it_is_durable() {
        let (storage, mut journal) = journal();
        let mut promises = Promises::new(journal.promise(GROUP, OWN).expect("a read"), None);
        let entries = entries(9);
        promises.note(&answered(&entries, 5, true)).expect("a write");
        assert_eq!(noted(&storage), Promised { term: 3, index: 5, vote_term: 0, offset: 0 });
        assert!(!promises.are_noted(5, 3), "the vote is not durable");
        promises.note(&answered(&entries, 5, false)).expect("a write");
        assert_eq!(noted(&storage).vote_term, 3);
        assert!(promises.are_noted(5, 3) && !promises.are_noted(6, 3));
        promises.lower(Start { index: 7, term: 3, offset: 0 }).expect("a write");
        assert_eq!(noted(&storage).index, 5, "a cut behind it takes nothing");
        promises.lower(Start { index: 4, term: 3, offset: 0 }).expect("a write");
        assert_eq!(noted(&storage), Promised { term: 3, index: 4, vote_term: 3, offset: 0 });
        promises.check(3);
    }

    #[test]
    fn a_replica_that_lacks_something_votes_for_who_has_it_until_it_has_it_durably() {
        let (storage, mut journal) = journal();
        let promised = Promised { term: 3, index: 8, vote_term: 3, offset: 0 };
        let mut promises = Promises::new(journal.promise(GROUP, OWN).expect("a read"), None);
        assert!(!promises.refuse(&vote(1, 1)));
        promises.begin_lacking(promised).expect("a write");
        assert!(
            promises.refuse(&vote(2, 9)) && promises.refuse(&vote(3, 7)) && !promises.refuse(&vote(3, 8))
        );
        assert!(promises.refuse(&Message { msg_type: MessageType::MsgTimeoutNow, ..Message::default() }));
        promises.note_regained(3, 7);
        assert!(!promises.end_lacking(7), "that is less than it had");
        promises.note_regained(3, 9);
        promises.forget_regained(9);
        assert!(!promises.end_lacking(9), "that was cut off");
        promises.note_regained(3, 8);
        promises.note(&answered(&entries(8), 7, false)).expect("a write");
        assert_eq!(noted(&storage), promised, "nothing else is noted meanwhile");
        assert!(!promises.end_lacking(7) && promises.end_lacking(8) && !promises.are_lacking());
        assert!(!promises.refuse(&vote(1, 1)));
    }
}
