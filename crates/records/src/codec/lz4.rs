//! LZ4: one frame (format 1.5.1) of independent blocks, as Kafka's own reader takes it.
//!
//! Kafka refuses frames whose blocks depend on each other, and stops at the end mark. So dependent blocks, a dictionary
//! or bytes behind the frame are refused here. Checksums are verified where a frame has them, since librdkafka verifies
//! them too. The frame is parsed here rather than by lz4_flex: a window has the size of the block, and not the 4 MiB
//! that Go clients declare.

use super::{DecodeError, open, take, take_array};
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use std::hash::Hasher;
use twox_hash::XxHash32;

const MAGIC: u32 = 0x184D_2204;
const STORED_BIT: u32 = 0x8000_0000;

/// Version 1, independent blocks, no checksums: what Kafka writes.
const FLAGS: u8 = 0x60;
/// Blocks of 64 KiB.
const BLOCK_DESCRIPTOR: u8 = 0x40;
const BLOCK_BYTES: usize = 64 << 10;

/// The most decompressed bytes for one byte of a block.
const EXPANSION_MAX: usize = 255;

/// The flags byte of a frame.
#[derive(Clone, Copy)]
struct Flags(u8);

impl Flags {
    fn parse(byte: u8) -> Result<Flags, DecodeError> {
        match byte {
            _ if byte >> 6 != 1 => Err(DecodeError::corrupt("unknown frame version")),
            _ if byte & 0x03 != 0 => Err(DecodeError::corrupt("a dictionary or a reserved bit is set")),
            _ if byte & 0x20 == 0 => Err(DecodeError::corrupt("dependent blocks are not supported")),
            _ => Ok(Flags(byte)),
        }
    }

    fn has_block_checksum(self) -> bool {
        self.0 & 0x10 != 0
    }

    fn has_content_size(self) -> bool {
        self.0 & 0x08 != 0
    }

    fn has_content_checksum(self) -> bool {
        self.0 & 0x04 != 0
    }
}

pub(super) struct Lz4Decoder<'s> {
    input: &'s [u8],
    frame: Option<Frame>,
}

struct Frame {
    flags: Flags,
    block_bytes_max: usize,
    content_bytes: Option<u64>,
    content_hash: XxHash32,
    decoded_bytes: u64,
}

impl<'s> Lz4Decoder<'s> {
    pub(super) fn new(input: &'s [u8]) -> Self {
        Lz4Decoder { input, frame: None }
    }

    /// Fills the start of `window` with the next block; returns how much, 0 at the end.
    pub(super) fn fill(&mut self, window: &mut Vec<u8>) -> Result<usize, DecodeError> {
        if self.input.is_empty() {
            return match self.frame {
                None => Ok(0),
                Some(_) => Err(DecodeError::cut_off()),
            };
        }
        let mut frame = match self.frame.take() {
            Some(frame) => frame,
            None => read_header(&mut self.input)?,
        };
        loop {
            let Some(block) = Block::read(&mut self.input, &frame)? else {
                frame.end(&mut self.input)?;
                return Ok(0);
            };
            let length = block.decode(frame.block_bytes_max, window)?;
            frame.decoded_bytes += length as u64;
            if frame.flags.has_content_checksum() {
                frame.content_hash.write(&window[..length]);
            }
            if length > 0 {
                self.frame = Some(frame);
                return Ok(length);
            }
        }
    }
}

fn read_header(input: &mut &[u8]) -> Result<Frame, DecodeError> {
    if u32::from_le_bytes(take_array(input)?) != MAGIC {
        return Err(DecodeError::corrupt("not an LZ4 frame"));
    }
    let descriptor = *input;
    let [flags, block_descriptor] = take_array(input)?;
    let flags = Flags::parse(flags)?;
    let block_bytes_max = match block_descriptor {
        0x40 | 0x50 | 0x60 | 0x70 => 1 << (2 * (block_descriptor >> 4) + 8),
        _ => return Err(DecodeError::corrupt("invalid block descriptor")),
    };
    let content_bytes = match flags.has_content_size() {
        true => Some(u64::from_le_bytes(take_array(input)?)),
        false => None,
    };
    let descriptor = &descriptor[..descriptor.len() - input.len()];
    let [checksum] = take_array(input)?;
    if checksum != (XxHash32::oneshot(0, descriptor) >> 8) as u8 {
        return Err(DecodeError::corrupt("frame descriptor checksum mismatch"));
    }
    let content_hash = XxHash32::with_seed(0);
    Ok(Frame { flags, block_bytes_max, content_bytes, content_hash, decoded_bytes: 0 })
}

