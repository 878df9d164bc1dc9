//! Recompression of the records of a batch, for a topic whose `compression.type` is not `producer`.

use crate::batch::{Batch, Compression, HEADER_BYTES, LOG_OVERHEAD_BYTES};
use crate::builder::BuildError;
use crate::codec::Compressor;
use crate::error::InvalidBatch;
use crate::scratch::Scratch;
use thiserror::Error;

/// The target of a recompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recompression {
    /// The codec.
    pub compression: Compression,
    /// Its level; `None` is the codec's default, and snappy and lz4 have no other.
    pub level: Option<i32>,
    /// The most bytes that the records may decompress to.
    pub decompressed_bytes_max: usize,
}

/// The reason why a batch cannot be recompressed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RecompressError {
    /// It cannot be read.
    #[error(transparent)]
    Invalid(#[from] InvalidBatch),
    /// It cannot be written.
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// Appends `batch` to `out` with its records compressed as asked; all else but length and CRC is as before. The
/// decompressed records pass through the window of `scratch` and are never held whole.
///
/// # Errors
/// [`RecompressError`]; `out` is then as before.
pub fn recompress(
    batch: &Batch<'_>,
    recompression: &Recompression,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), RecompressError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let result = write_payload(batch, recompression, out, scratch).and_then(|()| {
        let mut header = batch.header();
        header.attributes = header.attributes.with_compression(recompression.compression);
        seal(start, |payload| header.encode(payload), out).map_err(RecompressError::from)
    });
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn write_payload(
    batch: &Batch<'_>,
    recompression: &Recompression,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<(), RecompressError> {
    let size = (!batch.attributes().is_compressed()).then(|| batch.payload().len());
    let mut compressor = Compressor::start(recompression.compression, recompression.level, size, out)?;
    scratch.with_pieces(batch, recompression.decompressed_bytes_max, |piece| {
        compressor.write(piece, out).map_err(RecompressError::from)
    })?;
    compressor.finish(out)?;
    Ok(())
}

/// Puts the header in front of the payload that follows it in `out`, the batch beginning at `start`.
pub(crate) fn seal(
    start: usize,
    encode: impl FnOnce(&[u8]) -> [u8; HEADER_BYTES],
    out: &mut [u8],
) -> Result<(), BuildError> {
    let (header, payload) = out[start..].split_at_mut(HEADER_BYTES);
    if HEADER_BYTES - LOG_OVERHEAD_BYTES + payload.len() > i32::MAX as usize {
        return Err(BuildError::TooLarge(HEADER_BYTES + payload.len()));
    }
    header.copy_from_slice(&encode(payload));
    Ok(())
}
