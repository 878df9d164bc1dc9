//! Opening of a log. The state in which the directory was left decides what is checked, repaired and rebuilt.
//!
//! - in order: files are trusted, but their sizes must make sense and the last segment must end with a batch;
//! - killed, same boot: what was written is there. The last segment's headers are walked, checksums verified behind
//!   its last index entry, a torn tail cut;
//! - other boot: every segment that reaches behind the recovery point is read and its checksums verified behind that
//!   point; the first batch that is not whole ends the log.
//!
//! Indexes, epochs and producer state of walked segments are derived again. Deleted segments are removed, or stay for other
//! replicas ([`Log::open_replica`]).

use crate::aborted::RecentAborted;
use crate::append::create_segment_files;
use crate::config::LogConfig;
use crate::dir::{LastStop, LogDir};
use crate::epoch_checkpoint::EpochCheckpoint;
use crate::error::LogError;
use crate::export::Held;
use crate::files::{FileKind, PartitionFiles};
use crate::flush::FlushState;
use crate::flusher::FlushWork;
use crate::index::Entry;
use crate::inventory::{FoundSegment, Inventory};
use crate::leader_epochs::LeaderEpochs;
use crate::log::{Active, Log, PartitionIdentity, read_epochs};
use crate::maintenance::{Deletions, Generation};
use crate::offset_index::OffsetEntry;
use crate::partition_dir::TopicPartition;
use crate::partition_metadata::{PARTITION_METADATA, read_topic_id, write_topic_id};
use crate::producer_budget::ProducerShare;
use crate::producer_state::ProducerState;
use crate::recent::RecentBatches;
use crate::recovery_watch::RecoveryWatch;
use crate::segment::Segment;
use crate::storage::{Advice, OpenMode, read_exact_at};
use crate::transaction_index;
use crate::truncate::{remove_segment_files, reopen_active};
use crate::verification::Verifications;
use crate::walk::{SegmentWalk, Trust, Walked};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

mod deleted;

/// The findings and the work of an opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The way in which the last process left the directory.
    pub last_stop: LastStop,
    /// Segments whose batches were walked.
    pub segments_walked: usize,
    /// Bytes of the segments that were walked.
    pub bytes_walked: u64,
    /// Bytes that were no whole batch, and what followed them in the same segment.
    pub bytes_cut: u64,
    /// Segments behind a cut, or without content where there must be some.
    pub segments_dropped: usize,
    /// Index files that were rebuilt, beside those of walked segments.
    pub indexes_rebuilt: usize,
    /// The log was left unclean and had records, or turns out to be another one than was left in order. Readers may be ahead
    /// of it, so its leader epoch has to be raised (KIP-320).
    pub raise_leader_epoch: bool,
    /// There was no directory. If the partition had one before, `raise_leader_epoch` counts as well.
    pub created: bool,
}

impl Recovery {
    fn new(last_stop: LastStop) -> Recovery {
        Recovery {
            last_stop,
            segments_walked: 0,
            bytes_walked: 0,
            bytes_cut: 0,
            segments_dropped: 0,
            indexes_rebuilt: 0,
            raise_leader_epoch: false,
            created: false,
        }
    }
}

/// The state in which a partition's directory was left.
pub(crate) struct Left {
    pub(crate) last_stop: LastStop,
    pub(crate) recovery_point: i64,
    pub(crate) noted_start: i64,
    /// Segments before the log start stay, since other replicas may lack them.
    pub(crate) keeps_deleted: bool,
    /// The directory's checkpoints are of another log of the partition, and stay as they are.
    pub(crate) keeps_noted: bool,
    /// Watches the recovery in the place of the directory's watch.
    pub(crate) watch: Option<Arc<RecoveryWatch>>,
    /// Names that the first flush has to sync.
    pub(crate) names: FlushWork,
}

