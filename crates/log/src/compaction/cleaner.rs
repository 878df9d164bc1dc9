//! Compacts one log: reads the dirty part for the last offset of each key, then rewrites every group of segments without
//! the superseded records, and swaps it in. Appends and fetches continue meanwhile.

use super::copy::{Copy, control_type};
use super::grouping::{Limits, group};
use super::key_hash::KeyHasher;
use super::offset_map::{MapSize, OffsetMap};
use super::output::{Output, discard};
use super::round::{Round, TRANSACTION_INDEX_BYTES_MAX};
use super::rules::{Rules, last_of_producers};
use super::swap::{settle, swap_in};
use super::transactions::Transactions;
use crate::config::LogConfig;
use crate::error::LogError;
use crate::log::Log;
use crate::storage::StorageFault;
use mainstem_records::{InvalidBatch, KeyedRecord, ProducerId, RecordFilter};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Access of a cleaner to a log that others use at the same time.
pub trait LogAccess {
    /// Runs a function on the log, under its lock; `None`: there is no log any more.
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T>;
}

/// Called with the number of bytes that were just read or written. It waits if they come too fast, and breaks off if the
/// process stops.
pub type Pace<'p> = dyn FnMut(u64) -> ControlFlow<()> + 'p;

/// Resources and limits of a cleaner.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanerOptions {
    /// `log.cleaner.dedupe.buffer.size`, this cleaner's share: bytes for the offsets of keys.
    pub dedupe_bytes: usize,
    /// `log.cleaner.io.buffer.load.factor`: the share of them that may fill.
    pub load_factor: f64,
    /// Half of `log.cleaner.io.buffer.size`, this cleaner's share: bytes read or written at once. A larger batch is
    /// read whole all the same.
    pub io_bytes: usize,
    /// Sixteen bytes that cannot be guessed outside.
    pub secret: [u8; 16],
}

/// One compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// [`Dirty::first_dirty`](super::Dirty::first_dirty).
    pub first_dirty: i64,
    /// [`Dirty::first_uncleanable`](super::Dirty::first_uncleanable).
    pub first_uncleanable: i64,
    /// Wall time at which it begins, in ms.
    pub wall_ms: i64,
    /// Monotonic time at which it begins, in ms.
    pub mono_ms: u64,
}

/// The result of a compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cleaned {
    /// The log is clean up to this offset.
    pub end: i64,
    /// Passes over the log; more than one if the keys did not fit the map.
    pub rounds: u32,
    /// Bytes of the rewritten segments, before.
    pub bytes_before: u64,
    /// Bytes of the rewritten segments, after.
    pub bytes_after: u64,
    /// Bytes that were read for the map of keys.
    pub bytes_mapped: u64,
    /// Records read of the rewritten segments.
    pub records_before: u64,
    /// Records that stayed.
    pub records_after: u64,
    /// The largest share of the map that was used, from 0 to 1.
    pub map_utilization: f64,
}

/// The reason for which a compaction stopped early. The log is whole, and what was compacted stays so.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// The caller broke it off.
    #[error("the compaction was broken off")]
    BrokenOff,
    /// The log was deleted, cut, or is stopped.
    #[error("the log has changed while it was compacted")]
    Changed,
    /// The files.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A batch does not decode.
    #[error("{} has a batch at byte {position} that cannot be compacted: {error}", path.display())]
    Batch {
        /// The segment.
        path: PathBuf,
        /// The batch's byte position in the segment.
        position: u64,
        /// The defect of the batch.
        error: InvalidBatch,
    },
    /// The log has more aborted transactions than a compaction looks at.
    #[error("{}: the transaction indexes have more than {TRANSACTION_INDEX_BYTES_MAX} bytes", path.display())]
    TooManyAborted {
        /// The partition's directory.
        path: PathBuf,
    },
}

impl CleanError {
    /// Returns true if another attempt would fail in the same way: an operator has to look at the log.
    pub fn is_lasting(&self) -> bool {
        match self {
            CleanError::BrokenOff | CleanError::Changed => false,
            CleanError::Log(LogError::Io { source, .. }) => {
                !StorageFault::of(source).is_temporary() && source.kind() != io::ErrorKind::NotFound
            }
            CleanError::Log(_) | CleanError::Batch { .. } | CleanError::TooManyAborted { .. } => true,
        }
    }
}

/// Tells the log directory of what its medium has said.
fn note<A: LogAccess>(access: &A, error: &CleanError) {
    if let CleanError::Log(error) = error {
        access.with_log(|log| log.dir().note_failure(error));
    }
}

/// Compacts logs, one at a time; keeps its buffers from one to the next, but not the map.
#[derive(Debug)]
pub struct Cleaner {
    options: CleanerOptions,
    filter: RecordFilter,
    read: Vec<u8>,
    write: Vec<u8>,
}

impl Cleaner {
    /// A cleaner that holds nothing yet.
    pub fn new(options: CleanerOptions) -> Cleaner {
        let filter = RecordFilter::new(LogConfig::default().decompressed_bytes_max);
        Cleaner { options, filter, read: Vec::new(), write: Vec::new() }
    }

