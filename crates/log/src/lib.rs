//! One partition on disk: segments, indexes, recovery, retention, producer state, epochs.

pub mod flusher;
pub mod storage;
