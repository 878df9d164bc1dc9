//! Decompressed bytes, one bounded piece after another, and records read across the pieces.

use super::gzip::{self, GzipDecoder};
use super::lz4::Lz4Decoder;
use super::snappy::SnappyDecoder;
use super::zstd::{self, ZstdDecoder};
use super::{DecodeError, PIECE_BYTES, open};
use crate::batch::Compression;
use crate::error::InvalidBatch;
use crate::walk::{Source, WalkError};
use ::zstd::zstd_safe::DCtx;
use flate2::Decompress;

/// A zstd context that has grown beyond this, by a window, is not kept for the next batch.
const ZSTD_KEPT_BYTES: usize = 512 << 10;

/// Decoders and the window, made when first needed. What one large batch needed is given back after it.
#[derive(Default)]
pub(crate) struct DecoderMemory {
    window: Vec<u8>,
    gzip: Option<Box<Decompress>>,
    zstd: Option<DCtx<'static>>,
}

impl DecoderMemory {
    /// Gives back what is larger than a typical batch needs.
    pub(crate) fn shrink(&mut self) {
        if self.window.capacity() > PIECE_BYTES {
            self.window = Vec::new();
        }
        if self.zstd.as_ref().is_some_and(|context| context.sizeof() > ZSTD_KEPT_BYTES) {
            self.zstd = None;
        }
    }

    /// Bytes held, as far as the decoders tell; gzip's state is about 50 KiB more.
    pub(crate) fn held_bytes(&self) -> usize {
        self.window.capacity() + self.zstd.as_ref().map_or(0, DCtx::sizeof)
    }
}

/// The decompressed bytes of one batch.
pub(crate) struct Pieces<'s> {
    compression: Compression,
    decoder: Decoder<'s>,
    window: &'s mut Vec<u8>,
    limit: usize,
    total: usize,
}

enum Decoder<'s> {
    None(&'s [u8]),
    Gzip(GzipDecoder<'s>),
    Snappy(SnappyDecoder<'s>),
    Lz4(Box<Lz4Decoder<'s>>),
    Zstd(ZstdDecoder<'s>),
}

impl<'s> Pieces<'s> {
    /// Starts to decompress `input`, to no more than `limit` bytes.
    pub(crate) fn new(
        compression: Compression,
        input: &'s [u8],
        limit: usize,
        memory: &'s mut DecoderMemory,
    ) -> Result<Pieces<'s>, InvalidBatch> {
        let decoder = match compression {
            Compression::None => Decoder::None(input),
            Compression::Gzip => {
                Decoder::Gzip(GzipDecoder::new(input, memory.gzip.get_or_insert_with(gzip::new_state)))
            }
            Compression::Snappy => Decoder::Snappy(SnappyDecoder::new(input)),
            Compression::Lz4 => Decoder::Lz4(Box::new(Lz4Decoder::new(input))),
            Compression::Zstd => {
                if memory.zstd.is_none() {
                    let context = zstd::new_state().map_err(|error| invalid(compression, limit, error))?;
                    memory.zstd = Some(context);
                }
                let context = memory.zstd.as_mut().expect("it was made just now");
                Decoder::Zstd(ZstdDecoder::new(input, context))
            }
        };
        Ok(Pieces { compression, decoder, window: &mut memory.window, limit, total: 0 })
    }

    /// Decompresses the next piece and says how long it is; it starts [`Pieces::window`]. 0 is the end.
    pub(crate) fn advance(&mut self) -> Result<usize, InvalidBatch> {
        let allowed = self.limit - self.total;
        let length = match &mut self.decoder {
            Decoder::None(input) => Ok(fill_plain(input, self.window)),
            Decoder::Gzip(decoder) => decoder.fill(self.window),
            Decoder::Snappy(decoder) => decoder.fill(self.window, allowed),
            Decoder::Lz4(decoder) => decoder.fill(self.window),
            Decoder::Zstd(decoder) => decoder.fill(self.window, allowed),
        }
        .map_err(|error| invalid(self.compression, self.limit, error))?;
        if length > allowed {
            return Err(InvalidBatch::TooLarge { limit: self.limit });
        }
        self.total += length;
        Ok(length)
    }

    /// The buffer that holds the current piece at its start.
    pub(crate) fn window(&self) -> &[u8] {
        self.window
    }
}

fn fill_plain(input: &mut &[u8], window: &mut Vec<u8>) -> usize {
    let (piece, rest) = input.split_at(input.len().min(PIECE_BYTES));
    open(window, piece.len()).copy_from_slice(piece);
    *input = rest;
    piece.len()
}

fn invalid(compression: Compression, limit: usize, error: DecodeError) -> InvalidBatch {
    match error {
        DecodeError::Corrupt(reason) => {
            InvalidBatch::Decompress { codec: compression.name(), reason: reason.into_owned() }
        }
        DecodeError::TooLarge => InvalidBatch::TooLarge { limit },
    }
}

/// Reads records across pieces; what is passed over is never held.
pub(crate) struct StreamSource<'s> {
    pieces: Pieces<'s>,
    at: usize,
    end: usize,
    passed: u64,
}

impl<'s> StreamSource<'s> {
    pub(crate) fn new(pieces: Pieces<'s>) -> Self {
        StreamSource { pieces, at: 0, end: 0, passed: 0 }
    }

    /// Decompresses the next piece after the current one was used up. False at the end.
    #[cold]
    fn refill(&mut self) -> Result<bool, WalkError> {
        self.passed += self.end as u64;
        self.at = 0;
        self.end = 0;
        self.end = self.pieces.advance().map_err(|error| WalkError::Source(Box::new(error)))?;
        Ok(self.end > 0)
    }

    fn need(&mut self) -> Result<(), WalkError> {
        match self.at < self.end || self.refill()? {
            true => Ok(()),
            false => Err(WalkError::CUT_OFF),
        }
    }
}

impl Source for StreamSource<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, WalkError> {
        self.need()?;
        let byte = self.pieces.window()[self.at];
        self.at += 1;
        Ok(byte)
    }

    fn skip(&mut self, mut count: usize) -> Result<(), WalkError> {
        while count > 0 {
            self.need()?;
            let step = count.min(self.end - self.at);
            self.at += step;
            count -= step;
        }
        Ok(())
    }

    #[inline]
    fn position(&self) -> u64 {
        self.passed + self.at as u64
    }

    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.at == self.end && !self.refill()?)
    }

    fn may_have(&self, _length: usize) -> bool {
        true
    }
}
