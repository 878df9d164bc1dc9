//! Syncs: what is published survives a power cut from then on.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::error::{QueueError, Result, SYNCING};
use crate::inner::Inner;
use crate::queue::Queue;
use crate::{recovery, segment};

impl Queue {
    /// Syncs the control file, which has the start of the queue.
    ///
    /// # Errors
    /// As [`Queue::sync`]: after a failed sync none of either is tried.
    pub fn sync_control(&self) -> Result<()> {
        let inner = &*self.inner;
        let _turn = inner.syncing.lock();
        inner.check_syncs()?;
        recovery::sync_control(&inner.directory).inspect_err(|error| {
            // A read-only process cannot tell the others.
            if error.is_failed_sync() && inner.control.is_writable {
                inner.control.sync_failed().store(1, Ordering::Release);
            }
        })
    }

    /// Syncs everything that is published now, and publishes the offset behind it ([`Ends::synced`](crate::Ends::synced)), which it
    /// returns. Concurrent callers share a sync where they can.
    ///
    /// # Errors
    /// If the disk fails: messages that were not synced before may be lost, and no further sync is tried
    /// ([`QueueError::SyncFailed`]). If the sync was not made, as for want of descriptors ([`QueueError::is_shortage`]), the
    /// next call tries again.
    pub fn sync(&self) -> Result<i64> {
        let inner = &*self.inner;
        inner.check_writable()?;
        let wanted = inner.control.next_offset();
        let _turn = inner.syncing.lock();
        let synced = inner.control.synced_end().load(Ordering::Acquire);
        if synced >= wanted {
            return Ok(synced);
        }
        inner.check_syncs()?;
        let next = inner.control.next_offset();
        inner.sync_segments(synced).map_err(|unsynced| {
            if let Unsynced::Refused(_) = unsynced {
                inner.control.sync_failed().store(1, Ordering::Release);
            }
            unsynced.into_error()
        })?;
        // If the file was cut, the words were zeros meanwhile.
        inner.control.check_whole()?;
        inner.control.publish_synced(next);
        inner.control.wake();
        Ok(next)
    }
}

impl Inner {
    /// Refuses a sync after a failed one.
    fn check_syncs(&self) -> Result<()> {
        if self.control.sync_failed().load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        let synced = self.control.synced_end().load(Ordering::Acquire);
        Err(QueueError::SyncFailed { path: self.directory.clone(), synced })
    }

    /// Syncs the segments from the one that holds `synced` on.
    fn sync_segments(&self, synced: i64) -> Result<(), Unsynced> {
        let (open, end) = self.control.open_segment();
        let bases = segment::list(&self.directory).map_err(Unsynced::NotAsked)?;
        // The segment that begins at `synced` is not enough: its creation and the closing of the one before it are not
        // synced yet.
        let from = bases.iter().rposition(|base| *base < synced).unwrap_or(0);
        for &base in bases[from..].iter().filter(|base| **base <= open) {
            let path = segment::path(&self.directory, base, "log");
            match File::open(&path) {
                // Retention has deleted it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => {
                    let least = if base == open { u64::from(end.bytes) } else { 0 };
                    sync_opened(&path, opened, |file| sync_whole(&path, file, least))?;
                }
            }
        }
        if bases.len() > from + 1 || synced == 0 {
            sync_opened(&self.directory, File::open(&self.directory), |directory| {
                directory.sync_all().map_err(|error| refused(&self.directory, error))
            })?;
        }
        Ok(())
    }
}

/// The reason why something is not synced.
enum Unsynced {
    /// The disk was not asked: a file could not be found or opened.
    NotAsked(QueueError),
    /// The disk was asked, and the kernel may take unwritten pages for written.
    Refused(QueueError),
}

impl Unsynced {
    fn into_error(self) -> QueueError {
        match self {
            Unsynced::NotAsked(error) | Unsynced::Refused(error) => error,
        }
    }
}

/// Syncs a file or a directory that was opened for it.
fn sync_opened(
    path: &Path,
    opened: io::Result<File>,
    sync: impl FnOnce(&File) -> Result<(), Unsynced>,
) -> Result<(), Unsynced> {
    let file =
        opened.map_err(|error| Unsynced::NotAsked(QueueError::io("opening for a sync", path, error)))?;
    sync(&file)
}

fn refused(path: &Path, error: io::Error) -> Unsynced {
    Unsynced::Refused(QueueError::io(SYNCING, path, error))
}

/// Syncs a log of at least so many bytes. If another process has cut it, the missing bytes are not durable.
fn sync_whole(path: &Path, file: &File, least: u64) -> Result<(), Unsynced> {
    file.sync_data().map_err(|error| refused(path, error))?;
    // The sync itself succeeded; the next one checks the length again.
    let looked = file.metadata().map_err(|error| Unsynced::NotAsked(QueueError::io("reading", path, error)));
    match looked?.len() >= least {
        true => Ok(()),
        false => Err(Unsynced::NotAsked(QueueError::Cut { path: path.to_owned() })),
    }
}
