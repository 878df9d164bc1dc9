//! The faults of a log and of its directory: docs/faults.md has what comes out here.

use super::testing::{Bench, WALL_MS, resolve, small_segments};
use crate::checkpoint::OffsetCheckpoint;
use crate::compaction::{Cleaner, CleanerOptions, LogAccess, Task};
use crate::dir::{LogDir, NodeIdentity};
use crate::files::{FileState, SegmentFileName};
use crate::flusher::{FlushTarget, FlushTicket, FlushWork};
use crate::partition_dir::{SetAside, TopicPartition};
use crate::sim::{Action, Ending, Hooked, Random, SimStorage, UNCLEAN, World, fault_table};
use crate::{Log, LogConfig, LogError, Origin, ReadBound, ReadPlan, TransactionMarker, prepare};
use mainstem_records::{
    Batch, BatchBuilder, BatchOptions, CoordinatorEpoch, LeaderEpoch, ProducerEpoch, ProducerFields,
    ProducerId, Scratch,
};
use mainstem_testkit::document_part;
use parking_lot::Mutex;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The log as its directory's flusher knows it.
struct Shared {
    log: Mutex<Option<Log>>,
    ticket: FlushTicket,
    ended: Mutex<Sender<Result<(), String>>>,
}

impl FlushTarget for Shared {
    fn ticket(&self) -> &FlushTicket {
        &self.ticket
    }
    fn begin_flush(&self) -> FlushWork {
        self.log.lock().as_mut().map(Log::flush_work).unwrap_or_default()
    }
    fn end_flush(&self, upto: i64, result: io::Result<()>) {
        if let Some(log) = &mut *self.log.lock() {
            match &result {
                Ok(()) => drop(log.flushed(upto)),
                Err(error) => log.failed(error),
            }
        }
        let _ = self.ended.lock().send(result.map_err(|error| error.to_string()));
    }
}

impl LogAccess for &Shared {
    fn with_log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> Option<T> {
        self.log.lock().as_mut().map(act)
    }
}

/// A directory with one log of numbered records.
struct Numbers {
    disk: SimStorage,
    hooked: Hooked,
    bench: Bench,
    dir: Option<Arc<LogDir>>,
    shared: Arc<Shared>,
    ended: Receiver<Result<(), String>>,
    /// The boot of the next start.
    boot: &'static str,
    /// Values by offset.
    accepted: Vec<String>,
    /// The epoch under which records are appended.
    epoch: LeaderEpoch,
    /// Its group's journal has the next start begin at 50.
    begins_elsewhere: bool,
    /// Records before it were durable when the log was closed.
    durable: i64,
    /// Records behind it need not be there.
    wanted: i64,
    /// Values of appends that were refused since: a crash may leave the first of them.
    refused: Vec<String>,
    /// Records before it need not be there, and from there on they have to be.
    start: (i64, i64),
    /// Only the last record of each key has to be there.
    compacted: bool,
    /// The partition was deleted.
    deleted: bool,
    is_stopped_in_order: bool,
    lasting: Option<&'static str>,
    act: fn(&mut Numbers) -> Result<(), String>,
}

fn said<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

impl Numbers {
    /// A disk with nothing on it.
    fn new(config: LogConfig, is_replica: bool, act: fn(&mut Numbers) -> Result<(), String>) -> Numbers {
        let disk = SimStorage::new();
        let hooked = Hooked::over(&disk);
        let mut bench = Bench::with_storage(Arc::new(hooked.clone()), config);
        bench.is_replica = is_replica;
        let (sender, ended) = channel();
        let shared =
            Shared { log: Mutex::new(None), ticket: FlushTicket::default(), ended: Mutex::new(sender) };
        Numbers {
            disk,
            hooked,
            bench,
            dir: None,
            shared: Arc::new(shared),
            ended,
            boot: "a",
            accepted: Vec::new(),
            epoch: LeaderEpoch::ZERO,
            begins_elsewhere: false,
            durable: 0,
            wanted: i64::MAX,
            refused: Vec::new(),
            start: (0, 0),
            compacted: false,
            deleted: false,
            is_stopped_in_order: false,
            lasting: None,
            act,
        }
    }

