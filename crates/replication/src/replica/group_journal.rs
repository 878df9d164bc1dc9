//! The part of a log directory's journal that is one group's, and how far it has the terms of records durably.

use crate::error::ReplicaError;
use crate::group::{Configuration, GroupId, ReplicaId};
use crate::journal::{
    Frame, GroupState, Journal, JournalError, JournalFormat, JournalSync, Promise, Promised, Start, Vote,
};
use mainstem_log::ImportId;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Writes durably that this replica is in a group, before the group begins. Blocks on the disk.
pub fn found(
    journal: &mut Journal,
    group: GroupId,
    own: ReplicaId,
    configuration: &Configuration,
    start: Start,
) -> Result<(), ReplicaError> {
    let configuration =
        Frame::Configuration { own, index: start.index, configuration: configuration.clone() };
    let vote = Vote { term: start.term, candidate: None };
    journal.append(group, &[Frame::Removed, Frame::Vote(vote), Frame::Start(start), configuration])?;
    Ok(journal.sync()?)
}

/// The journal as one replica uses it.
#[derive(Debug)]
pub(super) struct GroupJournal {
    journal: Arc<Mutex<Journal>>,
    group: GroupId,
    own: ReplicaId,
    /// The terms that the journal may not have durably.
    undurable: Option<UndurableTerms>,
}

/// Records from an offset on, of which the journal does not have the terms durably: entries were written that terms begin with, or cut
/// off.
#[derive(Debug, Clone, Copy)]
struct UndurableTerms {
    offset: i64,
    /// The terms are durable when the journal is up to here; `None`: the frames are not written yet.
    upto: Option<u64>,
}

impl GroupJournal {
    pub(super) fn new(journal: Arc<Mutex<Journal>>, group: GroupId, own: ReplicaId) -> GroupJournal {
        GroupJournal { journal, group, own, undurable: None }
    }

    /// The journal of the log directory, which all its groups share.
    pub(super) fn shared(&self) -> &Arc<Mutex<Journal>> {
        &self.journal
    }

    pub(super) fn group(&self) -> GroupId {
        self.group
    }

    /// The state of the group, as the journal has it.
    pub(super) fn state(&self) -> Result<GroupState, ReplicaError> {
        self.journal.lock().group(self.group).cloned().ok_or(ReplicaError::Unknown)
    }

    /// A part of the state of the group, or its default where the journal does not know the group.
    fn part<T: Default>(&self, of: impl FnOnce(&GroupState) -> T) -> T {
        self.journal.lock().group(self.group).map(of).unwrap_or_default()
    }

    /// Term and vote.
    pub(super) fn vote(&self) -> Vote {
        self.part(|state| state.vote)
    }

    /// Returns true if the log is to begin behind a snapshot, and may not have yet.
    pub(super) fn is_restoring(&self) -> bool {
        self.part(|state| state.restoring)
    }

    /// The noted index up to which entries are applied.
    pub(super) fn applied(&self) -> u64 {
        self.part(|state| state.applied)
    }

    /// The promise of the replica when the journal was opened; `None`: it is not known.
    pub(super) fn promised(&self) -> Result<Option<Promised>, ReplicaError> {
        Ok(self.journal.lock().promised(self.group, self.own)?)
    }

    /// The slot for the promise of the replica; `None`: the disk has no space for one.
    pub(super) fn promise_slot(&self) -> Result<Option<Promise>, ReplicaError> {
        Ok(self.journal.lock().promise(self.group, self.own)?)
    }

    /// Writes one frame that says nothing of terms; returns up to where the journal has to be durable for it.
    pub(super) fn append(&self, frame: Frame) -> Result<u64, JournalError> {
        self.journal.lock().append(self.group, &[frame])
    }

    /// Writes frames, and takes them out of the list; returns up to where the journal has to be durable for them.
    pub(super) fn write(&mut self, frames: &mut Vec<Frame>) -> Result<u64, ReplicaError> {
        if frames.is_empty() {
            return Ok(0);
        }
        let upto = self.journal.lock().append(self.group, frames)?;
        frames.clear();
        self.note_terms_written(upto);
        Ok(upto)
    }

    /// The frame that says who is in the group since an entry.
    pub(super) fn configuration_frame(&self, index: u64, configuration: Configuration) -> Frame {
        Frame::Configuration { own: self.own, index, configuration }
    }

    /// The frame that has the log begin behind a snapshot.
    pub(super) fn restore_frame(&self, start: Start, configuration: Configuration) -> Frame {
        Frame::Restore { start, own: self.own, configuration }
    }

    /// The frame that has a copy take the place of the log.
    pub(super) fn replace_frame(&self, copy: ImportId, start: Start, configuration: Configuration) -> Frame {
        Frame::Replace { copy, start, own: self.own, configuration }
    }

