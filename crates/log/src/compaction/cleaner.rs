//! Compacts one log: reads the dirty part for the last offset of each key, then writes every group of segments anew
//! without what is superseded, and swaps it in. Appends and fetches go on meanwhile.

use super::grouping::{Limits, Member, group};
use super::key_hash::KeyHasher;
use super::offset_map::{MapSize, OffsetMap};
use super::output::{Output, discard};
use super::reader::BatchReader;
use super::rules::{Circumstances, Rules, Verdict, WhenEmpty, last_of_producers};
use super::swap::discard_swap;
use super::transaction_index::{self, AbortedTransaction};
use super::transactions::Transactions;
use crate::config::LogConfig;
use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::index::Entry;
use crate::log::Log;
use crate::offset_index::OffsetEntry;
use crate::patience::Patience;
use crate::segment::{Segment, patient};
use crate::storage::{OpenMode, StorageFile, is_out_of_space, is_short_of_handles, read_small_file};
use crate::time_index::TimeEntry;
use mainstem_records::{
    Batch, BatchHeader, ControlRecordType, InvalidBatch, RecompressError, RecordFilter, empty_batch,
};
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The transaction indexes of one log may have so many bytes: 120,000 aborted transactions.
const TRANSACTION_INDEX_BYTES_MAX: usize = 4 << 20;

/// How a cleaner reaches a log that others use at the same time.
pub trait LogAccess {
    /// Runs a function on the log, under its lock; `None`: there is no log any more.
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T>;
}

/// Told of every so many bytes that were read or written: waits where they come too fast, and breaks off where the
/// process stops.
pub type Pace<'p> = dyn FnMut(u64) -> ControlFlow<()> + 'p;

/// What a cleaner may use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CleanerOptions {
    /// `log.cleaner.dedupe.buffer.size`, this cleaner's share: bytes for the offsets of keys.
    pub dedupe_bytes: usize,
    /// `log.cleaner.io.buffer.load.factor`: the share of them that may fill.
    pub load_factor: f64,
    /// Half of `log.cleaner.io.buffer.size`, this cleaner's share: bytes read or written at once. A larger batch is read
    /// whole all the same.
    pub io_bytes: usize,
    /// Sixteen bytes that nobody outside can guess.
    pub secret: [u8; 16],
}

/// One compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Task {
    /// [`Dirty::first_dirty`](super::Dirty::first_dirty).
    pub first_dirty: i64,
    /// [`Dirty::first_uncleanable`](super::Dirty::first_uncleanable).
    pub first_uncleanable: i64,
    /// Wall time, in ms.
    pub wall_ms: i64,
    /// Monotonic time, in ms.
    pub mono_ms: u64,
}

/// What a compaction has done.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cleaned {
    /// The log is clean up to this offset.
    pub end: i64,
    /// How often the log was gone through because the keys did not fit the map.
    pub rounds: u32,
    /// Bytes of the segments that were written anew, before.
    pub bytes_before: u64,
    /// And after.
    pub bytes_after: u64,
    /// Bytes that were read for the map of keys.
    pub bytes_mapped: u64,
    /// Records read, of the segments that were written anew.
    pub records_before: u64,
    /// Records that stayed.
    pub records_after: u64,
    /// The largest share of the map that was used, from 0 to 1.
    pub map_utilization: f64,
}

/// Why a compaction has not come to its end. The log is whole, and as far as it was compacted it stays so.
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
        /// Where in it.
        position: u64,
        /// What is wrong.
        error: InvalidBatch,
    },
    /// More transactions were aborted than are looked at.
    #[error("{}: the transaction indexes have more than {TRANSACTION_INDEX_BYTES_MAX} bytes", path.display())]
    TooManyAborted {
        /// The partition's directory.
        path: PathBuf,
    },
}

impl CleanError {
    /// Whether another attempt would fail in the same way: somebody has to look at the log.
    pub fn is_lasting(&self) -> bool {
        match self {
            CleanError::BrokenOff | CleanError::Changed => false,
            CleanError::Log(LogError::Io { source, .. }) => {
                !(is_out_of_space(source)
                    || is_short_of_handles(source)
                    || source.kind() == io::ErrorKind::NotFound)
            }
            CleanError::Log(_) | CleanError::Batch { .. } | CleanError::TooManyAborted { .. } => true,
        }
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

/// One round over one log.
struct Round<'a, A> {
    access: &'a A,
    task: &'a Task,
    files: PartitionFiles,
    config: Arc<LogConfig>,
    /// The closed segments before the first one that may not be touched.
    segments: Vec<Segment>,
    /// How many of them were swapped for new ones.
    swapped: usize,
    aborted: Vec<AbortedTransaction>,
    pace: &'a mut Pace<'a>,
}

impl Cleaner {
    /// A cleaner that holds nothing yet.
    pub fn new(options: CleanerOptions) -> Cleaner {
        let filter = RecordFilter::new(LogConfig::default().decompressed_bytes_max);
        Cleaner { options, filter, read: Vec::new(), write: Vec::new() }
    }

