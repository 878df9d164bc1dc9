//! The offset index: from an offset to a position at or before its batch.
//!
//! ```text
//! +-------------------------+---------------+
//! | relative_offset: i32 BE | position: i32 |   8 bytes an entry
//! +-------------------------+---------------+
//! ```
//! The offset is the last one of the batch at `position`, less the segment's base offset. The first batch has no
//! entry. An entry follows when more than `index.interval.bytes` were appended since the last one.

use crate::index::{Entry, Index};

/// One entry of an offset index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    /// Last offset of the batch, relative to the segment's base offset.
    pub(crate) relative_offset: i32,
    /// Where the batch starts.
    pub(crate) position: u32,
}

/// The offset index of a segment.
pub(crate) type OffsetIndex = Index<OffsetEntry>;

impl Entry for OffsetEntry {
    const BYTES: usize = 8;

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.relative_offset.to_be_bytes());
        to.extend_from_slice(&self.position.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> OffsetEntry {
        OffsetEntry {
            relative_offset: i32::from_be_bytes(bytes[..4].try_into().expect("four bytes")),
            position: u32::from_be_bytes(bytes[4..8].try_into().expect("four bytes")),
        }
    }
}
