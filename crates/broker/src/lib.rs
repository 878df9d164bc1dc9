//! Listeners, connections and one file per API: the only crate that joins network and log.
//!
//! [`Server::start`] takes a configuration and runs a broker in this process until [`Server::stop`].
//!
//! A request is read, served and answered on the thread that read it: connection (`connection.rs`) to dispatch
//! (`dispatch.rs`) to its API (`api/`) to the partition (`partition.rs`) and back. A request that has to wait (a long poll, a
//! produce with acks=all, a join) is a future that its connection polls. What waits for the disk on a path that is
//! not the data's runs on a thread of its own (`background.rs`).
//!
//! Architecture invariant: decisions about groups and metadata are made in `mainstem-coordination`, decisions about a
//! partition's files in `mainstem-log`; this crate carries them out.

#![cfg_attr(
    test,
    allow(clippy::disallowed_methods, reason = "tests of the broker wait in the time of the machine")
)]

mod alarm;
mod api;
mod authorization;
mod awaited;
mod background;
mod broker;
mod clock;
mod cluster;
mod controller;
mod coordinators;
mod embedded;
mod errors;
mod fetch_sessions;
mod folded_lines;
mod gate_node;
mod health;
mod heap;
mod host_names;
mod housekeeping;
mod links;
mod listener_security;
mod loggers;
mod metrics;
mod net;
mod program_pages;
mod quotas;
mod random;
mod resources;
mod scratch;
mod security;
mod server;
mod settings;
mod signal;
mod stopping;
mod storage;
mod store_events;
mod supervised;
mod telemetry;
mod ticker;

pub use clock::ManualClock;
pub use cluster::founding::FoundingError;
pub use controller::ControllerError;
pub use controller::bootstrap_file;
pub use controller::snapshots::SnapshotError;
pub use embedded::EmbeddedBroker;
pub use loggers::Loggers;
pub use mainstem_config as config;
pub use mainstem_log::RecoveryWatch;
pub use mainstem_log::dir::LastStop;
pub use server::{Ready, Server, StartError, StartOptions};
pub use storage::attached::AttachError;
pub use storage::dir_failures::OnFatal;
pub use storage::error::StoreError;
pub use storage::log_dirs::LogDirsError;
pub use storage::machine::Machine;
pub use storage::replay::ReplayError;
