//! The journals of groups, one for each log directory, and their formats.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI16, AtomicU64, Ordering};

use mainstem_log::dir::LogDir;
use mainstem_log::meta_properties::{GROUPS_FORMAT_VERSION, LEVEL_2_FORMAT_VERSION, MetaProperties};
use mainstem_log::placement::DirectoryId;
use mainstem_replication::GroupId;
use mainstem_replication::journal::{Frame, JOURNAL, Journal, JournalFormat};
use parking_lot::Mutex;

use crate::error::StoreError;

/// The level of `mainstem.version` from which journals have [`JournalFormat::V2`].
const LEVEL_OF_SECOND_FORMAT: i16 = 2;
/// The level of `mainstem.version` from which members of groups change.
const LEVEL_OF_MEMBER_CHANGES: i16 = 2;
/// Time between two attempts to give a journal another format, in ms.
const RAISE_AGAIN_MS: u64 = 10_000;

/// The journal of each log directory, from its first group on.
#[derive(Default)]
pub struct Journals {
    open: Mutex<HashMap<DirectoryId, OpenJournal>>,
    /// The level of `mainstem.version`, as far as it is known: no frame and no entry is of a higher one.
    level: AtomicI16,
}

/// A journal, and the directory that has it.
#[derive(Clone)]
struct OpenJournal {
    dir: Arc<LogDir>,
    journal: Arc<Mutex<Journal>>,
    raising: Arc<Raising>,
}

/// Attempts to give a journal and its directory another format.
#[derive(Default)]
struct Raising {
    /// Time of the next one.
    next_ms: AtomicU64,
    /// That the directory's could not be raised was reported.
    is_reported: AtomicBool,
}

impl Journals {
    /// That of a directory. Blocks on the disk.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged, or the directory's format cannot be raised.
    pub(crate) fn of(&self, dir: &Arc<LogDir>) -> Result<Arc<Mutex<Journal>>, StoreError> {
        let mut open = self.open.lock();
        if let Some(OpenJournal { journal, .. }) = open.get(&dir.directory_id()) {
            return Ok(journal.clone());
        }
        let failed = |error| StoreError::Format { dir: dir.path().to_owned(), error };
        if has_lost_journal(dir).map_err(failed)? {
            return Err(StoreError::JournalLost { dir: dir.path().to_owned() });
        }
        // The journal first: a directory whose format says that it has one has one.
        let (mut journal, cut) = Journal::open(dir.storage().clone(), dir.path())?;
        dir.raise_format(GROUPS_FORMAT_VERSION).map_err(failed)?;
        if cut > 0 {
            tracing::warn!(dir = %dir.path().display(), bytes = cut, "a torn tail of the journal of groups was cut off");
        }
        self.note_level(&mut journal);
        let journal = Arc::new(Mutex::new(journal));
        let opened = OpenJournal { dir: dir.clone(), journal: journal.clone(), raising: Arc::default() };
        if self.level() >= LEVEL_OF_SECOND_FORMAT && !dir.is_full() {
            opened.begin_with_second_format();
        }
        open.insert(dir.directory_id(), opened);
        Ok(journal)
    }

    /// That of a directory, if it has one. Blocks on the disk.
    pub(crate) fn known(&self, dir: &Arc<LogDir>) -> Option<Arc<Mutex<Journal>>> {
        let has_one = || dir.storage().exists(&dir.path().join(JOURNAL)).unwrap_or(true);
        let is_open = self.open.lock().contains_key(&dir.directory_id());
        // Why it cannot be used is said where a partition of the directory is opened.
        if is_open || has_one() { self.of(dir).ok() } else { None }
    }

    fn all(&self) -> Vec<OpenJournal> {
        self.open.lock().values().cloned().collect()
    }

    /// The format of each journal.
    pub fn formats(&self) -> Vec<JournalFormat> {
        self.open.lock().values().map(|open| open.journal.lock().format()).collect()
    }

    /// Has the nodes' files get the formats of a level of `mainstem.version`, with [`Self::raise_formats`]. Levels only rise.
    pub(crate) fn raise_to_level(&self, level: i16) {
        if self.level.fetch_max(level, Ordering::AcqRel) >= level {
            return;
        }
        let open = self.open.lock();
        open.values().for_each(|open| self.note_level(&mut open.journal.lock()));
    }

