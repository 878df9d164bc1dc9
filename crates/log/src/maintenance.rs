//! Maintenance of a log, in parts, so that no appender or reader waits while maintenance waits for the disk.
//!
//! | part | has the log | does |
//! |---|---|---|
//! | [`Log::retention_survey`] | yes | copies the segments to look up |
//! | [`RetentionSurvey::run`](crate::RetentionSurvey::run) | no | reads the largest timestamps of old segments |
//! | [`Log::begin_maintenance`] | yes | rolls, raises the log start; decides the rest |
//! | [`Maintenance::run`] | no | makes epochs, names and log start durable, removes files |
//! | [`Log::end_maintenance`] | yes | takes segments before the log start away, notes the recovery point |
//!
//! Any part may be the last. A log start that is not durable removes nothing. Segments before a durable one are removed by
//! the next start, or by the maintenance of a replica. Appends, flushes and rolls may come in between. A truncation voids
//! the decisions ([`Generation`]): the next maintenance decides again.

use crate::dir::LogDir;
use crate::epoch_checkpoint::EpochsToWrite;
use crate::error::LogError;
use crate::files::{FileKind, PartitionFiles};
use crate::log::Log;
use crate::storage::StorageFault;
use std::path::PathBuf;
use std::sync::Arc;

/// The result of maintenance.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Maintained {
    /// The active segment was closed because of its age, or because none of its records is kept.
    pub rolled: bool,
    /// Segments that retention took.
    pub segments_deleted: usize,
    /// Their bytes.
    pub bytes_deleted: u64,
    /// Files of segments deleted earlier that are gone now.
    pub files_removed: usize,
    /// The log start moved.
    pub log_start_moved: bool,
}

/// The number of truncations of a log. A decision that is carried out later compares it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// Voids earlier decisions.
    pub(crate) fn advance(&mut self) {
        self.0 += 1;
    }
}

/// Files that wait for their removal, with the time at which it is due.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    waiting: Vec<(PathBuf, u64)>,
}

/// The part of maintenance that waits for the disk and does not need the log.
#[derive(Debug)]
pub struct Maintenance {
    dir: Arc<LogDir>,
    files: PartitionFiles,
    generation: Generation,
    mono_ms: u64,
    epochs: Option<EpochsToWrite>,
    /// Segments that end at or before this offset, the log start, are to go.
    delete_before: Option<i64>,
    /// Names in the directory may not be durable yet, among them that of the segment that will be the first.
    names_unsynced: bool,
    /// Files that are to be removed now.
    due: Vec<(PathBuf, u64)>,
    /// Durable when this was decided, and so are, after [`Maintenance::run`], the epochs of what is before it.
    recovery_point: i64,
    done: Maintained,
    error: Option<LogError>,
}

impl Log {
    /// Runs all parts of maintenance, one after another. Blocks on the disk.
    ///
    /// # Errors
    /// When a part fails. The next maintenance does the rest.
    pub fn maintain(&mut self, wall_ms: i64, mono_ms: u64) -> Result<Maintained, LogError> {
        self.retention_survey(wall_ms).run();
        let mut work = self.begin_maintenance(wall_ms, mono_ms)?;
        work.run();
        self.end_maintenance(work)
    }

    /// Closes a segment that is old, moves the log start behind what retention does not keep, and
    /// decides what else there is to do. Does not wait for the disk, except for a roll right after a change of
    /// leader. [`Maintenance::run`] and [`Log::end_maintenance`] follow.
    ///
    /// # Errors
    /// When the log is stopped, or files cannot be written.
    pub fn begin_maintenance(&mut self, wall_ms: i64, mono_ms: u64) -> Result<Maintenance, LogError> {
        let begun = self.decide_maintenance(wall_ms, mono_ms);
        begun.inspect_err(|error| self.dir.note_failure(error))
    }

    fn decide_maintenance(&mut self, wall_ms: i64, mono_ms: u64) -> Result<Maintenance, LogError> {
        self.check_running()?;
        let mut done = Maintained { rolled: self.roll_by_age(mono_ms)?, ..Maintained::default() };
        let delete_before = self.give_up_segments(wall_ms, mono_ms, &mut done)?;
        if self.flush.files_are_unsynced() {
            // Appends are refused from now on, and what is deleted next may have to wait for it.
            self.flush.note_due();
        }
        if std::mem::replace(&mut self.maintained_end, self.log_end) == self.log_end {
            // There are no appends: what is kept in memory for the next append can go.
            self.write_indexes()?;
            self.segments.last_mut().expect("a log has a segment at all times").shrink();
        }
        let epochs = self.epochs_to_write();
        if epochs.is_none() {
            self.note_checkpoints(self.durable_end);
        }
        Ok(Maintenance {
            dir: self.dir.clone(),
            files: self.files.clone(),
            generation: self.generation,
            mono_ms,
            epochs,
            delete_before,
            names_unsynced: self.flush.names_are_unsynced(),
            due: self.deletions.waiting.extract_if(.., |(_, at)| *at <= mono_ms).collect(),
            recovery_point: self.durable_end,
            done,
            error: None,
        })
    }

