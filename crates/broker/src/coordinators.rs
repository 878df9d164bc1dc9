//! Drivers of the coordinators whose state machines are in `mainstem-coordination`.

pub(crate) mod groups;
pub(crate) mod replay;
pub(crate) mod transactions;
