//! The consumer: batches out of partitions that the caller names.
//!
//! `fetcher.rs` asks brokers for the partitions that `assignment.rs` (pure) wants, in sessions (`session.rs`, pure). Answers
//! wait as chunks (`chunk.rs`) until they are taken batch by batch (`batch.rs`).

mod assignment;
mod batch;
mod chunk;
mod config;
mod fetcher;
mod ranges;
mod session;
mod stream;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_records::Scratch;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use assignment::{Assignment, Unopened};
pub(crate) use assignment::{EpochValidation, FetchPosition, Start};
pub use batch::{FetchedBatch, FetchedRecords};
pub use config::{ConsumerConfig, Isolation, OutOfRange, Position};
use fetcher::Fetcher;
pub use ranges::{RecordRange, SharedRecords};
pub(crate) use stream::Batches;
pub use stream::{OwnedRecord, RecordStream};

use crate::cluster::{Cluster, Topic};
use crate::error::Error;
use crate::group::offsets::{CommittedOffset, CommittedOffsets};
use crate::offsets::list_offsets;
use crate::retry::retrying;
use crate::topic_partition::TopicPartition;

/// Reads partitions that are assigned by hand, batch by batch. It reads ahead of the caller.
///
/// Records are borrowed from the bytes that arrived. The caller keeps the offsets at which it continues later; groups are
/// not part of it.
///
/// ```
/// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, Position, TopicPartition};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one")).await?.await?;
/// let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new(address)?))?;
/// consumer.assign([(TopicPartition::new("orders", 0), Position::Beginning)]);
/// let batch = consumer.next().await?;
/// for record in batch.records() {
///     let record = record?;
///     assert_eq!((record.offset, record.value), (0, Some(&b"one"[..])));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Consumer {
    shared: Arc<Shared>,
    /// For decompression, which happens outside of the lock.
    scratch: Scratch,
    fetcher: Option<JoinHandle<()>>,
}

/// The state that the consumer and its fetcher share.
#[derive(Debug)]
struct Shared {
    config: ConsumerConfig,
    cluster: Cluster,
    state: Mutex<State>,
    /// Wakes the fetcher: it has something new to ask for, or has to end.
    work: Notify,
    /// Wakes the caller: there may be something to take.
    arrived: Notify,
}

/// The positions of a consumer, to be looked at while [`Consumer::next`] is under way.
///
/// ```
/// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, Position, TopicPartition};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?))?;
/// let positions = consumer.positions();
/// consumer.assign([(TopicPartition::new("orders", 0), Position::Offset(7))]);
/// assert_eq!(positions.assignment(), [TopicPartition::new("orders", 0)]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Positions(Arc<Shared>);

impl Positions {
    /// The offset to continue at, of each partition that is read and whose offset is known; see [`Consumer::position`].
    pub fn known(&self) -> BTreeMap<TopicPartition, i64> {
        let state = self.0.state.lock();
        let known = |key: &TopicPartition| Some((key.clone(), state.assignment.position(key).ok()??));
        state.assignment.keys().filter_map(known).collect()
    }

    /// The partitions that are read, in their order; see [`Consumer::assignment`].
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.0.state.lock().assignment.keys().cloned().collect()
    }

    /// Offsets to be committed, with the epochs of those that are where the consumer is.
    pub(crate) fn places(&self, offsets: &BTreeMap<TopicPartition, i64>) -> CommittedOffsets {
        let state = self.0.state.lock();
        let place = |(key, offset): (&TopicPartition, &i64)| {
            let leader_epoch = Some(state.assignment.epoch_at(key, *offset)).filter(|epoch| *epoch >= 0);
            (key.clone(), CommittedOffset { leader_epoch, ..CommittedOffset::from(*offset) })
        };
        offsets.iter().map(place).collect()
    }
}

#[derive(Debug)]
struct State {
    assignment: Assignment,
    is_closed: bool,
    /// The reason if the fetcher has ended.
    ended: Option<Error>,
}

