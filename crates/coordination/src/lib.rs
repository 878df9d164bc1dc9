//! Groups, transactions and cluster metadata as state machines: inputs and the time go in, records and replies come out.

pub mod config;
pub mod groups;
pub mod metadata;
pub mod quotas;
pub mod telemetry;
pub mod time;
pub mod transactions;
