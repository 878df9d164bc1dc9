//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod answers;
mod attached;
mod cluster;
mod cluster_bad_input;
mod cluster_clocks;
mod cluster_compaction;
mod cluster_disks;
mod cluster_isolation;
mod cluster_kills;
mod cluster_lost_files;
mod cluster_operations;
mod cluster_security;
mod cluster_snapshots;
mod cluster_upgrade;
mod codec_differential;
mod compaction;
mod consumer_groups;
mod crash;
mod full_disk;
mod groups;
mod hostile_bytes;
mod hostile_connections;
mod hostile_loads;
mod hostile_sessions;
mod log_dirs;
mod missing_segments;
mod operator;
mod parity;
mod permissions;
mod semantics;
mod snapshots;
mod stop;
mod streams;
mod takeover;
mod transactions;
