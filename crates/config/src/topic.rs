//! The settings of one topic: its own values over the broker's.

use std::collections::{BTreeMap, BTreeSet};

use super::broker_values::{BrokerValues, scale};
use super::key::{ConfigKey, Scope};
use super::table;
use super::value::ConfigValue;

/// `compression.type`: the codec in which batches are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompressionType {
    /// The bytes that the client sent.
    Producer,
    /// None.
    Uncompressed,
    /// gzip, at this level; `None` is the codec's default.
    Gzip(Option<i32>),
    /// snappy.
    Snappy,
    /// lz4, in its fast mode.
    Lz4,
    /// zstd, at this level.
    Zstd(i32),
}

/// The only level of lz4, which is Kafka's default.
const LZ4_LEVEL: i32 = 9;

/// `message.timestamp.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    /// The producer's.
    CreateTime,
    /// The broker's.
    LogAppendTime,
}

/// Typed values of a topic. Each field is named after its key, which documents it; times in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicConfigValues {
    /// `cleanup.policy` holds `delete`.
    pub cleanup_delete: bool,
    /// `cleanup.policy` holds `compact`.
    pub cleanup_compact: bool,
    /// `compression.type` with its level.
    pub compression_type: CompressionType,
    /// `compression.lz4.level`, without an effect.
    lz4_level: i32,
    /// `delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `file.delete.delay.ms`.
    pub file_delete_delay_ms: i64,
    /// `flush.messages`; `i64::MAX` is never.
    pub flush_messages: i64,
    /// `flush.ms`; `i64::MAX` is never.
    pub flush_ms: i64,
    /// `follower.replication.throttled.replicas`.
    pub follower_throttled: ThrottledReplicas,
    /// `index.interval.bytes`.
    pub index_interval_bytes: i32,
    /// `leader.replication.throttled.replicas`.
    pub leader_throttled: ThrottledReplicas,
    /// `max.compaction.lag.ms`; `i64::MAX` is never.
    pub max_compaction_lag_ms: i64,
    /// `max.message.bytes`.
    pub max_message_bytes: i32,
    /// `message.timestamp.after.max.ms`.
    pub message_timestamp_after_max_ms: i64,
    /// `message.timestamp.before.max.ms`.
    pub message_timestamp_before_max_ms: i64,
    /// `message.timestamp.type`.
    pub message_timestamp_type: TimestampType,
    /// `min.cleanable.dirty.ratio`.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `min.insync.replicas`, not yet capped by the number of replicas.
    pub min_insync_replicas: i32,
    /// `preallocate`.
    pub preallocate: bool,
    /// `remote.storage.enable`.
    pub remote_storage_enable: bool,
    /// `retention.bytes`; `None` is without limit.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; `None` is without limit.
    pub retention_ms: Option<i64>,
    /// `segment.bytes`, or `internal.segment.bytes` if that is set.
    pub segment_bytes: i32,
    /// `segment.index.bytes`.
    pub segment_index_bytes: i32,
    /// `segment.jitter.ms`.
    pub segment_jitter_ms: i64,
    /// `segment.ms`.
    pub segment_ms: i64,
    /// `unclean.leader.election.enable`.
    pub unclean_leader_election_enable: bool,
    /// `write.caching`.
    pub write_caching: bool,
}

/// Replicas that a topic names to be throttled (`leader.` and `follower.replication.throttled.replicas`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ThrottledReplicas {
    /// None.
    #[default]
    None,
    /// All of them, by `*`.
    All,
    /// These, by partition and node.
    Listed(BTreeSet<(i32, i32)>),
}

impl ThrottledReplicas {
    /// Parses pairs of numbers. An item that is no pair names no replica: it is refused before it is stored.
    fn parse(items: &[String]) -> ThrottledReplicas {
        if items.iter().any(|item| item == "*") {
            return ThrottledReplicas::All;
        }
        let pair = |item: &String| {
            let (partition, node) = item.split_once(':')?;
            Some((partition.parse().ok()?, node.parse().ok()?))
        };
        let listed: BTreeSet<_> = items.iter().filter_map(pair).collect();
        if listed.is_empty() { ThrottledReplicas::None } else { ThrottledReplicas::Listed(listed) }
    }