    /// Takes from readers the segments that may go now, and notes recovery point and log start in the directory's
    /// checkpoints. Does not wait for the disk.
    ///
    /// # Errors
    /// What failed in [`Maintenance::run`], or here; the next maintenance does what was not done. A failed sync stops
    /// the partition.
    pub fn end_maintenance(&mut self, work: Maintenance) -> Result<Maintained, LogError> {
        if !Arc::ptr_eq(&work.files.dir, &self.files.dir) {
            // A copy in another log directory has taken over: the old files belong to no partition any more, whatever failed there.
            return Ok(work.done);
        }
        self.deletions.waiting.extend(work.due);
        if let Some(error) = work.error {
            if let LogError::Io { action: "sync" | "replace", source, .. } = &error
                && !StorageFault::of(source).is_temporary()
            {
                self.dir.note_failed_sync(source);
                self.failed(source);
            }
            self.dir.note_failure(&error);
            return Err(error);
        }
        self.check_running()?;
        let mut done = work.done;
        if work.generation == self.generation {
            // What an export holds goes the next time.
            if let Some(before) = work.delete_before.filter(|_| !self.is_exported()) {
                let deleted = self.delete_segments(before, work.mono_ms, &mut done);
                deleted.inspect_err(|error| self.dir.note_failure(error))?;
            }
            self.note_checkpoints(work.recovery_point);
        }
        Ok(done)
    }

    /// The leader epochs, if they have changed since they were written. Written soon after a change, a roll finds nothing
    /// to wait for.
    pub fn epochs_to_write(&self) -> Option<EpochsToWrite> {
        self.epoch_checkpoint.to_write(&self.epochs)
    }

    /// Closes the active segment, if it has records: it can go as a whole when what it holds is not wanted any more. Does not wait
    /// for the disk, except right after a change of leader.
    ///
    /// # Errors
    /// When the log is stopped, or files cannot be written.
    pub fn close_segment(&mut self, mono_ms: u64) -> Result<(), LogError> {
        self.check_running()?;
        match self.active_segment().len {
            0 => Ok(()),
            _ => self.roll(mono_ms).inspect_err(|error| self.dir.note_failure(error)),
        }
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

    /// Moves the log start behind the segments that retention does not keep; returns before which offset segments go.
    fn give_up_segments(
        &mut self,
        wall_ms: i64,
        mono_ms: u64,
        done: &mut Maintained,
    ) -> Result<Option<i64>, LogError> {
        let mut count = self.deletable(wall_ms)?;
        if count == self.segments.len() {
            self.roll(mono_ms)?;
            done.rolled = true;
            // The last one goes when the snapshot of its producers is durable.
            count -= 1;
        }
        if count == 0 {
            return Ok(None);
        }
        let next = self.segments[count].base_offset;
        done.log_start_moved = self.raise_log_start(next);
        self.note_log_start(next);
        Ok(Some(next))
    }

    /// Takes the segments that end at or before an offset, which is durable as the log start.
    fn delete_segments(&mut self, before: i64, mono_ms: u64, done: &mut Maintained) -> Result<(), LogError> {
        let count = self.segments.windows(2).take_while(|pair| pair[1].base_offset <= before).count();
        for mut segment in self.segments.drain(..count).collect::<Vec<_>>() {
            segment.close_cached();
            done.segments_deleted += 1;
            done.bytes_deleted += u64::from(segment.len);
            for kind in FileKind::ALL {
                if let Some(path) = self.files.mark_deleted(segment.base_offset, kind)? {
                    self.remove_later(path, mono_ms);
                }
            }
        }
        tracing::info!(partition = %self.partition, segments = count, log_start = before, "old segments are deleted");
        Ok(())
    }

    /// Removes a file when `file.delete.delay.ms` have passed.
    pub(crate) fn remove_later(&mut self, path: PathBuf, mono_ms: u64) {
        self.deletions.waiting.push((path, mono_ms.saturating_add(self.config.file_delete_delay_ms)));
    }
}

impl Maintenance {
    /// Does what waits for the disk; [`Log::end_maintenance`] tells what failed.
    pub fn run(&mut self) {
        self.error = self.try_run().err();
    }

    fn try_run(&mut self) -> Result<(), LogError> {
        if let Some(epochs) = self.epochs.take() {
            epochs.write()?;
        }
        if self.delete_before.is_some() {
            self.make_deletion_safe()?;
        }
        while let Some((path, _)) = self.due.last() {
            self.files.remove_path(path)?;
            self.due.pop();
            self.done.files_removed += 1;
        }
        Ok(())
    }

    /// Makes durable what a deletion of segments relies on. A power cut must not keep the deletion and lose the name of the
    /// segment behind it, or offsets would begin again. It may also undo the deletion of some segments and not of others:
    /// from the log start the next start knows that a gap below it is none. If no record is left, the recovery point shows that
    /// the producer snapshot can be trusted.
    fn make_deletion_safe(&self) -> Result<(), LogError> {
        if self.names_unsynced {
            self.files.sync_dir()?;
        }
        let checkpoints = self.dir.checkpoints();
        let written = checkpoints.recovery_point.commit().and_then(|()| checkpoints.log_start.commit());
        written.map_err(LogError::io("write the log start in", self.dir.path()))
    }
}
