//! The integration tests of the binary, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod commands;
mod direct;
mod errors;
mod hostile;
mod queue;
mod security;
mod start;
mod support;
