//! What all parts of the running broker share.

use std::sync::Arc;
use std::time::Duration;

use mainstem_config::{BrokerConfig, Endpoint};
use parking_lot::Mutex;

use crate::background::{Classes, OneAtATime};
use crate::cluster::Cluster;
use crate::controller::Controller;
use crate::coordinators::work::Workers;
use crate::fetch_sessions::FetchSessions;
use crate::health::Health;
use crate::loggers::Loggers;
use crate::metrics::Metrics;
use crate::net::answers::AnswerMemory;
use crate::net::buffers::RequestMemory;
use crate::net::door::Door;
use crate::net::event_loop::EventLoops;
use crate::net::listener::ConnectionCounts;
use crate::quotas::Quotas;
use crate::security::Security;
use crate::telemetry::ClientTelemetry;
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::transactions::Transactions;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::Panics;
use mainstem_store::settings::CurrentConfig;
use mainstem_store::store::Store;

/// What all connections and threads of this node share.
pub(crate) struct Broker {
    /// Who this node is, and where clients reach it.
    pub(crate) node: Node,
    /// Bounds on what a peer may ask for.
    pub(crate) limits: Limits,
    /// The configuration in force, with what was set while the broker runs.
    pub(crate) config: Arc<CurrentConfig>,
    /// What is logged.
    pub(crate) loggers: Loggers,
    pub(crate) clock: Clock,
    pub(crate) metrics: Metrics,
    /// Log directories and partitions.
    pub(crate) store: Arc<Store>,
    pub(crate) controller: Controller,
    pub(crate) groups: Arc<Groups>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) transaction_workers: Workers,
    pub(crate) fetch_sessions: Mutex<FetchSessions>,
    pub(crate) connections: ConnectionCounts,
    pub(crate) security: Security,
    /// Connections that are not authenticated yet.
    pub(crate) door: Arc<Door>,
    /// Memory for large frames of those.
    pub(crate) door_memory: Arc<RequestMemory>,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) telemetry: ClientTelemetry,
    pub(crate) request_memory: Arc<RequestMemory>,
    pub(crate) answers: Arc<AnswerMemory>,
    /// The shares in the threads for work in the background.
    pub(crate) background: Classes,
    /// Heartbeats whose topic patterns are matched in the background.
    pub(crate) pattern_matching: OneAtATime,
    pub(crate) event_loops: Arc<EventLoops>,
    pub(crate) stopping: Arc<Stopping>,
    pub(crate) panics: Arc<Panics>,
    pub(crate) health: Arc<Health>,
    /// With other nodes.
    pub(crate) cluster: Option<Arc<Cluster>>,
}

/// This node in the cluster.
pub(crate) struct Node {
    /// `node.id`.
    pub(crate) id: i32,
    /// The cluster's id, given at the first start.
    pub(crate) cluster_id: String,
    /// The addresses that clients of each listener are to connect to.
    pub(crate) advertised: Vec<Endpoint>,
}

/// Bounds, each from the configuration.
pub(crate) struct Limits {
    /// `socket.request.max.bytes`: a larger request ends its connection.
    pub(crate) request_bytes_max: usize,
    /// `connections.max.idle.ms`: a connection that asks nothing for so long is closed.
    pub(crate) connection_idle: Duration,
    /// `fetch.max.bytes`: of records in one answer, whatever the client asks for.
    pub(crate) fetch_bytes_max: usize,
    /// `max.request.partition.size.limit`: partitions in one answer of DescribeTopicPartitions.
    pub(crate) describe_partitions_max: usize,
}

impl Broker {
    /// The configuration now.
    pub(crate) fn config(&self) -> Arc<BrokerConfig> {
        self.config.get()
    }
}

impl Node {
    /// Where clients of a listener reach this node.
    pub(crate) fn endpoint(&self, listener: usize) -> (&str, i32) {
        let endpoint = &self.advertised[listener];
        (&endpoint.host, i32::from(endpoint.port))
    }
}
