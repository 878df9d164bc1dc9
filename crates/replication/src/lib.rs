//! Replication of partitions by Raft: what of it is on disk, and which entry of a group is where in its log.
//!
//! [`journal`] is the one file of a log directory that holds votes, internal entries and marks of its groups.
//!
//! Architecture invariant: no sockets, clock, threads or async. The algorithm is the `raft` crate's; this crate gives
//! it a log whose entries are record batches.

pub mod journal;

#[doc(hidden)]
pub mod fuzz;
mod group;

pub use group::{Configuration, GroupId, ReplicaId};
