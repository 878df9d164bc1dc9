//! Errors of a replica.

use crate::group::ReplicaId;
use crate::journal::JournalError;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::storage::StorageFault;
use mainstem_log::{AppendError, LogError, ReadError};
use std::io;

/// Why a replica is out of service. It takes part in nothing any more until it is opened again.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The journal refused.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The log refused a change.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log cannot be read.
    #[error("cannot count the batches of the log: {0}")]
    Read(#[from] ReadError),
    /// The log refused a batch of the leader.
    #[error("the log refused a batch of the leader: {0}")]
    Append(#[from] AppendError),
    /// The journal knows nothing of the group.
    #[error(
        "the journal of the log directory (mainstem.groups) has no such group: put back the journal, or the whole directory, that \
         this node had; where it is gone for good, delete the topic and create it again"
    )]
    Unknown,
    /// Log and journal do not agree.
    #[error("log and journal do not agree: {0}")]
    Damaged(String),
    /// Records are gone that no other replica may have any more: each compacts what precedes its entries by itself.
    #[error(
        "the log ends at {end}, and its entries begin at {start}: files are gone, and the other replicas may have compacted what was in them. \
         Put back the files that this node had, or delete the topic and create it again"
    )]
    LacksCompacted {
        /// End of the log.
        end: i64,
        /// Offset at which the entries of the group begin.
        start: i64,
    },
    /// A copy of the leader's log was about to take the place of the log, and is gone.
    #[error(
        "the copy of the leader's log that was to take the place of {partition} is gone from the log directory: put back the directory as \
         this node had it, or delete the topic and create it again"
    )]
    CopyGone {
        /// The partition.
        partition: TopicPartition,
    },
    /// The Raft library refused.
    #[error("raft: {0}")]
    Raft(#[from] raft::Error),
    /// It failed before.
    #[error("the replica failed before: {0}")]
    Failed(String),
}

impl ReplicaError {
    /// The meaning of what the file system has said; `None`: it was not asked.
    pub fn fault(&self) -> Option<StorageFault> {
        self.medium().map(StorageFault::of)
    }

    /// The error of a sync of the journal, or of the promises of replicas, which all groups of the directory have in common.
    pub(crate) fn failed_sync(&self) -> Option<&io::Error> {
        match self {
            ReplicaError::Journal(
                JournalError::Io { action: "sync", source, .. } | JournalError::Failed { source, .. },
            ) => Some(source),
            _ => None,
        }
    }

    /// The error of the disk, if it is one.
    pub(crate) fn medium(&self) -> Option<&io::Error> {
        match self {
            ReplicaError::Journal(JournalError::Io { source, .. } | JournalError::Failed { source, .. })
            | ReplicaError::Log(LogError::Io { source, .. })
            | ReplicaError::Read(ReadError::Storage(source))
            | ReplicaError::Append(AppendError::OutOfSpace(source) | AppendError::Storage(source)) => {
                Some(source)
            }
            _ => None,
        }
    }
}

/// Why a leader did not append.
#[derive(Debug, thiserror::Error)]
pub enum LeaderAppendError {
    /// Another replica leads, or none, or leadership is being given away.
    #[error("this replica does not lead")]
    NotLeader {
        /// The leader, if that is known.
        leader: Option<ReplicaId>,
    },
    /// The log refused.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The replica is out of service.
    #[error(transparent)]
    Replica(#[from] ReplicaError),
}

/// Why a message of another replica was not taken: the link that it came over is to be ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The batches are not those that its entries speak of.
    #[error("the batches of an append are not those of its entries: {0}")]
    Batches(&'static str),
    /// A leader has other entries in the place of committed ones.
    #[error(
        "a leader has other entries in the place of committed ones that are here: the replicas that elected it have lost them. This \
         one keeps what it has and takes part in nothing. Mount the disks with the directories that the other nodes had, and start \
         them again; where those are gone for good, copy what is here, then delete the topic and create it again"
    )]
    LostPromise,
    /// A snapshot is offered of which it is not said what it is.
    #[error("a snapshot is offered, and not said what it is")]
    Snapshot,
    /// A term that no leader epoch can be.
    #[error("term {0} is beyond all leader epochs")]
    Term(u64),
    /// A message that no replica sends to another.
    #[error("a message of a type that is not sent between replicas")]
    Type,
    /// It is in the name of who is no other replica of the group.
    #[error("a message of replica {0}, which is not another one of the group")]
    Sender(ReplicaId),
    /// A content that no replica sends to this one.
    #[error("a message that no replica sends: {0}")]
    Impossible(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replicas are not replaced in this release: nothing says that one could begin again, and each says what can be done.
    #[test]
    fn what_is_advised_can_be_done_in_this_release() {
        for said in [MessageError::LostPromise.to_string(), ReplicaError::Unknown.to_string()] {
            assert!(said.contains("had") && said.contains("create"), "{said}");
            assert!(!said.contains("as a new one"), "{said}");
        }
    }
}