impl Log {
    /// Opens a partition's log, and creates it if it does not exist. The high watermark is the log end and follows it,
    /// until [`Log::hold_high_watermark`].
    ///
    /// # Errors
    /// When the files cannot be used. The directory then does not count as left in order at its next stop, unless the
    /// partition is opened or set aside before.
    pub fn open(
        dir: &Arc<LogDir>,
        identity: &PartitionIdentity,
        config: Arc<LogConfig>,
        mono_ms: u64,
    ) -> Result<(Log, Recovery), LogError> {
        Log::open_with(dir, identity, config, mono_ms, false)
    }

    /// As [`Log::open`], for the log of a replica. Segments before the log start stay until maintenance removes them, as in a
    /// process that runs, because other replicas may lack their records.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub fn open_replica(
        dir: &Arc<LogDir>,
        identity: &PartitionIdentity,
        config: Arc<LogConfig>,
        mono_ms: u64,
    ) -> Result<(Log, Recovery), LogError> {
        Log::open_with(dir, identity, config, mono_ms, true)
    }

    fn open_with(
        dir: &Arc<LogDir>,
        identity: &PartitionIdentity,
        config: Arc<LogConfig>,
        mono_ms: u64,
        keeps_deleted: bool,
    ) -> Result<(Log, Recovery), LogError> {
        let opened = Log::try_open(dir, identity, config, mono_ms, keeps_deleted);
        dir.note_opened(&identity.topic_partition(), opened.is_ok());
        opened.inspect_err(|error| dir.note_failure(error))
    }

    fn try_open(
        dir: &Arc<LogDir>,
        identity: &PartitionIdentity,
        config: Arc<LogConfig>,
        mono_ms: u64,
        keeps_deleted: bool,
    ) -> Result<(Log, Recovery), LogError> {
        let partition = identity.topic_partition();
        dir.check_segments(&partition)?;
        let PartitionDirectory { path, names, created } = PartitionDirectory::open(dir, identity)?;
        let noted = |offset: Option<i64>| offset.unwrap_or(0).max(0);
        let left = Left {
            last_stop: dir.last_stop(),
            recovery_point: noted(dir.checkpoints().recovery_point.get(&partition)),
            noted_start: noted(dir.checkpoints().log_start.get(&partition)),
            keeps_deleted,
            keeps_noted: false,
            watch: None,
            names,
        };
        let (log, report) = Log::open_in(dir, path, partition, config, left, mono_ms)?;
        Ok((log, Recovery { created, ..report }))
    }

    /// Opens the log in an existing directory, whatever its name.
    pub(crate) fn open_in(
        dir: &Arc<LogDir>,
        path: PathBuf,
        partition: TopicPartition,
        config: Arc<LogConfig>,
        left: Left,
        mono_ms: u64,
    ) -> Result<(Log, Recovery), LogError> {
        let files = PartitionFiles {
            storage: dir.storage().clone(),
            descriptors: dir.descriptors().clone(),
            dir: Arc::from(path),
        };
        let mut opening = Opening {
            files: &files,
            config: &config,
            watch: left.watch.as_deref().unwrap_or(dir.recovery_watch()),
            last_stop: left.last_stop,
            recovery_point: left.recovery_point,
            noted_start: left.noted_start,
            keeps_deleted: left.keeps_deleted,
            mono_ms,
            epochs: LeaderEpochs::default(),
            epochs_lost: false,
            rebuild_from: i64::MAX,
            flush: FlushState::new(left.names),
            report: Recovery::new(left.last_stop),
        };
        let noted_epochs = read_epochs(&files)?;
        let opened = opening.run(noted_epochs.clone())?;
        let (flush, epochs, rebuild_from) = (opening.flush, opening.epochs, opening.rebuild_from);
        let report = opening.report;
        let mut log = Log {
            dir: dir.clone(),
            config: config.clone(),
            segments: opened.segments,
            active: opened.active,
            recent: RecentBatches::default(),
            aborted: RecentAborted::default(),
            log_start: opened.log_start,
            log_end: opened.log_end,
            durable_end: opened.durable_end,
            high_watermark: opened.log_end,
            follow_log_end: true,
            epoch_checkpoint: EpochCheckpoint::new(files.clone(), noted_epochs.unwrap_or_default() != epochs),
            epochs,
            producers: ProducerState::default(),
            producer_share: ProducerShare::new(dir.producer_budget().clone()),
            refused_producers: false,
            verifications: Verifications::default(),
            snapshot_offset: None,
            flush,
            committed_output: None,
            deletions: Deletions::default(),
            exported: Held::default(),
            maintained_end: opened.log_end,
            generation: Generation::default(),
            stopped: None,
            cut: None,
            seed: partition_seed(&partition.to_string()),
            partition,
            files,
        };
        log.reload_producers(rebuild_from, mono_ms)?;
        log.note_unsynced(report.last_stop)?;
        log.lower_checkpoints(left.keeps_noted)?;
        Ok((log, report))
    }
}