    /// Compacts a log up to where the task says, in as many rounds as its keys need, and notes in the directory's
    /// checkpoint how far it came.
    ///
    /// # Errors
    /// See [`CleanError`]. What was done until then counts. A medium that fails takes the log directory offline.
    pub fn clean<A: LogAccess>(
        &mut self,
        access: &A,
        task: &Task,
        pace: &mut Pace<'_>,
    ) -> Result<Cleaned, CleanError> {
        self.rounds(access, task, pace).inspect_err(|error| note(access, error))
    }

    fn rounds<A: LogAccess>(
        &mut self,
        access: &A,
        task: &Task,
        pace: &mut Pace<'_>,
    ) -> Result<Cleaned, CleanError> {
        let mut cleaned = Cleaned { end: task.first_dirty, ..Cleaned::default() };
        settle(access)?;
        note_durable(access)?;
        let dir = access.with_log(|log| log.files.dir.clone()).ok_or(CleanError::Changed)?;
        let begin = Instant::now();
        while cleaned.end < task.first_uncleanable {
            let first_dirty = cleaned.end;
            let mut round = Round::begin(access, task, begin, &mut *pace)?;
            round.check_start(first_dirty)?;
            let end = self.round(&mut round, first_dirty, &mut cleaned);
            let end = end.inspect_err(|error| note(access, error));
            // What was cut away under a reader looks like damage.
            let end = end.map_err(|error| if round.is_valid() { error } else { CleanError::Changed })?;
            assert!(end > first_dirty, "a round that reads no record: {first_dirty} of {task:?}");
            cleaned.end = end;
            cleaned.rounds += 1;
            note_clean(access, &dir, end)?;
        }
        Ok(cleaned)
    }

    /// One round from `from` on; returns up to where the log is clean then.
    fn round<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        from: i64,
        cleaned: &mut Cleaned,
    ) -> Result<i64, CleanError> {
        let map = self.map_keys(round, from, cleaned)?;
        cleaned.map_utilization = cleaned.map_utilization.max(map.utilization());
        let end = map.latest_offset() + 1;
        self.write_groups(round, &map, end, cleaned)?;
        Ok(end)
    }

    /// Reads the dirty part from `from` on, until the map is full.
    fn map_keys<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        from: i64,
        cleaned: &mut Cleaned,
    ) -> Result<OffsetMap, CleanError> {
        let size = MapSize {
            bytes_max: self.options.dedupe_bytes,
            load_factor: self.options.load_factor,
            keys_possible: (round.task.first_uncleanable - from) as u64,
        };
        let mut map = OffsetMap::new(size, KeyHasher::new(self.options.secret));
        let mut transactions = Transactions::new(round.aborted_behind(from));
        map.raise_latest_offset(from - 1);
        for number in 0..round.segments.len() {
            let end = round.end_of(number);
            if end > from && !self.map_segment(round, number, &mut map, &mut transactions, cleaned)? {
                return Ok(map);
            }
            // Where compaction has taken the last records of a segment, there is nothing to read up to its end.
            map.raise_latest_offset(end - 1);
        }
        Ok(map)
    }

    /// `false`: the map is full, and knows how far it has come.
    fn map_segment<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        number: usize,
        map: &mut OffsetMap,
        transactions: &mut Transactions,
        cleaned: &mut Cleaned,
    ) -> Result<bool, CleanError> {
        let from = map.latest_offset() + 1;
        let Some(start) = round.position_of(number, from)? else { return Ok(true) };
        let mut reader = round.reader(number, start, self.options.io_bytes, &mut self.read)?;
        let path = round.log_path(number);
        while let Some((position, batch)) = reader.next()? {
            let (attributes, last_offset) = (batch.attributes(), batch.last_offset());
            let (producer_id, transactional) =
                (ProducerId::new(batch.producer_id()), attributes.is_transactional());
            if attributes.is_control() {
                transactions.on_marker(producer_id, control_type(&batch), last_offset);
            } else if !transactions.on_batch(producer_id, transactional, last_offset) {
                let mut unmapped = None;
                let visit = |record: KeyedRecord<'_>| {
                    let fits =
                        record.offset < from || record.key.is_none_or(|key| map.put(key, record.offset));
                    unmapped = (!fits).then_some(record.offset);
                    fits
                };
                let visited = self.filter.visit(&batch, visit);
                visited.map_err(|error| CleanError::Batch { path: path.clone(), position, error })?;
                if let Some(offset) = unmapped {
                    map.raise_latest_offset(offset - 1);
                    return Ok(false);
                }
            }
            map.raise_latest_offset(last_offset);
            let read = reader.take_unpaid();
            cleaned.bytes_mapped += read;
            round.spend(read)?;
        }
        Ok(true)
    }

    /// Writes all groups of segments that begin before `end`.
    fn write_groups<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        map: &OffsetMap,
        end: i64,
        cleaned: &mut Cleaned,
    ) -> Result<(), CleanError> {
        let members: Vec<_> = (0..round.segments.len()).map(|number| round.member(number)).collect();
        let count = members.partition_point(|member| member.base_offset < end);
        let limits = Limits {
            bytes: u64::from(round.config.segment_bytes),
            index_bytes: u64::from(round.config.segment_index_bytes),
        };
        let mut transactions = Transactions::new(round.aborted.clone());
        for members in group(&members[..count], limits) {
            let last = round.access.with_log(|log| last_of_producers(&log.producers, log.durable_end));
            let last = last.ok_or(CleanError::Changed)?;
            let rules = Rules {
                map,
                now_ms: round.task.wall_ms,
                delete_retention_ms: round.config.delete_retention_ms,
                last_of_producers: &last,
            };
            self.write_group(round, members, &rules, &mut transactions, cleaned)?;
        }
        Ok(())
    }

    /// Rewrites one group and swaps it in.
    fn write_group<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        members: std::ops::Range<usize>,
        rules: &Rules<'_>,
        transactions: &mut Transactions,
        cleaned: &mut Cleaned,
    ) -> Result<(), CleanError> {
        let base_offset = round.segments[members.start].base_offset;
        let (files, interval) = (round.files.clone(), round.config.index_interval_bytes);
        let mut write = std::mem::take(&mut self.write);
        let result = Output::create(&files, base_offset, interval, &mut write)
            .map_err(CleanError::Log)
            .and_then(|mut output| {
                let last = members.clone().rev().find(|number| round.segments[*number].len > 0);
                for number in members.clone() {
                    let mut copy = Copy {
                        filter: &mut self.filter,
                        rules,
                        transactions: &mut *transactions,
                        output: &mut output,
                    };
                    let has_last = last == Some(number);
                    copy.segment(round, number, has_last, self.options.io_bytes, &mut self.read, cleaned)?;
                }
                Ok(output.finish()?)
            });
        write.clear();
        write.shrink_to(2 * self.options.io_bytes);
        self.write = write;
        match result {
            Ok(output) => {
                cleaned.bytes_after += u64::from(output.len);
                let input = &round.segments[members.clone()];
                swap_in(round.access, &files, input, output, round.mono_ms())?;
                round.swapped = members.end;
                Ok(())
            }
            Err(error) => {
                discard(&files, base_offset);
                Err(error)
            }
        }
    }
}

