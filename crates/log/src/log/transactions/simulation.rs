//! Random transactions, rolls, deletions, truncations, compactions and crashes, against a model that goes through all
//! that was ever appended.
//!
//! `MAINSTEM_SIM_SEED` repeats one run, `MAINSTEM_SIM_RUNS` sets how many there are of each kind (default 60, of 120
//! steps each).

use super::world::{ModelBatch, Outcome, Sending, end, everything, fields, read_committed, send};
use crate::compaction::{CleanError, Cleaner, CleanerOptions, LogAccess, Task};
use crate::log::testing::{Bench, WALL_MS, flush, seeds, small_segments};
use crate::sim::{Random, SimStorage};
use crate::storage::Storage;
use crate::{Log, LogConfig};
use mainstem_records::ProducerId;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const STEPS: usize = 120;
const PRODUCERS: u64 = 4;
const KEYS: u64 = 6;

/// The events that may happen in a run.
#[derive(Debug, Clone, Copy, Default)]
struct Kind {
    /// The process dies, the power goes.
    crashes: bool,
    /// The log start moves.
    deletes: bool,
    /// The high watermark is given from outside.
    held: bool,
    compacts: bool,
}

struct Simulation {
    random: Random,
    kind: Kind,
    storage: SimStorage,
    bench: Bench,
    boot: u64,
    log: Option<Log>,
    /// Everything that was appended and not cut off.
    all: Vec<ModelBatch>,
    /// The coordinator's decisions, by producer and first offset. It repeats them after a power cut.
    decisions: BTreeMap<(i64, i64), bool>,
    high_watermark: i64,
    /// The durable end: a power cut does not lose records before it.
    durable: i64,
    wall_ms: i64,
}

/// A log that a cleaner works on.
struct Shared(Mutex<Option<Log>>);

impl LogAccess for Shared {
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T> {
        self.0.lock().as_mut().map(act)
    }
}

impl Simulation {
    fn new(seed: u64, kind: Kind) -> Simulation {
        let storage = SimStorage::new();
        let config = LogConfig {
            segment_bytes: 900,
            retention_ms: None,
            file_delete_delay_ms: 50,
            compact: kind.compacts,
            delete: !kind.compacts,
            min_cleanable_dirty_ratio: 0.0,
            delete_retention_ms: 300,
            ..small_segments()
        };
        let bench = Bench::with_storage(Arc::new(storage.clone()), config);
        let mut this = Simulation {
            random: Random::new(seed),
            kind,
            storage,
            bench,
            boot: 0,
            log: None,
            all: Vec::new(),
            decisions: BTreeMap::new(),
            high_watermark: 0,
            durable: 0,
            wall_ms: WALL_MS,
        };
        this.start();
        this
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("the log is open")
    }

    fn start(&mut self) {
        let dir = self.bench.dir(&self.boot.to_string());
        let (mut log, _) = self.bench.try_open(&dir).expect("the log opens after any crash");
        if self.kind.held {
            log.hold_high_watermark(self.high_watermark).expect("it can be read");
        }
        self.log = Some(log);
    }

    fn step(&mut self) {
        self.bench.mono_ms += self.random.below(40);
        self.wall_ms += self.random.below(200) as i64;
        let action = self.random.below(100);
        if std::env::var_os("MAINSTEM_SIM_SEED").is_some() {
            let open: Vec<_> = self.log().producer_state().open_transactions().collect();
            println!("{}\naction {action}: {:?}, open {open:?}", self.storage.describe(), self.log);
        }
        match action {
            0..45 => self.produce(),
            45..67 => self.end_transaction(),
            67..73 => self.flush(),
            73..77 if self.log().active_segment().len > 0 => {
                let mono_ms = self.bench.mono_ms;
                self.log().roll(mono_ms).expect("a new segment");
            }
            77..82 => self.move_high_watermark(),
            82..85 => self.delete_records(),
            85..88 => self.truncate(),
            88..90 => self.maintain(),
            90..92 => self.stop_clean(),
            92..94 => self.crash(),
            94..96 => self.stop_midway(),
            _ if self.kind.compacts => self.compact(),
            _ => {}
        }
        if action >= 82 || self.random.chance(30) {
            self.check();
        }
    }

    fn produce(&mut self) {
        let producer_id = self.random.below(PRODUCERS) as i64;
        let epoch = self.epoch(producer_id);
        let is_open = self.is_open(producer_id);
        let count = 1 + self.random.below(3);
        let records = (0..count)
            .map(|_| {
                let key = format!("k{}", self.random.below(KEYS)).into_bytes();
                (key, format!("{:x}", self.random.next_u64()).into_bytes())
            })
            .collect();
        let transactional = producer_id > 0 && (is_open || self.random.chance(80));
        let sending =
            Sending { producer: (producer_id > 0).then_some((producer_id, epoch)), transactional, records };
        let appended = send(&self.bench, self.log.as_mut().expect("open"), &sending).expect("an append");
        self.note(ModelBatch::sent(&appended, &sending));
    }

