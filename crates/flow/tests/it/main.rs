//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod app;
mod brokerless;
mod command;
mod logs;
mod memory;
mod promises;
mod scenarios;
mod service;
mod signals;
mod support;
mod test_kit;