    /// With so many records, all of them synced, but the last three.
    fn filled(mut self, records: usize) -> Numbers {
        self.open_dir().unwrap();
        self.open_log().unwrap();
        (3..records).for_each(|_| self.append().unwrap());
        self.sync().unwrap();
        (0..3).for_each(|_| self.append().unwrap());
        self
    }

    fn stopped_in_order(mut self) -> Numbers {
        self.stop().unwrap();
        self.is_stopped_in_order = false;
        self.disk.kill();
        self
    }

    fn killed(mut self) -> Numbers {
        self.forget();
        self.disk.kill();
        self
    }

    fn unpowered(mut self) -> Numbers {
        let durable = self.log(|log| log.ends().durable_end);
        self.forget();
        self.disk.power_cut(&mut Random::new(3));
        self.accepted.truncate(durable as usize);
        self.boot = "b";
        // Some of the rest is there, as that seed has it.
        self.open_dir().unwrap();
        self.open_log().unwrap();
        let end = self.log(|log| log.ends().log_end) as usize;
        (durable as usize..end).for_each(|number| self.accepted.push(value(number)));
        self.forget();
        self.disk.power_cut(&mut Random::new(3));
        self.accepted.truncate(end);
        self.boot = "c";
        self
    }

    /// The process has nothing any more.
    fn forget(&mut self) {
        self.shared.log.lock().take();
        self.dir = None;
    }

    fn log<T>(&self, act: impl FnOnce(&mut Log) -> T) -> T {
        act(self.shared.log.lock().as_mut().expect("it is open"))
    }

    fn open_dir(&mut self) -> Result<(), String> {
        let identity = NodeIdentity { cluster_id: Some("cluster".into()), node_id: 1 };
        let dir =
            LogDir::open(self.bench.storage.clone(), &self.bench.path, &identity, self.boot).map_err(said)?;
        self.dir = Some(dir);
        Ok(())
    }

    fn open_log(&mut self) -> Result<(), String> {
        let dir = self.dir.clone().expect("its directory is open");
        let (mut log, _) = self.bench.try_open(&dir).map_err(said)?;
        if self.bench.is_replica {
            log.hold_high_watermark(3).map_err(said)?;
        }
        *self.shared.log.lock() = Some(log);
        Ok(())
    }

    fn append(&mut self) -> Result<(), String> {
        self.append_of(ProducerFields::default())
    }

    fn append_of(&mut self, producer: ProducerFields) -> Result<(), String> {
        let number = self.accepted.len();
        let is_transactional = producer != ProducerFields::default();
        let mut batch =
            BatchBuilder::new(BatchOptions { producer, is_transactional, ..BatchOptions::default() });
        let (key, value) = ([(number % 4) as u8], value(number));
        batch.append(WALL_MS, Some(&key), Some(value.as_bytes()), &[]).expect("a small record");
        let (bytes, mut out) = (batch.build().expect("a small batch"), Vec::new());
        let (config, mono_ms, epoch) = (self.bench.config.clone(), self.bench.mono_ms, self.epoch);
        let prepared = prepare(&bytes, &config, WALL_MS, Origin::Client, &mut Scratch::new(), &mut out);
        let prepared = prepared.expect("a batch");
        match self.log(|log| log.append(&prepared, epoch, mono_ms)) {
            Ok(appended) => {
                assert_eq!(appended.base_offset as usize, number);
                self.accepted.push(value);
                self.refused.clear();
                Ok(())
            }
            Err(error) => {
                self.refused.push(value);
                Err(said(error))
            }
        }
    }

    fn abort(&mut self) -> Result<(), String> {
        let marker = TransactionMarker {
            producer_id: ProducerId::new(5),
            producer_epoch: ProducerEpoch::new(0),
            coordinator_epoch: CoordinatorEpoch::new(0),
            committed: false,
            transaction_version: 1,
        };
        let result = self.log(|log| log.append_marker(&marker, LeaderEpoch::ZERO, WALL_MS, 1000));
        match result {
            Ok(_) => {
                self.accepted.push(MARKER.to_owned());
                self.refused.clear();
                Ok(())
            }
            Err(error) => {
                self.refused.push(MARKER.to_owned());
                Err(said(error))
            }
        }
    }