    /// The most bytes that it holds between two compactions.
    pub fn idle_bytes_max(options: &CleanerOptions) -> usize {
        2 * options.io_bytes + RecordFilter::KEPT_BYTES_MAX
    }

    /// Compacts a log up to where the task says, in as many rounds as its keys need, and notes in the directory's
    /// checkpoint how far it came.
    ///
    /// # Errors
    /// See [`CleanError`]. What was done until then counts.
    pub fn clean<A: LogAccess>(
        &mut self,
        access: &A,
        task: &Task,
        pace: &mut Pace<'_>,
    ) -> Result<Cleaned, CleanError> {
        let mut cleaned = Cleaned { end: task.first_dirty, ..Cleaned::default() };
        settle(access)?;
        let dir = access.with_log(|log| log.files.dir.clone()).ok_or(CleanError::Changed)?;
        while cleaned.end < task.first_uncleanable {
            let first_dirty = cleaned.end;
            let mut round = Round::begin(access, task, &mut *pace)?;
            let end = self.round(&mut round, first_dirty, &mut cleaned);
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
            let (producer_id, transactional) = (batch.producer_id(), attributes.is_transactional());
            if attributes.is_control() {
                transactions.on_marker(producer_id, control_type(&batch), last_offset);
            } else if !transactions.on_batch(producer_id, transactional, last_offset) {
                let mut unmapped = None;
                let visit = |record: mainstem_records::KeyedRecord<'_>| {
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
            spend(round.pace, read)?;
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

    /// Writes one group anew and swaps it in.
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
                    let whole = last == Some(number);
                    copy.segment(round, number, whole, self.options.io_bytes, &mut self.read, cleaned)?;
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
                swap_in(round.access, &files, input, output, round.task.mono_ms)?;
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

/// What copies the batches of a group to their new segment.
struct Copy<'c, 'b> {
    filter: &'c mut RecordFilter,
    rules: &'c Rules<'c>,
    transactions: &'c mut Transactions,
    output: &'c mut Output<'b>,
}

impl Copy<'_, '_> {
    /// Copies a segment; `is_last`: it has the last batch of the group.
    fn segment<A: LogAccess>(
        &mut self,
        round: &mut Round<'_, A>,
        number: usize,
        is_last: bool,
        io_bytes: usize,
        buffer: &mut Vec<u8>,
        cleaned: &mut Cleaned,
    ) -> Result<(), CleanError> {
        let len = u64::from(round.segments[number].len);
        let mut reader = round.reader(number, 0, io_bytes, buffer)?;
        let path = round.log_path(number);
        cleaned.bytes_before += len;
        while let Some((position, batch)) = reader.next()? {
            let ends_group = is_last && position + batch.size() as u64 == len;
            let header = batch.header();
            let verdict = self.judge(&batch, &header, ends_group);
            let kept = self.batch(&batch, &header, verdict).map_err(|error| match error {
                CopyError::Log(error) => CleanError::Log(error),
                CopyError::Batch(error) => CleanError::Batch { path: path.clone(), position, error },
            })?;
            cleaned.records_before += batch.record_count().max(0) as u64;
            cleaned.records_after += u64::from(kept);
            let written = self.output.write(io_bytes)?;
            spend(round.pace, reader.take_unpaid() + written)?;
        }
        Ok(())
    }

    fn judge(&mut self, batch: &Batch<'_>, header: &BatchHeader, is_last: bool) -> Verdict {
        let (attributes, last_offset) = (header.attributes, header.last_offset());
        let can_go = if attributes.is_control() {
            let marker = self.transactions.on_marker(header.producer_id, control_type(batch), last_offset);
            if let Some(aborted) = marker.aborted {
                self.output.note_aborted(&aborted);
            }
            marker.can_go
        } else {
            self.transactions.on_batch(header.producer_id, attributes.is_transactional(), last_offset)
        };
        self.rules.judge(header, Circumstances { can_go, is_last })
    }

    /// Copies what stays of a batch; returns how many records that is.
    fn batch(&mut self, batch: &Batch<'_>, header: &BatchHeader, verdict: Verdict) -> Result<u32, CopyError> {
        let selection = match verdict.discard_records {
            true => None,
            false => Some(self.filter.select(batch, |record| self.rules.keeps(header, &record))?),
        };
        let Some(selection) = selection.filter(|selection| selection.kept > 0) else {
            if verdict.when_empty == WhenEmpty::Stays {
                let empty = empty_batch(batch);
                self.output.buffer().extend_from_slice(&empty);
                self.note(&empty)?;
            }
            return Ok(0);
        };
        let horizon = self.rules.new_horizon(header, selection.has_tombstone, verdict.outlived);
        let start = self.output.buffer().len();
        match selection.is_whole() && horizon.is_none() {
            true => self.output.buffer().extend_from_slice(batch.bytes()),
            false => self.filter.write(batch, &selection, horizon, self.output.buffer())?,
        }
        let header = BatchHeader::read(&self.output.buffer()[start..]).expect("it was written whole");
        self.output.note(&header)?;
        Ok(selection.kept)
    }

    fn note(&mut self, batch: &[u8]) -> Result<(), LogError> {
        self.output.note(&BatchHeader::read(batch).expect("it was written whole"))
    }
}

/// Why a batch is not copied.
enum CopyError {
    Log(LogError),
    Batch(InvalidBatch),
}

impl From<LogError> for CopyError {
    fn from(error: LogError) -> CopyError {
        CopyError::Log(error)
    }
}

impl From<InvalidBatch> for CopyError {
    fn from(error: InvalidBatch) -> CopyError {
        CopyError::Batch(error)
    }
}

impl From<RecompressError> for CopyError {
    fn from(error: RecompressError) -> CopyError {
        CopyError::Batch(match error {
            RecompressError::Invalid(error) => error,
            RecompressError::Build(error) => InvalidBatch::Header(error.to_string()),
        })
    }
}

impl<'a, A: LogAccess> Round<'a, A> {
    fn begin(access: &'a A, task: &'a Task, pace: &'a mut Pace<'a>) -> Result<Round<'a, A>, CleanError> {
        let taken = access.with_log(|log| {
            let closed = &log.segments[..log.segments.len() - 1];
            let count = closed.partition_point(|segment| segment.base_offset < task.first_uncleanable);
            let all = log.segments.iter().map(|segment| segment.base_offset).collect::<Vec<_>>();
            (closed[..count].to_vec(), all, log.files.clone(), log.config.clone())
        });
        let (segments, all, files, config) = taken.ok_or(CleanError::Changed)?;
        if segments.is_empty() {
            return Err(CleanError::Changed);
        }
        let aborted = read_aborted(&files, &all)?;
        Ok(Round { access, task, files, config, segments, swapped: 0, aborted, pace })
    }

    /// Whether the segments that were not swapped yet are what they were.
    fn is_valid(&self) -> bool {
        let input = &self.segments[self.swapped..];
        input.is_empty() || self.access.with_log(|log| log.has(input)).unwrap_or(false)
    }

    fn end_of(&self, number: usize) -> i64 {
        self.segments.get(number + 1).map_or(self.task.first_uncleanable, |next| next.base_offset)
    }

    fn member(&self, number: usize) -> Member {
        let segment = &self.segments[number];
        Member {
            base_offset: segment.base_offset,
            next_offset: self.end_of(number),
            bytes: u64::from(segment.len),
            index_bytes: u64::from(segment.offsets.len()) * OffsetEntry::BYTES as u64,
            time_index_bytes: u64::from(segment.times.len()) * TimeEntry::BYTES as u64,
        }
    }

    fn aborted_behind(&self, offset: i64) -> Vec<AbortedTransaction> {
        self.aborted.iter().filter(|aborted| aborted.last_offset >= offset).copied().collect()
    }

    fn log_path(&self, number: usize) -> PathBuf {
        self.files.path(self.segments[number].base_offset, FileKind::Log)
    }

    /// Where the batch begins that holds an offset or follows it; `None`: the segment ends before.
    fn position_of(&self, number: usize, offset: i64) -> Result<Option<u64>, CleanError> {
        let segment = &self.segments[number];
        if offset <= segment.base_offset {
            return Ok(Some(0));
        }
        let path = self.log_path(number);
        let files = segment.lookup_files(&self.files, None).map_err(LogError::io("open", &*path))?;
        let found = patient(segment.lookup(offset, files).find(offset, Patience::Wait));
        Ok(found.map_err(LogError::io("read", path))?.map(|batch| batch.position))
    }

    /// A handle of its own: what a reader of the shared one has told the kernel does not hold here.
    fn open(&self, number: usize) -> Result<Arc<dyn StorageFile>, CleanError> {
        let path = self.log_path(number);
        let opened = self.files.storage.open(&path, OpenMode::Read);
        opened.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CleanError::Changed,
            _ => CleanError::Log(LogError::io("open", path)(source)),
        })
    }

    fn reader<'b>(
        &self,
        number: usize,
        start: u64,
        io_bytes: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<BatchReader<'b>, CleanError> {
        let range = start..u64::from(self.segments[number].len);
        Ok(BatchReader::new(self.open(number)?, self.log_path(number), range, io_bytes, buffer))
    }
}

/// The aborted transactions in the indexes of all segments: data in one may be ended by a marker in a later one.
fn read_aborted(files: &PartitionFiles, segments: &[i64]) -> Result<Vec<AbortedTransaction>, CleanError> {
    let (mut aborted, mut left) = (Vec::new(), TRANSACTION_INDEX_BYTES_MAX);
    for base_offset in segments {
        let path = files.path(*base_offset, FileKind::TransactionIndex);
        let bytes = match read_small_file(&*files.storage, &path, left) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(CleanError::TooManyAborted { path: files.dir.to_path_buf() });
            }
            Err(error) => return Err(CleanError::Log(LogError::io("read", path)(error))),
        };
        left -= bytes.len();
        let reason = "no transaction index";
        let entries = transaction_index::decode(&bytes)
            .ok_or(LogError::Damaged { path, position: 0, reason })
            .map_err(CleanError::Log)?;
        aborted.extend(entries);
    }
    Ok(aborted)
}

