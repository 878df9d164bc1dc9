//! The configuration of a node: typed values of the broker keys that have an effect.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use super::futile;
use super::listeners::Listeners;
use super::nodes::{NodeListener, Proof};
use super::others;
use super::protection;
use super::quorum::Quorum;
use super::sasl::{self, SaslListener, SecretText};
use super::sources::{BrokerValues, ConfigError, ConfigWarning, Sources};
use super::tls::{self, TlsListener};
use crate::group_settings::ConsumerGroupConfig;
use crate::quota_windows::Windows;

mod typed;

use typed::Typed;

/// The way in which clients of the HTTP listener authenticate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpAuthentication {
    /// They do not, over plain HTTP.
    None,
    /// By the password of a SCRAM user, over TLS.
    Basic,
    /// By a certificate, over TLS.
    Certificate,
}

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

/// Nodes and replicas of a cluster. Milliseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationConfig {
    /// `broker.heartbeat.interval.ms`.
    pub heartbeat_interval_ms: u64,
    /// `broker.session.timeout.ms`.
    pub session_timeout_ms: u64,
    /// `replica.lag.time.max.ms`.
    pub lag_time_max_ms: u64,
    /// `leader.replication.throttled.rate` in bytes a second; `None` is without limit.
    pub leader_throttled_rate: Option<u64>,
    /// `follower.replication.throttled.rate` in bytes a second; `None` is without limit.
    pub follower_throttled_rate: Option<u64>,
    /// `controlled.shutdown.enable`.
    pub controlled_shutdown: bool,
    /// `leader.imbalance.check.interval.seconds` as milliseconds; none without `auto.leader.rebalance.enable`.
    pub rebalance_interval_ms: Option<u64>,
}

/// Stands for all log directories in `cordoned.log.dirs`.
const ALL_LOG_DIRS: &str = "*";

/// Creation and deletion of topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDefaults {
    /// `auto.create.topics.enable`.
    pub auto_create_enable: bool,
    /// `delete.topic.enable`.
    pub delete_enable: bool,
    /// `num.partitions`, at least 1.
    pub num_partitions: i32,
    /// `default.replication.factor`.
    pub default_replication_factor: i16,
}

/// Connections and requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkConfig {
    /// `num.network.threads`.
    pub num_network_threads: usize,
    /// `mainstem.network.idle.poll.us`; zero is off.
    pub idle_poll: Duration,
    /// `socket.listen.backlog.size`.
    pub listen_backlog: i32,
    /// `socket.send.buffer.bytes`; `None` leaves it to the system.
    pub send_buffer_bytes: Option<usize>,
    /// `socket.receive.buffer.bytes`; `None` leaves it to the system.
    pub receive_buffer_bytes: Option<usize>,
    /// `socket.request.max.bytes`.
    pub request_max_bytes: usize,
    /// `queued.max.request.bytes`; `None` is without limit.
    pub queued_max_request_bytes: Option<u64>,
    /// `max.connections`.
    pub max_connections: usize,
    /// `max.connections.per.ip`.
    pub max_connections_per_ip: usize,
    /// `max.connections.per.ip.overrides`: host and count.
    pub max_connections_per_ip_overrides: Vec<(String, usize)>,
    /// `max.connection.creation.rate`, per second.
    pub max_connection_creation_rate: u32,
    /// `telemetry.max.bytes`.
    pub telemetry_max_bytes: usize,
    /// `connections.max.idle.ms`; `None` is never.
    pub connections_max_idle_ms: Option<u64>,
    /// `fetch.max.bytes`.
    pub fetch_max_bytes: usize,
    /// `max.incremental.fetch.session.cache.slots`.
    pub fetch_session_slots: usize,
    /// `max.request.partition.size.limit`.
    pub describe_partitions_max: usize,
}

/// The settings of the authorizer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorizerConfig {
    /// `super.users`: principals with semicolons between them.
    pub super_users: String,
    /// `allow.everyone.if.no.acl.found`.
    pub allow_everyone_if_no_acl_found: bool,
}

/// Connections that are not authenticated yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthenticationConfig {
    /// `connection.failed.authentication.delay.ms`.
    pub failed_delay: Duration,
    /// `mainstem.authentication.timeout.ms`.
    pub timeout: Duration,
    /// `mainstem.unauthenticated.connections.max`.
    pub unauthenticated_max: usize,
    /// `mainstem.scram.decoy.secret`; none as long as the metadata leader has not drawn one.
    pub decoy_secret: Option<SecretText>,
}

