//! Brokerless publish/subscribe: services stream events to each other over gRPC, straight from the publisher's own log. There is
//! no broker and no database.
//!
//! The publisher has a [`Journal`], which is an embedded queue, and serves it by a [`Publisher`]. A consumer is an application of
//! `mainstem-flow` whose URL says `grpc://`; below that is the [`Consumer`] of this crate. `proto/direct.proto` is the protocol
//! between them, for programs in any language.
//!
//! # Promises
//!
//! - An append that returned is on the disk. What a consumer has seen is on the publisher's disk, unless
//!   [`Visibility::Mapped`] was chosen.
//! - A consumer sees every event, in the order of the journal, or stops and says what it misses ([`Refused`]).
//! - An event that an instance has reported done is not sent again after reconnections, restarts of the publisher and
//!   orderly hand-overs. If an instance is killed, events that it did in its last 100 ms may be repeated.
//! - A slow consumer costs a cursor: nothing waits for it, and nothing is kept in memory for it.
//!
//! # What decides
//!
//! | | decides |
//! |---|---|
//! | [`JournalView`] | whether a consumer may continue, and where |
//! | [`Handover`] | which instance has which slices, and how far each slice is |
//! | [`Filter`] | which events pass |
//! | [`Credit`] | when the next frame may be sent |
//! | [`Sequence`] | whether a frame is the one that is due |
//! | `pace.rs` | when older events may be read while other instances are sent new ones |
//! | `cursor.rs` | which frame an instance is sent next, and through which filters |
//! | `subscription.rs` | from which offset another filter holds, and what is stored before an instance learns it |
//! | `consumer/inbox.rs` | what a consumer takes, says, and keeps over a reconnection |
//!
//! Architecture invariant: these know no clock, no connection and no randomness. The drivers around them (`session.rs`,
//! `consumer.rs`, `publisher.rs`) wait, read and send. `simulation.rs` joins both ends over a network that is made up, by seed.

mod admin;
mod chunk;
mod consumer;
mod credit;
mod cursor;
mod error;
mod filter;
#[doc(hidden)]
pub mod fuzz;
mod handover;
mod journal;
mod member;
mod pace;
mod past;
mod peer_lines;
mod pipeline_cache;
pub mod proto;
mod publisher;
mod resume;
mod sequence;
mod session;
#[cfg(test)]
mod simulation;
mod slices;
mod slot_file;
mod stages;
mod stream;
mod subscription;
mod tls;
mod tls_words;

pub use admin::{Admin, LocalAdmin};
pub use chunk::{DECOMPRESSED_BYTES_MAX, Transformed};
pub use consumer::{Address, Consumer, ConsumerConfig, ConsumerEvent, Positions, Replay, Replayed};
pub use credit::{CREDIT_BYTES_MAX, Credit};
pub use error::{DirectError, Refused, Result};
pub use filter::{
    FILTER_BYTES_MAX, Filter, FilterError, PATTERN_BYTES_MAX, PATTERNS_IN_ALL_MAX, PATTERNS_MAX, TAG_HEADER,
    TOPIC_HEADER, TopicPattern, criteria,
};
pub use handover::{
    Attempt, CLAIM_GRACE_MS, Connection, Effect, Handover, Held, Holder, INSTANCES_MAX, JoinError, Joining,
    Part, REJOIN_MS_MAX, REVOKE_MS_MAX,
};
pub use journal::{FRAME_BYTES_MAX, Journal, JournalOptions, NewEvent, ToEvent, Visibility};
pub use mainstem_queue::Record;
pub use publisher::{Access, Call, Grant, Publisher, Serving};
pub use resume::{Epoch, JournalId, JournalView, Received};
pub use sequence::{Sequence, SequenceFault};
pub use slices::{Done, FINISHED_MAX, SliceRange};
pub use stages::STAGES;