    /// Has members of groups change where the level allows it. Older journals have what it takes; releases that do not know of it are
    /// gone from the cluster. A journal of the second format says so before the metadata are known, which may come with such a change.
    fn note_level(&self, journal: &mut Journal) {
        if self.level() >= LEVEL_OF_MEMBER_CHANGES || journal.format() >= JournalFormat::V2 {
            journal.let_members_change();
        }
    }

    /// The level of `mainstem.version`, as far as it is known.
    pub(crate) fn level(&self) -> i16 {
        self.level.load(Ordering::Acquire)
    }

    /// Returns true if the journal of a directory has a copy take the place of the log of a group. The journal is not opened for that.
    pub(crate) fn is_replacing(&self, dir: &LogDir, group: GroupId) -> bool {
        let journal = self.open.lock().get(&dir.directory_id()).map(|open| open.journal.clone());
        journal
            .is_some_and(|journal| journal.lock().group(group).is_some_and(|state| state.replacing.is_some()))
    }

    /// Returns true if the journal of a directory may have a copy take the place of a log: older releases refuse its format.
    pub(crate) fn may_replace(&self, dir: &LogDir) -> bool {
        let open = self.open.lock();
        open.get(&dir.directory_id()).is_some_and(|open| open.journal.lock().format() >= JournalFormat::V2)
    }

    /// Has journals get the format that is wanted, with the next round of [`Self::rewrite_grown`]. Their directories get theirs before,
    /// which older releases refuse. What fails is tried again. Blocks on the disks.
    pub(crate) fn raise_formats(&self, mono_ms: u64) {
        if self.level() < LEVEL_OF_SECOND_FORMAT {
            return;
        }
        for open in self.all() {
            let (dir, next_ms) = (&open.dir, &open.raising.next_ms);
            let is_due =
                dir.failure().is_none() && !dir.is_full() && next_ms.load(Ordering::Relaxed) <= mono_ms;
            if is_due && open.journal.lock().format() < JournalFormat::V2 {
                next_ms.store(mono_ms + RAISE_AGAIN_MS, Ordering::Relaxed);
                open.raise_format();
            }
        }
    }

    /// Syncs what replicas have promised since this was asked last, so that a power cut takes no more of it. Blocks on the disks.
    pub(crate) fn sync_promises(&self) {
        for OpenJournal { journal, .. } in self.all() {
            if let Err(error) = Journal::sync_promises_beside_others(&journal) {
                tracing::error!("{error}; the groups of its directory stop");
            }
        }
    }

    /// Forgets groups of a topic that is gone, wherever their replicas were. Their frames go when the journal is rewritten.
    pub fn forget(&self, topic_id: [u8; 16]) {
        for OpenJournal { journal, .. } in self.open.lock().values() {
            let mut journal = journal.lock();
            let groups: Vec<_> =
                journal.groups().map(|(group, _)| group).filter(|group| group.topic_id == topic_id).collect();
            for group in groups {
                match journal.append(group, &[Frame::Removed]) {
                    Ok(_) => journal.forget_promise(group),
                    Err(error) => tracing::warn!("a group of a deleted topic stays in the journal: {error}"),
                }
            }
        }
    }

    /// Forgets a group of which this node has no replica any more. Durable when this returns.
    ///
    /// # Errors
    /// When the journal refuses.
    pub(crate) fn forget_group(&self, dir: &Arc<LogDir>, group: GroupId) -> Result<(), StoreError> {
        let journal = self.of(dir)?;
        journal.lock().append(group, &[Frame::Removed])?;
        Journal::sync_beside_others(&journal)?;
        // For as long as the journal may know the replica, a start has to know that its files are gone.
        journal.lock().forget_promise(group);
        Ok(())
    }

    /// Rewrites journals that have grown, or are to get another format. Blocks on the disk; appends to them do not wait for that.
    pub(crate) fn rewrite_grown(&self) {
        for OpenJournal { journal, .. } in self.all() {
            if !journal.lock().rewrite_due() {
                continue;
            }
            let Err(error) = Journal::rewrite_beside_others(&journal) else { continue };
            match journal.lock().has_failed() {
                true => tracing::error!("{error}"),
                false => {
                    tracing::warn!("{error}; it stays as it was, and that is tried again later")
                }
            }
        }
    }
}

