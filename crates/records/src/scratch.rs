//! Working memory that validation and decompression reuse from one batch to the next.

use crate::batch::{Batch, Compression};
use crate::codec::{DecoderMemory, Pieces, StreamSource};
use crate::error::InvalidBatch;
use std::fmt;

/// Reusable working memory, one per thread. It starts empty, grows by what a codec needs when one is first met
/// (at most [`Scratch::KEPT_BYTES_MAX`]), and gives back at once what a single large batch needed beyond.
#[derive(Default)]
pub struct Scratch {
    memory: DecoderMemory,
}

impl Scratch {
    /// The most bytes that an idle one holds: a window of 128 KiB, gzip's state of about 50 KiB and zstd's
    /// context of at most 512 KiB.
    pub const KEPT_BYTES_MAX: usize = (128 + 64 + 512) << 10;

    /// Working memory that holds nothing yet.
    pub fn new() -> Scratch {
        Scratch::default()
    }

    /// The bytes that it holds, without gzip's state.
    pub fn held_bytes(&self) -> usize {
        self.memory.held_bytes()
    }

    /// Decompresses bytes that are no batch, as those of a client's telemetry (KIP-714), to at most `limit` bytes.
    ///
    /// # Errors
    /// When they are not what the codec writes, or decompress to more.
    pub fn decompress(
        &mut self,
        compression: Compression,
        input: &[u8],
        limit: usize,
    ) -> Result<Vec<u8>, InvalidBatch> {
        let mut output = Vec::new();
        let result = Pieces::new(compression, input, limit, &mut self.memory).and_then(|mut pieces| {
            while let length @ 1.. = pieces.advance()? {
                output.extend_from_slice(&pieces.window()[..length]);
            }
            Ok(())
        });
        self.memory.shrink();
        result.map(|()| output)
    }

    /// Reads the records of `batch` as a stream of decompressed bytes.
    pub(crate) fn with_stream<T>(
        &mut self,
        batch: &Batch<'_>,
        limit: usize,
        read: impl FnOnce(&mut StreamSource<'_>) -> Result<T, InvalidBatch>,
    ) -> Result<T, InvalidBatch> {
        let result = Pieces::new(compression(batch)?, batch.payload(), limit, &mut self.memory)
            .and_then(|pieces| read(&mut StreamSource::new(pieces)));
        self.memory.shrink();
        result
    }

    /// Hands the decompressed records of `batch` to `take`, piece by piece.
    pub(crate) fn with_pieces<E: From<InvalidBatch>>(
        &mut self,
        batch: &Batch<'_>,
        limit: usize,
        take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let result = self.pump(batch, limit, take);
        self.memory.shrink();
        result
    }

    fn pump<E: From<InvalidBatch>>(
        &mut self,
        batch: &Batch<'_>,
        limit: usize,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut pieces = Pieces::new(compression(batch)?, batch.payload(), limit, &mut self.memory)?;
        loop {
            match pieces.advance()? {
                0 => return Ok(()),
                length => take(&pieces.window()[..length])?,
            }
        }
    }
}

fn compression(batch: &Batch<'_>) -> Result<Compression, InvalidBatch> {
    batch.attributes().compression().map_err(InvalidBatch::UnknownCompression)
}

impl fmt::Debug for Scratch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Scratch").field("held_bytes", &self.held_bytes()).finish()
    }
}