    /// By the directory's flusher, as everything that is acknowledged.
    fn sync(&mut self) -> Result<(), String> {
        let target: Arc<dyn FlushTarget> = self.shared.clone();
        let dir = self.dir.as_ref().expect("its directory is open");
        assert!(dir.flusher().request(&target));
        self.ended.recv().expect("the flusher says what came of it")
    }

    fn maintain(&mut self) -> Result<(), String> {
        let done = self.log(|log| log.maintain(WALL_MS, 2000));
        self.start.1 = self.log(|log| log.ends().log_start);
        done.map(drop).map_err(said)
    }

    fn commit(&mut self) -> Result<(), String> {
        let dir = self.dir.clone().expect("its directory is open");
        let checkpoints = dir.checkpoints();
        let all = [&checkpoints.recovery_point, &checkpoints.log_start, &checkpoints.cleaner];
        all.into_iter().try_for_each(|checkpoint| commit(&dir, checkpoint))
    }

    fn delete_records(&mut self) -> Result<(), String> {
        self.log(|log| log.delete_records_before(20)).map_err(said)?;
        self.start.1 = 20;
        let dir = self.dir.clone().expect("its directory is open");
        let checkpoint = dir.checkpoints().log_start.clone();
        commit(&dir, &checkpoint)?;
        // It is acknowledged.
        self.start.0 = 20;
        Ok(())
    }

    /// A replica gives up records that others have not, while a sync of them is under way, and takes others.
    fn truncate(&mut self) -> Result<(), String> {
        self.cut_during_a_sync(15, |log| log.truncate_suffix(15, 2000).map(drop))
    }

    /// The same of a replica that is too far behind.
    fn begin_elsewhere(&mut self) -> Result<(), String> {
        self.start.1 = 50;
        self.begins_elsewhere = true;
        let begun = self.cut_during_a_sync(50, |log| log.truncate_fully_and_start_at(50, 2000));
        self.begins_elsewhere = self.log(|log| log.ends().log_start) < 50 || begun.is_err();
        begun
    }

    fn cut_during_a_sync(
        &mut self,
        end: usize,
        cut: impl FnOnce(&mut Log) -> Result<(), LogError>,
    ) -> Result<(), String> {
        self.wanted = end.min(self.accepted.len()) as i64;
        if self.start.1 > 0 {
            self.wanted = 0;
        }
        let upto = self.log(|log| log.flush_work().upto);
        let mut done = self.log(cut).map_err(said);
        if done.is_ok() {
            self.accepted.truncate(end);
            (self.accepted.len()..end).for_each(|number| self.accepted.push(value(number)));
            done = (0..2).try_for_each(|_| self.append());
        }
        self.log(|log| log.flushed(upto));
        done
    }

    fn compact(&mut self) -> Result<(), String> {
        self.compacted = true;
        let view = self.log(|log| log.compaction_view(i64::MAX)).expect("a compacted log");
        let dirty = view.assess(WALL_MS + 10_000).map_err(said)?;
        let (first_dirty, first_uncleanable) = (dirty.first_dirty, dirty.first_uncleanable);
        let task = Task { first_dirty, first_uncleanable, wall_ms: WALL_MS + 10_000, mono_ms: 2000 };
        let options =
            CleanerOptions { dedupe_bytes: 24 * 100, load_factor: 0.95, io_bytes: 256, secret: [9; 16] };
        let cleaned = Cleaner::new(options).clean(&&*self.shared, &task, &mut |_| ControlFlow::Continue(()));
        cleaned.map(drop).map_err(said)
    }

    /// A consumer from the start.
    fn read(&mut self) -> Result<(), String> {
        let (start, seen) = self.log(|log| (log.ends().log_start, read_all(log)));
        self.check(start, &seen?);
        Ok(())
    }

    fn search(&mut self) -> Result<(), String> {
        let search = self.log(|log| log.timestamp_search()).map_err(said)?;
        let found = search.offset_for(WALL_MS).map_err(said)?;
        assert_eq!(found.map(|found| found.offset), Some(0));
        Ok(())
    }

