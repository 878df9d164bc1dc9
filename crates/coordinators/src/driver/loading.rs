//! Loading and unloading of partitions of the coordinator's topic, when this node becomes or stops to be their leader.
//!
//! A partition is loaded in two steps. First it is read, which takes as long as its log is. Then it is served as soon as the read records
//! are committed: decisions must not depend on a record that a power cut or another leader may remove. Mostly they are committed by then.
//! If not, no thread waits: a partition without a majority holds up no other one.

#[cfg(test)]
mod tests;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use mainstem_coordination::groups::LogEntry;
use mainstem_coordination::writes;
use mainstem_log::VerificationGuard;
use mainstem_records::LeaderEpoch;
use mainstem_runtime::clock::Now;
use mainstem_runtime::sync;
use mainstem_runtime::worker::Job;
use mainstem_store::partition::{Durable, Partition};
use mainstem_store::replay::{Checksums, Entry};
use mainstem_wire::ErrorCode;

use super::{Coordinator, Core, Driver, whole_or_over};

/// Time of a simulation between two steps of a load, at most.
const STEP_MAX: Duration = Duration::from_millis(20);

/// Runs the second step of a load that has to wait. It is called on the thread that learns whether the read records are committed; it is
/// dropped uncalled if the node stops before.
pub type RunServing = Box<dyn FnOnce(Job) + Send>;

/// A partition that is being loaded.
pub(super) struct Load {
    partition: Arc<Partition>,
    /// The epoch in which this node leads it.
    epoch: Result<LeaderEpoch, ErrorCode>,
    /// The number of this load.
    number: u64,
}

impl<C: Coordinator> Core<C> {
    /// Unloads a partition, loaded or still loading.
    pub(super) fn unload_one(&mut self, now: Now, partition: i32) {
        self.loads.remove(&partition);
        self.machine.unload(now, partition);
    }
}

impl<C: Coordinator> Driver<C> {
    /// Unloads partitions that were deleted, or cannot be used.
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

    /// Loads one partition that this node has begun to lead. Returns when it is read, and served if all of it is committed by then. If not,
    /// `run_serving` gets the rest when that is known. A partition is not served if it was unloaded or loaded again meanwhile, or has
    /// another leader.
    pub fn load_one(&self, partition: &Arc<Partition>, run_serving: RunServing) {
        let load = self.begin_load(partition);
        sync::pass_time(STEP_MAX);
        self.read(load, run_serving);
    }

    /// Loads partitions that are not served yet. If one cannot be read, the others are served. Waits until each is served or unloaded, or
    /// the node stops.
    pub fn load(&self, partitions: &[Arc<Partition>]) {
        self.set_partition_count(partitions.len());
        let (sender, served) = mpsc::channel::<()>();
        for partition in partitions {
            let sender = sender.clone();
            self.load_one(
                partition,
                Box::new(move |serve| {
                    serve();
                    drop(sender);
                }),
            );
        }
        drop(sender);
        // It ends with the last sender.
        served.into_iter().for_each(drop);
    }

    /// Begins to load a partition: from now on requests get COORDINATOR_LOAD_IN_PROGRESS.
    pub(super) fn begin_load(&self, partition: &Arc<Partition>) -> Load {
        let (partition, epoch) = (partition.clone(), partition.lead(LeaderEpoch::NONE));
        let taken_over_in = epoch.unwrap_or(LeaderEpoch::ZERO);
        let mut core = self.lock();
        if core.loads.contains_key(&partition.index) {
            let now = self.clock().now();
            core.unload_one(now, partition.index);
        }
        core.machine.begin_load(partition.index, taken_over_in);
        core.epochs.insert(partition.index, taken_over_in);
        core.last_load += 1;
        let number = core.last_load;
        core.loads.insert(partition.index, number);
        Load { partition, epoch, number }
    }

    /// Reads a partition, and serves it when the read records are committed.
    pub(super) fn read(&self, load: Load, run_serving: RunServing) {
        // A partition that is half loaded would stay so.
        let _whole = whole_or_over();
        let Load { partition, epoch, number } = load;
        let index = partition.index;
        let read = epoch.and_then(|epoch| {
            self.replay(&partition)?;
            sync::pass_time(STEP_MAX);
            // After the replay, so that no read record is left out.
            Ok((epoch, partition.ends()?.log_end))
        });
        let (epoch, upto) = match read {
            Ok((epoch, upto)) => match Self::fate(&partition, upto, epoch) {
                None => (epoch, upto),
                Some(fate) => return self.end_load(index, number, fate),
            },
            Err(error) => return self.end_load(index, number, Err(error)),
        };
        let own = self.own.clone();
        let on_committed = move |fate: Result<(), ErrorCode>| {
            run_serving(Box::new(move || {
                // Nothing is served if the node is gone.
                if let Some(driver) = own.upgrade() {
                    driver.end_load(index, number, fate);
                }
            }));
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
    fn end_load(&self, partition: i32, number: u64, fate: Result<(), ErrorCode>) {
        let mut core = self.lock();
        if core.loads.get(&partition) != Some(&number) {
            return;
        }
        let now = self.clock().now();
        match writes::without_min_insync(fate) {
            Ok(()) => {
                core.loads.remove(&partition);
                core.machine.finish_load(now, partition);
            }
            Err(_) => core.unload_one(now, partition),
        }
        self.carry_out(core, VerificationGuard::NONE);
    }

    /// Replays a partition.
    ///
    /// # Errors
    /// When not all of it can be read.
    fn replay(&self, partition: &Partition) -> Result<(), ErrorCode> {
        let (now, index, topic) = (self.clock().now(), partition.index, C::TOPIC);
        let mut malformed = 0;
        let replayed = partition.replay(Checksums::Unread, |entry| {
            if let Some(entry) = keyed(entry) {
                malformed += self.lock().machine.load(now, index, entry);
            }
        });
        if malformed > 0 {
            #[cfg(feature = "sim")]
            self.note_fault(&format!("{malformed} records of {topic} do not decode"));
            tracing::error!(partition = index, malformed, "{topic} has records that do not decode");
        }
        // An error of the partition itself: it is offline, or was deleted.
        replayed?.map_err(|error| {
            tracing::error!(
                "partition {topic}-{index} cannot be read: {error}; repair or move away its directory, then start \
                 again; until then what it coordinates is not served"
            );
            ErrorCode::KAFKA_STORAGE_ERROR
        })
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
