//! Snappy: blocks in the Xerial framing of snappy-java, or one raw block without any.
//!
//! Framed: 16 bytes of header (magic, version, lowest compatible version), then blocks, each behind its length
//! as a big-endian i32. Kafka's reader takes the whole as one raw block when the magic is not there, which is
//! what librdkafka and the Go clients send.

use super::{DecodeError, open, take, take_array};

const MAGIC: [u8; 8] = *b"\x82SNAPPY\0";
const VERSION: i32 = 1;
const HEADER_BYTES: usize = 16;

/// The most bytes that snappy-java puts into a block.
const BLOCK_BYTES: usize = 32 << 10;

/// Three bytes of a block stand for 64 bytes at most, so that a length that a block claims can be checked
/// before memory is taken for it.
const EXPANSION_MAX: usize = 22;

pub(super) struct SnappyDecoder<'s> {
    input: &'s [u8],
    framed: bool,
}

impl<'s> SnappyDecoder<'s> {
    pub(super) fn new(input: &'s [u8]) -> Self {
        SnappyDecoder { input, framed: input.starts_with(&MAGIC) }
    }

    /// Fills the start of `window` with the next block; returns how much, 0 at the end.
    pub(super) fn fill(&mut self, window: &mut Vec<u8>, allowed: usize) -> Result<usize, DecodeError> {
        while !self.input.is_empty() {
            if self.framed && self.input.starts_with(&MAGIC) {
                self.read_header()?;
                continue;
            }
            let block = self.next_block()?;
            let length = decode_block(block, window, allowed)?;
            if length > 0 {
                return Ok(length);
            }
        }
        Ok(0)
    }

    /// A header starts the input; snappy-java takes one between blocks too, where streams were joined.
    fn read_header(&mut self) -> Result<(), DecodeError> {
        let header: [u8; HEADER_BYTES] = take_array(&mut self.input)?;
        let version = i32::from_be_bytes([header[8], header[9], header[10], header[11]]);
        if version < VERSION {
            return Err(DecodeError::corrupt(format!("unknown framing version {version}")));
        }
        Ok(())
    }

    fn next_block(&mut self) -> Result<&'s [u8], DecodeError> {
        if !self.framed {
            return Ok(std::mem::take(&mut self.input));
        }
        let length = u32::from_be_bytes(take_array(&mut self.input)?);
        take(&mut self.input, length as usize)
    }
}

fn decode_block(block: &[u8], window: &mut Vec<u8>, allowed: usize) -> Result<usize, DecodeError> {
    let corrupt = |error: snap::Error| DecodeError::corrupt(error.to_string());
    let length = snap::raw::decompress_len(block).map_err(corrupt)?;
    if length > block.len().saturating_mul(EXPANSION_MAX) {
        return Err(DecodeError::corrupt("a block claims more bytes than it can hold"));
    }
    if length > allowed {
        return Err(DecodeError::TooLarge);
    }
    snap::raw::Decoder::new().decompress(block, open(window, length)).map_err(corrupt)
}

pub(super) struct SnappyEncoder {
    encoder: Box<snap::raw::Encoder>,
    pending: Vec<u8>,
}

impl SnappyEncoder {
    pub(super) fn new(out: &mut Vec<u8>) -> Self {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&VERSION.to_be_bytes());
        SnappyEncoder { encoder: Box::new(snap::raw::Encoder::new()), pending: Vec::new() }
    }

    pub(super) fn write(&mut self, mut bytes: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
        while self.pending.len() + bytes.len() >= BLOCK_BYTES {
            let (now, later) = bytes.split_at(BLOCK_BYTES - self.pending.len());
            self.pending.extend_from_slice(now);
            bytes = later;
            self.write_block(out)?;
        }
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    pub(super) fn finish(mut self, out: &mut Vec<u8>) -> Result<(), String> {
        match self.pending.is_empty() {
            true => Ok(()),
            false => self.write_block(out),
        }
    }

    fn write_block(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let length_at = out.len();
        let start = length_at + size_of::<u32>();
        out.resize(start + snap::raw::max_compress_len(self.pending.len()), 0);
        let length =
            self.encoder.compress(&self.pending, &mut out[start..]).map_err(|error| error.to_string())?;
        out[length_at..start].copy_from_slice(&(length as u32).to_be_bytes());
        out.truncate(start + length);
        self.pending.clear();
        Ok(())
    }
}
