//! Cutting off the end of a log: what a replica does whose records were not committed.
//!
//! Everything that was derived from the records goes with them: index entries, epochs, producer state, aborted
//! transactions, the recent batches. When this returns, the cut is durable; otherwise a power cut could bring back
//! what others have agreed to forget.

use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::inventory::list_snapshots;
use crate::log::{Active, Log};
use crate::read_mode::ReadMode;
use crate::scan::Scanned;
use crate::segment::{Lookup, Segment, blocking};
use crate::storage::{StorageFault, StorageFile};
use crate::time_index::TimestampOffset;
use std::path::Path;
use std::sync::Arc;

/// A truncation that is in the midst of its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Removes all records at or behind an offset.
    Suffix(i64),
    /// Everything goes, and the log starts at an offset.
    Everything(i64),
}

impl Log {
    /// Removes all records at or behind `to`, a batch that holds it included, and returns the log end then. Blocks
    /// on the disk.
    ///
    /// # Errors
    /// After a shortage ([`StorageFault::is_temporary`]) the log is as it was, or [`Log::is_cut_short`]: then it does nothing until
    /// [`Log::finish_cut`]. Any other failure stops it.
    pub fn truncate_suffix(&mut self, to: i64, mono_ms: u64) -> Result<i64, LogError> {
        self.finish_cut(mono_ms)?;
        if to >= self.log_end {
            return Ok(self.log_end);
        }
        // The recovery point in the directory's checkpoint is lowered durably before anything is removed.
        let lowered = self.lower_recovery_point(to.max(0));
        lowered.map_err(|error| self.judge_cut(error))?;
        self.cut(Cut::Suffix(to), mono_ms)?;
        Ok(self.log_end)
    }

    /// Removes everything and starts at `offset`: what a replica does that is too far behind.
    ///
    /// # Errors
    /// As of [`Log::truncate_suffix`].
    pub fn truncate_fully_and_start_at(&mut self, offset: i64, mono_ms: u64) -> Result<(), LogError> {
        self.check_not_stopped()?;
        self.cut(Cut::Everything(offset), mono_ms)
    }

    /// Returns true if a truncation was interrupted by a shortage: neither readers nor writers are served until it is
    /// finished.
    pub fn is_cut_short(&self) -> bool {
        self.cut.is_some()
    }

    /// Does the rest of a truncation that a shortage has interrupted.
    ///
    /// # Errors
    /// As of [`Log::truncate_suffix`].
    pub fn finish_cut(&mut self, mono_ms: u64) -> Result<(), LogError> {
        self.check_not_stopped()?;
        self.cut.map_or(Ok(()), |cut| self.cut(cut, mono_ms))
    }

    /// Does a truncation, or all of it once more: each step finds what an earlier attempt has done.
    fn cut(&mut self, cut: Cut, mono_ms: u64) -> Result<(), LogError> {
        self.cut = None;
        let (Cut::Suffix(end) | Cut::Everything(end)) = cut;
        // A sync that is under way is of other records.
        self.flush.note_cut(end.max(0));
        self.exported.end_if_cut(match cut {
            Cut::Suffix(to) => to,
            Cut::Everything(_) => i64::MIN,
        });
        let done = self.settle_compaction().and_then(|()| match cut {
            Cut::Suffix(to) if to >= self.segments[0].base_offset => self.cut_suffix(to, mono_ms),
            Cut::Suffix(offset) | Cut::Everything(offset) => self.start_empty(offset.max(0), mono_ms),
        });
        done.map_err(|error| {
            self.cut = Some(cut);
            self.judge_cut(error)
        })
    }

    /// A shortage leaves what is to be done for later.
    fn judge_cut(&mut self, error: LogError) -> LogError {
        self.dir.note_failure(&error);
        if !error.fault().is_some_and(StorageFault::is_temporary) {
            self.stop(&error);
        }
        error
    }

    fn cut_suffix(&mut self, to: i64, mono_ms: u64) -> Result<(), LogError> {
        self.lower_recovery_point(to)?;
        // What stays of it is not synced yet, whichever segment is active then.
        self.active.transaction_index.take().into_iter().for_each(|file| self.flush.add_file(file));
        let keep = self.segment_of(to) + 1;
        // The last one first: what a crash leaves is a log without a gap.
        while self.segments.len() > keep {
            self.remove_last_segment()?;
            self.recent.clear();
        }
        self.reopen_last(to, mono_ms)?;
        self.forget_from_log_end(mono_ms)?;
        self.sync_cut()
    }

