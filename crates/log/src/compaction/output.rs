//! The segment that a compaction writes, under names that a start removes.

use super::swap::path_in;
use crate::error::LogError;
use crate::files::{FileKind, FileState, PartitionFiles};
use crate::index::{Entry, Index};
use crate::inventory::SEGMENT_BYTES_MAX;
use crate::offset_index::{OffsetEntry, OffsetIndex};
use crate::segment::Segment;
use crate::storage::{OpenMode, StorageFile, write_all_at};
use crate::time_index::{TimeEntry, TimeIndex, TimestampOffset};
use crate::transaction_index::{self, AbortedTransaction};
use mainstem_records::BatchHeader;
use std::io;
use std::sync::Arc;

/// The files of a segment that is a compaction's output.
const KINDS: [FileKind; 4] =
    [FileKind::Log, FileKind::Index, FileKind::TimeIndex, FileKind::TransactionIndex];

/// A segment on the way.
pub(crate) struct Output<'b> {
    files: PartitionFiles,
    base_offset: i64,
    index_interval: u64,
    log: Arc<dyn StorageFile>,
    index: Arc<dyn StorageFile>,
    time_index: Arc<dyn StorageFile>,
    offsets: OffsetIndex,
    times: TimeIndex,
    largest: TimestampOffset,
    last_time_entry: i64,
    bytes_since_entry: u64,
    /// Bytes in the file.
    written: u64,
    /// Batches behind them.
    buffer: &'b mut Vec<u8>,
    aborted: Vec<u8>,
}

impl<'b> Output<'b> {
    /// Creates the files, empty.
    pub(crate) fn create(
        files: &PartitionFiles,
        base_offset: i64,
        index_interval: u32,
        buffer: &'b mut Vec<u8>,
    ) -> Result<Output<'b>, LogError> {
        buffer.clear();
        let create = |kind| create(files, base_offset, kind);
        Ok(Output {
            log: create(FileKind::Log)?,
            index: create(FileKind::Index)?,
            time_index: create(FileKind::TimeIndex)?,
            files: files.clone(),
            base_offset,
            index_interval: u64::from(index_interval),
            offsets: Index::new(0),
            times: Index::new(0),
            largest: TimestampOffset::none(base_offset),
            last_time_entry: -1,
            bytes_since_entry: 0,
            written: 0,
            buffer,
            aborted: Vec::new(),
        })
    }

    /// The buffer to which the caller appends a batch before it calls [`Self::note`].
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer
    }

    /// A batch was appended to the buffer: it goes into the indexes as an append does.
    pub(crate) fn note(&mut self, batch: &BatchHeader) -> Result<(), LogError> {
        let end = self.written + self.buffer.len() as u64;
        if end > SEGMENT_BYTES_MAX {
            let source =
                io::Error::new(io::ErrorKind::FileTooLarge, "the records compress less well than before");
            return Err(LogError::io("write", self.path(FileKind::Log))(source));
        }
        let (position, last_offset) = (end - batch.size as u64, batch.last_offset());
        if batch.record_count > 0 && batch.max_timestamp > self.largest.timestamp {
            self.largest = TimestampOffset { timestamp: batch.max_timestamp, offset: last_offset };
        }
        if self.bytes_since_entry > self.index_interval {
            let relative_offset = (last_offset - self.base_offset) as i32;
            self.offsets.push(OffsetEntry { relative_offset, position: position as u32 });
            self.push_time();
            self.bytes_since_entry = 0;
            if self.offsets.wants_write() {
                self.write_indexes()?;
            }
        }
        self.bytes_since_entry += batch.size as u64;
        Ok(())
    }

    /// Answers to readers still have to name an aborted transaction.
    pub(crate) fn note_aborted(&mut self, transaction: &AbortedTransaction) {
        transaction.encode(&mut self.aborted);
    }

    /// Writes what is in the buffer once there are `at_least` bytes; returns how many were written.
    pub(crate) fn write(&mut self, at_least: usize) -> Result<u64, LogError> {
        if self.buffer.len() < at_least.max(1) {
            return Ok(0);
        }
        write_all_at(&*self.log, self.buffer, self.written).map_err(self.failed("write", FileKind::Log))?;
        let written = self.buffer.len() as u64;
        self.written += written;
        self.buffer.clear();
        Ok(written)
    }

    /// Writes the rest and makes it durable; the names are not yet.
    pub(crate) fn finish(mut self) -> Result<Segment, LogError> {
        self.write(0)?;
        self.push_time();
        self.write_indexes()?;
        for (file, kind) in [
            (&self.log, FileKind::Log),
            (&self.index, FileKind::Index),
            (&self.time_index, FileKind::TimeIndex),
        ] {
            file.sync_data().map_err(self.failed("sync", kind))?;
        }
        if !self.aborted.is_empty() {
            let kind = FileKind::TransactionIndex;
            let file = create(&self.files, self.base_offset, kind)?;
            let written = write_all_at(&*file, &self.aborted, 0).and_then(|()| file.sync_data());
            written.map_err(self.failed("write", kind))?;
        }
        let entries = (self.offsets.on_disk(), self.times.on_disk());
        let mut segment = Segment::in_swap(self.base_offset, self.written as u32, entries.0, entries.1);
        segment.largest = Some(self.largest);
        segment.aborted = transaction_index::entries_in(self.aborted.len() as u64);
        Ok(segment)
    }

    fn push_time(&mut self) {
        if self.largest.timestamp > self.last_time_entry {
            self.last_time_entry = self.largest.timestamp;
            let relative_offset = (self.largest.offset - self.base_offset) as i32;
            self.times.push(TimeEntry { timestamp: self.last_time_entry, relative_offset });
        }
    }

    fn write_indexes(&mut self) -> Result<(), LogError> {
        write_pending(&mut self.offsets, &*self.index).map_err(self.failed("write", FileKind::Index))?;
        write_pending(&mut self.times, &*self.time_index).map_err(self.failed("write", FileKind::TimeIndex))
    }

    fn path(&self, kind: FileKind) -> std::path::PathBuf {
        path_in(&self.files, self.base_offset, kind, FileState::Cleaned)
    }

    fn failed(&self, action: &'static str, kind: FileKind) -> impl FnOnce(io::Error) -> LogError + use<> {
        LogError::io(action, self.path(kind))
    }
}

/// Removes what is there of an output that will not be used.
pub(crate) fn discard(files: &PartitionFiles, base_offset: i64) {
    for kind in KINDS {
        let path = path_in(files, base_offset, kind, FileState::Cleaned);
        if let Err(error) = files.remove_path(&path) {
            tracing::warn!(%error, "the output of a compaction stays until the next start");
        }
    }
}

fn create(
    files: &PartitionFiles,
    base_offset: i64,
    kind: FileKind,
) -> Result<Arc<dyn StorageFile>, LogError> {
    let path = path_in(files, base_offset, kind, FileState::Cleaned);
    let created = files.storage.open(&path, OpenMode::Create).and_then(|file| file.set_len(0).map(|()| file));
    created.map_err(LogError::io("create", path))
}

fn write_pending<E: Entry>(index: &mut Index<E>, file: &dyn StorageFile) -> io::Result<()> {
    if index.pending().is_empty() { Ok(()) } else { index.write_pending(file) }
}