    fn end_transaction(&mut self) {
        let producer_id = 1 + self.random.below(PRODUCERS - 1) as i64;
        let (mut committed, bumped) = (self.random.chance(50), self.random.chance(30));
        let open = self.log().producer_state().open_transactions().find(|(_, id)| id.get() == producer_id);
        if let Some((first_offset, _)) = open {
            committed = *self.decisions.entry((producer_id, first_offset)).or_insert(committed);
        }
        let producer = (producer_id, self.epoch(producer_id) + i16::from(bumped));
        let version = if bumped { 2 } else { 1 };
        let log = self.log.as_mut().expect("open");
        let appended = end(&self.bench, log, producer, committed, version).expect("a marker");
        self.note(ModelBatch::marker(appended.base_offset, producer_id, committed));
    }

    fn note(&mut self, kept: ModelBatch) {
        self.all.push(kept);
        if !self.kind.held {
            self.high_watermark = self.log().ends().log_end;
        }
    }

    fn epoch(&mut self, producer_id: i64) -> i16 {
        let known = self.log().producer_state().get(ProducerId::new(producer_id));
        known.map_or(0, |known| known.epoch.get())
    }

    fn is_open(&mut self, producer_id: i64) -> bool {
        self.log().producer_state().open_transactions().any(|(_, id)| id.get() == producer_id)
    }

    fn flush(&mut self) {
        flush(self.log());
        self.durable = self.log().ends().durable_end;
    }

    /// To the start of a batch, as what is agreed on.
    fn move_high_watermark(&mut self) {
        if self.kind.held && !self.all.is_empty() {
            let at = self.random.below(self.all.len() as u64) as usize;
            let offset = self.all[at].last_offset + 1;
            self.high_watermark = self.high_watermark.max(offset);
            self.log().set_high_watermark(offset);
        }
    }

    fn delete_records(&mut self) {
        if self.kind.deletes {
            let ends = self.log().ends();
            let span = (ends.high_watermark - ends.log_start + 1) as u64;
            let offset = ends.log_start + self.random.below(span) as i64;
            self.log().delete_records_before(offset).expect("a deletion");
            self.log().dir().checkpoints().log_start.commit().expect("a checkpoint");
        }
    }

    fn truncate(&mut self) {
        if self.kind.compacts && !self.kind.held {
            // What is compacted is agreed on.
            return;
        }
        let ends = self.log().ends();
        let lowest = if self.kind.held { ends.high_watermark } else { ends.log_end - 12 };
        let lowest = lowest.max(ends.log_start);
        let to = lowest + self.random.below((ends.log_end - lowest + 1) as u64) as i64;
        // Whole batches go: what consumers have seen stays.
        let Some(to) = self.all.iter().map(|kept| kept.base_offset).find(|base| *base >= to) else { return };
        let mono_ms = self.bench.mono_ms;
        assert_eq!(self.log().truncate_suffix(to, mono_ms).expect("a truncation"), to);
        self.cut(to);
    }

    fn cut(&mut self, log_end: i64) {
        // A log that begins again at its noted start may have lost only a part of a batch.
        self.all.retain(|kept| kept.last_offset < log_end);
        self.durable = self.durable.min(log_end);
        self.high_watermark = if self.kind.held { self.high_watermark.min(log_end) } else { log_end };
    }

    fn maintain(&mut self) {
        let (wall_ms, mono_ms) = (self.wall_ms, self.bench.mono_ms);
        self.log().maintain(wall_ms, mono_ms).expect("maintenance");
        self.log().dir().checkpoints().recovery_point.write().expect("a checkpoint");
    }

    fn stop_clean(&mut self) {
        self.bench.stop_clean(self.log.take().expect("open"));
        self.start();
        self.durable = self.log().ends().durable_end;
    }

