//! The store's share of what has to be done now and then: retention, rolling by age, expiry, due syncs, checkpoints, journals that have
//! grown, removal of deleted files.

use std::io;
use std::time::{Duration, Instant};

use mainstem_log::LogError;
use mainstem_log::dir::LogDir;
use mainstem_log::storage::StorageFault;

use crate::partition::Partition;
use crate::store::Store;
use mainstem_runtime::clock::Clock;

/// Interval between two looks whether an operator has deleted stray partitions.
const STRAYS_INTERVAL_MS: u64 = 60_000;

/// Interval at which high watermarks are noted: Kafka's `replica.high.watermark.checkpoint.interval.ms`.
const HIGH_WATERMARK_INTERVAL_MS: u64 = 5_000;

/// The level of `mainstem.version` from which groups agree on what may be compacted.
const LEVEL_OF_FLOORS: i16 = 2;

/// Work with its interval.
pub struct Upkeep {
    maintain: Every,
    propose_floors: Every,
    expire_producers: Every,
    recovery_checkpoint: Every,
    log_start_checkpoint: Every,
    high_watermark_checkpoint: Every,
    strays: Every,
}

/// A point in time that comes again and again.
pub struct Every {
    interval: Duration,
    due: Instant,
}

impl Every {
    /// Due for the first time after an interval.
    pub fn new(clock: &Clock, interval_ms: u64) -> Self {
        let interval = Duration::from_millis(interval_ms.max(1));
        Every { interval, due: clock.instant() + interval }
    }

    /// Returns true if it is due, once an interval.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.due <= now;
        if due {
            self.due = now + self.interval;
        }
        due
    }
}

impl Upkeep {
    /// Each kind of work is due for the first time after its interval.
    pub fn new(store: &Store) -> Self {
        let (clock, logs) = (&store.clock, &store.config().logs);
        Upkeep {
            maintain: Every::new(clock, logs.retention_check_interval_ms),
            propose_floors: Every::new(clock, store.config().cleaner.backoff_ms),
            expire_producers: Every::new(clock, logs.producer_id_expiration_check_interval_ms),
            recovery_checkpoint: Every::new(clock, logs.recovery_checkpoint_interval_ms),
            log_start_checkpoint: Every::new(clock, logs.start_offset_checkpoint_interval_ms),
            high_watermark_checkpoint: Every::new(clock, HIGH_WATERMARK_INTERVAL_MS),
            strays: Every::new(clock, STRAYS_INTERVAL_MS),
        }
    }

    /// Does what is due. The metadata log is looked after with the partitions where it is replicated.
    pub fn run(&mut self, store: &Store, metadata_log: &Partition) {
        let (now, mono_ms) = (store.clock.instant(), store.clock.mono_ms());
        let partitions = store.partitions();
        if partitions.iter().any(|partition| partition.is_poisoned()) {
            // By a panic that could not be reported.
            store.dir_alarm.ring();
        }
        partitions.iter().for_each(|partition| partition.flush_if_due(mono_ms));
        partitions.iter().for_each(|partition| write_epochs(partition));
        if let Some(peers) = &store.peers {
            peers.journals.rewrite_grown();
        }
        store.copies.tidy(store, mono_ms);
        if self.maintain.is_due(now) {
            partitions.iter().for_each(|partition| maintain(&store.clock, partition));
        }
        // An older release takes what precedes a floor for deleted where its log lacks it.
        let has_floors = store.peers.as_ref().is_some_and(|peers| peers.journals.level() >= LEVEL_OF_FLOORS);
        if self.propose_floors.is_due(now) && has_floors {
            partitions.iter().for_each(|partition| partition.propose_floor());
        }
        if self.expire_producers.is_due(now) {
            let forgotten: usize = partitions.iter().map(|one| one.expire_producers(&store.clock)).sum();
            tracing::debug!(forgotten, "looked for idle producers");
        }
        let high_watermark = self.high_watermark_checkpoint.is_due(now);
        if high_watermark {
            partitions.iter().for_each(|partition| partition.note_high_watermark());
            metadata_log.note_high_watermark();
            if let Some(peers) = &store.peers {
                peers.journals.sync_promises();
                peers.journals.raise_formats(mono_ms);
            }
        }
        let (recovery, log_start) =
            (self.recovery_checkpoint.is_due(now), self.log_start_checkpoint.is_due(now));
        let strays = self.strays.is_due(now);
        for dir in store.dirs.all().filter(|dir| dir.failure().is_none()) {
            dir.retry_after_disk_full(mono_ms);
            dir.remove_doomed(mono_ms);
            if strays {
                dir.recount_strays();
            }
            let checkpoints = dir.checkpoints();
            let due = [
                (recovery, &checkpoints.recovery_point),
                (log_start, &checkpoints.log_start),
                (high_watermark, &checkpoints.replication),
            ];
            for (_, checkpoint) in due.into_iter().filter(|(due, _)| *due) {
                if let Err(error) = checkpoint.write()
                    && !is_full_disk(dir, &error)
                {
                    tracing::warn!(dir = %dir.path().display(), "a checkpoint could not be written: {error}");
                }
            }
        }
    }
}

fn write_epochs(partition: &Partition) {
    let Err((dir, error)) = partition.write_epochs() else { return };
    if !matches!(&error, LogError::Io { source, .. } if is_full_disk(&dir, source)) {
        let (topic, index) = (&partition.topic, partition.index);
        tracing::warn!(%topic, partition = index, "its leader epochs could not be written: {error}; it is tried again");
    }
}

/// Returns true if an error is that of a full disk, which the directory reports once.
fn is_full_disk(dir: &LogDir, error: &io::Error) -> bool {
    dir.note_error(error);
    StorageFault::of(error) == StorageFault::NoSpace
}

/// Kafka's retention task, for one partition; what fails there is that partition's.
fn maintain(clock: &Clock, partition: &Partition) {
    let (topic, index) = (&partition.topic, partition.index);
    match partition.maintain(clock) {
        Ok(done) if done.segments_deleted > 0 => {
            tracing::info!(
                %topic,
                partition = index,
                segments = done.segments_deleted,
                bytes = done.bytes_deleted,
                "retention deleted segments"
            );
        }
        Ok(_) => {}
        Err(error) => {
            tracing::error!(%topic, partition = index, "the partition could not be maintained: {error}")
        }
    }
}
