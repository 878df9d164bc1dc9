//! Replication of partitions by Raft: a partition's log as the log of a Raft group.
//!
//! [`journal`] is the one file of a log directory that holds votes, internal entries and marks of its groups. An
//! [`EntryIndex`] says which entry is where in a log. A [`Replica`] is a log with its group: events go in, and what is to be
//! sent, synced and acknowledged comes out.
//!
//! [`snapshots`] are what takes the place of a log's beginning, where there are any.
//!
//! [`copies`] are how a replica gets the beginning of a log that is too far ahead of its own.
//!
//! [`link`] has the frames that go between nodes. [`history`] judges what clients of a simulated or a real cluster saw.
//!
//! Architecture invariant: no sockets, clock, threads or async. The algorithm is the `raft` crate's; this crate gives
//! it a log whose entries are record batches.

pub mod copies;
pub mod journal;
pub mod link;
pub mod snapshots;

mod change;
mod coalesced;
mod encoding;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod group;
pub mod history;
mod incoming;
mod index;
mod lag;
mod logger;
mod reconcile;
mod replica;
mod setback;
mod store;
mod unsynced;

pub use change::MemberChange;
pub use coalesced::{AcceptedHeartbeats, CoalescedHeartbeats, Repeat, RepeatAnswer};
pub use error::{LeaderAppendError, MessageError, ReplicaError};
pub use group::{Configuration, GroupId, ReplicaId};
pub use index::{EntryIndex, Position, RECENT_MAX, RECENT_MIN};
pub use raft::eraftpb;
pub use reconcile::{Step, WantedMembers};
pub use replica::{
    Replica, ReplicaOptions, StepError,
    copies::finish_replacement,
    effects::{Effects, Outgoing},
    group_journal::found,
    losses::Lost,
    role::{Role, RoleState},
    ticks::TICK_MS,
};
pub use setback::Setback;
pub use store::MESSAGE_BYTES_MAX;