impl Frame {
    /// Checks what follows the end mark: the content checksum, if any, and nothing else.
    fn end(self, input: &mut &[u8]) -> Result<(), DecodeError> {
        if self.flags.has_content_checksum()
            && u32::from_le_bytes(take_array(input)?) != self.content_hash.finish_32()
        {
            return Err(DecodeError::corrupt("content checksum mismatch"));
        }
        if self.content_bytes.is_some_and(|expected| expected != self.decoded_bytes) {
            return Err(DecodeError::corrupt("content size mismatch"));
        }
        match input.is_empty() {
            true => Ok(()),
            false => Err(DecodeError::corrupt("bytes follow the frame")),
        }
    }
}

struct Block<'s> {
    bytes: &'s [u8],
    stored: bool,
}

impl<'s> Block<'s> {
    /// The next block, or `None` at the end mark.
    fn read(input: &mut &'s [u8], frame: &Frame) -> Result<Option<Block<'s>>, DecodeError> {
        let word = u32::from_le_bytes(take_array(input)?);
        let length = (word & !STORED_BIT) as usize;
        if length == 0 {
            return Ok(None);
        }
        if length > frame.block_bytes_max {
            return Err(DecodeError::corrupt("a block exceeds the frame's block size"));
        }
        let bytes = take(input, length)?;
        if frame.flags.has_block_checksum()
            && u32::from_le_bytes(take_array(input)?) != XxHash32::oneshot(0, bytes)
        {
            return Err(DecodeError::corrupt("block checksum mismatch"));
        }
        Ok(Some(Block { bytes, stored: word & STORED_BIT != 0 }))
    }

    fn decode(&self, block_bytes_max: usize, window: &mut Vec<u8>) -> Result<usize, DecodeError> {
        if self.stored {
            open(window, self.bytes.len()).copy_from_slice(self.bytes);
            return Ok(self.bytes.len());
        }
        let output_bytes_max = block_bytes_max.min(self.bytes.len().saturating_mul(EXPANSION_MAX));
        decompress_into(self.bytes, open(window, output_bytes_max))
            .map_err(|error| DecodeError::corrupt(error.to_string()))
    }
}

pub(super) struct Lz4Encoder {
    pending: Vec<u8>,
    table: CompressTable,
}

impl Lz4Encoder {
    /// Begins a frame in the fast mode, which is Kafka's default. There is no high-compression mode (KIP-390).
    pub(super) fn new(out: &mut Vec<u8>) -> Self {
        let descriptor = [FLAGS, BLOCK_DESCRIPTOR];
        out.extend_from_slice(&MAGIC.to_le_bytes());
        out.extend_from_slice(&descriptor);
        out.push((XxHash32::oneshot(0, &descriptor) >> 8) as u8);
        Lz4Encoder { pending: Vec::new(), table: CompressTable::default() }
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
        if !self.pending.is_empty() {
            self.write_block(out)?;
        }
        out.extend_from_slice(&0u32.to_le_bytes());
        Ok(())
    }

    fn write_block(&mut self, out: &mut Vec<u8>) -> Result<(), String> {
        let length_at = out.len();
        let start = length_at + size_of::<u32>();
        out.resize(start + get_maximum_output_size(self.pending.len()), 0);
        let length = compress_into_with_table(&self.pending, &mut out[start..], &mut self.table)
            .map_err(|error| error.to_string())?;
        let word = match length < self.pending.len() {
            true => length as u32,
            false => {
                out[start..start + self.pending.len()].copy_from_slice(&self.pending);
                self.pending.len() as u32 | STORED_BIT
            }
        };
        out[length_at..start].copy_from_slice(&word.to_le_bytes());
        out.truncate(start + (word & !STORED_BIT) as usize);
        self.pending.clear();
        Ok(())
    }
}
