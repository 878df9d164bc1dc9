//! The consumer of a group: the group assigns its partitions and keeps its offsets.
//!
//! In a classic group `member.rs` keeps it in the group, and `assignor.rs` (pure) assigns partitions if it leads the group.
//! With the consumer protocol `consumer_member.rs` carries out the decisions of `membership.rs` (pure). Both hand over
//! changes of the assignment (`handover.rs`).

mod assignor;
mod calls;
mod config;
mod consumer_member;
mod events;
mod handover;
mod held;
mod hooks;
mod member;
mod membership;
pub(crate) mod offsets;
pub(crate) mod protocol;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

pub(crate) use calls::Transaction;
use calls::{Calls, Identity};
pub use config::{GroupConfig, GroupProtocol, Subscription};
use consumer_member::ConsumerMember;
pub use events::{GroupEvent, Revoking};
use handover::{Alarm, Change, Shared, What};
use held::Terms;
use hooks::NoHooks;
pub use hooks::{HookFuture, RebalanceHooks};
use member::Member;

use crate::consumer::{Batches, Consumer, FetchedBatch, Position, Positions, RecordStream, Start};
use crate::error::Error;
pub use crate::group::offsets::CommittedOffset;
use crate::group::offsets::{CommittedOffsets, Missing};
use crate::retry::{deadline, retrying};
use crate::topic_partition::TopicPartition;

/// The offsets of a group, as its member commits them. Cheap to clone.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, Position};
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
/// # let config = ConsumerConfig::new(ClientConfig::new(address)?);
/// # let config = GroupConfig { start: Position::Beginning, ..GroupConfig::new("billing", ["orders"], config) };
/// let mut consumer = GroupConsumer::new(config)?;
/// let batch = consumer.next().await?;
/// let done = [(batch.partition().clone(), batch.next_offset())].into();
/// consumer.offsets().commit(&done).await?;
/// let partitions = done.keys().cloned().collect();
/// assert_eq!(consumer.offsets().committed(&partitions).await?, done);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct GroupOffsets {
    calls: Calls,
    config: Arc<GroupConfig>,
    shared: Arc<Shared>,
    positions: Positions,
}

impl GroupOffsets {
    /// Commits offsets of partitions that this member has, and waits until that is done, also through rebalances in which it keeps
    /// them. Offsets of a group without members are set by [`Admin::set_group_offsets`](crate::Admin::set_group_offsets).
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ClientConfig::operation_timeout`](crate::ClientConfig::operation_timeout),
    /// [`Error::CommitFailed`] if a partition is not this member's or is revoked before the commit is done, or why the group
    /// refuses: a member that is not in its generation any more commits nothing.
    pub async fn commit(&self, offsets: &BTreeMap<TopicPartition, i64>) -> Result<(), Error> {
        self.commit_done(self.done(offsets), Absent::Awaited).await.map(drop)
    }

    /// Commits offsets with the metadata to be kept beside them; otherwise as [`GroupOffsets::commit`].
    ///
    /// ```
    /// use mainstem_client::{
    ///     ClientConfig, CommittedOffset, ConsumerConfig, GroupConfig, GroupConsumer, Position,
    /// };
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
    /// # let config = ConsumerConfig::new(ClientConfig::new(address)?);
    /// # let config = GroupConfig { start: Position::Beginning, ..GroupConfig::new("billing", ["orders"], config) };
    /// let mut consumer = GroupConsumer::new(config)?;
    /// let batch = consumer.next().await?;
    /// let done = CommittedOffset { metadata: "checked".into(), ..batch.next_offset().into() };
    /// let done = [(batch.partition().clone(), done)].into();
    /// consumer.offsets().commit_with_metadata(&done).await?;
    /// let partitions = done.keys().cloned().collect();
    /// assert_eq!(consumer.offsets().committed_with_metadata(&partitions).await?, done);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GroupOffsets::commit`], and OFFSET_METADATA_TOO_LARGE if the brokers allow less.
    pub async fn commit_with_metadata(
        &self,
        offsets: &BTreeMap<TopicPartition, CommittedOffset>,
    ) -> Result<(), Error> {
        self.commit_done(self.done_with(offsets), Absent::Awaited).await.map(drop)
    }

