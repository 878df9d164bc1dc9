//! Reading a whole log, batch by batch: how the state machines of coordinators and controller are rebuilt from theirs.

use std::ops::Range;

use mainstem_log::{Log, ReadBound, ReadError};
use mainstem_records::{
    Batch, BatchError, ControlRecordType, EndTransactionMarker, InvalidBatch, Producer, ProducerEpoch,
    ProducerId, Record, Scratch, TransactionEnd,
};

/// Bytes that are read at once.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// To how many bytes one of our own batches may decompress: we write them uncompressed, but a copied directory may
/// have Kafka's.
const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;

/// Why a log could not be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file could not be read.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    /// The bytes are no batch.
    #[error("at offset {offset}: {error}")]
    Batch {
        /// Offset at which the batch was expected.
        offset: i64,
        /// The mistake.
        error: BatchError,
    },
    /// The batch has unexpected records.
    #[error("in the batch at offset {offset}: {error}")]
    Records {
        /// Base offset of the batch.
        offset: i64,
        /// The mistake.
        error: InvalidBatch,
    },
}

/// The part of a batch that is looked at beside its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checksums {
    /// A batch with a wrong checksum ends the replay, since later entries depend on it.
    Verified,
    /// Checksums are not read, since each record is independent.
    Unread,
}

/// An entry of a log.
pub enum Entry<'r> {
    /// A record that is no control record.
    Record {
        /// The record.
        record: Record<'r>,
        /// The producer of its batch, if that is transactional.
        producer: Option<Producer>,
    },
    /// The end of a producer's transaction.
    End(TransactionEnd),
    /// A control record of the metadata log.
    Control {
        /// Its kind.
        kind: ControlRecordType,
        /// Its value.
        value: &'r [u8],
    },
}

/// Calls `each` with every record and every end of a transaction, in order.
///
/// # Errors
/// When the log cannot be read or holds what is no record.
pub fn replay(log: &Log, checksums: Checksums, each: impl FnMut(Entry<'_>)) -> Result<(), ReplayError> {
    let ends = log.ends();
    replay_range(log, ends.log_start..ends.log_end, checksums, each)
}

/// As [`replay`], from an offset on, of the batches that begin before another one.
///
/// # Errors
/// As [`replay`].
pub fn replay_range(
    log: &Log,
    offsets: Range<i64>,
    checksums: Checksums,
    mut each: impl FnMut(Entry<'_>),
) -> Result<(), ReplayError> {
    let mut decoder = Decoder::new(checksums);
    let mut next = offsets.start;
    while next < offsets.end {
        // Nothing: compaction has taken all that was behind it.
        let Some(range) = log.read_waiting(next, ReadBound::LogEnd, CHUNK_BYTES, true)? else { break };
        next = decoder.decode(&range.to_vec()?, next..offsets.end, &mut each)?;
    }
    Ok(())
}

/// Decodes pieces of a log.
pub(crate) struct Decoder {
    checksums: Checksums,
    scratch: Scratch,
    decompressed: Vec<u8>,
}

impl Decoder {
    pub(crate) fn new(checksums: Checksums) -> Decoder {
        Decoder { checksums, scratch: Scratch::new(), decompressed: Vec::new() }
    }

    /// Calls `each` with the entries of a piece from an offset on, of the batches that begin before another one. Returns the offset behind
    /// the last whole batch.
    ///
    /// # Errors
    /// It holds what is no record.
    pub(crate) fn decode(
        &mut self,
        chunk: &[u8],
        offsets: Range<i64>,
        mut each: impl FnMut(Entry<'_>),
    ) -> Result<i64, ReplayError> {
        let Decoder { checksums, scratch, decompressed } = self;
        let mut next = offsets.start;
        let mut rest = chunk;
        while !rest.is_empty() && next < offsets.end {
            let batch = match Batch::split_first(rest) {
                Ok((batch, behind)) => {
                    rest = behind;
                    batch
                }
                // The chunk ends within a batch; the next one begins with it.
                Err(BatchError::Truncated { .. }) => break,
                Err(error) => return Err(ReplayError::Batch { offset: next, error }),
            };
            if *checksums == Checksums::Verified && !batch.verify_crc() {
                let error = InvalidBatch::Crc { stored: batch.crc(), computed: batch.computed_crc() };
                return Err(ReplayError::Records { offset: batch.base_offset(), error });
            }
            let skip = next;
            next = batch.next_offset();
            let producer = producer_of(&batch);
            if let (true, Some(producer)) = (batch.attributes().is_control(), producer) {
                if let Some(marker) = EndTransactionMarker::of_batch(&batch) {
                    each(Entry::End(TransactionEnd { producer, committed: marker.committed }));
                }
                continue;
            }
            let failed = |error| ReplayError::Records { offset: batch.base_offset(), error };
            let records = batch.records(decompressed, DECOMPRESSED_BYTES_MAX, scratch);
            for record in records.map_err(failed)? {
                let record = record.map_err(failed)?;
                if record.offset >= skip {
                    entry_of(&batch, record, producer).into_iter().for_each(&mut each);
                }
            }
        }
        Ok(next)
    }
}

/// Entry of a record; `None` for control records without a kind or a value.
fn entry_of<'r>(batch: &Batch<'_>, record: Record<'r>, producer: Option<Producer>) -> Option<Entry<'r>> {
    if !batch.attributes().is_control() {
        return Some(Entry::Record { record, producer });
    }
    let kind = ControlRecordType::parse(record.key).ok()?;
    Some(Entry::Control { kind, value: record.value? })
}

/// Producer of the transaction to which a batch belongs.
fn producer_of(batch: &Batch<'_>) -> Option<Producer> {
    batch.attributes().is_transactional().then(|| Producer {
        id: ProducerId::new(batch.producer_id()),
        epoch: ProducerEpoch::new(batch.producer_epoch()),
    })
}
