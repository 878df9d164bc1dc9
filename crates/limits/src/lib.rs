//! Quotas and client telemetry as state machines: the acts of clients and the time go in, waits and verdicts come out.
//!
//! Architecture invariant: no I/O, no clock, no randomness.

pub mod quotas;
pub mod telemetry;
