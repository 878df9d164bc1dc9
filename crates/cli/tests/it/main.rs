//! The integration tests of the binary, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod cluster;
mod commands;
mod consume;
mod direct;
mod errors;
mod groups;
mod hostile;
mod profiles;
mod queue;
mod security;
mod start;
mod support;
mod topics;
mod transactions;