    fn start_empty(&mut self, offset: i64, mono_ms: u64) -> Result<(), LogError> {
        self.lower_recovery_point(offset)?;
        while !self.segments.is_empty() {
            self.remove_last_segment()?;
        }
        (self.log_start, self.log_end) = (offset, offset);
        self.recent.clear();
        // Its files may be missing for as long as the cut is not finished.
        self.segments.push(Segment::empty(offset));
        self.active = Active::new(self.create_active_files()?, mono_ms);
        for snapshot in list_snapshots(&self.files)? {
            self.files.remove(snapshot, FileKind::Snapshot)?;
        }
        self.forget_from_log_end(mono_ms)?;
        self.sync_cut()
    }

    /// Lets the log go on at `offset`, which is behind its end: no record has an offset between.
    pub(crate) fn skip_to(&mut self, offset: i64, mono_ms: u64) -> Result<(), LogError> {
        assert!(offset > self.log_end, "{offset} is not behind the log end {}", self.log_end);
        if self.active_segment().len > 0 {
            self.log_end = offset;
            return self.roll(mono_ms);
        }
        self.remove_last_segment()?;
        self.log_end = offset;
        if self.segments.is_empty() {
            self.log_start = offset;
        }
        self.active = Active::new(self.create_active_files()?, mono_ms);
        self.segments.push(Segment::empty(offset));
        self.flush.add_directory(&self.files.dir);
        Ok(())
    }

    /// Lowers the durable end and the recovery point: the bytes behind `to` will be other data, which no sync has covered.
    pub(crate) fn lower_recovery_point(&mut self, to: i64) -> Result<(), LogError> {
        self.durable_end = self.durable_end.min(to);
        let checkpoint = &self.dir.checkpoints().recovery_point;
        checkpoint
            .lower(&self.partition, to)
            .map_err(LogError::io("write the recovery point in", self.dir.path()))
    }

    /// A log start that is noted above the log end would have the next start begin there, without a record. And what is
    /// appended from the log end on was never compacted.
    pub(crate) fn lower_noted(&mut self) -> Result<(), LogError> {
        let checkpoints = self.dir.checkpoints();
        let bounds = [(&checkpoints.log_start, self.log_start), (&checkpoints.cleaner, self.log_end)];
        for (checkpoint, bound) in bounds {
            let lowered = checkpoint.lower(&self.partition, bound);
            lowered.map_err(LogError::io("write a checkpoint in", self.dir.path()))?;
        }
        Ok(())
    }

    fn remove_last_segment(&mut self) -> Result<(), LogError> {
        let segment = self.segments.last_mut().expect("the caller has counted");
        segment.close_cached();
        let base_offset = segment.base_offset;
        remove_segment_files(&self.files, base_offset)?;
        self.segments.pop();
        Ok(())
    }

    /// Cuts the last segment before the batch that holds `to`, and makes it the active one.
    fn reopen_last(&mut self, to: i64, mono_ms: u64) -> Result<(), LogError> {
        let segment = self.segments.last_mut().expect("the first segment starts at or before the cut");
        let base_offset = segment.base_offset;
        let path = self.files.path(base_offset, FileKind::Log);
        let file = self.files.open(base_offset, FileKind::Log)?;
        let files = segment.lookup_files(&self.files, Some(&file)).map_err(LogError::io("open", &*path))?;
        let lookup = segment.lookup(to, files);
        let found = blocking(lookup.find(to, ReadMode::Blocking)).map_err(LogError::io("read", &*path))?;
        if let Some(batch) = found {
            self.log_end = to.min(batch.base_offset);
            self.recent.truncate(batch.position as u32);
            segment.close_cached();
            cut_indexes(&self.files, segment, batch.position as u32, self.log_end)?;
            file.set_len(batch.position).map_err(LogError::io("cut", &*path))?;
            segment.len = batch.position as u32;
        } else {
            // An earlier attempt may have cut a batch that holds the offset.
            self.log_end = self.log_end.min(to);
        }
        (self.active, _) = reopen_active(&self.files, segment, file, mono_ms)?;
        Ok(())
    }

    /// Undoes what was derived from the records behind the log end.
    fn forget_from_log_end(&mut self, mono_ms: u64) -> Result<(), LogError> {
        // A batch that holds the offset went as a whole, so the log may end before what was asked for.
        self.lower_recovery_point(self.log_end)?;
        self.log_start = self.log_start.min(self.log_end);
        self.lower_noted()?;
        self.high_watermark = self.high_watermark.clamp(self.log_start, self.log_end);
        self.flush.note_cut(self.log_end);
        self.epoch_checkpoint.note(self.epochs.truncate_from_end(self.log_end));
        self.generation.advance();
        self.reload_producers(i64::MAX, mono_ms)
    }

