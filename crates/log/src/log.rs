//! One partition's log: what it consists of, its ends, and how it is opened and closed.
//!
//! Every change goes through `&mut self`; the caller serialises. Append returns offsets; that they are durable, or
//! readable by consumers, is set later and from outside ([`Log::flushed`], [`Log::set_high_watermark`]). Time is
//! given by the caller: monotonic for ages and delays, wall time only where records' timestamps are compared with it.

mod invariants;

use crate::aborted::RecentAborted;
use crate::config::LogConfig;
use crate::dir::LogDir;
use crate::epoch_checkpoint::EpochCheckpoint;
use crate::error::LogError;
use crate::export::Held;
use crate::files::{FileKind, PartitionFiles};
use crate::flush::FlushState;
use crate::leader_epochs::{CHECKPOINT_BYTES_MAX, EpochEnd, LEADER_EPOCH_CHECKPOINT, LeaderEpochs};
use crate::maintenance::{Deletions, Generation};
use crate::partition_dir::TopicPartition;
use crate::producer_budget::ProducerShare;
use crate::producer_snapshot;
use crate::producer_state::ProducerState;
use crate::recent::RecentBatches;
use crate::segment::Segment;
use crate::storage::{StorageFault, StorageFile, write_all_at};
use crate::truncate::Cut;
use crate::verification::Verifications;
use mainstem_records::LeaderEpoch;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The partition of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionIdentity {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The topic's id: a topic that was deleted and created again by the same name has another one.
    pub topic_id: [u8; 16],
    /// The partition's number.
    pub partition: i32,
}

impl PartitionIdentity {
    /// The partition by name.
    pub fn topic_partition(&self) -> TopicPartition {
        TopicPartition { topic: self.topic.clone(), partition: self.partition }
    }
}

/// The offsets at which a log starts and ends. `log_start <= high_watermark <= log_end`, `durable_end <= log_end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// First offset that may be read.
    pub log_start: i64,
    /// First offset that is on this disk; differs from `log_start` with tiered storage only.
    pub local_log_start: i64,
    /// The next record's offset.
    pub log_end: i64,
    /// Everything before it is on disk.
    pub durable_end: i64,
    /// Consumers may read the records before it.
    pub high_watermark: i64,
    /// Consumers with `read_committed` may read the records before it. From here on transactions may be open.
    /// It moves with appends, markers, the high watermark and the log start. Callers may compare it before and after each.
    pub last_stable: i64,
}

/// The active segment's file, and what decides when the next segment is due.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) file: Arc<dyn StorageFile>,
    pub(crate) bytes_since_index: u32,
    /// Timestamp of the first batch; `None` while the segment is empty.
    pub(crate) first_timestamp: Option<i64>,
    /// The time at which the first batch was appended, or the segment was opened.
    pub(crate) started_mono_ms: u64,
    /// Timestamp of the last entry in the time index; -1: none.
    pub(crate) last_time_entry: i64,
    /// Bytes behind the segment's end have to be cut before the next append: a failed write left them.
    pub(crate) needs_cut: bool,
    /// The index files were written to since they were synced.
    pub(crate) indexes_unsynced: bool,
    /// The transaction index, if it was written to since it was synced.
    pub(crate) transaction_index: Option<Arc<dyn StorageFile>>,
}

impl Active {
    /// An empty active segment.
    pub(crate) fn new(file: Arc<dyn StorageFile>, mono_ms: u64) -> Active {
        Active {
            file,
            bytes_since_index: 0,
            first_timestamp: None,
            started_mono_ms: mono_ms,
            last_time_entry: -1,
            needs_cut: false,
            indexes_unsynced: true,
            transaction_index: None,
        }
    }
}