/// Notes the recovery point before records go, unless no producer is known. After a power cut a start takes the producers from a snapshot
/// that is not behind the recovery point. A snapshot from before this compaction might have an open transaction whose records and marker
/// are now removed. It would stay open for ever.
fn note_durable<A: LogAccess>(access: &A) -> Result<(), CleanError> {
    let has_producers = access.with_log(|log| !log.producers.is_empty());
    match has_producers.ok_or(CleanError::Changed)? {
        true => note_recovery_point(access).map(|_| ()),
        false => Ok(()),
    }
}

/// Notes the recovery point of a log durably, and returns it. After a power cut a start keeps the producers' snapshots up to there.
/// Blocks on the disk, and not under the log's lock.
///
/// # Errors
/// [`CleanError::Changed`] when the log is another one meanwhile, else the disk's.
pub fn note_recovery_point<A: LogAccess>(access: &A) -> Result<i64, CleanError> {
    let taken = access
        .with_log(|log| (log.epochs_to_write(), log.generation, log.durable_end, log.files.dir.clone()));
    let (epochs, generation, durable_end, path) = taken.ok_or(CleanError::Changed)?;
    epochs.map_or(Ok(()), |epochs| epochs.write())?;
    let noted = access.with_log(|log| {
        let is_same = log.generation == generation && Arc::ptr_eq(&log.files.dir, &path);
        is_same.then(|| {
            log.note_checkpoints(durable_end);
            log.dir.clone()
        })
    });
    let dir = noted.flatten().ok_or(CleanError::Changed)?;
    let written = dir.checkpoints().recovery_point.commit();
    written
        .map_err(|error| CleanError::Log(LogError::io("write the recovery point in", dir.path())(error)))?;
    Ok(durable_end)
}

/// Notes in the directory's checkpoint that a log is clean up to an offset. It does so only if the log is still in this
/// partition directory: a copy in another one may be from an earlier time.
fn note_clean<A: LogAccess>(access: &A, dir: &Arc<Path>, end: i64) -> Result<(), CleanError> {
    let noted = access.with_log(|log| {
        let end = end.min(log.log_end);
        let is_here = Arc::ptr_eq(&log.files.dir, dir);
        is_here.then(|| {
            log.dir.checkpoints().cleaner.set(&log.partition, end);
            log.dir.clone()
        })
    });
    let dir = noted.flatten().ok_or(CleanError::Changed)?;
    let written = dir.checkpoints().cleaner.commit();
    written.map_err(|error| {
        CleanError::Log(LogError::io("write the cleaner's checkpoint in", dir.path())(error))
    })
}
