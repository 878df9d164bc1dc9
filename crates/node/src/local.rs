//! The parts of a node that need no other node: its partitions, its coordinators, its configuration.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use mainstem_config::{BrokerConfig, Endpoint, Voter};
use mainstem_coordinators::driver::Loads;
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::transactions::Transactions;
use mainstem_requests::authorization::Authorization;
use mainstem_requests::quotas::Quotas;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::Panics;
use mainstem_store::opening::OpeningProgress;
use mainstem_store::store::Store;

/// Receiver of changes of the metadata that concern what a node has beside partitions and coordinators: listeners, users,
/// telemetry.
pub trait Host: Send + Sync {
    /// Puts a configuration into force.
    fn reconfigure(&self, config: BrokerConfig);

    /// Takes note that passwords of users have changed (SCRAM).
    fn credentials_changed(&self);

    /// Puts a subscription to client metrics into force (KIP-714); it is removed if it has no values.
    fn subscription_changed(&self, name: &str, values: &BTreeMap<String, String>);

    /// Takes note of the nodes of the cluster, so that the next start finds them. Blocks on the disk.
    fn nodes_changed(&self, nodes: &[Voter]);
}

/// A node without the others.
pub struct Local {
    /// `node.id`.
    pub id: i32,
    /// The cluster's id, given at the first start.
    pub cluster_id: String,
    /// The addresses that clients of each listener are to connect to.
    pub advertised: Vec<Endpoint>,
    /// The configuration in force, with what was set while the node runs.
    pub config: Arc<CurrentConfig>,
    /// The source of time.
    pub clock: Clock,
    /// Log directories and partitions.
    pub store: Arc<Store>,
    /// Coordinator of groups.
    pub groups: Arc<Groups>,
    /// Coordinator of transactions.
    pub transactions: Arc<Transactions>,
    /// The threads that load coordinators.
    pub loads: Arc<Loads>,
    /// Quotas of clients.
    pub quotas: Arc<Quotas>,
    /// Access rules; `None` without an authorizer, when every client may do everything.
    pub authorization: Option<Arc<Authorization>>,
    /// Progress of the start, which can be broken off.
    pub opening: Arc<OpeningProgress>,
    /// The end of the node, when it has come.
    pub stopping: Arc<Stopping>,
    /// Threads that have died.
    pub panics: Arc<Panics>,
    /// See [`Local::set_host`].
    pub host: OnceLock<Weak<dyn Host>>,
}

impl Local {
    /// The configuration now.
    pub fn config(&self) -> Arc<BrokerConfig> {
        self.config.get()
    }

    /// The address of this node for clients of a listener: host and port.
    pub fn endpoint(&self, listener: usize) -> (&str, i32) {
        let endpoint = &self.advertised[listener];
        (&endpoint.host, i32::from(endpoint.port))
    }

    /// Has changes go to a receiver, which this does not keep alive. Only the first call counts.
    pub fn set_host(&self, host: Weak<dyn Host>) {
        let _ = self.host.set(host);
    }

    /// The receiver of changes, until the node is gone.
    pub(crate) fn host(&self) -> Option<Arc<dyn Host>> {
        self.host.get()?.upgrade()
    }
}