/// One partition on disk.
pub struct Log {
    pub(crate) dir: Arc<LogDir>,
    pub(crate) partition: TopicPartition,
    pub(crate) config: Arc<LogConfig>,
    pub(crate) files: PartitionFiles,
    /// In the order of their offsets; never empty, the last one is active.
    pub(crate) segments: Vec<Segment>,
    pub(crate) active: Active,
    pub(crate) recent: RecentBatches,
    pub(crate) aborted: RecentAborted,
    pub(crate) log_start: i64,
    pub(crate) log_end: i64,
    pub(crate) durable_end: i64,
    pub(crate) high_watermark: i64,
    pub(crate) follow_log_end: bool,
    pub(crate) epochs: LeaderEpochs,
    pub(crate) epoch_checkpoint: EpochCheckpoint,
    pub(crate) producers: ProducerState,
    pub(crate) producer_share: ProducerShare,
    /// A refusal of a producer was logged. Further ones are not, until producers expire.
    pub(crate) refused_producers: bool,
    pub(crate) verifications: Verifications,
    /// The newest snapshot of the producers is of this offset.
    pub(crate) snapshot_offset: Option<i64>,
    pub(crate) flush: FlushState,
    /// Base offset of the output of a compaction that has the names which survive a crash, and is not read from yet.
    pub(crate) committed_output: Option<i64>,
    pub(crate) deletions: Deletions,
    /// The hold of an export on the files.
    pub(crate) exported: Held,
    /// The log end when it was maintained last.
    pub(crate) maintained_end: i64,
    pub(crate) generation: Generation,
    pub(crate) stopped: Option<String>,
    /// A truncation that a shortage has interrupted.
    pub(crate) cut: Option<Cut>,
    /// Spreads what should not happen in all partitions at once.
    pub(crate) seed: u64,
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log")
            .field("partition", &self.partition)
            .field("ends", &self.ends())
            .finish_non_exhaustive()
    }
}

impl Log {
    /// The partition.
    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// The partition's directory.
    pub fn path(&self) -> &Path {
        &self.files.dir
    }

    /// Returns true if an operator has accepted that something of it is gone, by an empty file `accept-loss` in its directory. That counts once:
    /// the file is gone for good on return. Blocks on the disk.
    ///
    /// # Errors
    /// When the file cannot be looked for or removed.
    pub fn takes_accepted_loss(&self) -> Result<bool, LogError> {
        self.dir.takes_acceptance(&self.files.dir)
    }

    /// The log directory that it is in.
    pub fn dir(&self) -> &Arc<LogDir> {
        &self.dir
    }

    /// The configuration in force.
    pub fn config(&self) -> &Arc<LogConfig> {
        &self.config
    }

    /// Changes the configuration; it holds from the next append or [`Log::maintain`] on.
    pub fn set_config(&mut self, config: Arc<LogConfig>) {
        self.config = config;
    }

    /// The offsets at which the log starts and ends.
    pub fn ends(&self) -> Ends {
        Ends {
            log_start: self.log_start,
            local_log_start: self.log_start,
            log_end: self.log_end,
            durable_end: self.durable_end,
            high_watermark: self.high_watermark,
            last_stable: self.last_stable(),
        }
    }

    /// A transaction that began before the log start is unstable from there on.
    pub(crate) fn last_stable(&self) -> i64 {
        self.producers.first_unstable().max(self.log_start).min(self.high_watermark)
    }

    /// Raises the high watermark, at most to the log end. A lower offset than the present one was delayed on its way, and is
    /// ignored. Returns true if the high watermark moved.
    pub fn set_high_watermark(&mut self, offset: i64) -> bool {
        let raised = offset.min(self.log_end).max(self.high_watermark);
        self.producers.settle_before(raised);
        std::mem::replace(&mut self.high_watermark, raised) != raised
    }

    /// Sets whether the high watermark follows the log end by itself, as with one replica. After opening it does.
    pub fn follow_log_end(&mut self, follow: bool) {
        self.follow_log_end = follow;
        if follow {
            self.high_watermark = self.log_end;
            self.producers.settle_before(self.log_end);
        }
    }

