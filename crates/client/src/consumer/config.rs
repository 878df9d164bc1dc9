//! The configuration of a consumer.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::ClientConfig;
use crate::connection::RESPONSE_BYTES_MAX;
use crate::error::Error;
use crate::offsets::{EARLIEST, FoundOffsets, LATEST};
use crate::topic_partition::TopicPartition;

/// The most bytes of records that an answer may be asked for: the rest of the answer fits into a response, too.
const FETCH_BYTES_MAX: usize = RESPONSE_BYTES_MAX - (1 << 20);

/// The records that a consumer sees.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, Isolation};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let config = ConsumerConfig::new(ClientConfig::new("127.0.0.1:9092")?);
/// assert_eq!(config.isolation, Isolation::ReadUncommitted);
/// let config = ConsumerConfig { isolation: Isolation::ReadCommitted, ..config };
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// All, also those of transactions that are open or were aborted.
    #[default]
    ReadUncommitted,
    /// Records outside of transactions, and those of committed transactions; nothing after the start of an open one
    /// (KIP-98).
    ReadCommitted,
}

impl Isolation {
    pub(crate) fn code(self) -> i8 {
        match self {
            Isolation::ReadUncommitted => 0,
            Isolation::ReadCommitted => 1,
        }
    }
}

/// A place in a partition at which to read.
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
/// producer.send(Record::new("orders", "one").timestamp_ms(1_000)).await?.await?;
/// producer.send(Record::new("orders", "two").timestamp_ms(2_000)).await?.await?;
/// let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new(address)?))?;
/// let orders = TopicPartition::new("orders", 0);
/// let found = consumer.offsets([(orders.clone(), Position::End)]).await?;
/// assert_eq!(found[&orders], Some(2));
/// consumer.assign([(orders.clone(), Position::Beginning)]);
/// consumer.seek(&orders, Position::Time(1_500))?;
/// let batch = consumer.next().await?;
/// assert_eq!(batch.records().next().expect("a batch has records")?.offset, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// At the first existing record.
    Beginning,
    /// After the last record.
    End,
    /// At this offset.
    Offset(i64),
    /// At the first record with this timestamp or a later one, in milliseconds since 1970; after the last record if
    /// there is none.
    Time(i64),
}

impl Position {
    /// Splits positions into those that a broker has to be asked for, with their timestamps, and offsets.
    pub(crate) fn sort(
        positions: impl IntoIterator<Item = (TopicPartition, Position)>,
    ) -> (Vec<(TopicPartition, i64)>, FoundOffsets) {
        let (mut sought, mut known) = (Vec::new(), BTreeMap::new());
        for (key, position) in positions {
            match position.timestamp() {
                Ok(timestamp) => sought.push((key, timestamp)),
                Err(offset) => drop(known.insert(key, Some(offset))),
            }
        }
        (sought, known)
    }

    /// The timestamp for ListOffsets.
    ///
    /// # Errors
    /// The offset, for which no broker has to be asked.
    pub(crate) fn timestamp(self) -> Result<i64, i64> {
        match self {
            Position::Beginning => Ok(EARLIEST),
            Position::End => Ok(LATEST),
            // Numbers below zero mean something else to a broker.
            Position::Time(timestamp_ms) => Ok(timestamp_ms.max(0)),
            Position::Offset(offset) => Err(offset),
        }
    }
}

/// The reaction to an offset that does not exist, any more or yet. Also to records that were read and are others under a new
/// leader: then all but [`OutOfRange::Fail`] continue where the logs part, if the leader can tell (KIP-320).
///
/// ```
/// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, OutOfRange, Position, TopicPartition};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one")).await?.await?;
/// let config = ConsumerConfig::new(ClientConfig::new(address)?);
/// let config = ConsumerConfig { out_of_range: OutOfRange::Beginning, ..config };
/// let mut consumer = Consumer::new(config)?;
/// consumer.assign([(TopicPartition::new("orders", 0), Position::Offset(1_000))]);
/// assert_eq!(consumer.next().await?.next_offset(), 1, "there is no record 1,000");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OutOfRange {
    /// [`Consumer::next`](crate::Consumer::next) returns the error, and the partition is not read until a seek.
    #[default]
    Fail,
    /// Continue at the first existing record.
    Beginning,
    /// Continue after the last record.
    End,
}

