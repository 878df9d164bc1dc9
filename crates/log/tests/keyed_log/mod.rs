//! A large log of keyed records, for measurements of compaction.

use mainstem_log::compaction::{CleanerOptions, LogAccess, Task};
use mainstem_log::dir::{LogDir, NodeIdentity};
use mainstem_log::storage::RealStorage;
use mainstem_log::{Log, LogConfig, Origin, PartitionIdentity, prepare};
use mainstem_records::{BatchBuilder, BatchOptions, LeaderEpoch, Scratch};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

pub(crate) const WALL_MS: i64 = 1_700_000_000_000;
const RECORDS_PER_BATCH: u64 = 16;

/// The default options of a broker.
pub(crate) const OPTIONS: CleanerOptions =
    CleanerOptions { dedupe_bytes: 24 << 20, load_factor: 0.9, io_bytes: 256 << 10, secret: [5; 16] };

/// A log behind a lock, as a broker has it.
pub(crate) struct Shared(pub(crate) Mutex<Log>);

impl LogAccess for Shared {
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T> {
        Some(act(&mut self.0.lock()))
    }
}

/// The contents of a log that a test writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Content {
    pub(crate) records: u64,
    pub(crate) keys: u64,
    pub(crate) record_bytes: usize,
}

impl Content {
    /// The key of a record.
    pub(crate) fn key_of(&self, record: u64) -> u64 {
        mix(record) % self.keys
    }
}

/// A number that looks random, from another.
fn mix(number: u64) -> u64 {
    let mut x = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^ (x >> 31)
}

/// Opens the one log of a directory.
pub(crate) fn open(home: &Path, segment_bytes: u32) -> Log {
    let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
    let dir = LogDir::open(Arc::new(RealStorage), home, &identity, "boot").unwrap();
    let config = LogConfig { segment_bytes, compact: true, ..LogConfig::default() };
    let partition = PartitionIdentity { topic: "t".into(), topic_id: [7; 16], partition: 0 };
    Log::open(&dir, &partition, Arc::new(config), 0).unwrap().0
}

/// Appends the content, each value beginning with its record's number, and syncs it.
pub(crate) fn fill(log: &mut Log, content: Content) {
    let (config, mut scratch, mut out) = (log.config().clone(), Scratch::new(), Vec::new());
    let mut value = vec![b'.'; content.record_bytes];
    let mut builder = BatchBuilder::new(BatchOptions::default());
    let mut bytes = Vec::new();
    for first in (0..content.records).step_by(RECORDS_PER_BATCH as usize) {
        for record in first..first + RECORDS_PER_BATCH {
            value[..8].copy_from_slice(&record.to_be_bytes());
            let key = content.key_of(record).to_be_bytes();
            builder.append(WALL_MS, Some(&key), Some(&value), &[]).unwrap();
        }
        bytes.clear();
        builder.finish(&mut bytes).unwrap();
        let batch = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut scratch, &mut out).unwrap();
        log.append(&batch, LeaderEpoch::ZERO, 0).unwrap();
    }
    flush(log);
}

fn flush(log: &mut Log) {
    let work = log.flush_work();
    work.files.iter().for_each(|file| file.sync_data().unwrap());
    work.directories.iter().for_each(|dir| log.dir().storage().sync_dir(dir).unwrap());
    log.flushed(work.upto);
}

/// The task of compacting all that is dirty.
pub(crate) fn task(log: &Log) -> Task {
    let dirty = log.compaction_view(i64::MAX).unwrap().assess(WALL_MS).unwrap();
    let (first_dirty, first_uncleanable) = (dirty.first_dirty, dirty.first_uncleanable);
    Task { first_dirty, first_uncleanable, wall_ms: WALL_MS, mono_ms: 0 }
}
