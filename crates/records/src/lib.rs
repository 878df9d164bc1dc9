//! The Kafka record batch (format v2): build, borrow, validate, compress.
//!
//! The batch is the unit everywhere: the bytes that a producer sends are the bytes on disk and in the answer
//! to a fetch. [`Batch`] borrows one, [`validate()`] walks a produced one once, [`BatchBuilder`] makes one, and
//! [`stamp_header`] gives the few bytes that a leader changes. docs/format.md has the byte diagrams.
//!
//! Architecture invariant: no I/O and no clock, and no other crate knows the layout of a batch. A length or
//! count from a peer never sizes an allocation before it is checked against the bytes that remain.

mod batch;
mod builder;
mod codec;
mod control;
mod crc;
mod error;
mod filter;
#[doc(hidden)]
pub mod fuzz;
mod ids;
mod in_place;
mod record;
mod rewrite;
mod scan;
mod scratch;
mod slice;
mod validate;
mod varint;
mod walk;

pub use batch::{
    Attributes, Batch, BatchCrc, BatchHeader, Compression, HEADER_BYTES, LOG_OVERHEAD_BYTES,
    NO_PARTITION_LEADER_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, STAMP_BYTES,
    TimestampType, increment_sequence, restamped_header, rewrite_log_append_time, rewrite_max_timestamp,
    rewrite_producer, stamp_header,
};
pub use builder::{BatchBuilder, BatchOptions, BuildError, ProducerFields};
pub use control::{
    ControlRecordType, EndTransactionMarker, MarkerError, Producer, TransactionEnd, end_transaction_batch,
};
pub use error::{BatchError, InvalidBatch, KafkaError, RecordError};
pub use filter::{KeyedRecord, RecordFilter, Selection, empty_batch};
pub use ids::{CoordinatorEpoch, LeaderEpoch, ProducerEpoch, ProducerId};
pub use in_place::{SingleRecord, SingleRecordHeader};
pub use record::{Header, Headers, Record, RecordCursor, RecordIter};
pub use rewrite::{RecompressError, Recompression, recompress};
pub use scan::RecordStamp;
pub use scratch::Scratch;
pub use slice::{SLICES, slice_of};
pub use validate::{Origin, Rewrite, ValidBatch, ValidationRules, validate};
