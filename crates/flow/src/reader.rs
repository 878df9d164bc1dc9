//! Messages of a topic for scripts: without a group, and without committed positions.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, Position, TopicPartition};

use crate::app::brokers_of;
use crate::error::{Error, Result};
use crate::message::{Msg, OpenBatch, Received};
use crate::payload::Payload;

/// Interval at which the positions are compared with the ends.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Reads a topic from a position on, all of its partitions; those of one partition by offset. Nothing is committed, and no
/// other reader is disturbed.
///
/// ```no_run
/// use mainstem_flow::{Json, Reader};
///
/// # async fn read() -> mainstem_flow::Result {
/// let mut orders = Reader::open("kafka://127.0.0.1:9092", "orders").await?;
/// while let Some(order) = orders.next_known::<Json<serde_json::Value>>().await? {
///     println!("{}: {:?}", order.offset(), *order);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Reader {
    consumer: Consumer,
    records: VecDeque<Received>,
    /// The end of each partition when the reader was opened, until it is reached.
    ends: Vec<(TopicPartition, i64)>,
}

impl Reader {
    /// Opens a topic at its beginning.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a URL of another kind; that the topic does not exist, or cannot be read.
    pub async fn open(url: &str, topic: &str) -> Result<Reader> {
        let config = ClientConfig::new(brokers_of(url, "a topic is read at kafka://HOST:PORT")?)?;
        Reader::open_at(config, topic, Position::Beginning).await
    }

    /// Opens a topic at a position, by a client's settings.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub async fn open_at(config: ClientConfig, topic: &str, position: Position) -> Result<Reader> {
        let mut consumer = Consumer::new(ConsumerConfig::new(config))?;
        let found = consumer.topic(topic).await?;
        let partitions: Vec<_> = found
            .partitions
            .iter()
            .map(|partition| TopicPartition::new(found.name.clone(), partition.index))
            .collect();
        let at = |position: Position| partitions.iter().map(move |partition| (partition.clone(), position));
        let ends = consumer.offsets(at(Position::End)).await?;
        let begins = consumer.offsets(at(position)).await?;
        let ends = ends.into_iter().filter_map(|(partition, end)| {
            let begin = begins.get(&partition).copied().flatten()?;
            Some((partition, end?)).filter(|(_, end)| begin < *end)
        });
        let ends = ends.collect();
        consumer.assign(at(position));
        Ok(Reader { consumer, records: VecDeque::new(), ends })
    }

    /// Returns the next message; waits until there is one. A future of it may be dropped, and loses nothing.
    ///
    /// # Errors
    /// [`Error::Undecodable`] for one that is no `P`, which is passed over; why the topic cannot be read.
    pub async fn next<P: Payload>(&mut self) -> Result<Msg<P>> {
        let received = self.next_record().await?;
        let (partition, offset) = (received.partition().clone(), received.offset());
        Msg::decode(received).map_err(|cause| Error::Undecodable {
            partition,
            offset,
            cause: cause.to_string(),
        })
    }

    /// The next message of those that the topic had when it was opened; none after the last.
    ///
    /// # Errors
    /// As [`Reader::next`].
    pub async fn next_known<P: Payload>(&mut self) -> Result<Option<Msg<P>>> {
        while self.records.is_empty() && !self.ends.is_empty() {
            // If the last offsets are markers of transactions nothing comes, and only the position shows the end.
            if let Ok(fetched) = tokio::time::timeout(LOOK_EVERY, self.fetch()).await {
                fetched?;
            }
            let positions = self.consumer.positions().known();
            self.ends
                .retain(|(partition, end)| positions.get(partition).is_none_or(|position| position < end));
        }
        if self.records.is_empty() {
            return Ok(None);
        }
        self.next().await.map(Some)
    }

    /// The next message as it is.
    ///
    /// # Errors
    /// Why the topic cannot be read.
    pub async fn next_record(&mut self) -> Result<Received> {
        loop {
            match self.records.pop_front() {
                Some(received) => return Ok(received),
                None => self.fetch().await?,
            }
        }
    }

    async fn fetch(&mut self) -> Result {
        let batch = Arc::new(OpenBatch::open(self.consumer.next().await?, Vec::new())?);
        self.records.extend((0..batch.len()).map(|index| Received::new(batch.clone(), index)));
        Ok(())
    }
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("records", &self.records).finish_non_exhaustive()
    }
}
