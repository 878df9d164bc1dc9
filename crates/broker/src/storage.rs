//! Partitions as the broker serves them, and the work on their log directories: opening, placing, reading whole logs, moves, housekeeping,
//! compaction, cold reads, failures of disks. [`store::Store`] has them together.

pub(crate) mod attached;
pub(crate) mod cleaner;
pub(crate) mod cold_reads;
pub(crate) mod dir_failures;
pub(crate) mod error;
pub(crate) mod log_dirs;
pub(crate) mod machine;
pub(crate) mod moves;
pub(crate) mod opening;
pub(crate) mod partition;
pub(crate) mod placing;
pub(crate) mod replay;
pub(crate) mod replicas;
pub(crate) mod store;
pub(crate) mod topics;
pub(crate) mod traffic;
pub(crate) mod upkeep;
