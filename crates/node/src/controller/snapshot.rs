//! The metadata's snapshots where one node has them alone: the newest is loaded before the log is replayed, the next one is
//! written when the log has grown by enough, and then the log before it goes. Those of a cluster are in `node_snapshots.rs`.
//!
//! A crash at any point leaves a snapshot and all of the log since: the snapshot is durable with its name before the log
//! start moves, and the log start before a segment goes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstem_config::MetadataLogConfig;
use mainstem_controller::MetadataStateMachine;
use mainstem_controller::snapshot_format::{QuorumRecords, SnapshotRecord, decode, encode};
use mainstem_log::Log;
use mainstem_records::LeaderEpoch;
use mainstem_replication::snapshots::SnapshotFile;
use mainstem_wire::ErrorCode;
use parking_lot::Mutex;

use super::{Controller, ControllerError, FIRST_METADATA_EPOCH};
use crate::controller::snapshots::read_bytes;
use mainstem_runtime::clock::Clock;
use mainstem_store::partition::Durable;
use mainstem_store::replay::{Checksums, Entry, replay};

/// Records that the log has got since the last snapshot.
pub(crate) struct SinceSnapshot {
    /// End offset of that snapshot.
    end_offset: i64,
    /// Bytes of records.
    bytes: u64,
    /// When that one was written, or this process started.
    at: Instant,
    /// Wall time of the last record, in milliseconds.
    last_timestamp: i64,
}

impl SinceSnapshot {
    /// Starts to count behind a snapshot that ends at `end_offset`, or without one (0).
    pub(crate) fn new(end_offset: i64, clock: &Clock) -> Self {
        SinceSnapshot { end_offset, bytes: 0, at: clock.instant(), last_timestamp: clock.wall_ms() }
    }

    /// Counts records that were appended, or applied.
    pub(crate) fn count(&mut self, bytes: usize, timestamp: i64) {
        self.bytes += bytes as u64;
        self.last_timestamp = timestamp;
    }

    /// Restarts the count, since a snapshot of what was counted so far is about to be written. Returns the time of the last record,
    /// in milliseconds.
    pub(crate) fn restart(&mut self, now: Instant) -> i64 {
        (self.bytes, self.at) = (0, now);
        self.last_timestamp
    }

    /// There is a snapshot that ends here.
    pub(crate) fn note_end(&mut self, end_offset: i64) {
        self.end_offset = self.end_offset.max(end_offset);
    }

    pub(crate) fn is_due(&self, next_offset: i64, limits: &MetadataLogConfig, now: Instant) -> bool {
        let interval = Some(limits.max_snapshot_interval_ms).filter(|ms| *ms > 0).map(Duration::from_millis);
        let is_old = interval.is_some_and(|interval| now.saturating_duration_since(self.at) >= interval);
        next_offset > self.end_offset && (is_old || self.bytes >= limits.max_record_bytes_between_snapshots)
    }
}

/// Numbers of snapshots, for the metrics.
#[derive(Debug)]
pub struct SnapshotCounts {
    /// Bytes of the one that this node has written last, or that it began with; 0: none.
    written_bytes: AtomicU64,
    /// When that was, or this process started.
    written_at: Mutex<Instant>,
    /// Snapshots that were loaded since this process started.
    loaded: AtomicU64,
    clock: Clock,
}

impl SnapshotCounts {
    /// Numbers of a start that has loaded a snapshot of `loaded_bytes`, or none.
    pub(crate) fn new(loaded_bytes: Option<usize>, clock: Clock) -> Self {
        SnapshotCounts {
            written_bytes: AtomicU64::new(loaded_bytes.unwrap_or(0) as u64),
            written_at: Mutex::new(clock.instant()),
            loaded: AtomicU64::new(u64::from(loaded_bytes.is_some())),
            clock,
        }
    }

    pub(crate) fn note_written(&self, bytes: usize) {
        self.written_bytes.store(bytes as u64, Ordering::Relaxed);
        *self.written_at.lock() = self.clock.instant();
    }

    pub(crate) fn note_loaded(&self) {
        self.loaded.fetch_add(1, Ordering::Relaxed);
    }

    /// Bytes of the snapshot that was written last, the milliseconds since then or since the start, and how many were loaded.
    pub fn get(&self) -> (u64, u64, u64) {
        let age = self.clock.elapsed(*self.written_at.lock());
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        (self.written_bytes.load(Ordering::Relaxed), age_ms, self.loaded.load(Ordering::Relaxed))
    }
}

/// Why a snapshot could not be written or used.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error("cannot write {0}: {1}")]
    Io(PathBuf, std::io::Error),
    #[error("the log before it could not be removed: {0}")]
    Log(ErrorCode),
    #[error("old segments could not be removed: {0}")]
    Maintain(#[from] mainstem_log::LogError),
}

/// Results of loading the metadata's files, beside the records.
pub(crate) struct Loaded {
    /// Records that the log has got since the snapshot.
    pub(crate) since: SinceSnapshot,
    /// Records of the quorum in them.
    pub(crate) quorum: QuorumRecords,
    /// The leader epoch of the last record: what is appended has this one at least, or Kafka would cut off what has a
    /// higher one.
    pub(crate) epoch: i32,
    /// Bytes of the snapshot, if there is one.
    pub(crate) snapshot_bytes: Option<usize>,
}

