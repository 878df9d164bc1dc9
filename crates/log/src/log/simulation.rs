//! Random work, random crashes, and a model that knows what must be there afterwards.
//!
//! `MAINSTEM_SIM_SEED` repeats one run, `MAINSTEM_SIM_RUNS` sets how many there are (default 60, of 150 steps each).

use super::testing::{Bench, TestBatch, WALL_MS, read_from, seeds, small_segments};
use crate::dir::LogDir;
use crate::sim::{Random, SimStorage};
use crate::{AppendError, Log, LogConfig};
use mainstem_records::ProducerId;
use std::collections::BTreeMap;
use std::sync::Arc;

const STEPS: usize = 150;
const PRODUCERS: u64 = 3;

/// One record that was appended, or may have been.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ModelRecord {
    value: Vec<u8>,
    /// On the last record of a batch: the producer, its last sequence number, and the offset.
    batch: Option<(i64, i32, i64)>,
}

/// The state that the log must have.
#[derive(Debug, Default)]
struct Model {
    /// By offset, from 0. Records below the log start stay, because a crash may bring them back.
    records: Vec<ModelRecord>,
    /// Records before it are acknowledged as durable.
    durable: i64,
    /// The log start that is acknowledged.
    start: i64,
    /// Batches that were refused since the last power cut, and their offsets.
    refused: Vec<(i64, Vec<ModelRecord>)>,
}

