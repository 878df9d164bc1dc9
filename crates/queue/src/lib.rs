//! An embedded queue: processes of one host exchange messages through mapped memory, without a server.
//!
//! ```
//! # let directory = tempfile::tempdir().unwrap();
//! # let directory = directory.path().join("trades");
//! use mainstem_queue::Queue;
//!
//! let queue = Queue::open(&directory)?;
//! queue.append(b"hello")?;
//! for message in queue.tailer("me")? {
//!     assert_eq!(message?.value(), b"hello");
//! }
//! # Ok::<(), mainstem_queue::QueueError>(())
//! ```
//!
//! The directory of a queue is a partition of Kafka: closed segments and their indexes are byte for byte what a broker writes,
//! and each batch has its CRC. Beside them one control file says what is published; docs/format.md has its bytes.
//!
//! # Promises
//!
//! - A message, and a batch of messages, is seen whole or not at all, in one order by all.
//! - What was published survives the death of any process, at any instruction. [`Queue::sync`] has it survive the power too, and
//!   says so to all processes ([`Ends::synced`]).
//! - Readers wait for no other process: a writer that died or was stopped does not hold them up. Writers in shared mode wait for a
//!   living holder of the lock, and take it over from a dead one.
//! - A full disk is an error before anything is written: segments have their space from the beginning.
//!
//! Processes that may write the directory trust each other; see [`Options::read_only`] for those that only read.

mod ahead;
mod appender;
mod async_tailer;
mod bell;
mod byte_lock;
mod clock;
mod control;
mod directory;
mod epochs;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod guard;
mod inner;
mod journal;
mod lock;
mod map;
mod open_segment;
mod options;
mod present;
mod protocol;
mod queue;
mod recovery;
mod retention;
mod rules;
mod segment;
mod serving;
mod spare;
mod sync;
mod sync_every;
mod tailer;
mod tailer_names;
mod tailers;
mod verify;
mod words;
mod writer;

pub use ahead::Prepared;
pub use appender::{Appender, Messages, Reservation};
pub use async_tailer::AsyncTailer;
pub use directory::{Directory, DirectoryKind, Holder};
pub use error::{QueueError, Result};
pub use mainstem_records::{Header, Headers, Record};
pub use options::Options;
pub use queue::{Ends, Queue, SegmentInfo};
pub use serving::{Located, Locked, ServedRules, Serving, WAIT_ANY_MAX, wait_any};
pub use sync_every::SyncEvery;
pub use tailer::{Follow, Message, Start, Tailer, Wait};
pub use tailer_names::{file_of_name, name_of_file};
pub use tailers::{Bookmark, TailerInfo};
pub use verify::{Repaired, SegmentCheck, Verification, batches, plan_repair, repair, verify};
