//! One file per API, and the node that runs them: the only crate that joins connections, store and coordinators.
//!
//! [`Server::start`] takes a configuration and runs a broker in this process until [`Server::stop`].
//!
//! A request is read, served and answered on the thread that read it: connection (`mainstem-net`) to dispatch
//! (`api/dispatch.rs`) to its API (`api/`) to the partition (`mainstem-store`) and back. A request that has to wait
//! (a long poll, a produce with acks=all, a join) is a future that its connection polls. Work that waits for the disk
//! off the data path runs on a thread of its own (`background.rs`).
//!
//! Architecture invariant: decisions about groups and metadata are made in `mainstem-coordination`, decisions about a
//! partition's files in `mainstem-log`; this crate carries them out.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests of the broker wait in the time of the machine")
)]

mod api;
#[cfg(test)]
mod authentication_tests;
mod background;
mod bound;
mod broker;
mod data_counters;
mod embedded;
mod fetch_sessions;
mod forward;
mod founding;
mod gate_node;
mod health;
mod housekeeping;
mod join_handler;
mod loggers;
mod metrics;
#[cfg(test)]
mod node_tests;
mod operator;
mod program_pages;
#[cfg(test)]
mod publisher_tests;
mod reconfigure;
mod resources;
mod respond;
mod security;
mod server;
mod service;
mod store_events;
#[cfg(test)]
mod supervision;
mod telemetry;
mod turns;
mod users;

pub use embedded::EmbeddedBroker;
pub use founding::FoundingError;
pub use loggers::Loggers;
pub use mainstem_config as config;
pub use mainstem_log::RecoveryWatch;
pub use mainstem_log::dir::LastStop;
pub use mainstem_node::controller::snapshots::SnapshotError;
pub use mainstem_node::controller::{ControllerError, bootstrap_file};
pub use mainstem_runtime::clock::ManualClock;
pub use mainstem_store::attached::AttachError;
pub use mainstem_store::dir_failures::OnFatal;
pub use mainstem_store::error::StoreError;
pub use mainstem_store::log_dirs::LogDirsError;
pub use mainstem_store::machine::Machine;
pub use mainstem_store::replay::ReplayError;
pub use server::{Ready, Server, StartError, StartOptions};