/// Windows over which clients are measured against their quotas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaConfig {
    /// `quota.window.num` of `quota.window.size.seconds`.
    pub windows: Windows,
    /// `controller.quota.window.num` of `controller.quota.window.size.seconds`.
    pub controller_windows: Windows,
}

/// Classic groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupLimits {
    /// `group.min.session.timeout.ms`.
    pub min_session_timeout_ms: i32,
    /// `group.max.session.timeout.ms`.
    pub max_session_timeout_ms: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`, members.
    pub max_size: usize,
    /// Groups of the consumer protocol.
    pub consumer: ConsumerGroupConfig,
}

/// Committed offsets and their topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OffsetsConfig {
    /// `offset.metadata.max.bytes`.
    pub metadata_max_bytes: i32,
    /// `offsets.commit.timeout.ms`.
    pub commit_timeout_ms: i32,
    /// `offsets.retention.minutes`, in milliseconds.
    pub retention_ms: i64,
    /// `offsets.retention.check.interval.ms`.
    pub retention_check_interval_ms: i64,
    /// `offsets.topic.num.partitions`.
    pub topic_num_partitions: i32,
    /// `offsets.topic.replication.factor`.
    pub topic_replication_factor: i16,
    /// `offsets.topic.segment.bytes`.
    pub topic_segment_bytes: i32,
}

/// The topic of transactions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionLogConfig {
    /// `transaction.state.log.num.partitions`.
    pub topic_num_partitions: i32,
    /// `transaction.state.log.replication.factor`.
    pub topic_replication_factor: i16,
    /// `transaction.state.log.min.isr`.
    pub topic_min_isr: i32,
    /// `transaction.state.log.segment.bytes`.
    pub topic_segment_bytes: i32,
    /// `transaction.max.timeout.ms`.
    pub max_timeout_ms: i32,
    /// `transaction.abort.timed.out.transaction.cleanup.interval.ms`.
    pub abort_timed_out_interval_ms: u64,
    /// `transactional.id.expiration.ms`.
    pub id_expiration_ms: i64,
    /// `transaction.remove.expired.transaction.cleanup.interval.ms`.
    pub remove_expired_interval_ms: u64,
    /// `transaction.partition.verification.enable` (KIP-890).
    pub partition_verification: bool,
}

/// Background work on logs, and producers' state. Milliseconds unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogMaintenance {
    /// `num.recovery.threads.per.data.dir`, at least 1.
    pub recovery_threads_per_dir: usize,
    /// `log.retention.check.interval.ms`.
    pub retention_check_interval_ms: u64,
    /// `log.flush.offset.checkpoint.interval.ms`.
    pub recovery_checkpoint_interval_ms: u64,
    /// `log.flush.start.offset.checkpoint.interval.ms`.
    pub start_offset_checkpoint_interval_ms: u64,
    /// `replica.alter.log.dirs.io.max.bytes.per.second`, in bytes.
    pub move_bytes_per_second: u64,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: i64,
    /// `mainstem.producer.ids.max`.
    pub producer_ids_max: usize,
    /// `producer.id.expiration.check.interval.ms`.
    pub producer_id_expiration_check_interval_ms: u64,
}

/// Compaction. Limits that cleaners share apply to all of them together.
#[derive(Debug, Clone, PartialEq)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`.
    pub enable: bool,
    /// `log.cleaner.threads`.
    pub threads: usize,
    /// `log.cleaner.backoff.ms`.
    pub backoff_ms: u64,
    /// `log.cleaner.dedupe.buffer.size`.
    pub dedupe_buffer_bytes: usize,
    /// `log.cleaner.io.buffer.load.factor`.
    pub load_factor: f64,
    /// `log.cleaner.io.buffer.size`.
    pub io_buffer_bytes: usize,
    /// `log.cleaner.io.max.bytes.per.second`.
    pub io_max_bytes_per_second: f64,
}

/// The metadata log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataLogConfig {
    /// `metadata.log.max.record.bytes.between.snapshots`.
    pub max_record_bytes_between_snapshots: u64,
    /// `metadata.log.max.snapshot.interval.ms`; 0 is never.
    pub max_snapshot_interval_ms: u64,
}