    /// A stop in order; what fails is checked by the next start.
    fn stop(&mut self) -> Result<(), String> {
        let log = self.shared.log.lock().take().expect("it is open");
        self.durable = log.ends().durable_end;
        let closed = log.close().map_err(said);
        let dir = self.dir.take().expect("its directory is open");
        if closed.is_err() {
            dir.distrust(&partition());
        }
        self.is_stopped_in_order = dir.stop_clean().is_ok_and(|clean| clean);
        if !self.is_stopped_in_order {
            self.lasting = Some(UNCLEAN);
        }
        drop(dir);
        self.disk.kill();
        Ok(())
    }

    fn delete_partition(&mut self) -> Result<(), String> {
        let dir = self.dir.clone().expect("its directory is open");
        self.shared.log.lock().take();
        self.wanted = 0;
        dir.set_aside(&[partition()], SetAside::Delete, 0).map_err(said)?;
        self.deleted = true;
        Ok(())
    }

    /// The records from `start` on are what was accepted, and perhaps what was refused last.
    fn check(&self, start: i64, seen: &[(i64, String)]) {
        let known: Vec<_> = self.accepted.iter().chain(self.refused.first()).collect();
        let (least, len) = (self.accepted.len() as i64, known.len() as i64);
        let mut next = start;
        for (offset, value) in seen {
            let kept = |offset: i64| !self.compacted || offset + 4 > least;
            assert!((next..*offset).all(|gap| !kept(gap)), "records from {next} to {offset} are missing");
            assert!(*offset < len, "a record at {offset} that was never appended");
            assert_eq!(value, known[*offset as usize], "at {offset}");
            next = offset + 1;
        }
    }
}

/// Has a checkpoint written as those do who acknowledge by it.
fn commit(dir: &LogDir, checkpoint: &Arc<OffsetCheckpoint>) -> Result<(), String> {
    let (sender, done) = channel();
    dir.commit(checkpoint, Box::new(move |result| drop(sender.send(result))));
    done.recv().expect("the callback runs").map_err(said)
}

const MARKER: &str = "a marker";

fn partition() -> TopicPartition {
    TopicPartition::new("t", 0)
}

fn value(number: usize) -> String {
    format!("value {number:060}")
}

/// Every record from the log start on; of a marker, that it is one.
fn read_all(log: &Log) -> Result<Vec<(i64, String)>, String> {
    let (mut next, mut seen) = (log.ends().log_start, Vec::new());
    while next < log.ends().log_end {
        let range = match log.read(next, ReadBound::LogEnd, 500, true).map_err(said)? {
            ReadPlan::Later(pending) => resolve(pending.resolve().map_err(said)?),
            plan => resolve(plan),
        };
        let Some(range) = range else { break };
        let bytes = range.to_vec().map_err(said)?;
        let mut rest = &bytes[..];
        let before = next;
        while let Ok((batch, behind)) = Batch::split_first(rest) {
            let mut buffer = Vec::new();
            for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
                let record = record.expect("a record");
                let value = String::from_utf8_lossy(record.value.unwrap_or_default()).into_owned();
                if record.offset >= next {
                    seen.push((
                        record.offset,
                        if batch.attributes().is_control() { MARKER.to_owned() } else { value },
                    ));
                }
            }
            next = next.max(batch.next_offset());
            rest = behind;
        }
        assert!(next > before, "no whole batch at {before}");
    }
    Ok(seen)
}

impl Numbers {
    /// The page cache is not to be believed.
    fn has_failed_sync(&self) -> bool {
        self.dir.as_ref().is_some_and(|dir| dir.has_failed_sync() || dir.failure().is_some())
    }

    /// A start finds the records before `least`, and none that was never appended. Returns the log end.
    fn check_after_start(&mut self, least: i64) -> i64 {
        self.open_dir().expect("the directory opens after any crash");
        self.open_log().expect("the log opens after any crash");
        let (ends, seen) = self.log(|log| (log.ends(), read_all(log).expect("a read")));
        if self.deleted {
            assert_eq!(ends.log_end, 0, "it was deleted");
            (self.deleted, self.start) = (false, (0, 0));
            return 0;
        }
        assert!(ends.log_end >= least, "the log ends at {}, before {least}", ends.log_end);
        assert!((self.start.0..=self.start.1).contains(&ends.log_start), "it starts at {}", ends.log_start);
        self.check(ends.log_start, &seen);
        if std::mem::take(&mut self.begins_elsewhere) {
            self.log(|log| log.truncate_fully_and_start_at(50, 3000)).expect("a log that was just opened");
            self.start = (50, 50);
            self.accepted.truncate(50);
            (self.accepted.len()..50).for_each(|number| self.accepted.push(value(number)));
            return 50;
        }
        ends.log_end
    }
}

