//! Faults of the storage in all calls of opening a journal, appending to it and storing a consumer: one kind of call at a time, at each
//! place. A test checks the effect on the action, and that nothing that was promised is lost. The table is a part of docs/faults.md.
//!
//! This program's file calls are those of `testkit/interposed/calls.rs`.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

#[path = "../../testkit/interposed/calls.rs"]
mod calls;
#[path = "../../testkit/interposed/table.rs"]
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use calls::{Call, Fault, Place, Watched};
use mainstem_direct::proto::{self, manage_request::Action as Manage, reset::To};
use mainstem_direct::{DirectError, Journal, JournalOptions, LocalAdmin, Result};
use mainstem_queue::{Options, Queue, QueueError, Start, verify};
use table::{TIMEOUT, check_words, directory, is_temporary};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// The number of failed calls after which an action that has not ended is taken to wait.
const TRIES: u64 = 3;
/// Three events of this size fill the smallest segment.
const VALUE_BYTES: usize = 20_000;
const IN_SEGMENT: usize = 3;
const CONSUMER: &str = "analytics";

/// A journal, and the promises about it.
struct World {
    watched: Watched,
    directory: PathBuf,
    runtime: Runtime,
    journal: Option<Journal>,
    local: Option<LocalAdmin>,
    /// Values of all events whose append has returned an offset, by that offset.
    values: BTreeMap<i64, String>,
    /// Values that may or may not be in the journal: their sync has failed.
    unknown: BTreeSet<String>,
    attempts: usize,
    /// The position of the consumer, if there is one.
    position: Option<i64>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let dir = directory();
        let root = dir.path().canonicalize().unwrap();
        World {
            watched: Watched::new(&root),
            // The name is the stream's, and that of its thread.
            directory: root.join(format!("s{}", COUNT.fetch_add(1, Ordering::Relaxed))),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            journal: None,
            local: None,
            values: BTreeMap::new(),
            unknown: BTreeSet::new(),
            attempts: 0,
            position: None,
            _dir: dir,
        }
    }

    fn open(&mut self) -> Result<()> {
        let opened = JournalOptions::new().queue(|queue| queue.segment_bytes(1)).open(&self.directory);
        if opened.is_err() {
            self.check_no_thread();
        }
        self.journal = Some(opened?);
        Ok(())
    }

    /// Checks that a journal that could not be opened has no thread.
    fn check_no_thread(&self) {
        let name = format!("direct-{}\n", self.directory.file_name().unwrap().display());
        let is_there = || {
            let mut tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            tasks.any(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|one| one == name))
        };
        let deadline = Instant::now() + TIMEOUT / 2;
        // The thread of the journal before may be listed for a moment after its end.
        while is_there() {
            assert!(Instant::now() < deadline, "a thread of it is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn fill(&mut self, count: usize) {
        self.open().unwrap();
        (0..count).for_each(|_| self.append().unwrap());
    }

    fn close(&mut self) {
        (self.journal, self.local) = (None, None);
    }

    fn value(&mut self) -> String {
        self.attempts += 1;
        format!("attempt {} {}", self.attempts, "x".repeat(VALUE_BYTES))
    }

    fn append(&mut self) -> Result<()> {
        let value = self.value();
        let appending = self.begin_append(&value);
        self.end_append(value, appending)
    }

    fn begin_append(&self, value: &str) -> JoinHandle<Result<i64>> {
        let (journal, value) = (self.journal.clone().unwrap(), value.to_owned());
        self.runtime.spawn(async move { journal.append("key", &value).await })
    }

    fn end_append(&mut self, value: String, appending: JoinHandle<Result<i64>>) -> Result<()> {
        let done = async { tokio::time::timeout(TIMEOUT, appending).await };
        match self.runtime.block_on(done).expect("an append ends").unwrap() {
            Ok(offset) => {
                assert_eq!(self.values.insert(offset, value), None, "two have one offset");
                Ok(())
            }
            Err(error) => {
                if error.to_string().contains("syncing") {
                    self.unknown.insert(value);
                }
                Err(error)
            }
        }
    }

    /// Appends without a sync, as another process does.
    fn append_elsewhere(&mut self) {
        let value = self.value();
        let offset = Queue::open(&self.directory).unwrap().append(&value).unwrap();
        self.values.insert(offset, value);
    }

    /// Makes a consumer with an empty file, as a process leaves it that died before its first write.
    fn begin_consumer(&mut self) {
        let folder = self.directory.join("subscriptions");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join(format!("{CONSUMER}.subscription")), "").unwrap();
        self.position = Some(0);
    }

    fn open_local(&mut self) -> Result<()> {
        let local = LocalAdmin::open(&self.directory)?;
        assert_eq!(position_of(&local), self.position);
        self.local = Some(local);
        Ok(())
    }

    fn reset_to(&mut self, offset: i64) -> Result<()> {
        let local = self.local.as_ref().unwrap();
        let reset = proto::Reset { to: Some(To::Offset(offset)) };
        let done = local.manage(CONSUMER, &Manage::Reset(reset));
        if done.is_err() {
            assert_eq!(position_of(local), self.position, "what was refused is not so");
        }
        self.position = done?.map(|consumer| consumer.offset);
        assert_eq!(self.position, Some(offset));
        Ok(())
    }

    fn forget(&mut self) -> Result<()> {
        let local = self.local.as_ref().unwrap();
        let done = local.manage(CONSUMER, &Manage::Forget(proto::Forget {}));
        if done.is_err() {
            assert_eq!(position_of(local), self.position, "what was refused is not so");
        }
        self.position = done?.map(|consumer| consumer.offset);
        assert_eq!(self.position, None);
        Ok(())
    }

    /// Makes the journal look as after a restart of the machine. No process has it open.
    fn forget_boot(&mut self) {
        self.close();
        let control = fs::File::options().write(true).open(self.directory.join("queue.control")).unwrap();
        control.write_all_at(&[7; 16], 512).unwrap();
    }

    fn read(&self, queue: &Queue) {
        let mut reader = queue.reader(Start::Earliest).unwrap();
        let (mut found, mut next) = (BTreeMap::new(), 0);
        while let Some(record) = reader.read().unwrap() {
            assert_eq!(record.offset, next);
            next += 1;
            let value = String::from_utf8(record.value.unwrap().to_vec()).unwrap();
            match self.unknown.contains(&value) {
                true => {}
                false => drop(found.insert(record.offset, value)),
            }
        }
        assert!(found == self.values, "{:?} of {:?}", found.keys(), self.values.keys());
        assert_eq!(reader.position(), queue.ends().next);
    }

    /// Checks that all that was promised is there: for this process, for a reader of the queue, and in the files.
    fn check(&self) {
        if let Some(journal) = &self.journal {
            self.read(journal.queue());
            assert!(self.values.keys().all(|offset| *offset < journal.end()), "all is visible");
        }
        self.read(&Options::new().read_only(true).open(&self.directory).unwrap());
        let found = verify(&self.directory).unwrap();
        assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
    }

    /// Checks that all that was promised outlives the process and a restart of the machine; then opens the journal again.
    fn check_later(&mut self, has_failed: bool) {
        self.check();
        self.close();
        if has_failed {
            let refused = self.open().unwrap_err();
            assert!(matches!(refused, DirectError::Queue(QueueError::SyncFailed { .. })), "{refused}");
        } else {
            self.check_consumer();
            self.open().unwrap();
            self.append().unwrap();
            self.check();
        }
        self.forget_boot();
        self.open().unwrap();
        self.check();
        self.append().unwrap();
        self.check();
        self.close();
        self.check_consumer();
        if self.position.is_some() {
            let folder = self.directory.join("subscriptions");
            assert!(self.watched.synced().contains(&folder), "a power cut takes the name of the consumer");
        }
        let believed = self.watched.believed();
        assert!(believed.is_empty(), "synced once more, and not written once more: {believed:?}");
    }

    fn check_consumer(&mut self) {
        self.open_local().unwrap();
        self.close();
    }
}

