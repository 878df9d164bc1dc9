//! The transport of messages and records: the seam between handlers and brokers.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use mainstem_client::{CommittedOffset, Error, FetchedBatch, Record, TopicPartition};

/// A future that is owned.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// An event of an application's partitions.
#[derive(Debug)]
pub(crate) enum Event {
    /// Partitions are this process's now; each with its committed offset.
    Assigned(BTreeMap<TopicPartition, Option<CommittedOffset>>),
    /// Records of one partition.
    Batch(FetchedBatch),
    /// Partitions are being revoked; the number is for [`Source::finish_revocation`].
    Revoking(u64, BTreeSet<TopicPartition>),
    /// Partitions are others' already, or start again at another offset; and why, in words.
    Lost(BTreeSet<TopicPartition>, &'static str),
}

/// A source of messages. The futures of `next` may be dropped at any time and lose nothing.
pub(crate) trait Source: Send + 'static {
    /// Returns the next event.
    fn next(&mut self) -> impl Future<Output = crate::Result<Event>> + Send;
    /// Brings no more records of a partition until it is released, and loses none.
    fn hold(&mut self, partition: &TopicPartition);
    /// Brings records of a held partition again.
    fn release(&mut self, partition: &TopicPartition);
    /// Returns the end of the log of a partition, as far as that is known.
    fn end(&self, partition: &TopicPartition) -> Option<i64>;
    /// Continues at another offset of a partition.
    fn seek(&mut self, partition: &TopicPartition, offset: i64);
    /// Returns true if it is in its group, also without a partition. One that is given partitions need not say so.
    fn is_member(&self) -> bool {
        false
    }
    /// Returns the committer of positions.
    fn committer(&self) -> Arc<dyn Commit>;
    /// Ends a revocation: this process does nothing more with its partitions.
    fn finish_revocation(&mut self, number: u64);
    /// Leaves the group.
    fn leave(self) -> impl Future<Output = ()> + Send;
}

/// Stores positions.
pub(crate) trait Commit: Send + Sync {
    /// Commits positions, with all retries. Returns the partitions that are left out as they do not exist any more: their topic was
    /// deleted, or is another one of the same name.
    fn commit(
        &self,
        positions: BTreeMap<TopicPartition, CommittedOffset>,
    ) -> BoxFuture<'static, Result<BTreeSet<TopicPartition>, Error>>;
}

/// Takes records.
pub(crate) trait Sink: Send + Sync {
    /// Writes records, those of one partition in their order; done when all are acknowledged.
    fn write(&self, records: Vec<Record>) -> BoxFuture<'static, Result<(), Error>>;
    /// Closes it: records that are not written yet fail, and later ones are refused.
    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// Returns the number of partitions of a topic of dead letters. A missing one is created with as many as its source.
    fn letter_partitions(&self, letters: String, source: Arc<str>) -> BoxFuture<'static, Result<i32, Error>>;
}
