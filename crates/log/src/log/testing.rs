//! A log under test: opened, fed, read back, and left in all the ways in which a log can be left.

use crate::dir::{LogDir, NodeIdentity};
use crate::storage::{RealStorage, Storage};
use crate::{
    AppendError, Appended, Log, LogConfig, LogError, Origin, PartitionIdentity, ReadBound, ReadPlan,
    Recovery, prepare,
};
use mainstem_records::{Batch, BatchBuilder, BatchOptions, LeaderEpoch, ProducerFields, Scratch};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) const WALL_MS: i64 = 1_700_000_000_000;
pub(crate) const TOPIC_ID: [u8; 16] = [7; 16];

/// The records of one batch.
#[derive(Debug, Clone)]
pub(crate) struct TestBatch {
    pub(crate) values: Vec<Vec<u8>>,
    pub(crate) timestamp: i64,
    /// Id, epoch, first sequence number.
    pub(crate) producer: Option<(i64, i16, i32)>,
}

impl TestBatch {
    pub(crate) fn of(values: &[&str]) -> TestBatch {
        let values = values.iter().map(|value| value.as_bytes().to_vec()).collect();
        TestBatch { values, timestamp: WALL_MS, producer: None }
    }

    pub(crate) fn at(self, timestamp: i64) -> TestBatch {
        TestBatch { timestamp, ..self }
    }

    pub(crate) fn by(self, id: i64, epoch: i16, sequence: i32) -> TestBatch {
        TestBatch { producer: Some((id, epoch, sequence)), ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut options = BatchOptions::default();
        if let Some((producer_id, producer_epoch, base_sequence)) = self.producer {
            options.producer = ProducerFields { producer_id, producer_epoch, base_sequence };
        }
        let mut builder = BatchBuilder::new(options);
        for value in &self.values {
            builder.append(self.timestamp, None, Some(value), &[]).expect("a small record");
        }
        builder.build().expect("a small batch")
    }
}

/// A directory in which a test opens logs.
pub(crate) struct Bench {
    _temporary: Option<tempfile::TempDir>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) path: PathBuf,
    pub(crate) config: LogConfig,
    pub(crate) mono_ms: u64,
    /// The log is opened as that of a replica.
    pub(crate) is_replica: bool,
}

/// A small segment, so that tests see many.
pub(crate) fn small_segments() -> LogConfig {
    LogConfig { segment_bytes: 2000, index_interval_bytes: 200, ..LogConfig::default() }
}

impl Bench {
    pub(crate) fn real(config: LogConfig) -> Bench {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let path = temporary.path().join("data");
        let storage = Arc::new(RealStorage);
        Bench { _temporary: Some(temporary), storage, path, config, mono_ms: 1000, is_replica: false }
    }

    pub(crate) fn with_storage(storage: Arc<dyn Storage>, config: LogConfig) -> Bench {
        let path = PathBuf::from("/data");
        Bench { _temporary: None, storage, path, config, mono_ms: 1000, is_replica: false }
    }

    pub(crate) fn dir(&self, boot: &str) -> Arc<LogDir> {
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        LogDir::open(self.storage.clone(), &self.path, &identity, boot).expect("a log directory")
    }

    pub(crate) fn try_open(&self, dir: &Arc<LogDir>) -> Result<(Log, Recovery), LogError> {
        let identity = PartitionIdentity { topic: "t".into(), topic_id: TOPIC_ID, partition: 0 };
        let open = if self.is_replica { Log::open_replica } else { Log::open };
        let opened = open(dir, &identity, Arc::new(self.config.clone()), self.mono_ms)?;
        dir.recovered().map_err(LogError::io("note the recovery in", dir.path()))?;
        Ok(opened)
    }

    /// Opens the one log under a boot.
    pub(crate) fn open(&self, boot: &str) -> (Log, Recovery) {
        self.try_open(&self.dir(boot)).expect("the log opens")
    }

