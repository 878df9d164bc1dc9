//! Why the metadata cannot be used, and what a person can do about it.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use mainstem_controller::ReplayError as MetadataReplayError;
use mainstem_controller::features::METADATA_VERSION_RAISED_FROM;
use mainstem_wire::ErrorCode;

use crate::controller::snapshots::SnapshotError;
use mainstem_store::error::StoreError;
use mainstem_store::replay::ReplayError;

/// Why the metadata, or what they name, cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A partition or a log directory cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A queue cannot be the topic that it is to be.
    #[error("{0}")]
    Attach(String),
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
    /// The cluster works at a level that this release does not know.
    #[error(
        "the metadata leader does not take this node: it can work at the levels {} to {} of mainstem.version, and the \
         cluster works at another one; start the release that the other nodes have",
        supported.start(), supported.end()
    )]
    Level {
        /// Those that this node can work at.
        supported: RangeInclusive<i16>,
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
        /// Start and end offset of the log.
        ends: (i64, i64),
        /// End offset of the snapshot; 0 if there is none.
        end_offset: i64,
    },
    /// There are partitions, and the metadata log does not say of which topics.
    #[error(
        "log directory {} has partitions, and the metadata log in {} is empty; put __cluster_metadata-0 back from a \
         backup, or move the partitions away to start empty",
        path.display(), metadata.display()
    )]
    MetadataEmpty {
        /// One with partitions.
        path: PathBuf,
        /// Directory of the metadata log.
        metadata: PathBuf,
    },
    /// The log directories in which partitions were found could not be written to the metadata log.
    #[error("where partitions were found could not be noted in the metadata log: {0}")]
    Assign(ErrorCode),
    /// The log directories do not suffice to start.
    #[error("{0}")]
    Directories(String),
}
