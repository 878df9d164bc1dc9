//! Errors of a log, one enum per operation. The broker maps each variant to Kafka's error code.

use crate::storage::StorageFault;
use mainstem_records::{CoordinatorEpoch, InvalidBatch, ProducerEpoch, ProducerId};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// An operation on the files of a partition failed.
#[derive(Debug, Error)]
pub enum LogError {
    /// The file system refused.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The refusal.
        source: io::Error,
    },
    /// Records that were on disk are not what they were: nothing is deleted to make the log open.
    #[error("{} is damaged at byte {position}: {reason}", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The byte position in the file.
        position: u64,
        /// The defect.
        reason: &'static str,
    },
    /// Segments that were there at the last orderly stop are gone or shorter.
    #[error("{}: since the last orderly stop records are missing: {what}", .path.display())]
    Missing {
        /// The partition's directory.
        path: PathBuf,
        /// The segments.
        what: String,
    },
    /// The directory belongs to a topic with another id, which had the same name.
    #[error("{} belongs to another topic of this name", .path.display())]
    OtherTopic {
        /// The directory.
        path: PathBuf,
    },
    /// A failed sync or write has stopped the partition before.
    #[error("the partition is stopped: {0}")]
    Stopped(String),
    /// [`RecoveryWatch::break_off`](crate::RecoveryWatch::break_off) was called while the log was recovered.
    #[error("its recovery was broken off; the next start begins it again")]
    BrokenOff,
}

impl LogError {
    /// The meaning of what the file system has said; `None`: it was not asked.
    pub fn fault(&self) -> Option<StorageFault> {
        match self {
            LogError::Io { source, .. } => Some(StorageFault::of(source)),
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> LogError {
        let path = path.into();
        move |source| LogError::Io { action, path, source }
    }
}

/// The reason for which a batch was not appended. Nothing of it is in the log.
#[derive(Debug, Error)]
pub enum AppendError {
    /// The batch breaks the format or the topic's rules: [`InvalidBatch::kafka_error`] has the code.
    #[error(transparent)]
    Invalid(#[from] InvalidBatch),
    /// A produce request holds exactly one batch per partition: INVALID_RECORD.
    #[error("produce requests may contain exactly one record batch per partition")]
    NotOneBatch,
    /// MESSAGE_TOO_LARGE.
    #[error("the record batch has {size} bytes, more than the {max} of max.message.bytes")]
    RecordTooLarge {
        /// Its size in bytes.
        size: usize,
        /// `max.message.bytes`.
        max: u32,
    },
    /// RECORD_LIST_TOO_LARGE.
    #[error("the record batch has {size} bytes, more than the {max} of segment.bytes")]
    BatchTooLarge {
        /// Its size in bytes.
        size: usize,
        /// `segment.bytes`.
        max: u32,
    },
    /// The topic's codec could not re-encode the batch: INVALID_RECORD.
    #[error("cannot compress the batch: {0}")]
    Recompress(String),
    /// OUT_OF_ORDER_SEQUENCE_NUMBER.
    #[error(
        "out of order sequence number for producer {producer_id}: {sequence} (incoming), {last_sequence} (current end)"
    )]
    OutOfOrderSequence {
        /// The producer.
        producer_id: ProducerId,
        /// The first sequence number of the batch.
        sequence: i32,
        /// The last one in the log under the current epoch; -1: none.
        last_sequence: i32,
    },
    /// INVALID_PRODUCER_EPOCH.
    #[error("epoch {epoch} of producer {producer_id} is older than the last seen epoch {current}")]
    InvalidProducerEpoch {
        /// The producer.
        producer_id: ProducerId,
        /// The epoch of the batch.
        epoch: ProducerEpoch,
        /// The newest one seen.
        current: ProducerEpoch,
    },
    /// INVALID_TXN_STATE: a plain batch from a producer with an open transaction.
    #[error("producer {producer_id} has an open transaction and wrote outside of it")]
    InvalidTransactionState {
        /// The producer.
        producer_id: ProducerId,
    },
    /// INVALID_TXN_STATE: the batch would begin a transaction of which the coordinator has not confirmed that the
    /// partition is part of it, or no longer is (KIP-890).
    #[error("the transaction of producer {producer_id} is not verified")]
    TransactionNotVerified {
        /// The producer.
        producer_id: ProducerId,
    },
    /// POLICY_VIOLATION: the partition, or the process, remembers as many producers as it may. Those that it knows go on;
    /// idle ones are forgotten after `producer.id.expiration.ms`.
    #[error(
        "no room for producer {producer_id}: a partition remembers at most {max} producers, all partitions together \
         mainstem.producer.ids.max; raise it, or lower producer.id.expiration.ms"
    )]
    TooManyProducers {
        /// The new producer.
        producer_id: ProducerId,
        /// The most producers that a partition remembers.
        max: usize,
    },
    /// POLICY_VIOLATION: the partition has as many open transactions as it may have.
    #[error("no room for a transaction of producer {producer_id}: at most {max} may be open in a partition")]
    TooManyTransactions {
        /// The producer.
        producer_id: ProducerId,
        /// The most transactions that may be open.
        max: usize,
    },
    /// TRANSACTION_COORDINATOR_FENCED: a newer coordinator has ended a transaction of the producer before.
    #[error(
        "coordinator epoch {coordinator_epoch} for producer {producer_id} is older than the last seen epoch {current}"
    )]
    CoordinatorFenced {
        /// The producer.
        producer_id: ProducerId,
        /// The epoch of the coordinator that sent the marker.
        coordinator_epoch: CoordinatorEpoch,
        /// The newest one seen.
        current: CoordinatorEpoch,
    },
    /// A replicated batch that does not follow the log end.
    #[error("a replicated batch starts at offset {base_offset}, the log ends at {log_end}")]
    OffsetsOutOfOrder {
        /// The batch's.
        base_offset: i64,
        /// The log's.
        log_end: i64,
    },
    /// KAFKA_STORAGE_ERROR, retriable: the disk is full. Reads continue, and appends as soon as there is free space. A power cut
    /// before the next sync may yet bring the batch back, as if it had been appended without a sync.
    #[error("no space left: {0}")]
    OutOfSpace(io::Error),
    /// KAFKA_STORAGE_ERROR: the file system refused, and the partition is stopped.
    #[error("cannot append: {0}")]
    Storage(io::Error),
    /// KAFKA_STORAGE_ERROR: the partition was stopped before.
    #[error("the partition is stopped: {0}")]
    Stopped(String),
}

/// The reason for which nothing can be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// OFFSET_OUT_OF_RANGE.
    #[error("offset {offset} is not within [{log_start}, {log_end}]")]
    OffsetOutOfRange {
        /// The offset asked for.
        offset: i64,
        /// The log start.
        log_start: i64,
        /// The log end.
        log_end: i64,
    },
    /// KAFKA_STORAGE_ERROR.
    #[error("cannot read: {0}")]
    Storage(#[from] io::Error),
    /// KAFKA_STORAGE_ERROR: the partition was stopped before.
    #[error("the partition is stopped: {0}")]
    Stopped(String),
}
