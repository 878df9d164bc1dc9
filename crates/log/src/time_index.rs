//! The time index: from a timestamp to an offset before which no record is younger.
//!
//! ```text
//! +----------------------+-------------------------+
//! | timestamp: i64 BE ms | relative_offset: i32 BE |   12 bytes an entry
//! +----------------------+-------------------------+
//! ```
//! An entry says: the largest timestamp up to here is `timestamp`, in the batch whose last offset this is. Timestamps
//! and offsets ascend strictly. The last entry of a closed segment is its largest timestamp.

use crate::index::{Entry, Index};

/// A timestamp and the last offset of the batch that it stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimestampOffset {
    /// In ms since the epoch; -1 when no record has one.
    pub(crate) timestamp: i64,
    /// Last offset of the batch.
    pub(crate) offset: i64,
}

impl TimestampOffset {
    /// No timestamp in a segment that starts at `base_offset`.
    pub(crate) fn none(base_offset: i64) -> TimestampOffset {
        TimestampOffset { timestamp: -1, offset: base_offset }
    }
}

/// One entry of a time index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    /// In ms since the epoch.
    pub(crate) timestamp: i64,
    /// Last offset of the batch, relative to the segment's base offset.
    pub(crate) relative_offset: i32,
}

/// The time index of a segment.
pub(crate) type TimeIndex = Index<TimeEntry>;

impl Entry for TimeEntry {
    const BYTES: usize = 12;

    fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(&self.timestamp.to_be_bytes());
        to.extend_from_slice(&self.relative_offset.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> TimeEntry {
        TimeEntry {
            timestamp: i64::from_be_bytes(bytes[..8].try_into().expect("eight bytes")),
            relative_offset: i32::from_be_bytes(bytes[8..12].try_into().expect("four bytes")),
        }
    }
}