impl Consumer {
    /// A consumer without partitions.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the settings make no sense.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(config: ConsumerConfig) -> Result<Consumer, Error> {
        config.check()?;
        let shared = Arc::new(Shared {
            cluster: Cluster::new(config.client.clone()),
            state: Mutex::new(State { assignment: Assignment::default(), is_closed: false, ended: None }),
            work: Notify::new(),
            arrived: Notify::new(),
            config,
        });
        let fetcher = tokio::spawn(Fetcher::new(shared.clone()).run());
        Ok(Consumer { shared, scratch: Scratch::default(), fetcher: Some(fetcher) })
    }

    /// Reads these partitions and no others. Partitions that were read before keep their position, whatever position is
    /// given; [`Consumer::seek`] moves them.
    pub fn assign(&mut self, partitions: impl IntoIterator<Item = (TopicPartition, Position)>) {
        self.begin(partitions.into_iter().map(|(key, position)| (key, position.into())));
    }

    /// The same, where the epochs of positions may be known.
    pub(crate) fn begin(&mut self, partitions: impl IntoIterator<Item = (TopicPartition, Start)>) {
        self.shared.state.lock().assignment.assign(partitions);
        self.shared.work.notify_one();
    }

    /// The next batch of any partition, in the order of arrival; those of one partition in the order of their offsets.
    /// Waits until there is one. A future of this that is dropped takes nothing.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a batch cannot be read, or why a broker refuses a partition or cannot be asked for it, after all
    /// records that have arrived of it. That partition is not read any more until a [`Consumer::seek`], the others are. Failures
    /// that may pass are retried silently.
    pub async fn next(&mut self) -> Result<FetchedBatch, Error> {
        loop {
            let (taken, ended) = {
                let mut state = self.shared.state.lock();
                (state.assignment.take(), state.ended.clone())
            };
            if taken.has_freed_memory {
                self.shared.work.notify_one();
            }
            match taken.batch {
                Some(Err(error)) => return Err(error),
                Some(Ok(unopened)) => match self.open(unopened) {
                    Some(batch) => return batch,
                    None => continue,
                },
                None => {}
            }
            if let Some(error) = ended {
                return Err(error);
            }
            self.shared.arrived.notified().await;
        }
    }

    /// Verifies and decompresses a batch while the fetcher continues.
    fn open(&mut self, unopened: Unopened) -> Option<Result<FetchedBatch, Error>> {
        let outcome = unopened.open(&self.shared.config, &mut self.scratch);
        let opened = self.shared.state.lock().assignment.opened(unopened, outcome);
        if let Some(Err(_)) = opened {
            // The other chunks of the partition are dropped, which frees memory for other partitions.
            self.shared.work.notify_one();
        }
        opened
    }

    /// The records of all batches from now on, one by one.
    pub fn stream(&mut self) -> RecordStream<'_> {
        RecordStream::new(self)
    }

    /// Continues at another position in a partition; batches that were read ahead are dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn seek(&mut self, partition: &TopicPartition, position: Position) -> Result<(), Error> {
        self.change(|assignment| assignment.seek(partition, position))
    }

    /// Takes nothing from a partition until [`Consumer::resume`]; batches that were read ahead are dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn pause(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.change(|assignment| assignment.set_paused(partition, true))
    }

    /// Continues with a partition after [`Consumer::pause`].
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn resume(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.change(|assignment| assignment.set_paused(partition, false))
    }

    /// Takes nothing from a partition until [`Consumer::release`], and keeps batches that were read ahead: at most twice
    /// [`ConsumerConfig::partition_bytes_max`], which do not count towards [`ConsumerConfig::prefetch_bytes`].
    ///
    /// ```
    /// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, Position, TopicPartition};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?))?;
    /// let orders = TopicPartition::new("orders", 0);
    /// consumer.assign([(orders.clone(), Position::Beginning)]);
    /// consumer.hold(&orders)?;
    /// consumer.release(&orders)?;
    /// assert!(consumer.hold(&TopicPartition::new("orders", 1)).is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn hold(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.change(|assignment| assignment.set_held(partition, true))
    }

    /// Continues with a partition after [`Consumer::hold`], with the batches that were read ahead.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn release(&mut self, partition: &TopicPartition) -> Result<(), Error> {
        self.change(|assignment| assignment.set_held(partition, false))
    }

    fn change(&mut self, change: impl FnOnce(&mut Assignment) -> Result<(), Error>) -> Result<(), Error> {
        change(&mut self.shared.state.lock().assignment)?;
        self.shared.work.notify_one();
        Ok(())
    }

    /// The partitions that are read, in their order.
    pub fn assignment(&self) -> Vec<TopicPartition> {
        self.positions().assignment()
    }

    /// The offset after the last batch that was taken, at which to continue later. None until a position other than an offset
    /// was found.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn position(&self, partition: &TopicPartition) -> Result<Option<i64>, Error> {
        self.shared.state.lock().assignment.position(partition)
    }

    /// A view of the positions that can be kept beside the consumer.
    ///
    /// ```
    /// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, Position, TopicPartition};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?))?;
    /// let positions = consumer.positions();
    /// consumer.assign([(TopicPartition::new("orders", 0), Position::Offset(7))]);
    /// assert_eq!(positions.known(), [(TopicPartition::new("orders", 0), 7)].into());
    /// # Ok(())
    /// # }
    /// ```
    pub fn positions(&self) -> Positions {
        Positions(self.shared.clone())
    }

    /// The number of offsets between the position and the end of the partition, as of its last answer. With
    /// [`Isolation::ReadCommitted`] the end is the first open transaction. None until there is an answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the partition is not assigned.
    pub fn lag(&self, partition: &TopicPartition) -> Result<Option<i64>, Error> {
        self.shared.state.lock().assignment.lag(partition)
    }

    /// A topic with its partitions.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ClientConfig::operation_timeout`](crate::ClientConfig::operation_timeout), or why the
    /// cluster refuses the topic.
    pub async fn topic(&self, name: &str) -> Result<Arc<Topic>, Error> {
        let config = &self.shared.config.client;
        let find = || self.shared.cluster.topic(name, false);
        retrying(config, config.operation_timeout, &format!("finding topic {name}"), find).await
    }

    /// The offsets of positions in partitions, assigned or not; [`Position::Offset`] is its own answer.
    ///
    /// A [`Position::Time`] after all records has none.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ClientConfig::operation_timeout`](crate::ClientConfig::operation_timeout), or why the
    /// cluster refuses a partition.
    pub async fn offsets(
        &self,
        positions: impl IntoIterator<Item = (TopicPartition, Position)>,
    ) -> Result<BTreeMap<TopicPartition, Option<i64>>, Error> {
        let (sought, mut found) = Position::sort(positions);
        let (config, isolation) = (&self.shared.config.client, self.shared.config.isolation);
        let ask = || list_offsets(&self.shared.cluster, isolation, &sought);
        found.extend(retrying(config, config.operation_timeout, "finding offsets", ask).await?);
        Ok(found)
    }

    /// Ends reading, and returns when no request is under way any more.
    pub async fn close(mut self) {
        self.end();
        if let Some(fetcher) = self.fetcher.take() {
            // A panic there was reported when it happened.
            let _ = fetcher.await;
        }
    }

    fn end(&self) {
        self.shared.state.lock().is_closed = true;
        self.shared.work.notify_one();
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.end();
    }
}