    fn sync_cut(&mut self) -> Result<(), LogError> {
        let path = self.files.path(self.active_segment().base_offset, FileKind::Log);
        if let Err(error) = self.active.file.sync_data() {
            self.failed(&error);
            return Err(LogError::io("sync", path)(error));
        }
        self.files.sync_dir()?;
        match self.write_epochs() {
            // What is on disk of them is beyond the log end, where a start ignores it; they are written again.
            Err(error) if error.fault() == Some(StorageFault::NoSpace) => {
                self.dir.note_full();
                Ok(())
            }
            written => written,
        }
    }
}

/// Removes the files of a segment. The log goes first: without it the others are orphans, which the next start removes.
pub(crate) fn remove_segment_files(files: &PartitionFiles, base_offset: i64) -> Result<(), LogError> {
    for kind in [FileKind::Log, FileKind::Index, FileKind::TimeIndex, FileKind::TransactionIndex] {
        files.remove(base_offset, kind)?;
    }
    Ok(())
}

/// Drops index entries of what is at or behind a position.
fn cut_indexes(
    files: &PartitionFiles,
    segment: &mut Segment,
    position: u32,
    log_end: i64,
) -> Result<(), LogError> {
    let base_offset = segment.base_offset;
    let index = files.open(base_offset, FileKind::Index)?;
    let cut = segment.offsets.truncate(&*index, |entry| entry.position < position);
    cut.map_err(LogError::io("cut", files.path(base_offset, FileKind::Index)))?;
    let times = files.open(base_offset, FileKind::TimeIndex)?;
    let holds =
        |entry: &crate::time_index::TimeEntry| base_offset + i64::from(entry.relative_offset) < log_end;
    let cut = segment.times.truncate(&*times, holds);
    cut.map_err(LogError::io("cut", files.path(base_offset, FileKind::TimeIndex)))
}

/// Makes a segment with right indexes the active one: what is kept in memory of it is taken from the batches behind
/// the last index entry. Returns the offset behind its last batch too.
pub(crate) fn reopen_active(
    files: &PartitionFiles,
    segment: &mut Segment,
    file: Arc<dyn StorageFile>,
    mono_ms: u64,
) -> Result<(Active, i64), LogError> {
    let path = files.path(segment.base_offset, FileKind::Log);
    segment.close_cached();
    segment.largest = None;
    let indexed = segment.largest(files)?;
    let lookup_files = segment.lookup_files(files, Some(&file)).map_err(LogError::io("open", &*path))?;
    let lookup = segment.lookup(i64::MAX, lookup_files);
    let start = blocking(lookup.start(i64::MAX, ReadMode::Blocking)).map_err(LogError::io("read", &*path))?;
    let (largest, log_end) = walk_tail(&lookup, start, indexed, &path)?;
    segment.largest = Some(largest);
    let mut active = Active::new(file, mono_ms);
    active.last_time_entry = indexed.timestamp;
    active.bytes_since_index = segment.len - start as u32;
    let first = blocking(lookup.batches(0, ReadMode::Blocking).next(false));
    if let Scanned::Batch(batch) = first.map_err(LogError::io("read", path))? {
        active.first_timestamp = Some(batch.max_timestamp);
    }
    Ok((active, log_end))
}

/// The offset behind the last batch of a closed segment with right indexes.
pub(crate) fn tail_end(files: &PartitionFiles, segment: &Segment) -> Result<i64, LogError> {
    let path = files.path(segment.base_offset, FileKind::Log);
    let lookup_files = segment.lookup_files(files, None).map_err(LogError::io("open", &*path))?;
    let lookup = segment.lookup(i64::MAX, lookup_files);
    let start = blocking(lookup.start(i64::MAX, ReadMode::Blocking)).map_err(LogError::io("read", &*path))?;
    let (_, end) = walk_tail(&lookup, start, TimestampOffset::none(segment.base_offset), &path)?;
    Ok(end)
}

/// Walks to the end of a segment; returns the largest timestamp, of which the index knows a part, and the log end.
fn walk_tail(
    lookup: &Lookup,
    start: u64,
    mut largest: TimestampOffset,
    path: &Path,
) -> Result<(TimestampOffset, i64), LogError> {
    let damaged = |position, reason| LogError::Damaged { path: path.to_owned(), position, reason };
    let mut batches = lookup.batches(start, ReadMode::Blocking);
    loop {
        match blocking(batches.next(false)).map_err(LogError::io("read", path))? {
            Scanned::Batch(batch) if batch.max_timestamp > largest.timestamp => {
                largest = TimestampOffset { timestamp: batch.max_timestamp, offset: batch.last_offset };
            }
            Scanned::Batch(_) => {}
            Scanned::End if start == 0 || batches.position() > start => {
                return Ok((largest, batches.next_offset()));
            }
            Scanned::End => return Err(damaged(start, "the index points behind the end")),
            Scanned::Torn { position, reason } => return Err(damaged(position, reason)),
        }
    }
}
