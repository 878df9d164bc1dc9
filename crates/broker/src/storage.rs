//! Partitions as the broker serves them, and the work on their log directories: opening, placing, reading whole logs, moves, housekeeping,
//! compaction, cold reads, failures of disks.

pub(crate) mod attached;
pub(crate) mod cleaner;
pub(crate) mod cold_reads;
pub(crate) mod dir_failures;
pub(crate) mod housekeeping;
pub(crate) mod log_dirs;
pub(crate) mod moves;
pub(crate) mod opening;
pub(crate) mod partition;
pub(crate) mod placing;
pub(crate) mod replay;
pub(crate) mod replicas;
pub(crate) mod topics;
