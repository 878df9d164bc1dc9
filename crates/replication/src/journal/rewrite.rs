//! Rewriting a journal beside those who use it. Nobody who appends or syncs waits for the disk of that.
//!
//! ```text
//!              content taken          joined            renamed         directory synced
//! ────────────────┬─────────────────────┬──────────────────┬──────────────────┬──────────
//!  the old file   │   gets each frame   │ gets each frame  │ gets each frame  │
//!  the new file   │ is written, synced  │ gets each frame  │ gets each frame  │ gets each frame
//!  a sync is of   │     the old one     │       both       │       both       │ the new one
//! ```
//!
//! The new file is synced once more before it gets the name, so that from then on each of the two has all that is durable: a power cut
//! may leave either of them under the name until the directory is synced. What fails for want of space, descriptors or memory leaves the
//! journal as it is; it asks again when it has grown further.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_log::storage::{Advice, OpenMode, Storage, StorageFault, StorageFile, write_all_at};
use parking_lot::Mutex;

use super::{Journal, JournalError, JournalFormat, REWRITE_BYTES_MIN, content_of, count_at};

/// The file that is to take the place of a journal's.
#[derive(Debug)]
pub(super) enum Successor {
    /// It is being written. These frames came meanwhile.
    Written { since: Vec<u8> },
    /// It has all frames, and gets each that comes.
    Joined(Joined),
    /// The disk had no space for a frame in it.
    Abandoned,
}

/// A new file beside the old one.
#[derive(Debug)]
pub(super) struct Joined {
    file: Arc<dyn StorageFile>,
    /// Both files, for a sync.
    both: Arc<dyn StorageFile>,
    format: JournalFormat,
    len: u64,
    /// Frames before this position were in it when it was synced.
    from: u64,
    /// It has the journal's name, or is about to.
    is_named: bool,
}

impl Successor {
    /// Takes frames that were written to the old file. The journal continues without the new one if the disk is full and it has
    /// no name yet.
    ///
    /// # Errors
    /// The disk refused.
    pub(super) fn write(&mut self, frames: &[u8]) -> io::Result<()> {
        match self {
            Successor::Abandoned => {}
            Successor::Written { since } => since.extend_from_slice(frames),
            Successor::Joined(joined) => match write_all_at(&*joined.file, frames, joined.len) {
                Ok(()) => joined.len += frames.len() as u64,
                Err(error) if !joined.is_named && StorageFault::of(&error) == StorageFault::NoSpace => {
                    *self = Successor::Abandoned
                }
                Err(error) => return Err(error),
            },
        }
        Ok(())
    }

    /// Takes back what is left of a write.
    pub(super) fn take_back(&self) -> io::Result<()> {
        match self {
            Successor::Joined(joined) => joined.file.set_len(joined.len),
            _ => Ok(()),
        }
    }

    /// Both files, where a sync of the old one is not enough.
    pub(super) fn both(&self) -> Option<&Arc<dyn StorageFile>> {
        match self {
            Successor::Joined(joined) => Some(&joined.both),
            _ => None,
        }
    }
}

/// A way to a journal.
pub(super) trait Access {
    /// Does something with it, and is done with it then.
    fn with<R>(&mut self, act: impl FnOnce(&mut Journal) -> R) -> R;
}

impl Access for &mut Journal {
    fn with<R>(&mut self, act: impl FnOnce(&mut Journal) -> R) -> R {
        act(self)
    }
}

impl Access for &Mutex<Journal> {
    fn with<R>(&mut self, act: impl FnOnce(&mut Journal) -> R) -> R {
        act(&mut self.lock())
    }
}

/// Rewrites a journal; does nothing while another thread is at it.
///
/// # Errors
/// The disk refused. Then the journal stays as it was, or has failed ([`Journal::has_failed`]).
pub(super) fn rewrite(mut journal: impl Access) -> Result<(), JournalError> {
    let Some(mut task) = journal.with(Journal::begin_rewrite)? else { return Ok(()) };
    let done = task.run(&mut journal);
    let is_renamed = task.content.is_none();
    if !is_renamed {
        // It only takes space away.
        let _ = task.storage.remove_file(&task.temporary());
    }
    journal.with(|journal| journal.end_rewrite(done, is_renamed))
}

/// The part of it that is done without the journal.
#[derive(Debug)]
struct Task {
    storage: Arc<dyn Storage>,
    path: PathBuf,
    /// `None` once the file has its name, of which a power cut does not know yet.
    content: Option<Vec<u8>>,
    /// The format of the content.
    format: JournalFormat,
}

impl Task {
    fn temporary(&self) -> PathBuf {
        self.path.with_extension("groups.tmp")
    }

