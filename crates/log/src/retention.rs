//! Retention: by time, by size, by a DeleteRecords request. It decides which records may go, and maintenance removes them.
//!
//! The log of a replica removes only records before its log start, which its group moves. Each replica has a clock of its own,
//! and the contents may not depend on the leader. The leader asks [`Log::unwanted_before`] and proposes that offset.

use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::log::Log;
use crate::segment::Segment;

/// Old segments of which it is not known how old they are, to be looked up without the log.
#[derive(Debug)]
pub struct RetentionSurvey {
    files: PartitionFiles,
    segments: Vec<Segment>,
    /// Segments whose largest timestamp is at or behind it are kept.
    kept_from_ms: i64,
}

/// The reason for which records cannot be deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteRecordsError {
    /// OFFSET_OUT_OF_RANGE.
    #[error("cannot delete records before {offset}: the high watermark is {high_watermark}")]
    OffsetOutOfRange {
        /// The offset asked for.
        offset: i64,
        /// The high watermark.
        high_watermark: i64,
    },
    /// KAFKA_STORAGE_ERROR.
    #[error(transparent)]
    Log(#[from] LogError),
}

impl Log {
    /// Moves the log start to `offset` (-1: the high watermark), and returns where it is then. Whole segments before
    /// it go with the next [`Log::maintain`].
    ///
    /// The new start is noted in the directory's checkpoint. It survives a restart once that is durable, so the
    /// request is answered only after [`LogDir::commit`](crate::dir::LogDir::commit) of `checkpoints().log_start`. That of a
    /// replica is noted only as far as its log is durable, of which a sync is due: its group remembers the rest.
    pub fn delete_records_before(&mut self, offset: i64) -> Result<i64, DeleteRecordsError> {
        self.check_running()?;
        let high_watermark = self.high_watermark;
        let target = if offset == -1 { high_watermark } else { offset };
        if target < 0 || target > high_watermark {
            return Err(DeleteRecordsError::OffsetOutOfRange { offset, high_watermark });
        }
        self.raise_log_start(target);
        self.note_log_start(self.segments[0].base_offset);
        if !self.follow_log_end && self.log_start > self.durable_end {
            self.flush.note_due();
        }
        Ok(self.log_start)
    }

    pub(crate) fn raise_log_start(&mut self, offset: i64) -> bool {
        let raised = offset > self.log_start;
        if raised {
            self.log_start = offset;
            self.producers.settle_before(offset);
            self.epoch_checkpoint.note(self.epochs.truncate_from_start(offset));
        }
        raised
    }

    /// Returns the disk reads that [`Log::begin_maintenance`] would need to judge the age of segments.
    pub fn retention_survey(&self, wall_ms: i64) -> RetentionSurvey {
        let retention_ms = self.config.retention_ms.filter(|_| self.config.delete);
        let kept_from_ms = retention_ms.map_or(i64::MIN, |ms| wall_ms.saturating_sub(ms));
        let (_, closed) = self.segments.split_last().expect("a log has a segment at all times");
        let may_go = |segment: &&Segment| {
            segment.known_largest().is_none_or(|largest| largest.timestamp < kept_from_ms)
        };
        let old = closed.iter().take_while(may_go);
        let unknown = old.filter(|segment| segment.known_largest().is_none());
        let segments = if retention_ms.is_some() { unknown.cloned().collect() } else { Vec::new() };
        RetentionSurvey { files: self.files.clone(), segments, kept_from_ms }
    }

    /// Forgets producers that have been idle for `producer.id.expiration.ms`, and verifications that are as old, to be
    /// called now and then (Kafka: every `producer.id.expiration.check.interval.ms`). How many producers there were.
    /// `wall_ms` counts for those that have not written since the log was opened.
    pub fn expire_producers(&mut self, mono_ms: u64, wall_ms: i64) -> usize {
        let expiration_ms = self.config.producer_id_expiration_ms;
        self.verifications.expire(mono_ms, expiration_ms);
        let expired = self.producers.expire(mono_ms, wall_ms, expiration_ms);
        self.producer_share.set(self.producers.len());
        self.refused_producers &= expired == 0;
        expired
    }

    /// The offset before which retention keeps nothing, by this clock. The leader of a group has the log start moved there. None
    /// if the log start is there already, or if all records are kept.
    ///
    /// # Errors
    /// If the age of a segment cannot be read.
    pub fn unwanted_before(&self, wall_ms: i64) -> Result<Option<i64>, LogError> {
        let count = self.first_segments(wall_ms, true)?;
        let offset = self.segments.get(count).map_or(self.log_end, |next| next.base_offset);
        Ok((offset > self.log_start).then_some(offset))
    }

    /// The number of first segments that may go.
    pub(crate) fn deletable(&self, wall_ms: i64) -> Result<usize, LogError> {
        self.first_segments(wall_ms, self.follow_log_end)
    }

    /// The number of first segments that have only records below the high watermark that are below the log start or, where retention
    /// counts, too old or too many.
    fn first_segments(&self, wall_ms: i64, retention_counts: bool) -> Result<usize, LogError> {
        let mut excess = match self.config.retention_bytes {
            Some(bytes) if self.config.delete && retention_counts => self.size().saturating_sub(bytes),
            _ => 0,
        };
        let mut count = 0;
        while count < self.segments.len() {
            let end = self.segments.get(count + 1).map_or(self.log_end, |next| next.base_offset);
            let last = count + 1 == self.segments.len();
            let len = u64::from(self.segments[count].len);
            if end > self.high_watermark || (last && len == 0) {
                break;
            }
            // Without any record left, the producers' state is in the snapshot alone, which has to be durable.
            if !last && end == self.log_end && self.flush.files_are_unsynced() {
                break;
            }
            // The last segment of a replica goes as well: retention or a client asked for the deletion of all its records.
            let below_start = (!last || !self.follow_log_end) && end <= self.log_start;
            let too_much = excess >= len && excess > 0;
            let may_go = below_start || too_much || (retention_counts && self.is_expired(count, wall_ms)?);
            if !may_go {
                break;
            }
            excess = excess.saturating_sub(len);
            count += 1;
        }
        Ok(count)
    }

    fn is_expired(&self, number: usize, wall_ms: i64) -> Result<bool, LogError> {
        let Some(retention_ms) = self.config.retention_ms.filter(|_| self.config.delete) else {
            return Ok(false);
        };
        let segment = &self.segments[number];
        let mut timestamp = segment.largest(&self.files)?.timestamp;
        if timestamp < 0 {
            // Records without timestamps are as old as their file.
            let path = self.files.path(segment.base_offset, FileKind::Log);
            let modified = self.files.storage.modified_ms(&path).map_err(LogError::io("inspect", path))?;
            timestamp = modified.unwrap_or(wall_ms);
        }
        Ok(wall_ms.saturating_sub(timestamp) > retention_ms)
    }
}

impl RetentionSurvey {
    /// Reads the largest timestamps, as far as they matter; the segments of the log know them then. May block on the
    /// disk.
    pub fn run(&self) {
        for segment in &self.segments {
            // What cannot be read is read again, and reported, where it is needed.
            let Ok(largest) = segment.largest(&self.files) else { return };
            if largest.timestamp >= self.kept_from_ms {
                return;
            }
        }
    }
}
