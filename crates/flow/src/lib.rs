//! Handlers: services as functions over the log.
//!
//! A service names topics and gives each a function; this crate does order by key, concurrency, retries, dead letters and offsets. The
//! deciding parts are plain structs that get the time as a parameter:
//!
//! | | decides |
//! |---|---|
//! | [`Window`] | which messages of a partition may run now, and how far the partition is done |
//! | [`Judge`] | what happens after a failure: another attempt, a dead letter, waiting for an outage to end |
//! | [`metadata`] | how finished messages behind an unfinished one survive a crash, as text in the commit of an offset |
//! | [`letter`] | what a dead letter looks like |
//!
//! Architecture invariant: these know no clock, no I/O and no randomness.
//!
//! Around them an [`App`] has a task that is always inside the group's consumer (`driver.rs`) and a task for each partition (`runner.rs`).
//! A thread names handlers that block theirs (`watch.rs`). [`Route`]s name topics and their [`Handler`]s, which get [`Msg`]s of a
//! [`Payload`] and a [`Cx`].

mod app;
mod attempt;
#[cfg(feature = "avro")]
mod avro;
mod batches;
mod brokers;
#[cfg(feature = "command")]
mod command;
mod cx;
#[cfg(feature = "direct")]
mod direct;
mod driver;
mod error;
mod fault;
mod filter;
mod handler;
mod http;
pub mod judge;
mod kafka;
pub mod letter;
mod message;
pub mod metadata;
mod metrics;
pub mod payload;
mod reader;
mod route;
mod runner;
mod signals;
mod status;
#[cfg(feature = "test-partition")]
mod testing;
mod topics;
mod transport;
mod watch;
pub mod window;

pub use app::{App, Running};
#[cfg(feature = "avro")]
pub use avro::Avro;
pub use batches::Batch;
#[cfg(feature = "command")]
pub use command::{Env, main, main_from};
pub use cx::Cx;
pub use error::{Error, Result};
pub use fault::Fault;
pub use handler::{Handler, Input, OneArgument, Outcome, TwoArguments};
pub use judge::{FaultClass, Judge, Retry, Tries, Verdict};
#[cfg(feature = "derive")]
pub use mainstem_flow_derive::Event;
pub use mainstem_records::{SLICES, slice_of};
pub use message::{Msg, Received};
#[cfg(feature = "proto")]
pub use payload::Proto;
pub use payload::{DecodeError, Encode, EncodeError, Json, Payload, Raw, Text};
pub use reader::Reader;
pub use route::Route;
pub use status::{State, Status};
#[cfg(feature = "testing")]
pub use testing::TestApp;
#[cfg(feature = "test-partition")]
pub use testing::TestPartition;
pub use topics::{PartitionLag, TopicChange, TopicPlan};
pub use window::{Admitted, Limits, Window};