    /// The machine stops somewhere within appends, syncs and rolls. What they came to is what is there afterwards.
    fn stop_midway(&mut self) {
        if !self.kind.crashes || self.kind.compacts {
            return;
        }
        let before = self.log().ends().log_end;
        self.storage.stop_after(Some(self.random.below(20)));
        for _ in 0..6 {
            let (choice, producer_id) = (self.random.below(10), 1 + self.random.below(PRODUCERS - 1) as i64);
            let (epoch, mono_ms) = (self.epoch(producer_id), self.bench.mono_ms);
            let log = self.log.as_mut().expect("open");
            match choice {
                0..3 => {
                    let records = vec![(b"k".to_vec(), vec![b'v'; self.random.below(100) as usize])];
                    let sending =
                        Sending { producer: Some((producer_id, epoch)), transactional: true, records };
                    drop(send(&self.bench, log, &sending));
                }
                3..6 => drop(end(&self.bench, log, (producer_id, epoch), choice == 3, 1)),
                6..8 => self.try_flush(),
                _ if log.active_segment().len > 0 => drop(log.roll(mono_ms)),
                _ => {}
            }
        }
        self.crash();
        let came = everything(self.log()).into_iter().filter(|kept| kept.base_offset >= before);
        self.all.retain(|kept| kept.base_offset < before);
        self.all.extend(came);
    }

    fn try_flush(&mut self) {
        let work = self.log().flush_work();
        let mut synced = work.files.iter().try_for_each(|file| file.sync_data());
        for dir in &work.directories {
            synced = synced.and_then(|()| self.storage.sync_dir(dir));
        }
        match synced {
            Ok(()) => _ = self.log().flushed(work.upto),
            Err(error) => self.log().failed(&error),
        }
        self.durable = self.durable.max(self.log().ends().durable_end);
    }

    /// The process dies or the power goes, sometimes again while the log recovers.
    fn crash(&mut self) {
        if !self.kind.crashes {
            return;
        }
        let end = self.log().ends().log_end;
        self.log = None;
        let mut power = self.fall();
        while self.random.chance(30) {
            self.storage.stop_after(Some(self.random.below(12)));
            let path = self.bench.path.clone();
            let identity = crate::dir::NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
            let boot = self.boot.to_string();
            if let Ok(dir) = crate::dir::LogDir::open(self.bench.storage.clone(), &path, &identity, &boot) {
                let _ = self.bench.try_open(&dir);
            }
            power |= self.fall();
        }
        self.start();
        let now = self.log().ends().log_end;
        assert!(now >= if power { self.durable } else { end }, "{now} of {end}, {} durable", self.durable);
        self.cut(now);
    }

    fn fall(&mut self) -> bool {
        let power = self.random.chance(60);
        match power {
            true => {
                self.storage.power_cut(&mut self.random);
                self.boot += 1;
            }
            false => self.storage.kill(),
        }
        self.storage.stop_after(None);
        power
    }

    /// Compacts; sometimes the machine stops within.
    fn compact(&mut self) {
        let midway = self.kind.crashes && self.random.chance(30);
        if midway {
            self.storage.stop_after(Some(self.random.below(50)));
        }
        let shared = Shared(Mutex::new(self.log.take()));
        let result = self.clean(&shared);
        self.log = shared.0.into_inner();
        if midway {
            return self.crash();
        }
        result.expect("a compaction");
    }

    fn clean(&self, shared: &Shared) -> Result<(), CleanError> {
        let view =
            shared.with_log(|log| log.compaction_view(i64::MAX)).flatten().ok_or(CleanError::Changed)?;
        let dirty = view.assess(self.wall_ms)?;
        let task = Task {
            first_dirty: dirty.first_dirty,
            first_uncleanable: dirty.first_uncleanable,
            wall_ms: self.wall_ms,
            mono_ms: self.bench.mono_ms,
        };
        let options =
            CleanerOptions { dedupe_bytes: 2400, load_factor: 0.95, io_bytes: 256, secret: [9; 16] };
        Cleaner::new(options).clean(shared, &task, &mut |_| ControlFlow::Continue(())).map(drop)
    }

    fn check(&mut self) {
        self.storage.set_cold(self.random.chance(20));
        let probes = [(); 3].map(|()| (self.random.next_u64(), self.random.next_u64()));
        let outcome = Outcome::of(&self.all);
        let log = self.log.as_ref().expect("open");
        log.check();
        let ends = log.ends();
        let open = log.producer_state().open_transactions().map(|(first, id)| (first, id.get()));
        let open: Vec<_> = open.collect();
        let stable = outcome.last_stable(ends.log_start, ends.high_watermark);
        assert_eq!(ends.high_watermark, self.high_watermark.max(ends.log_start));
        if self.kind.deletes && self.kind.crashes {
            self.check_what_is_left(log, &outcome, stable);
        } else {
            assert_eq!(open, outcome.open);
            assert_eq!(ends.last_stable, stable, "{open:?}");
        }
        self.check_seen(log, &outcome);
        if !self.kind.compacts {
            self.check_aborted(log, &outcome, &probes);
        }
        self.storage.set_cold(false);
    }

