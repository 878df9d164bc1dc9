//! The configuration of a node: typed values of the broker keys that have an effect.

use std::path::PathBuf;

use super::broker_values::BrokerValues;
use super::listeners::Listeners;
use super::nodes::NodeListener;
use super::quorum::Quorum;
use super::sasl::SaslListener;
use super::settings::{
    AuthenticationConfig, AuthorizerConfig, CleanerConfig, GroupLimits, LogMaintenance, MetadataLogConfig,
    NetworkConfig, OffsetsConfig, QuotaConfig, ReplicationConfig, TopicDefaults, TransactionLogConfig,
};
use super::tls::TlsListener;
use super::warning::ConfigWarning;

mod build;
mod typed;

/// Stands for all log directories in `cordoned.log.dirs`.
const ALL_LOG_DIRS: &str = "*";

/// All values that the broker reads from its configuration. Each field is named after its key, which documents it.
#[derive(Debug, Clone, PartialEq)]
pub struct BrokerConfig {
    /// `node.id`, or `broker.id`.
    pub node_id: i32,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// `controller.quorum.voters`; `None` where it names no other node.
    pub quorum: Option<Quorum>,
    /// Nodes and replicas of a cluster.
    pub replication: ReplicationConfig,
    /// `listeners` and the keys around it.
    pub listeners: Listeners,
    /// `sasl.enabled.mechanisms` and the keys around it, by the rank of the open listener; none without SASL.
    pub sasl_listeners: Vec<Option<SaslListener>>,
    /// `ssl.keystore.location` and the keys around it, by the rank of the open listener; none without TLS.
    pub tls_listeners: Vec<Option<TlsListener>>,
    /// The controllers' listener, by which nodes speak to each other; none without other nodes.
    pub nodes: Option<NodeListener>,
    /// `authorizer.class.name` and the keys beside it; none if all clients may do everything.
    pub authorizer: Option<AuthorizerConfig>,
    /// Connections that are not authenticated yet.
    pub authentication: AuthenticationConfig,
    /// `log.dirs`, or `log.dir`; at least one.
    pub log_dirs: Vec<String>,
    /// `cordoned.log.dirs`, each one of `log_dirs`, or `*` alone (KIP-1066).
    pub cordoned_log_dirs: Vec<String>,
    /// `metadata.log.dir`; `None` is the one of `log_dirs` that has the metadata log, at first the first.
    pub metadata_log_dir: Option<String>,
    /// `mainstem.attach`: names of topics, and the directories of their queues.
    pub attach: Vec<(String, PathBuf)>,
    /// `mainstem.http.listener` as host and port; `None` is off.
    pub http_listener: Option<(String, u16)>,
    /// The `ssl.*` values of the HTTP listener, by `mainstem.http.authentication`; none if its clients do not authenticate.
    pub http_tls: Option<TlsListener>,
    /// `mainstem.metrics.partitions.max`.
    pub metrics_partitions_max: usize,
    /// Creation and deletion of topics.
    pub topics: TopicDefaults,
    /// Connections and requests.
    pub network: NetworkConfig,
    /// Windows over which clients are measured against their quotas.
    pub quotas: QuotaConfig,
    /// Classic groups.
    pub groups: GroupLimits,
    /// Committed offsets and their topic.
    pub offsets: OffsetsConfig,
    /// The topic of transactions, used when a client first needs it.
    pub transactions: TransactionLogConfig,
    /// Background work on logs, and producers' state.
    pub logs: LogMaintenance,
    /// Compaction.
    pub cleaner: CleanerConfig,
    /// The metadata log.
    pub metadata_log: MetadataLogConfig,
    /// All values, for topics, DescribeConfigs and changes.
    pub values: BrokerValues,
    /// Warnings for the user at start.
    pub warnings: Vec<ConfigWarning>,
}

impl BrokerConfig {
    /// Returns true if clients or nodes authenticate by SASL at any listener.
    pub fn has_sasl(&self) -> bool {
        self.sasl_listeners.iter().any(Option::is_some)
            || self.nodes.as_ref().is_some_and(|nodes| nodes.sasl.is_some())
    }

    /// Returns true if a log directory, by its path in `log.dirs`, is closed to new partitions.
    pub fn is_cordoned(&self, log_dir: &str) -> bool {
        self.cordoned_log_dirs.iter().any(|dir| dir == ALL_LOG_DIRS || dir == log_dir)
    }

    /// A whole number that was set for one listener alone (`listener.name.NAME.KEY`, KIP-402, KIP-612).
    pub fn listener_count(&self, listener: &str, key: &str) -> Option<u32> {
        let name = format!("listener.name.{}.{key}", listener.to_lowercase());
        self.values.lookup(&name).and_then(|(text, _)| text.trim().parse().ok())
    }
}

#[cfg(test)]
mod tests;
