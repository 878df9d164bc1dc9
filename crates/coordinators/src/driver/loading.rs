//! Loading and unloading of partitions of the coordinator's topic, when this node becomes or stops to be their leader.
//!
//! A partition is loaded in two steps. First it is read, which takes as long as its log is. This is done on threads that load several
//! partitions at once, without the coordinator's lock; the partition that a request asked for is next. Then it is served as soon as the read
//! records are committed: decisions must not depend on a record that a power cut or another leader may remove. Mostly they are committed by
//! then. If not, no thread waits: a partition without a majority holds up no other one.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_coordination::groups::LogEntry;
use mainstem_coordination::writes;
use mainstem_log::VerificationGuard;
use mainstem_records::LeaderEpoch;
use mainstem_runtime::clock::Now;
use mainstem_runtime::keyed_workers::KeyedWorkers;
use mainstem_runtime::sync;
use mainstem_store::partition::{Durable, LogReplay, Partition};
use mainstem_store::replay::{Checksums, Entry};
use mainstem_wire::ErrorCode;

use super::{Coordinator, Core, Driver, whole_or_over};

/// Time of a simulation between two steps of a load, at most.
const STEP_MAX: Duration = Duration::from_millis(20);
/// Threads that load partitions.
const LOAD_THREADS: usize = 4;

