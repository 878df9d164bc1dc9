//! Changes of a member's assignment as events that are taken one by one. They are for programs that work on a partition while
//! others are read, and have to finish that work before the partition is revoked.

use std::collections::{BTreeMap, BTreeSet};

use super::handover::{Begin, Change, What};
use super::{GroupConsumer, Waiting};
use crate::consumer::FetchedBatch;
use crate::error::Error;
use crate::group::offsets::CommittedOffset;
use crate::topic_partition::TopicPartition;

/// An event of [`GroupConsumer::next_event`].
#[derive(Debug)]
#[non_exhaustive]
pub enum GroupEvent {
    /// Partitions were assigned to this member, each with its committed offset, if there is one. They are read from there on; a
    /// [`GroupConsumer::seek`] before the next event takes effect before their first batch.
    Assigned(BTreeMap<TopicPartition, Option<CommittedOffset>>),
    /// Records of a partition.
    Batch(FetchedBatch),
    /// Partitions are being revoked. No batch of them comes any more. Work on them has to end and be committed; then
    /// [`GroupConsumer::finish_revocation`] lets the group continue. Other partitions are read meanwhile.
    Revoking(Revoking),
    /// Other members have these partitions already, as the group has not seen a heartbeat of this member for too long. Nothing
    /// can be committed.
    Lost(BTreeSet<TopicPartition>),
}

/// Partitions that are being revoked. The group waits until that is [done](GroupConsumer::finish_revocation), for
/// [`GroupConfig::max_poll_interval`](crate::GroupConfig::max_poll_interval) at most.
#[derive(Debug)]
#[must_use = "the group waits until the revocation is finished"]
pub struct Revoking {
    partitions: BTreeSet<TopicPartition>,
    change: Change,
}

impl Revoking {
    /// The partitions.
    pub fn partitions(&self) -> &BTreeSet<TopicPartition> {
        &self.partitions
    }
}

impl GroupConsumer {
    /// The next event of this member. It replaces [`GroupConsumer::next`] in configurations without `auto_commit`; hooks are not
    /// called. A future of this that is dropped takes nothing.
    ///
    /// ```
    /// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, GroupEvent, Position};
    /// # use mainstem_client::{Producer, ProducerConfig, Record};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[
    /// #     ("group.initial.rebalance.delay.ms", "0"),
    /// #     ("offsets.topic.num.partitions", "1"),
    /// # ]);
    /// # let address = broker.address();
    /// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
    /// # producer.send(Record::new("orders", "one")).await?.await?;
    /// let config = GroupConfig::new("billing", ["orders"], ConsumerConfig::new(ClientConfig::new(address)?));
    /// let config = GroupConfig { auto_commit: None, start: Position::Beginning, ..config };
    /// let mut consumer = GroupConsumer::new(config)?;
    /// loop {
    ///     match consumer.next_event().await? {
    ///         GroupEvent::Batch(batch) => break assert_eq!(batch.records().count(), 1),
    ///         GroupEvent::Revoking(revoking) => consumer.finish_revocation(revoking),
    ///         other => println!("{other:?}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GroupConsumer::next`]; [`Error::Invalid`] with `auto_commit`.
    pub async fn next_event(&mut self) -> Result<GroupEvent, Error> {
        if self.config.auto_commit.is_some() {
            let reason = "next_event needs auto_commit: None: it is not known here which records are done";
            return Err(Error::Invalid(reason.to_owned()));
        }
        let shared = self.shared.clone();
        let _waiting = Waiting::begin(&shared);
        loop {
            tokio::select! {
                biased;
                change = self.changes.recv() => {
                    if let Some(event) = self.begin_change(change.ok_or(Error::Closed)?)? {
                        return Ok(event);
                    }
                }
                batch = self.consumer.next() => return batch.map(GroupEvent::Batch),
            }
        }
    }

    /// Carries out the part of a change that needs no wait; none if the member has withdrawn the change.
    pub(super) fn begin_change(&mut self, change: Change) -> Result<Option<GroupEvent>, Error> {
        if let What::Failed(error) = &change.what {
            return Err(error.clone());
        }
        if !change.take() {
            return Ok(None);
        }
        let event = match &change.what {
            What::Failed(_) => return Ok(None),
            What::Revoked(revoked) => {
                return Ok(Some(GroupEvent::Revoking(self.begin_revocation(revoked.clone(), change))));
            }
            What::Assigned(added) => GroupEvent::Assigned(self.assigned(&added.clone())),
            What::Lost => {
                let lost = self.consumer.assignment().into_iter().collect();
                self.keep_only(|_| false);
                GroupEvent::Lost(lost)
            }
        };
        change.finish();
        Ok(Some(event))
    }

    fn begin_revocation(&mut self, revoked: BTreeSet<TopicPartition>, change: Change) -> Revoking {
        let assigned = self.consumer.assignment().into_iter();
        let partitions: BTreeSet<_> = assigned.filter(|key| revoked.contains(key)).collect();
        for partition in &partitions {
            self.consumer.hold(partition).expect("it is assigned");
        }
        Revoking { partitions, change }
    }

    fn assigned(
        &mut self,
        added: &BTreeMap<TopicPartition, Begin>,
    ) -> BTreeMap<TopicPartition, Option<CommittedOffset>> {
        self.shared.held.lock().take(added.keys().cloned());
        self.read_too(added.iter().map(|(key, begin)| (key.clone(), begin.start)));
        added.iter().map(|(key, begin)| (key.clone(), begin.committed.clone())).collect()
    }

    /// Releases the partitions of a revocation: the group continues, and no offset of them can be committed any more. It does
    /// nothing if they were lost meanwhile.
    pub fn finish_revocation(&mut self, revoking: Revoking) {
        if revoking.change.is_void() {
            return;
        }
        self.keep_only(|key| !revoking.partitions.contains(key));
        revoking.change.finish();
    }
}
