//! The parts of a node's configuration, each the typed values of keys that belong together.

use std::time::Duration;

use super::group_settings::ConsumerGroupConfig;
use super::quota_windows::Windows;
use super::sasl::SecretText;

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
    /// `mainstem.lost.replica.timeout.ms`.
    pub lost_replica_timeout_ms: u64,
    /// `leader.imbalance.check.interval.seconds` as milliseconds; none without `auto.leader.rebalance.enable`.
    pub rebalance_interval_ms: Option<u64>,
}

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
