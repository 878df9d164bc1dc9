//! Listeners, event loops and connections: bytes of the network in, whole requests to a [`Service`], responses out.
//!
//! Architecture invariant: no partition, no coordinator, no API and no metadata is known here.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

pub mod answers;
pub mod authentication;
mod balance;
pub mod buffers;
pub mod cold_reads;
pub mod connection;
pub mod counters;
pub mod event_loop;
pub mod handled;
mod input;
pub mod latency;
pub mod listener;
pub mod output;
pub mod service;
#[cfg(test)]
mod testing;
pub mod transport;
pub mod unauthenticated;

use std::sync::Arc;
use std::time::Duration;

use mainstem_config::BrokerConfig;
use mainstem_requests::quotas::Quotas;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::Panics;

use answers::AnswerMemory;
use buffers::RequestMemory;
use cold_reads::ColdReads;
use counters::Counters;
use event_loop::EventLoops;
use listener::ConnectionCounts;
pub use service::Service;
use unauthenticated::UnauthenticatedLimiter;

/// State that all connections of a node share.
pub struct Net {
    /// The time.
    pub clock: Clock,
    /// The configuration in force.
    pub config: Arc<CurrentConfig>,
    /// Bounds of connections.
    pub limits: Limits,
    /// Raised when the node stops.
    pub stopping: Arc<Stopping>,
    /// Panics of this node.
    pub panics: Arc<Panics>,
    /// Counters of connections and requests.
    pub counters: Counters,
    /// The loops that connections run on.
    pub event_loops: Arc<EventLoops>,
    /// Open connections.
    pub connections: ConnectionCounts,
    /// Connections that are not authenticated yet.
    pub unauthenticated: Arc<UnauthenticatedLimiter>,
    /// Memory for large frames of those.
    pub unauthenticated_memory: Arc<RequestMemory>,
    /// Memory for large requests.
    pub request_memory: Arc<RequestMemory>,
    /// Memory for large answers.
    pub answers: Arc<AnswerMemory>,
    /// Reads from the disk beside the event loops.
    pub cold_reads: ColdReads,
    /// Quotas of clients, those on new connections among them.
    pub quotas: Arc<Quotas>,
}

/// Bounds of connections, each from the configuration.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// `socket.request.max.bytes`: a larger request ends its connection.
    pub request_bytes_max: usize,
    /// `connections.max.idle.ms`: a connection without requests for this time is closed.
    pub connection_idle: Duration,
}

impl Net {
    /// The configuration now.
    pub fn config(&self) -> Arc<BrokerConfig> {
        self.config.get()
    }
}
