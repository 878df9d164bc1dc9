//! Building a batch, record by record.

use crate::batch::{
    Attributes, BatchHeader, Compression, HEADER_BYTES, NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, TimestampType,
};
use crate::codec::Compressor;
use crate::record::Header;
use crate::rewrite::seal;
use crate::varint::{varlong_bytes, write_varlong};
use thiserror::Error;

/// The most bytes that a batch may have, header included: what its length field can say, less a margin for a
/// codec that makes its input longer.
pub(crate) const BATCH_BYTES_MAX: usize = (i32::MAX as usize) - (1 << 24);

/// The producer's fields of a batch header; the default says that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerFields {
    /// The id that InitProducerId gave.
    pub producer_id: i64,
    /// Its epoch.
    pub producer_epoch: i16,
    /// The sequence number of the first record.
    pub base_sequence: i32,
}

impl Default for ProducerFields {
    fn default() -> Self {
        ProducerFields {
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            base_sequence: NO_SEQUENCE,
        }
    }
}

/// The properties of a new batch, beside its records. The default is a producer's plain batch.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The codec of the records.
    pub compression: Compression,
    /// The codec's level; `None` is Kafka's default for it, and snappy and lz4 have no other (KIP-390).
    pub level: Option<i32>,
    /// Offset of the first record; a producer leaves it 0.
    pub base_offset: i64,
    /// Leader epoch; a producer leaves it [`NO_PARTITION_LEADER_EPOCH`].
    pub partition_leader_epoch: i32,
    /// The append time in ms of a LogAppendTime batch; `None` for a CreateTime batch.
    pub log_append_time: Option<i64>,
    /// Producer id, epoch and first sequence number.
    pub producer: ProducerFields,
    /// The batch is part of a transaction.
    pub is_transactional: bool,
    /// The records are control records.
    pub is_control: bool,
}

impl Default for BatchOptions {
    fn default() -> Self {
        BatchOptions {
            compression: Compression::None,
            level: None,
            base_offset: 0,
            partition_leader_epoch: NO_PARTITION_LEADER_EPOCH,
            log_append_time: None,
            producer: ProducerFields::default(),
            is_transactional: false,
            is_control: false,
        }
    }
}

/// The reason why a batch cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BuildError {
    /// The batch would be larger than its length field can say.
    #[error("a record batch cannot hold {0} bytes")]
    TooLarge(usize),
    /// No record was appended.
    #[error("a record batch needs a record")]
    Empty,
    /// Offsets must rise within a batch.
    #[error("offset delta {delta} does not follow {previous}")]
    OffsetOrder {
        /// The delta of the record before.
        previous: i32,
        /// The delta asked for.
        delta: i32,
    },
    /// Timestamps too far apart, or before the epoch without being [`NO_TIMESTAMP`].
    #[error("timestamp {0} cannot be written")]
    Timestamp(i64),
    /// The codec failed.
    #[error("compression by {codec} failed: {reason}")]
    Compress {
        /// Kafka's name of the codec.
        codec: &'static str,
        /// The codec's error.
        reason: String,
    },
}

/// Builds one batch at a time; [`BatchBuilder::finish`] empties it for the next and keeps its memory.
#[derive(Debug)]
pub struct BatchBuilder {
    options: BatchOptions,
    records: Vec<u8>,
    record_count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
    last_offset_delta: i32,
}

impl BatchBuilder {
    /// A builder without records.
    pub fn new(options: BatchOptions) -> BatchBuilder {
        BatchBuilder {
            options,
            records: Vec::new(),
            record_count: 0,
            base_timestamp: NO_TIMESTAMP,
            max_timestamp: NO_TIMESTAMP,
            last_offset_delta: -1,
        }
    }

    /// The options of the batch under construction.
    pub fn options_mut(&mut self) -> &mut BatchOptions {
        &mut self.options
    }

    /// The number of records that the batch has so far.
    pub fn record_count(&self) -> i32 {
        self.record_count
    }

    /// The size of the batch so far without compression, in bytes.
    pub fn uncompressed_bytes(&self) -> usize {
        HEADER_BYTES + self.records.len()
    }

    /// Appends a record at the next offset. `timestamp` is in ms, or [`NO_TIMESTAMP`].
    ///
    /// # Errors
    /// When the batch cannot take it; the batch is as before.
    pub fn append(
        &mut self,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), BuildError> {
        let next = self.last_offset_delta.checked_add(1).ok_or(BuildError::TooLarge(usize::MAX))?;
        self.append_at(next, timestamp, key, value, headers)
    }