impl World for Numbers {
    fn storage(&self) -> &Hooked {
        &self.hooked
    }

    fn act(&mut self) -> Result<(), String> {
        (self.act)(self)
    }

    fn effect(&self) -> Option<&'static str> {
        let dir = self.dir.as_ref();
        match () {
            () if self.lasting.is_some() => self.lasting,
            () if dir.is_some_and(|dir| dir.failure().is_some()) => Some("the directory is offline"),
            () if self.shared.log.lock().as_ref().is_some_and(|log| log.stopped().is_some()) => {
                Some("the partition stops")
            }
            () => None,
        }
    }

    fn verify(mut self: Box<Self>, ending: Ending) {
        let open = self.shared.log.lock().as_ref().map(|log| (log.ends(), log.stopped().is_some()));
        let mut least = self.accepted.len() as i64;
        if let Some((ends, is_stopped)) = open {
            if !is_stopped {
                let (start, seen) = self.log(|log| (log.ends().log_start, read_all(log).expect("a read")));
                self.check(start, &seen);
                let end = seen.last().map_or(start, |(offset, _)| offset + 1);
                assert_eq!(end, least);
            }
            if matches!(ending, Ending::PowerCut(_)) || self.has_failed_sync() {
                least = ends.durable_end;
            }
        } else if !self.is_stopped_in_order {
            least = self.durable;
        }
        least = least.min(self.wanted);
        self.forget();
        match ending {
            Ending::Kill(_) => self.disk.kill(),
            Ending::PowerCut(seed) => {
                self.disk.power_cut(&mut Random::new(seed));
                self.boot = "z";
            }
        }
        let mut end = self.check_after_start(least) as usize;
        if let Ending::Kill(seed) = ending {
            // All that this start takes for durable is.
            let durable = self.log(|log| log.ends().durable_end);
            self.forget();
            self.disk.power_cut(&mut Random::new(seed));
            self.boot = "y";
            self.wanted = i64::MAX;
            end = self.check_after_start(durable) as usize;
        }
        // All that this start has found, and an append, count as durable after a sync.
        self.accepted.truncate(end);
        let refused = std::mem::take(&mut self.refused);
        self.accepted.extend(refused.into_iter().take(end - self.accepted.len()));
        (self.accepted.len()..end).for_each(|number| self.accepted.push(value(number)));
        self.append().expect("a log that was just opened");
        self.sync().expect("a log that was just opened");
        self.forget();
        self.disk.power_cut(&mut Random::new(11));
        self.boot = "zz";
        self.wanted = i64::MAX;
        self.check_after_start(self.accepted.len() as i64);
    }
}

/// The kind of a file, as the document names it.
fn class(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = name.strip_suffix(".tmp").unwrap_or(name);
    match SegmentFileName::parse(name) {
        Some(file) => {
            let state = match file.state {
                FileState::Live => "",
                FileState::Deleted => ".deleted",
                FileState::Cleaned => ".cleaned",
                FileState::Swap => ".swap",
            };
            format!("`{}{state}`", file.kind.suffix())
        }
        None if name == "data" => "the log directory".to_owned(),
        None if name == "t-0" => "the partition's directory".to_owned(),
        None if name.starts_with("t-0.") => "the partition's directory".to_owned(),
        None if name.is_empty() => "the parent directory".to_owned(),
        None => format!("`{name}`"),
    }
}

fn action(name: &'static str, prepare: impl Fn() -> Numbers + 'static) -> Action {
    Action { name, prepare: Box::new(move || Box::new(prepare())) }
}

fn new(act: fn(&mut Numbers) -> Result<(), String>) -> Numbers {
    Numbers::new(small_segments(), false, act)
}

fn transactional() -> LogConfig {
    LogConfig { transaction_verification: false, ..small_segments() }
}

