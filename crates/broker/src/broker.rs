//! What all parts of the running broker share.

use std::sync::Arc;

use mainstem_config::{BrokerConfig, Endpoint};
use mainstem_wire::ApiKey;
use parking_lot::Mutex;

use crate::background::{Blocking, Classes, OneAtATime};
use crate::cluster::Cluster;
use crate::controller::Controller;
use crate::coordinators::work::Workers;
use crate::fetch_sessions::FetchSessions;
use crate::health::Health;
use crate::loggers::Loggers;
use crate::metrics::Metrics;
use crate::security::Security;
use crate::telemetry::ClientTelemetry;
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::transactions::Transactions;
use mainstem_net::Net;
use mainstem_requests::quotas::Quotas;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::Panics;
use mainstem_store::store::Store;

/// What all connections and threads of this node share.
pub(crate) struct Broker {
    /// Who this node is, and where clients reach it.
    pub(crate) node: Node,
    /// The APIs that are served.
    pub(crate) apis: ApiTable,
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
    pub(crate) security: Security,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) telemetry: ClientTelemetry,
    /// The shares in the threads for work in the background.
    pub(crate) background: Classes,
    /// Heartbeats whose topic patterns are matched in the background.
    pub(crate) pattern_matching: OneAtATime,
    /// Listeners, event loops and connections.
    pub(crate) net: Arc<Net>,
    pub(crate) stopping: Arc<Stopping>,
    pub(crate) panics: Arc<Panics>,
    pub(crate) health: Arc<Health>,
    /// With other nodes.
    pub(crate) cluster: Option<Arc<Cluster>>,
}

/// The APIs that are served, for who does not serve them.
pub(crate) struct ApiTable {
    /// Ascending by key.
    pub(crate) served: fn() -> Vec<ApiKey>,
    /// The function of an API that is served on a thread where waiting is allowed.
    pub(crate) in_background: fn(ApiKey) -> Option<Blocking>,
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
