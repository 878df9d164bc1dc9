//! Taking partitions over, and giving them up. A partition is replayed by a coordinator of its own, the loader, which has no other user.

use mainstem_records::LeaderEpoch;

use super::super::Replayed;
use super::super::replay;
use super::super::served::{Partition, PartitionContext};
use super::TransactionCoordinator;
use crate::time::Now;

impl TransactionCoordinator {
    /// Begins to take over a partition, under this leader epoch of it, which its markers will carry. Returns its loader. Until the partition
    /// is [served](Self::finish_load), requests get COORDINATOR_LOAD_IN_PROGRESS.
    ///
    /// # Panics
    /// If the partition is served or being loaded already.
    pub fn begin_load(&mut self, partition: i32, leader_epoch: LeaderEpoch) -> TransactionCoordinator {
        let before = self.partitions.insert(partition, Partition::new(leader_epoch.into()));
        assert!(before.is_none(), "partition {partition} is loaded twice");
        let mut loader = TransactionCoordinator::new(self.config.clone());
        loader.partitions.insert(partition, Partition::new(leader_epoch.into()));
        loader
    }

    /// Replays records of the partition of a loader: keys and values in the order of the log, in as many calls
    /// as the driver likes. Records without a key must be left out.
    pub fn load<'r>(
        &mut self,
        now: Now,
        partition: i32,
        records: impl IntoIterator<Item = (&'r [u8], Option<&'r [u8]>)>,
    ) -> Replayed {
        let mut replayed = Replayed::default();
        let Some(PartitionContext { service, transactions, mut io }) = self.partition_context(now, partition)
        else {
            return replayed;
        };
        assert!(!service.loaded, "records of partition {partition} come too late");
        for (key, value) in records {
            replay::replay(transactions, &mut io, key, value, &mut replayed);
        }
        replayed
    }

    /// Serves a partition from now on, since its loader has all its records. Transactions that are decided get their markers; ongoing ones
    /// have the time that they have left by the wall clock.
    ///
    /// # Panics
    /// If the partition is not being loaded.
    pub fn finish_load(&mut self, now: Now, partition: i32, loader: TransactionCoordinator) {
        self.adopt(partition, loader);
        let mut context = self.partition_context(now, partition).expect("it is being loaded");
        context.service.loaded = true;
        replay::loaded(context.transactions, &mut context.io);
        context.schedule_time_outs();
        context.schedule_expiry();
    }

    /// Takes the state of a partition from its loader.
    fn adopt(&mut self, partition: i32, mut loader: TransactionCoordinator) {
        let loaded = loader.partitions.remove(&partition).expect("the loader has the partition");
        let place = self.partitions.get_mut(&partition).expect("the partition is being loaded");
        assert!(!place.service.loaded && !loaded.service.loaded, "partition {partition} is served already");
        assert_eq!(place.service.coordinator_epoch, loaded.service.coordinator_epoch, "of another term");
        // Before all records are read, nothing has a deadline or waits.
        assert_eq!((loader.deadlines.next_ms(), loader.effects.len()), (None, 0), "a loader decides nothing");
        self.usage.transactions += loader.usage.transactions;
        self.usage.bytes += loader.usage.bytes;
        *place = loaded;
    }

    /// The partition of the last request that was refused because that partition is being loaded, once.
    pub fn take_wanted(&mut self) -> Option<i32> {
        self.wanted.take()
    }

    /// Unloads a partition. Requests that wait are referred to another coordinator; later outcomes of its requests to the driver are
    /// ignored.
    pub fn unload(&mut self, now: Now, partition: i32) {
        if let Some(context) = self.partition_context(now, partition) {
            context.unload();
            self.partitions.remove(&partition);
        }
    }
}