    /// The same, but without waiting for a topic that does not exist. Returns the partitions whose topic was deleted meanwhile, or
    /// has another id than [`CommittedOffset::topic_id`]. Their offsets are not committed; all others are. If the coordinator takes
    /// no topic ids (OffsetCommit before version 10), a topic that is created again between the look at the metadata and the commit
    /// is taken for its predecessor.
    ///
    /// ```
    /// use mainstem_client::{ClientConfig, CommittedOffset, ConsumerConfig, GroupConfig, GroupConsumer, Position};
    /// # use mainstem_client::{Admin, Producer, ProducerConfig, Record};
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
    /// # let admin = Admin::new(ClientConfig::new(address)?);
    /// # let config = ConsumerConfig::new(ClientConfig::new(address)?);
    /// # let config = GroupConfig { start: Position::Beginning, ..GroupConfig::new("billing", ["orders"], config) };
    /// let mut consumer = GroupConsumer::new(config)?;
    /// let batch = consumer.next().await?;
    /// let done = CommittedOffset { topic_id: batch.topic_id(), ..batch.next_offset().into() };
    /// admin.delete_topic("orders").await?;
    /// let left_out = consumer.offsets().commit_existing(&[(batch.partition().clone(), done)].into()).await?;
    /// assert_eq!(left_out, [batch.partition().clone()].into());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`GroupOffsets::commit_with_metadata`].
    pub async fn commit_existing(
        &self,
        offsets: &BTreeMap<TopicPartition, CommittedOffset>,
    ) -> Result<BTreeSet<TopicPartition>, Error> {
        let missing = self.commit_done(self.done_with(offsets), Absent::LeftOut).await?;
        Ok(missing.into_keys().collect())
    }

    /// The same in the background, for the partitions as they are held now. A partition that is revoked before the task runs,
    /// and is assigned again, is left out.
    fn start(&self, offsets: &BTreeMap<TopicPartition, i64>, absent: Absent) -> PendingCommit {
        let (group, done) = (self.clone(), self.done(offsets));
        PendingCommit { task: tokio::spawn(async move { group.commit_or_warn(done, absent).await }) }
    }

    /// Commits for the consumer itself: a topic that was deleted meanwhile holds up no other.
    async fn commit_what_is_there(&self, offsets: &BTreeMap<TopicPartition, i64>) -> Result<(), Error> {
        self.commit_or_warn(self.done(offsets), Absent::LeftOut).await
    }

    /// Commits, and logs the partitions that are left out.
    async fn commit_or_warn(&self, done: Done, absent: Absent) -> Result<(), Error> {
        let missing = self.commit_done(done, absent).await?;
        missing.values().for_each(|error| tracing::warn!("{error}"));
        Ok(())
    }

    /// Commits. Returns the partitions that do not exist, if they are to be left out.
    async fn commit_done(&self, done: Done, absent: Absent) -> Result<Missing, Error> {
        if done.places.is_empty() {
            return Ok(Missing::new());
        }
        let config = &self.config.consumer.client;
        retrying(config, config.operation_timeout, &self.what("committing offsets"), || async {
            let identity = self.identity(&done.terms)?;
            let committed = self.calls.commit(&identity, &done.places).await;
            let missing = committed.map_err(|error| self.shared.of_commit(error, &identity))?;
            match missing.values().next() {
                Some(error) if absent == Absent::Awaited => Err(error.clone()),
                _ => Ok(missing),
            }
        })
        .await
    }

