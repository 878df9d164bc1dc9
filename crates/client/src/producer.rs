//! The producer: it takes records, and returns their places in the log.
//!
//! `send` appends a record to the open batch of its partition (`accumulator.rs`, `queue.rs`, `batch.rs`: pure). The sender
//! (`sender.rs`) puts batches into requests (`request.rs`) and reports their outcomes to the queues. `transaction.rs` (pure)
//! decides which steps of a transaction are allowed, `transactional.rs` takes them for the caller, and `coordinator.rs`
//! sends them to the coordinator.

mod accumulator;
mod batch;
mod config;
mod coordinator;
mod delivery;
mod partitioner;
mod queue;
mod record;
mod request;
mod sender;
#[cfg(test)]
mod tests;
mod transaction;
mod transactional;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, SemaphorePermit};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use accumulator::{Accumulator, Now};
use batch::record_bytes;
pub use config::{Acks, ProducerConfig};
pub use delivery::{Delivered, Delivery};
pub use partitioner::partition_of_key;
pub use record::Record;
use sender::Sender;
use transaction::Transactions;

use crate::cluster::{Cluster, Topic};
use crate::error::Error;
use crate::retry::{deadline, retrying};

/// Writes records to topics. Cheap to clone; all clones are one producer.
///
/// Records of a partition that one task sends keep their order. When the last clone is dropped, records that are not written yet
/// fail with [`Error::Closed`]; [`Producer::close`] waits for them. An open transaction then stays open, and holds up consumers
/// that read committed records. Its coordinator aborts it after [`ProducerConfig::transaction_timeout`], or when a producer
/// of the same transactional id comes back; [`Producer::close`] aborts it at once.
///
/// ```
/// use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// let first = producer.send(Record::new("orders", "one").key("customer-7")).await?;
/// let second = producer.send(Record::new("orders", "two").key("customer-7")).await?;
/// assert_eq!(first.await?.offset, Some(0));
/// assert_eq!(second.await?.offset, Some(1));
/// producer.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Producer {
    owner: Arc<Owner>,
}

/// Ends the sender with the last clone.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    sender: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the callers and the sender share.
#[derive(Debug)]
struct Shared {
    config: ProducerConfig,
    cluster: Cluster,
    state: Mutex<State>,
    /// Held by the call that ends a transaction.
    ending: tokio::sync::Mutex<()>,
    /// The bytes that further records may take.
    memory: Semaphore,
    /// Wakes the sender: it has something new to send, or has to end.
    work: Notify,
    /// Wakes callers: batches have come back.
    settled: Notify,
    /// The bytes of batches that brokers have acknowledged.
    written_bytes: AtomicU64,
    started: Instant,
}

#[derive(Debug)]
struct State {
    queues: Accumulator,
    /// The state of transactions, if the producer has a transactional id.
    transactions: Option<Transactions>,
    /// The reason if no more records are taken.
    refusal: Option<Error>,
    /// True if the sender has to end.
    is_closed: bool,
    /// True if the sender has ended: no outcome will come any more.
    has_ended: bool,
}

