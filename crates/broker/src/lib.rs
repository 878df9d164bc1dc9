//! Listeners, connections and one file per API: the only crate that joins network and log.
//!
//! [`Server::start`] takes a configuration and runs a broker in this process until [`Server::stop`].
//!
//! A request is read, served and answered on the thread that read it: connection (`connection.rs`) to dispatch
//! (`dispatch.rs`) to its API (`api/`) to the partition (`partition.rs`) and back. Whoever has to wait (a long poll, a
//! produce with acks=all, a join) is a future that its connection polls. What waits for the disk on a path that is
//! not the data's runs on a thread of its own (`background.rs`).
//!
//! Architecture invariant: decisions about groups and metadata are made in `mainstem-coordination`, decisions about a
//! partition's files in `mainstem-log`; this crate carries them out.

mod api;
mod background;
mod broker;
mod buffers;
mod cleaner;
mod clock;
mod cluster;
mod cold_reads;
mod connection;
mod context;
mod controller;
mod dir_failures;
mod dispatch;
mod embedded;
mod errors;
mod event_loop;
mod fetch_sessions;
mod groups;
mod housekeeping;
mod http;
mod idle_poll;
mod input;
mod listener;
mod log_dirs;
mod loggers;
mod metrics;
mod moves;
mod opening;
mod output;
mod partition;
mod placing;
mod quotas;
mod random;
mod replay;
mod resources;
mod respond;
mod scratch;
mod server;
mod settings;
mod signal;
mod snapshots;
mod stopping;
mod telemetry;
mod topics;
mod transactions;
mod wake;

pub use controller::ControllerError;
pub use dir_failures::OnFatal;
pub use embedded::EmbeddedBroker;
pub use log_dirs::LogDirsError;
pub use loggers::Loggers;
pub use mainstem_coordination::config;
pub use mainstem_log::dir::LastStop;
pub use replay::ReplayError;
pub use server::{Ready, Server, StartError};
pub use snapshots::SnapshotError;