/// What a control batch says; `None` when its record is gone. One that does not decode is of an unknown kind, and stays.
fn control_type(batch: &Batch<'_>) -> Option<ControlRecordType> {
    if batch.record_count() == 0 {
        return None;
    }
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 1 << 16, &mut mainstem_records::Scratch::new());
    let kind = records.ok().and_then(|mut records| {
        let record = records.next()?.ok()?;
        ControlRecordType::parse(record.key).ok()
    });
    Some(kind.unwrap_or(ControlRecordType::Unknown(-1)))
}

fn spend(pace: &mut Pace<'_>, bytes: u64) -> Result<(), CleanError> {
    match bytes > 0 && pace(bytes).is_break() {
        true => Err(CleanError::BrokenOff),
        false => Ok(()),
    }
}

/// Puts finished output in the place of its input; see [`super::swap`].
fn swap_in<A: LogAccess>(
    access: &A,
    files: &PartitionFiles,
    input: &[Segment],
    output: Segment,
    mono_ms: u64,
) -> Result<(), CleanError> {
    let base_offset = output.base_offset;
    match access.with_log(|log| log.commit_output(input)) {
        Some(Ok(true)) => {}
        committed => {
            discard(files, base_offset);
            discard_swap(files, base_offset)?;
            return Err(committed.and_then(Result::err).map_or(CleanError::Changed, CleanError::Log));
        }
    }
    let installed =
        files.sync_dir().map(|()| access.with_log(|log| log.install_output(input, output)).unwrap_or(false));
    match installed {
        Ok(true) => finish(access, files, base_offset, input, mono_ms),
        Ok(false) => {
            discard_swap(files, base_offset)?;
            Err(CleanError::Changed)
        }
        Err(error) => {
            // Whether the names are on disk is not known; they go, as far as that is possible.
            let _ = discard_swap(files, base_offset);
            Err(CleanError::Log(error))
        }
    }
}

