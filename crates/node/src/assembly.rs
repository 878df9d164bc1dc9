//! The making of a node out of what is there before it: its directories, its links, its configuration.

use std::sync::{Arc, OnceLock};

use mainstem_config::{BrokerConfig, Endpoint, Voter};
use mainstem_controller::{FirstController, NodeView};
use mainstem_coordination::groups::{GroupConfig, GroupCoordinator};
use mainstem_coordination::transactions::TransactionCoordinator;
use mainstem_coordinators::groups::Groups;
use mainstem_coordinators::transactions::{self, Transactions};
use mainstem_links::Links;
use mainstem_log::dir::LogDir;
use mainstem_replication::ReplicaId;
use mainstem_requests::authorization::Authorization;
use mainstem_requests::quotas::Quotas;
use mainstem_runtime::alarm::Alarm;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::current_config::CurrentConfig;
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::Panics;
use mainstem_store::attached::Attached;
use mainstem_store::journals::Journals;
use mainstem_store::log_dirs::LogDirs;
use mainstem_store::opening::OpeningProgress;
use mainstem_store::replicas::Founding;
use mainstem_store::store::{Store, StoreParts, StorePeers};

use crate::cluster::{Cluster, RoleNews, RoleReceiver};
use crate::controller::{Controller, ControllerError};
use crate::local::Local;
use crate::node::Node;

/// The incarnation of the replicas of the nodes that found a cluster.
const FIRST_INCARNATION: u32 = 1;

/// Parts that a node is made of.
pub struct NodeParts {
    /// The configuration that it starts with.
    pub config: BrokerConfig,
    /// The addresses that clients of each listener are to connect to.
    pub advertised: Vec<Endpoint>,
    /// The source of time.
    pub clock: Clock,
    /// The log directories.
    pub dirs: LogDirs,
    /// Queues that are topics.
    pub attached: Vec<Arc<Attached>>,
    /// Wakes the thread that looks after the log directories.
    pub dir_alarm: Arc<Alarm>,
    /// Threads that have died.
    pub panics: Arc<Panics>,
    /// Progress of opening logs.
    pub opening: Arc<OpeningProgress>,
    /// Access rules; `None` without an authorizer.
    pub authorization: Option<Arc<Authorization>>,
    /// Passes over records of the metadata that ask for protection which is not served.
    pub accept_unprotected: bool,
    /// The other nodes; `None` without.
    pub peers: Option<NodePeers>,
}

/// The other nodes of a cluster.
pub struct NodePeers {
    /// The connections to them.
    pub links: Arc<Links>,
    /// All nodes, this one included, as they were known last.
    pub known: Vec<Voter>,
    /// Those that have founded the cluster; none where this node has joined it.
    pub first: Vec<FirstController>,
    /// The incarnation of this node's replica of the metadata log.
    pub incarnation: u32,
    /// The level of `mainstem.version` that the cluster has had when this node joined it; 0 of a node that has founded it.
    pub joined_at_level: i16,
    /// The highest level of `mainstem.version` at which this node can work.
    pub mainstem_version: i16,
    /// The level at which the cluster has begun: the highest at which all of its first nodes could work.
    pub first_mainstem_version: i16,
}

impl NodePeers {
    /// The replica of the metadata log of this node, and the voters with which that log has begun; none where it has joined.
    fn founding(&self, node: i32) -> Founding {
        let voters = self.first.iter().map(|first| ReplicaId::new(first.node, FIRST_INCARNATION));
        Founding { own: ReplicaId::new(node, self.incarnation), voters: voters.collect() }
    }

    /// Makes the controller of a node and its place among these.
    fn join(
        self,
        (view, metadata_dir): (NodeView, &Arc<LogDir>),
        local: &Arc<Local>,
        journals: &Journals,
        roles: (Arc<RoleNews>, RoleReceiver),
    ) -> Result<(Arc<Controller>, Arc<Cluster>), ControllerError> {
        // The leader of the metadata log sends the changes of members with the log.
        local.store.raise_to_level(self.joined_at_level);
        let founding = self.founding(view.node_id());
        let of_links = (&self.links, journals);
        let controller = Controller::in_cluster(view, metadata_dir, founding, of_links, local.clone())?;
        let of = (local.clone(), controller.clone());
        let cluster = Cluster::new(of, (self.first, self.known), self.links, roles);
        Ok((controller, cluster))
    }
}

