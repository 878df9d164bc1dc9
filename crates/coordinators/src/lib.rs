//! Drivers of the coordinators whose state machines are in `mainstem-coordination`: groups and transactions, each over an internal topic of
//! the store; and named tailers of attached queues, which are groups, too.
//!
//! Architecture invariant: no connection, no API and no controller is known here. The owner of a driver carries out its coordinator's
//! effects besides appends and replies ([`driver::Driver::set_perform`]).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod driver;
pub mod groups;
pub mod markers;
pub mod tailers;
pub mod transactions;
