//! A request with its connection: its principal, its permissions, and its cost.
//!
//! Architecture invariant: no socket and no API is known here. `mainstem-security` decides about permissions, `mainstem-limits`
//! about throttle times.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod authorization;
pub mod context;
pub mod folded_lines;
pub mod host_names;
pub mod quotas;
pub mod refused;
