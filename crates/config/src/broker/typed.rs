//! Values by name, each in the type of its field, and the fields made of several.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use super::ALL_LOG_DIRS;
use crate::broker_values::BrokerValues;
use crate::group_settings::{Assignor, ConsumerGroupConfig, GroupTimes, MigrationPolicy};
use crate::key::Scope;
use crate::listeners::{Endpoint, ListenerKeys, Listeners, is_loopback};
use crate::others;
use crate::problem::Problem;
use crate::quorum::Quorum;
use crate::quota_windows::Windows;
use crate::sasl::SecretText;
use crate::settings::{
    AuthenticationConfig, AuthorizerConfig, CleanerConfig, GroupLimits, LogMaintenance, MetadataLogConfig,
    NetworkConfig, OffsetsConfig, QuotaConfig, ReplicationConfig, TopicDefaults, TransactionLogConfig,
};
use crate::table;
use crate::tls::{HttpAuthentication, TlsListener};
use crate::topic::TopicConfigValues;
use crate::value::ConfigValue;

/// Bytes of `socket.request.max.bytes` at least: logins and ApiVersions of real clients take some hundreds.
const REQUEST_BYTES_LEAST: usize = 1024;

/// Values by name, for the keys whose default or rule says that there is one.
pub(super) struct Typed<'a>(pub(super) &'a BrokerValues);

