//! A partition moves between two directories while it is written to, and the machine stops anywhere in between.

use super::*;
use crate::dir::NodeIdentity;
use crate::log::testing::{Bench, TOPIC_ID, TestBatch, WALL_MS, flush, read_from, small_segments};
use crate::placement::{Directories, Placement, Sightings, place};
use crate::sim::{Call, Hooked, Random, SimStorage};
use crate::{EpochEntry, PartitionIdentity};
use mainstem_records::LeaderEpoch;

const RUNS: u64 = 150;
const MOVES: usize = 12;

fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn identity() -> PartitionIdentity {
    PartitionIdentity { topic: "t".into(), topic_id: TOPIC_ID, partition: 0 }
}

/// Two directories with one partition, which is in the first.
struct Two {
    storage: SimStorage,
    bench: Bench,
    boot: u64,
    dirs: [Arc<LogDir>; 2],
    log: Option<Log>,
    /// The index of the directory that the metadata names.
    assigned: usize,
}

impl Two {
    fn new() -> Two {
        let storage = SimStorage::new();
        let config = LogConfig { retention_ms: None, file_delete_delay_ms: 0, ..small_segments() };
        let bench = Bench::with_storage(Arc::new(storage.clone()), config);
        let dirs = open_dirs(&bench, 0);
        let mut two = Two { storage, bench, boot: 0, dirs, log: None, assigned: 0 };
        two.open_in(0);
        two
    }

    fn open_in(&mut self, dir: usize) {
        let config = Arc::new(self.bench.config.clone());
        let (log, _) = Log::open(&self.dirs[dir], &identity(), config, self.bench.mono_ms).expect("it opens");
        self.dirs.iter().for_each(|dir| dir.recovered().expect("it is noted"));
        self.log = Some(log);
    }

    fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("open")
    }

    /// Which of the directories the log is in.
    fn place(&self) -> usize {
        let path = self.log.as_ref().expect("open").dir().path();
        self.dirs.iter().position(|dir| dir.path() == path).expect("one of them")
    }

    fn begin_move(&mut self) -> Result<FutureLog, LogError> {
        let to = self.dirs[1 - self.place()].clone();
        let path = to.create_future(&partition(), &TOPIC_ID).map_err(LogError::io("create", to.path()))?;
        let mut start = self.log().copy_start();
        start.config = Arc::new(self.bench.config.clone());
        FutureLog::open(&to, path, start, self.bench.mono_ms)
    }

    fn copy_all(&mut self, copy: &mut FutureLog) -> Result<(), CopyError> {
        while let Some(plan) = copy.next(self.log())? {
            copy.copy(plan, self.bench.mono_ms)?;
        }
        Ok(())
    }

    fn take_over(&mut self, copy: FutureLog) -> Result<Log, TakeOverError> {
        let mono_ms = self.bench.mono_ms;
        copy.take_over_at_once(self.log(), mono_ms)
    }

    /// Starts after a stop of whatever kind, as a broker does.
    fn start(&mut self) {
        self.boot += 1;
        self.dirs = open_dirs(&self.bench, self.boot);
        let ids = self.dirs.each_ref().map(|dir| dir.directory_id());
        let of = |has: &dyn Fn(&LogDir) -> bool| {
            let found = self.dirs.iter().filter(|dir| has(dir));
            found.map(|dir| dir.directory_id()).collect::<Vec<_>>()
        };
        let found = Sightings {
            originals: of(&|dir| !dir.partitions().expect("a list").is_empty()),
            copies: of(&|dir| !dir.futures().expect("a list").is_empty()),
        };
        let dirs = Directories { online: &ids, any_offline: false };
        let place = place(Some(ids[self.assigned]), &found, dirs);
        let id = match place {
            Placement::Here(id) | Placement::Create(id) => id,
            Placement::Promote(id) => {
                let dir = self.dirs.iter().find(|dir| dir.directory_id() == id).expect("one of them");
                let copy = dir.futures().expect("a list").remove(0);
                dir.promote_future(&copy.path, &partition()).expect("a rename");
                id
            }
            other => panic!("{found:?} is {other:?}\n{}", self.storage.describe()),
        };
        for dir in &self.dirs {
            dir.futures()
                .expect("a list")
                .iter()
                .for_each(|copy| dir.remove_future(&copy.path).expect("gone"));
        }
        self.assigned = ids.iter().position(|other| *other == id).expect("one of them");
        self.open_in(self.assigned);
    }
}

