//! What brings messages and takes records: the seam between handlers and brokers.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::sync::Arc;

use mainstem_client::{CommittedOffset, Error, FetchedBatch, Record, TopicPartition};

/// A future that is owned.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What happens to the partitions of an application.
#[derive(Debug)]
pub(crate) enum Event {
    /// They are this process's now; each with what was committed.
    Assigned(BTreeMap<TopicPartition, Option<CommittedOffset>>),
    /// Records of one.
    Batch(FetchedBatch),
    /// They have to be given up; the number is for [`Source::finish_revocation`].
    Revoking(u64, BTreeSet<TopicPartition>),
    /// They are others' already, or begin anew elsewhere; and why, in words.
    Lost(BTreeSet<TopicPartition>, &'static str),
}

/// What brings messages. The futures of `next` are dropped at will and lose nothing.
pub(crate) trait Source: Send + 'static {
    /// What happens next.
    fn next(&mut self) -> impl Future<Output = crate::Result<Event>> + Send;
    /// Brings nothing more of a partition, and forgets nothing.
    fn hold(&mut self, partition: &TopicPartition);
    /// Goes on with it.
    fn release(&mut self, partition: &TopicPartition);
    /// Where the log of a partition ends, as far as that is known.
    fn end(&self, partition: &TopicPartition) -> Option<i64>;
    /// Goes on elsewhere in it.
    fn seek(&mut self, partition: &TopicPartition, offset: i64);
    /// Returns true if it is in its group, also without a partition. One that is given partitions need not say so.
    fn is_member(&self) -> bool {
        false
    }
    /// What commits positions.
    fn committer(&self) -> Arc<dyn Commit>;
    /// The partitions of a revocation are given up.
    fn finish_revocation(&mut self, number: u64);
    /// Leaves the group.
    fn leave(self) -> impl Future<Output = ()> + Send;
}

/// Keeps positions.
pub(crate) trait Commit: Send + Sync {
    /// Commits positions, with all retries. Returns the partitions that are left out as they are not there any more: their topic was
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
    /// Ends it: what is not written yet fails, and what comes is refused.
    fn close(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::ready(()))
    }
    /// How many partitions a topic of dead letters has; it is created as wide as its source if it is not there.
    fn letter_partitions(&self, letters: String, source: Arc<str>) -> BoxFuture<'static, Result<i32, Error>>;
}
