//! Hooks of a program for changes of its consumer's partitions.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;

use super::GroupOffsets;
use crate::consumer::Position;
use crate::topic_partition::TopicPartition;

/// The work of a hook.
///
/// ```
/// use mainstem_client::{GroupOffsets, HookFuture, RebalanceHooks, TopicPartition};
/// use std::collections::{BTreeMap, BTreeSet};
///
/// struct Log;
///
/// impl RebalanceHooks for Log {
///     fn revoked<'a>(
///         &'a mut self,
///         _partitions: &'a BTreeSet<TopicPartition>,
///         positions: &'a BTreeMap<TopicPartition, i64>,
///         offsets: &'a GroupOffsets,
///     ) -> HookFuture<'a> {
///         Box::pin(async move {
///             if let Err(error) = offsets.commit(positions).await {
///                 eprintln!("{error}");
///             }
///         })
///     }
/// }
/// ```
pub type HookFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Hooks for changes of the partitions of a [`GroupConsumer`](crate::GroupConsumer). They run within
/// [`GroupConsumer::next`](crate::GroupConsumer::next), and the group waits for them. If `next` is dropped before its hook is
/// done, the next call of it calls the hook again. None is called for no partition at all.
///
/// Offsets that are kept elsewhere than in the group are the positions at which to begin:
///
/// ```
/// use std::collections::{BTreeMap, HashMap};
/// # use mainstem_client::{
/// #     ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, Producer, ProducerConfig, Record,
/// # };
/// use mainstem_client::{HookFuture, Position, RebalanceHooks, TopicPartition};
///
/// struct Kept(HashMap<TopicPartition, i64>);
///
/// impl RebalanceHooks for Kept {
///     fn assigned<'a>(&'a mut self, begin: &'a mut BTreeMap<TopicPartition, Position>) -> HookFuture<'a> {
///         Box::pin(async move {
///             for (partition, position) in begin {
///                 let kept = self.0.get(partition);
///                 *position = kept.map_or(Position::Beginning, |offset| Position::Offset(*offset));
///             }
///         })
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[
/// #     ("group.initial.rebalance.delay.ms", "0"),
/// #     ("offsets.topic.num.partitions", "1"),
/// # ]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # for value in ["one", "two"] {
/// #     producer.send(Record::new("orders", value)).await?.await?;
/// # }
/// # let config = GroupConfig::new("billing", ["orders"], ConsumerConfig::new(ClientConfig::new(address)?));
/// let kept = Kept(HashMap::from([(TopicPartition::new("orders", 0), 1)]));
/// let mut consumer = GroupConsumer::with_hooks(config, kept)?;
/// let batch = consumer.next().await?;
/// let first = batch.records().next().expect("a batch has records")?;
/// assert_eq!((first.offset, first.value), (1, Some(&b"two"[..])));
/// # Ok(())
/// # }
/// ```
pub trait RebalanceHooks: Send {
    /// Partitions are about to be revoked. `positions`: the offset after all that was taken of each. Other members continue there
    /// if it is committed. Partitions whose position was not found yet are left out.
    fn revoked<'a>(
        &'a mut self,
        partitions: &'a BTreeSet<TopicPartition>,
        positions: &'a BTreeMap<TopicPartition, i64>,
        offsets: &'a GroupOffsets,
    ) -> HookFuture<'a> {
        let _ = (partitions, positions, offsets);
        Box::pin(std::future::ready(()))
    }

    /// Partitions were assigned to this member, each with the position at which it begins: the committed offset, or
    /// [`GroupConfig::start`](crate::GroupConfig::start). The hook may replace it by another position.
    fn assigned<'a>(&'a mut self, begin: &'a mut BTreeMap<TopicPartition, Position>) -> HookFuture<'a> {
        let _ = begin;
        Box::pin(std::future::ready(()))
    }

    /// Other members have these partitions already, as the group has not seen a heartbeat of this member for too long. Nothing
    /// can be committed.
    fn lost<'a>(&'a mut self, partitions: &'a BTreeSet<TopicPartition>) -> HookFuture<'a> {
        let _ = partitions;
        Box::pin(std::future::ready(()))
    }
}

/// No hooks.
pub(crate) struct NoHooks;

impl RebalanceHooks for NoHooks {}