fn open_dirs(bench: &Bench, boot: u64) -> [Arc<LogDir>; 2] {
    ["/data/a", "/data/b"].map(|path| {
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let boot = boot.to_string();
        LogDir::open(bench.storage.clone(), Path::new(path), &identity, &boot).expect("a log directory")
    })
}

fn values(log: &Log) -> Vec<Vec<u8>> {
    read_from(log, log.ends().log_start).into_iter().map(|(_, value)| value).collect()
}

#[test]
fn a_log_moves_with_all_that_is_known_of_it() {
    let mut two = Two::new();
    let (bench, log) = (&two.bench, two.log.as_mut().expect("open"));
    let by = |n: i32, id| TestBatch::of(&["x", "y"]).by(id, 0, n * 2);
    (0..30).for_each(|n| assert!(bench.append_under(log, &by(n, 7), 3).is_ok()));
    (0..10).for_each(|n| assert!(bench.append_under(log, &by(n, 8), 5).is_ok()));
    flush(log);
    let start = log.delete_records_before(61).expect("records to delete");
    log.maintain(WALL_MS, bench.mono_ms).expect("maintenance");
    let (ends, all) = (log.ends(), values(log));
    let known: Vec<_> = log.producer_state().iter().map(|(id, entry)| (id, entry.clone())).collect();
    assert_eq!((start, known.len()), (61, 2), "one of the producers has no records any more");

    let mut copy = two.begin_move().expect("a copy");
    two.copy_all(&mut copy).expect("copied");
    let old = two.take_over(copy).expect("taken over");
    old.dir().forget(&[partition()]).expect("forgotten");
    assert_eq!(two.place(), 1);
    let log = two.log();
    assert_eq!((log.ends(), values(log)), (crate::Ends { durable_end: ends.log_end, ..ends }, all.clone()));
    let epochs = [EpochEntry { epoch: LeaderEpoch::new(5), start_offset: 61 }];
    assert_eq!(log.leader_epochs().entries(), epochs);
    let moved: Vec<_> = log.producer_state().iter().map(|(id, entry)| (id, entry.clone())).collect();
    assert_eq!(moved.len(), known.len());

    assert_eq!(two.dirs[0].partitions().expect("a list"), []);
    assert_eq!(two.dirs[0].remove_doomed(two.bench.mono_ms), 1, "the old one waits for its removal");
    let next =
        two.bench.append_under(two.log.as_mut().expect("open"), &by(10, 8), 5).expect("it is appended");
    assert_eq!(next.base_offset, ends.log_end);
    // A clean stop and a start in the new place.
    let log = two.log.take().expect("open");
    log.close().expect("closed");
    assert!(two.dirs[0].stop_clean().expect("stopped") && two.dirs[1].stop_clean().expect("stopped"));
    two.storage.kill();
    two.start();
    assert_eq!(
        (two.place(), two.log().ends().log_start, two.log().ends().log_end),
        (1, 61, ends.log_end + 2)
    );
    assert_eq!(two.log().leader_epochs().entries(), epochs);
}

/// Compaction took what the first segment began with: its name alone says where the log starts.
#[test]
fn a_log_whose_first_records_are_gone_moves_with_its_start() {
    let mut two = Two::new();
    let mut bytes = TestBatch::of(&["the first that is left"]).bytes();
    bytes[..8].copy_from_slice(&39_i64.to_be_bytes());
    let (batch, _) = Batch::split_first(&bytes).expect("a batch");
    two.log().append(&Prepared::copy_of(batch), LeaderEpoch::NONE, 0).expect("an append");
    two.bench.append_numbers(two.log.as_mut().expect("open"), 40..80);
    let copy = two.begin_move().expect("a copy");
    two.take_over(copy).expect("taken over");
    let check = |log: &Log| {
        let ends = log.ends();
        assert_eq!((ends.log_start, ends.log_end), (0, 80));
        assert!(matches!(log.read(0, ReadBound::LogEnd, 100, true), Ok(ReadPlan::Range(_))));
    };
    check(two.log());
    two.storage.kill();
    two.start();
    assert_eq!(two.place(), 1);
    check(two.log());
}

#[test]
fn an_empty_log_moves_with_its_offsets() {
    let mut two = Two::new();
    two.bench.append_numbers(two.log.as_mut().expect("open"), 0..40);
    flush(two.log());
    two.log().delete_records_before(-1).expect("all of them");
    two.log().maintain(WALL_MS, 1).expect("maintenance");
    let mut copy = two.begin_move().expect("a copy");
    two.copy_all(&mut copy).expect("copied");
    two.take_over(copy).expect("taken over");
    two.storage.kill();
    two.start();
    let ends = two.log().ends();
    assert_eq!((two.place(), ends.log_start, ends.log_end), (1, 40, 40));
}

