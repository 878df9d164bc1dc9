//! Appending: one `pwritev` of the stamped header and the client's bytes.
//!
//! [`prepare`] does, outside of the partition's lock, all that needs the records: the one walk, and the re-encoding
//! where the topic asks for it. [`Log::append`] judges the producer, rolls when it is time, stamps and writes.

use crate::config::LogConfig;
use crate::error::{AppendError, LogError};
use crate::files::{FileKind, PartitionFiles};
use crate::index::Entry;
use crate::log::{Active, Log};
use crate::offset_index::OffsetEntry;
use crate::producer_state::{OPEN_TRANSACTIONS_MAX, ProducerBatch, ProducerFault, Terms, Verdict};
use crate::recent::RecentBatch;
use crate::segment::Segment;
use crate::storage::{StorageFault, StorageFile};
use crate::time_index::{TimeEntry, TimestampOffset};
use crate::verification::VerificationGuard;
use mainstem_records::{
    Batch, BatchError, CoordinatorEpoch, EndTransactionMarker, HEADER_BYTES, InvalidBatch, LeaderEpoch,
    Origin, ProducerEpoch, ProducerId, RecompressError, Recompression, Rewrite, STAMP_BYTES, Scratch,
    TimestampType, ValidationRules, recompress, restamped_header, stamp_header, validate,
};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// A batch that has passed all checks which do not need the log, as it will be written but for offset and epoch.
#[derive(Debug, Clone)]
pub struct Prepared<'a> {
    batch: Batch<'a>,
    /// The batch as it will be written, except for the stamp.
    header: [u8; HEADER_BYTES],
    origin: Origin,
    producer: ProducerBatch,
    log_append_time: Option<i64>,
    guard: VerificationGuard,
    transaction_version: i16,
}

impl<'a> Prepared<'a> {
    /// The batch as the client sent it, or as it was re-encoded.
    pub fn batch(&self) -> &Batch<'a> {
        &self.batch
    }

    /// The header in place of the batch's own, as it is to be written but for offset and leader epoch.
    pub fn header(&self) -> &[u8; HEADER_BYTES] {
        &self.header
    }

    /// The append time in ms, on a topic with LogAppendTime.
    pub fn log_append_time(&self) -> Option<i64> {
        self.log_append_time
    }

    pub(crate) fn producer(&self) -> &ProducerBatch {
        &self.producer
    }

    /// Size as it will be stored, in bytes.
    pub fn size(&self) -> usize {
        self.batch.size()
    }

    /// The number of offsets that it takes.
    pub fn offsets(&self) -> i64 {
        i64::from(self.producer.last_offset_delta) + 1
    }

    /// The transaction coordinator knows that the producer writes to this partition: the batch may begin its
    /// transaction (KIP-890). `guard` is from [`Log::begin_verification`], before the coordinator was asked.
    pub fn verified_by(self, guard: VerificationGuard) -> Self {
        Prepared { guard, ..self }
    }
}

/// Checks the bytes of one produce request for one partition against the topic's rules, and re-encodes them into
/// `out` where the topic's `compression.type` asks for that. Pure; to be called without the partition's lock.
pub fn prepare<'a>(
    raw: &'a [u8],
    config: &LogConfig,
    wall_ms: i64,
    origin: Origin,
    scratch: &mut Scratch,
    out: &'a mut Vec<u8>,
) -> Result<Prepared<'a>, AppendError> {
    let (batch, rest) = Batch::split_first(raw).map_err(InvalidBatch::from)?;
    if !rest.is_empty() {
        return Err(match Batch::split_first(rest) {
            Ok(_) | Err(BatchError::Truncated { .. }) => AppendError::NotOneBatch,
            Err(error) => InvalidBatch::from(error).into(),
        });
    }
    check_size(batch.size(), config, origin)?;
    let valid = validate(batch, &rules(config, wall_ms, origin), scratch)?;
    let batch = match target_compression(&batch, config, origin) {
        None => batch,
        Some(target) => {
            out.clear();
            recompress(&batch, &target, out, scratch).map_err(|error| match error {
                RecompressError::Invalid(invalid) => AppendError::Invalid(invalid),
                RecompressError::Build(build) => AppendError::Recompress(build.to_string()),
            })?;
            check_size(out.len(), config, origin)?;
            Batch::split_first(out).expect("what was just encoded is a batch").0
        }
    };
    Ok(prepared(batch, valid.rewrite, valid.max_timestamp, origin))
}