/// Threads that load partitions of all coordinators of a node, by topic and partition.
pub type Loads = KeyedWorkers<(&'static str, i32)>;

/// The threads that load partitions, for the coordinators of a node. Each begins when there is something to load.
pub fn loads() -> Arc<Loads> {
    Arc::new(KeyedWorkers::new("coordinator-loading", LOAD_THREADS))
}

/// A load, as the coordinator knows it.
pub(super) struct Loading {
    number: u64,
    is_cancelled: Arc<AtomicBool>,
}

/// A partition that is being loaded.
pub(super) struct Load<C> {
    partition: Arc<Partition>,
    /// The epoch in which this node leads it.
    epoch: Result<LeaderEpoch, ErrorCode>,
    /// The number of this load.
    number: u64,
    /// The partition was unloaded, or is loaded again.
    is_cancelled: Arc<AtomicBool>,
    /// The monotonic time at which it began.
    begun_ms: u64,
    loader: C,
    /// Dropped with the load.
    _ended: Option<sync::Sender<()>>,
}

impl<C: Coordinator> Load<C> {
    fn key(&self) -> (&'static str, i32) {
        (C::TOPIC, self.partition.index)
    }
}

impl<C: Coordinator> Core<C> {
    /// Unloads a partition, loaded or still loading.
    pub(super) fn unload_one(&mut self, now: Now, partition: i32) {
        if let Some(loading) = self.loads.remove(&partition) {
            loading.is_cancelled.store(true, Ordering::Relaxed);
        }
        self.machine.unload(now, partition);
    }
}

impl<C: Coordinator> Driver<C> {
    /// Unloads partitions that were deleted, cannot be used, or have another leader.
    pub fn unload(&self, partitions: &[Arc<Partition>]) {
        let mut core = self.lock();
        let now = self.clock().now();
        partitions.iter().for_each(|partition| core.unload_one(now, partition.index));
        self.carry_out(core, VerificationGuard::NONE);
    }

    /// Sets the number of partitions of the coordinator's topic, of which none is served yet.
    pub fn set_partition_count(&self, partitions: usize) {
        if let Ok(count @ 1..) = i32::try_from(partitions) {
            self.lock().machine.set_partition_count(count);
        }
    }

    /// Loads a partition that this node has begun to lead, and serves it when it is read and all of it is committed. From now on requests
    /// get COORDINATOR_LOAD_IN_PROGRESS. A partition is not served if it is unloaded or loaded again meanwhile, or has another leader.
    pub fn take_over(&self, partition: &Arc<Partition>) {
        let load = self.begin_load(partition, None);
        self.queue_load(load);
    }

    /// Loads partitions that are not served yet. If one cannot be read, the others are served. Waits until each is served or unloaded, or
    /// the node stops.
    pub fn load(&self, partitions: &[Arc<Partition>]) {
        self.set_partition_count(partitions.len());
        let (sender, ended) = sync::channel::<()>();
        for partition in partitions {
            self.queue_load(self.begin_load(partition, Some(sender.clone())));
        }
        drop(sender);
        // It ends with the last sender.
        ended.for_each(drop);
    }

    /// The longest time from the takeover of a partition until it was served, in ms, of the last 30 s to 60 s: Kafka's
    /// `partition-load-time-max`.
    pub fn load_time_max_ms(&self) -> u64 {
        self.core.lock().load_times.max_ms(self.clock().mono_ms())
    }

    /// Begins to load a partition.
    fn begin_load(&self, partition: &Arc<Partition>, ended: Option<sync::Sender<()>>) -> Load<C> {
        let (partition, epoch) = (partition.clone(), partition.lead(LeaderEpoch::NONE));
        let taken_over_in = epoch.unwrap_or(LeaderEpoch::ZERO);
        let mut core = self.lock();
        if core.loads.contains_key(&partition.index) {
            let now = self.clock().now();
            core.unload_one(now, partition.index);
        }
        let loader = core.machine.begin_load(partition.index, taken_over_in);
        core.epochs.insert(partition.index, taken_over_in);
        core.last_load += 1;
        let (number, is_cancelled) = (core.last_load, Arc::<AtomicBool>::default());
        core.loads.insert(partition.index, Loading { number, is_cancelled: is_cancelled.clone() });
        let begun_ms = self.clock().mono_ms();
        Load { partition, epoch, number, is_cancelled, begun_ms, loader, _ended: ended }
    }

    fn queue_load(&self, load: Load<C>) {
        let (own, key) = (self.own.clone(), load.key());
        let read = move || {
            if let Some(driver) = own.upgrade() {
                sync::pass_time(STEP_MAX);
                driver.read(load);
            }
        };
        self.loads.run(key, Box::new(read));
    }

    /// Reads a partition, and serves it when the read records are committed.
    fn read(&self, mut load: Load<C>) {
        // A partition that is half loaded would stay so.
        let _whole = whole_or_over();
        let read = load.epoch.and_then(|epoch| {
            self.replay(&mut load)?;
            sync::pass_time(STEP_MAX);
            // After the replay, so that no read record is left out.
            Ok((epoch, load.partition.ends()?.log_end))
        });
        let (epoch, upto) = match read {
            Ok((epoch, upto)) => match Self::fate(&load.partition, upto, epoch) {
                None => (epoch, upto),
                Some(fate) => return self.end_load(load, fate),
            },
            Err(error) => return self.end_load(load, Err(error)),
        };
        let (own, key, partition) = (self.own.clone(), load.key(), load.partition.clone());
        let on_committed = move |fate: Result<(), ErrorCode>| {
            // Nothing is served if the node is gone. The thread that learns it has more to do.
            let Some(driver) = own.upgrade() else { return };
            let of_job = own.clone();
            let serve = move || {
                if let Some(driver) = of_job.upgrade() {
                    driver.end_load(load, fate);
                }
            };
            driver.loads.run_soon(key, Box::new(serve));
        };
        partition.when_committed(upto, epoch, Durable::Call(Box::new(on_committed)));
    }

    /// The outcome of the records of a partition up to an offset; `None`: it is not known yet.
    fn fate(partition: &Partition, upto: i64, epoch: LeaderEpoch) -> Option<Result<(), ErrorCode>> {
        if partition.settings().write_caching && !partition.is_replicated() {
            return Some(Ok(()));
        }
        match partition.commit_fate(upto, epoch) {
            Err(ErrorCode::REQUEST_TIMED_OUT) => None,
            fate => Some(fate),
        }
    }

    /// Serves a partition that was read, or unloads it. Does nothing if it was unloaded since, or is being loaded again.
    fn end_load(&self, load: Load<C>, fate: Result<(), ErrorCode>) {
        let (partition, now) = (load.partition.index, self.clock().now());
        let mut core = self.lock();
        if core.loads.get(&partition).is_none_or(|loading| loading.number != load.number) {
            // The loader is dropped without the lock.
            return drop(core);
        }
        match writes::without_min_insync(fate) {
            Ok(()) => {
                core.loads.remove(&partition);
                core.machine.finish_load(now, partition, load.loader);
                let took_ms = now.mono_ms.saturating_sub(load.begun_ms);
                core.load_times.add(now.mono_ms, took_ms);
                tracing::debug!(partition, took_ms, "a partition of {} is loaded", C::TOPIC);
            }
            Err(_) => core.unload_one(now, partition),
        }
        self.carry_out(core, VerificationGuard::NONE);
    }

    /// Replays a partition in its loader, for as long as it is wanted.
    ///
    /// # Errors
    /// When not all of it can be read.
    fn replay(&self, load: &mut Load<C>) -> Result<(), ErrorCode> {
        let (now, index, topic) = (self.clock().now(), load.partition.index, C::TOPIC);
        let mut malformed = 0;
        let mut replay = LogReplay::begin(&load.partition, Checksums::Unread);
        let replayed = loop {
            if load.is_cancelled.load(Ordering::Relaxed) {
                return Err(ErrorCode::NOT_COORDINATOR);
            }
            let piece = replay.next_piece(|entry| {
                if let Some(entry) = keyed(entry) {
                    malformed += load.loader.load(now, index, entry);
                }
            });
            match piece {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => break Ok(()),
                Ok(Err(error)) => break Err(error),
                // An error of the partition itself: it is offline, or was deleted.
                Err(error) => return Err(error),
            }
        };
        if malformed > 0 {
            #[cfg(feature = "sim")]
            self.note_fault(&format!("{malformed} records of {topic} do not decode"));
            tracing::error!(partition = index, malformed, "{topic} has records that do not decode");
        }
        replayed.map_err(|error| {
            // Another leader may have had the log cut while it was read.
            if load.partition.lead(LeaderEpoch::NONE) != load.epoch {
                return ErrorCode::NOT_COORDINATOR;
            }
            tracing::error!(
                "partition {topic}-{index} cannot be read: {error}; repair or move away its directory, then start \
                 again; until then what it coordinates is not served"
            );
            ErrorCode::KAFKA_STORAGE_ERROR
        })
    }

    /// Has the partition loaded next that a request was just refused for.
    pub(super) fn prefer_wanted(&self, core: &mut Core<C>) {
        if let Some(partition) = core.machine.take_wanted() {
            self.loads.prefer(&(C::TOPIC, partition));
        }
    }
}

/// The entry as the state machines of coordinators read it: their records have a key.
fn keyed(entry: Entry<'_>) -> Option<LogEntry<'_>> {
    match entry {
        Entry::Record { record, producer } => {
            let value = record.value;
            record.key.map(|key| LogEntry::Record { key, value, producer })
        }
        Entry::End(end) => Some(LogEntry::End(end)),
        Entry::Control { .. } => None,
    }
}
