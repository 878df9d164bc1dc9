//! Records as places within a batch that is shared: nothing is copied, allocated or counted for each of them.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use mainstem_records::{Headers, Record};

use super::batch::{FetchedBatch, FetchedRecords};
use crate::error::Error;

/// The place of a record within its [`FetchedBatch`], to be kept beside an `Arc` of that batch.
///
/// ```
/// use std::sync::Arc;
///
/// use mainstem_client::{ClientConfig, Consumer, ConsumerConfig, Position, TopicPartition};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one").key("k").header("trace", "4711")).await?.await?;
/// # let mut consumer = Consumer::new(ConsumerConfig::new(ClientConfig::new(address)?))?;
/// # consumer.assign([(TopicPartition::new("orders", 0), Position::Beginning)]);
/// let batch = Arc::new(consumer.next().await?);
/// let record = batch.ranges().next().expect("a batch has records")?;
/// assert_eq!((record.offset, batch.key_of(&record)), (0, Some(&b"k"[..])));
/// assert_eq!(batch.value_of(&record), Some(&b"one"[..]));
/// assert_eq!(batch.headers_of(&record).next().expect("there is one").key, b"trace");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordRange {
    /// The record's place in its partition.
    pub offset: i64,
    /// Milliseconds since 1970.
    pub timestamp_ms: i64,
    key: Part,
    value: Part,
    headers: Part,
    header_count: u32,
}

/// A part of the bytes, or null.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    start: u32,
    end: u32,
}

const NULL: Part = Part { start: u32::MAX, end: 0 };

impl Part {
    /// A part of what is `all`, whose length [`Part::check`] has seen.
    #[inline]
    fn of(part: Option<&[u8]>, all: &[u8]) -> Part {
        let Some(part) = part else { return NULL };
        let start = part.as_ptr() as usize - all.as_ptr() as usize;
        Part { start: start as u32, end: (start + part.len()) as u32 }
    }

    /// # Panics
    /// If parts of `all` cannot be expressed.
    fn check(all: &[u8]) {
        assert!(u32::try_from(all.len()).is_ok(), "the configuration keeps batches below 4 GiB");
    }

    #[inline]
    fn range(self) -> Option<Range<usize>> {
        (self != NULL).then_some(self.start as usize..self.end as usize)
    }

    #[inline]
    fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.range().fmt(f)
    }
}

impl RecordRange {
    #[inline]
    fn of(record: &Record<'_>, all: &[u8]) -> RecordRange {
        let (headers, count) = record.headers.as_bytes();
        RecordRange {
            offset: record.offset,
            timestamp_ms: record.timestamp,
            key: Part::of(record.key, all),
            value: Part::of(record.value, all),
            headers: Part::of(Some(headers), all),
            // Every header has a byte.
            header_count: count as u32,
        }
    }

    /// Bytes of key, value and headers.
    #[inline]
    pub fn size(&self) -> u32 {
        [self.key, self.value, self.headers].into_iter().fold(0, |sum, part| part.len().saturating_add(sum))
    }
}

/// The records of a [`FetchedBatch`] as [`RecordRange`]s; ends after the first error.
#[derive(Debug, Clone)]
pub struct SharedRecords<'a> {
    records: FetchedRecords<'a>,
    bytes: &'a Bytes,
}

impl Iterator for SharedRecords<'_> {
    /// [`Error::Damaged`] if a record cannot be read.
    type Item = Result<RecordRange, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.bytes;
        Some(self.records.next()?.map(|record| RecordRange::of(&record, bytes)))
    }
}

