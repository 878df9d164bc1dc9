//! Handlers: services as functions over the log.
//!
//! A service names topics and gives each a function; this crate does order by key, concurrency, retries, dead letters and
//! offsets. What decides is in plain structs that are given the time:
//!
//! | | decides |
//! |---|---|
//! | [`Window`] | which messages of a partition may run now, and how far the partition is done |
//! | [`Judge`] | what happens after a failure: another attempt, a dead letter, waiting for an outage to end |
//! | [`metadata`] | how finished messages behind an unfinished one survive a crash, as text in the commit of an offset |
//! | [`letter`] | what a dead letter looks like |
//!
//! Architecture invariant: these know no clock, no I/O and no randomness.

pub mod judge;
pub mod letter;
pub mod metadata;
mod slice;
pub mod window;

pub use judge::{FaultClass, Judge, Retry, Tries, Verdict};
pub use slice::{SLICES, slice_of};
pub use window::{Admitted, Limits, Window};
