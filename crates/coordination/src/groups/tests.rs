//! Transcripts and properties of the coordinator.

mod administration;
mod bounds;
mod cluster;
mod consumer;
mod consumer_migration;
mod consumer_properties;
mod coordinator_changes;
mod durability;
mod membership;
mod offsets;
mod properties;
mod records;
mod script;
mod static_members;
mod timeouts;
mod transactions;
pub(super) mod transcript;
mod write_timeouts;
