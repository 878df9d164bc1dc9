//! A message as a handler gets it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use mainstem_client::{Error, FetchedBatch, Header, Headers, RecordRange, TopicPartition};
use mainstem_records::{BatchBuilder, BatchOptions};

use crate::letter::SourceRecord;
use crate::payload::{DecodeError, Payload};

/// The header with the trace that a message belongs to (W3C Trace Context).
pub(crate) const TRACE_PARENT: &str = "traceparent";

/// A batch, and the places of its records.
#[derive(Debug)]
pub(crate) struct OpenBatch {
    batch: FetchedBatch,
    records: Vec<RecordRange>,
}

impl OpenBatch {
    /// Reads the places of the records. `ranges` is a vector to use again.
    pub(crate) fn open(batch: FetchedBatch, mut ranges: Vec<RecordRange>) -> Result<OpenBatch, Error> {
        let batch = batch.with_own_count();
        ranges.clear();
        batch.read_ranges(&mut ranges)?;
        Ok(OpenBatch { batch, records: ranges })
    }

    /// A copy of one of the records, in a batch of its own. None if it cannot be built, as of a record before 1970.
    pub(crate) fn alone(&self, index: u32) -> Option<OpenBatch> {
        let (record, from) = (self.record(index)?, &self.batch);
        let mut builder = BatchBuilder::new(BatchOptions {
            base_offset: record.offset,
            partition_leader_epoch: from.leader_epoch(),
            ..BatchOptions::default()
        });
        let headers: Vec<Header<'_>> = from.headers_of(record).collect();
        builder.append(record.timestamp_ms, from.key_of(record), from.value_of(record), &headers).ok()?;
        let bytes = builder.build().ok()?;
        let batch = FetchedBatch::from_bytes(from.partition().clone(), bytes.into()).ok()?;
        OpenBatch::open(batch, Vec::new()).ok()
    }

    /// Returns the vector that [`OpenBatch::open`] was given.
    pub(crate) fn into_ranges(self) -> Vec<RecordRange> {
        self.records
    }

    #[inline]
    pub(crate) fn batch(&self) -> &FetchedBatch {
        &self.batch
    }

    #[inline]
    pub(crate) fn record(&self, index: u32) -> Option<&RecordRange> {
        self.records.get(index as usize)
    }

    /// The records behind one of them.
    #[inline]
    pub(crate) fn records_behind(&self, index: u32) -> &[RecordRange] {
        self.records.get(index as usize + 1..).unwrap_or_default()
    }

    #[inline]
    pub(crate) fn key(&self, record: &RecordRange) -> Option<&[u8]> {
        self.batch.key_of(record)
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.records.len()).expect("a batch counts its records by 32 bits")
    }
}

/// A record that was read: it shares the bytes of its batch.
#[derive(Clone)]
pub struct Received {
    batch: Arc<OpenBatch>,
    index: u32,
}

impl Received {
    /// # Panics
    /// If there is no such record in the batch.
    #[inline]
    pub(crate) fn new(batch: Arc<OpenBatch>, index: u32) -> Received {
        assert!(index < batch.len(), "record {index} of a batch of {}", batch.len());
        Received { batch, index }
    }

    #[inline]
    fn record(&self) -> &RecordRange {
        &self.batch.records[self.index as usize]
    }

    /// The partition that it comes from.
    #[inline]
    pub fn partition(&self) -> &TopicPartition {
        self.batch.batch.partition()
    }

    /// Its offset in the partition.
    #[inline]
    pub fn offset(&self) -> i64 {
        self.record().offset
    }

    /// Milliseconds since 1970.
    pub fn timestamp_ms(&self) -> i64 {
        self.record().timestamp_ms
    }

    /// The key: messages with the same one are handled in order.
    pub fn key(&self) -> Option<&[u8]> {
        self.batch.key(self.record())
    }

    /// The payload's bytes; none is a tombstone.
    #[inline]
    pub fn value(&self) -> Option<&[u8]> {
        self.batch.batch.value_of(self.record())
    }

    /// The same, to be kept: it keeps the whole batch in memory.
    #[inline]
    pub fn shared_value(&self) -> Option<Bytes> {
        self.batch.batch.shared_value_of(self.record())
    }

    /// Names and values beside the payload.
    pub fn headers(&self) -> Headers<'_> {
        self.batch.batch.headers_of(self.record())
    }

    /// The value of the last header of a name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().last_with_key(name.as_bytes()).and_then(|header| header.value)
    }

    /// The span of one attempt. Without a tracer of such spans there is none, at next to no cost.
    #[inline]
    pub(crate) fn span(&self) -> tracing::Span {
        match tracing::Level::DEBUG <= tracing::level_filters::LevelFilter::current() {
            true => self.traced_span(),
            false => tracing::Span::none(),
        }
    }

    fn traced_span(&self) -> tracing::Span {
        let span = tracing::debug_span!(
            target: "mainstem_flow::message",
            "message",
            topic = &*self.partition().topic,
            partition = self.partition().partition,
            offset = self.offset(),
            traceparent = tracing::field::Empty
        );
        if !span.is_disabled()
            && let Some(parent) = self.header(TRACE_PARENT)
        {
            span.record(TRACE_PARENT, &*String::from_utf8_lossy(parent));
        }
        span
    }

    /// A copy for a dead letter.
    pub(crate) fn to_source(&self) -> SourceRecord {
        let owned = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let header = |header: mainstem_client::Header<'_>| {
            (String::from_utf8_lossy(header.key).into_owned(), header.value.map(owned))
        };
        SourceRecord {
            topic: self.partition().topic.to_string(),
            partition: self.partition().partition,
            offset: self.offset(),
            timestamp_ms: self.timestamp_ms(),
            key: self.key().map(owned),
            value: self.value().map(owned),
            headers: self.headers().map(header).collect(),
        }
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition(), self.offset())
    }
}

/// A message: a record with its decoded payload. It derefs to the event.
pub struct Msg<P: Payload> {
    received: Received,
    payload: P,
}

impl<P: Payload> Msg<P> {
    /// Decodes a record.
    ///
    /// # Errors
    /// The reason why it is no `P`.
    pub fn decode(received: Received) -> Result<Msg<P>, DecodeError> {
        let payload = P::decode(&received)?;
        Ok(Msg { received, payload })
    }

    /// The key as bytes.
    pub fn key(&self) -> Option<&[u8]> {
        self.received.key()
    }

    /// The record as it was read.
    pub fn record(&self) -> &Received {
        &self.received
    }

    /// The partition that it comes from.
    pub fn partition(&self) -> &TopicPartition {
        self.received.partition()
    }

    /// Its offset in the partition.
    pub fn offset(&self) -> i64 {
        self.received.offset()
    }

    /// Returns the event without the record.
    pub fn into_event(self) -> P::Event {
        self.payload.into_event()
    }
}

impl<P: Payload> Deref for Msg<P> {
    type Target = P::Event;

    fn deref(&self) -> &P::Event {
        self.payload.event()
    }
}

impl<P: Payload> fmt::Debug for Msg<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Msg({:?})", self.received)
    }
}