/// The steps behind the installation.
fn finish<A: LogAccess>(
    access: &A,
    files: &PartitionFiles,
    base_offset: i64,
    input: &[Segment],
    mono_ms: u64,
) -> Result<(), CleanError> {
    for old in input {
        let retired = access.with_log(|log| log.retire_input(base_offset, old, mono_ms));
        match retired {
            Some(Ok(true)) => {}
            Some(Err(error)) => return Err(CleanError::Log(error)),
            Some(Ok(false)) | None => break,
        }
    }
    if access.with_log(|_| ()).is_none() {
        return Err(CleanError::Changed);
    }
    files.sync_dir()?;
    match access.with_log(|log| log.finish_swap(base_offset)).ok_or(CleanError::Changed)?? {
        true => Ok(files.sync_dir()?),
        false => {
            // It was deleted by retention or cut away.
            discard_swap(files, base_offset)?;
            Err(CleanError::Changed)
        }
    }
}

/// Brings a swap to its end that an error has interrupted.
fn settle<A: LogAccess>(access: &A) -> Result<(), CleanError> {
    let settled = access.with_log(|log| match log.swapping() {
        Some(_) => log.settle_compaction(),
        None => Ok(()),
    });
    settled.ok_or(CleanError::Changed)?.map_err(CleanError::Log)
}

/// Notes in the directory's checkpoint that a log is clean up to an offset, if it is still in this partition directory: a
/// copy in another one may be of an earlier time.
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
