//! The topic configuration of a log, typed. The defaults are Kafka 4.3's.

use mainstem_records::{Compression, TimestampType};
use std::time::Duration;

const DAY_MS: i64 = Duration::from_secs(24 * 60 * 60).as_millis() as i64;

/// The configuration of one partition's log. Names are those of the topic configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct LogConfig {
    /// `segment.bytes`: a segment is rolled before it grows beyond this, at most `i32::MAX`.
    pub segment_bytes: u32,
    /// `segment.ms`: a segment is rolled when its first record is so old.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: by how much less, at most, so that partitions do not roll together.
    pub segment_jitter_ms: i64,
    /// `segment.index.bytes`: largest size of an index file.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`: bytes between two index entries.
    pub index_interval_bytes: u32,
    /// `retention.bytes`; `None`: unlimited.
    pub retention_bytes: Option<u64>,
    /// `retention.ms`; `None`: unlimited.
    pub retention_ms: Option<i64>,
    /// `max.message.bytes`: largest batch, header included.
    pub max_message_bytes: u32,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// `compression.type` and the level of that codec (`None`: its default); `None`: `producer`, the batch stays as
    /// it was sent.
    pub compression: Option<(Compression, Option<i32>)>,
    /// `flush.messages`: a sync is due after this many records; `i64::MAX` leaves it to `acks=all` and the system.
    pub flush_messages: i64,
    /// `flush.ms`: a sync is due when the oldest unsynced record is so old; `i64::MAX`: never.
    pub flush_ms: i64,
    /// `write.caching` (ours): `acks=all` waits for the page cache only.
    pub write_caching: bool,
    /// `preallocate`: blocks of a new segment are reserved.
    pub preallocate: bool,
    /// `file.delete.delay.ms`: how long the files of a deleted segment are kept.
    pub file_delete_delay_ms: u64,
    /// `cleanup.policy` contains `delete`.
    pub delete: bool,
    /// `cleanup.policy` contains `compact`: every record needs a key.
    pub compact: bool,
    /// `min.cleanable.dirty.ratio`: a log is compacted when this part of it is dirty, from 0 to 1.
    pub min_cleanable_dirty_ratio: f64,
    /// `min.compaction.lag.ms`: a record is not compacted before this age.
    pub min_compaction_lag_ms: i64,
    /// `max.compaction.lag.ms`: a record is compacted when it is so old, whatever the dirty ratio says.
    pub max_compaction_lag_ms: i64,
    /// `delete.retention.ms`: a tombstone stays for this time after the compaction that first met it.
    pub delete_retention_ms: i64,
    /// `producer.id.expiration.ms` (the broker's): the state of an idle producer is kept for this time.
    pub producer_id_expiration_ms: u64,
    /// `transaction.partition.verification.enable` (the broker's): a transaction begins only with the coordinator's
    /// confirmation.
    pub transaction_verification: bool,
    /// To how many bytes the records of a batch may decompress.
    pub decompressed_bytes_max: usize,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            segment_bytes: 1 << 30,
            segment_ms: 7 * DAY_MS,
            segment_jitter_ms: 0,
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_bytes: None,
            retention_ms: Some(7 * DAY_MS),
            max_message_bytes: 1_048_588,
            timestamp_type: TimestampType::CreateTime,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            compression: None,
            flush_messages: i64::MAX,
            flush_ms: i64::MAX,
            write_caching: false,
            preallocate: false,
            file_delete_delay_ms: 60_000,
            delete: true,
            compact: false,
            min_cleanable_dirty_ratio: 0.5,
            min_compaction_lag_ms: 0,
            max_compaction_lag_ms: i64::MAX,
            delete_retention_ms: DAY_MS,
            producer_id_expiration_ms: DAY_MS as u64,
            transaction_verification: true,
            decompressed_bytes_max: 64 << 20,
        }
    }
}

impl LogConfig {
    /// The largest age in ms of the active segment's first record. A compacted log is rolled in time for
    /// `max.compaction.lag.ms`, because only closed segments are compacted.
    pub(crate) fn segment_ms_max(&self) -> i64 {
        match self.compact && self.max_compaction_lag_ms > 0 {
            true => self.segment_ms.min(self.max_compaction_lag_ms),
            false => self.segment_ms,
        }
    }

    /// The time in ms by which a segment that starts at `base_offset` is rolled before `segment.ms`. It is the same at each
    /// call, and differs between partitions and segments.
    pub(crate) fn jitter_ms(&self, partition_seed: u64, base_offset: i64) -> i64 {
        let bound = self.segment_jitter_ms.min(self.segment_ms_max());
        if bound <= 0 {
            return 0;
        }
        // The finaliser of splitmix64.
        let mut x = partition_seed ^ (base_offset as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % bound as u64) as i64
    }

    /// Most entries of an index whose entries have this size.
    pub(crate) fn index_entries_max(&self, entry_bytes: usize) -> u32 {
        self.segment_index_bytes / entry_bytes as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_spreads_over_partitions_and_stays_below_its_bound() {
        let config = LogConfig { segment_ms: 1000, segment_jitter_ms: 300, ..LogConfig::default() };
        let all: std::collections::BTreeSet<_> = (0..1000).map(|seed| config.jitter_ms(seed, 7)).collect();
        assert!(all.len() > 200 && all.iter().all(|jitter| (0..300).contains(jitter)), "{all:?}");
        assert_eq!(config.jitter_ms(5, 7), config.jitter_ms(5, 7), "it does not change from look to look");
        let beyond = LogConfig { segment_jitter_ms: i64::MAX, ..config };
        assert!((0..1000).all(|seed| (0..1000).contains(&beyond.jitter_ms(seed, 0))));
    }
}