#[test]
fn a_full_disk_aborts_and_leaves_the_original() {
    let mut two = Two::new();
    two.bench.append_numbers(two.log.as_mut().expect("open"), 0..40);
    let copy = two.begin_move().expect("a copy");
    two.storage.set_free_space(Some(1000));
    let refused = two.take_over(copy).expect_err("the disk is full");
    assert!(matches!(refused, TakeOverError::Aborted(_)), "{refused}");
    two.storage.set_free_space(None);
    assert!(two.dirs.iter().all(|dir| dir.failure().is_none()), "a full disk is no failed one");
    two.bench.append_numbers(two.log.as_mut().expect("open"), 40..41);
    assert_eq!((two.place(), values(two.log()).len()), (0, 41));
}

#[test]
fn a_batch_larger_than_a_segment_is_copied() {
    let mut two = Two::new();
    let large = TestBatch::of(&[&"x".repeat(1500)]);
    two.bench.append(two.log.as_mut().expect("open"), &large).expect("an append");
    two.bench.append_numbers(two.log.as_mut().expect("open"), 1..20);
    two.bench.config.segment_bytes = 700;
    let copy = two.begin_move().expect("a copy");
    two.take_over(copy).expect("taken over");
    assert_eq!((two.place(), values(two.log()).len()), (1, 20));
}

/// One run: moves to and fro, appends in between, and a stop of the machine at any change of the disk.
struct Run {
    two: Two,
    random: Random,
    appended: Vec<Vec<u8>>,
    durable: usize,
    start: i64,
    /// The log start of a deletion that was not acknowledged yet.
    deleted: Option<i64>,
}

impl Run {
    fn append(&mut self) -> bool {
        let value = format!("{:0size$}", self.appended.len(), size = 10 + self.random.below(300) as usize);
        let appended = self.two.bench.append(self.two.log.as_mut().expect("open"), &TestBatch::of(&[&value]));
        // What was refused may be there or not; the next value is another one.
        self.appended.push(value.into_bytes());
        appended.is_ok()
    }

    /// Acts as the broker that serves the partition in the meantime. `false`: the machine has stopped.
    fn serve(&mut self) -> bool {
        self.write() && self.flush() && self.delete() && self.keep_deletion()
    }

    /// The same while nothing may count as durable: a copy takes over.
    fn serve_held(&mut self) -> bool {
        self.write() && self.delete()
    }

    fn write(&mut self) -> bool {
        for _ in 0..self.random.below(6) {
            if !self.append() {
                return false;
            }
        }
        true
    }

    fn flush(&mut self) -> bool {
        if self.random.chance(30) {
            let log = self.two.log();
            let work = log.flush_work();
            let storage = log.dir().storage().clone();
            let files = work.files.iter().try_for_each(|file| file.sync_data());
            if files.and_then(|()| work.directories.iter().try_for_each(|dir| storage.sync_dir(dir))).is_err()
            {
                return false;
            }
            log.flushed(work.upto);
            self.durable = self.appended.len();
        }
        true
    }

    fn delete(&mut self) -> bool {
        if self.random.chance(10) {
            let offset = self.start + self.random.below(5) as i64;
            let log = self.two.log();
            let Ok(start) = log.delete_records_before(offset.min(log.ends().high_watermark)) else {
                return false;
            };
            self.deleted = Some(start);
        }
        true
    }

    /// A deletion that is acknowledged is one for good.
    fn keep_deletion(&mut self) -> bool {
        let Some(start) = self.deleted.take() else { return true };
        if self.two.log().dir().checkpoints().log_start.commit().is_err() {
            return false;
        }
        self.start = start;
        true
    }

    /// `false`: the machine has stopped on the way.
    fn move_once(&mut self) -> bool {
        let Ok(mut copy) = self.two.begin_move() else { return false };
        for _ in 0..self.random.below(8) {
            let Ok(Some(plan)) = copy.next(self.two.log()) else { break };
            if copy.copy(plan, 1000).is_err() || !self.serve() {
                return false;
            }
        }
        if self.random.chance(50) && copy.sync().is_err() {
            return false;
        }
        let Some(old) = self.take_over(copy) else { return false };
        if self.random.chance(50) {
            let place = self.two.place();
            if old.dir().forget(&[partition()]).is_err() {
                return false;
            }
            self.two.assigned = place;
        }
        self.serve()
    }

