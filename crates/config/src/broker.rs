//! What a node starts with: typed values of the broker keys that have an effect.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::key::Scope;
use super::listeners::{Endpoint, ListenerKeys, Listeners};
use super::nodes::NodeListener;
use super::protection;
use super::quorum::Quorum;
use super::sasl::{self, SaslListener};
use super::sources::{BrokerValues, ConfigError, ConfigWarning, Problem, Sources};
use super::table;
use super::tls::{self, TlsListener};
use super::topic::TopicConfigValues;
use super::value::ConfigValue;
use crate::group_settings::{Assignor, ConsumerGroupConfig, GroupTimes, MigrationPolicy};
use crate::quota_windows::Windows;

/// What clients of the HTTP listener prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpAuthentication {
    /// Nothing, over plain HTTP.
    None,
    /// The password of a user of SCRAM, over TLS.
    Basic,
    /// That a certificate is theirs, over TLS.
    Certificate,
}

/// Everything that the broker reads from its configuration. Each field is named after its key, which documents it.
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
    /// `authorizer.class.name` and the keys beside it; none when everybody may do everything.
    pub authorizer: Option<AuthorizerConfig>,
    /// Connections that are not authenticated yet.
    pub authentication: AuthenticationConfig,
    /// `log.dirs`, or `log.dir`; at least one.
    pub log_dirs: Vec<String>,
    /// `cordoned.log.dirs`, each one of `log_dirs`, or `*` alone (KIP-1066).
    pub cordoned_log_dirs: Vec<String>,
    /// `metadata.log.dir`; `None` is the one of `log_dirs` that has the metadata log, at first the first.
    pub metadata_log_dir: Option<String>,
    /// `mainstem.attach`: names of topics, and the directories of the queues that they are.
    pub attach: Vec<(String, PathBuf)>,
    /// `mainstem.http.listener` as host and port; `None` is off.
    pub http_listener: Option<(String, u16)>,
    /// The `ssl.*` values of the HTTP listener, by `mainstem.http.authentication`; none where its clients prove nothing.
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
    /// What to tell the user at start.
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

/// Who may do what.
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

/// Compaction. What is shared between cleaners is for all of them together.
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
    /// Reads, validates and types what is known at start; every problem is reported, not only the first.
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

    /// The same node under values that were set while it runs: the cluster's defaults, and its own over them.
    /// Read-only keys do not change.
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
        let sasl_listeners = sasl::listeners(&values, open).map_err(|problem| problems.push(problem)).ok();
        let tls_listeners = tls::listeners(&values, open);
        problems.extend(typed.open_listener(open, &tls_listeners));
        let network = typed.network().map_err(|problem| problems.push(problem)).ok();
        let http_listener = typed.http_listener().map_err(|problem| problems.push(problem)).ok();
        let http_tls = tls::http(&values, typed.http_authentication());
        let quorum = typed.quorum(node_id, listeners.as_ref()).map_err(|problem| problems.push(problem));
        let quorum = quorum.unwrap_or_default();
        let nodes = listeners.as_ref().filter(|_| quorum.is_some()).map_or(Ok(None), |listeners| {
            NodeListener::new(&values, listeners, typed.boolean("mainstem.require.authentication"))
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
        config.warn_of_few_nodes();
        Ok(config)
    }

    /// Whether a log directory, as `log.dirs` has it, is closed to new partitions.
    pub fn is_cordoned(&self, log_dir: &str) -> bool {
        self.cordoned_log_dirs.iter().any(|dir| dir == ALL_LOG_DIRS || dir == log_dir)
    }

    /// A whole number that was set for one listener alone (`listener.name.NAME.KEY`, KIP-402, KIP-612).
    pub fn listener_count(&self, listener: &str, key: &str) -> Option<u32> {
        let name = format!("listener.name.{}.{key}", listener.to_lowercase());
        self.values.lookup(&name).and_then(|(text, _)| text.trim().parse().ok())
    }

    /// Replication factors above the number of nodes: Kafka accepts them and then refuses the topics.
    fn warn_of_few_nodes(&mut self) {
        self.warnings.retain(|warning| !matches!(warning, ConfigWarning::FewNodes { .. }));
        let nodes = self.quorum.as_ref().map_or(1, |quorum| quorum.voters.len());
        for (name, value) in [
            ("default.replication.factor", self.topics.default_replication_factor),
            ("offsets.topic.replication.factor", self.offsets.topic_replication_factor),
        ] {
            if usize::try_from(value).is_ok_and(|value| value > nodes) {
                self.warnings.push(ConfigWarning::FewNodes { name, value: value.into(), nodes });
            }
        }
    }
}

