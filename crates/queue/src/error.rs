//! Errors of a queue, each with what to do about it.

use std::io;
use std::path::PathBuf;

use mainstem_faults::StorageFault;
use thiserror::Error;

/// An operation on a queue that failed. Nothing of it happened unless its variant says otherwise.
#[derive(Debug, Error)]
pub enum QueueError {
    /// A system call on a file of the queue failed.
    #[error("{}: {what} failed: {source}", path.display())]
    Io {
        /// The call that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no space for a file, such as that of another segment. Reads continue; the operation succeeds again when there is
    /// space.
    #[error("{}: {what} failed: the disk is full; nothing was appended; free space and try again", path.display())]
    DiskFull {
        /// The call that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The directory holds no queue, and no queue may be made there.
    #[error("{} holds no queue: {reason}", path.display())]
    NoQueue {
        /// The directory.
        path: PathBuf,
        /// The reason, and what to do.
        reason: String,
    },
    /// The directory is a broker's log directory, or within one: that broker alone writes there.
    #[error("{} {reason}", path.display())]
    OfBroker {
        /// The directory.
        path: PathBuf,
        /// Its place, the process that has it, and what to do.
        reason: String,
    },
    /// The control file is of another version of this crate.
    #[error(
        "{}: the queue has format {found}, this program knows {known}; use the version that wrote it", path.display()
    )]
    OtherVersion {
        /// The control file.
        path: PathBuf,
        /// The version in the file.
        found: u32,
        /// The version of this program.
        known: u32,
    },
    /// Published and synced messages are missing, or have other bytes than were written.
    #[error(
        "{}: damaged at byte {position}, offset {offset}: {reason}; `mainstem queue verify` shows how much, \
         `mainstem queue repair` cuts the queue there", path.display()
    )]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// The byte in the segment.
        position: u64,
        /// The offset that was expected there.
        offset: i64,
        /// The damage.
        reason: String,
    },
    /// Another process has cut a file of the queue while this one had it mapped. Nothing that was read from it or written to it since can
    /// be trusted.
    #[error(
        "{}: it was cut by another process while it was in use; nothing was written; stop all that have the queue open, see by \
         `mainstem queue verify` how much is left, and open it again", path.display()
    )]
    Cut {
        /// The file.
        path: PathBuf,
    },
    /// A sync has failed since the machine started. Messages since the last one that succeeded may never reach the disk, whatever
    /// a further sync reports. Appends and reads continue.
    #[error(
        "{}: a sync has failed, and what was appended since may be lost when the machine restarts; check the disk, end the \
         processes that have the queue open, and have the messages from offset {synced} on written once more by \
         `mainstem queue repair`, or copy them to another queue", path.display()
    )]
    SyncFailed {
        /// The directory.
        path: PathBuf,
        /// Messages before this offset are on disk.
        synced: i64,
    },
    /// The file system has no mappings that processes can share.
    #[error(
        "{}: this file system cannot share mapped memory between processes ({source}); put the queue on a local disk",
        path.display()
    )]
    NoSharedMapping {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another process appends in a way that excludes this one.
    #[error("{}: {reason}", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// The other process, and what to do.
        reason: String,
    },
    /// The writer lock was not free in time: its holder is alive and keeps it, perhaps because it was stopped.
    #[error("{}: process {pid} holds the writer lock and does not go on; nothing was written", path.display())]
    WriterBlocked {
        /// The directory.
        path: PathBuf,
        /// The holder, in its own pid namespace.
        pid: u32,
    },
    /// The queue was opened for reading.
    #[error("{} was opened for reading only", path.display())]
    ReadOnly {
        /// The directory.
        path: PathBuf,
    },
    /// The machine has restarted since the queue was last open, and only a process that may write can recover it.
    #[error("{}: not opened for writing since the machine restarted; open it once with write permission", path.display())]
    NeedsRecovery {
        /// The directory.
        path: PathBuf,
    },
    /// A message, with its key and headers, is larger than a segment holds.
    #[error(
        "a message of {bytes} bytes does not fit a segment of {segment_bytes}: open the queue with larger segments"
    )]
    TooLarge {
        /// The size of its batch.
        bytes: usize,
        /// The size of a segment.
        segment_bytes: u64,
    },
    /// A batch without messages, or one that the format cannot express.
    #[error("the messages make no batch: {0}")]
    Build(#[from] mainstem_records::BuildError),
    /// The wanted offset is not in the queue.
    #[error("offset {offset} is not in the queue, which has {start} to {end}: seek to one that it has")]
    OutOfRange {
        /// The wanted offset.
        offset: i64,
        /// The first offset of the queue.
        start: i64,
        /// The offset that the next message gets.
        end: i64,
    },
    /// Another tailer of this name is live.
    #[error("tailer {name:?} is in use by another process or thread: end it, or choose another name")]
    TailerInUse {
        /// The name.
        name: String,
    },
    /// A text that cannot be the name of a tailer.
    #[error("{name:?} is no name for a tailer: take 1 to 100 characters")]
    TailerName {
        /// The name.
        name: String,
    },
}

/// The result of operations on queues.
pub type Result<T, E = QueueError> = std::result::Result<T, E>;

/// The call of [`QueueError::Io`] for a sync, which the disk was asked for.
pub(crate) const SYNCING: &str = "syncing";

impl QueueError {
    /// Returns true if the process or the system was short of descriptors, memory, threads or disk space. The call was not made, the
    /// disk is not known to be faulty, and the same call may succeed later.
    pub fn is_shortage(&self) -> bool {
        let error = match self {
            QueueError::DiskFull { .. } => return true,
            _ if self.is_failed_sync() => return false,
            QueueError::Io { source, .. } | QueueError::NoSharedMapping { source, .. } => source,
            _ => return false,
        };
        StorageFault::of(error) == StorageFault::NoHandles
    }

    /// Returns true if a sync of an open file failed: earlier writes may be lost, whatever the error is.
    pub(crate) fn is_failed_sync(&self) -> bool {
        matches!(self, QueueError::Io { what: SYNCING, .. })
    }

    /// Names the file and the call, and distinguishes a full disk from other failures.
    pub(crate) fn io(what: &'static str, path: &std::path::Path, source: io::Error) -> QueueError {
        let path = path.to_owned();
        match StorageFault::of(&source) {
            StorageFault::NoSpace if what != SYNCING => QueueError::DiskFull { what, path },
            _ => QueueError::Io { what, path, source },
        }
    }
}
