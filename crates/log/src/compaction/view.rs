//! The state of a log from which its compaction is decided. It is taken under the log's lock, and judged without the lock.

use super::range::{ClosedSegment, Dirty, Facts, Lag, assess};
use crate::config::LogConfig;
use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::log::Log;
use crate::read_mode::ReadMode;
use crate::scan::{BatchScan, LOOKUP_CHUNK_BYTES, Scanned};
use crate::segment::{Segment, blocking};
use std::sync::Arc;

/// A compacted log at one moment.
#[derive(Debug)]
pub struct CompactionView {
    files: PartitionFiles,
    config: Arc<LogConfig>,
    closed: Vec<Segment>,
    active_base_offset: i64,
    log_start: i64,
    log_end: i64,
    stable_end: i64,
    checkpoint: Option<i64>,
}

impl Log {
    /// Returns the state for the decision; `None`: the log is not compacted, is stopped, or an export holds its files. Nothing from `bound` on is compacted: the
    /// group of a replica counts the batches there. Never blocks.
    pub fn compaction_view(&self, bound: i64) -> Option<CompactionView> {
        if !self.config.compact || self.refusal().is_some() || self.is_exported() {
            return None;
        }
        let (active, closed) = self.segments.split_last().expect("a log has a segment at all times");
        Some(CompactionView {
            files: self.files.clone(),
            config: self.config.clone(),
            closed: closed.to_vec(),
            active_base_offset: active.base_offset,
            log_start: self.log_start,
            log_end: self.log_end,
            stable_end: self.compactable_end().min(bound),
            checkpoint: self.dir.checkpoints().cleaner.get(&self.partition),
        })
    }

    /// The checkpoint of how far the log is compacted was of offsets that it does not have.
    pub fn reset_clean_end(&mut self, offset: i64) {
        self.dir.checkpoints().cleaner.set(&self.partition, offset.min(self.log_end));
    }

    /// Base offset of the segment that holds an offset, and is not the one that is written to, where all before that offset may be
    /// compacted as soon as a group counts no batch there any more: it is stable and on disk.
    pub fn compactable_base(&self, offset: i64) -> Option<i64> {
        let offset = offset.min(self.compactable_end());
        let count = self.segments.partition_point(|segment| segment.base_offset <= offset);
        Some(self.segments.get(count.checked_sub(1)?)?.base_offset)
    }

    /// Nothing from here on may be compacted: what readers do not see yet, what belongs to an open transaction, and what
    /// is not on disk. A power cut could take the last, and with it the record for which an older one has gone.
    fn compactable_end(&self) -> i64 {
        let ends = self.ends();
        ends.last_stable.min(ends.durable_end)
    }
}

impl CompactionView {
    /// Finds the part that may be compacted, and the urgency, at wall time `now_ms`. Reads timestamps from disk if the lag
    /// keys need them.
    ///
    /// # Errors
    /// When a segment or its index cannot be read.
    pub fn assess(&self, now_ms: i64) -> Result<Dirty, LogError> {
        let lag =
            Lag { min_ms: self.config.min_compaction_lag_ms, max_ms: self.config.max_compaction_lag_ms };
        let closed: Vec<_> =
            self.closed.iter().map(|segment| self.facts(segment, lag)).collect::<Result<_, _>>()?;
        let facts = Facts {
            closed: &closed,
            active_base_offset: self.active_base_offset,
            log_start: self.log_start,
            log_end: self.log_end,
            stable_end: self.stable_end,
            checkpoint: self.checkpoint,
        };
        Ok(assess(&facts, lag, now_ms))
    }

    /// `min.cleanable.dirty.ratio`.
    pub fn ratio_min(&self) -> f64 {
        self.config.min_cleanable_dirty_ratio
    }

    fn facts(&self, segment: &Segment, lag: Lag) -> Result<ClosedSegment, LogError> {
        let largest = (lag.min_ms > 0).then(|| segment.largest(&self.files)).transpose()?;
        let first = (lag.max_ms < i64::MAX).then(|| self.first_timestamp(segment)).transpose()?;
        Ok(ClosedSegment {
            base_offset: segment.base_offset,
            bytes: u64::from(segment.len),
            first_timestamp: first.flatten(),
            largest_timestamp: largest.map(|largest| largest.timestamp),
        })
    }

    fn first_timestamp(&self, segment: &Segment) -> Result<Option<i64>, LogError> {
        let path = || self.files.path(segment.base_offset, FileKind::Log);
        let files = segment.lookup_files(&self.files, None).map_err(LogError::io("open", path()))?;
        let range = 0..u64::from(segment.len);
        let mut batches =
            BatchScan::new(&*files.log, ReadMode::Blocking, range, segment.base_offset, LOOKUP_CHUNK_BYTES);
        match blocking(batches.next(false)).map_err(LogError::io("read", path()))? {
            Scanned::Batch(batch) => Ok(Some(batch.max_timestamp)),
            _ => Ok(None),
        }
    }
}
