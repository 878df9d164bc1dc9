//! The integration tests of this crate, one module for each subject.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

mod bounds;
mod certificates;
mod fuzz;
mod half_open;
mod instances;
mod kills;
mod names;
mod network;
mod protocol;
mod refused;
mod replay;
mod stream;
mod support;
mod tls_words;
mod wire;
