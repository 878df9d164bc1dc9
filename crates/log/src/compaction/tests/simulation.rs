//! Random writes, compactions, and crashes at any step, against a model that knows every record ever appended.
//!
//! `MAINSTEM_SIM_SEED` repeats one run, `MAINSTEM_SIM_RUNS` sets how many there are (default 60, of 60 steps each).

use super::world::{Keyed, KeyedBatch, Watched, append, assess, compact, compacted, read_all};
use crate::compaction::CleanError;
use crate::log::testing::{Bench, WALL_MS, seeds};
use crate::sim::{Random, SimStorage};
use crate::{Log, LogConfig};
use mainstem_records::{Compression, ProducerFields, ProducerId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

const STEPS: usize = 60;
const KEYS: u64 = 12;

/// The state that the log must have.
#[derive(Debug, Default)]
struct Model {
    /// By offset.
    records: Vec<Keyed>,
    /// By producer: the sequence number behind its last record, and that record's offset.
    producers: BTreeMap<i64, Vec<(i32, i64)>>,
    /// Records before it are on disk.
    durable: i64,
}

impl Model {
    fn cut(&mut self, end: i64) {
        self.records.truncate(end as usize);
        // Which batch of a producer is the last one then may not be known any more: five are remembered.
        self.producers.retain(|_, batches| batches.last().is_none_or(|(_, last)| *last < end));
        self.durable = self.durable.min(end);
    }

    fn last_of(&self, key: &[u8], before: i64) -> Option<i64> {
        self.records[..before as usize].iter().rposition(|record| record.key == key).map(|at| at as i64)
    }
}

struct Simulation {
    random: Random,
    storage: SimStorage,
    bench: Bench,
    boot: u64,
    log: Option<Log>,
    model: Model,
    wall_ms: i64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let storage = SimStorage::new();
        let config = LogConfig { file_delete_delay_ms: 50, ..compacted() };
        let bench = Bench::with_storage(Arc::new(storage.clone()), config);
        let (random, model) = (Random::new(seed), Model::default());
        let mut this = Simulation { random, storage, bench, boot: 0, log: None, model, wall_ms: WALL_MS };
        this.start();
        this
    }

    /// With one seed the story is printed, for the search of a cause.
    fn trace(&self, what: &str) {
        if std::env::var_os("MAINSTEM_SIM_SEED").is_some() {
            println!("{}", self.storage.describe());
            println!("{what}: {:?}, durable {}", self.log.as_ref().map(Log::ends), self.model.durable);
        }
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("the log is open")
    }

    fn start(&mut self) {
        let dir = self.bench.dir(&self.boot.to_string());
        let (log, _) = self.bench.try_open(&dir).expect("the log opens after any crash");
        self.log = Some(log);
    }

    fn step(&mut self) {
        self.bench.mono_ms += self.random.below(40);
        self.wall_ms += self.random.below(400) as i64;
        let action = self.random.below(100);
        self.trace(&format!("action {action}"));
        match action {
            0..60 => self.append(),
            60..72 => self.flush(),
            72..84 => self.compact(),
            84..88 => self.maintain(),
            88..91 => self.stop_clean(),
            91..94 => self.crash(),
            _ => self.compact_midway(),
        }
        self.check();
    }

    fn append(&mut self) {
        let count = 1 + self.random.below(4);
        let records: Vec<_> = (0..count).map(|_| self.record()).collect();
        let end = self.log().ends().log_end;
        let last = end + count as i64 - 1;
        let codec = Compression::ALL[self.random.below(5) as usize];
        let compression = self.random.chance(40).then_some(codec);
        let producer = self.random.below(4) as i64;
        let known = self.log().producer_state().get(ProducerId::new(producer));
        let sequence = known.map_or(0, |known| known.last_sequence() + 1);
        let producer = (producer > 0).then_some(ProducerFields {
            producer_id: producer,
            producer_epoch: 0,
            base_sequence: sequence,
        });
        let batch = KeyedBatch { records: records.clone(), compression, producer };
        let appended = append(&self.bench, self.log.as_mut().expect("open"), &batch);
        assert_eq!(appended.expect("an append").last_offset, last);
        self.model.records.extend(records);
        if let Some(producer) = producer {
            let batches = self.model.producers.entry(producer.producer_id).or_default();
            batches.push((sequence + count as i32, last));
        }
    }

    fn record(&mut self) -> Keyed {
        let value = vec![b'v'; self.random.below(80) as usize];
        Keyed {
            key: format!("k{}", self.random.below(KEYS)).into_bytes(),
            value: self.random.chance(75).then_some(value),
            timestamp: WALL_MS + self.random.below(1000) as i64,
        }
    }

    fn flush(&mut self) {
        let work = self.log().flush_work();
        let storage = self.bench.storage.clone();
        work.files.iter().for_each(|file| file.sync_data().expect("a sync"));
        work.directories.iter().for_each(|dir| storage.sync_dir(dir).expect("a sync"));
        self.log().flushed(work.upto);
        self.model.durable = self.log().ends().durable_end;
    }

    fn maintain(&mut self) {
        let (wall_ms, mono_ms) = (self.wall_ms, self.bench.mono_ms);
        self.log().maintain(wall_ms, mono_ms).expect("maintained");
        self.log().dir().checkpoints().recovery_point.write().expect("a checkpoint");
    }

    /// Compacts, with a map that holds some keys or all; a reader beside it sees nothing that is wrong.
    fn compact_with(&mut self) -> Result<(), CleanError> {
        let keys_max = if self.random.chance(50) { 1 + self.random.below(5) as usize } else { 100 };
        let log = self.log.take().expect("open");
        let model = &self.model;
        let looked = Mutex::new(0);
        let watch = |log: &mut Log| {
            *looked.lock() += 1;
            if *looked.lock() % 3 == 0 {
                check_records(log, model);
            }
        };
        let access = Watched { log: Mutex::new(Some(log)), watch };
        let result = compact(&access, keys_max, self.wall_ms, self.bench.mono_ms);
        self.log = access.log.lock().take();
        result.map(drop)
    }

    fn compact(&mut self) {
        let wall_ms = self.wall_ms;
        let bound = assess(self.log(), wall_ms).first_uncleanable;
        self.compact_with().expect("a compaction");
        assert_eq!(assess(self.log(), wall_ms).cleanable_bytes, 0);
        for (offset, record) in read_all(self.log(), 0).iter().filter(|(offset, _)| *offset < bound) {
            if let Some(record) = record {
                assert_eq!(self.model.last_of(&record.key, bound), Some(*offset), "{record:?} is superseded");
            }
        }
    }

    /// The machine stops somewhere within a compaction.
    fn compact_midway(&mut self) {
        self.storage.stop_after(Some(self.random.below(60)));
        // It may have come to its end.
        let _ = self.compact_with();
        self.crash();
    }

    fn stop_clean(&mut self) {
        let end = self.log().ends().log_end;
        self.bench.stop_clean(self.log.take().expect("open"));
        self.model.durable = end;
        if self.random.chance(50) {
            self.storage.power_cut(&mut self.random);
            self.boot += 1;
        }
        self.start();
        assert_eq!(self.log().ends().log_end, end);
    }

    /// The process dies or the power goes, sometimes again while the log recovers.
    fn crash(&mut self) {
        self.log = None;
        let mut power = self.random.chance(60);
        self.fall(power);
        if self.random.chance(40) {
            self.storage.stop_after(Some(self.random.below(15)));
            let path = self.bench.path.clone();
            let identity = crate::dir::NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
            let boot = self.boot.to_string();
            if let Ok(dir) = crate::dir::LogDir::open(self.bench.storage.clone(), &path, &identity, &boot) {
                let _ = self.bench.try_open(&dir);
            }
            self.trace(&format!("crash, power {power}"));
            power = self.random.chance(50);
            self.fall(power);
        }
        self.trace(&format!("crash, power {power}"));
        self.start();
        let end = self.log().ends().log_end;
        assert!(end >= self.model.durable, "{end}: lost what was durable up to {}", self.model.durable);
        assert!(end <= self.model.records.len() as i64);
        self.model.cut(end);
    }

    fn fall(&mut self, power: bool) {
        if power {
            self.storage.power_cut(&mut self.random);
            self.boot += 1;
        } else {
            self.storage.kill();
        }
        self.storage.stop_after(None);
    }

    fn check(&mut self) {
        self.storage.set_cold(self.random.chance(20));
        let log = self.log.as_ref().expect("open");
        log.check();
        check_records(log, &self.model);
        let state = log.producer_state();
        for (producer, batches) in &self.model.producers {
            let Some((sequence, offset)) = batches.last() else { continue };
            let known =
                state.get(ProducerId::new(*producer)).and_then(|known| known.batches().last()).copied();
            let known = known.map(|batch| (batch.last_sequence + 1, batch.last_offset));
            assert_eq!(known, Some((*sequence, *offset)), "producer {producer}");
        }
        self.storage.set_cold(false);
    }
}

/// Checks that each record is the one that was appended, and that the last record of each key is in the log. If the last
/// record is a tombstone, it may be gone, and then the records that it deleted are gone too.
fn check_records(log: &Log, model: &Model) {
    let end = log.ends().log_end;
    let seen: BTreeMap<i64, Keyed> =
        read_all(log, 0).into_iter().filter_map(|(offset, record)| Some((offset, record?))).collect();
    for (offset, record) in &seen {
        assert!(model.records[*offset as usize] == *record, "another record at offset {offset}");
    }
    for key in 0..KEYS {
        let key = format!("k{key}").into_bytes();
        let Some(last) = model.last_of(&key, end) else { continue };
        if seen.contains_key(&last) {
            continue;
        }
        assert!(model.records[last as usize].value.is_none(), "the last record of a key is lost: {last}");
        let older = seen.iter().find(|(_, record)| record.key == key);
        assert!(older.is_none(), "{older:?} is back, its tombstone at {last} is not");
    }
}

#[test]
fn no_last_record_is_lost_and_nothing_deleted_comes_back() {
    for seed in seeds(60) {
        let mut simulation = Simulation::new(seed);
        for _ in 0..STEPS {
            simulation.step();
        }
    }
}
