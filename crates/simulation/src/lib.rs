//! A cluster on one thread: virtual clock, network and disks, faults and clients. Equal seeds give equal histories.
//!
//! [`simulate`] runs one replicated partition with idempotent producers and consumers. [`simulate_cluster`] runs partitions of
//! data and of both internal topics. Their leaders run the coordinators of groups and transactions with the broker's own driver.
//! Its clients are group members, transactional producers, and consumers that read committed transactions only.
//! [`mainstem_replication::history::check`] judges the history that the clients have seen.
//!
//! A node has the partitions, links and flusher of a broker. The world does the work of their threads and sockets, one step at a
//! time. [`simulate_nodes`] runs whole nodes with their metadata and the messages between them; its clients change the metadata.
//! The seed decides in which order the threads of such nodes run ([`mainstem_runtime::schedule`]).
//!
//! Architecture invariant: no socket, no clock, and no randomness except the generator of the seed; one thread runs at a time.

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