fn compacted() -> LogConfig {
    LogConfig {
        compact: true,
        delete: false,
        min_cleanable_dirty_ratio: 0.0,
        retention_ms: None,
        ..small_segments()
    }
}

fn retained() -> LogConfig {
    LogConfig { retention_bytes: Some(2500), file_delete_delay_ms: 0, ..small_segments() }
}

/// With records of which the checkpoints know.
fn noted(world: Numbers) -> Numbers {
    let mut world = world.filled(40);
    world.maintain().unwrap();
    world.commit().unwrap();
    world
}

fn start_dir(world: &mut Numbers) -> Result<(), String> {
    world.open_dir().map(drop)
}

fn actions() -> Vec<Action> {
    let with_dir = |mut world: Numbers| {
        world.open_dir().unwrap();
        world
    };
    let older = |mut world: Numbers| {
        world.disk.set_cold(true);
        world.bench.mono_ms += 1;
        world
    };
    vec![
        action("start on an empty directory", || new(start_dir)),
        action("start after an orderly stop", || new(start_dir).filled(6).stopped_in_order()),
        action("start after a kill", || new(start_dir).filled(6).killed()),
        action("start after a power cut", || new(start_dir).filled(6).unpowered()),
        action("create a partition", move || with_dir(new(Numbers::open_log))),
        action("open a log after an orderly stop", move || {
            with_dir(new(Numbers::open_log).filled(40).stopped_in_order())
        }),
        action("open a log after a kill", move || with_dir(new(Numbers::open_log).filled(40).killed())),
        action("open a log after a power cut", move || {
            with_dir(new(Numbers::open_log).filled(40).unpowered())
        }),
        action("open a replica's log", move || {
            let mut world = Numbers::new(transactional(), true, Numbers::open_log).filled(6);
            world.append_of(ProducerFields { producer_id: 5, producer_epoch: 0, base_sequence: 0 }).unwrap();
            with_dir(world.stopped_in_order())
        }),
        action("append", || new(Numbers::append).filled(6)),
        action("append that begins a segment", || new(Numbers::append).filled(14)),
        action("abort a transaction", || {
            let mut world = Numbers::new(transactional(), false, Numbers::abort).filled(6);
            world.append_of(ProducerFields { producer_id: 5, producer_epoch: 0, base_sequence: 0 }).unwrap();
            world
        }),
        action("sync", || new(Numbers::sync).filled(20)),
        action("read an older segment", move || older(new(Numbers::read).filled(40).stopped_and_open())),
        action("look for a time", move || older(new(Numbers::search).filled(40).stopped_and_open())),
        action("housekeeping", || {
            let mut world = new(|world| world.maintain().and_then(|()| world.maintain())).filled(20);
            world.epoch = LeaderEpoch::new(1);
            world.append().unwrap();
            world
        }),
        action("delete segments", || Numbers::new(retained(), false, Numbers::maintain).filled(60)),
        action("remove deleted segments", || {
            let mut world = Numbers::new(retained(), false, Numbers::maintain).filled(60);
            world.maintain().unwrap();
            world
        }),
        action("DeleteRecords", || new(Numbers::delete_records).filled(40)),
        action("write the checkpoints", || {
            let mut world = new(Numbers::commit).filled(40);
            world.maintain().unwrap();
            world
        }),
        action("truncate a replica", || noted(Numbers::new(small_segments(), true, Numbers::truncate))),
        action("have a replica begin elsewhere", || {
            noted(Numbers::new(small_segments(), true, Numbers::begin_elsewhere))
        }),
        action("compact", || Numbers::new(compacted(), false, Numbers::compact).filled(40)),
        action("delete a partition", || new(Numbers::delete_partition).filled(6)),
        action("stop in order", || new(Numbers::stop).filled(20)),
    ]
}

impl Numbers {
    /// Left in order and opened again: what is older is in no cache.
    fn stopped_and_open(self) -> Numbers {
        let mut world = self.stopped_in_order();
        world.open_dir().unwrap();
        world.open_log().unwrap();
        world
    }
}

#[test]
fn a_fault_at_any_call_has_the_effect_that_the_document_says() {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    document_part(&document, "log", &fault_table(&actions(), class));
}
