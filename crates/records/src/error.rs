//! Errors of a batch, and Kafka's error code for each.

use thiserror::Error;

/// The reason why bytes are not one whole batch of format v2. Raised by
/// [`Batch::split_first`](crate::Batch::split_first).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BatchError {
    /// Fewer bytes remain than the batch says, or than any batch header needs.
    #[error("a record batch of {needed} bytes is cut off after {available} bytes")]
    Truncated {
        /// Bytes that the batch needs, as far as known.
        needed: usize,
        /// Available bytes.
        available: usize,
    },
    /// The length field is smaller than a batch header, negative included.
    #[error("the length field {length} of a record batch is below the minimum of {minimum}")]
    TooShort {
        /// The length field as read.
        length: i32,
        /// The smallest length that a batch of format v2 can have.
        minimum: i32,
    },
    /// Message formats v0 and v1, which Kafka 4 no longer takes.
    #[error("produce requests may contain only record batches with magic version 2, not {magic}")]
    OldMagic {
        /// The magic byte: 0 or 1.
        magic: i8,
    },
    /// A magic byte that no version of Kafka has defined.
    #[error("unknown magic byte {magic} in a record batch")]
    UnknownMagic {
        /// The magic byte as read.
        magic: i8,
    },
}

impl BatchError {
    /// The error with which a Kafka 4.3 broker answers a produce of such bytes.
    ///
    /// Kafka's ProduceRequest refuses magic 0 and 1 by INVALID_RECORD, and finds no batch at all
    /// (INVALID_RECORD too) where the only one is cut off.
    pub fn kafka_error(&self) -> KafkaError {
        match self {
            BatchError::Truncated { .. } | BatchError::OldMagic { .. } => KafkaError::InvalidRecord,
            BatchError::TooShort { .. } | BatchError::UnknownMagic { .. } => KafkaError::CorruptMessage,
        }
    }
}

/// The reason why a batch is refused by [`validate`](crate::validate()) or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InvalidBatch {
    /// The bytes are not one whole batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The checksum does not match: the bytes changed on their way, so sending them again may help.
    #[error("record batch is corrupt (stored crc = {stored}, computed crc = {computed})")]
    Crc {
        /// The checksum in the header.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// The header contradicts itself or asks for what this origin may not write.
    #[error("{0}")]
    Header(String),
    /// The compression bits name no codec (5 to 7).
    #[error("unknown compression type {0}")]
    UnknownCompression(u8),
    /// The records do not parse, or contradict the header.
    #[error("invalid record {index} in batch: {reason}")]
    Malformed {
        /// Index of the record in its batch.
        index: u32,
        /// The fault of the record.
        reason: &'static str,
    },
    /// The compressed records do not decompress.
    #[error("{codec} records do not decompress: {reason}")]
    Decompress {
        /// Kafka's name of the codec.
        codec: &'static str,
        /// The decoder's error.
        reason: String,
    },
    /// The records decompress to more than the caller allows.
    #[error("records decompress to more than the allowed {limit} bytes")]
    TooLarge {
        /// The bound in bytes.
        limit: usize,
    },
    /// Single records break the topic's rules; the batch is refused as a whole.
    #[error("{}", rejected_message(*.error, *.count, .records))]
    Records {
        /// INVALID_TIMESTAMP if any record's timestamp is at fault, else INVALID_RECORD (as Kafka picks it).
        error: KafkaError,
        /// The number of records at fault.
        count: u32,
        /// The first of them, at most [`InvalidBatch::RECORD_ERRORS_MAX`].
        records: Vec<RecordError>,
    },
}

/// One record's fault, for `record_errors` of a produce response (KIP-467).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordError {
    /// Index of the record in its batch.
    pub index: i32,
    /// The fault.
    pub message: String,
}

/// Kafka's error codes that a batch can earn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i16)]
pub enum KafkaError {
    /// CORRUPT_MESSAGE: retriable.
    CorruptMessage = 2,
    /// MESSAGE_TOO_LARGE: a producer splits the batch and sends the parts.
    MessageTooLarge = 10,
    /// INVALID_TIMESTAMP.
    InvalidTimestamp = 32,
    /// UNSUPPORTED_FOR_MESSAGE_FORMAT.
    UnsupportedForMessageFormat = 43,
    /// UNSUPPORTED_COMPRESSION_TYPE.
    UnsupportedCompressionType = 76,
    /// INVALID_RECORD.
    InvalidRecord = 87,
}

impl KafkaError {
    /// The code on the wire.
    pub fn code(self) -> i16 {
        self as i16
    }
}

impl InvalidBatch {
    /// The most faulty records that are listed, so that an answer is small also for a large request. A Java producer
    /// gives the other records of the batch a general message (KIP-467).
    pub const RECORD_ERRORS_MAX: usize = 100;

    /// The error with which a broker answers; Kafka's own choice where Kafka makes the same check.
    pub fn kafka_error(&self) -> KafkaError {
        match self {
            InvalidBatch::Batch(error) => error.kafka_error(),
            InvalidBatch::Crc { .. } => KafkaError::CorruptMessage,
            InvalidBatch::UnknownCompression(_) => KafkaError::UnsupportedCompressionType,
            InvalidBatch::TooLarge { .. } => KafkaError::MessageTooLarge,
            InvalidBatch::Records { error, .. } => *error,
            InvalidBatch::Header(_) | InvalidBatch::Malformed { .. } | InvalidBatch::Decompress { .. } => {
                KafkaError::InvalidRecord
            }
        }
    }

    /// The records at fault, where single records are.
    pub fn record_errors(&self) -> &[RecordError] {
        match self {
            InvalidBatch::Records { records, .. } => records,
            _ => &[],
        }
    }
}

fn rejected_message(error: KafkaError, count: u32, records: &[RecordError]) -> String {
    if error == KafkaError::InvalidTimestamp {
        return "one or more records have been rejected due to invalid timestamp".into();
    }
    let first = records.first().map_or("", |record| record.message.as_str());
    format!(
        "one or more records have been rejected due to {count} record errors in total, the first: {first}"
    )
}
