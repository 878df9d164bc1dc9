//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod embedded_broker;
mod restart;
mod security;