fn rules(config: &LogConfig, wall_ms: i64, origin: Origin) -> ValidationRules {
    ValidationRules {
        origin,
        key_required: config.compact,
        timestamp_type: config.timestamp_type,
        timestamp_before_max_ms: config.timestamp_before_max_ms,
        timestamp_after_max_ms: config.timestamp_after_max_ms,
        now_ms: wall_ms,
        decompressed_bytes_max: config.decompressed_bytes_max,
    }
}

fn check_size(size: usize, config: &LogConfig, origin: Origin) -> Result<(), AppendError> {
    // A replica takes what its leader has taken, whatever the configuration says by now.
    if origin != Origin::Replication && size > config.max_message_bytes as usize {
        return Err(AppendError::RecordTooLarge { size, max: config.max_message_bytes });
    }
    Ok(())
}

fn target_compression(batch: &Batch<'_>, config: &LogConfig, origin: Origin) -> Option<Recompression> {
    let (compression, level) = config.compression?;
    let differs = batch.attributes().compression() != Ok(compression);
    (differs && origin == Origin::Client).then_some(Recompression {
        compression,
        level,
        decompressed_bytes_max: config.decompressed_bytes_max,
    })
}

impl<'a> Prepared<'a> {
    /// A batch of another copy of the log. It is appended unchanged: it was checked when it arrived.
    pub(crate) fn copy_of(batch: Batch<'a>) -> Prepared<'a> {
        prepared(batch, Rewrite::None, batch.max_timestamp(), Origin::Replication)
    }

    /// A marker that this node writes, of a transaction of this version.
    pub(crate) fn marker(
        batch: Batch<'a>,
        log_append_time: Option<i64>,
        transaction_version: i16,
    ) -> Prepared<'a> {
        let (rewrite, max_timestamp) = match log_append_time {
            Some(wall_ms) => (Rewrite::LogAppendTime, wall_ms),
            None => (Rewrite::None, batch.max_timestamp()),
        };
        let prepared = prepared(batch, rewrite, max_timestamp, Origin::Coordinator);
        Prepared { transaction_version, ..prepared }
    }
}

fn prepared<'a>(batch: Batch<'a>, rewrite: Rewrite, max_timestamp: i64, origin: Origin) -> Prepared<'a> {
    let header = match rewrite {
        Rewrite::None => *batch.bytes().first_chunk().expect("a batch is not shorter than its header"),
        Rewrite::MaxTimestamp => restamped_header(&batch, TimestampType::CreateTime, max_timestamp),
        Rewrite::LogAppendTime => restamped_header(&batch, TimestampType::LogAppendTime, max_timestamp),
    };
    let is_control = batch.attributes().is_control();
    Prepared {
        batch,
        header,
        origin,
        producer: ProducerBatch {
            producer_id: ProducerId::new(batch.producer_id()),
            producer_epoch: ProducerEpoch::new(batch.producer_epoch()),
            base_sequence: batch.base_sequence(),
            last_offset_delta: batch.last_offset_delta(),
            max_timestamp,
            is_transactional: batch.attributes().is_transactional(),
            is_control,
            marker: if is_control { EndTransactionMarker::of_batch(&batch) } else { None },
        },
        log_append_time: (rewrite == Rewrite::LogAppendTime).then_some(max_timestamp),
        guard: VerificationGuard::NONE,
        transaction_version: 0,
    }
}

/// The place of an appended batch in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Offset of its first record.
    pub base_offset: i64,
    /// Offset of its last record.
    pub last_offset: i64,
    /// Its append time in ms, on a topic with LogAppendTime.
    pub log_append_time: Option<i64>,
    /// The log start offset.
    pub log_start_offset: i64,
    /// The batch is a duplicate: its producer has sent it before. `acks=all` waits for its durability all the same.
    pub duplicate: bool,
}