    /// Step by step, with what is written in between. `None`: the machine has stopped on the way.
    fn take_over(&mut self, mut copy: FutureLog) -> Option<Log> {
        let mut whole;
        loop {
            copy.catch_up(self.two.log(), 1000).ok()?;
            whole = self.appended.len();
            self.serve_held().then_some(())?;
            copy.make_durable().ok()?;
            self.serve_held().then_some(())?;
            if copy.is_current(self.two.log()) {
                break;
            }
        }
        let to = copy.dir().clone();
        let taken = copy.take_over(self.two.log(), 1000, 0).ok()?;
        self.serve_held().then_some(())?;
        taken.sync_retired().ok()?;
        self.serve_held().then_some(())?;
        taken.name(self.two.log()).ok()?;
        self.serve_held().then_some(())?;
        taken.sync_named(&to).ok()?;
        // The original had all of them, and what takes its place was synced.
        self.durable = self.durable.max(whole);
        self.keep_deletion().then(|| taken.into_original())
    }

    fn crash(&mut self) {
        self.two.storage.stop_after(None);
        self.deleted = None;
        self.two.log = None;
        if self.random.chance(50) {
            self.two.storage.kill();
        } else {
            self.two.storage.power_cut(&mut self.random);
        }
        self.two.start();
    }

    fn check(&mut self) {
        let log = self.two.log.as_ref().expect("open");
        log.check();
        assert!(log.ends().log_start >= self.start, "{:?}, deleted up to {}", log.ends(), self.start);
        let found = values(log);
        let first = log.ends().log_start as usize;
        let expected = self.appended.get(first..self.durable).unwrap_or_default();
        assert!(found.len() >= expected.len(), "{} of {}: {log:?}", found.len(), expected.len());
        let all = &self.appended[first.min(self.appended.len())..];
        assert!(found.iter().zip(all).all(|(found, appended)| found == appended), "{log:?}");
        // What was not acknowledged may be gone, and is not written again.
        self.start = log.ends().log_start;
        self.appended.truncate(log.ends().log_end as usize);
    }
}

fn run(seed: u64) {
    let mut run = Run {
        two: Two::new(),
        random: Random::new(seed),
        appended: Vec::new(),
        durable: 0,
        start: 0,
        deleted: None,
    };
    for _ in 0..MOVES {
        run.serve();
        let changes = run.random.below(120);
        run.two.storage.stop_after(run.random.chance(70).then_some(changes));
        if !run.move_once() || run.random.chance(40) {
            run.crash();
        }
        run.two.storage.stop_after(None);
        if run.two.log().stopped().is_some() {
            run.crash();
        }
        run.check();
    }
}

#[test]
fn nothing_is_lost_wherever_the_machine_stops() {
    for seed in 0..RUNS {
        println!("seed {seed}");
        run(seed);
    }
}

/// A shortage of descriptors in the middle of a take-over passes; the directories stay in service.
#[test]
fn a_take_over_outlasts_a_shortage() {
    let mut two = Two::new();
    let hooked = Hooked::new(Arc::new(two.storage.clone()));
    two.bench.storage = Arc::new(hooked.clone());
    two.log = None;
    two.storage.kill();
    two.dirs = open_dirs(&two.bench, 0);
    two.open_in(0);
    two.bench.append_numbers(two.log.as_mut().expect("open"), 0..30);
    let mut copy = two.begin_move().expect("a copy");
    two.copy_all(&mut copy).expect("it is copied");
    copy.catch_up(two.log(), 1000).expect("it is copied");
    copy.make_durable().expect("it is synced");
    let (from, to) = (two.dirs[0].clone(), copy.dir().clone());
    let without = |call: Call, step: &mut dyn FnMut() -> Result<(), LogError>| {
        let code = if call == Call::Rename { libc::ENOSPC } else { libc::EMFILE };
        hooked.set_hook(move |asked, _| match asked == call {
            true => Err(io::Error::from_raw_os_error(code)),
            false => Ok(()),
        });
        let error = step().expect_err("it is refused");
        assert!(error.fault().is_some_and(StorageFault::is_temporary), "{error}");
        assert!(from.failure().is_none() && to.failure().is_none());
        hooked.clear_hook();
        step().expect("the shortage has passed");
    };
    let log = two.log.as_mut().expect("open");
    let taken = copy.take_over(log, 1000, 0).expect("a copy that has all");
    without(Call::SyncDir, &mut || taken.sync_retired());
    without(Call::Rename, &mut || taken.name(log));
    without(Call::SyncDir, &mut || taken.sync_named(&to));
    drop(taken.into_original());
    let log = two.log.as_ref().expect("open");
    assert_eq!(two.bench.read_all(log).len(), 30);
}
