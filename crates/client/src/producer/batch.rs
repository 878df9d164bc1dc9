//! A batch on its way: first open for records, then built once, then sent as often as it takes.

use std::sync::Arc;

use bytes::Bytes;
use mainstem_records::{
    Batch as View, BatchBuilder, BatchOptions, BuildError, Header, InvalidBatch, ProducerFields, Scratch,
    increment_sequence, rewrite_producer,
};

use super::delivery::{Outcome, Promise};
use super::record::Record;
use crate::error::Error;

/// The bytes of a record beside key, value and headers: length, attributes, timestamp and offset deltas, counts.
const RECORD_OVERHEAD_BYTES: usize = 21;
/// The bytes of a header beside its name and value.
const HEADER_OVERHEAD_BYTES: usize = 10;

/// A batch.
#[derive(Debug)]
pub(crate) struct Batch {
    /// Unique in its producer.
    pub(crate) id: u64,
    /// Its place in the order of the partition: the batch that it was begun as, and its first record therein.
    pub(crate) rank: (u64, u32),
    /// Count of the partition's batches that got a sequence number before it. Halves of a batch have its turn.
    pub(crate) turn: u64,
    pub(crate) promise: Arc<Promise>,
    /// The time of the first record.
    pub(crate) created_ms: u64,
    /// The time by which the outcome has to be known.
    pub(crate) deadline_ms: u64,
    /// The number of failed attempts to send it.
    pub(crate) attempts: u32,
    /// It is not sent again before this time.
    pub(crate) retry_at_ms: u64,
    /// The error of the last attempt.
    pub(crate) last_error: Option<Error>,
    /// It was sent, and no broker has said since that it does not have it.
    pub(crate) maybe_written: bool,
    /// Its place among the producer's batches for the partition, once it has one.
    pub(crate) sequence: Option<ProducerFields>,
    pub(crate) record_count: u32,
    /// The bytes that its records take of the producer's memory.
    pub(crate) bytes: usize,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Open(BatchBuilder),
    /// It is being built in another place.
    Away,
    Built(Bytes),
}

/// The contents of a batch before they are turned into bytes, which takes long if they are compressed.
#[derive(Debug)]
pub(crate) enum Unbuilt {
    Open(Box<BatchBuilder>),
    /// It was built before, with other sequence numbers.
    Elsewhere(Bytes, ProducerFields),
    Built(Bytes),
}

impl Unbuilt {
    /// The bytes to send.
    pub(crate) fn build(self) -> Result<Bytes, BuildError> {
        match self {
            Unbuilt::Open(mut builder) => {
                let mut out = Vec::with_capacity(builder.uncompressed_bytes());
                builder.finish(&mut out)?;
                Ok(Bytes::from(out))
            }
            Unbuilt::Elsewhere(bytes, place) => {
                let mut out = Vec::with_capacity(bytes.len());
                rewrite_producer(&view(&bytes), place, &mut out);
                Ok(Bytes::from(out))
            }
            Unbuilt::Built(bytes) => Ok(bytes),
        }
    }
}

/// The most bytes that a record adds to a batch.
pub(crate) fn record_bytes(record: &Record) -> usize {
    let size = |bytes: &Option<Bytes>| bytes.as_ref().map_or(0, Bytes::len);
    let headers = record.headers.iter().map(|(name, value)| HEADER_OVERHEAD_BYTES + name.len() + size(value));
    RECORD_OVERHEAD_BYTES + size(&record.key) + size(&record.value) + headers.sum::<usize>()
}

impl Batch {
    pub(crate) fn open(
        id: u64,
        promise: Arc<Promise>,
        created_ms: u64,
        deadline_ms: u64,
        options: BatchOptions,
    ) -> Batch {
        Batch {
            id,
            rank: (id, 0),
            turn: 0,
            promise,
            created_ms,
            deadline_ms,
            attempts: 0,
            retry_at_ms: 0,
            last_error: None,
            maybe_written: false,
            sequence: None,
            record_count: 0,
            bytes: 0,
            contents: Contents::Open(BatchBuilder::new(options)),
        }
    }

    /// Returns true if it is open and a record of so many bytes fits into it.
    pub(crate) fn fits(&self, bytes: usize, batch_bytes: usize) -> bool {
        matches!(self.contents, Contents::Open(_)) && self.bytes + bytes <= batch_bytes
    }

