//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod apis;
mod encoding;
mod frames;
mod fuzz_bodies;
mod golden;
mod primitives;
mod round_trip;