impl Producer {
    /// A producer. It connects when the first record is sent.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the settings contradict each other.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(config: ProducerConfig) -> Result<Producer, Error> {
        config.check()?;
        let queues = Accumulator::new(config.queue());
        let shared = Arc::new(Shared {
            cluster: Cluster::new(config.client.clone()),
            state: Mutex::new(State {
                queues,
                transactions: config.transactional_id.as_ref().map(|_| Transactions::new()),
                refusal: None,
                is_closed: false,
                has_ended: false,
            }),
            ending: tokio::sync::Mutex::new(()),
            memory: Semaphore::new(config.buffer_bytes),
            work: Notify::new(),
            settled: Notify::new(),
            written_bytes: AtomicU64::new(0),
            started: Instant::now(),
            config,
        });
        let sender = tokio::spawn(Sender::new(shared.clone()).run());
        Ok(Producer { owner: Arc::new(Owner { shared, sender: Mutex::new(Some(sender)) }) })
    }

    /// Gives a record to the producer; the delivery that it returns tells when and where it was written.
    ///
    /// Waits while the topic is not known and while the records that are not written yet take
    /// [`ProducerConfig::buffer_bytes`]. When this future is dropped before it is ready, the record is not sent.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ProducerConfig::max_block`], [`Error::Invalid`] if the record is too large,
    /// [`Error::Unknown`] if the topic has no such partition, [`Error::Closed`], with a transactional id
    /// [`Error::Invalid`] outside of a transaction and [`Error::TransactionFailed`] in one that has failed, or why the cluster refuses the topic or
    /// the producer.
    pub async fn send(&self, record: Record) -> Result<Delivery, Error> {
        let shared = &*self.owner.shared;
        shared.check_open()?;
        let topic = shared.topic(&record.topic, record.partition).await?;
        let reserved = shared.reserve(&record).await?;
        let mut state = shared.state.lock();
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone());
        }
        if let Some(transactions) = &state.transactions {
            transactions.check_open()?;
        }
        let (delivery, is_new) = state.queues.append(&topic, &record, || shared.now(), rand::random)?;
        drop(state);
        // The queue releases the bytes when the batch is done.
        reserved.forget();
        if is_new {
            shared.work.notify_one();
        }
        Ok(delivery)
    }

    /// A topic with its partitions, which the cluster may create as it does for a record.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ProducerConfig::max_block`], or why the cluster refuses the topic.
    pub async fn topic(&self, name: &str) -> Result<Arc<Topic>, Error> {
        self.owner.shared.topic(name, None).await
    }

    /// Sends all records that were given before, without waiting for more, and returns when the outcome of each is known. The
    /// deliveries have the outcomes.
    pub async fn flush(&self) {
        let shared = &self.owner.shared;
        let promises = shared.state.lock().queues.promises();
        let _flushing = Flushing::begin(shared);
        for promise in promises {
            promise.settled().await;
        }
    }

    /// The bytes of all batches that brokers have acknowledged so far, as they were sent: with headers, and compressed.
    ///
    /// ```
    /// use mainstem_client::{ClientConfig, Producer, ProducerConfig, Record};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let producer = Producer::new(ProducerConfig::new(ClientConfig::new(broker.address())?))?;
    /// producer.send(Record::new("orders", "one")).await?.await?;
    /// assert!(producer.written_bytes() > 3);
    /// # Ok(())
    /// # }
    /// ```
    pub fn written_bytes(&self) -> u64 {
        self.owner.shared.written_bytes.load(Ordering::Relaxed)
    }

    /// Takes no more records, of any clone, and returns when the outcome of all is known: at the latest after
    /// [`ProducerConfig::delivery_timeout`], two minutes by default.
    ///
    /// A transaction is aborted, unless its coordinator was asked to commit it: records that are not sent yet fail with
    /// [`Error::Aborted`]. If the coordinator does not answer in that time, the transaction stays open as after a drop.
    pub async fn close(self) {
        let limit = self.owner.shared.config.delivery_timeout;
        self.close_within(limit).await;
    }

    /// The same within a time. Records without an outcome by then fail with [`Error::Closed`]; some of them may be written all
    /// the same.
    ///
    /// ```
    /// # use mainstem_client::{ClientConfig, Producer, ProducerConfig};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new("127.0.0.1:9092")?))?;
    /// producer.close_within(Duration::from_secs(5)).await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close_within(self, limit: Duration) {
        self.owner.shared.state.lock().refusal.get_or_insert(Error::Closed);
        self.owner.shared.memory.close();
        let finished = async {
            self.abort_what_is_open().await;
            self.flush().await;
        };
        // Records that are open when the time is over fail with the end of the sender.
        let _ = tokio::time::timeout_at(deadline(limit), finished).await;
        self.owner.shared.end();
        let sender = self.owner.sender.lock().take();
        if let Some(sender) = sender {
            // A panic there was reported when it happened.
            let _ = sender.await;
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// A flush that runs; it ends when it is dropped.
struct Flushing<'a>(&'a Shared);

impl Flushing<'_> {
    fn begin(shared: &Shared) -> Flushing<'_> {
        shared.state.lock().queues.flushes += 1;
        shared.work.notify_one();
        Flushing(shared)
    }
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().queues.flushes -= 1;
    }
}

impl Shared {
    /// A topic to write to. A partition that is not known may have been added since the last look.
    async fn topic(&self, name: &str, partition: Option<i32>) -> Result<Arc<Topic>, Error> {
        match self.cluster.remembered_topic(name) {
            Some(topic) if partition.is_none_or(|one| topic.partition(one).is_ok()) => Ok(topic),
            Some(_) => {
                self.cluster.invalidate_topic(name);
                self.find_topic(name).await
            }
            None => self.find_topic(name).await,
        }
    }

    async fn find_topic(&self, name: &str) -> Result<Arc<Topic>, Error> {
        let what = format!("finding topic {name}");
        let find = || self.cluster.topic(name, true);
        retrying(&self.config.client, self.config.max_block, &what, find).await
    }

    /// Reserves the memory of a record.
    async fn reserve(&self, record: &Record) -> Result<SemaphorePermit<'_>, Error> {
        let (bytes, limit) = (record_bytes(record), self.config.request_bytes_max);
        let Some(bytes) = u32::try_from(bytes).ok().filter(|_| bytes <= limit) else {
            return Err(Error::Invalid(format!(
                "a record of {bytes} bytes for topic {} is larger than request_bytes_max, {limit}",
                record.topic
            )));
        };
        if let Ok(reserved) = self.memory.try_acquire_many(bytes) {
            return Ok(reserved);
        }
        // Batches that wait for more records hold the memory that is missing.
        let _flushing = Flushing::begin(self);
        match tokio::time::timeout(self.config.max_block, self.memory.acquire_many(bytes)).await {
            Ok(Ok(reserved)) => Ok(reserved),
            Ok(Err(_)) => Err(self.state.lock().refusal.clone().unwrap_or(Error::Closed)),
            Err(_) => Err(Error::TimedOut {
                what: format!(
                    "waiting for room among the {} bytes of the producer",
                    self.config.buffer_bytes
                ),
                after: self.config.max_block,
                last: None,
            }),
        }
    }

    fn now(&self) -> Now {
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Now {
            mono_ms: u64::try_from(self.started.elapsed().as_millis())
                .expect("a process runs no million years"),
            wall_ms: i64::try_from(wall.as_millis()).unwrap_or(i64::MAX),
        }
    }

    /// Fails all records that wait, and refuses further ones.
    fn fail(&self, error: &Error) {
        let mut state = self.state.lock();
        let refusal = state.refusal.get_or_insert(error.clone()).clone();
        state.queues.abandon(&refusal);
        state.has_ended = true;
        self.memory.close();
        self.settled.notify_waiters();
    }

    /// Lets the sender end.
    fn end(&self) {
        self.state.lock().is_closed = true;
        self.work.notify_one();
    }
}
