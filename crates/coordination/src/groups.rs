//! The group coordinator: members share the partitions of topics among themselves, and keep their offsets.
//!
//! # Contract
//!
//! [`GroupCoordinator`] is a plain struct. It reads no clock, draws no random numbers and does no I/O; inputs and the
//! time go in, [`Effect`]s come out, and the driver carries them out in order:
//!
//! 1. [`step`](GroupCoordinator::step) takes one request, [`tick`](GroupCoordinator::tick) the passing of time.
//!    Every request gets exactly one [`Effect::Reply`], at once or later.
//! 2. [`Effect::Append`] asks for records to be written to a partition of `__consumer_offsets` as durably as acks=all.
//!    The driver reports the outcome by [`appended`](GroupCoordinator::appended), once per ticket, in any order; they
//!    take effect in the order of the log. An error means that the records are not in the log and never will be. A
//!    driver that cannot tell (a failed fsync) gives the partition up by [`unload`](GroupCoordinator::unload).
//! 3. After each call the driver drains [`effects`](GroupCoordinator::effects), and calls `tick` no later than
//!    [`next_deadline_ms`](GroupCoordinator::next_deadline_ms). Calling it too early does no harm.
//! 4. A partition is served between [`finish_load`](GroupCoordinator::finish_load) and `unload`. Before, requests get
//!    COORDINATOR_LOAD_IN_PROGRESS; where it is not ours, NOT_COORDINATOR.
//!
//! # What is durable when
//!
//! Offsets change when their record is durable: before, no OffsetFetch sees them and no OffsetCommit is answered. So a failed append needs
//! no undo. A request waits at most `offsets.commit.timeout.ms` for its record: then it is answered with COORDINATOR_NOT_AVAILABLE, and the
//! record may still take effect later. Commits of one partition of `__consumer_offsets` take effect in the order in which they came. A
//! fetch with `require_stable` waits for those before it.
//!
//! A classic group changes before its record is durable. The record holds only what the next coordinator needs: the members of the last
//! finished generation. The assignment of a generation reaches members after its record is durable; if it fails, members get the error and
//! rebalance. A static member's new id is undone if it cannot be written. A group that a JoinGroup made is removed again. If an empty
//! generation cannot be written nothing is undone: the members that the log still names are gone, and would time out.
//!
//! A consumer group (KIP-848) changes before its records are durable: the next request sees the change at once, and the answer waits for
//! the records. A failed append undoes its changes when it is reported, and those of requests that were built on them. A group that changes
//! between the protocols is not served until that is durable.
//!
//! Offsets of a transaction (KIP-98) wait twice: for their record to be durable, then for the marker that ends the
//! transaction. The driver writes the marker and says so by
//! [`transaction_ended`](GroupCoordinator::transaction_ended); when it is durable, they become what any commit would have
//! made of them, unless a later one was there first, or vanish. Meanwhile a fetch with `require_stable` gets
//! UNSTABLE_OFFSET_COMMIT for their partitions, they do not expire, and neither does their group.
//!
//! # States of a classic group
//!
//! ```text
//!              first member joins              all have joined, or time is up
//!     Empty ----------------------> Preparing -------------------------------> Completing
//!       ^ ^                         Rebalance  <-----------------------------   Rebalance
//!       | |   no member is left       |   ^      a member joins, leaves, dies      |
//!       | +---------------------------+   |                                        | the leader's
//!       |                                 +-------------- Stable <-----------------+ assignment
//!       +-- its tombstone fails -- Dead                                              is durable
//! ```
//!
//! # Work under the driver's lock
//!
//! A group is described from a copy that shares its state ([`offset_fetch::Fetched`], [`ClassicDescription`], [`ConsumerDescription`]).
//! Taking the copy costs the same however many members, partitions and offsets a group has. It is the group at one moment, and the answer
//! is written from it without the lock. ListGroups looks at [`LISTED_AT_ONCE`] groups at a time; each is shown as it is then.
//!
//! # Bounds
//!
//! [`GroupConfig`] bounds groups, members, the metadata of a member, offsets, appends in flight, and the bytes of all that together. Beside
//! them the coordinator holds at most one deadline per member (three in a consumer group), two per group and two per partition. Their bytes
//! are included in those of members and groups.

mod api;
mod appends;
mod classic;
mod committed_offset;
mod completion;
mod config;
mod consumer;
mod coordinator;
mod deadlines;
mod describe;
mod durable_offsets;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod heartbeat;
mod in_flight;
mod io;
mod join;
mod leave;
mod lifetime;
mod log;
mod member;
mod members;
mod memory;
mod offset_commit;
pub mod offset_fetch;
mod offsets;
mod open_offsets;
mod open_transactions;
mod outcome;
mod partition;
mod rebalance;
mod records;
mod refused;
mod removal;
mod replay;
mod request_context;
mod served;
mod shared_map;
mod subscription;
mod sync;
#[cfg(test)]
mod tests;
mod token;
mod transaction_offsets;
pub mod txn_offset_commit;

pub use self::{
    api::{Effect, Reply, Request},
    log::{CoordinatorRecord, LogEntry},
    request_context::{RequestContext, VisibleTopics},
    token::{Ticket, Token},
};
pub(crate) use api::append_error;
pub use config::GroupConfig;
pub use consumer::describe::ConsumerDescription;
pub use consumer::patterns::{DuePatterns, MatchedPatterns};
pub(crate) use consumer::regex::compile as compile_pattern;
pub use coordinator::{GroupCoordinator, Stats};
pub use describe::{ClassicDescription, LISTED_AT_ONCE, ListFilter, ListPart, ListPosition};
pub use mainstem_config::{Assignor, ConsumerGroupConfig, GroupTimes, MigrationPolicy};
pub use mainstem_records::{Producer, TransactionEnd};
pub use partition::partition_for;
pub use replay::Replayed;