fn position_of(local: &LocalAdmin) -> Option<i64> {
    local.describe().consumers.first().map(|consumer| consumer.offset)
}

/// An action that is done while calls fail.
struct Action {
    name: &'static str,
    begin: fn(&mut World),
    act: fn(&mut World) -> Result<()>,
}

static ACTIONS: [Action; 9] = [
    Action { name: "open a new journal", begin: |_| {}, act: World::open },
    Action {
        name: "open a journal",
        begin: |world| {
            world.fill(2);
            world.close();
        },
        act: World::open,
    },
    Action {
        name: "open a journal with events that are not synced",
        begin: |world| {
            world.fill(2);
            world.close();
            world.append_elsewhere();
        },
        act: World::open,
    },
    Action { name: APPEND, begin: |world| world.fill(1), act: World::append },
    Action { name: APPEND_THAT_ROLLS, begin: |world| world.fill(IN_SEGMENT), act: World::append },
    Action {
        name: "begin a consumer",
        begin: |world| {
            world.fill(IN_SEGMENT);
            world.close();
            world.begin_consumer();
        },
        act: World::open_local,
    },
    Action {
        name: "open a journal with a consumer",
        begin: |world| {
            with_consumer(world);
            world.close();
        },
        act: World::open_local,
    },
    Action { name: "keep a position", begin: with_consumer, act: |world| world.reset_to(2) },
    Action { name: "forget a consumer", begin: with_consumer, act: World::forget },
];
const APPEND: &str = "append";
const APPEND_THAT_ROLLS: &str = "append that rolls";