/// Settings of a [`Consumer`](crate::Consumer); the defaults are those of the Java client for the settings that it has too.
///
/// ```
/// use mainstem_client::{ClientConfig, ConsumerConfig, Isolation};
///
/// # fn main() -> Result<(), mainstem_client::Error> {
/// let client = ClientConfig::new("127.0.0.1:9092")?;
/// let config = ConsumerConfig { isolation: Isolation::ReadCommitted, ..ConsumerConfig::new(client) };
/// assert_eq!(config.min_bytes, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    /// The connections, and the waits between attempts.
    pub client: ClientConfig,
    /// The records that are seen. All by default.
    pub isolation: Isolation,
    /// The reaction to an offset that does not exist, or to a topic that was deleted and created again. Offsets say nothing about
    /// the new topic; brokers have topic ids since Kafka 2.8. [`OutOfRange::Fail`] by default.
    pub out_of_range: OutOfRange,
    /// A broker answers when it has this many bytes, or `max_wait` is over. 1 by default.
    pub min_bytes: i32,
    /// The longest time that a broker waits for `min_bytes`. 500 ms by default.
    pub max_wait: Duration,
    /// A broker's answer has about this many bytes of records at most. 50 MiB by default, at most 255 MiB.
    pub fetch_bytes_max: i32,
    /// A partition's part of an answer has about this many bytes at most; a larger batch comes alone. 1 MiB by default.
    pub partition_bytes_max: i32,
    /// No more is fetched while records that the caller has not taken yet have this many bytes. 16 MiB by default.
    pub prefetch_bytes: usize,
    /// The most bytes of a batch without compression; a larger one is an error. 64 MiB by default, less than 4 GiB.
    pub decompressed_bytes_max: usize,
}

impl ConsumerConfig {
    /// The usual settings.
    pub fn new(client: ClientConfig) -> ConsumerConfig {
        ConsumerConfig {
            client,
            isolation: Isolation::ReadUncommitted,
            out_of_range: OutOfRange::Fail,
            min_bytes: 1,
            max_wait: Duration::from_millis(500),
            fetch_bytes_max: 50 << 20,
            partition_bytes_max: 1 << 20,
            prefetch_bytes: 16 << 20,
            decompressed_bytes_max: 64 << 20,
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let refused = |reason: &str| Err(Error::Invalid(reason.to_owned()));
        if self.min_bytes < 0 || self.fetch_bytes_max < 1 || self.partition_bytes_max < 1 {
            return refused(
                "fetch_bytes_max and partition_bytes_max have to be more than 0, min_bytes at least 0",
            );
        }
        if usize::try_from(self.fetch_bytes_max).is_ok_and(|bytes| bytes > FETCH_BYTES_MAX) {
            return refused(
                "fetch_bytes_max is at most 255 MiB, or an answer may be larger than any that is taken",
            );
        }
        if self.prefetch_bytes == 0 {
            return refused("prefetch_bytes has to be more than 0, or nothing is ever asked for");
        }
        if u32::try_from(self.decompressed_bytes_max).is_err() {
            return refused("decompressed_bytes_max is less than 4 GiB");
        }
        if i32::try_from(self.max_wait.as_millis()).is_err() {
            return refused("max_wait is longer than a request can say, 24 days");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused() {
        let config = || ConsumerConfig::new(ClientConfig::new("a:1").unwrap());
        assert_eq!(config().check(), Ok(()));
        assert_eq!(ConsumerConfig { fetch_bytes_max: 255 << 20, ..config() }.check(), Ok(()));
        for wrong in [
            ConsumerConfig { fetch_bytes_max: 0, ..config() },
            ConsumerConfig { fetch_bytes_max: (255 << 20) + 1, ..config() },
            ConsumerConfig { fetch_bytes_max: i32::MAX, ..config() },
            ConsumerConfig { partition_bytes_max: 0, ..config() },
            ConsumerConfig { min_bytes: -1, ..config() },
            ConsumerConfig { prefetch_bytes: 0, ..config() },
            ConsumerConfig { max_wait: Duration::MAX, ..config() },
            ConsumerConfig { decompressed_bytes_max: 4 << 30, ..config() },
        ] {
            assert!(matches!(wrong.check(), Err(Error::Invalid(_))), "{wrong:?}");
        }
    }
}