impl Node {
    /// Makes a node, with its store, its coordinators and its metadata. None of its threads runs yet.
    ///
    /// # Errors
    /// As [`Controller::new`] and [`Controller::in_cluster`].
    pub fn assemble(parts: NodeParts) -> Result<Arc<Node>, ControllerError> {
        let NodeParts {
            config,
            advertised,
            clock,
            dirs,
            attached,
            dir_alarm,
            panics,
            opening,
            authorization,
            accept_unprotected,
            peers,
        } = parts;
        let journals = Arc::<Journals>::default();
        let view = view_of(&config, &dirs, peers.as_ref());
        let (metadata_dir, cluster_id) = (dirs.metadata().clone(), dirs.metadata().cluster_id().to_owned());
        let current = Arc::new(CurrentConfig::new(config.clone()));
        let (roles, news) = RoleNews::channel();
        let store_peers = peers.as_ref().map(|peers| StorePeers {
            links: peers.links.clone(),
            journals: journals.clone(),
            events: roles.clone(),
        });
        let store = Store::new(StoreParts {
            node: config.node_id,
            clock: clock.clone(),
            config: current.clone(),
            panics: panics.clone(),
            dirs,
            dir_alarm,
            attached,
            opening: opening.clone(),
            peers: store_peers,
        });
        let loads = mainstem_coordinators::driver::loads();
        let groups = Groups::new(GroupCoordinator::new(group_config(&config)), &store, &loads);
        let transactions = TransactionCoordinator::new(transactions::config(&config));
        let transactions = Transactions::new(transactions, &store, &loads);
        let local = Arc::new(Local {
            id: config.node_id,
            cluster_id,
            advertised,
            config: current,
            clock: clock.clone(),
            store,
            groups,
            transactions,
            loads,
            quotas: Arc::new(Quotas::new(&config.quotas, clock)),
            authorization,
            opening,
            stopping: Arc::<Stopping>::default(),
            panics,
            host: OnceLock::new(),
        });
        let (controller, cluster) = match peers {
            Some(peers) => {
                let (controller, cluster) =
                    peers.join((view, &metadata_dir), &local, &journals, (roles, news))?;
                (controller, Some(cluster))
            }
            None => (Controller::new(view, &metadata_dir, accept_unprotected, local.clone())?, None),
        };
        Ok(Node::new(local, controller, cluster))
    }
}

fn view_of(config: &BrokerConfig, dirs: &LogDirs, peers: Option<&NodePeers>) -> NodeView {
    let view = NodeView::new(config.clone(), dirs.partitions_max());
    match peers {
        Some(peers) => view.with_mainstem_version(peers.mainstem_version, peers.first_mainstem_version),
        None => view,
    }
}

fn group_config(config: &BrokerConfig) -> GroupConfig {
    GroupConfig {
        offsets_topic_num_partitions: config.offsets.topic_num_partitions,
        group_min_session_timeout_ms: config.groups.min_session_timeout_ms,
        group_max_session_timeout_ms: config.groups.max_session_timeout_ms,
        group_initial_rebalance_delay_ms: config.groups.initial_rebalance_delay_ms,
        group_max_size: i32::try_from(config.groups.max_size).unwrap_or(i32::MAX),
        offset_metadata_max_bytes: config.offsets.metadata_max_bytes,
        offsets_commit_timeout_ms: config.offsets.commit_timeout_ms,
        offsets_retention_ms: config.offsets.retention_ms,
        offsets_retention_check_interval_ms: u64::try_from(config.offsets.retention_check_interval_ms)
            .unwrap_or(u64::MAX),
        consumer: config.groups.consumer.clone(),
        ..GroupConfig::default()
    }
}
