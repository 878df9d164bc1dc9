//! One round over one log: its segments as they were when it began, and how they are read.

use super::cleaner::{CleanError, LogAccess, Pace, Task};
use super::grouping::Member;
use super::reader::BatchReader;
use crate::config::LogConfig;
use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::index::Entry;
use crate::offset_index::OffsetEntry;
use crate::read_mode::ReadMode;
use crate::segment::{Segment, blocking};
use crate::storage::{OpenMode, StorageFile, read_exact_at};
use crate::time_index::TimeEntry;
use crate::transaction_index::{self, AbortedTransaction};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// The most bytes of transaction indexes of one log: 120,000 aborted transactions.
pub(super) const TRANSACTION_INDEX_BYTES_MAX: u64 = 4 << 20;

/// One round over one log.
pub(super) struct Round<'a, A> {
    pub(super) access: &'a A,
    pub(super) task: &'a Task,
    /// The time at which the task began.
    begin: Instant,
    pub(super) files: PartitionFiles,
    pub(super) config: Arc<LogConfig>,
    /// The closed segments before the first one that may not be touched.
    pub(super) segments: Vec<Segment>,
    /// The number of segments that were swapped for new ones.
    pub(super) swapped: usize,
    pub(super) aborted: Vec<AbortedTransaction>,
    pub(super) pace: &'a mut Pace<'a>,
}

impl<'a, A: LogAccess> Round<'a, A> {
    pub(super) fn begin(
        access: &'a A,
        task: &'a Task,
        begin: Instant,
        pace: &'a mut Pace<'a>,
    ) -> Result<Round<'a, A>, CleanError> {
        let taken = access.with_log(|log| {
            let closed = &log.segments[..log.segments.len() - 1];
            let count = closed.partition_point(|segment| segment.base_offset < task.first_uncleanable);
            let indexed = log.segments.iter().filter(|segment| segment.aborted > 0);
            let indexed = indexed.cloned().collect::<Vec<_>>();
            (closed[..count].to_vec(), indexed, log.files.clone(), log.config.clone())
        });
        let (segments, indexed, files, config) = taken.ok_or(CleanError::Changed)?;
        if segments.is_empty() {
            return Err(CleanError::Changed);
        }
        let aborted = read_aborted(&files, &indexed)?;
        Ok(Round { access, task, begin, files, config, segments, swapped: 0, aborted, pace })
    }

    /// Checks that everything before `first_dirty` is still clean: after a truncation other records may be there.
    pub(super) fn check_start(&self, first_dirty: i64) -> Result<(), CleanError> {
        let cut = self.access.with_log(|log| {
            let noted = log.dir.checkpoints().cleaner.get(&log.partition);
            first_dirty > log.log_end || noted.is_some_and(|noted| noted < first_dirty)
        });
        if cut == Some(false) { Ok(()) } else { Err(CleanError::Changed) }
    }

    /// Monotonic time now, in ms.
    pub(super) fn mono_ms(&self) -> u64 {
        let elapsed = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.task.mono_ms.saturating_add(elapsed)
    }

    /// Returns true if the segments that are not yet swapped are unchanged.
    pub(super) fn is_valid(&self) -> bool {
        let input = &self.segments[self.swapped..];
        input.is_empty() || self.access.with_log(|log| log.has(input)).unwrap_or(false)
    }

    pub(super) fn end_of(&self, number: usize) -> i64 {
        self.segments.get(number + 1).map_or(self.task.first_uncleanable, |next| next.base_offset)
    }

    pub(super) fn member(&self, number: usize) -> Member {
        let segment = &self.segments[number];
        Member {
            base_offset: segment.base_offset,
            next_offset: self.end_of(number),
            bytes: u64::from(segment.len),
            index_bytes: u64::from(segment.offsets.len()) * OffsetEntry::BYTES as u64,
            time_index_bytes: u64::from(segment.times.len()) * TimeEntry::BYTES as u64,
        }
    }

    pub(super) fn aborted_behind(&self, offset: i64) -> Vec<AbortedTransaction> {
        self.aborted.iter().filter(|aborted| aborted.last_offset >= offset).copied().collect()
    }

    pub(super) fn log_path(&self, number: usize) -> PathBuf {
        self.files.path(self.segments[number].base_offset, FileKind::Log)
    }

    /// The position of the batch that holds `offset` or follows it; `None`: the segment ends before.
    pub(super) fn position_of(&self, number: usize, offset: i64) -> Result<Option<u64>, CleanError> {
        let segment = &self.segments[number];
        if offset <= segment.base_offset {
            return Ok(Some(0));
        }
        let path = self.log_path(number);
        let files = segment.lookup_files(&self.files, None).map_err(LogError::io("open", &*path))?;
        let found = blocking(segment.lookup(offset, files).find(offset, ReadMode::Blocking));
        Ok(found.map_err(LogError::io("read", path))?.map(|batch| batch.position))
    }

    /// A handle of its own: what a reader of the shared one has advised the kernel does not hold here.
    fn open(&self, number: usize) -> Result<Arc<dyn StorageFile>, CleanError> {
        let path = self.log_path(number);
        let opened = self.files.storage.open(&path, OpenMode::Read);
        opened.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => CleanError::Changed,
            _ => CleanError::Log(LogError::io("open", path)(source)),
        })
    }

    pub(super) fn reader<'b>(
        &self,
        number: usize,
        start: u64,
        io_bytes: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<BatchReader<'b>, CleanError> {
        let range = start..u64::from(self.segments[number].len);
        Ok(BatchReader::new(self.open(number)?, self.log_path(number), range, io_bytes, buffer))
    }

    /// Counts bytes that were read or written, and waits as the pace demands.
    pub(super) fn spend(&mut self, bytes: u64) -> Result<(), CleanError> {
        match bytes > 0 && (self.pace)(bytes).is_break() {
            true => Err(CleanError::BrokenOff),
            false => Ok(()),
        }
    }
}

/// The aborted transactions in the indexes of all segments: data in one may be ended by a marker in a later one.
fn read_aborted(files: &PartitionFiles, indexed: &[Segment]) -> Result<Vec<AbortedTransaction>, CleanError> {
    let bytes: u64 = indexed.iter().map(|segment| transaction_index::position_of(segment.aborted)).sum();
    if bytes > TRANSACTION_INDEX_BYTES_MAX {
        return Err(CleanError::TooManyAborted { path: files.dir.to_path_buf() });
    }
    let mut aborted = Vec::new();
    for segment in indexed {
        let path = files.path(segment.base_offset, FileKind::TransactionIndex);
        let mut bytes = vec![0; transaction_index::position_of(segment.aborted) as usize];
        let read = segment.transaction_index(files).and_then(|file| read_exact_at(&*file, &mut bytes, 0));
        read.map_err(LogError::io("read", &*path))?;
        let reason = "no transaction index";
        let entries = transaction_index::decode(&bytes)
            .ok_or(LogError::Damaged { path, position: 0, reason })
            .map_err(CleanError::Log)?;
        aborted.extend(entries);
    }
    Ok(aborted)
}