/// The offsets and the leader epoch under which a batch is going to be written.
#[derive(Clone, Copy)]
struct Placement {
    base_offset: i64,
    last_offset: i64,
    leader_epoch: LeaderEpoch,
    size: u32,
}

impl Log {
    /// Appends a batch at the log end, under `leader_epoch`; a replicated batch keeps its own offset and epoch. When
    /// this returns the bytes are in the page cache.
    ///
    /// Nothing of a refused batch is in the log. After [`AppendError::OutOfSpace`] the log accepts further appends. After
    /// [`AppendError::Storage`] it is stopped, except after a shortage ([`StorageFault::is_temporary`]).
    pub fn append(
        &mut self,
        batch: &Prepared<'_>,
        leader_epoch: LeaderEpoch,
        mono_ms: u64,
    ) -> Result<Appended, AppendError> {
        if let Some(reason) = self.refusal() {
            return Err(AppendError::Stopped(reason.to_owned()));
        }
        let placement = self.place(batch, leader_epoch)?;
        if let Some(duplicate) = self.judge_producer(batch)? {
            return Ok(duplicate);
        }
        if batch.origin == Origin::Client && self.dir.is_full() {
            return Err(AppendError::OutOfSpace(io::ErrorKind::StorageFull.into()));
        }
        self.cut_leftovers()?;
        if self.roll_is_due(batch, &placement, mono_ms) {
            self.roll(mono_ms).map_err(|error| self.refuse(error))?;
        }
        let position = self.write(batch, &placement)?;
        if batch.producer.is_control {
            self.index_aborted(&batch.producer, placement.base_offset)
                .map_err(|error| self.undo_indexed(error))?;
        }
        self.note_appended(batch, &placement, position, mono_ms);
        Ok(Appended {
            base_offset: placement.base_offset,
            last_offset: placement.last_offset,
            log_append_time: batch.log_append_time,
            log_start_offset: self.log_start,
            duplicate: false,
        })
    }

    fn place(&self, batch: &Prepared<'_>, leader_epoch: LeaderEpoch) -> Result<Placement, AppendError> {
        let size = batch.size();
        // A replica takes what its leader has taken, whatever the configuration says by now.
        if size > self.config.segment_bytes as usize && batch.origin != Origin::Replication {
            return Err(AppendError::BatchTooLarge { size, max: self.config.segment_bytes });
        }
        let (base_offset, leader_epoch) = match batch.origin {
            Origin::Replication if batch.batch.base_offset() < self.log_end => {
                let (base_offset, log_end) = (batch.batch.base_offset(), self.log_end);
                return Err(AppendError::OffsetsOutOfOrder { base_offset, log_end });
            }
            Origin::Replication => {
                (batch.batch.base_offset(), LeaderEpoch::new(batch.batch.partition_leader_epoch()))
            }
            Origin::Client | Origin::Coordinator => (self.log_end, leader_epoch),
        };
        let last_offset = base_offset + i64::from(batch.producer.last_offset_delta);
        Ok(Placement { base_offset, last_offset, leader_epoch, size: size as u32 })
    }

