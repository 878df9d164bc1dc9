//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod codecs;
mod fuzz;
mod golden;
mod plain;
mod properties;
mod rules;
