//! A request with its connection: who makes it, what it may do, and what it costs.
//!
//! Architecture invariant: no socket and no API is known here; who may do what is decided by `mainstem-security`, how long a client is held
//! back by `mainstem-limits`.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod authorization;
pub mod context;
pub mod folded_lines;
pub mod host_names;
pub mod quotas;
pub mod refused;