    /// Refuses what a producer may not write; the answer for what it has written before.
    fn judge_producer(&mut self, batch: &Prepared<'_>) -> Result<Option<Appended>, AppendError> {
        let producer = &batch.producer;
        if producer.producer_id == ProducerId::NONE || batch.origin == Origin::Replication {
            return Ok(None);
        }
        let producer_id = producer.producer_id;
        let verification = self.verifications.of(producer_id);
        let is_verified = || {
            let expected = verification.map_or(VerificationGuard::NONE, |verification| verification.guard);
            batch.guard != VerificationGuard::NONE && batch.guard == expected
        };
        let terms = Terms {
            check_sequence: batch.origin == Origin::Client,
            may_begin: !producer.is_transactional || !self.config.transaction_verification || is_verified(),
            verification,
            has_capacity: self.producer_share.has_capacity(),
            transaction_version: batch.transaction_version,
        };
        match self.producers.check(producer, terms) {
            Ok(Verdict::Append) => Ok(None),
            Ok(Verdict::Duplicate(known)) => Ok(Some(Appended {
                base_offset: known.first_offset(),
                last_offset: known.last_offset,
                log_append_time: batch.log_append_time.map(|_| known.timestamp),
                log_start_offset: self.log_start,
                duplicate: true,
            })),
            Err(ProducerFault::OutOfOrderSequence { last_sequence }) => {
                let sequence = producer.base_sequence;
                Err(AppendError::OutOfOrderSequence { producer_id, sequence, last_sequence })
            }
            Err(ProducerFault::InvalidEpoch { current }) => {
                let epoch = producer.producer_epoch;
                Err(AppendError::InvalidProducerEpoch { producer_id, epoch, current })
            }
            Err(ProducerFault::InvalidTransactionState) => {
                Err(AppendError::InvalidTransactionState { producer_id })
            }
            Err(ProducerFault::TooManyProducers) => {
                let max = self.producer_share.partition_max();
                Err(self.report_refused(AppendError::TooManyProducers { producer_id, max }))
            }
            Err(ProducerFault::TooManyTransactions) => {
                let max = OPEN_TRANSACTIONS_MAX;
                Err(self.report_refused(AppendError::TooManyTransactions { producer_id, max }))
            }
            Err(ProducerFault::NotVerified) => Err(AppendError::TransactionNotVerified { producer_id }),
            Err(ProducerFault::CoordinatorFenced { current }) => {
                let coordinator_epoch =
                    producer.marker.map_or(CoordinatorEpoch::NONE, |marker| marker.coordinator_epoch);
                Err(AppendError::CoordinatorFenced { producer_id, coordinator_epoch, current })
            }
        }
    }

    /// Logs the first refusal since producers expired last.
    fn report_refused(&mut self, error: AppendError) -> AppendError {
        if !std::mem::replace(&mut self.refused_producers, true) {
            tracing::warn!(partition = %self.partition, %error, "new producers are refused");
        }
        error
    }

    /// Returns true if a roll is due, by Kafka's rules: the segment would become too large or span too much time, an index is full,
    /// or an offset does not fit the index. An empty segment is never rolled.
    fn roll_is_due(&self, batch: &Prepared<'_>, placement: &Placement, mono_ms: u64) -> bool {
        let (segment, config) = (self.active_segment(), &self.config);
        if segment.len == 0 {
            return false;
        }
        let relative = placement.last_offset - segment.base_offset;
        segment.len > config.segment_bytes.saturating_sub(placement.size)
            || relative > i64::from(i32::MAX)
            || segment.offsets.len() >= config.index_entries_max(OffsetEntry::BYTES)
            || segment.times.len() + 1 >= config.index_entries_max(TimeEntry::BYTES)
            || self.waited_for_roll_ms(batch.producer.max_timestamp, mono_ms) > self.roll_after_ms()
    }

    /// Between the first record and the one that comes, by their timestamps where they have some.
    fn waited_for_roll_ms(&self, timestamp: i64, mono_ms: u64) -> i64 {
        match self.active.first_timestamp {
            Some(first) if first >= 0 => timestamp.saturating_sub(first),
            _ => i64::try_from(mono_ms.saturating_sub(self.active.started_mono_ms)).unwrap_or(i64::MAX),
        }
    }

    pub(crate) fn roll_after_ms(&self) -> i64 {
        self.config.segment_ms_max() - self.config.jitter_ms(self.seed, self.active_segment().base_offset)
    }

