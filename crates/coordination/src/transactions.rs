//! The transaction coordinator: it knows the producer of each transactional id, and decides its transactions.
//!
//! # Contract
//!
//! [`TransactionCoordinator`] is a plain struct. It reads no clock, draws no random numbers and does no I/O; inputs and
//! the time go in, [`Effect`]s come out, and the driver carries them out in order:
//!
//! 1. [`step`](TransactionCoordinator::step) takes one request, [`tick`](TransactionCoordinator::tick) the passing of
//!    time. Every request gets exactly one [`Effect::Reply`], at once or later.
//! 2. [`Effect::Append`] asks for records to be written to a partition of `__transaction_state` as durably as acks=all.
//!    The driver reports the outcome by [`appended`](TransactionCoordinator::appended), once per ticket, in any order.
//!    An error means that the records are not in the log and never will be. A driver that cannot tell (a failed fsync)
//!    gives the partition up by [`unload`](TransactionCoordinator::unload).
//! 3. [`Effect::WriteMarkers`] asks for the marker of a transaction in each of its partitions, as durably as acks=all.
//!    The driver reports each partition by [`marked`](TransactionCoordinator::marked), in any order. A partition may be
//!    requested again: after an error, and by the next coordinator. The markers are the same then, so that a second one does no harm.
//! 4. [`Effect::NewProducerId`] asks for a producer id that was never given before;
//!    [`producer_id`](TransactionCoordinator::producer_id) brings it. One that comes too late is lost.
//! 5. After each call the driver drains [`effects`](TransactionCoordinator::effects), and calls `tick` no later than
//!    [`next_deadline_ms`](TransactionCoordinator::next_deadline_ms). Calling it too early does no harm.
//! 6. A partition is served between [`finish_load`](TransactionCoordinator::finish_load) and `unload`. Before, requests
//!    get COORDINATOR_LOAD_IN_PROGRESS; where it is not ours, NOT_COORDINATOR.
//!
//! Authorization, the existence of topics, and the codes that old versions have in place of newer ones (PRODUCER_FENCED is
//! INVALID_PRODUCER_EPOCH in InitProducerId before v4, and before v2 elsewhere) are the driver's.
//!
//! # What is durable when
//!
//! Nothing of a transactional id changes before the record that says so is durable; until then it is *pending*, and
//! other requests to it get CONCURRENT_TRANSACTIONS. So a failed append needs no undo. A transaction is decided when its PrepareCommit or
//! PrepareAbort is durable: EndTxn is answered then, and a later coordinator writes the remaining markers. When all are written, a last
//! record says so.
//!
//! # States
//!
//! ```text
//!                            partitions are added            EndTxn, or time is up
//!   Empty, CompleteCommit, ----------------------> Ongoing -------------------------> PrepareCommit, PrepareAbort
//!        CompleteAbort                                                                             |
//!          ^     ^ |  \                                                                            |
//!          |     | |   +--- EndTxn that aborts nothing (KIP-890) -----------> PrepareAbort         |
//!          |     | +- InitProducerId: Empty                                        |               |
//!          |     +---- tombstone: Dead                                             v               v
//!          +------------------------------ all markers are written ----------------+---------------+
//! ```
//!
//! With transactions of version 2 (KIP-890) the epoch of the producer rises with each transaction that ends, so that a late request cannot
//! reach into the next one. When the epochs of a producer id are used up, the producer gets another id. A transaction is fenced by
//! InitProducerId of a newer producer, or by its time-out: then it is aborted with a risen epoch.
//!
//! # Where it differs from Kafka
//!
//! - An AddPartitionsToTxn or AddOffsetsToTxn waits while the markers of the producer's last transaction are written, up to
//!   [`ending_wait_ms`](TransactionConfig::ending_wait_ms). Kafka answers with an error, on which the client tries again.
//! - An EndTxn of version 5 or later that comes so early gets CONCURRENT_TRANSACTIONS, where Kafka fences the producer.
//! - The EndTxn of a fenced producer is not answered with the end of its successor's transaction of version 1.
//! - A retry of InitProducerId (KIP-360) is recognised at the last epoch of a producer id too.
//! - A transactional id that no durable record names does not exist for DescribeTransactions and ListTransactions.
//! - The epoch of a failed fence is dropped; Kafka keeps the risen epoch in memory.
//! - Memory has a bound: [`memory_bytes_max`](TransactionConfig::memory_bytes_max).
//!
//! # Bounds
//!
//! [`TransactionConfig`] bounds the bytes of transactional ids with their partitions, of what waits and of what is on its
//! way. Beside them there are at most two deadlines per transactional id and two per partition.

pub mod add_partitions;
mod adding;
mod api;
mod config;
mod coordinator;
mod deadlines;
mod describe;
mod end_txn;
mod expiry;
#[doc(hidden)]
pub mod fuzz;
mod image;
mod init_producer_id;
mod io;
mod markers;
mod memory;
mod outcome;
mod records;
mod replay;
mod replies;
mod served;
mod state;
#[cfg(test)]
mod tests;
mod time_outs;
mod transaction;
mod waiter;

pub use crate::groups::{CoordinatorRecord, Replayed, Token};
pub use api::{
    Effect, MarkerOutcome, MarkerTicket, MarkerTopic, Markers, ProducerIdTicket, Reply, Request, Ticket,
};
pub use config::TransactionConfig;
pub use coordinator::{Stats, TransactionCoordinator};
pub use state::State;
