//! Records one by one, for those who like a `Stream`.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use super::{Consumer, FetchedBatch};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// A record that can be kept: it shares its bytes with the batch that it came in, and keeps them all in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The partition that it comes from.
    pub partition: TopicPartition,
    /// Its place there.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    /// What records belong together by.
    pub key: Option<Bytes>,
    /// The payload; none deletes the key from a compacted topic.
    pub value: Option<Bytes>,
    /// Names and values beside the payload; names may come twice. What is no UTF-8 in a name is replaced.
    pub headers: Vec<(String, Option<Bytes>)>,
}

/// The next batch of something, as a future that gives that back.
type Fetching<'a> = Pin<Box<dyn Future<Output = (Result<FetchedBatch, Error>, Source<'a>)> + Send + 'a>>;
type Source<'a> = &'a mut (dyn Batches + 'a);

/// What has batches.
pub(crate) trait Batches: Send {
    fn next_batch(&mut self) -> Pin<Box<dyn Future<Output = Result<FetchedBatch, Error>> + Send + '_>>;
}

impl Batches for Consumer {
    fn next_batch(&mut self) -> Pin<Box<dyn Future<Output = Result<FetchedBatch, Error>> + Send + '_>> {
        Box::pin(self.next())
    }
}

/// The records of a consumer, as [`Consumer::stream`] and [`GroupConsumer::stream`](crate::GroupConsumer::stream) give
/// them. It never ends; after an error it goes on with what can be read.
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
    /// What the last batch has left.
    records: VecDeque<Result<OwnedRecord, Error>>,
}

impl<'a> RecordStream<'a> {
    pub(crate) fn new(source: Source<'a>) -> RecordStream<'a> {
        RecordStream { idle: Some(source), fetching: None, records: VecDeque::new() }
    }
}

impl Stream for RecordStream<'_> {
    type Item = Result<OwnedRecord, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(record) = self.records.pop_front() {
                return Poll::Ready(Some(record));
            }
            if let Some(source) = self.idle.take() {
                self.fetching = Some(Box::pin(async move { (source.next_batch().await, source) }));
            }
            let fetching = self.fetching.as_mut().expect("it is idle or it fetches");
            let (batch, source) = ready!(fetching.as_mut().poll(context));
            (self.fetching, self.idle) = (None, Some(source));
            match batch {
                Ok(batch) => self.records.extend(batch.owned_records()),
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