impl BrokerConfig {
    /// Returns true if clients or nodes authenticate by SASL at any listener.
    pub fn has_sasl(&self) -> bool {
        self.sasl_listeners.iter().any(Option::is_some)
            || self.nodes.as_ref().is_some_and(|nodes| nodes.sasl.is_some())
    }

    /// Reads, validates and types the values that are known at start; it reports every problem, not only the first.
    pub fn from_sources(sources: Sources<'_>) -> Result<BrokerConfig, ConfigError> {
        let (values, warnings) = BrokerValues::from_sources(sources)?;
        let missing = protection::missing(&values);
        match BrokerConfig::new(values, warnings) {
            Ok(config) if missing.is_empty() => Ok(config),
            Ok(_) => Err(ConfigError { problems: missing }),
            Err(ConfigError { problems }) => {
                Err(ConfigError { problems: missing.into_iter().chain(problems).collect() })
            }
        }
    }

    /// The same node with values that were set while it runs: the cluster's defaults, and its own over them. Read-only keys
    /// do not change.
    pub fn with_dynamic(
        &self,
        cluster: BTreeMap<String, String>,
        node: BTreeMap<String, String>,
    ) -> Result<BrokerConfig, ConfigError> {
        BrokerConfig::new(self.values.with_dynamic(cluster, node), self.warnings.clone())
    }

    fn new(values: BrokerValues, warnings: Vec<ConfigWarning>) -> Result<BrokerConfig, ConfigError> {
        let typed = Typed(&values);
        let mut problems = Vec::new();
        let node_id = typed.node_id().map_err(|problem| problems.push(problem)).ok();
        let listeners = typed.listeners().map_err(|problem| problems.push(problem)).ok();
        let open = listeners.as_ref().map_or(&[][..], |listeners| &listeners.open);
        let sasl_listeners = sasl::listeners(&values, open).map_err(|found| problems.extend(found)).ok();
        let tls_listeners = tls::listeners(&values, open);
        problems.extend(typed.open_listener(open, &tls_listeners));
        let network = typed.network().map_err(|problem| problems.push(problem)).ok();
        let http_listener = typed.http_listener().map_err(|problem| problems.push(problem)).ok();
        let http_tls = tls::http(&values, typed.http_authentication());
        let quorum = typed.quorum(node_id, listeners.as_ref()).map_err(|problem| problems.push(problem));
        let quorum = quorum.unwrap_or_default();
        if let Some(listeners) = listeners.as_ref().filter(|_| quorum.is_none()) {
            problems.extend(others::signs(&values, listeners));
        }
        let nodes = listeners.as_ref().filter(|_| quorum.is_some()).map_or(Ok(None), |listeners| {
            let proof = Proof {
                is_required: typed.boolean("mainstem.require.authentication"),
                is_waived: typed.boolean("mainstem.unauthenticated.nodes"),
            };
            NodeListener::new(&values, listeners, proof)
        });
        let nodes = nodes.map_err(|found| problems.extend(found)).unwrap_or_default();
        let attach = typed.attach().map_err(|problem| problems.push(problem)).unwrap_or_default();
        problems.extend(typed.conflicts());
        let (Some(node_id), Some(listeners), Some(sasl_listeners), Some(network), Some(http_listener)) =
            (node_id, listeners, sasl_listeners, network, http_listener)
        else {
            return Err(ConfigError { problems });
        };
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        let mut config = BrokerConfig {
            node_id,
            rack: typed.text("broker.rack"),
            replication: typed.replication(),
            listeners,
            sasl_listeners,
            tls_listeners,
            nodes,
            authorizer: typed.authorizer(),
            authentication: typed.authentication(),
            log_dirs: typed.list("log.dirs"),
            cordoned_log_dirs: typed.list("cordoned.log.dirs"),
            metadata_log_dir: typed.text("metadata.log.dir"),
            attach,
            http_listener,
            http_tls,
            metrics_partitions_max: typed.count("mainstem.metrics.partitions.max"),
            topics: typed.topics(),
            network,
            quotas: typed.quotas(),
            groups: typed.groups(),
            offsets: typed.offsets(quorum.as_ref()),
            transactions: typed.transactions(quorum.as_ref()),
            logs: typed.logs(),
            cleaner: typed.cleaner(),
            metadata_log: typed.metadata_log(),
            quorum,
            warnings,
            values,
        };
        config.warnings.retain(|warning| !warning.is_of_values_together());
        config.warnings.extend(futile::warnings(&config));
        Ok(config)
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