/// Brings a state machine to the log's end: by the newest snapshot, then by the records since.
pub(crate) fn load(
    log: &Log,
    machine: &mut MetadataStateMachine,
    clock: &Clock,
) -> Result<Loaded, ControllerError> {
    let storage = &**log.dir().storage();
    let unlisted = |error: std::io::Error| ControllerError::Snapshot {
        path: log.path().to_owned(),
        source: error.into(),
    };
    let newest = SnapshotFile::list(storage, log.path()).map_err(unlisted)?.pop();
    let end_offset = newest.as_ref().map_or(0, |snapshot| snapshot.end_offset);
    let ends = log.ends();
    if !(ends.log_start..=ends.log_end).contains(&end_offset) {
        return Err(ControllerError::MetadataGap { ends: (ends.log_start, ends.log_end), end_offset });
    }
    let snapshot_epoch = newest.as_ref().map(|snapshot| snapshot.epoch);
    let latest = log.leader_epochs().latest().map(LeaderEpoch::get);
    let epoch = latest.max(snapshot_epoch).unwrap_or(0).max(FIRST_METADATA_EPOCH);
    let (mut failed, mut quorum, mut snapshot_bytes) = (None, QuorumRecords::default(), None);
    if let Some(snapshot) = newest {
        let bytes = read_bytes(&snapshot, storage).map_err(|error| ControllerError::Snapshot {
            path: snapshot.path.clone(),
            source: error.into(),
        })?;
        load_bytes(&snapshot, &bytes, machine, &mut quorum)?;
        snapshot_bytes = Some(bytes.len());
    }
    let mut since = SinceSnapshot::new(end_offset, clock);
    replay(log, Checksums::Verified, |entry| {
        if let Entry::Control { kind, value } = &entry {
            quorum.note(*kind, value);
        }
        let Entry::Record { record, .. } = entry else { return };
        let value = record.value.filter(|_| failed.is_none() && record.offset >= end_offset);
        if let Some(value) = value {
            failed = machine.replay(record.offset, value).err();
            since.count(value.len(), record.timestamp);
        }
    })?;
    machine.skip_to(ends.log_end);
    failed.map_or(Ok(Loaded { since, quorum, epoch, snapshot_bytes }), |error| Err(error.into()))
}

/// Loads a snapshot, whose bytes these are, into a state machine that knows nothing.
///
/// # Errors
/// When it is damaged, or says what cannot be.
pub(crate) fn load_bytes(
    snapshot: &SnapshotFile,
    bytes: &[u8],
    machine: &mut MetadataStateMachine,
    quorum: &mut QuorumRecords,
) -> Result<(), ControllerError> {
    let mut failed = None;
    let decoded = decode(bytes, |record| match record {
        SnapshotRecord::Control(kind, value) => quorum.note(kind, value),
        SnapshotRecord::Metadata(value) if failed.is_none() => {
            failed = machine.load(snapshot.end_offset, value).err();
        }
        SnapshotRecord::Metadata(_) => {}
    });
    decoded
        .map_err(|source| ControllerError::Snapshot { path: snapshot.path.clone(), source: source.into() })?;
    if let Some(error) = failed {
        return Err(error.into());
    }
    machine.skip_to(snapshot.end_offset);
    Ok(())
}

impl Controller {
    /// Writes a snapshot if the log has grown by enough since the last one. What fails is tried again when it is due
    /// the next time.
    pub fn snapshot_if_due(&self, clock: &Clock, limits: &MetadataLogConfig) {
        if self.is_replicated() {
            // A thread of its own does that.
            return;
        }
        let next_offset = self.image().next_offset();
        if !self.since_snapshot.lock().is_due(next_offset, limits, clock.instant()) {
            return;
        }
        match self.snapshot(clock) {
            Ok(()) => tracing::info!(end_offset = next_offset, "a snapshot of the metadata was written"),
            Err(error) => tracing::error!("a snapshot of the metadata: {error}"),
        }
    }

    fn snapshot(&self, clock: &Clock) -> Result<(), WriteError> {
        let last_timestamp = self.since_snapshot.lock().restart(clock.instant());
        // A copy, so that no change waits for the disk.
        let image = self.image().clone();
        let end_offset = image.next_offset();
        let (dir, path) = self.log.place().map_err(WriteError::Log)?;
        let storage = &**dir.storage();
        let file = SnapshotFile::new(&path, end_offset, self.epoch);
        let bytes = encode(&self.quorum, image.snapshot(), last_timestamp, clock.wall_ms());
        let failed = |error| WriteError::Io(file.path.clone(), error);
        file.write(storage, &bytes).map_err(failed)?;
        self.since_snapshot.lock().note_end(end_offset);
        self.snapshot_counts.note_written(bytes.len());
        self.give_up_log_before(end_offset).map_err(WriteError::Log)?;
        self.log.maintain(clock)?;
        file.remove_others(storage).map_err(failed)
    }

    /// Moves the log start, and waits until a restart will remember it.
    fn give_up_log_before(&self, offset: i64) -> Result<(), ErrorCode> {
        let (sender, durable) = mainstem_runtime::sync::channel();
        let tell = move |result| {
            // The receiver waits below for as long as it takes.
            let _ = sender.send(result);
        };
        self.log.delete_records_before(offset, Durable::Call(Box::new(tell)))?;
        durable.recv().unwrap_or(Err(ErrorCode::KAFKA_STORAGE_ERROR))
    }
}
