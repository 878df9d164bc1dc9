//! A copy of a log that grows in another log directory until it takes the original's place.
//!
//! The mover of a partition asks again and again, with the original locked, what comes next ([`FutureLog::next`]), and
//! copies it without the lock ([`FutureLog::copy`]); [`FutureLog::sync`] puts it on disk. When little is left, it is caught
//! up and made durable, and takes the original's place: what has to be done with the original locked waits for no sync.
//! Between [`FutureLog::catch_up`] and the end of [`TakenOver`] no append counts as durable. Batches are copied as they are, with offsets and
//! leader epochs; segments begin where this copy's configuration wants them to.

use crate::append::Prepared;
use crate::config::LogConfig;
use crate::dir::{LastStop, LogDir};
use crate::error::{AppendError, LogError, ReadError};
use crate::flusher::FlushWork;
use crate::log::Log;
use crate::partition_dir::TopicPartition;
use crate::partition_metadata::PARTITION_METADATA;
use crate::read::{ReadBound, ReadPlan};
use crate::recovery::Left;
use crate::storage::{OpenMode, StorageFault};
use mainstem_records::{Batch, BatchError, LeaderEpoch};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are copied at once; a larger batch is copied whole.
const CHUNK_BYTES: usize = 1 << 20;

/// A log that is not served yet.
#[derive(Debug)]
pub struct FutureLog {
    log: Log,
    /// See [`CopyStart::compacted`].
    compacted: Option<i64>,
}

/// The state of the original at which a copy begins.
#[derive(Debug, Clone)]
pub struct CopyStart {
    partition: TopicPartition,
    config: Arc<LogConfig>,
    /// No record has a smaller offset.
    base_offset: i64,
    /// The original is compacted up to here, and so is whatever is copied from now on. What is compacted later may have
    /// been copied before.
    compacted: Option<i64>,
}

impl Log {
    /// Returns the state at which a copy of this log begins.
    pub fn copy_start(&self) -> CopyStart {
        CopyStart {
            partition: self.partition.clone(),
            config: self.config.clone(),
            base_offset: self.segments[0].base_offset,
            compacted: self.dir.checkpoints().cleaner.get(&self.partition),
        }
    }
}

/// The next step of a copy. It holds the file open: the original may be appended to or cut meanwhile.
#[derive(Debug)]
pub struct CopyPlan(Step);

#[derive(Debug)]
enum Step {
    Batches(ReadPlan),
    /// The original has no records before this offset that are missing in the copy.
    SkipTo(i64),
}

/// The reason why a copy stopped.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The original cannot be read.
    #[error("the original cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The bytes that were read from the original are no batch, or not the one that follows.
    #[error("the original has a damaged batch behind offset {0}")]
    Damaged(i64),
    /// The copy cannot be written.
    #[error("the copy cannot be written: {0}")]
    Append(#[from] AppendError),
    /// The copy's files cannot be created or synced.
    #[error("the copy cannot be written: {0}")]
    Log(#[from] LogError),
}

/// The reason why a copy did not take the original's place.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// Nothing has changed: the original is still in use. The copy has to be removed.
    #[error("{0}")]
    Aborted(CopyError),
    /// It is not known which of the two has the partition's name. Neither may be used until a start has looked, and the copy has
    /// to stay.
    #[error("the directories could not be renamed: {0}; the next start decides which one counts")]
    Broken(LogError),
}

impl FutureLog {
    /// Opens an empty copy in a directory made by [`LogDir::create_future`].
    ///
    /// # Errors
    /// When its files cannot be created.
    pub fn open(
        dir: &Arc<LogDir>,
        path: PathBuf,
        start: CopyStart,
        mono_ms: u64,
    ) -> Result<FutureLog, LogError> {
        let CopyStart { partition, config, base_offset: base, compacted } = start;
        let metadata = path.join(PARTITION_METADATA);
        let opened = dir.storage().open(&metadata, OpenMode::ReadWrite);
        let names = FlushWork {
            files: vec![opened.map_err(LogError::io("open", metadata))?],
            directories: vec![Arc::from(&*path), Arc::from(dir.path())],
            ..FlushWork::default()
        };
        let left = Left {
            last_stop: LastStop::New,
            recovery_point: base,
            noted_start: base,
            keeps_deleted: false,
            keeps_noted: false,
            watch: None,
            names,
        };
        let (log, _) = Log::open_in(dir, path, partition, config, left, mono_ms)?;
        Ok(FutureLog { log, compacted })
    }

    /// The directory of the copy.
    pub fn path(&self) -> &Path {
        self.log.path()
    }

    /// The log directory that it is in.
    pub fn dir(&self) -> &Arc<LogDir> {
        self.log.dir()
    }

    /// The offset up to which it is copied.
    pub fn log_end(&self) -> i64 {
        self.log.log_end
    }

    /// Bytes of its segments.
    pub fn size(&self) -> u64 {
        self.log.size()
    }

