//! A cluster in one process, one thread at a time: virtual clock, network and disks, faults and clients. Equal seeds give equal histories.
//!
//! [`simulate_cluster`] runs whole nodes, as a broker has them, with their metadata and the messages between them. Its clients are group
//! members, transactional and idempotent producers, consumers that read committed transactions only, and clients that change the metadata.
//! The seed decides in which order the threads of the nodes run ([`mainstem_runtime::schedule`]).
//!
//! [`simulate`] runs one replicated partition with idempotent producers and consumers. Its nodes have the partitions, links and flusher
//! of a broker, and no threads: the world does their work, one step at a time. So it runs many more seeds in the same time.
//! [`mainstem_replication::history::check`] judges the history that the clients of either have seen.
//!
//! Architecture invariant: no socket, no clock, and no randomness except the generator of the seed; one thread runs at a time.

mod clients;
mod cluster;
mod deletions;
mod done;
mod faults;
mod knowledge;
mod links;
mod metadata;
mod node;
#[cfg(test)]
mod tests;
mod world;

pub use cluster::{ClusterOptions, Defect, simulate_cluster};
pub use faults::{FaultKind, FaultKinds, UnknownFault};
pub use world::{SimulationOptions, Verdict, simulate};