impl OpenJournal {
    /// Gives a journal that was just opened its format before any replica uses it: members that it does not know of may send messages at
    /// once. Blocks on the disk.
    fn begin_with_second_format(&self) {
        self.raise_format();
        let mut journal = self.journal.lock();
        if journal.rewrite_due()
            && let Err(error) = journal.rewrite()
        {
            tracing::warn!("{error}; that is tried again later");
        }
    }

    fn raise_format(&self) {
        match self.dir.raise_format(LEVEL_2_FORMAT_VERSION) {
            Ok(()) => self.journal.lock().want_format(JournalFormat::V2),
            Err(error) if !self.raising.is_reported.swap(true, Ordering::Relaxed) => tracing::warn!(
                "the format of log directory {} cannot be raised: {error}; that is tried again",
                self.dir.path().display()
            ),
            Err(_) => {}
        }
    }
}

/// Returns true if a directory had a journal and has none any more. A new one would know of no vote and of nothing that was acknowledged.
fn has_lost_journal(dir: &LogDir) -> io::Result<bool> {
    let (storage, path) = (&**dir.storage(), dir.path());
    if storage.exists(&path.join(JOURNAL))? {
        return Ok(false);
    }
    // What is wrong with the file was reported when the directory was opened.
    let meta = MetaProperties::read(storage, path)?.and_then(Result::ok);
    Ok(meta.and_then(|meta| meta.format_version).is_some_and(|version| version >= GROUPS_FORMAT_VERSION))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use mainstem_log::dir::NodeIdentity;
    use mainstem_log::sim::{Call, Hooked, SimStorage};

    use super::*;

    const DIR: &str = "/data";

    fn open(disk: &Hooked) -> (Arc<LogDir>, Journals) {
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let dir = LogDir::open(Arc::new(disk.clone()), Path::new(DIR), &identity, "boot");
        (dir.expect("it opens"), Journals::default())
    }

    fn format_of(disk: &SimStorage) -> u32 {
        let meta = MetaProperties::read(disk, Path::new(DIR)).expect("it is read");
        meta.expect("it is there").expect("it is whole").format_version.expect("it is ours")
    }

    /// An older release finds a directory that it refuses before it could find a journal that it cannot read.
    #[test]
    fn a_directory_gets_its_format_before_its_journal() {
        let disk = SimStorage::new();
        let hooked = Hooked::new(Arc::new(disk.clone()));
        let (dir, journals) = open(&hooked);
        let journal = journals.of(&dir).expect("a journal");
        let mut now_ms = 0;
        let mut raise = |level| {
            now_ms += RAISE_AGAIN_MS;
            journals.raise_to_level(level);
            journals.raise_formats(now_ms);
            journals.rewrite_grown();
            (format_of(&disk), journal.lock().format())
        };
        assert_eq!(raise(1), (GROUPS_FORMAT_VERSION, JournalFormat::V1));
        hooked.set_hook(|call, path| match call {
            Call::Rename if path.ends_with("meta.properties") => Err(io::Error::other("no")),
            _ => Ok(()),
        });
        assert_eq!(raise(2), (GROUPS_FORMAT_VERSION, JournalFormat::V1));
        hooked.set_hook(|call, path| match call {
            Call::Rename if path.ends_with(JOURNAL) => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        });
        assert_eq!(raise(2), (LEVEL_2_FORMAT_VERSION, JournalFormat::V1));
        hooked.clear_hook();
        journals.raise_formats(3 * RAISE_AGAIN_MS + 1);
        assert!(!journal.lock().rewrite_due(), "not yet again");
        assert_eq!(raise(1), (LEVEL_2_FORMAT_VERSION, JournalFormat::V2), "levels only rise");
        dir.unlock();
        drop((journals, journal));
        disk.kill();
        let (dir, journals) = open(&hooked);
        let again = journals.of(&dir).expect("a journal");
        assert_eq!((format_of(&disk), again.lock().format()), (LEVEL_2_FORMAT_VERSION, JournalFormat::V2));
    }
}
