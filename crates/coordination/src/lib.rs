//! Coordinators as state machines: groups and transactions. Inputs and the time go in, records and replies come out.
//!
//! Architecture invariant: no I/O, no clock, no randomness; each coordinator can be rebuilt from its records alone.

mod deadlines;
pub mod groups;
pub mod time;
pub mod transactions;
pub mod writes;
