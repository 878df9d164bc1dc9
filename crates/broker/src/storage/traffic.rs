//! Counters of a partition's data.

use std::sync::atomic::AtomicU64;

/// Messages and bytes that went through one partition since the broker began.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) messages_in: AtomicU64,
    pub(crate) bytes_in: AtomicU64,
    pub(crate) bytes_out: AtomicU64,
}
