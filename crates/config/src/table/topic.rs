//! Topic keys: set per topic, with a broker key behind each as its default.

use super::super::key::ConfigType::*;
use super::super::key::{ConfigKey, Fallback, topic};
use super::reason;

/// Every topic key of Kafka 4.3, and ours.
#[rustfmt::skip] // a row is its facts, then what the key means
pub(super) const TOPIC: &[ConfigKey] = &[
    topic("cleanup.policy", List).default("delete").list_of(&["compact", "delete"])
        .falls_back(&[Fallback::same("log.cleanup.policy")])
        .doc("What happens to old segments: `delete` removes them by retention.ms and retention.bytes, \
             `compact` keeps the last value of each key, both may be given, and an empty list keeps \
             everything. With `compact` every record needs a key."),
    topic("compression.gzip.level", Int).default("-1").gzip_level()
        .falls_back(&[Fallback::same("compression.gzip.level")])
        .doc("Level for `compression.type=gzip`; -1 is the codec's own default."),
    topic("compression.lz4.level", Int).default("9").between(1, 17).named_only(reason::LZ4)
        .falls_back(&[Fallback::same("compression.lz4.level")])
        .doc("Level for `compression.type=lz4`."),
    topic("compression.type", Str).default("producer")
        .one_of(&["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"])
        .falls_back(&[Fallback::same("compression.type")])
        .doc("Codec in which batches are stored. `producer` keeps the bytes that the client sent; \
             `uncompressed` or a codec re-encodes batches that differ."),
    topic("compression.zstd.level", Int).default("3").between(-131072, 22)
        .falls_back(&[Fallback::same("compression.zstd.level")])
        .doc("Level for `compression.type=zstd`."),
    topic("delete.retention.ms", Long).default("86400000").at_least(0)
        .falls_back(&[Fallback::same("log.cleaner.delete.retention.ms")])
        .doc("Milliseconds for which a tombstone of a compacted topic stays readable."),
    topic("file.delete.delay.ms", Long).default("60000").at_least(0)
        .falls_back(&[Fallback::same("log.segment.delete.delay.ms")])
        .doc("Milliseconds between renaming a segment's files to `.deleted` and removing them."),
    topic("flush.messages", Long).default("9223372036854775807").at_least(1)
        .falls_back(&[Fallback::same("log.flush.interval.messages")])
        .doc("Records after which the log is synced. 1 makes acks=1 wait for the disk too. acks=all waits \
             for it in any case unless write.caching is true."),
    topic("flush.ms", Long).default("9223372036854775807").at_least(0)
        .falls_back(&[Fallback::same("log.flush.interval.ms")])
        .doc("Milliseconds after which appended records are synced at the latest."),
    topic("follower.replication.throttled.replicas", List).default("").throttled_replicas()
        .doc("Replicas whose fetches are throttled, as `partition:broker` pairs or `*`."),
    topic("index.interval.bytes", Int).default("4096").at_least(0)
        .falls_back(&[Fallback::same("log.index.interval.bytes")])
        .doc("Bytes of records between two entries of the offset index."),
    topic("internal.segment.bytes", Int).internal()
        .doc("Segment size in bytes below the bound of segment.bytes, for tests."),
    topic("leader.replication.throttled.replicas", List).default("").throttled_replicas()
        .doc("Replicas whose replication is throttled at the leader, as `partition:broker` pairs or `*`."),
    topic("local.retention.bytes", Long).default("-2").at_least(-2)
        .falls_back(&[Fallback::same("log.local.retention.bytes")]).named_only(reason::REMOTE)
        .doc("Bytes of a tiered partition kept on local disk; -2 means retention.bytes."),
    topic("local.retention.ms", Long).default("-2").at_least(-2)
        .falls_back(&[Fallback::same("log.local.retention.ms")]).named_only(reason::REMOTE)
        .doc("Milliseconds for which segments of a tiered topic stay on local disk; -2 means \
             retention.ms."),
    topic("max.compaction.lag.ms", Long).default("9223372036854775807").at_least(1)
        .falls_back(&[Fallback::same("log.cleaner.max.compaction.lag.ms")])
        .doc("Milliseconds after which a record of a compacted topic must be considered for compaction."),
    topic("max.message.bytes", Int).default("1048588").at_least(0)
        .falls_back(&[Fallback::same("message.max.bytes")])
        .doc("Largest record batch in bytes, as it is sent and stored (after compression)."),
    topic("message.timestamp.after.max.ms", Long).default("3600000").at_least(0)
        .falls_back(&[Fallback::same("log.message.timestamp.after.max.ms")])
        .doc("Milliseconds by which a record's create time may be ahead of this node's clock."),
    topic("message.timestamp.before.max.ms", Long).default("9223372036854775807").at_least(0)
        .falls_back(&[Fallback::same("log.message.timestamp.before.max.ms")])
        .doc("Milliseconds by which a record's create time may be behind this node's clock."),
    topic("message.timestamp.type", Str).default("CreateTime").one_of(&["CreateTime", "LogAppendTime"])
        .falls_back(&[Fallback::same("log.message.timestamp.type")])
        .doc("`CreateTime` keeps the producer's timestamps, `LogAppendTime` replaces them by the time of \
             the append."),
    topic("min.cleanable.dirty.ratio", Double).default("0.5").between_f64(0.0, 1.0)
        .falls_back(&[Fallback::same("log.cleaner.min.cleanable.ratio")])
        .doc("Share of not yet compacted bytes at which a log is compacted."),
    topic("min.compaction.lag.ms", Long).default("0").at_least(0)
        .falls_back(&[Fallback::same("log.cleaner.min.compaction.lag.ms")])
        .doc("Milliseconds for which a record of a compacted topic is left alone."),
    topic("min.insync.replicas", Int).default("1").at_least(1)
        .falls_back(&[Fallback::same("min.insync.replicas")])
        .doc("In-sync replicas that acks=all needs. Capped by the number of replicas that the topic has, so \
             that a single node serves topics that were made for three."),
    topic("preallocate", Bool).default("false").falls_back(&[Fallback::same("log.preallocate")])
        .doc("Allocate a segment's bytes on disk when it is created."),
    topic("remote.log.copy.disable", Bool).default("false").named_only(reason::REMOTE)
        .doc("Stop copying segments of this topic to tiered storage."),
    topic("remote.log.delete.on.disable", Bool).default("false").named_only(reason::REMOTE)
        .doc("Delete the tiered segments when tiered storage is switched off for this topic."),
    topic("remote.storage.enable", Bool).default("false").named_only(reason::REMOTE)
        .doc("Keep segments of this topic in tiered storage. Only `false` is accepted."),
    topic("retention.bytes", Long).default("-1").falls_back(&[Fallback::same("log.retention.bytes")])
        .doc("Bytes that a partition may hold before its oldest segments are deleted; negative is without \
             limit."),
    topic("retention.ms", Long).default("604800000").at_least(-1)
        .falls_back(&[Fallback::same("log.retention.ms")])
        .doc("Milliseconds for which records are kept before their segment is deleted; -1 is without \
             limit."),
    topic("segment.bytes", Int).default("1073741824").at_least(1048576)
        .falls_back(&[Fallback::same("log.segment.bytes")])
        .doc("Size in bytes at which a segment is closed and the next one begun."),
    topic("segment.index.bytes", Int).default("10485760").at_least(4)
        .falls_back(&[Fallback::same("log.index.size.max.bytes")])
        .doc("Largest size in bytes of an index file; a full index closes its segment."),
    topic("segment.jitter.ms", Long).default("0").at_least(0)
        .falls_back(&[Fallback::same("log.roll.jitter.ms")])
        .doc("Milliseconds, at most, subtracted at random from segment.ms so that segments do not roll all \
             at once."),
    topic("segment.ms", Long).default("604800000").at_least(1).falls_back(&[Fallback::same("log.roll.ms")])
        .doc("Milliseconds after which a segment is closed even if it is not full."),
    topic("unclean.leader.election.enable", Bool).default("false")
        .falls_back(&[Fallback::same("unclean.leader.election.enable")]).named_only(reason::UNCLEAN)
        .doc("Let a replica outside the in-sync set lead as a last resort."),
    topic("write.caching", Bool).default("false").falls_back(&[Fallback::same("write.caching.default")])
        .ours()
        .doc("true: acks=all is answered from the page cache of a majority of replicas, as Kafka does. \
             false: only when the batch is on disk (fdatasync, shared between all that wait). It counts when it is altered; \
             what was answered from page caches is then synced at once. Replicated topics with it are not compacted. \
             Internal topics that are created for several replicas have false, whatever the default."),
];
