//! The rules of a queue, which are stored in its directory.

/// The rules that all processes of a queue follow; fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The size of a segment, in bytes.
    pub(crate) segment_bytes: u64,
    /// The age at which a segment is closed, in ms; `u64::MAX` is never.
    pub(crate) roll_ms: u64,
    /// The age of its newest message at which a closed segment is deleted, in ms; `u64::MAX` is never.
    pub(crate) retention_ms: u64,
    /// The total size above which the oldest closed segments are deleted; `u64::MAX` is never.
    pub(crate) retention_bytes: u64,
    /// True if messages that a named tailer has not read are kept.
    pub(crate) keep_for_tailers: bool,
}

/// The smallest segment: a page of messages and its index.
pub(crate) const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Positions in Kafka's index are 31 bits.
pub(crate) const SEGMENT_BYTES_MAX: u64 = 1 << 30;

impl Rules {
    pub(crate) fn encode(&self) -> [u8; 40] {
        let words = [
            self.segment_bytes,
            self.roll_ms,
            self.retention_ms,
            self.retention_bytes,
            u64::from(self.keep_for_tailers),
        ];
        let mut bytes = [0; 40];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Returns `None` if no version of this crate wrote such rules.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Rules> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let &[segment_bytes, roll_ms, retention_ms, retention_bytes, keep] = words else { return None };
        let segment_bytes = u64::from_le_bytes(segment_bytes);
        (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes).then(|| Rules {
            segment_bytes,
            roll_ms: u64::from_le_bytes(roll_ms),
            retention_ms: u64::from_le_bytes(retention_ms),
            retention_bytes: u64::from_le_bytes(retention_bytes),
            keep_for_tailers: u64::from_le_bytes(keep) != 0,
        })
    }
}
