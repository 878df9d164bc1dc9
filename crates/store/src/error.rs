//! Why partitions and log directories cannot be used, and what a person can do about it.

use std::io;
use std::path::PathBuf;

use mainstem_log::LogError;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::storage::StorageFault;
use mainstem_replication::ReplicaError;
use mainstem_replication::journal::JournalError;
use mainstem_wire::Uuid;

/// Why a partition or a log directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A partition's files cannot be opened.
    #[error("partition {partition} cannot be opened: {source}; {}, then start again", advice(.source))]
    Open {
        /// Which.
        partition: TopicPartition,
        /// Why.
        source: LogError,
    },
    /// Asked to stop while logs were recovered.
    #[error("the recovery of the logs was broken off; the next start begins it again")]
    BrokenOff,
    /// The journal of a log directory's groups cannot be used.
    #[error(
        "{0}; put the directory back from a backup: without its journal this node does not know how it voted"
    )]
    Journal(#[from] JournalError),
    /// The first group of a log directory needs a newer format, which could not be written.
    #[error("mainstem.format in {} cannot be raised: {error}; repair the directory's disk, then start again", dir.display())]
    Format {
        /// Which.
        dir: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A directory without the journal that it had.
    #[error(
        "{} had a journal of groups (mainstem.groups) that is gone: this node does not know how it voted, nor what it has \
         acknowledged; put the journal back, or the whole directory from a backup",
        dir.display()
    )]
    JournalLost {
        /// Which.
        dir: PathBuf,
    },
    /// A log with records, or a replica that has promised some, that no journal knows.
    #[error(
        "partition {partition} has or had records, and the journal of its log directory (mainstem.groups) does not know it: this \
         node does not know how it voted; put the journal back, or the whole directory from a backup"
    )]
    JournalMissing {
        /// Which.
        partition: TopicPartition,
    },
    /// A replica cannot be opened.
    #[error(
        "the replica of partition {partition} cannot be opened: {source}; repair or move away its directory, then start again"
    )]
    Replica {
        /// Which.
        partition: TopicPartition,
        /// Why.
        source: ReplicaError,
    },
    /// Its log directory, or the only one that may have it, is offline.
    #[error(
        "partition {partition} is in a log directory that is offline, or may be; repair that directory's disk, then start \
         again"
    )]
    DirectoryOffline {
        /// Which.
        partition: TopicPartition,
    },
    /// A partition is in two directories.
    #[error(
        "partition {partition} is in log directory {} and in {}; find out which of the two is the newer one, move the \
         other away, then start again",
        one.display(), other.display()
    )]
    Twice {
        /// Which.
        partition: TopicPartition,
        /// One of the log directories.
        one: PathBuf,
        /// The other one.
        other: PathBuf,
    },
    /// The files of a replica that is not wanted any more cannot be put out of the way.
    #[error("the files of partition {partition} cannot be set aside: {source}; repair the directory's disk")]
    SetAside {
        /// Which.
        partition: TopicPartition,
        /// Why.
        source: io::Error,
    },
    /// A partition is in a log directory that is not configured any more.
    #[error(
        "partition {partition} is in log directory {directory}, which is not among log.dirs; add the directory that \
         has this id in its meta.properties, then start again"
    )]
    DirectoryMissing {
        /// Which.
        partition: TopicPartition,
        /// The directory's id.
        directory: Uuid,
    },
}

impl StoreError {
    /// Returns true if descriptors or memory are missing to open a log, and the files are as they were.
    pub fn is_short_of_handles(&self) -> bool {
        matches!(self, StoreError::Open { source, .. } if source.fault() == Some(StorageFault::NoHandles))
    }
}

/// Advice to a person before a partition can be opened.
fn advice(error: &LogError) -> &'static str {
    match error {
        _ if error.fault() == Some(StorageFault::NoHandles) => {
            "raise the limit of open files (ulimit -n) above seven times the number of partitions"
        }
        _ if error.fault() == Some(StorageFault::NoSpace) => "free space on its disk",
        LogError::Missing { .. } => {
            "put the files back from a backup, or accept the loss (mainstem log accept-loss and the directory)"
        }
        _ => "repair or move away its directory",
    }
}
