//! Counters of a partition's data.

use std::sync::atomic::AtomicU64;

/// Messages and bytes that went through one partition since the broker began.
#[derive(Default)]
pub struct Traffic {
    /// Records that were appended.
    pub messages_in: AtomicU64,
    /// Bytes of batches that were appended.
    pub bytes_in: AtomicU64,
    /// Bytes of batches that were put into answers.
    pub bytes_out: AtomicU64,
}
