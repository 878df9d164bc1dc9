//! Clock, threads and wake-ups that the parts of the broker are given.
//!
//! Architecture invariant: nothing here knows what the broker serves. All that decides by time asks a [`clock::Clock`], which a test may
//! hold; a thread is started by [`supervised`], so that no panic goes unnoticed; a task is woken through [`wake`], which writes once for
//! many wakes of one event loop.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod alarm;
pub mod clock;
pub mod current_config;
pub mod heap;
pub mod idle_poll;
pub mod keyed_workers;
pub mod random;
#[cfg(feature = "sim")]
pub mod schedule;
pub mod stopping;
pub mod supervised;
pub mod sync;
mod turns;
pub mod wake;
pub mod worker;