    /// Checks what is left of transactions. A crash may have forgotten a deleted beginning, so that the rest begins later.
    fn check_what_is_left(&self, log: &Log, outcome: &Outcome, stable: i64) {
        let ends = log.ends();
        assert!(ends.last_stable >= stable, "{ends:?}, stable is what is before {stable}");
        let left = Outcome::of(&everything(log));
        let between = self.all.iter().filter(|kept| (stable..ends.last_stable).contains(&kept.base_offset));
        for kept in between.filter(|kept| kept.transactional && kept.marker.is_none()) {
            let is_decided = outcome.ended.iter().any(|ended| {
                Some(ended.producer_id) == kept.producer_id
                    && (ended.first_offset..ended.marker_offset).contains(&kept.base_offset)
                    && ended.marker_offset < ends.high_watermark
            });
            assert!(is_decided, "{kept:?} is not decided, and before {ends:?}");
        }
        let open: Vec<_> = log.producer_state().open_transactions().map(|(_, id)| id.get()).collect();
        assert!(left.open.iter().all(|(_, id)| open.contains(id)), "{open:?}, {left:?}");
    }

    /// A consumer sees what is committed, and nothing else.
    fn check_seen(&self, log: &Log, outcome: &Outcome) {
        let ends = log.ends();
        let from = ends.log_start;
        let seen = read_committed(log, from);
        let is_stable = |offset: &i64| (from..ends.last_stable).contains(offset);
        let committed = self.all.iter().filter(|kept| kept.marker.is_none() && outcome.is_committed(kept));
        if !self.kind.compacts {
            let expected: Vec<_> = committed
                .flat_map(|kept| kept.values().map(|(offset, value)| (offset, value.clone())))
                .filter(|(offset, _)| is_stable(offset))
                .collect();
            assert_eq!(seen, expected, "{ends:?}");
            return;
        }
        let mut last = BTreeMap::new();
        let mut expected = BTreeMap::new();
        for kept in committed {
            for ((offset, value), (key, _)) in kept.values().zip(&kept.records) {
                if is_stable(&offset) {
                    last.insert(key, offset);
                    expected.insert(offset, value);
                }
            }
        }
        for (offset, value) in &seen {
            assert_eq!(expected.get(offset), Some(&value), "{offset} in {ends:?}");
        }
        for (key, offset) in last {
            let is_there = seen.iter().any(|(at, _)| *at == offset);
            assert!(is_there || has_younger(log, key, offset), "{key:?} at {offset} is lost, {ends:?}");
        }
    }

    /// For any range of offsets exactly those transactions are named that were aborted there.
    fn check_aborted(&self, log: &Log, outcome: &Outcome, probes: &[(u64, u64)]) {
        let ends = log.ends();
        for probe in probes {
            let span = (ends.log_end - ends.log_start + 1) as u64;
            let from = ends.log_start + (probe.0 % span) as i64;
            let upper = from + 1 + (probe.1 % span) as i64;
            let found = fields(&log.aborted_transactions(from, upper).expect("the indexes"));
            let expected = outcome.aborted(from, upper);
            if self.kind.deletes && self.kind.crashes {
                let markers = |aborted: &[(i64, i64, i64)]| {
                    aborted.iter().map(|(id, _, at)| (*id, *at)).collect::<Vec<_>>()
                };
                let known = markers(&expected);
                assert!(
                    markers(&found).iter().all(|marker| known.contains(marker)),
                    "{found:?} {expected:?}"
                );
            } else {
                assert_eq!(found, expected, "{from}..{upper}, {ends:?}");
            }
        }
    }
}

/// Returns true if a key has a record behind an offset. A power cut may take the marker of a transaction before it.
/// Consumers do not see its records then until the coordinator has sent the marker again.
fn has_younger(log: &Log, key: &[u8], offset: i64) -> bool {
    let all = everything(log);
    let records = all.iter().flat_map(|kept| kept.records.iter().map(|(key, _)| (kept.last_offset, key)));
    records.into_iter().any(|(at, other)| at > offset && other == key)
}

fn run(kind: Kind) {
    for seed in seeds(60) {
        let mut simulation = Simulation::new(seed, kind);
        for _ in 0..STEPS {
            simulation.step();
        }
    }
}

#[test]
fn transactions_are_what_was_appended() {
    run(Kind { deletes: true, ..Kind::default() });
}

#[test]
fn transactions_are_decided_below_the_high_watermark() {
    run(Kind { held: true, deletes: true, ..Kind::default() });
    run(Kind { held: true, crashes: true, ..Kind::default() });
}

#[test]
fn transactions_survive_crashes() {
    run(Kind { crashes: true, ..Kind::default() });
    run(Kind { crashes: true, deletes: true, ..Kind::default() });
}

#[test]
fn what_is_committed_survives_compaction() {
    run(Kind { compacts: true, ..Kind::default() });
    run(Kind { compacts: true, crashes: true, ..Kind::default() });
}