fn with_consumer(world: &mut World) {
    world.fill(IN_SEGMENT);
    world.close();
    world.begin_consumer();
    world.open_local().unwrap();
    // The earlier state is stored still.
    world.reset_to(1).unwrap();
}

/// Appends while calls fail. Returns true beside the result if it has waited for the end of the fault.
fn append(world: &mut World) -> (Result<()>, bool) {
    let value = world.value();
    let appending = world.begin_append(&value);
    let deadline = Instant::now() + TIMEOUT;
    while !appending.is_finished() && world.watched.seen().refused < TRIES {
        assert!(Instant::now() < deadline, "it ends, or it tries");
        world.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
    }
    let waits = !appending.is_finished();
    if waits {
        world.watched.end();
    }
    (world.end_append(value, appending), waits)
}

impl table::Action for Action {
    fn name(&self) -> &'static str {
        self.name
    }

    fn places(&self) -> Vec<Place> {
        let mut world = World::new();
        (self.begin)(&mut world);
        world.watched.begin(None);
        (self.act)(&mut world).unwrap();
        world.watched.counts().into_keys().collect()
    }

    fn effect(&self, fault: Fault) -> Option<&'static str> {
        let mut world = World::new();
        (self.begin)(&mut world);
        world.watched.begin(Some(fault));
        let (acted, waits) = match self.name {
            APPEND | APPEND_THAT_ROLLS => append(&mut world),
            _ => ((self.act)(&mut world), false),
        };
        let seen = world.watched.end();
        if seen.refused == 0 {
            acted.unwrap();
            return None;
        }
        let is_sync = fault.place.call == Call::Sync;
        let effect = match acted {
            Ok(()) if waits => "waits",
            Ok(()) => "unnoticed",
            Err(error) => {
                check_words(&error, &seen);
                match (self.act)(&mut world) {
                    Ok(()) => "refused",
                    Err(error) if is_temporary(fault) && !is_sync => panic!("it still fails: {error}"),
                    Err(_) => "fails for good",
                }
            }
        };
        world.check_later(effect == "fails for good" && is_sync);
        Some(effect)
    }
}

#[test]
fn each_fault_at_each_call_of_each_action_has_its_effect_and_takes_nothing() {
    let table = table::table(&ACTIONS);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    // The thread of a journal makes its calls in its own time. On a busy machine a cell may have an effect more or less; in each of
    // them the promises hold.
    if std::env::var_os("UPDATE_DOCS").is_some() {
        mainstem_testkit::document_part(&document, "direct", &table);
    }
}