struct Simulation {
    random: Random,
    storage: SimStorage,
    bench: Bench,
    boot: u64,
    dir: Option<Arc<LogDir>>,
    log: Option<Log>,
    model: Model,
    wall_ms: i64,
    crashes: usize,
    /// A truncation was interrupted: until a sync, a power cut may undo what a kill left of it.
    cut_short: bool,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let storage = SimStorage::new();
        let config = LogConfig {
            retention_bytes: Some(8000),
            retention_ms: Some(3_600_000),
            file_delete_delay_ms: 50,
            ..small_segments()
        };
        let mut bench = Bench::with_storage(Arc::new(storage.clone()), config);
        bench.is_replica = seed % 2 == 1;
        let (random, model) = (Random::new(seed), Model::default());
        let mut this = Simulation {
            random,
            storage,
            bench,
            boot: 0,
            dir: None,
            log: None,
            model,
            wall_ms: WALL_MS,
            crashes: 0,
            cut_short: false,
        };
        this.start();
        this
    }

    /// With one seed the story is printed, for the search of a cause.
    fn trace(&self, what: std::fmt::Arguments<'_>) {
        if std::env::var_os("MAINSTEM_SIM_SEED").is_some() {
            let ends =
                self.log.as_ref().map(|log| (log.ends(), log.segment_count(), log.stopped().is_some()));
            println!("{}", self.storage.describe());
            println!("{what}: {ends:?}, durable {}, start {}", self.model.durable, self.model.start);
        }
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("the log is open")
    }

    fn start(&mut self) {
        let dir = self.bench.dir(&self.boot.to_string());
        let (log, _) = self.bench.try_open(&dir).expect("the log opens after any crash");
        (self.dir, self.log) = (Some(dir), Some(log));
    }

    fn step(&mut self) {
        self.bench.mono_ms += self.random.below(40);
        let action = self.random.below(100);
        self.trace(format_args!("action {action}"));
        match action {
            0..50 => drop(self.append()),
            50..70 => self.flush(),
            70..75 => self.maintain(),
            75..79 => self.delete_records(),
            79..83 => self.truncate(),
            83..86 => self.fill_disk(),
            86..88 => self.fail_sync(),
            88..91 => self.stop_clean(),
            91..95 => self.crash(),
            _ => self.stop_midway(),
        }
        if self.log.is_some() && self.random.chance(20) {
            self.storage.set_cold(self.random.chance(30));
            self.check();
        }
    }

    /// Appends a batch; `false`: it was refused, and may be there in part.
    fn append(&mut self) -> bool {
        let count = 1 + self.random.below(3) as usize;
        let size = if self.random.chance(10) { 1200 } else { 10 + self.random.below(200) as usize };
        let mut values = Vec::new();
        for _ in 0..count {
            let mut value = vec![0; size / count + 1];
            value.fill_with(|| self.random.next_u64() as u8);
            values.push(value);
        }
        let end = self.log().ends().log_end;
        let mut batch = TestBatch { values, timestamp: WALL_MS, producer: None };
        let producer = self.random.below(PRODUCERS + 1) as i64;
        if producer > 0 {
            let known =
                self.log().producer_state().get(ProducerId::new(producer)).map(|known| known.last_sequence());
            batch.producer = Some((producer, 0, known.map_or(0, |last| last + 1)));
        }
        let stopped = self.log().stopped().is_some();
        let result = self.bench.append(self.log.as_mut().expect("open"), &batch);
        if stopped {
            assert!(matches!(result, Err(AppendError::Stopped(_))), "{result:?}");
            return false;
        }
        let last_offset = end + count as i64 - 1;
        let entry = batch.producer.map(|(id, _, first)| (id, first + count as i32 - 1, last_offset));
        self.model.records.truncate(end as usize);
        for value in batch.values {
            self.model.records.push(ModelRecord { value, batch: None });
        }
        self.model.records.last_mut().expect("the batch has records").batch = entry;
        if result.is_err() {
            self.model.refused.push((end, self.model.records[end as usize..].to_vec()));
        }
        match result {
            Ok(appended) => assert_eq!((appended.base_offset, appended.last_offset), (end, last_offset)),
            Err(error) => assert!(
                matches!(
                    error,
                    AppendError::OutOfSpace(_) | AppendError::Storage(_) | AppendError::Stopped(_)
                ),
                "{error}"
            ),
        }
        self.log().ends().log_end > end
    }

    /// Syncs, sometimes with appends in between, as the flusher does.
    fn flush(&mut self) {
        let work = self.log().flush_work();
        if self.random.chance(30) {
            self.append();
        }
        let synced = work
            .files
            .iter()
            .try_for_each(|file| file.sync_data())
            .and_then(|()| work.directories.iter().try_for_each(|dir| self.bench.storage.sync_dir(dir)));
        match synced {
            Ok(()) => {
                self.log().flushed(work.upto);
                self.model.durable = self.model.durable.max(self.log().ends().durable_end);
            }
            Err(error) => {
                self.log().failed(&error);
                // As the directory does when its flusher reports.
                self.dir.as_ref().expect("open").fail(&error);
            }
        }
    }

    fn maintain(&mut self) {
        self.wall_ms += self.random.below(600_000) as i64;
        let (wall_ms, mono_ms) = (self.wall_ms, self.bench.mono_ms);
        self.log().retention_survey(wall_ms).run();
        let Ok(mut work) = self.log().begin_maintenance(wall_ms, mono_ms) else { return };
        self.meanwhile();
        work.run();
        self.meanwhile();
        if self.log().end_maintenance(work).is_ok() && self.random.chance(60) {
            // The broker writes the checkpoints now and then; a failure is one of the directory.
            let _ = self.dir.as_ref().expect("open").checkpoints().recovery_point.write();
            let _ = self.dir.as_ref().expect("open").checkpoints().log_start.write();
        }
    }

    /// Does what others may do to the log while maintenance waits for the disk.
    fn meanwhile(&mut self) {
        match self.random.below(10) {
            0 | 1 => drop(self.append()),
            2 => self.flush(),
            3 => self.truncate(),
            4 => self.delete_records(),
            _ => {}
        }
    }

    fn delete_records(&mut self) {
        if self.log().stopped().is_some() {
            return;
        }
        let ends = self.log().ends();
        let offset = ends.log_start + self.random.below((ends.log_end - ends.log_start + 1) as u64) as i64;
        if self.log().delete_records_before(offset).is_ok()
            && self.dir.as_ref().expect("open").checkpoints().log_start.commit().is_ok()
        {
            self.model.start = self.model.start.max(offset);
        }
    }

    fn truncate(&mut self) {
        if self.log().stopped().is_some() {
            return;
        }
        let ends = self.log().ends();
        let from = ends.log_start.max(ends.log_end - 10);
        let to = from + self.random.below((ends.log_end - from + 1) as u64) as i64;
        self.truncate_to(to);
    }

    fn truncate_to(&mut self, to: i64) {
        let mono_ms = self.bench.mono_ms;
        let result = self.log().truncate_suffix(to, mono_ms);
        // A batch that holds the offset goes as a whole; it has three records at most.
        let lowest = to - 2;
        match result {
            Ok(end) => {
                assert!(end <= to && end >= lowest, "{end} for {to}");
                self.model.records.truncate(end as usize);
                self.model.durable = self.model.durable.min(end);
                self.model.start = self.model.start.min(end);
            }
            Err(_) => {
                self.cut_short = true;
                self.model.durable = self.model.durable.min(lowest.max(0));
                self.model.start = self.model.start.min(lowest.max(0));
            }
        }
    }

    /// Without free space appends are refused. They are accepted again when there is some.
    fn fill_disk(&mut self) {
        self.storage.set_free_space(Some(self.random.below(400)));
        let mut refused = false;
        for _ in 0..5 {
            refused |= !self.append();
        }
        assert!(refused, "400 bytes do not hold five batches");
        self.check();
        self.storage.set_free_space(None);
        if self.log().stopped().is_none() {
            assert!(self.append(), "{:?}", self.log);
        }
    }

    fn fail_sync(&mut self) {
        self.append();
        self.storage.fail_syncs(1);
        self.flush();
        self.storage.fail_syncs(0);
        if self.log().stopped().is_some() {
            assert!(!self.append());
            self.crash();
        }
    }

    fn stop_clean(&mut self) {
        let end = self.log().ends().log_end;
        let (log, dir) = (self.log.take().expect("open"), self.dir.take().expect("open"));
        log.close().expect("the log closes");
        assert!(dir.stop_clean().expect("the directory closes"));
        self.model.durable = end;
        drop(dir);
        if self.random.chance(50) {
            self.storage.power_cut(&mut self.random);
            self.boot += 1;
        }
        self.start();
        assert_eq!(self.log().ends().log_end, end);
        self.check();
    }

    /// Stops after some changes, in the middle of whatever is done then.
    fn stop_midway(&mut self) {
        self.storage.stop_after(Some(self.random.below(25)));
        for _ in 0..6 {
            match self.random.below(10) {
                0..5 => drop(self.append()),
                5..7 => self.flush(),
                7 => self.truncate(),
                8 => self.delete_records(),
                _ => self.maintain(),
            }
        }
        if self.random.chance(30) {
            let (log, dir) = (self.log.take().expect("open"), self.dir.clone().expect("open"));
            if log.close().is_ok() {
                let _ = dir.stop_clean();
            }
        }
        self.crash();
    }

    /// The process dies, or the power goes; sometimes again while the log recovers.
    fn crash(&mut self) {
        self.crashes += 1;
        let end = self.log.as_ref().map(|log| log.ends().log_end);
        let sane = self.log.as_ref().is_some_and(|log| log.stopped().is_none());
        (self.log, self.dir) = (None, None);
        let mut power = self.random.chance(60);
        self.fall(power);
        if self.random.chance(30) {
            self.storage.stop_after(Some(self.random.below(15)));
            let path = self.bench.path.clone();
            let identity = crate::dir::NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
            if let Ok(dir) =
                LogDir::open(self.bench.storage.clone(), &path, &identity, &self.boot.to_string())
            {
                let _ = self.bench.try_open(&dir);
            }
            power |= self.random.chance(50);
            self.fall(power);
        }
        self.trace(format_args!("crash, power {power}"));
        self.start();
        let now = self.log().ends().log_end;
        if power {
            self.accept_refused();
        }
        if !power
            && sane
            && let Some(end) = end
        {
            assert!(
                now >= end.min(self.model.records.len() as i64),
                "{now} < {end}: a kill has lost records"
            );
        }
        self.check();
        self.model.records.truncate(now as usize);
        if std::mem::take(&mut self.cut_short) && !power {
            self.flush();
        }
    }

    /// A batch that was refused on a full disk may have been written except for its last byte, which is a zero. A power
    /// cut that forgets the cut, and what was appended in its place, may bring it back as a whole at the end of the log.
    fn accept_refused(&mut self) {
        let start = self.log().ends().log_start;
        let records = read_from(self.log.as_ref().expect("open"), start);
        for (offset, batch) in std::mem::take(&mut self.model.refused) {
            let there = records.iter().filter(|(at, _)| *at >= offset).map(|(_, value)| value);
            if offset >= self.model.durable.max(start) && there.eq(batch.iter().map(|record| &record.value)) {
                self.model.records.truncate(offset as usize);
                self.model.records.extend(batch);
            }
        }
    }

    fn fall(&mut self, power: bool) {
        if power {
            self.storage.power_cut(&mut self.random);
            self.boot += 1;
        } else {
            self.storage.kill();
        }
        self.storage.stop_after(None);
        self.storage.fail_syncs(0);
    }

    /// Compares the log with the model.
    fn check(&mut self) {
        if self.log().stopped().is_some() {
            return;
        }
        self.log().check();
        let ends = self.log().ends();
        let model = &self.model;
        assert!(ends.log_end >= model.durable, "{ends:?}: lost what was durable up to {}", model.durable);
        assert!(ends.log_end <= model.records.len() as i64, "{ends:?}: more than {}", model.records.len());
        assert!(ends.log_start >= model.start.min(ends.log_end), "{ends:?}: deleted before {}", model.start);
        let records = read_from(self.log.as_ref().expect("open"), ends.log_start);
        assert_eq!(records.len() as i64, ends.log_end - ends.log_start);
        for (offset, value) in &records {
            assert!(*value == self.model.records[*offset as usize].value, "other bytes at offset {offset}");
        }
        self.check_producers(ends.log_start, ends.log_end);
    }

    fn check_producers(&self, log_start: i64, log_end: i64) {
        let mut last: BTreeMap<i64, (i32, i64)> = BTreeMap::new();
        for record in &self.model.records[..log_end as usize] {
            if let Some((producer, sequence, offset)) = record.batch {
                last.insert(producer, (sequence, offset));
            }
        }
        let state = self.log.as_ref().expect("open").producer_state();
        for (producer, (sequence, offset)) in last {
            match state.get(ProducerId::new(producer)) {
                Some(known) => {
                    let known = known.batches().last().map(|batch| (batch.last_sequence, batch.last_offset));
                    assert_eq!(known, Some((sequence, offset)), "producer {producer}");
                }
                None => assert!(
                    offset.min(log_end - 1) < log_start,
                    "producer {producer} is forgotten, its batch is not"
                ),
            }
        }
    }
}

#[test]
fn nothing_durable_is_lost_and_nothing_comes_back() {
    for seed in seeds(60) {
        let mut simulation = Simulation::new(seed);
        for _ in 0..STEPS {
            simulation.step();
        }
        assert!(simulation.crashes > 0);
        simulation.crash();
    }
}