    /// Closes the active segment and begins the next one at the log end.
    pub(crate) fn roll(&mut self, mono_ms: u64) -> Result<(), LogError> {
        let closed = self.active_segment();
        assert!(closed.len > 0, "an empty segment is not rolled: the next one would have its name");
        let closed_len = u64::from(closed.len);
        self.seal_indexes()?;
        self.write_epochs()?;
        self.write_snapshot()?;
        let file = self.create_active_files().inspect_err(|_| self.remove_files_of(self.log_end))?;
        if self.config.preallocate {
            // What was reserved and not used goes.
            let path = self.files.path(self.active_segment().base_offset, FileKind::Log);
            self.active.file.set_len(closed_len).map_err(LogError::io("cut", path))?;
        }
        let closed = std::mem::replace(&mut self.active, Active::new(file, mono_ms));
        self.flush.add_file(closed.file);
        closed.transaction_index.into_iter().for_each(|file| self.flush.add_file(file));
        self.flush.add_directory(&self.files.dir);
        self.flush.note_due();
        let last = self.segments.last_mut().expect("a log has a segment at all times");
        last.shrink();
        self.segments.push(Segment::empty(self.log_end));
        self.recent.clear();
        Ok(())
    }

    /// Creates the files of the segment that begins at the log end.
    pub(crate) fn create_active_files(&self) -> Result<Arc<dyn StorageFile>, LogError> {
        let file = create_segment_files(&self.files, self.log_end)?;
        if self.config.preallocate {
            file.allocate(0, u64::from(self.config.segment_bytes))
                .map_err(LogError::io("allocate", self.files.path(self.log_end, FileKind::Log)))?;
        }
        Ok(file)
    }

    /// Removes the files of an empty segment: it must not stay while the log is appended to in an older one.
    fn remove_files_of(&self, base_offset: i64) {
        for kind in [FileKind::Log, FileKind::Index, FileKind::TimeIndex] {
            if let Err(error) = self.files.remove(base_offset, kind) {
                tracing::warn!(partition = %self.partition, %error, "a file of a new segment stays");
            }
        }
    }

    /// Writes the batch at the end of the active segment; returns where. On failure the segment is as before.
    fn write(&mut self, batch: &Prepared<'_>, placement: &Placement) -> Result<u32, AppendError> {
        let position = self.active_segment().len;
        let mut header = batch.header;
        let stamp = stamp_header(&batch.batch, placement.base_offset, placement.leader_epoch.get());
        header[..STAMP_BYTES].copy_from_slice(&stamp);
        let (file, payload) = (&*self.active.file, batch.batch.payload());
        let bufs = [IoSlice::new(&header), IoSlice::new(payload)];
        let mut written = file.write_at(&bufs, u64::from(position)).map(|count| count as u32);
        if let Ok(count) = written
            && count < placement.size
        {
            written = write_rest(file, &header, payload, count as usize, u64::from(position))
                .map(|()| placement.size);
        }
        match written {
            Ok(_) => Ok(position),
            Err(error) => Err(self.undo_write(error)),
        }
    }

    /// The batch is written, its entry in the transaction index is not.
    fn undo_indexed(&mut self, error: io::Error) -> AppendError {
        if StorageFault::of(&error) == StorageFault::NoHandles {
            // The next append cuts the batch off; nothing is wrong with the disk.
            self.active.needs_cut = true;
            return AppendError::Storage(error);
        }
        self.undo_write(error)
    }

    /// Cuts what a failed write left behind. A shortage passes; any other failure stops the partition.
    fn undo_write(&mut self, error: io::Error) -> AppendError {
        self.active.needs_cut = true;
        let fault = StorageFault::of(&error);
        if !fault.is_temporary() {
            self.fail_medium(&error);
            return AppendError::Storage(error);
        }
        if let Err(later) = self.cut_leftovers() {
            tracing::warn!(partition = %self.partition, error = %later, "a partial write is cut before the next append");
        }
        match fault {
            StorageFault::NoSpace => {
                self.dir.note_full();
                AppendError::OutOfSpace(error)
            }
            _ => AppendError::Storage(error),
        }
    }

    fn cut_leftovers(&mut self) -> Result<(), AppendError> {
        if self.active.needs_cut {
            let len = u64::from(self.active_segment().len);
            self.active.file.set_len(len).map_err(AppendError::Storage)?;
            self.active.needs_cut = false;
        }
        Ok(())
    }