/// Access to the records of [`RecordRange`]s of this batch. A range of another batch panics, or yields other bytes.
impl FetchedBatch {
    /// The records as places in this batch.
    pub fn ranges(&self) -> SharedRecords<'_> {
        Part::check(self.record_bytes());
        SharedRecords { records: self.records(), bytes: self.record_bytes() }
    }

    /// Pushes all records to `ranges` as places in this batch. It is faster than [`FetchedBatch::ranges`] if all are wanted.
    ///
    /// # Errors
    /// [`Error::Damaged`] if a record cannot be read; those before it are in `ranges`.
    pub fn read_ranges(&self, ranges: &mut Vec<RecordRange>) -> Result<(), Error> {
        let (bytes, first_offset) = (self.record_bytes(), self.first_offset());
        Part::check(bytes);
        for record in self.all_records().into_iter().flatten() {
            let record = record.map_err(|error| self.damaged(&error))?;
            if record.offset >= first_offset {
                ranges.push(RecordRange::of(&record, bytes));
            }
        }
        Ok(())
    }

    /// The key of a record.
    #[inline]
    pub fn key_of(&self, record: &RecordRange) -> Option<&[u8]> {
        Some(&self.record_bytes()[record.key.range()?])
    }

    /// The value of a record.
    #[inline]
    pub fn value_of(&self, record: &RecordRange) -> Option<&[u8]> {
        Some(&self.record_bytes()[record.value.range()?])
    }

    /// The value of a record, sharing the batch's bytes.
    #[inline]
    pub fn shared_value_of(&self, record: &RecordRange) -> Option<Bytes> {
        Some(self.record_bytes().slice(record.value.range()?))
    }

    /// The key of a record, sharing the batch's bytes.
    pub fn shared_key_of(&self, record: &RecordRange) -> Option<Bytes> {
        Some(self.record_bytes().slice(record.key.range()?))
    }

    /// The headers of a record.
    pub fn headers_of(&self, record: &RecordRange) -> Headers<'_> {
        let bytes = &self.record_bytes()[record.headers.range().unwrap_or_default()];
        Headers::from_bytes(bytes, record.header_count as usize).expect("it is a record of this batch")
    }
}

#[cfg(test)]
mod tests {
    use mainstem_records::{BatchBuilder, BatchOptions, Compression, Header, Scratch};

    use super::*;
    use crate::topic_partition::TopicPartition;

    /// Handlers read batches of every codec so, and keep values beyond them.
    #[test]
    fn ranges_are_what_records_are_whatever_the_codec() {
        for compression in Compression::ALL {
            let options = BatchOptions { base_offset: 7, compression, ..BatchOptions::default() };
            let mut builder = BatchBuilder::new(options);
            let header =
                [Header { key: b"trace", value: Some(b"4711") }, Header { key: b"none", value: None }];
            builder.append(1, Some(b"k"), Some(b"one"), &header).unwrap();
            builder.append(2, None, None, &[]).unwrap();
            builder.append(3, Some(b""), Some(&[b'x'; 2_000]), &[]).unwrap();
            let bytes = Bytes::from(builder.build().unwrap());
            let key = TopicPartition::new("t", 0);
            let batch = FetchedBatch::open(key, bytes, 8, 1 << 20, &mut Scratch::default()).unwrap();
            let mut ranges = Vec::new();
            batch.read_ranges(&mut ranges).unwrap();
            assert_eq!(ranges, batch.ranges().map(Result::unwrap).collect::<Vec<_>>(), "{compression:?}");
            let records: Vec<_> = batch.records().map(Result::unwrap).collect();
            assert_eq!((ranges.len(), records.len()), (2, 2), "7 was not asked for");
            for (range, record) in ranges.iter().zip(&records) {
                assert_eq!((range.offset, range.timestamp_ms), (record.offset, record.timestamp));
                assert_eq!((batch.key_of(range), batch.value_of(range)), (record.key, record.value));
                assert_eq!(batch.shared_value_of(range).as_deref(), record.value);
                assert_eq!(batch.shared_key_of(range).as_deref(), record.key);
            }
            let (last, kept) = (ranges[1], batch.shared_value_of(&ranges[1]).unwrap());
            assert_eq!(batch.headers_of(&last).count(), 0);
            drop(batch);
            assert_eq!(kept, [b'x'; 2_000][..], "a value lives on with its batch's bytes");
        }
    }
}
