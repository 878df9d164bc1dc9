//! `mainstem.groups`: what the Raft groups of a log directory must not forget, beside Kafka's own files.
//!
//! An append-only file of frames, each with its group and a checksum. A frame is written at once ([`Journal::append`])
//! and durable after a sync, which one [`Journal::sync_work`] asks for on behalf of all groups: a thousand votes cost
//! one. The state of each group is in memory as the frames come to it ([`GroupState`]); when the file has grown to
//! four times of what that takes, it is rewritten ([`Journal::rewrite_beside_others`]).
//!
//! Opening reads frames up to the first that is not whole: a power cut has torn what was not synced, and nobody was
//! promised it. A frame says how much of the file was durable when it was written. So a damaged one that is followed by
//! a frame that knows it durable is no torn write but lost promises, and the journal is refused.
//!
//! Blocks are reserved ahead of the frames, so that votes are taken for a while on a disk that is full. A write that finds no
//! space is taken back, and the journal stays as it was; any other failure ends its use until the next start.

mod frame;
mod promises;
mod rewrite;
mod state;

pub use frame::{
    ENTRY_DATA_BYTES_MAX, EntryKind, FRAME_BYTES_MAX, Frame, InternalEntry, Mark, REPLICAS_MAX, Start, Tail,
    Vote,
};
pub(crate) use promises::Promise;
pub use promises::{PROMISES, Promised};
pub use state::GroupState;

use crate::group::{GroupId, ReplicaId};
use frame::ALIGNMENT;
use mainstem_log::storage::{
    Advice, OpenMode, Storage, StorageFault, StorageFile, read_exact_at, replace_file, write_all_at,
};
use parking_lot::Mutex;
use promises::Promises;
use rewrite::Successor;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the journal in a log directory.
pub const JOURNAL: &str = "mainstem.groups";
/// Bytes of a file's beginning, which say what it is and of which format.
const MAGIC_BYTES: usize = 8;
/// A journal has at most so many bytes: a hundred thousand groups with a KiB each, four times.
const LEN_MAX: u64 = 400 << 20;
/// A smaller file is not rewritten.
const REWRITE_BYTES_MIN: u64 = 64 << 10;
/// Blocks of so many bytes are reserved ahead: those of a few thousand votes.
const RESERVE_BYTES: u64 = 256 << 10;
/// The file may have so many times the bytes of its content.
const REWRITE_FACTOR: u64 = 4;

/// The format of a journal: which kinds of frames it may have. A release that does not know a kind takes the first frame of it for one
/// that is not whole, and cuts it off with all that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JournalFormat {
    /// Kinds 1 to 10. Mainstem 0.1 reads it.
    V1,
    /// Kinds that come with level 2 of `mainstem.version`.
    V2,
}

impl JournalFormat {
    /// Every format, the oldest first.
    const ALL: [JournalFormat; 2] = [JournalFormat::V1, JournalFormat::V2];

    /// The file begins with this.
    fn magic(self) -> [u8; MAGIC_BYTES] {
        match self {
            JournalFormat::V1 => *b"msgroup1",
            JournalFormat::V2 => *b"msgroup2",
        }
    }

    /// The format of a file that begins so, if it is a journal.
    fn of(bytes: &[u8]) -> Option<JournalFormat> {
        JournalFormat::ALL.into_iter().find(|format| bytes.starts_with(&format.magic()))
    }
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refused.
    #[error("cannot {action} {path}: {source}")]
    Io {
        /// The call that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is not a journal, or one of another version.
    #[error("{path} is not a journal of groups that this version knows; start the version that wrote it")]
    OtherFormat {
        /// The file.
        path: PathBuf,
    },
    /// Bytes that were durable are not what was written.
    #[error("{path} is damaged at byte {position}, before bytes that were written later: votes may be lost")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The position of the first damaged frame.
        position: u64,
    },
    /// It is larger than any journal of ours.
    #[error("{path} has {len} bytes, more than a journal can have")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        len: u64,
    },
    /// An earlier write or sync failed: what is on disk is not known.
    #[error("{path} failed before ({source}), and takes nothing until the next start")]
    Failed {
        /// The file.
        path: PathBuf,
        /// The error of that write or sync.
        source: io::Error,
    },
}

/// A sync that is to be made; then [`Journal::synced`].
#[derive(Debug, Clone)]
pub struct JournalSync {
    /// The file to sync.
    pub file: Arc<dyn StorageFile>,
    /// The position that the sync covers, for [`Journal::synced`] and to compare with [`Journal::appended`].
    pub upto: u64,
}

