//! One partition on disk: segments, indexes, recovery, retention, producer state, epochs.

pub mod boot;
pub mod checkpoint;
pub mod descriptors;
pub mod dir;
pub mod flusher;
#[doc(hidden)]
pub mod fuzz_texts;
pub mod marker;
pub mod meta_properties;
pub mod partition_dir;
pub mod partition_metadata;
pub mod storage;
pub mod uuid;
