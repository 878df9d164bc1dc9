//! The memory of chunks.
//!
//! A journal keeps thousands of small chunks for a while, and frees them in the order in which they came. If each had a growing
//! allocation of its own, they would leave holes: chunks of 4 MiB took 7.4 MiB. So small ones lie one behind another in blocks. Each
//! block is freed with the last of its chunks.

use bytes::{Bytes, BytesMut};

/// The size of a block.
const BLOCK_BYTES: usize = 64 << 10;
/// A larger chunk has an allocation of its own.
const SMALL_BYTES: usize = BLOCK_BYTES / 4;

/// The block that is being filled, and the buffer of a read.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    block: BytesMut,
    read: Vec<u8>,
}

impl Blocks {
    /// Returns the buffer to read to, empty.
    pub(super) fn buffer(&mut self) -> &mut Vec<u8> {
        self.read.clear();
        &mut self.read
    }

    /// Moves the bytes of the buffer to their place.
    pub(super) fn keep(&mut self) -> Bytes {
        if self.read.len() > SMALL_BYTES {
            let mut own = std::mem::take(&mut self.read);
            own.shrink_to_fit();
            return own.into();
        }
        if self.block.capacity() < self.read.len() {
            self.block = BytesMut::with_capacity(BLOCK_BYTES);
        }
        self.block.extend_from_slice(&self.read);
        self.read.clear();
        self.block.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(blocks: &mut Blocks, size: usize, byte: u8) -> Bytes {
        blocks.buffer().resize(size, byte);
        blocks.keep()
    }

    #[test]
    fn small_chunks_share_blocks_and_large_ones_are_alone() {
        let mut blocks = Blocks::default();
        let sizes = |n: usize| 1 + n * 97 % SMALL_BYTES;
        let kept: Vec<Bytes> = (0..1_000).map(|n| keep(&mut blocks, sizes(n), n as u8)).collect();
        for (n, bytes) in kept.iter().enumerate() {
            assert_eq!(bytes.len(), sizes(n));
            assert!(bytes.iter().all(|byte| *byte == n as u8), "{n}");
        }
        let follows = |pair: &&[Bytes]| std::ptr::eq(pair[0].as_ptr_range().end, pair[1].as_ptr());
        let begun = kept.len() - kept.windows(2).filter(follows).count();
        let bytes: usize = kept.iter().map(Bytes::len).sum();
        // Of each block less than a small chunk is left at its end.
        let most = bytes / (BLOCK_BYTES - SMALL_BYTES) + 1;
        assert!(begun <= most, "{begun} blocks for {bytes} bytes, and {most} are enough");
        let large = keep(&mut blocks, SMALL_BYTES + 1, 1);
        assert!(kept.iter().all(|one| !one.as_ptr_range().contains(&large.as_ptr())));
        assert!(blocks.buffer().capacity() < SMALL_BYTES, "what was large is not kept beside");
    }
}