    fn run(&mut self, journal: &mut impl Access) -> io::Result<()> {
        if let Some(content) = &self.content {
            let temporary = self.temporary();
            let file = self.storage.open(&temporary, OpenMode::Create)?;
            file.set_len(0)?;
            write_all_at(&*file, content, 0)?;
            file.sync_data()?;
            journal.with(|journal| journal.join(file.clone(), self.format, content.len() as u64))?;
            file.sync_data()?;
            journal.with(Journal::name_successor)?;
            self.storage.rename(&temporary, &self.path)?;
            self.content = None;
        }
        self.storage.sync_dir(self.path.parent().unwrap_or(Path::new(".")))
    }
}

impl Journal {
    fn begin_rewrite(&mut self) -> Result<Option<Task>, JournalError> {
        self.check_running()?;
        if self.is_rewriting {
            return Ok(None);
        }
        self.is_rewriting = true;
        let (storage, path, format) = (self.storage.clone(), self.path.clone(), self.wanted);
        let mut task = Task { storage, path, content: None, format };
        if self.successor.is_none() {
            let mut content = format.magic().to_vec();
            for (group, state) in &self.groups {
                for frame in state.frames() {
                    frame.encode(*group, 0, &mut content);
                }
            }
            self.successor = Some(Successor::Written { since: Vec::new() });
            task.content = Some(content);
        }
        Ok(Some(task))
    }

    /// Has the new file get each frame from here on.
    fn join(&mut self, file: Arc<dyn StorageFile>, format: JournalFormat, len: u64) -> io::Result<()> {
        let Some(Successor::Written { since }) = &self.successor else { return Err(not_running()) };
        write_all_at(&*file, since, len)?;
        let len = len + since.len() as u64;
        let both = Arc::new(Both(self.file.clone(), file.clone()));
        let joined = Joined { file, both, format, len, from: self.appended, is_named: false };
        self.successor = Some(Successor::Joined(joined));
        Ok(())
    }

    /// The new file is about to get the name, and cannot be removed any more.
    fn name_successor(&mut self) -> io::Result<()> {
        match &mut self.successor {
            _ if self.failed.is_some() => Err(not_running()),
            Some(Successor::Joined(joined)) => {
                joined.is_named = true;
                Ok(())
            }
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn end_rewrite(&mut self, done: io::Result<()>, is_renamed: bool) -> Result<(), JournalError> {
        self.is_rewriting = false;
        self.check_running()?;
        match (done, self.successor.take()) {
            (Ok(()), Some(Successor::Joined(joined))) => {
                (self.file, self.len, self.format) = (joined.file, joined.len, joined.format);
                self.durable = self.durable.max(joined.from);
                self.synced_len = self.len - (self.appended - self.durable);
                self.content = content_of(&self.groups);
                // Another format may be wanted since it began.
                self.count_at = if self.format < self.wanted { 0 } else { count_at(self.content) };
                self.reserve_at = 0;
                Ok(())
            }
            (done, successor) => {
                let source = done.err().unwrap_or_else(not_running);
                if !StorageFault::of(&source).is_temporary() {
                    self.fail(&source);
                }
                self.count_at = self.len + REWRITE_BYTES_MIN;
                // With the name it stays, and the sync of the directory is tried again.
                self.successor = successor.filter(|_| is_renamed);
                Err(JournalError::Io { action: "rewrite", path: self.path.clone(), source })
            }
        }
    }
}

fn not_running() -> io::Error {
    io::Error::other("the journal has failed meanwhile")
}

/// Two files as what is to be synced: the second is as the first in all else.
#[derive(Debug)]
struct Both(Arc<dyn StorageFile>, Arc<dyn StorageFile>);

impl StorageFile for Both {
    fn write_at(&self, bufs: &[IoSlice<'_>], position: u64) -> io::Result<usize> {
        self.0.write_at(bufs, position)
    }

    fn read_at(&self, buf: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.read_at(buf, position)
    }

    fn read_at_nowait(&self, buf: &mut [u8], position: u64) -> io::Result<Option<usize>> {
        self.0.read_at_nowait(buf, position)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn allocate(&self, position: u64, len: u64) -> io::Result<()> {
        self.0.allocate(position, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()?;
        self.1.sync_data()
    }

    fn sync_fs(&self) -> io::Result<()> {
        self.0.sync_fs()
    }

    fn advise(&self, advice: Advice, position: u64, len: u64) {
        self.0.advise(advice, position, len);
    }

    fn resident(&self, position: u64, len: u64) -> Option<bool> {
        self.0.resident(position, len)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests;
