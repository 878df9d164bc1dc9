//! Why the metadata or a partition cannot be used, and what a person can do about it.

use std::io;
use std::path::PathBuf;

use mainstem_controller::ReplayError as MetadataReplayError;
use mainstem_controller::features::METADATA_VERSION_RAISED_FROM;
use mainstem_log::LogError;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::storage::StorageFault;
use mainstem_replication::ReplicaError;
use mainstem_replication::journal::JournalError;
use mainstem_wire::{ErrorCode, Uuid};

use crate::controller::snapshots::SnapshotError;
use crate::storage::replay::ReplayError;

/// Why the metadata or a partition cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A queue cannot be the topic that it is to be.
    #[error("{0}")]
    Attach(String),
    /// A partition's files cannot be opened.
    #[error("partition {partition} cannot be opened: {source}; {}, then start again", advice(.source))]
    Open {
        /// Which.
        partition: TopicPartition,
        /// Why.
        source: LogError,
    },
    /// The metadata log cannot be read.
    #[error("the metadata log cannot be read: {0}; put __cluster_metadata-0 back from a backup")]
    Replay(#[from] ReplayError),
    /// The metadata log holds what cannot be.
    #[error("{0}")]
    Metadata(#[from] MetadataReplayError),
    /// A newer release has raised a feature beyond what this one knows.
    #[error(
        "the data is of a newer release: feature {name} has level {level}; start the release that wrote it"
    )]
    Feature {
        /// The feature.
        name: String,
        /// Its level.
        level: i16,
    },
    /// The directory was written by a release of Kafka that is too old.
    #[error(
        "metadata.version is {level}, and directories are taken over from {METADATA_VERSION_RAISED_FROM} (3.9-IV0) on; \
         start Kafka 3.9 once more and finalise it (kafka-features upgrade --release-version 3.9)"
    )]
    OldMetadata {
        /// Its level.
        level: i16,
    },
    /// The cluster has partitions on other nodes.
    #[error(
        "topic {topic} has replicas on the nodes {replicas:?}, and this release serves clusters of one node; with Kafka, \
         move all replicas to this node (kafka-reassign-partitions), then start again"
    )]
    Replicated {
        /// One that has.
        topic: String,
        /// The nodes.
        replicas: Vec<i32>,
    },
    /// The metadata asks for protection that this release does not have.
    #[error(
        "the metadata has {records}, which would protect nothing here; remove them with Kafka's own tools, or accept that \
         everyone who reaches a listener may do everything (--accept-unprotected)"
    )]
    Unprotected {
        /// Kinds of records, with numbers.
        records: String,
    },
    /// The node's registration could not be written.
    #[error("the start could not be noted in the metadata log: {0}")]
    Register(ErrorCode),
    /// No other node is of this node's cluster.
    #[error(
        "the directories of this node are of cluster {own}, and every other node of controller.quorum.voters is of another \
         one: {theirs}; correct log.dirs of this node, or controller.quorum.voters, then start again"
    )]
    OtherCluster {
        /// This node's cluster.
        own: String,
        /// The other nodes with theirs.
        theirs: String,
    },
    /// A snapshot cannot be used.
    #[error("the metadata snapshot {path} {source}; put it back from a backup of the whole directory")]
    Snapshot {
        /// Which.
        path: PathBuf,
        /// Why.
        source: SnapshotError,
    },
    /// Records are missing between the snapshot and the log.
    #[error(
        "the metadata log holds offsets {} to {}, and its newest snapshot ends at {end_offset}: what is between is \
         missing; put the directory back from a backup",
        ends.0, ends.1
    )]
    MetadataGap {
        /// Where the log begins and ends.
        ends: (i64, i64),
        /// Where the snapshot ends; 0 is none.
        end_offset: i64,
    },
    /// There are partitions, and the metadata log does not say of which topics.
    #[error(
        "log directory {} has partitions, and the metadata log in {} is empty; put __cluster_metadata-0 back from a \
         backup, or move the partitions away to begin anew",
        path.display(), metadata.display()
    )]
    MetadataEmpty {
        /// One with partitions.
        path: PathBuf,
        /// Where the metadata log is.
        metadata: PathBuf,
    },
    /// Where partitions were found could not be written.
    #[error("where partitions were found could not be noted in the metadata log: {0}")]
    Assign(ErrorCode),
    /// Asked to stop while logs were recovered.
    #[error("the recovery of the logs was broken off; the next start begins it anew")]
    BrokenOff,
    /// The log directories do not suffice to start.
    #[error("{0}")]
    Directories(String),
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

impl ControllerError {
    /// Returns true if descriptors or memory are missing to open a log, and the files are as they were.
    pub(crate) fn is_short_of_handles(&self) -> bool {
        matches!(self, ControllerError::Open { source, .. } if source.fault() == Some(StorageFault::NoHandles))
    }
}

/// What a person does before a partition can be opened.
fn advice(error: &LogError) -> &'static str {
    match error {
        _ if error.fault() == Some(StorageFault::NoHandles) => {
            "raise the limit of open files (ulimit -n) above seven times the number of partitions"
        }
        _ if error.fault() == Some(StorageFault::NoSpace) => "make room on its disk",
        LogError::Missing { .. } => {
            "put the files back from a backup, or accept the loss (mainstem log accept-loss and the directory)"
        }
        _ => "repair or move away its directory",
    }
}