    /// Closes in order.
    pub(crate) fn stop_clean(&self, log: Log) {
        let dir = log.dir().clone();
        log.close().expect("the log closes");
        assert!(dir.stop_clean().expect("the directory closes"));
    }

    pub(crate) fn append(&self, log: &mut Log, batch: &TestBatch) -> Result<Appended, AppendError> {
        self.append_under(log, batch, 0)
    }

    pub(crate) fn append_under(
        &self,
        log: &mut Log,
        batch: &TestBatch,
        leader_epoch: i32,
    ) -> Result<Appended, AppendError> {
        let (bytes, mut out) = (batch.bytes(), Vec::new());
        let config = log.config().clone();
        let prepared = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut Scratch::new(), &mut out)?;
        log.append(&prepared, LeaderEpoch::new(leader_epoch), self.mono_ms)
    }

    /// Appends one record a batch, with the number in its value.
    pub(crate) fn append_numbers(&self, log: &mut Log, numbers: std::ops::Range<i64>) {
        for number in numbers {
            let value = format!("value {number:060}");
            let appended = self.append(log, &TestBatch::of(&[&value])).expect("an append");
            assert_eq!(appended.base_offset, number);
        }
    }

    /// Reads all records of the log from its start, and checks them for gaps.
    pub(crate) fn read_all(&self, log: &Log) -> Vec<(i64, Vec<u8>)> {
        read_from(log, log.ends().log_start)
    }
}

/// The seeds of a simulation, each said when its turn comes: `MAINSTEM_SIM_SEED` alone, or `MAINSTEM_SIM_RUNS` of them.
pub(crate) fn seeds(runs: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, runs) = match number("MAINSTEM_SIM_SEED") {
        Some(seed) => (seed, 1),
        None => (0, number("MAINSTEM_SIM_RUNS").unwrap_or(runs)),
    };
    (first..first + runs).inspect(|seed| println!("MAINSTEM_SIM_SEED={seed}"))
}

/// Syncs what is unsynced.
pub(crate) fn flush(log: &mut Log) {
    let work = log.flush_work();
    for file in &work.files {
        file.sync_data().expect("a sync");
    }
    for dir in &work.directories {
        log.dir().storage().sync_dir(dir).expect("a sync");
    }
    log.flushed(work.upto);
}

/// The range that a plan comes to, however long that takes.
pub(crate) fn resolve(plan: ReadPlan) -> Option<crate::FileRange> {
    match plan {
        ReadPlan::Empty => None,
        ReadPlan::Range(range) => Some(range),
        ReadPlan::Later(pending) => resolve(pending.resolve().expect("a read")),
    }
}

/// Records from an offset to the high watermark, read in small pieces as a consumer does.
pub(crate) fn read_from(log: &Log, from: i64) -> Vec<(i64, Vec<u8>)> {
    let (mut next, mut records) = (from, Vec::new());
    while next < log.ends().high_watermark {
        let plan = log.read(next, ReadBound::HighWatermark, 500, true).expect("a readable offset");
        let Some(range) = resolve(plan) else { panic!("nothing at {next} in {log:?}") };
        let bytes = range.to_vec().expect("a read");
        let before = next;
        next = decode(&bytes, next, &mut records);
        assert!(next > before, "no whole batch at {before}");
    }
    records
}

fn decode(mut bytes: &[u8], mut next: i64, records: &mut Vec<(i64, Vec<u8>)>) -> i64 {
    while let Ok((batch, rest)) = Batch::split_first(bytes) {
        assert!(batch.verify_crc(), "the checksum of the batch at {}", batch.base_offset());
        let mut buffer = Vec::new();
        for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
            let record = record.expect("a record");
            if record.offset >= next {
                assert_eq!(record.offset, next, "no gap");
                records.push((record.offset, record.value.unwrap_or_default().to_vec()));
                next = record.offset + 1;
            }
        }
        bytes = rest;
    }
    next
}