/// The journal of one log directory. Every change goes through `&mut self`; the caller serialises.
#[derive(Debug)]
pub struct Journal {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    file: Arc<dyn StorageFile>,
    groups: BTreeMap<GroupId, GroupState>,
    /// The format of the file.
    format: JournalFormat,
    /// Members of its groups may change: all nodes know such entries.
    members_may_change: bool,
    /// The format that it is to have, which is not older.
    wanted: JournalFormat,
    /// Bytes of the file.
    len: u64,
    /// Bytes at the file's start that are durable.
    synced_len: u64,
    /// Bytes that were ever written by this process, rewritten files not counted.
    appended: u64,
    durable: u64,
    /// Bytes of the content, as of the last time that it was counted.
    content: u64,
    /// Count the content again when the file has so many bytes.
    count_at: u64,
    /// Blocks are reserved again when the file has so many bytes.
    reserve_at: u64,
    /// The file that is to take the place of `file`.
    successor: Option<Successor>,
    /// A thread works on that.
    is_rewriting: bool,
    /// The error of the write or sync that failed.
    failed: Option<io::Error>,
    /// `None`: the disk had no space for them.
    promises: Option<Promises>,
}

impl Journal {
    /// Opens the journal of a log directory; an empty one of the oldest format is created, durably. Returns how many torn
    /// bytes at its end were cut off. Blocks on the disk.
    pub fn open(storage: Arc<dyn Storage>, dir: &Path) -> Result<(Journal, u64), JournalError> {
        let path = dir.join(JOURNAL);
        let io_error = |action: &'static str| {
            let path = path.clone();
            move |source| JournalError::Io { action, path, source }
        };
        if !storage.exists(&path).map_err(io_error("look for"))? {
            let empty = JournalFormat::V1.magic();
            replace_file(&*storage, &path, &empty).map_err(io_error("create"))?;
        }
        let file = storage.open(&path, OpenMode::ReadWrite).map_err(io_error("open"))?;
        let len = file.len().map_err(io_error("measure"))?;
        // After a sync that failed, the page cache may have what is not on disk and never will be.
        file.advise(Advice::DontNeed, 0, len);
        if len > LEN_MAX {
            return Err(JournalError::TooLarge { path, len });
        }
        let mut bytes = vec![0; len as usize];
        read_exact_at(&*file, &mut bytes, 0).map_err(io_error("read"))?;
        let Replayed { format, groups, whole } = replay(&bytes).map_err(|fault| match fault {
            Fault::OtherFormat => JournalError::OtherFormat { path: path.clone() },
            Fault::Damaged { position } => JournalError::Damaged { path: path.clone(), position },
        })?;
        // Synced with the cut: what a killed process left in the page cache is built upon from here on.
        if whole < len {
            file.set_len(whole).map_err(io_error("cut"))?;
        }
        file.sync_data().map_err(io_error("sync"))?;
        let promises = Promises::open(&*storage, dir)?;
        let content = content_of(&groups);
        let mut journal = Journal {
            file,
            groups,
            format,
            members_may_change: false,
            wanted: format,
            len: whole,
            synced_len: whole,
            appended: 0,
            durable: 0,
            content,
            count_at: count_at(content),
            reserve_at: 0,
            successor: None,
            is_rewriting: false,
            failed: None,
            promises,
            storage,
            path,
        };
        journal.reserve();
        Ok((journal, len - whole))
    }

    /// The state of a group; `None`: it is not known.
    pub fn group(&self, group: GroupId) -> Option<&GroupState> {
        self.groups.get(&group)
    }

    /// The promise of a group's replica; `None`: it is not known.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn promised(&self, group: GroupId, own: ReplicaId) -> Result<Option<Promised>, JournalError> {
        self.promises.as_ref().map_or(Ok(None), |promises| promises.found(group, own))
    }

    /// The slot for what the replica of a group promises; `None`: the disk has no space for one.
    pub(crate) fn promise(
        &mut self,
        group: GroupId,
        own: ReplicaId,
    ) -> Result<Option<Promise>, JournalError> {
        self.promises.as_mut().map_or(Ok(None), |promises| promises.slot(group, own))
    }

    /// Gives back the slot of a group that is gone for good.
    pub fn forget_promise(&mut self, group: GroupId) {
        if let Some(promises) = &mut self.promises {
            promises.forget(group);
        }
    }

    /// The file of what replicas promise, if it was written since this was asked last. A sync of it, now and then, bounds how much a
    /// power cut takes of it.
    pub fn promises_to_sync(&self) -> Option<Arc<dyn StorageFile>> {
        self.promises.as_ref()?.to_sync()
    }

    /// As [`Journal::promises_to_sync`], and syncs it: a disk that hangs holds up who calls this, alone.
    pub fn sync_promises_beside_others(journal: &Mutex<Journal>) -> Result<(), JournalError> {
        let Some(file) = journal.lock().promises_to_sync() else { return Ok(()) };
        file.sync_data().map_err(|source| {
            let mut journal = journal.lock();
            journal.fail(&source);
            let path = journal.promises.as_ref().map_or_else(PathBuf::new, Promises::path);
            JournalError::Io { action: "sync", path, source }
        })
    }

    /// All groups, in the order of their ids.
    pub fn groups(&self) -> impl Iterator<Item = (GroupId, &GroupState)> {
        self.groups.iter().map(|(group, state)| (*group, state))
    }

    /// Writes frames of a group. Durable when [`Journal::durable`] has reached the position that this returns.
    pub fn append(&mut self, group: GroupId, frames: &[Frame]) -> Result<u64, JournalError> {
        self.check_running()?;
        let encoded = |synced: u64| {
            let mut bytes = Vec::new();
            frames.iter().for_each(|frame| frame.encode(group, synced, &mut bytes));
            bytes
        };
        let bytes = encoded(self.synced_len);
        self.reserve();
        let mut written = write_all_at(&*self.file, &bytes, self.len);
        if let Some(successor) = &mut self.successor
            && written.is_ok()
        {
            // How much of that is durable is another number.
            written = successor.write(&encoded(0));
        }
        if let Err(source) = written {
            // What is left of it would be taken for frames that others wrote.
            if !StorageFault::of(&source).is_temporary() || self.take_back().is_err() {
                self.fail(&source);
            }
            return Err(JournalError::Io { action: "write", path: self.path.clone(), source });
        }
        for frame in frames {
            self.apply(group, frame);
        }
        self.len += bytes.len() as u64;
        self.appended += bytes.len() as u64;
        Ok(self.appended)
    }

    /// Removes what is left of a write.
    fn take_back(&self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.successor.as_ref().map_or(Ok(()), Successor::take_back)
    }

    /// Reserves blocks, where few are left. Without them it is as any file on a disk that is full.
    fn reserve(&mut self) {
        if self.len < self.reserve_at {
            return;
        }
        self.reserve_at = match self.file.allocate(self.len, RESERVE_BYTES) {
            Ok(()) => self.len + RESERVE_BYTES / 2,
            Err(_) => self.len + RESERVE_BYTES / 64,
        };
    }

    fn apply(&mut self, group: GroupId, frame: &Frame) {
        match frame {
            Frame::Removed => {
                self.groups.remove(&group);
            }
            frame => self.groups.entry(group).or_default().apply(frame),
        }
    }

    /// The position of the next frame, which only ascends.
    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// The position before which all that was written is on disk.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The sync that makes all durable which was written until now; `None`: all is.
    pub fn sync_work(&self) -> Option<JournalSync> {
        (self.durable < self.appended && self.failed.is_none()).then(|| {
            let both = self.successor.as_ref().and_then(Successor::both);
            JournalSync { file: both.unwrap_or(&self.file).clone(), upto: self.appended }
        })
    }

    /// A sync is done; of a file that was replaced since, it says nothing new.
    pub fn synced(&mut self, upto: u64) {
        if upto > self.durable && self.failed.is_none() {
            self.durable = upto;
            self.synced_len = self.len - (self.appended - upto);
        }
    }

    /// A sync failed, as the system says. Nothing further becomes durable: the kernel may have dropped the pages.
    pub fn fail(&mut self, error: &io::Error) {
        self.failed.get_or_insert_with(|| copy_of(error));
    }

    /// Returns true if it takes nothing until the next start.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Syncs what is not durable, on this thread.
    pub fn sync(&mut self) -> Result<(), JournalError> {
        self.check_running()?;
        let Some(work) = self.sync_work() else { return Ok(()) };
        if let Err(source) = work.file.sync_data() {
            self.fail(&source);
            return Err(JournalError::Io { action: "sync", path: self.path.clone(), source });
        }
        self.synced(work.upto);
        Ok(())
    }

    /// As [`Journal::sync`], of a journal that others use meanwhile: a disk that hangs holds up who calls this, alone.
    pub fn sync_beside_others(journal: &Mutex<Journal>) -> Result<(), JournalError> {
        let work = {
            let journal = journal.lock();
            journal.check_running()?;
            journal.sync_work()
        };
        let Some(work) = work else { return Ok(()) };
        let synced = work.file.sync_data();
        let mut journal = journal.lock();
        if let Err(source) = synced {
            journal.fail(&source);
            return Err(JournalError::Io { action: "sync", path: journal.path.clone(), source });
        }
        journal.check_running()?;
        journal.synced(work.upto);
        Ok(())
    }

    /// The format of the file.
    pub fn format(&self) -> JournalFormat {
        self.format
    }

    /// Has members of its groups change from now on. Not to be called before all nodes know such entries.
    pub fn let_members_change(&mut self) {
        self.members_may_change = true;
    }

    /// Returns true if members of its groups may change.
    pub fn members_may_change(&self) -> bool {
        self.members_may_change
    }

    /// Has the file get this format, if it is newer, when it is rewritten next. That is due then, also if it has failed before.
    pub fn want_format(&mut self, format: JournalFormat) {
        self.wanted = self.wanted.max(format);
        if self.format < self.wanted {
            self.count_at = 0;
        }
    }

    /// Returns true if the file has grown to [`REWRITE_FACTOR`] times its content, or is to get another format.
    pub fn rewrite_due(&mut self) -> bool {
        if self.len < self.count_at || self.failed.is_some() || self.is_rewriting {
            return false;
        }
        if self.format < self.wanted {
            return true;
        }
        self.content = content_of(&self.groups);
        self.count_at = count_at(self.content);
        self.len >= self.count_at
    }

    /// Replaces the file by one that has its content alone. Blocks on the disk. Where there is no space, descriptor or memory for it,
    /// the journal stays as it was, and asks again later.
    ///
    /// # Errors
    /// The disk refused, or the journal has failed.
    pub fn rewrite(&mut self) -> Result<(), JournalError> {
        rewrite::rewrite(self)
    }

    /// As [`Journal::rewrite`], of a journal that others use meanwhile: none of them waits for the disk of that. Does nothing while
    /// another thread is at it.
    ///
    /// # Errors
    /// As of [`Journal::rewrite`].
    pub fn rewrite_beside_others(journal: &Mutex<Journal>) -> Result<(), JournalError> {
        rewrite::rewrite(journal)
    }

    /// Bytes of the file.
    pub fn size(&self) -> u64 {
        self.len
    }

    /// # Errors
    /// It failed before, and takes nothing until the next start.
    pub(crate) fn check_running(&self) -> Result<(), JournalError> {
        match &self.failed {
            Some(error) => Err(JournalError::Failed { path: self.path.clone(), source: copy_of(error) }),
            None => Ok(()),
        }
    }

    /// Asserts what holds at all times.
    pub fn check(&self) {
        assert!(self.durable <= self.appended, "{} > {}", self.durable, self.appended);
        assert!(self.synced_len <= self.len, "{} > {}", self.synced_len, self.len);
        assert!(self.format <= self.wanted, "{:?} > {:?}", self.format, self.wanted);
        for state in self.groups.values() {
            assert!(state.entries.is_sorted_by(|a, b| a.index < b.index), "{:?}", state.entries);
            assert!(state.marks.is_sorted_by(|a, b| a.index < b.index), "{:?}", state.marks);
        }
    }
}