    /// Lets the high watermark move only by [`Log::set_high_watermark`]. It begins at `offset`: that of the replication
    /// checkpoint, or the log start if nothing is known. If producers are known, the records behind it are read once more,
    /// because transactions may have ended there.
    ///
    /// # Errors
    /// Records or snapshots that cannot be read. It has to be done again before the log is used.
    pub fn hold_high_watermark(&mut self, offset: i64) -> Result<(), LogError> {
        self.follow_log_end = false;
        self.high_watermark = offset.clamp(self.log_start, self.log_end);
        self.reload_unreplicated().inspect_err(|error| self.dir.note_failure(error))
    }

    /// Bytes of all segments.
    pub fn size(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.len)).sum()
    }

    /// The number of segments, the active one included.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// The epochs under which records were appended.
    pub fn leader_epochs(&self) -> &LeaderEpochs {
        &self.epochs
    }

    /// The end offset of a leader epoch, for OffsetForLeaderEpoch.
    pub fn end_offset_for_epoch(&self, epoch: LeaderEpoch) -> EpochEnd {
        self.epochs.end_offset_for(epoch, self.log_end)
    }

    /// The state of the producers. State above the high watermark is provisional: truncation undoes it.
    pub fn producer_state(&self) -> &ProducerState {
        &self.producers
    }

    /// The reason for which the partition is stopped: a sync or a write failed for another reason than a full disk. For good.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    /// The reason for which nothing is read or written now; `None`: it is.
    #[inline]
    pub(crate) fn refusal(&self) -> Option<&str> {
        if self.stopped.is_none() && self.cut.is_none() { None } else { self.found_refusal() }
    }

    #[cold]
    fn found_refusal(&self) -> Option<&str> {
        let cut_short = self.cut.map(|_| "a truncation waits for space, descriptors or memory");
        self.stopped.as_deref().or(cut_short)
    }

    pub(crate) fn check_running(&self) -> Result<(), LogError> {
        match self.refusal() {
            Some(reason) => Err(LogError::Stopped(reason.to_owned())),
            None => Ok(()),
        }
    }

    pub(crate) fn check_not_stopped(&self) -> Result<(), LogError> {
        match &self.stopped {
            Some(reason) => Err(LogError::Stopped(reason.clone())),
            None => Ok(()),
        }
    }

    /// Stops the partition for good.
    pub(crate) fn stop(&mut self, reason: &dyn fmt::Display) {
        if self.stopped.is_none() {
            tracing::error!(partition = %self.partition, %reason, "the partition stops");
            self.stopped = Some(reason.to_string());
        }
    }

    /// Stops the partition because what was written to it did not arrive; unless that was for want of something, the whole
    /// directory is not to be trusted.
    pub(crate) fn fail_medium(&mut self, error: &io::Error) {
        self.stop(error);
        match StorageFault::of(error).is_temporary() {
            true => self.dir.note_error(error),
            false => self.dir.fail(error),
        }
    }

    pub(crate) fn active_segment(&self) -> &Segment {
        self.segments.last().expect("a log has a segment at all times")
    }

    /// Index of the segment that holds an offset at or behind the first segment's.
    pub(crate) fn segment_of(&self, offset: i64) -> usize {
        self.segments.partition_point(|segment| segment.base_offset <= offset).saturating_sub(1)
    }

    /// Notes that the partition's directory has another name.
    pub(crate) fn note_renamed(&mut self, path: PathBuf) {
        let epochs_unwritten = self.epochs_to_write().is_some();
        self.files.dir = Arc::from(path);
        // They know their files by name.
        self.epoch_checkpoint = EpochCheckpoint::new(self.files.clone(), epochs_unwritten);
        self.segments.iter_mut().for_each(|segment| segment.close_cached());
        self.flush.note_renamed(&self.files.dir);
    }

    /// Makes the checkpoint of the epochs durable, if they changed.
    pub(crate) fn write_epochs(&self) -> Result<(), LogError> {
        self.epochs_to_write().map_or(Ok(()), |epochs| epochs.write())
    }

    /// Writes the producers' state as of the log end, unless that snapshot exists already.
    pub(crate) fn write_snapshot(&mut self) -> Result<(), LogError> {
        if self.snapshot_offset == Some(self.log_end) {
            return Ok(());
        }
        let file = self.files.open(self.log_end, FileKind::Snapshot)?;
        let bytes = producer_snapshot::encode(&self.producers);
        file.set_len(bytes.len() as u64)
            .and_then(|()| write_all_at(&*file, &bytes, 0))
            .map_err(LogError::io("write", self.files.path(self.log_end, FileKind::Snapshot)))?;
        self.snapshot_offset = Some(self.log_end);
        self.flush.add_file(file);
        self.flush.add_directory(&self.files.dir);
        Ok(())
    }

    /// Writes the index entries of the active segment that are in memory.
    pub(crate) fn write_indexes(&mut self) -> Result<(), LogError> {
        let segment = self.segments.last_mut().expect("a log has a segment at all times");
        let base_offset = segment.base_offset;
        if !segment.offsets.pending().is_empty() {
            let written = segment.offsets.write_pending(&*self.files.open(base_offset, FileKind::Index)?);
            written.map_err(LogError::io("write", self.files.path(base_offset, FileKind::Index)))?;
            self.active.indexes_unsynced = true;
        }
        if !segment.times.pending().is_empty() {
            let written = segment.times.write_pending(&*self.files.open(base_offset, FileKind::TimeIndex)?);
            written.map_err(LogError::io("write", self.files.path(base_offset, FileKind::TimeIndex)))?;
            self.active.indexes_unsynced = true;
        }
        Ok(())
    }

    /// Writes the indexes as those of a closed segment, whose last time entry is the largest timestamp. From here on
    /// they are trusted, so they are synced with the next flush.
    pub(crate) fn seal_indexes(&mut self) -> Result<(), LogError> {
        let segment = self.segments.last_mut().expect("a log has a segment at all times");
        let base_offset = segment.base_offset;
        segment.push_time(&mut self.active.last_time_entry);
        self.write_indexes()?;
        if self.active.indexes_unsynced {
            self.flush.add_file(self.files.open(base_offset, FileKind::Index)?);
            self.flush.add_file(self.files.open(base_offset, FileKind::TimeIndex)?);
            self.active.indexes_unsynced = false;
        }
        Ok(())
    }

    /// Writes everything that a clean stop leaves: indexes, epochs, producer state. What has to be synced then is in
    /// the next [`Log::flush_work`], so that many logs can be synced together; [`Log::close`] follows.
    pub fn prepare_close(&mut self) -> Result<(), LogError> {
        self.check_running()?;
        self.seal_indexes()?;
        self.write_epochs()?;
        self.write_snapshot()
    }

    /// Closes the log in order: all is written and synced, and the recovery point noted in the directory's
    /// checkpoint (not written: [`LogDir::stop_clean`] does that).
    pub fn close(mut self) -> Result<(), LogError> {
        self.prepare_close()?;
        self.sync_now()?;
        self.note_checkpoints(self.durable_end);
        let lengths = self.segments.iter().map(|segment| (segment.base_offset, u64::from(segment.len)));
        self.dir.note_segments(&self.partition, lengths.collect());
        Ok(())
    }

    /// Makes everything durable that was appended until now, and lets go of the files that waited for it. A [`Log::flush_work`] that is
    /// in progress ends as if this had not been.
    ///
    /// # Errors
    /// The system's. The log is stopped then, except where a directory could not be opened for want of handles: its sync
    /// was not asked for, and the next call does it.
    pub fn sync_now(&mut self) -> Result<(), LogError> {
        let under_way = self.flush.suspend();
        let synced = self.sync_work_now();
        if self.stopped.is_none() {
            self.flush.resume(under_way);
        }
        synced
    }

    fn sync_work_now(&mut self) -> Result<(), LogError> {
        let work = self.flush_work();
        if let Err(source) = work.files.iter().try_for_each(|file| file.sync_data()) {
            self.failed(&source);
            return Err(LogError::Io { action: "sync", path: self.files.dir.to_path_buf(), source });
        }
        let storage = self.files.storage.clone();
        if let Err(source) = work.directories.iter().try_for_each(|dir| storage.sync_dir(dir)) {
            match StorageFault::of(&source) {
                StorageFault::NoHandles => self.flush.take_back(&work.directories),
                _ => self.failed(&source),
            }
            return Err(LogError::Io { action: "sync", path: self.files.dir.to_path_buf(), source });
        }
        self.flushed(work.upto);
        Ok(())
    }

    /// Notes recovery point and log start in the directory's checkpoints. Records before the recovery point, and the
    /// epochs under which they were appended, are durable.
    pub(crate) fn note_checkpoints(&self, recovery_point: i64) {
        let checkpoints = self.dir.checkpoints();
        // Only a truncation lowers it, durably: it compares with what is noted here, which the file must not exceed.
        if checkpoints.recovery_point.get(&self.partition).is_none_or(|noted| noted < recovery_point) {
            checkpoints.recovery_point.set(&self.partition, recovery_point);
        }
        if self.log_start > self.segments[0].base_offset
            || checkpoints.log_start.get(&self.partition).is_some()
        {
            self.note_log_start(self.segments[0].base_offset);
        }
    }

    /// Notes the log start in the directory's checkpoint. Segments are kept from `first` on. The log start of a replica is noted
    /// only as far as the log is durable. Otherwise, after a power cut, the log would begin again behind its durable end, at an
    /// offset for which its group has no entry. The group raises the log start again.
    pub(crate) fn note_log_start(&self, first: i64) {
        let noted = match self.follow_log_end {
            true => self.log_start,
            false => self.lasting_start(first),
        };
        self.dir.checkpoints().log_start.set(&self.partition, noted);
    }

    /// The base offset of the first segment. Other replicas may read from here on, also records before the log start.
    pub fn first_base_offset(&self) -> i64 {
        self.segments[0].base_offset
    }

    /// Returns true if the next start finds this log start, however the process ends: the first segment begins there, or the
    /// directory's checkpoint has it durably.
    pub fn is_log_start_durable(&self) -> bool {
        let written = || self.dir.checkpoints().log_start.written(&self.partition);
        self.log_start <= self.segments[0].base_offset
            || written().is_some_and(|written| written >= self.log_start)
    }

    /// The log start, or an earlier offset up to which the log is durable. A power cut never leaves the log end before it.
    pub fn lasting_log_start(&self) -> i64 {
        self.lasting_start(self.segments[0].base_offset)
    }

    fn lasting_start(&self, first: i64) -> i64 {
        let noted = self.dir.checkpoints().log_start.get(&self.partition).unwrap_or(0);
        self.durable_end.max(first).max(noted).min(self.log_start)
    }
}

/// Reads the checkpoint of the epochs; `None` when there is none or it makes no sense.
pub(crate) fn read_epochs(files: &PartitionFiles) -> Result<Option<LeaderEpochs>, LogError> {
    let path = files.dir.join(LEADER_EPOCH_CHECKPOINT);
    match crate::storage::read_small_file(&*files.storage, &path, CHECKPOINT_BYTES_MAX) {
        Ok(bytes) => match LeaderEpochs::decode(&bytes) {
            Ok(epochs) => Ok(Some(epochs)),
            Err(reason) => {
                tracing::warn!(path = %path.display(), reason, "an epoch checkpoint is rebuilt from the log");
                Ok(None)
            }
        },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LogError::io("read", path)(error)),
    }
}

#[cfg(test)]
mod fault_table;
#[cfg(test)]
mod faults;
#[cfg(test)]
pub(crate) mod kafka_tools;
#[cfg(test)]
mod maintaining;
#[cfg(test)]
mod replication;
#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod transactions;