    /// Returns the next step; `None`: the copy has all that the original has at this moment. Never waits.
    ///
    /// # Errors
    /// When the original cannot be read.
    pub fn next(&self, original: &Log) -> Result<Option<CopyPlan>, ReadError> {
        let ends = original.ends();
        let from = self.log.log_end.max(ends.log_start);
        if from >= ends.log_end {
            let behind = self.log.log_end < ends.log_end;
            return Ok(behind.then_some(CopyPlan(Step::SkipTo(ends.log_end))));
        }
        Ok(Some(CopyPlan(match original.read(from, ReadBound::LogEnd, CHUNK_BYTES, true)? {
            ReadPlan::Empty => Step::SkipTo(ends.log_end),
            plan => Step::Batches(plan),
        })))
    }

    /// Copies; returns how many bytes. May wait for both disks.
    ///
    /// # Errors
    /// The copy is to be removed then.
    pub fn copy(&mut self, plan: CopyPlan, mono_ms: u64) -> Result<usize, CopyError> {
        let mut plan = match plan.0 {
            Step::Batches(plan) => plan,
            Step::SkipTo(offset) => {
                self.log.skip_to(offset, mono_ms)?;
                return Ok(0);
            }
        };
        if let ReadPlan::Later(pending) = plan {
            plan = pending.resolve()?;
        }
        // Compaction took the last records of the segment: a new read finds the next one.
        let ReadPlan::Range(range) = plan else { return Ok(0) };
        let bytes = range.to_vec().map_err(ReadError::Storage)?;
        self.append(&bytes, mono_ms)?;
        Ok(bytes.len())
    }

    fn append(&mut self, mut bytes: &[u8], mono_ms: u64) -> Result<(), CopyError> {
        let before = self.log.log_end;
        while !bytes.is_empty() {
            let batch = match Batch::split_first(bytes) {
                Ok((batch, rest)) if batch.verify_crc() => {
                    bytes = rest;
                    batch
                }
                // The range ends within a batch; the next one begins with it.
                Err(BatchError::Truncated { .. }) if self.log.log_end > before => break,
                _ => return Err(CopyError::Damaged(self.log.log_end)),
            };
            if batch.base_offset() < self.log.log_end {
                return Err(CopyError::Damaged(self.log.log_end));
            }
            self.begin_segment_at(&batch, mono_ms)?;
            self.log.append(
                &Prepared::copy_of(batch),
                LeaderEpoch::new(batch.partition_leader_epoch()),
                mono_ms,
            )?;
        }
        Ok(())
    }

    /// Moves an empty active segment to the batch's offset if its index could not hold the batch. Otherwise the segment keeps
    /// its base offset: that of the first segment is the log start, even if compaction has removed the records behind it.
    fn begin_segment_at(&mut self, batch: &Batch<'_>, mono_ms: u64) -> Result<(), LogError> {
        let segment = self.log.active_segment();
        let last_offset = batch.base_offset().saturating_add(i64::from(batch.last_offset_delta()));
        let fits = last_offset.saturating_sub(segment.base_offset) <= i64::from(i32::MAX);
        if segment.len > 0 || fits || batch.base_offset() == self.log.log_end {
            return Ok(());
        }
        self.log.skip_to(batch.base_offset(), mono_ms)
    }

    /// Puts on disk what is copied, and its names.
    ///
    /// # Errors
    /// The copy is to be removed then.
    pub fn sync(&mut self) -> Result<(), LogError> {
        self.log.sync_now()
    }

    /// Copies what is left, with the original locked, and takes over what else is known of it. Syncs nothing.
    ///
    /// # Errors
    /// The copy is to be removed then.
    pub fn catch_up(&mut self, original: &Log, mono_ms: u64) -> Result<(), CopyError> {
        original.check_running()?;
        while let Some(plan) = self.next(original)? {
            self.copy(plan, mono_ms)?;
        }
        if self.log.log_end != original.log_end {
            return Err(CopyError::Damaged(original.log_end));
        }
        let log = &mut self.log;
        log.log_start = original.log_start;
        log.follow_log_end = original.follow_log_end;
        log.high_watermark = original.high_watermark;
        log.maintained_end = original.maintained_end;
        log.epoch_checkpoint.note(log.epochs != original.epochs);
        log.epochs = original.epochs.clone();
        // The original also knows producers whose batches are gone.
        log.producers = original.producers.clone();
        log.producer_share.set(log.producers.len());
        log.snapshot_offset = None;
        Ok(())
    }

    /// Makes the copy, as it was caught up last, durable with all that a restart needs of it. Waits for the disk; the
    /// original may go on.
    ///
    /// # Errors
    /// The copy is to be removed then.
    pub fn make_durable(&mut self) -> Result<(), CopyError> {
        self.log.write_epochs()?;
        self.log.write_snapshot()?;
        self.sync()?;
        self.note_checkpoints().map_err(LogError::io("write the checkpoints in", self.log.dir.path()))?;
        Ok(())
    }

