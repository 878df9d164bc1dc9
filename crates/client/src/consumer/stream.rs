//! Records one by one, as a `Stream`.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use super::{Consumer, FetchedBatch, Position};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// A record that can be kept: it shares its bytes with the batch that it came in, and keeps them all in memory.
///
/// ```
/// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, OwnedRecord, Position, TopicPartition};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one")).await?.await?;
/// # let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new(address)?))?;
/// # consumer.assign([(TopicPartition::new("orders", 0), Position::Beginning)]);
/// let batch = consumer.next().await?;
/// let records: Vec<OwnedRecord> = batch.owned_records().collect::<Result<_, _>>()?;
/// assert_eq!((records[0].offset, &records[0].key), (0, &None));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The partition that it comes from.
    pub partition: TopicPartition,
    /// Its place there.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// The key; records with the same key belong together.
    pub key: Option<Bytes>,
    /// The payload; none deletes the key from a compacted topic.
    pub value: Option<Bytes>,
    /// Names and values beside the payload; names may come twice. What is no UTF-8 in a name is replaced.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// The next batch of something, as a future that gives that back.
type Fetching<'a> = Pin<Box<dyn Future<Output = (Result<FetchedBatch, Error>, Source<'a>)> + Send + 'a>>;
type Source<'a> = &'a mut (dyn Batches + 'a);

/// A source of batches.
pub(crate) trait Batches: Send {
    fn next_batch(&mut self) -> Pin<Box<dyn Future<Output = Result<FetchedBatch, Error>> + Send + '_>>;

    /// Reads a partition again from an offset, if it is still read at all.
    fn go_back(&mut self, partition: &TopicPartition, offset: i64);
}

impl Batches for Consumer {
    fn next_batch(&mut self) -> Pin<Box<dyn Future<Output = Result<FetchedBatch, Error>> + Send + '_>> {
        Box::pin(self.next())
    }

    fn go_back(&mut self, partition: &TopicPartition, offset: i64) {
        // A partition that was revoked meanwhile is read by another member.
        let _ = self.seek(partition, Position::Offset(offset));
    }
}

/// The records of a consumer, as [`Consumer::stream`] and [`GroupConsumer::stream`](crate::GroupConsumer::stream) return
/// them. It never ends; after an error it continues with what can be read. When it is dropped, the consumer goes back to
/// the first record that was not handed out.
///
/// ```
/// use futures_util::TryStreamExt;
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
/// let mut records = consumer.stream();
/// let first = records.try_next().await?.expect("it never ends");
/// assert_eq!(first.value.as_deref(), Some(&b"one"[..]));
/// # Ok(())
/// # }
/// ```
pub struct RecordStream<'a> {
    /// None only while it becomes the fetch.
    idle: Option<Source<'a>>,
    fetching: Option<Fetching<'a>>,
    /// The records of the last batch that were not handed out.
    records: VecDeque<Result<OwnedRecord, Error>>,
    /// The partition and offset at which they begin.
    rest: Option<(TopicPartition, i64)>,
}

impl<'a> RecordStream<'a> {
    pub(crate) fn new(source: Source<'a>) -> RecordStream<'a> {
        RecordStream { idle: Some(source), fetching: None, records: VecDeque::new(), rest: None }
    }

    fn hand_out(&mut self) -> Option<Result<OwnedRecord, Error>> {
        let record = self.records.pop_front()?;
        if let (Ok(record), Some((_, offset))) = (&record, &mut self.rest) {
            *offset = record.offset.saturating_add(1);
        }
        Some(record)
    }
}

impl Drop for RecordStream<'_> {
    fn drop(&mut self) {
        if let (false, Some(source), Some((partition, offset))) =
            (self.records.is_empty(), &mut self.idle, &self.rest)
        {
            source.go_back(partition, *offset);
        }
    }
}

impl Stream for RecordStream<'_> {
    type Item = Result<OwnedRecord, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(record) = self.hand_out() {
                return Poll::Ready(Some(record));
            }
            if let Some(source) = self.idle.take() {
                self.fetching = Some(Box::pin(async move { (source.next_batch().await, source) }));
            }
            let fetching = self.fetching.as_mut().expect("it is idle or it fetches");
            let (batch, source) = ready!(fetching.as_mut().poll(context));
            (self.fetching, self.idle) = (None, Some(source));
            match batch {
                Ok(batch) => {
                    self.rest = Some((batch.partition().clone(), batch.first_offset()));
                    self.records.extend(batch.owned_records());
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }
}

impl fmt::Debug for RecordStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordStream").field("left", &self.records.len()).finish_non_exhaustive()
    }
}
