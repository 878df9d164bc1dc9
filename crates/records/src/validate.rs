//! The one walk over a produced batch: without it one client could plant a batch that stops every consumer.
//!
//! The checks are those of Kafka's LogValidator and of the iterators that consumers use, with the same error
//! for each. Two are stricter, for compressed and plain records alike: offset deltas must count 0, 1, 2, ... and
//! every length inside a record must fit it. Kafka re-encodes or accepts such batches; no client makes them.

use crate::batch::{Batch, Compression, NO_PRODUCER_ID, NO_TIMESTAMP, TimestampType};
use crate::error::{InvalidBatch, KafkaError, RecordError};
use crate::scratch::Scratch;
use crate::walk::{RecordShape, SliceSource, Source, walk_record};

/// The writer of a batch, which determines what the batch may contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A producer: no control records, base offset 0.
    Client,
    /// This broker itself: coordinators, transaction markers, metadata.
    Coordinator,
    /// The leader's bytes on a replica, or closed segments: offsets stay as they are, and compaction may have left
    /// holes.
    Replication,
}

/// The rules for a batch, by its topic and the time of its append.
#[derive(Debug, Clone)]
pub struct ValidationRules {
    /// The writer of the batch.
    pub origin: Origin,
    /// True if every record must have a key: `cleanup.policy` contains `compact`.
    pub key_required: bool,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: how far a CreateTime may lie in the past.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`: how far a CreateTime may lie in the future.
    pub timestamp_after_max_ms: i64,
    /// Wall time of the append in ms.
    pub now_ms: i64,
    /// The most bytes that compressed records may decompress to.
    pub decompressed_bytes_max: usize,
}

impl ValidationRules {
    /// The rules of Kafka's defaults for a producer's batch: CreateTime, any past, at most one hour in the future.
    pub fn client(now_ms: i64) -> ValidationRules {
        ValidationRules {
            origin: Origin::Client,
            key_required: false,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            now_ms,
            decompressed_bytes_max: 64 << 20,
        }
    }
}

/// A batch that has passed, with the facts about its records that the log needs, so that it does not walk them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValidBatch<'a> {
    /// The batch, as sent.
    pub batch: Batch<'a>,
    /// The largest timestamp as it is to be stored: of the records, or the append time under LogAppendTime;
    /// [`NO_TIMESTAMP`] if no record has one.
    pub max_timestamp: i64,
    /// The offset delta that goes with it: the first record with that timestamp, -1 if no record has one. Under LogAppendTime the last
    /// one of plain records and the first one of compressed, as in Kafka.
    pub offset_delta_of_max_timestamp: i32,
    /// The change that is due before the batch is stored.
    pub rewrite: Rewrite,
}

/// The change of a valid batch that is due before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewrite {
    /// Nothing beside the leader's stamp.
    None,
    /// The header's `max_timestamp` is not that of the records: [`restamped_header`](crate::restamped_header)
    /// with [`ValidBatch::max_timestamp`].
    MaxTimestamp,
    /// The topic is LogAppendTime: [`restamped_header`](crate::restamped_header) with the append time.
    LogAppendTime,
}

/// Checks `batch` against `rules`, CRC first, in one walk that allocates nothing for plain records.
///
/// # Errors
/// [`InvalidBatch`], whose [`kafka_error`](InvalidBatch::kafka_error) is the answer to the producer.
pub fn validate<'a>(
    batch: Batch<'a>,
    rules: &ValidationRules,
    scratch: &mut Scratch,
) -> Result<ValidBatch<'a>, InvalidBatch> {
    let computed = batch.computed_crc();
    if computed != batch.crc() {
        return Err(InvalidBatch::Crc { stored: batch.crc(), computed });
    }
    check_header(&batch, rules)?;
    let mut walk = Walk::new(&batch, rules);
    match batch.attributes().compression().map_err(InvalidBatch::UnknownCompression)? {
        Compression::None => walk.run(&mut SliceSource::new(batch.payload()))?,
        _ => scratch.with_stream(&batch, rules.decompressed_bytes_max, |source| walk.run(source))?,
    }
    walk.finish()
}

fn check_header(batch: &Batch<'_>, rules: &ValidationRules) -> Result<(), InvalidBatch> {
    if batch.record_count() < 0 || batch.last_offset_delta() < 0 {
        return refuse(format!(
            "batch has {} records and last offset delta {}",
            batch.record_count(),
            batch.last_offset_delta()
        ));
    }
    match rules.origin {
        Origin::Replication => check_compacted_range(batch),
        Origin::Coordinator => check_dense_range(batch),
        Origin::Client => {
            check_dense_range(batch)?;
            check_client_header(batch)
        }
    }
}

fn check_compacted_range(batch: &Batch<'_>) -> Result<(), InvalidBatch> {
    if i64::from(batch.record_count()) > i64::from(batch.last_offset_delta()) + 1 {
        return refuse(format!(
            "{} records do not fit the offset range [{}, {}]",
            batch.record_count(),
            batch.base_offset(),
            batch.last_offset()
        ));
    }
    Ok(())
}

fn check_dense_range(batch: &Batch<'_>) -> Result<(), InvalidBatch> {
    if batch.record_count() == 0 {
        return refuse("invalid reported count for record batch: 0".into());
    }
    if batch.record_count() - 1 != batch.last_offset_delta() {
        return refuse(format!(
            "inconsistent batch offset range [{}, {}] and count of records {}",
            batch.base_offset(),
            batch.last_offset(),
            batch.record_count()
        ));
    }
    Ok(())
}

fn check_client_header(batch: &Batch<'_>) -> Result<(), InvalidBatch> {
    if batch.base_offset() != 0 {
        return refuse(format!(
            "the base offset of a produced record batch should be 0, but it is {}",
            batch.base_offset()
        ));
    }
    if batch.attributes().is_control() {
        return refuse("clients are not allowed to write control records".into());
    }
    if batch.producer_id() > NO_PRODUCER_ID && batch.base_sequence() < 0 {
        return refuse(format!(
            "invalid sequence number {} in record batch with producer id {}",
            batch.base_sequence(),
            batch.producer_id()
        ));
    }
    if batch.producer_id() > NO_PRODUCER_ID && batch.producer_epoch() < 0 {
        return refuse(format!(
            "invalid producer epoch {} in record batch with producer id {}",
            batch.producer_epoch(),
            batch.producer_id()
        ));
    }
    if batch.attributes().is_transactional() && batch.producer_id() <= NO_PRODUCER_ID {
        return refuse("transactional record batch without a producer id".into());
    }
    Ok(())
}

fn refuse(reason: String) -> Result<(), InvalidBatch> {
    Err(InvalidBatch::Header(reason))
}

/// The state of a walk over the records of one batch.
struct Walk<'b, 'a> {
    batch: &'b Batch<'a>,
    rules: &'b ValidationRules,
    count: u32,
    dense: bool,
    previous_delta: i32,
    log_append_time: bool,
    max_timestamp: i64,
    offset_delta_of_max_timestamp: i32,
    faults: Faults,
}

/// Faults of single records, of which only the first are kept.
#[derive(Default)]
struct Faults {
    count: u32,
    any_timestamp: bool,
    records: Vec<RecordError>,
}

impl<'b, 'a> Walk<'b, 'a> {
    fn new(batch: &'b Batch<'a>, rules: &'b ValidationRules) -> Self {
        Walk {
            batch,
            rules,
            count: batch.record_count() as u32,
            dense: rules.origin != Origin::Replication,
            previous_delta: -1,
            log_append_time: batch.attributes().timestamp_type() == TimestampType::LogAppendTime,
            max_timestamp: NO_TIMESTAMP,
            offset_delta_of_max_timestamp: -1,
            faults: Faults::default(),
        }
    }

    fn run<S: Source>(&mut self, source: &mut S) -> Result<(), InvalidBatch> {
        for index in 0..self.count {
            let shape = walk_record(source).map_err(|error| error.at(index))?;
            self.check_offset(index, &shape)?;
            self.check_record(index, &shape);
        }
        match source.at_end().map_err(|error| error.at(self.count))? {
            true => Ok(()),
            false => {
                Err(InvalidBatch::Malformed { index: self.count, reason: "bytes follow the last record" })
            }
        }
    }

    #[inline]
    fn check_offset(&mut self, index: u32, shape: &RecordShape) -> Result<(), InvalidBatch> {
        let delta = shape.offset_delta;
        let fits = match self.dense {
            true => i64::from(delta) == i64::from(index),
            false => delta > self.previous_delta && delta <= self.batch.last_offset_delta(),
        };
        self.previous_delta = delta;
        match fits {
            true => Ok(()),
            false => Err(InvalidBatch::Malformed { index, reason: "its offset delta is out of order" }),
        }
    }

    #[inline]
    fn check_record(&mut self, index: u32, shape: &RecordShape) {
        let timestamp = match self.log_append_time {
            true => self.batch.max_timestamp(),
            false => self.batch.base_timestamp().wrapping_add(shape.timestamp_delta),
        };
        if timestamp > self.max_timestamp {
            self.max_timestamp = timestamp;
            self.offset_delta_of_max_timestamp = shape.offset_delta;
        }
        if self.rules.key_required && !shape.has_key && !self.batch.attributes().is_control() {
            self.faults.push(index, || "compacted topic cannot accept message without key".into());
        } else if self.rules.origin == Origin::Client {
            self.check_timestamp(index, timestamp);
        }
    }

    #[inline]
    fn check_timestamp(&mut self, index: u32, timestamp: i64) {
        let rules = self.rules;
        if self.log_append_time {
            self.faults.any_timestamp = true;
            self.faults
                .push(index, || "invalid timestamp type: producers should not set LogAppendTime".into());
            return;
        }
        if rules.timestamp_type == TimestampType::LogAppendTime || timestamp == NO_TIMESTAMP {
            return;
        }
        let age = rules.now_ms.saturating_sub(timestamp);
        if age > rules.timestamp_before_max_ms || age.saturating_neg() > rules.timestamp_after_max_ms {
            self.faults.any_timestamp = true;
            self.faults.push(index, || out_of_range(timestamp, rules));
        }
    }

    fn finish(self) -> Result<ValidBatch<'a>, InvalidBatch> {
        if self.faults.count > 0 {
            return Err(self.faults.into_error());
        }
        if self.rules.origin == Origin::Replication {
            return Ok(self.as_stored());
        }
        if self.rules.timestamp_type == TimestampType::LogAppendTime {
            return Ok(self.log_append_time());
        }
        let right = self.max_timestamp == self.batch.max_timestamp();
        Ok(ValidBatch {
            batch: *self.batch,
            max_timestamp: self.max_timestamp,
            offset_delta_of_max_timestamp: self.offset_delta_of_max_timestamp,
            rewrite: if right { Rewrite::None } else { Rewrite::MaxTimestamp },
        })
    }

    /// A stored batch keeps its header: one that compaction has emptied still has its `max_timestamp`.
    fn as_stored(&self) -> ValidBatch<'a> {
        let found = self.count > 0 && self.max_timestamp == self.batch.max_timestamp();
        let last = self.batch.last_offset_delta();
        ValidBatch {
            batch: *self.batch,
            max_timestamp: self.batch.max_timestamp(),
            offset_delta_of_max_timestamp: if found { self.offset_delta_of_max_timestamp } else { last },
            rewrite: Rewrite::None,
        }
    }

    fn log_append_time(&self) -> ValidBatch<'a> {
        let compressed = self.batch.attributes().is_compressed();
        ValidBatch {
            batch: *self.batch,
            max_timestamp: self.rules.now_ms,
            offset_delta_of_max_timestamp: if compressed { 0 } else { self.batch.last_offset_delta() },
            rewrite: Rewrite::LogAppendTime,
        }
    }
}

impl Faults {
    #[cold]
    fn push(&mut self, index: u32, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.records.len() < InvalidBatch::RECORD_ERRORS_MAX {
            self.records.push(RecordError { index: index as i32, message: message() });
        }
    }

    fn into_error(self) -> InvalidBatch {
        let error = if self.any_timestamp { KafkaError::InvalidTimestamp } else { KafkaError::InvalidRecord };
        InvalidBatch::Records { error, count: self.count, records: self.records }
    }
}

fn out_of_range(timestamp: i64, rules: &ValidationRules) -> String {
    format!(
        "timestamp {timestamp} is out of range: it should be within [{}, {}]",
        rules.now_ms.saturating_sub(rules.timestamp_before_max_ms),
        rules.now_ms.saturating_add(rules.timestamp_after_max_ms)
    )
}
