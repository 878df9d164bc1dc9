//! Work that has to be done now and then: retention, rolling by age, expiry, due syncs, checkpoints, journals that have grown, removal
//! of what was deleted. One thread, since all of it may wait for the disk.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mainstem_log::LogError;
use mainstem_log::dir::LogDir;
use mainstem_log::storage::StorageFault;
use parking_lot::{Condvar, Mutex};

use crate::broker::Broker;
use crate::clock::Clock;
use crate::heap::Trimming;
use crate::storage::partition::Partition;
use crate::supervised::{self, Role};

/// How often it is looked whether something is due. `flush.ms` and `file.delete.delay.ms` are as exact as this.
const TICK: Duration = Duration::from_millis(500);

/// How often it is looked whether the key stores of listeners have changed, and what the log has to say of certificates and
/// denials.
const SECURITY_INTERVAL_MS: u64 = 10_000;

/// How often it is looked whether much memory was freed.
const TRIM_INTERVAL_MS: u64 = 2_000;

/// Interval between two looks whether an operator has deleted stray partitions.
const STRAYS_INTERVAL_MS: u64 = 60_000;

/// How often high watermarks are noted: Kafka's `replica.high.watermark.checkpoint.interval.ms`.
const HIGH_WATERMARK_INTERVAL_MS: u64 = 5_000;

/// The thread, and the way to end it.
pub(crate) struct Housekeeping {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Housekeeping {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub(crate) fn start(broker: Arc<Broker>) -> io::Result<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let own = stop.clone();
        let role = Role::Tidies("retention, due syncs and checkpoints are not done any more");
        let supervised = broker.clone();
        let thread = supervised::spawn(&supervised, "housekeeping", role, move || {
            let mut rounds = Rounds::new(&broker);
            loop {
                let (stopped, changed) = &*own;
                let mut stopped = stopped.lock();
                if !*stopped {
                    broker.clock.wait_for(changed, &mut stopped, TICK);
                }
                if *stopped {
                    return;
                }
                drop(stopped);
                rounds.run(&broker);
            }
        })?;
        Ok(Housekeeping { stop, thread })
    }

    /// Ends the thread after what it is doing.
    pub(crate) fn stop(self) {
        let (stopped, changed) = &*self.stop;
        *stopped.lock() = true;
        changed.notify_all();
        let _ = self.thread.join();
    }
}

/// Work with its interval.
struct Rounds {
    maintain: Every,
    expire_producers: Every,
    recovery_checkpoint: Every,
    log_start_checkpoint: Every,
    high_watermark_checkpoint: Every,
    security: Every,
    trim: Every,
    strays: Every,
    trimming: Trimming,
}

/// A point in time that comes again and again.
struct Every {
    interval: Duration,
    due: Instant,
}

impl Every {
    fn new(clock: &Clock, interval_ms: u64) -> Self {
        let interval = Duration::from_millis(interval_ms.max(1));
        Every { interval, due: clock.instant() + interval }
    }

    fn is_due(&mut self, now: Instant) -> bool {
        let due = self.due <= now;
        if due {
            self.due = now + self.interval;
        }
        due
    }
}

impl Rounds {
    fn new(broker: &Arc<Broker>) -> Self {
        let (clock, logs) = (&broker.clock, &broker.config().logs);
        Rounds {
            maintain: Every::new(clock, logs.retention_check_interval_ms),
            expire_producers: Every::new(clock, logs.producer_id_expiration_check_interval_ms),
            recovery_checkpoint: Every::new(clock, logs.recovery_checkpoint_interval_ms),
            log_start_checkpoint: Every::new(clock, logs.start_offset_checkpoint_interval_ms),
            high_watermark_checkpoint: Every::new(clock, HIGH_WATERMARK_INTERVAL_MS),
            security: Every::new(clock, SECURITY_INTERVAL_MS),
            trim: Every::new(clock, TRIM_INTERVAL_MS),
            strays: Every::new(clock, STRAYS_INTERVAL_MS),
            trimming: Trimming::default(),
        }
    }

    fn run(&mut self, broker: &Arc<Broker>) {
        let (now, mono_ms) = (broker.clock.instant(), broker.clock.mono_ms());
        let partitions = broker.partitions();
        if partitions.iter().any(|partition| partition.is_poisoned()) {
            // By a panic that could not be reported.
            broker.dir_alarm.ring();
        }
        partitions.iter().for_each(|partition| partition.flush_if_due(mono_ms));
        partitions.iter().for_each(|partition| write_epochs(partition));
        if let Some(cluster) = &broker.cluster {
            cluster.journals.rewrite_grown();
        }
        broker.controller.snapshot_if_due(&broker.clock, &broker.config().metadata_log);
        if self.maintain.is_due(now) {
            partitions.iter().for_each(|partition| maintain(broker, partition));
        }
        if self.security.is_due(now) {
            broker.security.look_after();
        }
        if self.trim.is_due(now) {
            self.trimming.look();
        }
        if self.expire_producers.is_due(now) {
            let forgotten: usize = partitions.iter().map(|one| one.expire_producers(&broker.clock)).sum();
            tracing::debug!(forgotten, "looked for idle producers");
        }
        let high_watermark = self.high_watermark_checkpoint.is_due(now);
        if high_watermark {
            partitions.iter().for_each(|partition| partition.note_high_watermark());
            broker.controller.log().note_high_watermark();
            if let Some(cluster) = &broker.cluster {
                cluster.journals.sync_promises();
            }
        }
        let (recovery, log_start) =
            (self.recovery_checkpoint.is_due(now), self.log_start_checkpoint.is_due(now));
        let strays = self.strays.is_due(now);
        for dir in broker.dirs.all().filter(|dir| dir.failure().is_none()) {
            dir.look_for_room(mono_ms);
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
                    && !is_told(dir, &error)
                {
                    tracing::warn!(dir = %dir.path().display(), "a checkpoint could not be written: {error}");
                }
            }
        }
    }
}

fn write_epochs(partition: &Partition) {
    let Err((dir, error)) = partition.write_epochs() else { return };
    if !matches!(&error, LogError::Io { source, .. } if is_told(&dir, source)) {
        let (topic, index) = (&partition.topic, partition.index);
        tracing::warn!(%topic, partition = index, "its leader epochs could not be written: {error}; it is tried again");
    }
}

/// Whether an error is that of a full disk, of which the directory tells once.
fn is_told(dir: &LogDir, error: &io::Error) -> bool {
    dir.note_error(error);
    StorageFault::of(error) == StorageFault::NoSpace
}

/// Kafka's retention task, for one partition; what fails there is that partition's.
fn maintain(broker: &Arc<Broker>, partition: &Partition) {
    let (topic, index) = (&partition.topic, partition.index);
    match partition.maintain(&broker.clock) {
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
