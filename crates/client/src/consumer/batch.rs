//! A batch of records that was fetched, and the way to its records without a copy.

use bytes::Bytes;
use mainstem_records::{Batch, InvalidBatch, Record, RecordIter, Scratch};
use mainstem_wire::Uuid;

use super::stream::OwnedRecord;
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// Records of one partition, as they were written together.
///
/// It keeps the whole answer of the broker in memory for as long as it lives: copy what is to be kept for long.
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
/// assert_eq!((batch.partition().to_string().as_str(), batch.next_offset()), ("orders-0", 1));
/// let kept = batch.owned_records().collect::<Result<Vec<_>, _>>()?;
/// drop(batch);
/// assert_eq!(kept[0].value.as_deref(), Some(&b"one"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FetchedBatch {
    partition: TopicPartition,
    /// The batch as it is on disk.
    bytes: Bytes,
    /// Its records, if they are compressed there.
    decompressed: Option<Bytes>,
    /// Records before this offset were not asked for.
    first_offset: i64,
    /// That of the topic which was read; zero where it is not known.
    topic_id: Uuid,
}

impl FetchedBatch {
    /// Takes a batch that is complete, and checks it.
    pub(crate) fn open(
        partition: TopicPartition,
        bytes: Bytes,
        first_offset: i64,
        decompressed_bytes_max: usize,
        scratch: &mut Scratch,
    ) -> Result<FetchedBatch, Error> {
        let batch = view(&bytes);
        let damaged = |reason: String| Error::Damaged {
            partition: partition.clone(),
            offset: batch.base_offset(),
            next_offset: Some(batch.next_offset()).filter(|next| *next > first_offset),
            reason,
        };
        if !batch.verify_crc() {
            return Err(damaged("its checksum is wrong".to_owned()));
        }
        let mut buffer = Vec::new();
        if batch.attributes().is_compressed() {
            batch
                .decompressed(&mut buffer, decompressed_bytes_max, scratch)
                .map_err(|error| damaged(error.to_string()))?;
        }
        let decompressed = batch.attributes().is_compressed().then(|| Bytes::from(buffer));
        Ok(FetchedBatch { partition, decompressed, first_offset, bytes, topic_id: Uuid::ZERO })
    }

    /// The same, read in the topic with this id.
    pub(crate) fn of_topic(self, topic_id: Uuid) -> FetchedBatch {
        FetchedBatch { topic_id, ..self }
    }

    /// A batch out of bytes that did not come from a broker, such as those of a test: one whole batch of Kafka's format 2,
    /// uncompressed or not.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is something else.
    pub fn from_bytes(partition: TopicPartition, bytes: Bytes) -> Result<FetchedBatch, Error> {
        FetchedBatch::from_bytes_within(partition, bytes, u32::MAX as usize)
    }

    /// The same for bytes of a peer: it may have at most `bytes_max` without compression.
    ///
    /// # Errors
    /// [`Error::Damaged`], also if it has more.
    pub fn from_bytes_within(
        partition: TopicPartition,
        bytes: Bytes,
        bytes_max: usize,
    ) -> Result<FetchedBatch, Error> {
        let damaged = |reason: String| Error::Damaged {
            partition: partition.clone(),
            offset: 0,
            next_offset: None,
            reason,
        };
        let (batch, rest) = Batch::split_first(&bytes).map_err(|error| damaged(error.to_string()))?;
        if !rest.is_empty() {
            return Err(damaged("bytes follow the batch".to_owned()));
        }
        let first_offset = batch.base_offset();
        FetchedBatch::open(partition.clone(), bytes.clone(), first_offset, bytes_max, &mut Scratch::default())
    }

    /// The partition that it comes from.
    pub fn partition(&self) -> &TopicPartition {
        &self.partition
    }

    /// The id of the topic in which it was read, which tells that from another one of the same name (KIP-516). None where
    /// brokers are too old to know, and for bytes that did not come from a broker.
    pub fn topic_id(&self) -> Option<Uuid> {
        Some(self.topic_id).filter(|id| !id.is_zero())
    }

    /// Records before this offset are left out.
    pub(crate) fn first_offset(&self) -> i64 {
        self.first_offset
    }

    /// The epoch of the leader that took it (KIP-101); -1 where a broker before Kafka 0.11 wrote it.
    pub fn leader_epoch(&self) -> i32 {
        view(&self.bytes).partition_leader_epoch()
    }

