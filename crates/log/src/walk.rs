//! Walks a whole segment after a crash: finds its end, rebuilds its indexes, learns its epochs.

use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::index::Entry;
use crate::inventory::{FoundSegment, SEGMENT_BYTES_MAX};
use crate::leader_epochs::LeaderEpochs;
use crate::offset_index::OffsetEntry;
use crate::read_mode::ReadMode;
use crate::recovery_watch::RecoveryWatch;
use crate::scan::{BatchScan, RECOVERY_CHUNK_BYTES, Scanned, ScannedBatch};
use crate::segment::{Segment, blocking};
use crate::storage::{StorageFile, read_full_at, write_all_at};
use crate::time_index::TimeEntry;
use std::io;

/// The part of a segment that is trusted without a check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trust {
    /// Checksums are verified from this position on, but not before `check_from_offset`.
    check_from_position: u64,
    /// Checksums are verified from this offset on, but not before `check_from_position`.
    check_from_offset: i64,
    /// True if a torn tail may be cut, from the same offset on.
    may_cut: bool,
}

impl Trust {
    /// Trusts the whole segment: only its indexes are missing.
    pub(crate) fn whole() -> Trust {
        Trust { check_from_position: u64::MAX, check_from_offset: i64::MAX, may_cut: false }
    }

    /// Trusts the bytes before a position.
    pub(crate) fn until_position(position: u64) -> Trust {
        Trust { check_from_position: position, check_from_offset: 0, may_cut: true }
    }

    /// Trusts the batches before an offset.
    pub(crate) fn until_offset(offset: i64) -> Trust {
        Trust { check_from_position: 0, check_from_offset: offset, may_cut: true }
    }
}

/// A walk over one segment.
pub(crate) struct SegmentWalk<'a> {
    pub(crate) files: &'a PartitionFiles,
    pub(crate) found: &'a FoundSegment,
    pub(crate) trust: Trust,
    pub(crate) index_interval: u32,
    pub(crate) watch: &'a RecoveryWatch,
}

/// The result of a walk.
pub(crate) struct Walked {
    pub(crate) segment: Segment,
    /// The offset behind the last batch.
    pub(crate) end: i64,
    pub(crate) bytes_cut: u64,
}

/// The indexes of a segment, as they should be.
#[derive(Default)]
struct Indexes {
    offsets: Vec<u8>,
    times: Vec<u8>,
    bytes_since_entry: u64,
    /// Largest timestamp so far and its batch's relative last offset, and the last one that has an entry.
    largest: (i64, i32),
    entered: i64,
}

impl SegmentWalk<'_> {
    pub(crate) fn run(&self, epochs: &mut LeaderEpochs) -> Result<Walked, LogError> {
        let base_offset = self.found.base_offset;
        let file = self.files.open(base_offset, FileKind::Log)?;
        let mut indexes = Indexes { largest: (-1, 0), entered: -1, ..Indexes::default() };
        let (len, end) = self.walk(&*file, &mut indexes, epochs)?;
        let bytes_cut = self.found.log_bytes - len;
        if bytes_cut > 0 {
            // Synced: a power cut that undoes the cut, but not what is appended next, would bring back batches that
            // fit behind it.
            let cut = file.set_len(len).and_then(|()| file.sync_data());
            cut.map_err(LogError::io("cut", self.files.path(base_offset, FileKind::Log)))?;
        }
        indexes.finish();
        self.write_index(FileKind::Index, &indexes.offsets)?;
        self.write_index(FileKind::TimeIndex, &indexes.times)?;
        let entries = |bytes: &[u8], entry: usize| (bytes.len() / entry) as u32;
        let mut segment = Segment::on_disk(
            base_offset,
            len as u32,
            entries(&indexes.offsets, OffsetEntry::BYTES),
            entries(&indexes.times, TimeEntry::BYTES),
        );
        segment.aborted = self.found.aborted();
        Ok(Walked { segment, end, bytes_cut })
    }

    /// Notes every batch; returns where the last whole one ends, in the file and in offsets.
    fn walk(
        &self,
        file: &dyn StorageFile,
        indexes: &mut Indexes,
        epochs: &mut LeaderEpochs,
    ) -> Result<(u64, i64), LogError> {
        let base_offset = self.found.base_offset;
        let path = || self.files.path(base_offset, FileKind::Log);
        let range = 0..self.found.log_bytes.min(SEGMENT_BYTES_MAX);
        let mut batches = BatchScan::new(file, ReadMode::Blocking, range, base_offset, RECOVERY_CHUNK_BYTES);
        loop {
            let trusted_until = self.trust.check_from_offset;
            let check = batches.position() >= self.trust.check_from_position
                && batches.next_offset() >= trusted_until;
            match blocking(batches.next(check)).map_err(LogError::io("read", path()))? {
                Scanned::Batch(batch) if batch.last_offset - base_offset > i64::from(i32::MAX) => {
                    let reason = "an offset is too far from the segment's base";
                    return Err(LogError::Damaged { path: path(), position: batch.position, reason });
                }
                Scanned::Batch(batch) => {
                    self.watch.walked(batch.size)?;
                    indexes.note(&batch, base_offset, self.index_interval);
                    note_epoch(&batch, epochs);
                }
                Scanned::Torn { position, reason }
                    if !self.trust.may_cut || batches.next_offset() < trusted_until =>
                {
                    return Err(LogError::Damaged { path: path(), position, reason });
                }
                Scanned::Torn { .. } | Scanned::End => break,
            }
        }
        Ok((batches.position(), batches.next_offset()))
    }

    /// Gives an index file this content, unless it has it.
    fn write_index(&self, kind: FileKind, content: &[u8]) -> Result<(), LogError> {
        let base_offset = self.found.base_offset;
        let file = self.files.open(base_offset, kind)?;
        write_if_other(&*file, content).map_err(LogError::io("write", self.files.path(base_offset, kind)))
    }
}

fn note_epoch(batch: &ScannedBatch, epochs: &mut LeaderEpochs) {
    if batch.leader_epoch.is_known() && epochs.latest().is_none_or(|last| batch.leader_epoch > last) {
        epochs.assign(batch.leader_epoch, batch.base_offset);
    }
}

fn write_if_other(file: &dyn StorageFile, content: &[u8]) -> io::Result<()> {
    let mut present = vec![0; content.len()];
    let same = file.len()? == content.len() as u64
        && read_full_at(file, &mut present, 0)? == content.len()
        && present == content;
    if !same {
        file.set_len(0)?;
        write_all_at(file, content, 0)?;
    }
    Ok(())
}

impl Indexes {
    fn note(&mut self, batch: &ScannedBatch, base_offset: i64, interval: u32) {
        let relative_offset = (batch.last_offset - base_offset) as i32;
        // Without records the timestamp is of no record.
        if batch.record_count > 0 && batch.max_timestamp > self.largest.0 {
            self.largest = (batch.max_timestamp, relative_offset);
        }
        if self.bytes_since_entry > u64::from(interval) {
            OffsetEntry { relative_offset, position: batch.position as u32 }.encode(&mut self.offsets);
            self.note_time();
            self.bytes_since_entry = 0;
        }
        self.bytes_since_entry += batch.size;
    }

    fn note_time(&mut self) {
        if self.largest.0 > self.entered {
            let (timestamp, relative_offset) = self.largest;
            TimeEntry { timestamp, relative_offset }.encode(&mut self.times);
            self.entered = timestamp;
        }
    }

    /// The last entry of a time index is the largest timestamp.
    fn finish(&mut self) {
        self.note_time();
    }
}
