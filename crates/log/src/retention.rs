//! Letting go of old records: by time, by size, by a DeleteRecords request, and of files after a delay.

use crate::error::LogError;
use crate::files::FileKind;
use crate::log::Log;
use std::path::PathBuf;

/// Files that wait for their removal.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    waiting: Vec<(PathBuf, u64)>,
}

/// What [`Log::maintain`] did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Maintained {
    /// The active segment was closed because of its age.
    pub rolled: bool,
    /// Segments that retention took.
    pub segments_deleted: usize,
    /// Their bytes.
    pub bytes_deleted: u64,
    /// Files of segments deleted earlier that are gone now.
    pub files_removed: usize,
    /// Producers that were forgotten because they were idle.
    pub producers_expired: usize,
    /// The log start moved: the directory's checkpoint of it should be written soon.
    pub log_start_moved: bool,
}

/// Why records cannot be deleted.
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
    /// request is answered only after [`LogDir::commit`](crate::dir::LogDir::commit) of `checkpoints().log_start`.
    pub fn delete_records_before(&mut self, offset: i64) -> Result<i64, DeleteRecordsError> {
        self.check_running()?;
        let high_watermark = self.high_watermark;
        let target = if offset == -1 { high_watermark } else { offset };
        if target < 0 || target > high_watermark {
            return Err(DeleteRecordsError::OffsetOutOfRange { offset, high_watermark });
        }
        self.raise_log_start(target);
        self.dir.checkpoints().log_start.set(&self.partition, self.log_start);
        Ok(self.log_start)
    }

    fn raise_log_start(&mut self, offset: i64) -> bool {
        let raised = offset > self.log_start;
        if raised {
            self.log_start = offset;
            self.epochs_changed |= self.epochs.truncate_from_start(offset);
        }
        raised
    }

    /// What has to be done now and then (Kafka: every `log.retention.check.interval.ms`): closes a segment that is
    /// old, deletes what retention does not keep, removes files of what was deleted earlier, forgets idle producers,
    /// and notes recovery point and log start in the directory's checkpoints. May block on the disk.
    pub fn maintain(&mut self, wall_ms: i64, mono_ms: u64) -> Result<Maintained, LogError> {
        let maintained = self.maintain_files(wall_ms, mono_ms);
        maintained.inspect_err(|error| self.dir.note_failure(error))
    }

    fn maintain_files(&mut self, wall_ms: i64, mono_ms: u64) -> Result<Maintained, LogError> {
        self.check_running()?;
        let mut done = Maintained { rolled: self.roll_by_age(mono_ms)?, ..Maintained::default() };
        let log_start = self.log_start;
        self.delete_old_segments(wall_ms, mono_ms, &mut done)?;
        done.log_start_moved = self.log_start > log_start;
        done.files_removed = self.remove_deleted(mono_ms)?;
        done.producers_expired = self.producers.expire(mono_ms, self.config.producer_id_expiration_ms);
        if std::mem::replace(&mut self.maintained_end, self.log_end) == self.log_end {
            // Nobody appends: what is kept in memory for the next append can go.
            self.write_indexes()?;
            self.segments.last_mut().expect("a log has a segment at all times").shrink();
        }
        self.write_epochs()?;
        self.note_checkpoints();
        Ok(done)
    }

    /// Kafka closes a segment when the next batch comes; one that is not appended to any more would stay open.
    fn roll_by_age(&mut self, mono_ms: u64) -> Result<bool, LogError> {
        let age = i64::try_from(mono_ms.saturating_sub(self.active.started_mono_ms)).unwrap_or(i64::MAX);
        let due = self.active_segment().len > 0 && age > self.roll_after_ms();
        if due {
            self.roll(mono_ms)?;
        }
        Ok(due)
    }

    fn delete_old_segments(
        &mut self,
        wall_ms: i64,
        mono_ms: u64,
        done: &mut Maintained,
    ) -> Result<(), LogError> {
        let count = self.deletable(wall_ms)?;
        if count == 0 {
            return Ok(());
        }
        if count == self.segments.len() {
            self.roll(mono_ms)?;
            self.sync_closed()?;
            done.rolled = true;
        }
        let next = self.segments[count].base_offset;
        self.raise_log_start(next);
        self.make_deletion_safe()?;
        for mut segment in self.segments.drain(..count) {
            segment.close_cached();
            done.segments_deleted += 1;
            done.bytes_deleted += u64::from(segment.len);
            for kind in FileKind::ALL {
                if let Some(path) = self.files.mark_deleted(segment.base_offset, kind)? {
                    self.deletions
                        .waiting
                        .push((path, mono_ms.saturating_add(self.config.file_delete_delay_ms)));
                }
            }
        }
        tracing::info!(partition = %self.partition, segments = count, log_start = next, "old segments are deleted");
        Ok(())
    }

    /// How many of the first segments may go: all of their records are below the high watermark, and below the log
    /// start, too old, or too many.
    fn deletable(&mut self, wall_ms: i64) -> Result<usize, LogError> {
        let mut excess = match self.config.retention_bytes {
            Some(bytes) if self.config.delete => self.size().saturating_sub(bytes),
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
            let below_start = !last && end <= self.log_start;
            let too_much = excess >= len && excess > 0;
            if !(below_start || too_much || self.is_expired(count, wall_ms)?) {
                break;
            }
            excess = excess.saturating_sub(len);
            count += 1;
        }
        Ok(count)
    }

    fn is_expired(&mut self, number: usize, wall_ms: i64) -> Result<bool, LogError> {
        let Some(retention_ms) = self.config.retention_ms.filter(|_| self.config.delete) else {
            return Ok(false);
        };
        let segment = &mut self.segments[number];
        let mut timestamp = segment.largest(&self.files)?.timestamp;
        if timestamp < 0 {
            // Records without timestamps are as old as their file.
            let path = self.files.path(segment.base_offset, FileKind::Log);
            let modified = self.files.storage.modified_ms(&path).map_err(LogError::io("inspect", path))?;
            timestamp = modified.unwrap_or(wall_ms);
        }
        Ok(wall_ms.saturating_sub(timestamp) > retention_ms)
    }

    /// Without any record left, the producers' state is in the snapshot alone.
    fn sync_closed(&mut self) -> Result<(), LogError> {
        let synced = self.flush.files().iter().try_for_each(|file| file.sync_data());
        synced.inspect_err(|error| self.stop(error)).map_err(LogError::io("sync", &*self.files.dir))
    }

    /// What has to be on disk before segments go. A power cut must not keep the deletion and forget the segment that
    /// comes after, or offsets would start anew. And it may undo the deletion of some and not of others: the log start
    /// tells the next start that a gap below it is none.
    fn make_deletion_safe(&mut self) -> Result<(), LogError> {
        if self.flush.names_are_unsynced() {
            self.files.sync_dir()?;
        }
        let checkpoint = &self.dir.checkpoints().log_start;
        checkpoint.set(&self.partition, self.log_start);
        checkpoint.commit().map_err(LogError::io("write the log start in", self.dir.path()))
    }

    fn remove_deleted(&mut self, mono_ms: u64) -> Result<usize, LogError> {
        let due: Vec<_> = self.deletions.waiting.extract_if(.., |(_, at)| *at <= mono_ms).collect();
        for (path, _) in &due {
            self.files.remove_path(path)?;
        }
        Ok(due.len())
    }
}