    /// Returns true if the replica of a partition on a node is one of them.
    pub fn contains(&self, partition: i32, node: i32) -> bool {
        match self {
            ThrottledReplicas::None => false,
            ThrottledReplicas::All => true,
            ThrottledReplicas::Listed(listed) => listed.contains(&(partition, node)),
        }
    }
}

impl TopicConfigValues {
    /// Types the topic's own values over the broker's. Names that are no topic keys and values that are not
    /// valid count as unset: both are refused before they are stored.
    pub fn resolve(own: &BTreeMap<String, String>, broker: &BrokerValues) -> TopicConfigValues {
        let topic = Resolver { own, broker };
        let policy = topic.list("cleanup.policy");
        let has_policy = |name: &str| policy.iter().any(|policy| policy == name);
        TopicConfigValues {
            cleanup_delete: has_policy("delete"),
            cleanup_compact: has_policy("compact"),
            compression_type: topic.compression(),
            lz4_level: topic.int32("compression.lz4.level"),
            delete_retention_ms: topic.int("delete.retention.ms"),
            file_delete_delay_ms: topic.int("file.delete.delay.ms"),
            flush_messages: topic.int("flush.messages"),
            flush_ms: topic.int("flush.ms"),
            follower_throttled: ThrottledReplicas::parse(
                &topic.list("follower.replication.throttled.replicas"),
            ),
            index_interval_bytes: topic.int32("index.interval.bytes"),
            leader_throttled: ThrottledReplicas::parse(&topic.list("leader.replication.throttled.replicas")),
            max_compaction_lag_ms: topic.int("max.compaction.lag.ms"),
            max_message_bytes: topic.int32("max.message.bytes"),
            message_timestamp_after_max_ms: topic.int("message.timestamp.after.max.ms"),
            message_timestamp_before_max_ms: topic.int("message.timestamp.before.max.ms"),
            message_timestamp_type: topic.timestamp_type(),
            min_cleanable_dirty_ratio: topic.double("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms: topic.int("min.compaction.lag.ms"),
            min_insync_replicas: topic.int32("min.insync.replicas"),
            preallocate: topic.boolean("preallocate"),
            remote_storage_enable: topic.boolean("remote.storage.enable"),
            retention_bytes: u64::try_from(topic.int("retention.bytes")).ok(),
            retention_ms: Some(topic.int("retention.ms")).filter(|ms| *ms >= 0),
            segment_bytes: topic.segment_bytes(),
            segment_index_bytes: topic.int32("segment.index.bytes"),
            segment_jitter_ms: topic.int("segment.jitter.ms"),
            segment_ms: topic.int("segment.ms"),
            unclean_leader_election_enable: topic.boolean("unclean.leader.election.enable"),
            write_caching: topic.boolean("write.caching"),
        }
    }

    /// Settings that are accepted for a topic with so many replicas but have no effect, each as a key or `key=value` with what happens in
    /// their place.
    pub fn without_effect(&self, replicas: usize) -> Vec<(&'static str, &'static str)> {
        let cached =
            ("cleanup.policy=compact", "replicated topics with write.caching=true are not compacted");
        let unclean = (
            "unclean.leader.election.enable=true",
            "a replicated partition waits for a replica that has what was acknowledged",
        );
        let level = ("compression.lz4.level", "lz4 has one level here, Kafka's default");
        let has_level = self.compression_type == CompressionType::Lz4 && self.lz4_level != LZ4_LEVEL;
        let is_replicated = replicas > 1;
        let is_cached = self.write_caching && is_replicated;
        let settings = [
            (self.cleanup_compact && is_cached, cached),
            (has_level, level),
            (self.unclean_leader_election_enable && is_replicated, unclean),
        ];
        settings.into_iter().filter(|(is_set, _)| *is_set).map(|(_, setting)| setting).collect()
    }

    /// Values that are valid one by one and not together, in Kafka's words.
    pub(super) fn conflict(&self) -> Option<String> {
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms {
            return Some(format!(
                "conflict topic config setting min.compaction.lag.ms ({}) > max.compaction.lag.ms ({})",
                self.min_compaction_lag_ms, self.max_compaction_lag_ms
            ));
        }
        self.remote_storage_enable.then(|| {
            "Tiered Storage functionality is disabled in the broker. \
             Topic cannot be configured with remote log storage."
                .to_string()
        })
    }
}

/// The effective value of a topic key (or a group key): the resource's own, or that of the broker key behind it.
pub(super) fn effective(
    key: &ConfigKey,
    own: &BTreeMap<String, String>,
    broker: &BrokerValues,
) -> Option<ConfigValue> {
    let set = own.get(key.name).and_then(|text| key.parse(text).ok());
    let behind = || {
        let fallback = key.fallbacks.first()?;
        let broker_key = table::find(Scope::Broker, fallback.key).expect("a test finds every fallback");
        broker.effective(broker_key).map(|value| scale(value, fallback.factor))
    };
    set.or_else(behind).or_else(|| key.default_value())
}

struct Resolver<'a> {
    own: &'a BTreeMap<String, String>,
    broker: &'a BrokerValues,
}

