//! A cluster on one thread: virtual clock, network and disks, faults and clients. Equal seeds give equal histories.
//!
//! [`simulate`] runs one replicated partition with idempotent producers and consumers. [`simulate_cluster`] runs what a
//! cluster is for its clients: partitions of data, the partitions of both internal topics, and on their leaders the
//! coordinators of groups and of transactions, driven as the broker drives them; members of groups, transactional producers,
//! consumers of committed transactions. What clients did and saw is judged by [`mainstem_replication::history::check`].
//!
//! A node has the partitions, links and flusher of a broker; what these leave to threads and sockets the world does, one step after
//! the other. [`simulate_nodes`] runs nodes as a broker has them, with their metadata and what they say to each other; clients change
//! the metadata. The threads of such nodes take turns by seed ([`mainstem_runtime::schedule`]).
//!
//! Architecture invariant: no socket, no clock, no generator but the one that the seed begins; one thread runs at a time.

mod applier;
mod clients;
mod cluster;
mod deletions;
mod faults;
mod knowledge;
mod links;
mod metadata;
mod node;
mod nodes;
#[cfg(test)]
mod tests;
mod world;

pub use cluster::{ClusterOptions, Defect, simulate_cluster};
pub use faults::{FaultKind, FaultKinds, UnknownFault};
pub use nodes::{NodesOptions, simulate_nodes};
pub use world::{SimulationOptions, Verdict, simulate};