    /// The offset behind its last record: where to go on reading.
    pub fn next_offset(&self) -> i64 {
        view(&self.bytes).next_offset()
    }

    /// The records, borrowed. There may be none, where a compacted topic keeps an empty batch.
    pub fn records(&self) -> FetchedRecords<'_> {
        FetchedRecords { batch: self, records: self.all_records() }
    }

    /// All of its records, also those that were not asked for.
    pub(super) fn all_records(&self) -> Option<RecordIter<'_>> {
        let batch = view(&self.bytes);
        let payload = self.decompressed.as_deref().unwrap_or(batch.payload());
        // The checksum says that it was written so; a count below zero is no record's.
        batch.records_in(payload).ok()
    }

    /// A record cannot be read.
    #[cold]
    pub(super) fn damaged(&self, error: &InvalidBatch) -> Error {
        let batch = view(&self.bytes);
        Error::Damaged {
            partition: self.partition.clone(),
            offset: batch.base_offset(),
            next_offset: Some(batch.next_offset()),
            reason: error.to_string(),
        }
    }

    /// Gives the bytes a count of references of their own. Batches that came in one answer have one together, for which
    /// threads contend that keep values of different batches.
    #[must_use]
    pub fn with_own_count(mut self) -> FetchedBatch {
        // What was decompressed is a batch's own.
        if self.decompressed.is_none() {
            self.bytes = Bytes::from_owner(std::mem::take(&mut self.bytes));
        }
        self
    }

    /// The bytes that the records are in.
    #[inline]
    pub(super) fn record_bytes(&self) -> &Bytes {
        self.decompressed.as_ref().unwrap_or(&self.bytes)
    }

    /// The records as values that can be kept; they share the bytes of the batch.
    pub fn owned_records(&self) -> impl Iterator<Item = Result<OwnedRecord, Error>> + '_ {
        let all = self.record_bytes();
        let shared = |part: &[u8]| all.slice_ref(part);
        self.records().map(move |record| {
            let record = record?;
            let headers = record
                .headers
                .map(|header| (String::from_utf8_lossy(header.key).into_owned(), header.value.map(shared)));
            Ok(OwnedRecord {
                partition: self.partition.clone(),
                offset: record.offset,
                timestamp_ms: record.timestamp,
                headers: headers.collect(),
                key: record.key.map(shared),
                value: record.value.map(shared),
            })
        })
    }
}

fn view(bytes: &Bytes) -> Batch<'_> {
    Batch::split_first(bytes).expect("only complete batches are taken").0
}

/// The records of a [`FetchedBatch`]; ends after the first error.
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
/// # let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new(address)?))?;
/// # consumer.assign([(TopicPartition::new("orders", 0), Position::Beginning)]);
/// let batch = consumer.next().await?;
/// let mut bytes = 0;
/// for record in batch.records() {
///     // The value is a part of the answer that arrived, not a copy.
///     bytes += record?.value.map_or(0, <[u8]>::len);
/// }
/// assert_eq!(bytes, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FetchedRecords<'a> {
    batch: &'a FetchedBatch,
    records: Option<RecordIter<'a>>,
}

impl<'a> Iterator for FetchedRecords<'a> {
    /// [`Error::Damaged`] if a record cannot be read.
    type Item = Result<Record<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let first_offset = self.batch.first_offset;
        let records = self.records.as_mut()?;
        let read = records.find(|read| !matches!(read, Ok(record) if record.offset < first_offset))?;
        Some(read.map_err(|error| self.batch.damaged(&error)))
    }
}

#[cfg(test)]
mod tests {
    use mainstem_records::{BatchBuilder, BatchOptions, Compression};

    use super::*;

    #[test]
    fn bytes_of_a_peer_become_only_as_large_as_is_allowed() {
        let options = BatchOptions { compression: Compression::Gzip, ..BatchOptions::default() };
        let mut builder = BatchBuilder::new(options);
        builder.append(1, None, Some(&vec![0; 1 << 20]), &[]).expect("it fits");
        let bytes = Bytes::from(builder.build().expect("it has a record"));
        assert!(bytes.len() < 20_000);
        let open = |bytes_max| {
            FetchedBatch::from_bytes_within(TopicPartition::new("lines", 0), bytes.clone(), bytes_max)
        };
        assert!(matches!(open(100_000), Err(Error::Damaged { .. })));
        assert!(open(2 << 20).is_ok());
    }
}
