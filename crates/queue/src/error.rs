//! What can go wrong, and what to do about it.

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
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no room for a file, such as that of another segment. Readers go on; the same succeeds again when there is space.
    #[error("{}: {what} failed: the disk is full; nothing was appended; free space and try again", path.display())]
    DiskFull {
        /// The call that failed.
        what: &'static str,
        /// To which file.
        path: PathBuf,
    },
    /// The directory holds no queue and may not be made one.
    #[error("{} holds no queue: {reason}", path.display())]
    NoQueue {
        /// The directory.
        path: PathBuf,
        /// Why it is none, and what to do.
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
        /// What it says.
        found: u32,
        /// What we write.
        known: u32,
    },
    /// What was published and synced is not there any more, or is not what it was.
    #[error(
        "{}: damaged at byte {position}, offset {offset}: {reason}; `mainstem queue verify` shows how much, \
         `mainstem queue repair` cuts the queue there", path.display()
    )]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where in it.
        position: u64,
        /// The offset that was expected there.
        offset: i64,
        /// What is wrong.
        reason: String,
    },
    /// A file of the queue was cut while this process had it mapped. Nothing that was read of it or written to it since is to be believed.
    #[error(
        "{}: it was cut by another process while it was in use; nothing was written; stop all that have the queue open, see by \
         `mainstem queue verify` how much is left, and open it again", path.display()
    )]
    Cut {
        /// The file.
        path: PathBuf,
    },
    /// A sync has failed since the machine started: what was appended since the last one that succeeded may never reach the disk,
    /// whatever a further sync says. Appending and reading go on.
    #[error(
        "{}: a sync has failed, and what was appended since may be lost when the machine restarts; check the disk, end the \
         processes that have the queue open, and have the messages from offset {synced} on written once more by \
         `mainstem queue repair`, or copy them to another queue", path.display()
    )]
    SyncFailed {
        /// The directory.
        path: PathBuf,
        /// Messages before this offset are on the disk.
        synced: i64,
    },
    /// The file system has no mappings that processes share.
    #[error(
        "{}: this file system cannot share mapped memory between processes ({source}); put the queue on a local disk",
        path.display()
    )]
    NoSharedMapping {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process appends in a way that excludes this one.
    #[error("{}: {reason}", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
        /// Who has it, and what to do.
        reason: String,
    },
    /// The writer lock could not be had in time: its holder is alive and keeps it, perhaps because it was stopped.
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
        /// What its batch takes.
        bytes: usize,
        /// What a segment holds.
        segment_bytes: u64,
    },
    /// A batch without messages, or one that the format cannot express.
    #[error("the messages make no batch: {0}")]
    Build(#[from] mainstem_records::BuildError),
    /// The wanted offset is not in the queue.
    #[error("offset {offset} is not in the queue, which has {start} to {end}: seek to one that it has")]
    OutOfRange {
        /// What was wanted.
        offset: i64,
        /// The first offset that is there.
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
    /// Such a name cannot be a tailer's.
    #[error("{name:?} is no name for a tailer: take 1 to 100 characters")]
    TailerName {
        /// The name.
        name: String,
    },
}

/// The result of operations on queues.
pub type Result<T, E = QueueError> = std::result::Result<T, E>;

/// The call of [`QueueError::Io`] that a disk has refused.
pub(crate) const SYNCING: &str = "syncing";

impl QueueError {
    /// Returns true if the process or the system was short of descriptors, memory, threads or room on the disk: the call was not made,
    /// nothing is known to be wrong with the disk, and the same may succeed later.
    pub fn is_shortage(&self) -> bool {
        let error = match self {
            QueueError::DiskFull { .. } => return true,
            _ if self.is_failed_sync() => return false,
            QueueError::Io { source, .. } | QueueError::NoSharedMapping { source, .. } => source,
            _ => return false,
        };
        StorageFault::of(error) == StorageFault::NoHandles
    }

    /// Returns true if a sync was asked of an open file: what was written before may be lost, whatever the error says.
    pub(crate) fn is_failed_sync(&self) -> bool {
        matches!(self, QueueError::Io { what: SYNCING, .. })
    }

    /// Names the file and the call, and tells a full disk from other failures.
    pub(crate) fn io(what: &'static str, path: &std::path::Path, source: io::Error) -> QueueError {
        let path = path.to_owned();
        match StorageFault::of(&source) {
            StorageFault::NoSpace if what != SYNCING => QueueError::DiskFull { what, path },
            _ => QueueError::Io { what, path, source },
        }
    }
}
