//! Reading the files of snapshots: `<end offset>-<epoch>.checkpoint` beside the segments of the metadata log, and the one that a
//! cluster begins with. What is in them is `mainstem_controller::snapshot_format`; how they come to be and go,
//! `mainstem_replication::snapshots`.

use std::io;

use mainstem_controller::snapshot_format::{SnapshotFormatError, SnapshotRecord, decode};
use mainstem_log::storage::{Storage, read_small_file};
use mainstem_replication::snapshots::{SNAPSHOT_BYTES_MAX, SnapshotFile};

/// The largest snapshot that is read.
const BYTES_MAX: usize = SNAPSHOT_BYTES_MAX as usize;

/// Why a snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// The file is not a snapshot.
    #[error(transparent)]
    Format(#[from] SnapshotFormatError),
}

/// Calls `each` with the records of a snapshot, in order.
///
/// # Errors
/// When it cannot be read or is damaged; `each` may have been called by then.
pub(crate) fn read(
    file: &SnapshotFile,
    storage: &dyn Storage,
    each: impl FnMut(SnapshotRecord<'_>),
) -> Result<(), SnapshotError> {
    Ok(decode(&read_bytes(file, storage)?, each)?)
}

/// The bytes of a snapshot.
///
/// # Errors
/// The storage's.
pub(crate) fn read_bytes(file: &SnapshotFile, storage: &dyn Storage) -> io::Result<Vec<u8>> {
    read_small_file(storage, &file.path, BYTES_MAX)
}