impl Log {
    /// A truncation that was interrupted has cut the log before it noted so.
    fn lower_checkpoints(&mut self, keeps_noted: bool) -> Result<(), LogError> {
        if keeps_noted {
            return Ok(());
        }
        self.lower_recovery_point(self.log_end)?;
        self.lower_noted()
    }

    /// A process that was killed may not have synced the snapshot that is built upon, nor the transaction indexes: what was
    /// added to them, and what was cut off.
    fn note_unsynced(&mut self, last_stop: LastStop) -> Result<(), LogError> {
        if self.durable_end < self.log_end
            && let Some(offset) = self.snapshot_offset
        {
            self.flush.add_file(self.files.open(offset, FileKind::Snapshot)?);
        }
        if !matches!(last_stop, LastStop::UncleanSameBoot | LastStop::UncleanOtherBoot) {
            return Ok(());
        }
        for segment in &self.segments[self.segment_of(self.durable_end)..] {
            let path = self.files.path(segment.base_offset, FileKind::TransactionIndex);
            match self.files.storage.open(&path, OpenMode::ReadWrite) {
                Ok(file) => self.flush.add_file(file),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(LogError::io("open", path)(error)),
            }
        }
        Ok(())
    }
}

/// The directory of a partition.
struct PartitionDirectory {
    path: PathBuf,
    /// Names that the first flush has to sync.
    names: FlushWork,
    /// The directory did not exist.
    created: bool,
}

impl PartitionDirectory {
    /// Opens the directory, and creates it if it does not exist.
    fn open(dir: &Arc<LogDir>, identity: &PartitionIdentity) -> Result<PartitionDirectory, LogError> {
        let partition = identity.topic_partition();
        let path = dir.partition_path(&partition);
        let storage = &**dir.storage();
        if !storage.exists(&path).map_err(LogError::io("look for", &*path))? {
            let made = dir.create_partition(&partition, &identity.topic_id);
            let (path, names) = made.map_err(LogError::io("create", path))?;
            return Ok(PartitionDirectory { path, names, created: true });
        }
        let found = read_topic_id(storage, &path).map_err(LogError::io("read the topic id in", &*path))?;
        let mut names = FlushWork::default();
        match found {
            Some(id) if id == identity.topic_id => {
                if matches!(dir.last_stop(), LastStop::UncleanSameBoot | LastStop::UncleanOtherBoot) {
                    // A process that was killed may not have synced it.
                    let file = path.join(PARTITION_METADATA);
                    let opened = storage.open(&file, OpenMode::ReadWrite);
                    names.files.push(opened.map_err(LogError::io("open", file))?);
                }
            }
            Some(_) => return Err(LogError::OtherTopic { path }),
            None => {
                // A power cut right after the creation leaves a directory without it.
                let written = write_topic_id(storage, &path, &identity.topic_id);
                names.files.push(written.map_err(LogError::io("write the topic id in", &*path))?);
                names.directories.push(Arc::from(&*path));
            }
        }
        Ok(PartitionDirectory { path, names, created: false })
    }
}

/// FNV-1a: any number does that differs between partitions.
fn partition_seed(name: &str) -> u64 {
    name.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// A log that is being opened.
struct Opening<'a> {
    files: &'a PartitionFiles,
    config: &'a LogConfig,
    watch: &'a RecoveryWatch,
    last_stop: LastStop,
    recovery_point: i64,
    noted_start: i64,
    keeps_deleted: bool,
    mono_ms: u64,
    epochs: LeaderEpochs,
    /// The checkpoint of the epochs is missing: every segment is walked.
    epochs_lost: bool,
    /// Transaction indexes of segments from this offset on are rebuilt, whatever snapshot the producers' state begins with.
    rebuild_from: i64,
    flush: FlushState,
    report: Recovery,
}