    /// The offsets that the group has committed in these partitions; partitions without one are left out.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ClientConfig::operation_timeout`](crate::ClientConfig::operation_timeout), or why the
    /// group refuses.
    pub async fn committed(
        &self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeMap<TopicPartition, i64>, Error> {
        let found = self.committed_with_metadata(partitions).await?;
        Ok(found.into_iter().map(|(key, committed)| (key, committed.offset)).collect())
    }

    /// The same with the metadata that is kept beside the offsets.
    ///
    /// # Errors
    /// As [`GroupOffsets::committed`].
    pub async fn committed_with_metadata(
        &self,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeMap<TopicPartition, CommittedOffset>, Error> {
        let config = &self.config.consumer.client;
        let ask = || self.calls.committed(partitions);
        retrying(config, config.operation_timeout, &self.what("reading the offsets"), ask).await
    }

    /// Name of the group.
    pub fn group_id(&self) -> &str {
        &self.config.group_id
    }

    /// Commits offsets with the transaction of a producer (KIP-447).
    pub(crate) async fn commit_in_transaction(
        &self,
        offsets: &BTreeMap<TopicPartition, i64>,
        transaction: &Transaction<'_>,
    ) -> Result<(), Error> {
        let config = &self.config.consumer.client;
        let done = self.done(offsets);
        retrying(config, config.operation_timeout, &self.what("committing offsets"), || async {
            let identity = self.identity(&done.terms)?;
            let committed = self.calls.commit_in_transaction(&identity, &done.places, transaction).await;
            committed.map_err(|error| self.shared.of_commit(error, &identity))
        })
        .await
    }

    fn done(&self, offsets: &BTreeMap<TopicPartition, i64>) -> Done {
        self.done_with(&self.positions.places(offsets))
    }

    fn done_with(&self, offsets: &CommittedOffsets) -> Done {
        Done { places: offsets.clone(), terms: self.shared.held.lock().terms(offsets.keys()) }
    }

    /// The identity for a commit of partitions that were held at some time. Without a generation a commit could overwrite the
    /// members' offsets: a coordinator takes it for that of a consumer without a group. Under a later generation than that in
    /// which a partition was revoked, it would be taken for a commit of the new owner.
    fn identity(&self, terms: &Terms) -> Result<Identity, Error> {
        // It is read before `held`: a partition that is held then cannot have been another's in an earlier generation.
        let identity = self.shared.identity.lock().clone();
        if identity.generation < 0 {
            return Err(Error::NotAMember { group: self.config.group_id.to_string() });
        }
        if let Some(partition) = self.shared.held.lock().revoked_since(terms) {
            let group = self.config.group_id.to_string();
            return Err(Error::CommitFailed { group, partition: partition.clone() });
        }
        Ok(identity)
    }

    fn what(&self, what: &str) -> String {
        format!("{what} of group {}", self.config.group_id)
    }
}

/// The treatment of a commit whose topic does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absent {
    /// The topic may be created yet: the commit is tried again.
    Awaited,
    /// It is left out, and holds up no other.
    LeftOut,
}

/// Offsets to be committed, and the terms under which their partitions are held: fixed when the commit is asked for.
struct Done {
    places: CommittedOffsets,
    terms: Terms,
}

/// A commit that is under way; await it for the outcome, or drop it.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, Position};
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
/// # let config = ConsumerConfig::new(ClientConfig::new(address)?);
/// # let config = GroupConfig { start: Position::Beginning, ..GroupConfig::new("billing", ["orders"], config) };
/// let mut consumer = GroupConsumer::new(config)?;
/// let batch = consumer.next().await?;
/// let commit = consumer.start_commit();
/// // There is time for something else.
/// assert_eq!(batch.records().count(), 1);
/// commit.await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PendingCommit {
    task: JoinHandle<Result<(), Error>>,
}

impl Future for PendingCommit {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Self::Output> {
        // A task that was cancelled with its runtime has not committed.
        let why = |ended: JoinError| match ended.is_panic() {
            true => Error::Panicked { what: "a commit of offsets".to_owned() },
            false => Error::Closed,
        };
        Pin::new(&mut self.task).poll(context).map(|done| done.unwrap_or_else(|ended| Err(why(ended))))
    }
}

/// Reads the partitions that its group assigns to it. A rebalance interrupts only the partitions that move, with either
/// [`GroupProtocol`].
///
/// A batch counts as done when [`GroupConsumer::next`] is called again; `auto_commit` commits the batches that are done.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, Position};
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
/// let config = ConsumerConfig::new(ClientConfig::new(address)?);
/// let config = GroupConfig { start: Position::Beginning, ..GroupConfig::new("billing", ["orders"], config) };
/// let mut consumer = GroupConsumer::new(config)?;
/// let batch = consumer.next().await?;
/// assert_eq!(batch.records().count(), 1);
/// consumer.commit().await?;
/// consumer.close().await?;
/// # Ok(())
/// # }
/// ```
pub struct GroupConsumer {
    config: Arc<GroupConfig>,
    consumer: Consumer,
    hooks: Box<dyn RebalanceHooks>,
    offsets: GroupOffsets,
    shared: Arc<Shared>,
    changes: mpsc::UnboundedReceiver<Change>,
    /// The change of the assignment that is being carried out.
    change: Option<Change>,
    member: Option<JoinHandle<()>>,
    /// The offsets of the last automatic commit.
    committed: BTreeMap<TopicPartition, i64>,
    commit_at: Instant,
    commit: Option<PendingCommit>,
}