    /// Returns true if the leader epochs and the log start that [`make_durable`](Self::make_durable) wrote are still those of
    /// the original. Only records may have followed.
    pub fn is_current(&self, original: &Log) -> bool {
        self.log.log_start == original.log_start && self.log.epochs == original.epochs
    }

    /// Copies what is left and takes the original's place, with that locked: its directory is named `-delete` and is
    /// removed from `due_mono_ms` on. Syncs nothing, so that nothing that is appended from now on, or was since
    /// [`make_durable`](Self::make_durable), may count as durable until [`TakenOver`] has ended.
    ///
    /// # Errors
    /// See [`TakeOverError`].
    ///
    /// # Panics
    /// When the copy is not [current](Self::is_current).
    pub fn take_over(
        mut self,
        original: &mut Log,
        mono_ms: u64,
        due_mono_ms: u64,
    ) -> Result<TakenOver, TakeOverError> {
        assert!(self.is_current(original), "what was made durable is of another moment");
        self.catch_up(original, mono_ms).map_err(TakeOverError::Aborted)?;
        let from = original.dir.clone();
        let retired = from.retire(&original.partition, due_mono_ms).map_err(failing(&from, original.path()));
        retired.map_err(|error| match error.fault() {
            Some(fault) if fault.is_temporary() => TakeOverError::Aborted(CopyError::Log(error)),
            _ => TakeOverError::Broken(error),
        })?;
        // A producer that waits for the coordinator's confirmation appends to this log.
        self.log.verifications = std::mem::take(&mut original.verifications);
        Ok(TakenOver { original: std::mem::replace(original, self.log) })
    }

    /// Does a whole take-over in one call. The original comes back.
    #[cfg(test)]
    pub(crate) fn take_over_at_once(
        mut self,
        original: &mut Log,
        mono_ms: u64,
    ) -> Result<Log, TakeOverError> {
        self.catch_up(original, mono_ms).map_err(TakeOverError::Aborted)?;
        self.make_durable().map_err(TakeOverError::Aborted)?;
        let to = self.dir().clone();
        let taken = self.take_over(original, mono_ms, 0)?;
        taken.sync_retired().map_err(TakeOverError::Broken)?;
        taken.name(original).map_err(TakeOverError::Broken)?;
        taken.sync_named(&to).map_err(TakeOverError::Broken)?;
        Ok(taken.into_original())
    }

    /// Log start and recovery point, durably: by the latter a start believes the snapshot of the producers. Written by this
    /// thread, since another writer of the checkpoint may wait for the partition's lock.
    fn note_checkpoints(&self) -> io::Result<()> {
        let (log, checkpoints) = (&self.log, self.log.dir.checkpoints());
        log.note_checkpoints(log.durable_end);
        if let Some(compacted) = self.compacted {
            checkpoints.cleaner.set(&log.partition, compacted);
        }
        checkpoints.log_start.write()?;
        checkpoints.recovery_point.write()
    }
}

/// A take-over of which the names are not durable yet. Its steps in this order; [`crate::placement`] has why.
#[derive(Debug)]
#[must_use = "without its end the next start has to finish it"]
pub struct TakenOver {
    original: Log,
}

impl TakenOver {
    /// Makes durable that the original is out of service. Waits for the disk, and needs no lock.
    ///
    /// # Errors
    /// After a shortage ([`StorageFault::is_temporary`]) nothing has happened, and it is to be tried again. Otherwise it is not known
    /// which of the two has the partition's name: see [`TakeOverError::Broken`].
    pub fn sync_retired(&self) -> Result<(), LogError> {
        let from = &self.original.dir;
        from.storage().sync_dir(from.path()).map_err(failing(from, self.original.path()))
    }

    /// Gives the log the partition's name, with it locked.
    ///
    /// # Errors
    /// As [`sync_retired`](Self::sync_retired).
    pub fn name(&self, log: &mut Log) -> Result<(), LogError> {
        let path = log.dir.name_future(log.path(), &log.partition).map_err(failing(&log.dir, log.path()))?;
        log.note_renamed(path);
        Ok(())
    }

    /// Makes that name durable. Waits for the disk, and needs no lock. From now on what is synced is durable. The checkpoints of
    /// the original's log directory have to forget it yet ([`LogDir::forget`]).
    ///
    /// # Errors
    /// As [`sync_retired`](Self::sync_retired).
    pub fn sync_named(&self, to: &LogDir) -> Result<(), LogError> {
        to.storage().sync_dir(to.path()).map_err(failing(to, to.path()))
    }

    /// The original, when all is done.
    pub fn into_original(self) -> Log {
        self.original
    }
}

/// A directory that cannot rename what is in it is of no use any more, except where that is for want of space or handles.
fn failing<'a>(dir: &'a LogDir, path: &'a Path) -> impl FnOnce(io::Error) -> LogError + 'a {
    move |source| {
        match StorageFault::of(&source).is_temporary() {
            true => dir.note_error(&source),
            false => dir.fail(&source),
        }
        LogError::Io { action: "rename", path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests;