    /// Returns true if members of groups may change.
    pub(super) fn members_may_change(&self) -> bool {
        self.journal.lock().members_may_change()
    }

    /// Has members of groups change from now on.
    pub(super) fn let_members_change(&self) {
        self.journal.lock().let_members_change();
    }

    /// The format of the journal.
    pub(super) fn format(&self) -> JournalFormat {
        self.journal.lock().format()
    }

    /// Notes that the frames which are written next say of which terms the records from an offset on are.
    pub(super) fn note_terms(&mut self, offset: i64) {
        let offset = self.durable_terms_end().map_or(offset, |before| before.min(offset));
        self.undurable = Some(UndurableTerms { offset, upto: None });
    }

    /// Notes that these frames are written.
    pub(super) fn note_terms_written(&mut self, upto: u64) {
        if let Some(undurable) = &mut self.undurable {
            undurable.upto.get_or_insert(upto);
        }
    }

    /// The offset before which the journal has the terms of all records durably; `None`: it has those of all.
    pub(super) fn durable_terms_end(&self) -> Option<i64> {
        let is_durable = |upto: u64| upto <= self.durable();
        let undurable = self.undurable.filter(|undurable| !undurable.upto.is_some_and(is_durable));
        undurable.map(|undurable| undurable.offset)
    }

    /// The position up to which the journal is durable.
    pub(super) fn durable(&self) -> u64 {
        self.journal.lock().durable()
    }

    /// The position of the next frame.
    pub(super) fn appended(&self) -> u64 {
        self.journal.lock().appended()
    }

    /// Makes all durable that was written. Blocks on the disk, and no other group on it.
    pub(super) fn sync_now(&self) -> Result<(), JournalError> {
        Journal::sync_beside_others(&self.journal)
    }

    /// The sync that makes the journal durable up to a position; `None`: it is.
    pub(super) fn sync_work(&self, upto: u64) -> Option<JournalSync> {
        let journal = self.journal.lock();
        journal.sync_work().filter(|_| upto > journal.durable())
    }

    /// # Errors
    /// The journal has failed, on behalf of whichever group.
    pub(super) fn check_running(&self) -> Result<(), ReplicaError> {
        Ok(self.journal.lock().check_running()?)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.journal.lock().has_failed()
    }

    /// Notes that a sync of the journal failed.
    pub(super) fn fail(&self, error: &io::Error) {
        self.journal.lock().fail(error);
    }

    /// Asserts what holds between any two calls, of a replica in a role of this term.
    pub(super) fn check(&self, role_term: u64) {
        let journal = self.journal.lock();
        let state = journal.group(self.group);
        assert_eq!(state.and_then(|state| state.own), Some(self.own));
        assert!(
            state.is_some_and(|state| state.vote.term >= role_term),
            "a role of term {role_term}, which was not written: {:?}",
            state.map(|state| state.vote)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{EntryKind, InternalEntry};
    use mainstem_log::sim::SimStorage;
    use mainstem_log::storage::Storage;
    use std::path::Path;

    fn journal() -> GroupJournal {
        let storage = SimStorage::new();
        storage.create_dir(Path::new("/data")).expect("a directory");
        let (mut journal, _) = Journal::open(Arc::new(storage), Path::new("/data")).expect("a journal");
        let (group, own) = (GroupId { topic_id: [7; 16], partition: 0 }, ReplicaId::new(1, 1));
        let configuration = Configuration::of_voters(&[own]);
        found(&mut journal, group, own, &configuration, Start::default()).expect("a founding");
        GroupJournal::new(Arc::new(Mutex::new(journal)), group, own)
    }

    fn noop(index: u64, term: u64, offset: i64) -> Frame {
        let (kind, data) = (EntryKind::NoOp, Vec::new());
        Frame::Entry(InternalEntry { index, term, offset, kind, data })
    }

    #[test]
    fn terms_are_durable_when_the_frames_that_begin_them_are() {
        let mut journal = journal();
        assert_eq!(journal.durable_terms_end(), None);
        journal.note_terms(20);
        journal.sync_now().expect("a sync");
        assert_eq!(journal.durable_terms_end(), Some(20), "the frame is not written");
        journal.write(&mut vec![noop(1, 1, 20)]).expect("a write");
        // A frame that comes later does not put it off.
        journal.append(Frame::Commit { committed: 0, applied: 0 }).expect("a write");
        assert_eq!(journal.durable_terms_end(), Some(20), "the frame is not durable");
        // Terms that begin later are none of which more is durable.
        journal.note_terms(30);
        assert_eq!(journal.durable_terms_end(), Some(20));
        journal.write(&mut vec![noop(2, 2, 30)]).expect("a write");
        journal.sync_now().expect("a sync");
        assert_eq!(journal.durable_terms_end(), None);
        journal.check(0);
    }
}
