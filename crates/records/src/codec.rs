//! The four codecs of Kafka, each a decoder that fills a window piece by piece and an encoder that appends.
//!
//! What a decoder refuses follows the strictest of the readers that consumers have: a batch that passes here
//! must not stop one of them.

mod compressor;
mod gzip;
mod lz4;
mod pieces;
mod snappy;
mod zstd;

pub(crate) use compressor::Compressor;
pub(crate) use pieces::{DecoderMemory, Pieces, StreamSource};

use std::borrow::Cow;

/// The most bytes that a streaming decoder puts into the window at once. 128 KiB is the largest block of zstd.
pub(crate) const PIECE_BYTES: usize = 128 << 10;

/// Why compressed bytes do not decompress.
#[derive(Debug)]
pub(crate) enum DecodeError {
    /// They are not what the codec writes.
    Corrupt(Cow<'static, str>),
    /// They decompress to more than is allowed.
    TooLarge,
}

impl DecodeError {
    fn corrupt(reason: impl Into<Cow<'static, str>>) -> DecodeError {
        DecodeError::Corrupt(reason.into())
    }

    fn cut_off() -> DecodeError {
        DecodeError::corrupt("the compressed bytes are cut off")
    }
}

/// Splits the first `count` bytes off `input`.
fn take<'a>(input: &mut &'a [u8], count: usize) -> Result<&'a [u8], DecodeError> {
    let (taken, rest) = input.split_at_checked(count).ok_or_else(DecodeError::cut_off)?;
    *input = rest;
    Ok(taken)
}

/// Splits a fixed-size array off `input`.
fn take_array<const N: usize>(input: &mut &[u8]) -> Result<[u8; N], DecodeError> {
    let taken = take(input, N)?;
    Ok(taken.try_into().expect("N bytes were taken"))
}

/// Makes the first `count` bytes of `window` writable. It only ever grows here, so zeroes are written once.
fn open(window: &mut Vec<u8>, count: usize) -> &mut [u8] {
    if window.len() < count {
        window.resize(count, 0);
    }
    &mut window[..count]
}