impl Typed<'_> {
    pub(super) fn value(&self, name: &str) -> Option<ConfigValue> {
        self.0.effective(table::find(Scope::Broker, name).expect("this file names keys of the table"))
    }

    pub(super) fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Some(ConfigValue::Int(value)) => value,
            other => unreachable!("{name} is an integer with a default, not {other:?}"),
        }
    }

    pub(super) fn int32(&self, name: &str) -> i32 {
        i32::try_from(self.int(name)).expect("the key's type is INT")
    }

    /// Negative counts as 0.
    pub(super) fn count(&self, name: &str) -> usize {
        usize::try_from(self.int(name)).unwrap_or(0)
    }

    /// Negative counts as 0.
    pub(super) fn millis(&self, name: &str) -> u64 {
        u64::try_from(self.int(name)).unwrap_or(0)
    }

    pub(super) fn double(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(ConfigValue::Double(value)) => value,
            other => unreachable!("{name} is a number with a default, not {other:?}"),
        }
    }

    pub(super) fn boolean(&self, name: &str) -> bool {
        self.value(name) == Some(ConfigValue::Bool(true))
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        match self.value(name) {
            Some(ConfigValue::Str(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(ConfigValue::List(items)) => items,
            _ => Vec::new(),
        }
    }

    pub(super) fn node_id(&self) -> Result<i32, Problem> {
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

    pub(super) fn listeners(&self) -> Result<Listeners, Problem> {
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

    pub(super) fn quorum(
        &self,
        node_id: Option<i32>,
        listeners: Option<&Listeners>,
    ) -> Result<Option<Quorum>, Problem> {
        let (voters, servers) =
            (self.list("controller.quorum.voters"), self.list("controller.quorum.bootstrap.servers"));
        let quorum = Quorum::parse(&voters)?;
        let (Some(own), Some(listeners)) = (node_id, listeners) else { return Ok(None) };
        if others::servers_of_others(self.0, listeners).is_some() {
            let (roles, advertised) = (self.list("process.roles"), self.list("advertised.listeners"));
            return Quorum::to_join(own, &servers, (&roles, listeners, &advertised)).map(Some);
        }
        quorum.of_several(own, &self.list("process.roles"), listeners)
    }

    pub(super) fn replication(&self) -> ReplicationConfig {
        let rate = |name| Some(self.int(name)).filter(|rate| *rate != i64::MAX);
        let rate = |name| rate(name).and_then(|rate| u64::try_from(rate).ok());
        ReplicationConfig {
            leader_throttled_rate: rate("leader.replication.throttled.rate"),
            follower_throttled_rate: rate("follower.replication.throttled.rate"),
            heartbeat_interval_ms: self.millis("broker.heartbeat.interval.ms"),
            session_timeout_ms: self.millis("broker.session.timeout.ms"),
            lag_time_max_ms: self.millis("replica.lag.time.max.ms"),
            controlled_shutdown: self.boolean("controlled.shutdown.enable"),
            lost_replica_timeout_ms: self.millis("mainstem.lost.replica.timeout.ms"),
            rebalance_interval_ms: self
                .boolean("auto.leader.rebalance.enable")
                .then(|| self.millis("leader.imbalance.check.interval.seconds").saturating_mul(1000)),
        }
    }

    /// The value of a key of an internal topic. If it was not set, it is Kafka's, or the number of nodes if that is smaller.
    pub(super) fn replicas(&self, name: &str, kafkas: i16, quorum: Option<&Quorum>) -> i16 {
        let is_set = self.0.lookup(name).is_some();
        // The number of nodes of a cluster that is joined is not known.
        let quorum = quorum.filter(|quorum| !is_set && quorum.joining.is_none());
        let nodes = quorum.map(|quorum| quorum.voters.len());
        nodes.map_or_else(
            || i16::try_from(self.int(name)).unwrap_or(i16::MAX),
            |nodes| i16::try_from(nodes).unwrap_or(i16::MAX).min(kafkas),
        )
    }

    /// The first listener whose clients need not authenticate, if `mainstem.require.authentication` forbids that.
    pub(super) fn open_listener(&self, open: &[Endpoint], tls: &[Option<TlsListener>]) -> Option<Problem> {
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

    pub(super) fn authorizer(&self) -> Option<AuthorizerConfig> {
        self.text("authorizer.class.name").filter(|class| !class.is_empty())?;
        Some(AuthorizerConfig {
            super_users: self.text("super.users").unwrap_or_default(),
            allow_everyone_if_no_acl_found: self.boolean("allow.everyone.if.no.acl.found"),
        })
    }

    pub(super) fn authentication(&self) -> AuthenticationConfig {
        AuthenticationConfig {
            failed_delay: Duration::from_millis(self.millis("connection.failed.authentication.delay.ms")),
            timeout: Duration::from_millis(self.millis("mainstem.authentication.timeout.ms")),
            unauthenticated_max: self.count("mainstem.unauthenticated.connections.max"),
            decoy_secret: self
                .text("mainstem.scram.decoy.secret")
                .filter(|text| !text.is_empty())
                .map(SecretText::new),
        }
    }

    pub(super) fn attach(&self) -> Result<Vec<(String, PathBuf)>, Problem> {
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

    pub(super) fn http_listener(&self) -> Result<Option<(String, u16)>, Problem> {
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
        if !is_loopback(&host) && self.text("mainstem.http.authentication").unwrap_or_default().is_empty() {
            return Err(Problem::new(format!(
                "mainstem.http.listener={text} is reached from elsewhere, by clients that prove nothing: listen on \
                 127.0.0.1, set mainstem.http.authentication=basic or certificate, which need ssl.keystore.*, or \
                 mainstem.http.authentication=none if what is there may be read by everybody"
            )));
        }
        Ok(Some((host, port)))
    }

    pub(super) fn http_authentication(&self) -> HttpAuthentication {
        match self.text("mainstem.http.authentication").as_deref() {
            Some("basic") => HttpAuthentication::Basic,
            Some("certificate") => HttpAuthentication::Certificate,
            _ => HttpAuthentication::None,
        }
    }

    pub(super) fn network(&self) -> Result<NetworkConfig, Problem> {
        let buffer = |name| usize::try_from(self.int(name)).ok();
        let overrides = parse_overrides(&self.text("max.connections.per.ip.overrides").unwrap_or_default())?;
        let max_connections_per_ip = self.count("max.connections.per.ip");
        if max_connections_per_ip == 0 && overrides.is_empty() {
            return Err(Problem::new(
                "max.connections.per.ip can be set to zero only if \
                 max.connections.per.ip.overrides property is set.",
            ));
        }
        let request_max_bytes = self.count("socket.request.max.bytes");
        if request_max_bytes < REQUEST_BYTES_LEAST {
            return Err(Problem::new(format!(
                "socket.request.max.bytes={request_max_bytes} is less than the first requests of clients take, so that none could \
                 connect: the least is {REQUEST_BYTES_LEAST}, and the default 104857600"
            )));
        }
        Ok(NetworkConfig {
            num_network_threads: self.count("num.network.threads"),
            listen_backlog: self.int32("socket.listen.backlog.size"),
            send_buffer_bytes: buffer("socket.send.buffer.bytes"),
            receive_buffer_bytes: buffer("socket.receive.buffer.bytes"),
            request_max_bytes,
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

    pub(super) fn quotas(&self) -> QuotaConfig {
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

    pub(super) fn topics(&self) -> TopicDefaults {
        TopicDefaults {
            auto_create_enable: self.boolean("auto.create.topics.enable"),
            delete_enable: self.boolean("delete.topic.enable"),
            num_partitions: self.int32("num.partitions"),
            // An INT in Kafka's table although a factor is 16 bits in every message.
            default_replication_factor: i16::try_from(self.int("default.replication.factor"))
                .unwrap_or(i16::MAX),
        }
    }

    pub(super) fn groups(&self) -> GroupLimits {
        GroupLimits {
            min_session_timeout_ms: self.int32("group.min.session.timeout.ms"),
            max_session_timeout_ms: self.int32("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: self.int32("group.initial.rebalance.delay.ms"),
            max_size: self.count("group.max.size"),
            consumer: self.consumer_groups(),
        }
    }

    pub(super) fn consumer_groups(&self) -> ConsumerGroupConfig {
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

    pub(super) fn offsets(&self, quorum: Option<&Quorum>) -> OffsetsConfig {
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

    pub(super) fn transactions(&self, quorum: Option<&Quorum>) -> TransactionLogConfig {
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

    pub(super) fn logs(&self) -> LogMaintenance {
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

    pub(super) fn cleaner(&self) -> CleanerConfig {
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

    pub(super) fn metadata_log(&self) -> MetadataLogConfig {
        MetadataLogConfig {
            max_record_bytes_between_snapshots: self
                .millis("metadata.log.max.record.bytes.between.snapshots"),
            max_snapshot_interval_ms: self.millis("metadata.log.max.snapshot.interval.ms"),
        }
    }

    /// Values that are valid one by one and not together.
    pub(super) fn conflicts(&self) -> Vec<Problem> {
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

    /// KIP-1066: only an existing directory can be closed to new partitions.
    pub(super) fn cordon_conflict(&self) -> Option<String> {
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