/// Values by name, for the keys whose default or rule says that there is one.
struct Typed<'a>(&'a BrokerValues);

impl Typed<'_> {
    fn value(&self, name: &str) -> Option<ConfigValue> {
        self.0.effective(table::find(Scope::Broker, name).expect("this file names keys of the table"))
    }

    fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(ConfigValue::Int(value)) => value,
            other => unreachable!("{name} is an integer with a default, not {other:?}"),
        }
    }

    fn int32(&self, name: &str) -> i32 {
        i32::try_from(self.int(name)).expect("the key's type is INT")
    }

    /// Negative counts as 0.
    fn count(&self, name: &str) -> usize {
        usize::try_from(self.int(name)).unwrap_or(0)
    }

    /// Negative counts as 0.
    fn millis(&self, name: &str) -> u64 {
        u64::try_from(self.int(name)).unwrap_or(0)
    }

    fn double(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(ConfigValue::Double(value)) => value,
            other => unreachable!("{name} is a number with a default, not {other:?}"),
        }
    }

    fn boolean(&self, name: &str) -> bool {
        self.value(name) == Some(ConfigValue::Bool(true))
    }

    fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Some(ConfigValue::Str(text)) => Some(text),
            _ => None,
        }
    }

    fn list(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(ConfigValue::List(items)) => items,
            _ => Vec::new(),
        }
    }

    fn node_id(&self) -> Result<i32, Problem> {
        let own = self.0.lookup("node.id").is_some();
        let old = self.int32("broker.id");
        match (own, old) {
            (false, 0..) => Ok(old),
            (true, 0..) if old != self.int32("node.id") => {
                Err(Problem::new("You must set `node.id` to the same value as `broker.id`."))
            }
            _ => Ok(self.int32("node.id")),
        }
    }

    fn listeners(&self) -> Result<Listeners, Problem> {
        let advertised = self.value("advertised.listeners").map(|_| self.list("advertised.listeners"));
        ListenerKeys {
            listeners: &self.list("listeners"),
            advertised: advertised.as_deref(),
            protocol_map: &self.text("listener.security.protocol.map").unwrap_or_default(),
            map_is_default: self.0.lookup("listener.security.protocol.map").is_none(),
            controllers: &self.list("controller.listener.names"),
            inter_broker: self.text("inter.broker.listener.name").as_deref(),
            inter_broker_protocol: self.0.lookup("security.inter.broker.protocol").map(|(text, _)| text),
        }
        .build()
    }

    fn quorum(&self, node_id: Option<i32>, listeners: Option<&Listeners>) -> Result<Option<Quorum>, Problem> {
        let (voters, servers) =
            (self.list("controller.quorum.voters"), self.list("controller.quorum.bootstrap.servers"));
        if voters.is_empty() && servers.len() > 1 {
            return Err(Problem::new(
                "controller.quorum.bootstrap.servers names several nodes, and clusters that are found by it are not \
                 served yet: name all nodes in controller.quorum.voters=ID@HOST:PORT,..., the same on each of them",
            ));
        }
        let quorum = Quorum::parse(&voters)?;
        let (Some(own), Some(listeners)) = (node_id, listeners) else { return Ok(None) };
        quorum.of_several(own, &self.list("process.roles"), listeners)
    }

    fn replication(&self) -> ReplicationConfig {
        ReplicationConfig {
            heartbeat_interval_ms: self.millis("broker.heartbeat.interval.ms"),
            session_timeout_ms: self.millis("broker.session.timeout.ms"),
            lag_time_max_ms: self.millis("replica.lag.time.max.ms"),
            controlled_shutdown: self.boolean("controlled.shutdown.enable"),
            rebalance_interval_ms: self
                .boolean("auto.leader.rebalance.enable")
                .then(|| self.millis("leader.imbalance.check.interval.seconds").saturating_mul(1000)),
        }
    }

    /// The value of a key of an internal topic. One that was not set is Kafka's, or the number of nodes if that is smaller.
    fn replicas(&self, name: &str, kafkas: i16, quorum: Option<&Quorum>) -> i16 {
        let nodes = quorum.filter(|_| self.0.lookup(name).is_none()).map(|quorum| quorum.voters.len());
        nodes.map_or_else(
            || i16::try_from(self.int(name)).unwrap_or(i16::MAX),
            |nodes| i16::try_from(nodes).unwrap_or(i16::MAX).min(kafkas),
        )
    }

    /// The first listener whose clients need not prove who they are, where `mainstem.require.authentication` forbids that.
    fn open_listener(&self, open: &[Endpoint], tls: &[Option<TlsListener>]) -> Option<Problem> {
        if !self.boolean("mainstem.require.authentication") {
            return None;
        }
        let asks = |tls: &Option<TlsListener>| {
            tls.as_ref().is_some_and(|tls| tls.get("ssl.client.auth") == Some("required"))
        };
        let mut listeners = open.iter().zip(tls);
        let (endpoint, _) = listeners.find(|(endpoint, tls)| !endpoint.protocol.has_sasl() && !asks(tls))?;
        Some(Problem::new(format!(
            "listeners={endpoint} does not authenticate its clients, which mainstem.require.authentication forbids: map it to \
             SASL_SSL, or to SSL with ssl.client.auth=required"
        )))
    }

    fn authorizer(&self) -> Option<AuthorizerConfig> {
        self.text("authorizer.class.name").filter(|class| !class.is_empty())?;
        Some(AuthorizerConfig {
            super_users: self.text("super.users").unwrap_or_default(),
            allow_everyone_if_no_acl_found: self.boolean("allow.everyone.if.no.acl.found"),
        })
    }

    fn authentication(&self) -> AuthenticationConfig {
        AuthenticationConfig {
            failed_delay: Duration::from_millis(self.millis("connection.failed.authentication.delay.ms")),
            timeout: Duration::from_millis(self.millis("mainstem.authentication.timeout.ms")),
            unauthenticated_max: self.count("mainstem.unauthenticated.connections.max"),
        }
    }

    fn attach(&self) -> Result<Vec<(String, PathBuf)>, Problem> {
        let mut attached: Vec<(String, PathBuf)> = Vec::new();
        for item in self.list("mainstem.attach") {
            let refused = |why: &str| {
                Problem::new(format!("Invalid value {item} for configuration mainstem.attach: {why}"))
            };
            let (name, dir) = item
                .split_once('=')
                .map(|(name, dir)| (name.trim(), dir.trim()))
                .filter(|(name, dir)| !name.is_empty() && !dir.is_empty())
                .ok_or_else(|| refused("must be NAME=DIR, such as trades=/var/lib/trades"))?;
            if attached.iter().any(|(other, _)| other == name) {
                return Err(refused("there is a queue for this topic already"));
            }
            attached.push((name.to_string(), PathBuf::from(dir)));
        }
        Ok(attached)
    }

    fn http_listener(&self) -> Result<Option<(String, u16)>, Problem> {
        let text = self.text("mainstem.http.listener").unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        let parsed = text.rsplit_once(':').and_then(|(host, port)| {
            let host = host.trim_start_matches('[').trim_end_matches(']');
            Some((host.to_string(), port.parse().ok()?))
        });
        let parsed = parsed.filter(|(host, _)| !host.is_empty());
        let why = "must be host:port, such as 127.0.0.1:9644";
        let refused =
            || Problem::new(format!("Invalid value {text} for configuration mainstem.http.listener: {why}"));
        let (host, port) = parsed.ok_or_else(refused)?;
        let is_local = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback());
        if !is_local && self.text("mainstem.http.authentication").unwrap_or_default().is_empty() {
            return Err(Problem::new(format!(
                "mainstem.http.listener={text} is reached from elsewhere, by clients that prove nothing: listen on \
                 127.0.0.1, set mainstem.http.authentication=basic or certificate, which need ssl.keystore.*, or \
                 mainstem.http.authentication=none if what is there may be read by everybody"
            )));
        }
        Ok(Some((host, port)))
    }

    fn http_authentication(&self) -> HttpAuthentication {
        match self.text("mainstem.http.authentication").as_deref() {
            Some("basic") => HttpAuthentication::Basic,
            Some("certificate") => HttpAuthentication::Certificate,
            _ => HttpAuthentication::None,
        }
    }

    fn network(&self) -> Result<NetworkConfig, Problem> {
        let buffer = |name| usize::try_from(self.int(name)).ok();
        let overrides = parse_overrides(&self.text("max.connections.per.ip.overrides").unwrap_or_default())?;
        let max_connections_per_ip = self.count("max.connections.per.ip");
        if max_connections_per_ip == 0 && overrides.is_empty() {
            return Err(Problem::new(
                "max.connections.per.ip can be set to zero only if \
                 max.connections.per.ip.overrides property is set.",
            ));
        }
        Ok(NetworkConfig {
            num_network_threads: self.count("num.network.threads"),
            listen_backlog: self.int32("socket.listen.backlog.size"),
            send_buffer_bytes: buffer("socket.send.buffer.bytes"),
            receive_buffer_bytes: buffer("socket.receive.buffer.bytes"),
            request_max_bytes: self.count("socket.request.max.bytes"),
            queued_max_request_bytes: u64::try_from(self.int("queued.max.request.bytes"))
                .ok()
                .filter(|n| *n > 0),
            idle_poll: Duration::from_micros(
                u64::try_from(self.int("mainstem.network.idle.poll.us")).expect("the key is at least 0"),
            ),
            max_connections: self.count("max.connections"),
            max_connections_per_ip,
            max_connections_per_ip_overrides: overrides,
            max_connection_creation_rate: u32::try_from(self.int("max.connection.creation.rate"))
                .expect("the key is at least 0 and an INT"),
            telemetry_max_bytes: self.count("telemetry.max.bytes"),
            connections_max_idle_ms: u64::try_from(self.int("connections.max.idle.ms")).ok(),
            fetch_max_bytes: self.count("fetch.max.bytes"),
            fetch_session_slots: self.count("max.incremental.fetch.session.cache.slots"),
            describe_partitions_max: self.count("max.request.partition.size.limit"),
        })
    }

    fn quotas(&self) -> QuotaConfig {
        let windows = |count, seconds| Windows {
            count: u32::try_from(self.int(count)).expect("the key is at least 1 and an INT"),
            size_ms: u64::try_from(self.int(seconds)).expect("the key is at least 1") * 1000,
        };
        QuotaConfig {
            windows: windows("quota.window.num", "quota.window.size.seconds"),
            controller_windows: windows(
                "controller.quota.window.num",
                "controller.quota.window.size.seconds",
            ),
        }
    }

    fn topics(&self) -> TopicDefaults {
        TopicDefaults {
            auto_create_enable: self.boolean("auto.create.topics.enable"),
            delete_enable: self.boolean("delete.topic.enable"),
            num_partitions: self.int32("num.partitions"),
            // An INT in Kafka's table although a factor is 16 bits in every message.
            default_replication_factor: i16::try_from(self.int("default.replication.factor"))
                .unwrap_or(i16::MAX),
        }
    }

    fn groups(&self) -> GroupLimits {
        GroupLimits {
            min_session_timeout_ms: self.int32("group.min.session.timeout.ms"),
            max_session_timeout_ms: self.int32("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: self.int32("group.initial.rebalance.delay.ms"),
            max_size: self.count("group.max.size"),
            consumer: self.consumer_groups(),
        }
    }

    fn consumer_groups(&self) -> ConsumerGroupConfig {
        let assignors = self.list("group.consumer.assignors");
        let policy = self.text("group.consumer.migration.policy");
        ConsumerGroupConfig {
            times: GroupTimes {
                session_timeout_ms: self.int32("group.consumer.session.timeout.ms"),
                heartbeat_interval_ms: self.int32("group.consumer.heartbeat.interval.ms"),
                assignment_interval_ms: self.int32("group.consumer.assignment.interval.ms"),
            },
            own_times: HashMap::new(),
            max_size: self.count("group.consumer.max.size"),
            assignors: assignors.iter().filter_map(|name| Assignor::named(name)).collect(),
            migration_policy: policy.as_deref().and_then(MigrationPolicy::named).unwrap_or_default(),
            regex_refresh_interval_ms: u64::try_from(self.int("group.consumer.regex.refresh.interval.ms"))
                .unwrap_or(0),
        }
    }

    fn offsets(&self, quorum: Option<&Quorum>) -> OffsetsConfig {
        OffsetsConfig {
            metadata_max_bytes: self.int32("offset.metadata.max.bytes"),
            commit_timeout_ms: self.int32("offsets.commit.timeout.ms"),
            retention_ms: self.int("offsets.retention.minutes") * 60_000,
            retention_check_interval_ms: self.int("offsets.retention.check.interval.ms"),
            topic_num_partitions: self.int32("offsets.topic.num.partitions"),
            topic_replication_factor: self.replicas("offsets.topic.replication.factor", 3, quorum),
            topic_segment_bytes: self.int32("offsets.topic.segment.bytes"),
        }
    }

    fn transactions(&self, quorum: Option<&Quorum>) -> TransactionLogConfig {
        TransactionLogConfig {
            topic_num_partitions: self.int32("transaction.state.log.num.partitions"),
            topic_replication_factor: self.replicas("transaction.state.log.replication.factor", 3, quorum),
            topic_min_isr: self.replicas("transaction.state.log.min.isr", 2, quorum).into(),
            topic_segment_bytes: self.int32("transaction.state.log.segment.bytes"),
            max_timeout_ms: self.int32("transaction.max.timeout.ms"),
            abort_timed_out_interval_ms: self
                .millis("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
            id_expiration_ms: self.int("transactional.id.expiration.ms"),
            remove_expired_interval_ms: self
                .millis("transaction.remove.expired.transaction.cleanup.interval.ms"),
            partition_verification: self.boolean("transaction.partition.verification.enable"),
        }
    }

    fn logs(&self) -> LogMaintenance {
        LogMaintenance {
            recovery_threads_per_dir: self.count("num.recovery.threads.per.data.dir"),
            retention_check_interval_ms: self.millis("log.retention.check.interval.ms"),
            recovery_checkpoint_interval_ms: self.millis("log.flush.offset.checkpoint.interval.ms"),
            start_offset_checkpoint_interval_ms: self.millis("log.flush.start.offset.checkpoint.interval.ms"),
            move_bytes_per_second: u64::try_from(self.int("replica.alter.log.dirs.io.max.bytes.per.second"))
                .unwrap_or(0),
            producer_id_expiration_ms: self.int("producer.id.expiration.ms"),
            producer_ids_max: usize::try_from(self.int("mainstem.producer.ids.max")).unwrap_or(1),
            producer_id_expiration_check_interval_ms: self.millis("producer.id.expiration.check.interval.ms"),
        }
    }

    fn cleaner(&self) -> CleanerConfig {
        let size = |name| usize::try_from(self.int(name)).unwrap_or(0);
        CleanerConfig {
            enable: self.boolean("log.cleaner.enable"),
            threads: size("log.cleaner.threads"),
            backoff_ms: self.millis("log.cleaner.backoff.ms"),
            dedupe_buffer_bytes: size("log.cleaner.dedupe.buffer.size"),
            load_factor: self.double("log.cleaner.io.buffer.load.factor"),
            io_buffer_bytes: size("log.cleaner.io.buffer.size"),
            io_max_bytes_per_second: self.double("log.cleaner.io.max.bytes.per.second"),
        }
    }

    fn metadata_log(&self) -> MetadataLogConfig {
        MetadataLogConfig {
            max_record_bytes_between_snapshots: self
                .millis("metadata.log.max.record.bytes.between.snapshots"),
            max_snapshot_interval_ms: self.millis("metadata.log.max.snapshot.interval.ms"),
        }
    }

    /// Values that are valid one by one and not together.
    fn conflicts(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.int("log.retention.ms") == 0 {
            problems
                .push(Problem::new("log.retention.ms must be unlimited (-1) or, greater than or equal to 1"));
        }
        if !self.list("process.roles").iter().any(|role| role == "broker") {
            problems
                .push(Problem::new("process.roles must name broker: this program is no controller alone"));
        }
        let cleaner = self.cleaner();
        if cleaner.enable && cleaner.dedupe_buffer_bytes / cleaner.threads.max(1) <= 1 << 20 {
            problems.push(Problem::new(
                "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
            ));
        }
        problems.extend(self.cordon_conflict().map(Problem::new));
        let defaults = TopicConfigValues::resolve(&BTreeMap::new(), self.0);
        problems.extend(defaults.conflict().map(Problem::new));
        problems
    }

    /// KIP-1066: only what there is can be closed to new partitions.
    fn cordon_conflict(&self) -> Option<String> {
        let (cordoned, dirs) = (self.list("cordoned.log.dirs"), self.list("log.dirs"));
        if cordoned.iter().any(|dir| dir == ALL_LOG_DIRS) {
            let alone = cordoned.len() == 1;
            return (!alone)
                .then(|| "When cordoned.log.dirs is set to *, it must not contain other values".to_string());
        }
        let missing: Vec<&str> =
            cordoned.iter().filter(|dir| !dirs.contains(dir)).map(String::as_str).collect();
        (!missing.is_empty()).then(|| {
            format!(
                "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : {}",
                missing.join(", ")
            )
        })
    }
}

fn parse_overrides(text: &str) -> Result<Vec<(String, usize)>, Problem> {
    let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
    entries
        .map(|entry| {
            let parsed = entry
                .rsplit_once(':')
                .and_then(|(host, count)| Some((host.trim().to_string(), count.trim().parse().ok()?)));
            parsed.ok_or_else(|| {
                Problem::new(format!(
                    "Error parsing configuration property 'max.connections.per.ip.overrides': \
                     {entry} is not address:count"
                ))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::properties::Properties;
    use super::super::sources::{StaticOrigin, environment_name};
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn build(
        file: &str,
        environment: &[(&str, &str)],
        overrides: &[(&str, &str)],
    ) -> Result<BrokerConfig, ConfigError> {
        let file = Properties::parse(file.as_bytes()).expect("the test's file is well formed");
        let (environment, overrides) = (pairs(environment), pairs(overrides));
        BrokerConfig::from_sources(Sources {
            file: Some(&file),
            environment: &environment,
            overrides: &overrides,
        })
    }

    fn refused(file: &str, expect: &str) {
        let error = build(file, &[], &[]).expect_err("the file is wrong");
        assert_eq!(error.to_string(), expect, "{file}");
    }

    #[test]
    fn defaults_need_nothing() {
        let config = BrokerConfig::from_sources(Sources::default()).expect("defaults are valid");
        assert_eq!(config.warnings, []);
        assert_eq!(
            (config.node_id, config.log_dirs.as_slice()),
            (1, ["mainstem-data".to_string()].as_slice())
        );
        assert_eq!(config.network.queued_max_request_bytes, Some(64 << 20));
        assert_eq!(config.http_listener, None);
        assert_eq!(config.attach, []);
        assert_eq!(config.offsets.retention_ms, 7 * 24 * 3_600_000);
        assert_eq!(config.network.connections_max_idle_ms, Some(600_000));
    }

    #[test]
    fn kafkas_own_file_starts_unchanged() {
        let config =
            build(include_str!("fixtures/server.properties"), &[], &[]).expect("Kafka starts from it");
        assert_eq!(config.listeners.open.len(), 1);
        assert_eq!(config.log_dirs, ["/tmp/kraft-combined-logs"]);
        let warned: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        expect_test::expect_file!["fixtures/server.properties.warnings"]
            .assert_eq(&(warned.join("\n") + "\n"));
    }

    #[test]
    fn set_counts_before_environment_before_file() {
        let file = "num.partitions=2\nlog.segment.bytes=2000000\nlog.roll.hours=2\n";
        let environment =
            [("MAINSTEM_NUM_PARTITIONS", "3"), ("MAINSTEM_LOG_SEGMENT_BYTES", "3000000"), ("HOME", "/")];
        let config = build(file, &environment, &[("num.partitions", "4")]).expect("valid");
        assert_eq!(config.topics.num_partitions, 4);
        assert_eq!(config.values.origin("num.partitions"), Some(StaticOrigin::Override));
        assert_eq!(config.values.origin("log.segment.bytes"), Some(StaticOrigin::Environment));
        assert_eq!(config.values.origin("log.roll.hours"), Some(StaticOrigin::File { line: 3 }));
        assert_eq!(config.values.origin("log.roll.ms"), None);
        assert_eq!(environment_name("log.roll.ms"), "MAINSTEM_LOG_ROLL_MS");
    }

    #[test]
    fn unknown_keys_are_warned_of_unless_they_were_typed() {
        let config =
            build("zookeeper.connect=a:1\nnum.partition=2", &[("MAINSTEM_X", "1")], &[]).expect("valid");
        let warned: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            warned,
            [
                "environment: unknown key MAINSTEM_X is ignored",
                "file line 2: unknown key num.partition is ignored; did you mean num.partitions?",
                "file line 1: unknown key zookeeper.connect is ignored",
            ]
        );
        let error = build("", &[], &[("num.partition", "2")]).expect_err("typed");
        assert_eq!(
            error.to_string(),
            "--set: Unknown broker config name: num.partition; did you mean num.partitions?"
        );
    }

    #[test]
    fn every_problem_is_named_with_its_place() {
        refused(
            "num.partitions=0\nlog.dirs=\n",
            "file line 1: Invalid value 0 for configuration num.partitions: Value must be at least 1\n\
             file line 2: Configuration 'log.dirs' must not be empty. Valid values include: any non-empty value",
        );
        let retention = "log.retention.ms must be unlimited (-1) or, greater than or equal to 1";
        for key in ["log.retention.ms", "log.retention.minutes", "log.retention.hours"] {
            refused(&format!("{key}=0"), retention);
        }
        refused(
            "log.dirs=/a,/b\ncordoned.log.dirs=*,/a",
            "When cordoned.log.dirs is set to *, it must not contain other values",
        );
        refused(
            "log.dirs=/a,/b\ncordoned.log.dirs=/c,/a,/d",
            "All entries in cordoned.log.dirs must be present in log.dirs or log.dir. Missing entries : /c, /d",
        );
        refused("node.id=1\nbroker.id=2", "You must set `node.id` to the same value as `broker.id`.");
        refused(
            "process.roles=controller",
            "process.roles must name broker: this program is no controller alone",
        );
        refused(
            "max.connections.per.ip=0",
            "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
        );
        refused(
            "max.connections.per.ip.overrides=a:b",
            "Error parsing configuration property 'max.connections.per.ip.overrides': a:b is not address:count",
        );
        refused(
            "mainstem.attach=trades=/q,trades=/r",
            "Invalid value trades=/r for configuration mainstem.attach: there is a queue for this topic already",
        );
        refused(
            "mainstem.http.listener=9644",
            "Invalid value 9644 for configuration mainstem.http.listener: \
             must be host:port, such as 127.0.0.1:9644",
        );
        refused(
            "log.cleaner.min.compaction.lag.ms=10\nlog.cleaner.max.compaction.lag.ms=5",
            "conflict topic config setting min.compaction.lag.ms (10) > max.compaction.lag.ms (5)",
        );
    }

    #[test]
    fn typed_values_follow_their_keys() {
        let config = build(
            "broker.id=7\nlog.dir=/a\nmax.connections.per.ip.overrides=127.0.0.1:5, ::1:6\n\
             socket.receive.buffer.bytes=102400\nqueued.max.request.bytes=-1\nconnections.max.idle.ms=-1\n\
             mainstem.http.listener=[::1]:9644\nmainstem.attach=trades=/q/t, logs = /q/l\ndefault.replication.factor=3",
            &[],
            &[],
        )
        .expect("valid");
        assert_eq!((config.node_id, config.metadata_log_dir), (7, None));
        let overrides = [("127.0.0.1".to_string(), 5), ("::1".to_string(), 6)];
        assert_eq!(config.network.max_connections_per_ip_overrides, overrides);
        assert_eq!(config.network.send_buffer_bytes, None, "it is left to the system");
        assert_eq!(config.network.receive_buffer_bytes, Some(102_400));
        assert_eq!(config.network.queued_max_request_bytes, None);
        assert_eq!(config.network.connections_max_idle_ms, None);
        assert_eq!(config.http_listener, Some(("::1".to_string(), 9644)));
        let attached = [("trades", "/q/t"), ("logs", "/q/l")];
        assert_eq!(config.attach, attached.map(|(name, dir)| (name.to_string(), PathBuf::from(dir))));
        assert_eq!(
            config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "default.replication.factor=3 cannot be met: there is one node, so topics that need it are refused"
            ]
        );
    }

    #[test]
    fn values_set_while_running_lie_over_those_at_start() {
        let config = build("max.connections=10", &[], &[]).expect("valid");
        let map = |value: &str| BTreeMap::from([("max.connections".to_string(), value.to_string())]);
        let over = config.with_dynamic(map("20"), BTreeMap::new()).expect("valid");
        assert_eq!(over.network.max_connections, 20);
        let over = over.with_dynamic(map("20"), map("30")).expect("valid");
        assert_eq!(over.network.max_connections, 30);
        let back = over.with_dynamic(BTreeMap::new(), BTreeMap::new()).expect("valid");
        assert_eq!(back, config);
    }
}