impl Resolver<'_> {
    fn value(&self, name: &str) -> Option<ConfigValue> {
        let key = table::find(Scope::Topic, name).expect("this file names keys of the table");
        effective(key, self.own, self.broker)
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

    fn boolean(&self, name: &str) -> bool {
        self.value(name) == Some(ConfigValue::Bool(true))
    }

    fn double(&self, name: &str) -> f64 {
        match self.value(name) {
            Some(ConfigValue::Double(value)) => value,
            other => unreachable!("{name} is a number with a default, not {other:?}"),
        }
    }

    fn text(&self, name: &str) -> String {
        match self.value(name) {
            Some(ConfigValue::Str(text)) => text,
            other => unreachable!("{name} is a text with a default, not {other:?}"),
        }
    }

    fn list(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Some(ConfigValue::List(items)) => items,
            other => unreachable!("{name} is a list with a default, not {other:?}"),
        }
    }

    fn compression(&self) -> CompressionType {
        match self.text("compression.type").as_str() {
            "producer" => CompressionType::Producer,
            "uncompressed" => CompressionType::Uncompressed,
            "gzip" => {
                CompressionType::Gzip(Some(self.int32("compression.gzip.level")).filter(|level| *level != -1))
            }
            "snappy" => CompressionType::Snappy,
            "lz4" => CompressionType::Lz4,
            "zstd" => CompressionType::Zstd(self.int32("compression.zstd.level")),
            other => unreachable!("compression.type={other} is not in the table"),
        }
    }

    fn timestamp_type(&self) -> TimestampType {
        match self.text("message.timestamp.type").as_str() {
            "LogAppendTime" => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        }
    }

    fn segment_bytes(&self) -> i32 {
        match self.value("internal.segment.bytes") {
            Some(ConfigValue::Int(bytes)) => i32::try_from(bytes).expect("the key's type is INT"),
            _ => self.int32("segment.bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::broker::BrokerConfig;
    use super::super::properties::Properties;
    use super::super::sources::Sources;
    use super::*;

    #[test]
    fn throttled_replicas_are_named_by_partition_and_node() {
        let of = |text: &str| {
            let own = [("leader.replication.throttled.replicas", text)];
            let throttled = resolve(&own, "").leader_throttled;
            [(0, 1), (0, 2), (7, 3)].map(|(partition, node)| throttled.contains(partition, node))
        };
        assert_eq!((of("0:1,7:3"), of("*")), ([true, false, true], [true; 3]));
        assert_eq!((of(""), of("0:99999999999")), ([false; 3], [false; 3]));
        assert_eq!(resolve(&[], "").follower_throttled, ThrottledReplicas::None);
    }

    fn resolve(own: &[(&str, &str)], broker: &str) -> TopicConfigValues {
        let file = Properties::parse(broker.as_bytes()).expect("the test's file is well formed");
        let config = BrokerConfig::from_sources(Sources { file: Some(&file), ..Sources::default() })
            .expect("the test's file is valid");
        let own = own.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        TopicConfigValues::resolve(&own, &config.values)
    }

    #[test]
    fn defaults_are_kafkas() {
        let values = resolve(&[], "");
        assert_eq!(values.retention_ms, Some(604_800_000));
        assert_eq!(values.retention_bytes, None);
        assert_eq!((values.segment_bytes, values.segment_ms), (1 << 30, 604_800_000));
        assert_eq!((values.flush_messages, values.flush_ms), (i64::MAX, i64::MAX));
        assert_eq!(values.compression_type, CompressionType::Producer);
        assert!(values.cleanup_delete && !values.cleanup_compact && !values.write_caching);
    }

    #[test]
    fn the_nearest_value_counts() {
        assert_eq!(resolve(&[], "log.retention.hours=1").retention_ms, Some(3_600_000));
        let both = "log.retention.hours=1\nlog.retention.minutes=2";
        assert_eq!(resolve(&[], both).retention_ms, Some(120_000));
        let all = "log.retention.hours=1\nlog.retention.minutes=2\nlog.retention.ms=3";
        assert_eq!(resolve(&[], all).retention_ms, Some(3));
        assert_eq!(resolve(&[("retention.ms", "4")], all).retention_ms, Some(4));
        assert_eq!(resolve(&[], "log.retention.hours=-5").retention_ms, None);
        assert_eq!(resolve(&[("retention.ms", "-1")], all).retention_ms, None);
        assert_eq!(resolve(&[], "log.flush.scheduler.interval.ms=7").flush_ms, 7);
        assert_eq!(resolve(&[], "log.roll.jitter.hours=1").segment_jitter_ms, 3_600_000);
        assert!(resolve(&[], "write.caching.default=true").write_caching);
        assert!(!resolve(&[("write.caching", "false")], "write.caching.default=true").write_caching);
    }

    #[test]
    fn settings_without_effect_are_named() {
        let names = |own: &[(&str, &str)], replicas| {
            let settings = resolve(own, "log.cleanup.policy=delete").without_effect(replicas);
            settings.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let unclean = [("unclean.leader.election.enable", "true")];
        assert_eq!(names(&unclean, 3), ["unclean.leader.election.enable=true"]);
        assert!(names(&unclean, 1).is_empty() && names(&[], 3).is_empty());
        let cached = [("cleanup.policy", "compact"), ("write.caching", "true")];
        assert_eq!(names(&cached, 3), ["cleanup.policy=compact"]);
        assert!(names(&cached, 1).is_empty());
        let level = [("compression.type", "lz4"), ("compression.lz4.level", "12")];
        assert_eq!(names(&level, 1), ["compression.lz4.level"]);
        assert!(names(&level[..1], 1).is_empty() && names(&level[1..], 1).is_empty());
        let by_default = resolve(&[], "unclean.leader.election.enable=true").without_effect(3);
        assert_eq!(by_default.len(), 1);
    }

    #[test]
    fn codecs_come_with_their_level() {
        let codec = |own: &[(&str, &str)]| resolve(own, "compression.zstd.level=5").compression_type;
        assert_eq!(codec(&[("compression.type", "zstd")]), CompressionType::Zstd(5));
        assert_eq!(codec(&[("compression.type", "gzip")]), CompressionType::Gzip(None));
        let level = [("compression.type", "gzip"), ("compression.gzip.level", "6")];
        assert_eq!(codec(&level), CompressionType::Gzip(Some(6)));
        assert_eq!(codec(&[("compression.type", "lz4")]), CompressionType::Lz4);
    }
}
