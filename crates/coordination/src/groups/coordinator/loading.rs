//! Taking partitions over, and giving them up.
//!
//! A partition is replayed by a coordinator of its own, the loader, which has no other user: a long log holds up no request. When all of it
//! is replayed, the coordinator takes the loader's state for its own.

use mainstem_wire::ErrorCode;

use super::super::log::LogEntry;
use super::super::replay::{self, Replayed};
use super::super::served::{Partition, PartitionContext};
use super::GroupCoordinator;
use crate::time::Now;

impl GroupCoordinator {
    /// Begins to take over a partition. Returns its loader, which has the memory that is free here now. Until the partition is
    /// [served](Self::finish_load), requests get COORDINATOR_LOAD_IN_PROGRESS.
    ///
    /// # Panics
    /// If the partition is served or being loaded already.
    pub fn begin_load(&mut self, partition: i32) -> GroupCoordinator {
        let before = self.partitions.insert(partition, Partition::default());
        assert!(before.is_none(), "partition {partition} is loaded twice");
        let mut config = self.config.clone();
        config.memory_bytes_max = config.memory_bytes_max.saturating_sub(self.stats().bytes);
        let mut loader = GroupCoordinator::new(config);
        loader.partitions.insert(partition, Partition::default());
        loader
    }

    /// Replays the partition of a loader: its records and the ends of transactions in the order of the log, in as many calls as the driver
    /// likes. Records without a key are not group records and must be left out.
    pub fn load<'r>(
        &mut self,
        now: Now,
        partition: i32,
        entries: impl IntoIterator<Item = LogEntry<'r>>,
    ) -> Replayed {
        let mut replayed = Replayed::default();
        let Some(PartitionContext { service, groups, mut io }) = self.partition_context(now, partition)
        else {
            return replayed;
        };
        assert!(!service.loaded, "records of partition {partition} come too late");
        for entry in entries {
            replay::replay(groups, &mut io, entry, &mut replayed);
        }
        replayed
    }

    /// Serves a partition from now on, since its loader has all its records. Stable groups keep their members, whose sessions restart.
    ///
    /// # Panics
    /// If the partition is not being loaded.
    pub fn finish_load(&mut self, now: Now, partition: i32, loader: GroupCoordinator) {
        self.adopt(partition, loader);
        let mut context = self.partition_context(now, partition).expect("it is being loaded");
        context.service.loaded = true;
        replay::loaded(context.groups, &mut context.io);
        context.schedule_expiry();
    }

    /// Takes the state of a partition from its loader.
    fn adopt(&mut self, partition: i32, mut loader: GroupCoordinator) {
        let mut loaded = loader.partitions.remove(&partition).expect("the loader has the partition");
        let place = self.partitions.get_mut(&partition).expect("the partition is being loaded");
        assert!(!place.service.loaded && !loaded.service.loaded, "partition {partition} is served already");
        // Before all records are read, nothing has a time-out or waits.
        assert_eq!((loader.deadlines.next_ms(), loader.effects.len()), (None, 0), "a loader decides nothing");
        for group in loaded.groups.values_mut() {
            group.offsets.take_names(&mut self.topics);
            group.open_offsets.take_names(&mut self.topics);
        }
        loaded.transactions.take_names(&mut self.topics);
        self.usage.add(loader.usage);
        *place = loaded;
    }

    /// Notes that a request for a partition was refused.
    pub(super) fn note_wanted(&mut self, partition: i32, error: ErrorCode) {
        if error == ErrorCode::COORDINATOR_LOAD_IN_PROGRESS {
            self.wanted = Some(partition);
        }
    }

    /// The partition of the last request that was refused because that partition is being loaded, once.
    pub fn take_wanted(&mut self) -> Option<i32> {
        self.wanted.take()
    }

    /// Unloads a partition. Requests that wait are referred to another coordinator; outcomes of appends that are still in flight are
    /// ignored.
    pub fn unload(&mut self, now: Now, partition: i32) {
        if let Some(context) = self.partition_context(now, partition) {
            context.unload();
            self.partitions.remove(&partition);
            self.topics.release_all_late();
        }
    }
}