/// An [`io::Error`] cannot be cloned.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

fn content_of(groups: &BTreeMap<GroupId, GroupState>) -> u64 {
    groups.values().map(GroupState::encoded_len).sum::<u64>() + MAGIC_BYTES as u64
}

fn count_at(content: u64) -> u64 {
    (content * REWRITE_FACTOR).max(REWRITE_BYTES_MIN)
}

/// Why bytes are no journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    OtherFormat,
    Damaged { position: u64 },
}

/// The content of a journal's file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Replayed {
    pub(crate) format: JournalFormat,
    pub(crate) groups: BTreeMap<GroupId, GroupState>,
    /// The end of the last whole frame.
    pub(crate) whole: u64,
}

/// Returns the content that the bytes of a journal come to.
pub(crate) fn replay(bytes: &[u8]) -> Result<Replayed, Fault> {
    let format = JournalFormat::of(bytes).ok_or(Fault::OtherFormat)?;
    let (mut groups, mut position) = (BTreeMap::<GroupId, GroupState>::new(), MAGIC_BYTES);
    while let Some(decoded) = frame::decode(&bytes[position..]) {
        match decoded.frame {
            Frame::Removed => {
                groups.remove(&decoded.group);
            }
            frame => groups.entry(decoded.group).or_default().apply(&frame),
        }
        position += decoded.len;
    }
    match known_durable(&bytes[position..]) > position as u64 {
        true => Err(Fault::Damaged { position: position as u64 }),
        false => Ok(Replayed { format, groups, whole: position as u64 }),
    }
}

/// The bytes of the file that the whole frames behind a damaged one know to be durable. Each 8 bytes may begin one.
fn known_durable(bytes: &[u8]) -> u64 {
    let (mut position, mut durable) = (0, 0);
    while position < bytes.len() {
        match frame::decode(&bytes[position..]) {
            Some(decoded) => {
                durable = durable.max(decoded.synced);
                position += decoded.len;
            }
            None => position += ALIGNMENT,
        }
    }
    durable
}

/// The groups of a journal, for the fuzz body.
pub(crate) fn replay_for_fuzz(bytes: &[u8]) -> Option<BTreeMap<GroupId, GroupState>> {
    replay(bytes).ok().map(|replayed| replayed.groups)
}

#[cfg(test)]
mod tests;