    /// Appends a record, and returns its index. The batch has to be open.
    pub(crate) fn append(&mut self, record: &Record, timestamp_ms: i64) -> Result<u32, BuildError> {
        let Contents::Open(builder) = &mut self.contents else {
            unreachable!("the queue appends only to a batch that the record fits into");
        };
        let headers: Vec<Header<'_>> = record
            .headers
            .iter()
            .map(|(name, value)| Header { key: name.as_bytes(), value: value.as_deref() })
            .collect();
        builder.append(timestamp_ms, record.key.as_deref(), record.value.as_deref(), &headers)?;
        self.bytes += record_bytes(record);
        self.record_count += 1;
        Ok(self.record_count - 1)
    }

    /// The sequence number after its last record.
    pub(crate) fn next_sequence(&self) -> Option<i32> {
        self.sequence.map(|place| increment_sequence(place.base_sequence, self.record_count as i32))
    }

    /// The contents from which the bytes are built; nothing more can be appended. [`Batch::set_built`] takes the bytes.
    pub(crate) fn unbuilt(&mut self) -> Unbuilt {
        let place = self.sequence.unwrap_or_default();
        match std::mem::replace(&mut self.contents, Contents::Away) {
            Contents::Open(mut builder) => {
                builder.options_mut().producer = place;
                Unbuilt::Open(Box::new(builder))
            }
            Contents::Built(bytes) if fields(&view(&bytes)) == place => Unbuilt::Built(bytes),
            Contents::Built(bytes) => Unbuilt::Elsewhere(bytes, place),
            Contents::Away => unreachable!("a batch is sent again only when it has come back"),
        }
    }

    /// Keeps the bytes for another attempt.
    pub(crate) fn set_built(&mut self, bytes: Bytes) {
        self.contents = Contents::Built(bytes);
    }

    /// Two batches of half the records each, with the same sequence numbers together; the promise follows them. None if it
    /// cannot be halved.
    pub(crate) fn split(
        &mut self,
        options: &BatchOptions,
        ids: [u64; 2],
    ) -> Result<Option<[Batch; 2]>, InvalidBatch> {
        let Contents::Built(bytes) = &self.contents else { return Ok(None) };
        if self.record_count < 2 {
            return Ok(None);
        }
        let half = self.record_count / 2;
        let part =
            |id| Batch::open(id, self.promise.sibling(), self.created_ms, self.deadline_ms, options.clone());
        let mut parts = ids.map(part);
        let mut buffer = Vec::new();
        let limit = usize::MAX >> 1;
        for (index, record) in view(bytes).records(&mut buffer, limit, &mut Scratch::new())?.enumerate() {
            let record = record?;
            let part = &mut parts[usize::from(index as u32 >= half)];
            let headers: Vec<Header<'_>> = record.headers.collect();
            let Contents::Open(builder) = &mut part.contents else { unreachable!("a part is open") };
            builder
                .append(record.timestamp, record.key, record.value, &headers)
                .expect("what fitted into the whole fits into a half");
            part.record_count += 1;
        }
        for (at, part) in parts.iter_mut().enumerate() {
            part.bytes = if at == 0 { self.bytes / 2 } else { self.bytes - self.bytes / 2 };
            let first = if at == 0 { 0 } else { half as i32 };
            part.rank = (self.rank.0, self.rank.1 + first as u32);
            part.turn = self.turn;
            part.sequence = self.sequence.map(|place| ProducerFields {
                base_sequence: increment_sequence(place.base_sequence, first),
                ..place
            });
            part.maybe_written = self.maybe_written;
            let built = part.unbuilt().build().expect("a part of what was built can be built");
            part.set_built(built);
        }
        let promises = parts.iter().zip([0, half]).map(|(part, first)| (first, part.promise.clone()));
        self.promise.resolve(Outcome::Split(promises.collect()));
        Ok(Some(parts))
    }

    /// Resolves its promise: it will not be written.
    pub(crate) fn fail(&self, error: Error) {
        self.promise.resolve(Outcome::Failed(error));
    }
}

impl Drop for Batch {
    /// A batch that gets lost, as a task panics, leaves no caller waiting.
    fn drop(&mut self) {
        if !self.promise.is_resolved() {
            self.fail(Error::of_ended_task("the sender of the producer"));
        }
    }
}

fn view(bytes: &Bytes) -> View<'_> {
    View::split_first(bytes).expect("it was built here").0
}

fn fields(batch: &View<'_>) -> ProducerFields {
    ProducerFields {
        producer_id: batch.producer_id(),
        producer_epoch: batch.producer_epoch(),
        base_sequence: batch.base_sequence(),
    }
}
