//! A topic's configuration in the form in which the data path uses it.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_config::{BrokerConfig, CompressionType, ThrottledReplicas, TimestampType, TopicConfigValues};
use mainstem_log::LogConfig;
use mainstem_records::{Compression, TimestampType as RecordTimestampType};

/// The largest segments of coordinators' topics.
const INTERNAL_SEGMENT_BYTES_MAX: u32 = 4 << 20;
/// The part of such a log that is dirty, at most, before it is compacted. Its closed segments have at most a quarter more than its state.
const INTERNAL_DIRTY_RATIO_MAX: f64 = 0.2;

/// Settings that a partition runs with.
pub struct TopicSettings {
    /// The settings of its log.
    pub log: Arc<LogConfig>,
    /// `write.caching`: acks=all waits for the page cache, not for the disk.
    pub write_caching: bool,
    /// `min.insync.replicas`, not above the number of replicas.
    pub min_insync_replicas: i32,
    /// `leader.replication.throttled.replicas`.
    pub leader_throttled: ThrottledReplicas,
    /// `follower.replication.throttled.replicas`.
    pub follower_throttled: ThrottledReplicas,
}

impl TopicSettings {
    /// With nothing throttled.
    pub fn of_log(log: Arc<LogConfig>, write_caching: bool, min_insync_replicas: i32) -> TopicSettings {
        let (leader_throttled, follower_throttled) = Default::default();
        TopicSettings { log, write_caching, min_insync_replicas, leader_throttled, follower_throttled }
    }

    /// The topic's own values over the broker's. `is_internal`: coordinators keep their state in it.
    pub fn resolve(
        own: &BTreeMap<String, String>,
        broker: &BrokerConfig,
        (replicas, is_internal): (usize, bool),
    ) -> Arc<Self> {
        let values = TopicConfigValues::resolve(own, &broker.values);
        let replicas = i32::try_from(replicas).unwrap_or(i32::MAX);
        let mut log = log_config(&values, broker);
        if is_internal && log.compact {
            stay_small(&mut log);
        }
        Arc::new(TopicSettings {
            log: Arc::new(log),
            write_caching: values.write_caching,
            min_insync_replicas: values.min_insync_replicas.min(replicas),
            leader_throttled: values.leader_throttled,
            follower_throttled: values.follower_throttled,
        })
    }
}

/// Lets the log of a coordinator's topic have hardly more than its state: a coordinator reads all of it before it serves.
fn stay_small(log: &mut LogConfig) {
    log.segment_bytes = log.segment_bytes.min(INTERNAL_SEGMENT_BYTES_MAX);
    log.min_cleanable_dirty_ratio = log.min_cleanable_dirty_ratio.min(INTERNAL_DIRTY_RATIO_MAX);
}

fn log_config(values: &TopicConfigValues, broker: &BrokerConfig) -> LogConfig {
    // The table allows no negative number where the log has none.
    let unsigned = |value: i32| u32::try_from(value).unwrap_or(0);
    let millis = |value: i64| u64::try_from(value).unwrap_or(0);
    LogConfig {
        segment_bytes: unsigned(values.segment_bytes),
        segment_ms: values.segment_ms,
        segment_jitter_ms: values.segment_jitter_ms,
        segment_index_bytes: unsigned(values.segment_index_bytes),
        index_interval_bytes: unsigned(values.index_interval_bytes),
        retention_bytes: values.retention_bytes,
        retention_ms: values.retention_ms,
        max_message_bytes: unsigned(values.max_message_bytes),
        timestamp_type: match values.message_timestamp_type {
            TimestampType::CreateTime => RecordTimestampType::CreateTime,
            TimestampType::LogAppendTime => RecordTimestampType::LogAppendTime,
        },
        timestamp_before_max_ms: values.message_timestamp_before_max_ms,
        timestamp_after_max_ms: values.message_timestamp_after_max_ms,
        compression: match values.compression_type {
            CompressionType::Producer => None,
            CompressionType::Uncompressed => Some((Compression::None, None)),
            CompressionType::Gzip(level) => Some((Compression::Gzip, level)),
            CompressionType::Snappy => Some((Compression::Snappy, None)),
            CompressionType::Lz4 => Some((Compression::Lz4, None)),
            CompressionType::Zstd(level) => Some((Compression::Zstd, Some(level))),
        },
        flush_messages: values.flush_messages,
        flush_ms: values.flush_ms,
        write_caching: values.write_caching,
        preallocate: values.preallocate,
        file_delete_delay_ms: millis(values.file_delete_delay_ms),
        delete: values.cleanup_delete,
        compact: values.cleanup_compact,
        min_cleanable_dirty_ratio: values.min_cleanable_dirty_ratio,
        min_compaction_lag_ms: values.min_compaction_lag_ms,
        max_compaction_lag_ms: values.max_compaction_lag_ms,
        delete_retention_ms: values.delete_retention_ms,
        transaction_verification: broker.transactions.partition_verification,
        producer_id_expiration_ms: millis(broker.logs.producer_id_expiration_ms),
        ..LogConfig::default()
    }
}
