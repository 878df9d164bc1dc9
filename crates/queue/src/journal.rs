//! The files by which a queue is a journal: its publisher, and the consumers whose tailers that one moves.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use crate::error::{QueueError, Result};
use crate::tailer_names::file_of_name;

/// The file that makes a queue a journal.
pub(crate) const JOURNAL: &str = "direct.journal";
/// The file that the publisher of a journal has locked while it runs.
pub(crate) const JOURNAL_LOCK: &str = "direct.lock";
/// The directory of consumers' files that a publisher stores.
const SUBSCRIPTIONS: &str = "subscriptions";

/// Returns true while a process has the directory open as a journal.
///
/// # Errors
/// If that cannot be seen.
pub(crate) fn has_publisher(directory: &Path) -> Result<bool> {
    let path = directory.join(JOURNAL_LOCK);
    match File::open(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        opened => Ok(is_locked(&opened.map_err(|error| QueueError::io("opening", &path, error))?)),
    }
}

/// Returns true for the tailer of a consumer of a journal. The publisher moves it ([`Bookmark`](crate::Bookmark)).
///
/// # Errors
/// If that cannot be seen.
pub(crate) fn is_consumer(directory: &Path, tailer: &str) -> Result<bool> {
    let subscription = format!("{}.subscription", file_of_name(tailer));
    let path = directory.join(SUBSCRIPTIONS).join(subscription);
    match path.try_exists() {
        // No consumer can have a tailer's name that no file can have.
        Err(error) if error.kind() == io::ErrorKind::InvalidFilename => Ok(false),
        seen => seen.map_err(|error| QueueError::io("reading", &path, error)),
    }
}

/// Returns true while a process has a lock on the file.
pub(crate) fn is_locked(file: &File) -> bool {
    // The lock is held for an instant. A process that wants it at this moment tries again.
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
