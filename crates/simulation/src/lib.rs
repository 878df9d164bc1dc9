//! A cluster on one thread: virtual clock, network and disks, faults and clients. Equal seeds give equal histories.
//!
//! [`simulate`] runs one replicated partition with idempotent producers and consumers. [`simulate_cluster`] runs what a
//! cluster is for its clients: partitions of data, the partitions of both internal topics, and on their leaders the
//! coordinators of groups and of transactions, driven as the broker drives them; members of groups, transactional producers,
//! consumers of committed transactions. What clients did and saw is judged by [`mainstem_replication::history::check`].
//!
//! A node has the partitions, links and flusher of a broker; what these leave to threads and sockets the world does, one step after
//! the other.
//!
//! Architecture invariant: no socket, no thread, no clock, no generator but the one that the seed begins.

mod applier;
mod clients;
mod cluster;
mod deletions;
mod faults;
mod knowledge;
mod links;
mod node;
#[cfg(test)]
mod tests;
mod world;

pub use cluster::{ClusterOptions, Defect, simulate_cluster};
pub use faults::{FaultKind, FaultKinds, UnknownFault};
pub use world::{SimulationOptions, Verdict, simulate};