impl GroupConsumer {
    /// Joins a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the settings make no sense.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(config: GroupConfig) -> Result<GroupConsumer, Error> {
        GroupConsumer::with_hooks(config, NoHooks)
    }

    /// Joins a group, with hooks for partitions that come and go.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the settings make no sense.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn with_hooks(
        config: GroupConfig,
        hooks: impl RebalanceHooks + 'static,
    ) -> Result<GroupConsumer, Error> {
        config.check()?;
        let config = Arc::new(config);
        let consumer = Consumer::new(config.consumer.clone())?;
        let shared = Arc::new(Shared::new());
        let calls = Calls::new(config.clone());
        let positions = consumer.positions();
        let (sender, changes) = mpsc::unbounded_channel();
        let member = tokio::spawn(take_part(config.clone(), calls.clone(), shared.clone(), sender));
        Ok(GroupConsumer {
            consumer,
            hooks: Box::new(hooks),
            offsets: GroupOffsets { calls, config: config.clone(), shared: shared.clone(), positions },
            shared,
            changes,
            change: None,
            member: Some(member),
            committed: BTreeMap::new(),
            commit_at: Instant::now(),
            commit: None,
            config,
        })
    }

    /// The next batch of any partition that this member has. Waits until there is one, and takes part in rebalances
    /// meanwhile. A future of this that is dropped takes no batch.
    ///
    /// # Errors
    /// As [`Consumer::next`]; [`Error::Closed`], or why the member cannot be in its group any more.
    pub async fn next(&mut self) -> Result<FetchedBatch, Error> {
        let shared = self.shared.clone();
        let _waiting = Waiting::begin(&shared);
        loop {
            self.start_commit_if_due().await;
            self.take_over().await?;
            tokio::select! {
                biased;
                change = self.changes.recv() => self.change = Some(change.ok_or(Error::Closed)?),
                batch = self.consumer.next() => return batch,
                () = tokio::time::sleep_until(self.commit_at), if self.config.auto_commit.is_some() => {}
            }
        }
    }

    /// The records of all batches from now on, one by one. Those of a batch count as done when the first of the next one
    /// is asked for. When the stream is dropped, those that it has not handed out come again.
    pub fn stream(&mut self) -> RecordStream<'_> {
        RecordStream::new(self)
    }

    /// Carries out a change of the assignment. If this future is dropped in between, the change is carried out again.
    async fn take_over(&mut self) -> Result<(), Error> {
        match self.change.as_ref().map(|change| &change.what) {
            None => return Ok(()),
            Some(What::Failed(error)) => return Err(error.clone()),
            // The member has left meanwhile, was thrown out, or wants something else: that change comes next.
            Some(_) if !self.change.as_ref().is_some_and(Change::take) => {}
            Some(What::Lost) => self.lose().await,
            Some(What::Revoked(revoked)) => {
                let revoked = revoked.clone();
                self.revoke(&revoked).await;
            }
            Some(What::Assigned(added)) => {
                let added = added.iter().map(|(key, begin)| (key.clone(), begin.start)).collect();
                self.assign(added).await;
            }
        }
        if let Some(change) = self.change.take() {
            change.finish();
        }
        Ok(())
    }

    /// Drops all partitions: they belong to other members already.
    async fn lose(&mut self) {
        if let Some(commit) = self.commit.take() {
            // It belongs to a generation that this member is not in any more.
            commit.task.abort();
        }
        let lost: BTreeSet<_> = self.consumer.assignment().into_iter().collect();
        if !lost.is_empty() {
            self.hooks.lost(&lost).await;
        }
        self.keep_only(|_| false);
    }

    /// Commits and revokes partitions.
    async fn revoke(&mut self, revoked: &BTreeSet<TopicPartition>) {
        let assigned = self.consumer.assignment().into_iter();
        let owned: BTreeSet<_> = assigned.filter(|key| revoked.contains(key)).collect();
        if !owned.is_empty() {
            // All batches that were taken count as done here: `next` was called again.
            let mut positions = self.consumer.positions().known();
            positions.retain(|key, _| owned.contains(key));
            if self.config.auto_commit.is_some() {
                self.settle_commit().await;
                if let Err(error) = self.offsets.commit_what_is_there(&positions).await {
                    tracing::warn!("partitions are revoked without a commit: {error}");
                }
            }
            self.hooks.revoked(&owned, &positions, &self.offsets).await;
        }
        self.keep_only(|key| !revoked.contains(key));
    }

    /// Begins to read partitions.
    async fn assign(&mut self, added: BTreeMap<TopicPartition, Start>) {
        self.shared.held.lock().take(added.keys().cloned());
        let mut begin = added.iter().map(|(key, start)| (key.clone(), start.position)).collect();
        if !added.is_empty() {
            self.hooks.assigned(&mut begin).await;
        }
        let chosen = added.into_iter().map(|(key, start)| {
            let chosen = begin.get(&key).filter(|chosen| **chosen != start.position);
            let start = chosen.map_or(start, |chosen| Start::from(*chosen));
            (key, start)
        });
        self.read_too(chosen);
    }

    /// Reads partitions beside those that it has, which keep their positions.
    fn read_too(&mut self, added: impl Iterator<Item = (TopicPartition, Start)>) {
        let had = self.consumer.assignment().into_iter().map(|key| (key, Start::from(Position::End)));
        self.consumer.begin(had.chain(added).collect::<Vec<_>>());
    }

    fn keep_only(&mut self, is_kept: impl Fn(&TopicPartition) -> bool) {
        let kept = self.consumer.assignment().into_iter().filter(|key| is_kept(key));
        let kept: Vec<_> = kept.map(|key| (key, Position::End)).collect();
        self.consumer.assign(kept);
        self.shared.held.lock().keep_only(&is_kept);
        self.committed.retain(|key, _| is_kept(key));
    }

    /// Starts an automatic commit if it is time and none is under way. All that was taken counts as done, as `next` was
    /// called again.
    async fn start_commit_if_due(&mut self) {
        let Some(interval) = self.config.auto_commit.filter(|_| self.commit_at <= Instant::now()) else {
            return;
        };
        self.commit_at = deadline(interval);
        if self.commit.as_ref().is_some_and(|commit| !commit.task.is_finished()) {
            return;
        }
        self.settle_commit().await;
        let done = self.consumer.positions().known();
        if done != self.committed {
            self.committed = done.clone();
            self.commit = Some(self.offsets.start(&done, Absent::LeftOut));
        }
    }

    /// Waits for an automatic commit that is under way, so that none comes after what is committed next.
    async fn settle_commit(&mut self) {
        if let Some(commit) = &mut self.commit
            && let Err(error) = commit.await
        {
            tracing::warn!("{error}");
            self.committed.clear();
        }
        self.commit = None;
    }

    /// Commits the offsets after all batches that were taken, and waits until that is done.
    ///
    /// # Errors
    /// As [`GroupOffsets::commit`].
    pub async fn commit(&mut self) -> Result<(), Error> {
        self.settle_commit().await;
        self.offsets.commit(&self.consumer.positions().known()).await
    }

    /// Commits the same in the background. Of two commits under way the later one may come first: wait for one before the
    /// next where that matters.
    pub fn start_commit(&self) -> PendingCommit {
        self.offsets.start(&self.consumer.positions().known(), Absent::Awaited)
    }

    /// The group's offsets, to commit others than the positions.
    pub fn offsets(&self) -> &GroupOffsets {
        &self.offsets
    }

    /// Returns true while this consumer is a member of its group, whether it was given partitions or not.
    pub fn is_member(&self) -> bool {
        self.shared.identity.lock().generation >= 0
    }

    /// The partitions that this member has at present.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.consumer.assignment()
    }

    /// The offset behind the last batch that was taken of a partition; see [`Consumer::position`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn position(&self, partition: &TopicPartition) -> Result<Option<i64>, Error> {
        self.consumer.position(partition)
    }

    /// See [`Consumer::positions`].
    pub fn positions(&self) -> Positions {
        self.consumer.positions()
    }

    /// See [`Consumer::lag`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn lag(&self, partition: &TopicPartition) -> Result<Option<i64>, Error> {
        self.consumer.lag(partition)
    }

    /// See [`Consumer::seek`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn seek(&mut self, partition: &TopicPartition, position: Position) -> Result<(), Error> {
        self.consumer.seek(partition, position)
    }

    /// See [`Consumer::pause`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn pause(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.consumer.pause(partition)
    }

    /// See [`Consumer::resume`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn resume(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.consumer.resume(partition)
    }

    /// See [`Consumer::hold`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn hold(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.consumer.hold(partition)
    }

    /// See [`Consumer::release`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not this member's.
    pub fn release(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.consumer.release(partition)
    }

    /// Commits all batches that were taken, with `auto_commit`, calls the hook for partitions that are revoked or were lost, and
    /// leaves the group. A static member of a classic group stays in it until its session ends. It takes no longer than
    /// [`GroupConsumer::close_within`] does for twice
    /// [`ClientConfig::operation_timeout`](crate::ClientConfig::operation_timeout).
    ///
    /// # Errors
    /// As [`GroupConsumer::close_within`].
    pub async fn close(self) -> Result<(), Error> {
        let limit = self.config.consumer.client.operation_timeout;
        self.close_within(limit.saturating_mul(2)).await
    }

    /// The same within a time: the commit has half of it, and the hook the rest; what is not done by then is left out.
    /// The member leaves the group all the same, so that others need not wait for the end of its session. That takes up to
    /// 5 s more.
    ///
    /// ```
    /// # use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// # let config = ConsumerConfig::new(ClientConfig::new(broker.address())?);
    /// # let consumer = GroupConsumer::new(GroupConfig::new("billing", ["orders"], config))?;
    /// consumer.close_within(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The last commit's, or [`Error::TimedOut`] if commit or hook were cut short; the group is left all the same.
    pub async fn close_within(mut self, limit: Duration) -> Result<(), Error> {
        let ended = tokio::time::timeout_at(deadline(limit), self.release_all(limit / 2)).await;
        if let Some(commit) = self.commit.take() {
            // The next owners of the partitions commit by themselves.
            commit.task.abort();
        }
        self.end().await;
        let what = format!("releasing the partitions of group {}", self.config.group_id);
        ended.unwrap_or(Err(Error::TimedOut { what, after: limit, last: None }))
    }

    /// Commits within a time, and calls the hook for all partitions.
    async fn release_all(&mut self, limit: Duration) -> Result<(), Error> {
        let mut committed = Ok(());
        let positions = self.consumer.positions().known();
        if self.config.auto_commit.is_some() {
            let commit = async {
                self.settle_commit().await;
                self.offsets.commit_what_is_there(&positions).await
            };
            let done = tokio::time::timeout_at(deadline(limit), commit).await;
            let what = format!("the last commit of group {}", self.config.group_id);
            committed = done.unwrap_or(Err(Error::TimedOut { what, after: limit, last: None }));
        }
        let is_member = self.is_member();
        let partitions: BTreeSet<_> = self.consumer.assignment().into_iter().collect();
        if is_member && !partitions.is_empty() {
            self.hooks.revoked(&partitions, &positions, &self.offsets).await;
        } else if !is_member {
            self.lose().await;
        }
        committed
    }

    /// Leaves the group without a commit, and without a call of the hook. Other members read again what was taken since the last
    /// commit. It is for a member that has failed to do its work.
    ///
    /// ```
    /// use mainstem_client::{ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let config = ConsumerConfig::new(ClientConfig::new(broker.address())?);
    /// let consumer = GroupConsumer::new(GroupConfig::new("billing", ["orders"], config))?;
    /// consumer.leave().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn leave(mut self) {
        self.settle_commit().await;
        self.end().await;
    }

    /// Lets the member leave, and waits for it.
    async fn end(&mut self) {
        self.shared.stop.notify_one();
        if let Some(member) = self.member.take() {
            // A panic there was reported when it happened.
            let _ = member.await;
        }
    }
}

impl Batches for GroupConsumer {
    fn next_batch(&mut self) -> Pin<Box<dyn Future<Output = Result<FetchedBatch, Error>> + Send + '_>> {
        Box::pin(self.next())
    }

    fn go_back(&mut self, partition: &TopicPartition, offset: i64) {
        self.consumer.go_back(partition, offset);
    }
}

impl Drop for GroupConsumer {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
    }
}

/// The task that keeps a member in its group.
async fn take_part(
    config: Arc<GroupConfig>,
    calls: Calls,
    shared: Arc<Shared>,
    changes: mpsc::UnboundedSender<Change>,
) {
    let _alarm = Alarm { group_id: config.group_id.clone(), changes: changes.clone() };
    match &config.protocol {
        GroupProtocol::Classic => Member::new(config, calls, shared, changes).run().await,
        GroupProtocol::Consumer { .. } => ConsumerMember::new(config, calls, shared, changes).run().await,
    }
}

/// A caller that waits for records.
struct Waiting<'a>(&'a Shared);

impl Waiting<'_> {
    fn begin(shared: &Shared) -> Waiting<'_> {
        *shared.idle_since.lock() = None;
        Waiting(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Some(Instant::now());
    }
}
