//! State that all parts of the running broker share.

use std::sync::Arc;

use mainstem_config::BrokerConfig;
use mainstem_wire::ApiKey;
use parking_lot::Mutex;

use crate::data_counters::DataCounters;
use crate::fetch_sessions::FetchSessions;
use crate::health::Health;
use crate::loggers::Loggers;
use crate::security::Security;
use crate::telemetry::ClientTelemetry;
use crate::turns::{Classes, OneAtATime};
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::transactions::Transactions;
use mainstem_net::Net;
use mainstem_node::cluster::Cluster;
use mainstem_node::controller::Controller;
use mainstem_node::local::Local;
use mainstem_node::node::Node;
use mainstem_requests::quotas::Quotas;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::Panics;
use mainstem_store::store::Store;

/// State that all connections and threads of this node share.
pub(crate) struct Broker {
    /// This node by itself: its name, and its addresses for clients.
    pub(crate) local: Arc<Local>,
    /// This node in its cluster.
    pub(crate) node: Arc<Node>,
    /// The APIs that are served, ascending by key.
    pub(crate) served: fn() -> Vec<ApiKey>,
    /// Bounds on what a peer may ask for.
    pub(crate) limits: Limits,
    /// The current configuration, with changes made while the broker runs.
    pub(crate) config: Arc<CurrentConfig>,
    /// The levels of loggers.
    pub(crate) loggers: Loggers,
    pub(crate) clock: Clock,
    pub(crate) counters: DataCounters,
    /// Log directories and partitions.
    pub(crate) store: Arc<Store>,
    pub(crate) controller: Arc<Controller>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) fetch_sessions: Mutex<FetchSessions>,
    pub(crate) security: Security,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) telemetry: ClientTelemetry,
    /// The shares of the classes of background work.
    pub(crate) background: Classes,
    /// The queue of heartbeats whose topic patterns are matched in the background.
    pub(crate) pattern_matching: OneAtATime,
    /// Listeners, event loops and connections.
    pub(crate) net: Arc<Net>,
    pub(crate) stopping: Arc<Stopping>,
    pub(crate) panics: Arc<Panics>,
    pub(crate) health: Arc<Health>,
    /// The links to other nodes.
    pub(crate) cluster: Option<Arc<Cluster>>,
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