/// The result of an opening.
struct Opened {
    segments: Vec<Segment>,
    active: Active,
    log_start: i64,
    log_end: i64,
    durable_end: i64,
}

impl Opening<'_> {
    fn run(&mut self, noted_epochs: Option<LeaderEpochs>) -> Result<Opened, LogError> {
        let found = Inventory::take(self.files)?;
        let has_records = found.segments.iter().any(|segment| segment.log_bytes > 0);
        // They follow the log start at once, which is noted only as far as the log lasts: a power cut may leave a log that begins before.
        let is_unclean =
            |stop: LastStop| matches!(stop, LastStop::UncleanSameBoot | LastStop::UncleanOtherBoot);
        let begins = found.segments.first().map_or(0, |first| first.base_offset).max(self.noted_start);
        let begin_behind =
            |epochs: &LeaderEpochs| epochs.entries().first().is_some_and(|first| first.start_offset > begins);
        let noted_epochs =
            noted_epochs.filter(|epochs| !(is_unclean(self.last_stop) && begin_behind(epochs)));
        self.epochs_lost = noted_epochs.is_none() && has_records;
        self.epochs = noted_epochs.unwrap_or_default();
        let opened = match self.attempt(&found) {
            // It was not left as it was taken for. Rather check too much than believe a marker that lies.
            Err(LogError::Damaged { path, position, reason })
                if self.last_stop != LastStop::UncleanOtherBoot =>
            {
                tracing::warn!(path = %path.display(), position, reason, "a segment is not as it was left");
                self.last_stop = LastStop::UncleanOtherBoot;
                self.attempt(&found)
            }
            result => result,
        }?;
        let unclean = is_unclean(self.last_stop);
        let is_shorter = self.recovery_point > opened.log_end;
        let is_lost = found.segments.is_empty() && self.recovery_point > 0;
        self.report.raise_leader_epoch = (unclean && has_records) || is_shorter || is_lost;
        self.epochs.truncate_from_end(opened.log_end);
        self.epochs.truncate_from_start(opened.log_start);
        Ok(opened)
    }

    fn attempt(&mut self, found: &Inventory) -> Result<Opened, LogError> {
        self.report = Recovery::new(self.last_stop);
        self.rebuild_from = i64::MAX;
        let kept = self.drop_deleted(&found.segments)?;
        let mut segments = self.load(kept)?;
        if self.last_stop == LastStop::UncleanOtherBoot {
            // They may be of records that were cut off since, and the names came back.
            self.remove_snapshots(found, self.recovery_point)?;
        }
        let Some(last) = segments.last_mut() else { return self.start_empty(found, self.recovery_point) };
        let file = self.files.open(last.base_offset, FileKind::Log)?;
        let (active, log_end) = reopen_active(self.files, last, file, self.mono_ms)?;
        if log_end < self.noted_start {
            // Records were deleted up to here; those that followed never reached the disk.
            for segment in segments.iter().rev() {
                remove_segment_files(self.files, segment.base_offset)?;
            }
            self.files.sync_dir()?;
            return self.start_empty(found, self.noted_start);
        }
        let durable_end = match self.last_stop {
            LastStop::New | LastStop::Clean => log_end,
            LastStop::UncleanSameBoot | LastStop::UncleanOtherBoot => {
                // A start that was killed may have removed segments: a power cut must not bring them back among what is
                // appended from here on.
                self.files.sync_dir()?;
                self.note_unsynced(&segments)?;
                // A cut, this one's or one that a crash has interrupted, may not be on disk.
                self.flush.add_file(active.file.clone());
                // With many partitions the files that are open for that alone are not to stay so.
                self.flush.note_due();
                self.recovery_point.min(log_end)
            }
        };
        let log_start = segments[0].base_offset.max(self.noted_start);
        Ok(Opened { segments, active, log_start, log_end, durable_end })
    }

    /// Creates a log without records. Offsets that were used before are not used again.
    fn start_empty(&mut self, found: &Inventory, offset: i64) -> Result<Opened, LogError> {
        let offset = offset.max(self.noted_start);
        self.remove_snapshots(found, -1)?;
        let file = create_segment_files(self.files, offset)?;
        self.flush.add_directory(&self.files.dir);
        Ok(Opened {
            segments: vec![Segment::empty(offset)],
            active: Active::new(file, self.mono_ms),
            log_start: offset,
            log_end: offset,
            durable_end: offset,
        })
    }

    /// Takes the segments in order; what has to be walked is walked, and ends where it is torn.
    fn load(&mut self, found: &[FoundSegment]) -> Result<Vec<Segment>, LogError> {
        let first_suspect = self.first_suspect(found);
        let mut segments: Vec<Segment> = Vec::with_capacity(found.len());
        let mut end = None;
        for (number, this) in found.iter().enumerate() {
            if end.is_some_and(|end| this.base_offset < end) {
                self.drop_overlapping(this)?;
                continue;
            }
            let suspect = number >= first_suspect;
            let next = found.get(number + 1).map(|next| next.base_offset);
            if !self.transaction_index_fits(this, next)? {
                self.rebuild_from = self.rebuild_from.min(this.base_offset);
            }
            if !suspect && !self.epochs_lost && this.indexes_fit() {
                segments.push(this.trusted());
                end = None;
                continue;
            }
            let walked = self.walk(this, suspect)?;
            end = Some(walked.end);
            segments.push(walked.segment);
            // Where the next one begins at the end, it is whole: what was cut was never part of the log.
            let is_torn = walked.bytes_cut > 0 && next != Some(walked.end);
            if is_torn || (suspect && self.is_gap(walked.end, next)) {
                self.drop_all(&found[number + 1..])?;
                break;
            }
        }
        Ok(segments)
    }

    /// Returns true if the transaction index can be trusted for records before the producer snapshot. A segment whose other
    /// indexes are missing has replaced others, whose transaction indexes were removed with them.
    fn transaction_index_fits(&self, found: &FoundSegment, next: Option<i64>) -> Result<bool, LogError> {
        if !found.indexes_fit() {
            return Ok(false);
        }
        let bytes = found.transaction_index_bytes;
        if bytes == 0 {
            return Ok(true);
        }
        let (base_offset, kind) = (found.base_offset, FileKind::TransactionIndex);
        let path = || self.files.path(base_offset, kind);
        let file = self.files.storage.open(&path(), OpenMode::Read).map_err(LogError::io("open", path()))?;
        let end = next.unwrap_or(i64::MAX);
        let fits = transaction_index::makes_sense(&*file, bytes, base_offset, end);
        let fits = fits.map_err(LogError::io("read", path()))?;
        if !fits {
            tracing::warn!(path = %path().display(), "a transaction index is rebuilt from the log");
        }
        Ok(fits)
    }

    /// The first segment that may be torn.
    fn first_suspect(&self, found: &[FoundSegment]) -> usize {
        match self.last_stop {
            LastStop::New | LastStop::Clean => found.len(),
            // The last one that was written to; an empty one behind it was just begun.
            LastStop::UncleanSameBoot => {
                found.iter().rposition(|segment| segment.log_bytes > 0).unwrap_or_default()
            }
            LastStop::UncleanOtherBoot => {
                // A segment that ends at the recovery point may have been written to behind it. A batch that a full disk refused was
                // cut off again, and no sync was due to make the cut durable.
                let ends = found.iter().skip(1).map(|next| next.base_offset);
                ends.take_while(|end| *end < self.recovery_point).count()
            }
        }
    }

    /// Returns true if records are missing between two segments, and no sync had covered them.
    fn is_gap(&self, end: i64, next: Option<i64>) -> bool {
        self.last_stop == LastStop::UncleanOtherBoot
            && next.is_some_and(|next| next > end && next > self.recovery_point)
    }

    fn walk(&mut self, found: &FoundSegment, suspect: bool) -> Result<Walked, LogError> {
        let trust = match self.last_stop {
            LastStop::UncleanSameBoot if suspect => Trust::until_position(self.last_indexed(found)?),
            LastStop::UncleanOtherBoot if suspect => Trust::until_offset(self.recovery_point),
            _ => Trust::whole(),
        };
        if suspect && self.last_stop == LastStop::UncleanOtherBoot {
            // Under the same boot this is what a failed sync leaves: pages that count as clean and are not on disk.
            // What is believed has to come from the disk.
            self.files.open(found.base_offset, FileKind::Log)?.advise(Advice::DontNeed, 0, 0);
        }
        let walk = SegmentWalk {
            files: self.files,
            found,
            trust,
            index_interval: self.config.index_interval_bytes,
            watch: self.watch,
        };
        let walked = walk.run(&mut self.epochs)?;
        self.report.segments_walked += 1;
        self.report.bytes_walked += found.log_bytes;
        self.report.bytes_cut += walked.bytes_cut;
        self.report.indexes_rebuilt += usize::from(!found.indexes_fit());
        if walked.bytes_cut > 0 {
            let (dir, bytes) = (self.files.dir.display(), walked.bytes_cut);
            tracing::warn!(%dir, log_end = walked.end, bytes, "a torn tail is cut");
        }
        Ok(walked)
    }

    /// The position in the last entry of an offset index; 0 when there is none that makes sense.
    fn last_indexed(&self, found: &FoundSegment) -> Result<u64, LogError> {
        let entries = found.index_bytes.unwrap_or_default() / OffsetEntry::BYTES as u64;
        let Some(last) = entries.checked_sub(1) else { return Ok(0) };
        let mut bytes = [0; OffsetEntry::BYTES];
        let index = self.files.open(found.base_offset, FileKind::Index)?;
        let path = self.files.path(found.base_offset, FileKind::Index);
        read_exact_at(&*index, &mut bytes, last * OffsetEntry::BYTES as u64)
            .map_err(LogError::io("read", path))?;
        let position = u64::from(OffsetEntry::decode(&bytes).position);
        Ok(if position < found.log_bytes { position } else { 0 })
    }

    /// An empty segment within another one is left from a roll that failed. Anything else is not ours to repair.
    fn drop_overlapping(&mut self, found: &FoundSegment) -> Result<(), LogError> {
        if found.log_bytes > 0 {
            let path = self.files.path(found.base_offset, FileKind::Log);
            return Err(LogError::Damaged { path, position: 0, reason: "it overlaps the segment before" });
        }
        self.drop_all(std::slice::from_ref(found))
    }

    fn drop_all(&mut self, found: &[FoundSegment]) -> Result<(), LogError> {
        // The last one first: a crash must not leave a gap.
        for segment in found.iter().rev() {
            tracing::warn!(dir = %self.files.dir.display(), base_offset = segment.base_offset, "a segment is dropped");
            remove_segment_files(self.files, segment.base_offset)?;
            self.report.segments_dropped += 1;
        }
        // Before anything is appended under their offsets.
        if found.is_empty() { Ok(()) } else { self.files.sync_dir() }
    }

    fn remove_snapshots(&self, found: &Inventory, behind: i64) -> Result<(), LogError> {
        let mut behind_it = found.snapshots.iter().filter(|offset| **offset > behind);
        behind_it.try_for_each(|offset| self.files.remove(*offset, FileKind::Snapshot))
    }

    /// Adds everything behind the recovery point to the next flush, and what is cut off at it.
    fn note_unsynced(&mut self, segments: &[Segment]) -> Result<(), LogError> {
        for pair in segments.windows(2) {
            if pair[1].base_offset >= self.recovery_point {
                for kind in [FileKind::Log, FileKind::Index, FileKind::TimeIndex] {
                    self.flush.add_file(self.files.open(pair[0].base_offset, kind)?);
                }
            }
        }
        self.flush.add_directory(&self.files.dir);
        Ok(())
    }
}