    /// Turns a failure to roll into the error of the append, and notes a full or a failed disk.
    fn refuse(&mut self, error: LogError) -> AppendError {
        let LogError::Io { source, .. } = error else { return AppendError::Stopped(error.to_string()) };
        match StorageFault::of(&source) {
            StorageFault::NoSpace => {
                self.dir.note_full();
                AppendError::OutOfSpace(source)
            }
            // The segment that is active stays so; the next append tries again.
            StorageFault::NoHandles => AppendError::Storage(source),
            StorageFault::Medium | StorageFault::File => {
                self.stop(&source);
                self.dir.note_error(&source);
                AppendError::Storage(source)
            }
        }
    }

    fn note_appended(&mut self, batch: &Prepared<'_>, placement: &Placement, position: u32, mono_ms: u64) {
        let timestamp = batch.producer.max_timestamp;
        if position == 0 {
            self.active.first_timestamp = Some(timestamp);
            self.active.started_mono_ms = mono_ms;
        }
        self.note_in_indexes(placement, position, timestamp);
        self.recent.push(RecentBatch { base_offset: placement.base_offset, position, size: placement.size });
        self.epoch_checkpoint.note(self.epochs.assign(placement.leader_epoch, placement.base_offset));
        self.producers.record(&batch.producer, placement.last_offset, mono_ms);
        self.producer_share.set(self.producers.len());
        if batch.producer.is_transactional {
            self.verifications.end(batch.producer.producer_id);
        }
        self.log_end = placement.last_offset + 1;
        if self.follow_log_end {
            self.high_watermark = self.log_end;
            self.producers.settle_before(self.log_end);
        }
        self.flush.note_append(mono_ms);
    }

    fn note_in_indexes(&mut self, placement: &Placement, position: u32, timestamp: i64) {
        let interval = self.config.index_interval_bytes;
        let segment = self.segments.last_mut().expect("a log has a segment at all times");
        segment.len = position + placement.size;
        let largest = segment.largest.expect("known of the active segment");
        if timestamp > largest.timestamp {
            segment.largest = Some(TimestampOffset { timestamp, offset: placement.last_offset });
        }
        if self.active.bytes_since_index > interval {
            let relative_offset = (placement.last_offset - segment.base_offset) as i32;
            segment.offsets.push(OffsetEntry { relative_offset, position });
            segment.push_time(&mut self.active.last_time_entry);
            self.active.bytes_since_index = 0;
            if (segment.offsets.wants_write() || segment.offsets.enters_next_part())
                && let Err(error) = self.write_indexes()
            {
                // They stay in memory, and are tried again with the next lot.
                tracing::warn!(partition = %self.partition, %error, "index entries are kept in memory");
            }
        }
        self.active.bytes_since_index = self.active.bytes_since_index.saturating_add(placement.size);
    }
}

fn write_rest(
    file: &dyn StorageFile,
    header: &[u8],
    payload: &[u8],
    mut done: usize,
    position: u64,
) -> io::Result<()> {
    while done < header.len() + payload.len() {
        let rest = match done < header.len() {
            true => [IoSlice::new(&header[done..]), IoSlice::new(payload)],
            false => [IoSlice::new(&payload[done - header.len()..]), IoSlice::new(&[])],
        };
        match file.write_at(&rest, position + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => done += count,
        }
    }
    Ok(())
}

/// Creates the files of a new segment; an index that is empty exists all the same, because Kafka's tools open it.
pub(crate) fn create_segment_files(
    files: &PartitionFiles,
    base_offset: i64,
) -> Result<Arc<dyn StorageFile>, LogError> {
    for kind in [FileKind::Index, FileKind::TimeIndex] {
        let index = files.open(base_offset, kind)?;
        index.set_len(0).map_err(LogError::io("cut", files.path(base_offset, kind)))?;
    }
    let file = files.open(base_offset, FileKind::Log)?;
    file.set_len(0).map_err(LogError::io("cut", files.path(base_offset, FileKind::Log)))?;
    Ok(file)
}
