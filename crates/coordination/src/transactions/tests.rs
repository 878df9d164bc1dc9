//! Transcripts and properties of the coordinator.

mod bounds;
mod cluster;
mod durability;
mod ending;
mod initialising;
mod listing;
mod loading;
mod markers;
mod partitions;
mod properties;
mod records;
mod script;
mod time;
pub(super) mod transcript;
mod waiting;
mod world;
