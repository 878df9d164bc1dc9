//! Partitions of a node and the work on their log directories: opening, placing, reading whole logs, moves, copies
//! from and to other nodes, upkeep, compaction, failures of disks. [`store::Store`] has them together.
//!
//! Architecture invariant: no listener, no controller and no coordinator is known here. Clock, disk, links to other nodes and the
//! receivers of events are given.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod attached;
pub mod cleaner;
pub mod copies;
pub mod dir_failures;
pub mod error;
pub mod errors;
pub mod journals;
pub mod log_dirs;
pub mod machine;
pub mod members;
pub mod mounts;
pub mod moves;
pub mod opening;
pub mod partition;
pub mod placing;
pub mod replay;
pub mod replicas;
pub mod scratch;
pub mod settings;
pub mod signal;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod topics;
pub mod traffic;
pub mod upkeep;

#[cfg(test)]
mod replicated_tests;
