//! A keyed log, a cleaner, and what everybody else sees of the log meanwhile.

use crate::compaction::{CleanError, Cleaned, Cleaner, CleanerOptions, Dirty, LogAccess, Task};
use crate::log::testing::{Bench, WALL_MS, resolve};
use crate::{Appended, Log, LogConfig, Origin, ReadBound, prepare};
use mainstem_records::{
    Batch, BatchBuilder, BatchOptions, Compression, LeaderEpoch, ProducerFields, Scratch,
};
use parking_lot::Mutex;
use std::ops::ControlFlow;

/// A record as it was appended, or read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Keyed {
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) timestamp: i64,
}

/// A record, or `None` for a batch without any, at its offset (of an empty batch: the last one).
pub(super) type Seen = (i64, Option<Keyed>);

/// Records that are appended as one batch.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyedBatch {
    pub(super) records: Vec<Keyed>,
    pub(super) compression: Option<Compression>,
    pub(super) producer: Option<ProducerFields>,
}

impl KeyedBatch {
    fn bytes(&self) -> Vec<u8> {
        let mut builder = BatchBuilder::new(BatchOptions {
            compression: self.compression.unwrap_or(Compression::None),
            producer: self.producer.unwrap_or_default(),
            ..BatchOptions::default()
        });
        for record in &self.records {
            builder.append(record.timestamp, Some(&record.key), record.value.as_deref(), &[]).unwrap();
        }
        builder.build().unwrap()
    }
}

/// Segments of a few batches, compacted whenever anything is dirty.
pub(super) fn compacted() -> LogConfig {
    LogConfig {
        segment_bytes: 700,
        index_interval_bytes: 150,
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        delete_retention_ms: 1000,
        retention_ms: None,
        ..LogConfig::default()
    }
}

pub(super) fn append(
    bench: &Bench,
    log: &mut Log,
    batch: &KeyedBatch,
) -> Result<Appended, crate::AppendError> {
    let (bytes, mut out) = (batch.bytes(), Vec::new());
    let config = log.config().clone();
    let prepared =
        prepare(&bytes, &config, WALL_MS + 1_000_000, Origin::Client, &mut Scratch::new(), &mut out)?;
    log.append(&prepared, LeaderEpoch::ZERO, bench.mono_ms)
}

/// Everything in the log from an offset on, read in small pieces.
pub(super) fn read_all(log: &Log, from: i64) -> Vec<Seen> {
    let (mut next, mut seen) = (from, Vec::new());
    while next < log.ends().log_end {
        let plan = log.read(next, ReadBound::LogEnd, 300, true).expect("a readable offset");
        let Some(range) = resolve(plan) else { break };
        let before = next;
        next = decode(&range.to_vec().expect("a read"), next, &mut seen);
        assert!(next > before, "no whole batch at {before}");
    }
    seen
}

pub(super) fn decode(mut bytes: &[u8], mut next: i64, seen: &mut Vec<Seen>) -> i64 {
    while let Ok((batch, rest)) = Batch::split_first(bytes) {
        assert!(batch.verify_crc() && batch.last_offset() >= next, "the batch at {}", batch.base_offset());
        let mut buffer = Vec::new();
        let records = batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records");
        if batch.record_count() == 0 {
            seen.push((batch.last_offset(), None));
        }
        for record in records {
            let record = record.expect("a record");
            let keyed = Keyed {
                key: record.key.unwrap_or_default().to_vec(),
                value: record.value.map(<[u8]>::to_vec),
                timestamp: record.timestamp,
            };
            if record.offset >= next {
                seen.push((record.offset, Some(keyed)));
            }
        }
        next = batch.next_offset();
        bytes = rest;
    }
    next
}

/// A log that is looked at after every step of a compaction.
pub(super) struct Watched<F> {
    pub(super) log: Mutex<Option<Log>>,
    pub(super) watch: F,
}

impl<F: Fn(&mut Log)> LogAccess for Watched<F> {
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T> {
        let mut log = self.log.lock();
        let log = log.as_mut()?;
        let result = act(log);
        (self.watch)(log);
        Some(result)
    }
}

pub(super) fn cleaner(keys_max: usize) -> Cleaner {
    let dedupe_bytes = (keys_max + 1) * 24;
    Cleaner::new(CleanerOptions { dedupe_bytes, load_factor: 0.95, io_bytes: 256, secret: [9; 16] })
}

pub(super) fn assess(log: &Log, wall_ms: i64) -> Dirty {
    log.compaction_view(i64::MAX).expect("a compacted log").assess(wall_ms).expect("readable segments")
}

/// Compacts what may be, with a map for so many keys.
pub(super) fn compact<A: LogAccess>(
    access: &A,
    keys_max: usize,
    wall_ms: i64,
    mono_ms: u64,
) -> Result<Cleaned, CleanError> {
    let view = access.with_log(|log| log.compaction_view(i64::MAX)).flatten().ok_or(CleanError::Changed)?;
    let dirty = view.assess(wall_ms)?;
    let (first_dirty, first_uncleanable) = (dirty.first_dirty, dirty.first_uncleanable);
    let task = Task { first_dirty, first_uncleanable, wall_ms, mono_ms };
    cleaner(keys_max).clean(access, &task, &mut |_| ControlFlow::Continue(()))
}