    /// Appends a record at `offset_delta` from the base offset, as compaction does, which leaves holes.
    ///
    /// # Errors
    /// When the delta does not rise, or the batch cannot take the record; the batch is as before.
    pub fn append_at(
        &mut self,
        offset_delta: i32,
        timestamp: i64,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[Header<'_>],
    ) -> Result<(), BuildError> {
        if offset_delta <= self.last_offset_delta {
            return Err(BuildError::OffsetOrder { previous: self.last_offset_delta, delta: offset_delta });
        }
        let base = if self.record_count == 0 { timestamp } else { self.base_timestamp };
        let timestamp_delta = timestamp.checked_sub(base).ok_or(BuildError::Timestamp(timestamp))?;
        if timestamp < NO_TIMESTAMP {
            return Err(BuildError::Timestamp(timestamp));
        }
        let record = RecordParts { offset_delta, timestamp_delta, key, value, headers };
        let body = record.body_bytes();
        let total = self.records.len() + varlong_bytes(body as i64) + body;
        if total > BATCH_BYTES_MAX - HEADER_BYTES {
            return Err(BuildError::TooLarge(HEADER_BYTES + total));
        }
        record.write(body, &mut self.records);
        self.base_timestamp = base;
        self.max_timestamp = self.max_timestamp.max(timestamp);
        self.last_offset_delta = offset_delta;
        self.record_count += 1;
        Ok(())
    }

    /// Appends the finished batch to `out` and empties the builder; the options stay.
    ///
    /// # Errors
    /// [`BuildError::Empty`], and what the codec says; `out` is then as before.
    pub fn finish(&mut self, out: &mut Vec<u8>) -> Result<(), BuildError> {
        if self.record_count == 0 {
            return Err(BuildError::Empty);
        }
        let start = out.len();
        let result = self.write_batch(start, out);
        if result.is_err() {
            out.truncate(start);
        } else {
            self.clear();
        }
        result
    }

    fn write_batch(&self, start: usize, out: &mut Vec<u8>) -> Result<(), BuildError> {
        let (compression, level) = (self.options.compression, self.options.level);
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let mut compressor = Compressor::start(compression, level, Some(self.records.len()), out)?;
        compressor.write(&self.records, out)?;
        compressor.finish(out)?;
        seal(start, |payload| self.header().encode(payload), out)
    }

    /// The finished batch.
    ///
    /// # Errors
    /// As [`BatchBuilder::finish`].
    pub fn build(mut self) -> Result<Vec<u8>, BuildError> {
        let mut out = Vec::with_capacity(self.uncompressed_bytes());
        self.finish(&mut out)?;
        Ok(out)
    }

    /// Forgets the records.
    pub fn clear(&mut self) {
        self.records.clear();
        self.record_count = 0;
        self.base_timestamp = NO_TIMESTAMP;
        self.max_timestamp = NO_TIMESTAMP;
        self.last_offset_delta = -1;
    }

    fn header(&self) -> BatchHeader {
        let options = &self.options;
        let timestamp_type = match options.log_append_time {
            Some(_) => TimestampType::LogAppendTime,
            None => TimestampType::CreateTime,
        };
        BatchHeader {
            base_offset: options.base_offset,
            size: 0, // like the CRC, `encode` takes it from the records
            partition_leader_epoch: options.partition_leader_epoch,
            crc: 0,
            attributes: Attributes::default()
                .with_compression(options.compression)
                .with_timestamp_type(timestamp_type)
                .with_transactional(options.is_transactional)
                .with_control(options.is_control),
            last_offset_delta: self.last_offset_delta,
            base_timestamp: self.base_timestamp,
            max_timestamp: options.log_append_time.unwrap_or(self.max_timestamp),
            producer_id: options.producer.producer_id,
            producer_epoch: options.producer.producer_epoch,
            base_sequence: options.producer.base_sequence,
            record_count: self.record_count,
        }
    }
}

/// A record as it is written.
struct RecordParts<'r> {
    offset_delta: i32,
    timestamp_delta: i64,
    key: Option<&'r [u8]>,
    value: Option<&'r [u8]>,
    headers: &'r [Header<'r>],
}

impl RecordParts<'_> {
    fn body_bytes(&self) -> usize {
        let headers: usize = self
            .headers
            .iter()
            .map(|header| nullable_bytes(Some(header.key)) + nullable_bytes(header.value))
            .sum();
        1 + varlong_bytes(self.timestamp_delta)
            + varlong_bytes(i64::from(self.offset_delta))
            + nullable_bytes(self.key)
            + nullable_bytes(self.value)
            + varlong_bytes(self.headers.len() as i64)
            + headers
    }

    fn write(&self, body_bytes: usize, out: &mut Vec<u8>) {
        out.reserve(body_bytes + varlong_bytes(body_bytes as i64));
        write_varlong(out, body_bytes as i64);
        out.push(0); // attributes: none are defined
        write_varlong(out, self.timestamp_delta);
        write_varlong(out, i64::from(self.offset_delta));
        write_nullable(out, self.key);
        write_nullable(out, self.value);
        write_varlong(out, self.headers.len() as i64);
        for header in self.headers {
            write_nullable(out, Some(header.key));
            write_nullable(out, header.value);
        }
    }
}

fn nullable_bytes(field: Option<&[u8]>) -> usize {
    match field {
        Some(bytes) => varlong_bytes(bytes.len() as i64) + bytes.len(),
        None => varlong_bytes(-1),
    }
}

fn write_nullable(out: &mut Vec<u8>, field: Option<&[u8]>) {
    match field {
        Some(bytes) => {
            write_varlong(out, bytes.len() as i64);
            out.extend_from_slice(bytes);
        }
        None => write_varlong(out, -1),
    }
}
