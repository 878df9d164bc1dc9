//! Queries about a simulated node, for the judgement of a run.

use super::Node;
use super::running::{read_batches, read_records};
use mainstem_log::{Ends, Log};
use mainstem_records::{Batch, Scratch};
use mainstem_replication::history::CONTROL;
use mainstem_replication::{Configuration, ReplicaId};

impl Node {
    /// The term in which a replica leads.
    pub(crate) fn leads(&self, partition: usize) -> Option<u64> {
        let led = self.partition(partition)?.leadership();
        led.is_leader.then(|| super::term_of(led.epoch))
    }

    /// The same, if the leader knows the commits of the leaders before it.
    pub(crate) fn leads_settled(&self, partition: usize) -> Option<u64> {
        let led = self.partition(partition)?.leadership();
        led.is_settled.then(|| super::term_of(led.epoch))
    }

    /// The ends of the log of a replica that is in service.
    pub(crate) fn ends(&self, partition: usize) -> Option<Ends> {
        self.partition(partition)?.ends().ok()
    }

    /// Looks at the log of a replica that is in service.
    pub(crate) fn with_log<T>(&self, partition: usize, look: impl FnOnce(&Log) -> T) -> Option<T> {
        self.partition(partition)?.with_replica_by_hand(|replica| look(replica.log()))
    }

    /// Its replica of a partition, while that is in service.
    pub(crate) fn own_replica(&self, partition: usize) -> Option<ReplicaId> {
        self.partition(partition)?.with_replica_by_hand(|replica| replica.own())
    }

    /// The members of a partition's group, as its replica knows them.
    pub(crate) fn configuration(&self, partition: usize) -> Option<Configuration> {
        self.partition(partition)?.with_replica_by_hand(|replica| replica.configuration().clone())
    }

    /// Number of in-sync replicas, as the leader sees it.
    #[cfg(test)]
    pub(crate) fn in_sync(&self, partition: usize) -> usize {
        self.partition(partition).map_or(0, |partition| partition.in_sync().len())
    }

    /// High watermark of a partition as far as the node knows it: from its checkpoint, or since it runs.
    pub(crate) fn known_end(&self, partition: usize) -> i64 {
        let noted = self.checkpoint[partition];
        self.ends(partition).map_or(noted, |ends| ends.high_watermark.max(noted))
    }

    /// Offset of a partition before which all records are committed and durable here, whether the node runs or not.
    pub(crate) fn kept_end(&self, partition: usize) -> i64 {
        self.kept_ends[partition].end
    }

    /// The term that a replica is in.
    pub(crate) fn term(&self, partition: usize) -> Option<u64> {
        Some(super::term_of(self.partition(partition)?.leadership().epoch))
    }

    /// Index and term of its last entry, and its log end, if all of it is committed.
    pub(crate) fn content_end(&self, partition: usize) -> Option<(u64, u64, i64)> {
        let partition = self.partition(partition)?;
        let looked = partition.with_replica_by_hand(|replica| {
            let (last, term, committed) = replica.last_and_committed();
            (last == committed).then(|| (last, term, replica.log().ends().log_end))
        });
        looked.flatten()
    }

    /// Number of a replica's records, those of transactions that were aborted too.
    pub(crate) fn records_count(&self, partition: usize) -> usize {
        let count = |log: &Log| {
            let bytes = read_batches(log, log.ends().log_start..log.ends().log_end);
            let (mut rest, mut count) = (&bytes[..], 0);
            while let Ok((batch, behind)) = Batch::split_first(rest) {
                count += usize::try_from(batch.record_count()).expect("a number of records");
                rest = behind;
            }
            count
        };
        self.with_log(partition, count).unwrap_or_default()
    }

    /// The values from an offset on: all, or those that consumers may read.
    pub(crate) fn records(&self, partition: usize, from: i64, all: bool) -> Vec<(i64, u64)> {
        let Some(ends) = self.ends(partition) else { return Vec::new() };
        let end = if all { ends.log_end } else { ends.high_watermark };
        let from = from.max(ends.log_start);
        match from < end {
            true => self.with_log(partition, |log| read_records(log, from..end)).unwrap_or_default(),
            false => Vec::new(),
        }
    }
}

/// Offsets and values of a batch's records; control records have the value [`CONTROL`].
pub(crate) fn records_of(batch: &Batch<'_>) -> Vec<(i64, u64)> {
    let mut buffer = Vec::new();
    let records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records");
    let is_control = batch.attributes().is_control();
    let value_of = |value: Option<&[u8]>| {
        let value = value.and_then(|value| value.get(..8)?.try_into().ok());
        u64::from_be_bytes(value.expect("a value of ours"))
    };
    let pairs = records.map(|record| {
        let record = record.expect("a record");
        (record.offset, if is_control { CONTROL } else { value_of(record.value) })
    });
    pairs.collect()
}
