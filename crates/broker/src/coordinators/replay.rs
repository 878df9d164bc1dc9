//! Reading a whole log, batch by batch: how the coordinators' hearts are rebuilt at start.

use mainstem_log::{Log, ReadBound, ReadError};
use mainstem_records::{Batch, BatchError, InvalidBatch, Record, Scratch};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

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
    /// What was read is no batch.
    #[error("at offset {offset}: {error}")]
    Batch {
        /// Where.
        offset: i64,
        /// What is wrong.
        error: BatchError,
    },
    /// What was read is a batch of something else.
    #[error("in the batch at offset {offset}: {error}")]
    Records {
        /// Of the batch.
        offset: i64,
        /// What is wrong.
        error: InvalidBatch,
    },
}

/// What of a batch is looked at beside its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksums {
    /// A batch that is not what was written ends the replay: all the rest follows from it.
    Verified,
    /// Each record stands for itself.
    Unread,
}

/// Calls `each` with every record that is no control record, in order.
///
/// # Errors
/// When the log cannot be read or holds what is no record.
pub(crate) fn replay(
    log: &Log,
    checksums: Checksums,
    mut each: impl FnMut(Record<'_>),
) -> Result<(), ReplayError> {
    let mut scratch = Scratch::new();
    let mut decompressed = Vec::new();
    let mut next = log.ends().log_start;
    while next < log.ends().log_end {
        // Nothing: compaction has taken all that was behind it.
        let Some(range) = log.read_waiting(next, ReadBound::LogEnd, CHUNK_BYTES, true)? else { break };
        let chunk = range.to_vec()?;
        let mut rest = &chunk[..];
        while !rest.is_empty() {
            let batch = match Batch::split_first(rest) {
                Ok((batch, behind)) => {
                    rest = behind;
                    batch
                }
                // The chunk ends within a batch; the next one begins with it.
                Err(BatchError::Truncated { .. }) => break,
                Err(error) => return Err(ReplayError::Batch { offset: next, error }),
            };
            if checksums == Checksums::Verified && !batch.verify_crc() {
                let error = InvalidBatch::Crc { stored: batch.crc(), computed: batch.computed_crc() };
                return Err(ReplayError::Records { offset: batch.base_offset(), error });
            }
            let skip = next;
            next = batch.next_offset();
            if !batch.attributes().is_control() {
                let failed = |error| ReplayError::Records { offset: batch.base_offset(), error };
                let records = batch.records(&mut decompressed, DECOMPRESSED_BYTES_MAX, &mut scratch);
                for record in records.map_err(failed)? {
                    let record = record.map_err(failed)?;
                    if record.offset >= skip {
                        each(record);
                    }
                }
            }
        }
    }
    Ok(())
}
