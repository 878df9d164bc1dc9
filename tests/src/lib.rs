//! Shared parts of the integration tests, which cross crates.

pub mod broker;
pub mod client;
pub mod cluster;
pub mod disk_faults;
mod dumps;
pub mod hostile;
pub mod kafka;
pub mod kafka_node;
pub mod log_dirs;
pub mod machine;
pub mod preload;
pub mod small_disk;
pub mod tree;
pub mod wait;
