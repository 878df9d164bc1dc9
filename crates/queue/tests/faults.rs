//! Faults of the storage in all system calls of each action, one at a time. A test checks the effect on the action, and that nothing
//! that was promised is lost. The table is a part of docs/faults.md.
//!
//! This program's file calls are those of `testkit/interposed/calls.rs`.
#![allow(clippy::unwrap_used, reason = "a test that fails says so by a panic")]

#[path = "../../testkit/interposed/calls.rs"]
mod calls;
#[path = "../../testkit/interposed/table.rs"]
mod table;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use calls::{Call, Class, Fault, Place, Watched};
use mainstem_queue::{Options, Queue, QueueError, Result, Start, repair, verify};
use table::{check_words, directory, is_temporary};

/// Three messages of this size fill the smallest segment.
const VALUE_BYTES: usize = 20_000;
const IN_SEGMENT: usize = 3;
const TAILER: &str = "me";

/// A queue, and the promises about it.
struct World {
    watched: Watched,
    directory: PathBuf,
    options: Options,
    queue: Option<Queue>,
    /// Values of all messages whose append has returned an offset.
    values: Vec<String>,
    /// Appends that were tried.
    attempts: usize,
    /// The lock of a publisher that seems to run.
    publisher: Option<fs::File>,
    _dir: tempfile::TempDir,
}

impl World {
    fn new() -> World {
        let dir = directory();
        let root = dir.path().canonicalize().unwrap();
        World {
            watched: Watched::new(&root),
            directory: root.join("q"),
            options: Options::new().segment_bytes(1),
            queue: None,
            values: Vec::new(),
            attempts: 0,
            publisher: None,
            _dir: dir,
        }
    }

    fn queue(&self) -> &Queue {
        self.queue.as_ref().unwrap()
    }

    fn open(&mut self) -> Result<()> {
        self.queue = Some(self.options.open(&self.directory)?);
        Ok(())
    }

    /// Opens the queue, and appends so many messages durably.
    fn fill(&mut self, count: usize) {
        self.open().unwrap();
        (0..count).for_each(|_| self.append().unwrap());
        self.sync().unwrap();
    }

    fn append(&mut self) -> Result<()> {
        self.attempts += 1;
        // All values differ, so that a refused one is not taken for another.
        let value = format!("{} of attempt {} {}", self.values.len(), self.attempts, "x".repeat(VALUE_BYTES));
        let offset = self.queue().append(&value)?;
        assert_eq!(offset, self.values.len() as i64);
        self.values.push(value);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        let synced = self.queue().sync()?;
        assert_eq!((synced, self.queue().ends().synced), (self.end(), self.end()));
        Ok(())
    }

    fn end(&self) -> i64 {
        self.values.len() as i64
    }

    /// Reads all by a tailer that keeps its position.
    fn read_by_tailer(&mut self) -> Result<()> {
        let mut tailer = self.queue().tailer(TAILER)?;
        while tailer.read()?.is_some() {}
        tailer.commit();
        assert_eq!(tailer.position(), self.end());
        Ok(())
    }

    fn check_tailer(&self) -> Result<()> {
        let found = self.queue().find_tailer(TAILER)?.expect("it is kept");
        assert_eq!(found.position, self.end());
        Ok(())
    }

    fn read(&self) -> Result<()> {
        let queue = self.queue();
        let (start, mut reader) = (queue.ends().start, queue.reader(Start::Earliest)?);
        let mut offset = start;
        while let Some(record) = reader.read()? {
            assert_eq!(record.offset, offset);
            assert!(record.value == Some(self.values[offset as usize].as_bytes()), "at {offset}");
            offset += 1;
        }
        assert_eq!((offset, queue.ends().next), (self.end(), self.end()));
        Ok(())
    }

    /// Makes the queue look as after a restart of the machine. No process has it open.
    fn forget_boot(&mut self) {
        self.queue = None;
        let control = fs::File::options().write(true).open(self.directory.join("queue.control")).unwrap();
        control.write_all_at(&[7; 16], 512).unwrap();
    }

    /// Makes a sync fail.
    fn fail_a_sync(&mut self) {
        let place = Place { call: Call::Sync, class: Class::Segment };
        self.watched.begin(Some(Fault { place, nth: 1, lasts: false, errno: libc::EIO }));
        self.queue().sync().unwrap_err();
        assert_eq!(self.watched.end().refused, 1);
    }

    /// Checks that all that was promised is there: for this process, for one that opens the queue now, and in the files.
    fn check(&mut self) {
        if self.queue.is_some() {
            self.read().unwrap();
        }
        let kept = self.queue.take();
        self.open().unwrap();
        self.read().unwrap();
        self.queue = kept.or_else(|| self.queue.take());
        let found = verify(&self.directory).unwrap();
        assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
        let next = found.segments.last().map(|segment| segment.next_offset);
        // If retention failed to delete segments, there is more than was promised.
        assert_eq!(next, Some(self.end()));
    }

    /// Checks that all that was promised outlives the processes and a restart of the machine; then opens the queue again.
    fn check_later(&mut self, syncs: bool) {
        self.append().unwrap();
        match syncs {
            true => self.sync().unwrap(),
            false => assert!(matches!(self.sync(), Err(QueueError::SyncFailed { .. }))),
        }
        self.check();
        self.queue = None;
        self.open().unwrap();
        assert_eq!(self.sync().is_ok(), syncs, "the next process knows of a failed sync too");
        self.check();
        self.forget_boot();
        self.open().unwrap();
        self.check();
        self.append().unwrap();
        self.sync().unwrap();
        self.check();
        // Readers of remote hosts compare these epochs with their own (KIP-320).
        let epochs = fs::read_to_string(self.directory.join("leader-epoch-checkpoint")).unwrap();
        let first = epochs.lines().nth(2).and_then(|line| line.split_once(' '));
        assert_eq!(first.map(|(_, start)| start), Some("0"), "epochs are forgotten: {epochs:?}");
        // A power cut erases neither the rules of the queue nor the names of its files.
        let synced = self.watched.synced();
        assert!(synced.contains(&self.directory.join("queue.control")) && synced.contains(&self.directory));
        let believed = self.watched.believed();
        assert!(believed.is_empty(), "synced once more, and not written once more: {believed:?}");
    }
}

/// An action that is done while a call fails.
struct Action {
    name: &'static str,
    begin: fn(&mut World),
    act: fn(&mut World) -> Result<()>,
}

static ACTIONS: [Action; 17] = [
    Action { name: "open a new queue", begin: |_| {}, act: World::open },
    Action {
        name: "open a queue",
        begin: |world| {
            world.fill(5);
            world.queue = None;
        },
        act: World::open,
    },
    Action { name: "first append of a process", begin: |world| reopened(world, 5), act: World::append },
    Action { name: "append", begin: |world| world.fill(IN_SEGMENT + 1), act: World::append },
    Action { name: "append that rolls", begin: |world| world.fill(2 * IN_SEGMENT), act: World::append },
    Action {
        name: "append that rolls to a segment made ahead",
        begin: |world| {
            world.fill(2 * IN_SEGMENT);
            drop(world.queue().prepare_ahead().unwrap());
        },
        act: World::append,
    },
    Action {
        name: "append that rolls and deletes a segment",
        begin: |world| {
            // Two full segments and the space of a third exceed it.
            world.options = world.options.clone().retention_bytes(150_000);
            world.fill(2 * IN_SEGMENT);
        },
        act: |world| {
            world.append()?;
            assert!([0, IN_SEGMENT as i64].contains(&world.queue().ends().start));
            Ok(())
        },
    },
    Action {
        name: "sync of two segments",
        begin: |world| {
            world.fill(2 * IN_SEGMENT - 1);
            (0..2).for_each(|_| world.append().unwrap());
        },
        act: World::sync,
    },
    Action {
        name: "sync of the control file",
        begin: |world| world.fill(1),
        act: |world| world.queue().sync_control(),
    },
    Action {
        name: "read over segments",
        begin: |world| world.fill(2 * IN_SEGMENT + 1),
        act: |world| world.read(),
    },
    Action {
        name: "read by a new tailer",
        begin: |world| world.fill(2 * IN_SEGMENT + 1),
        act: World::read_by_tailer,
    },
    Action {
        name: "open and look at a tailer",
        begin: |world| {
            world.fill(2 * IN_SEGMENT + 1);
            world.read_by_tailer().unwrap();
        },
        act: |world| {
            assert_eq!(world.queue().tailer(TAILER)?.position(), world.end());
            world.check_tailer()
        },
    },
    Action {
        name: "tailer of a consumer whose publisher runs",
        begin: |world| {
            world.fill(1);
            let lock = fs::File::create(world.directory.join("direct.lock")).unwrap();
            lock.lock().unwrap();
            world.publisher = Some(lock);
            fs::create_dir(world.directory.join("subscriptions")).unwrap();
            fs::write(world.directory.join("subscriptions").join(format!("{TAILER}.subscription")), "")
                .unwrap();
        },
        act: |world| match world.queue().tailer(TAILER) {
            Err(QueueError::TailerInUse { .. }) => Ok(()),
            taken => panic!("the publisher moves it, and another one has it: {:?}", taken?.position()),
        },
    },
    Action {
        name: "recover after a restart of the machine",
        begin: |world| {
            reopened(world, 2 * IN_SEGMENT - 1);
            world.read_by_tailer().unwrap();
            (0..2).for_each(|_| world.append().unwrap());
            world.forget_boot();
        },
        act: World::open,
    },
    Action {
        name: "recover after a restart, a sync having failed",
        begin: |world| {
            world.fill(2 * IN_SEGMENT - 1);
            (0..2).for_each(|_| world.append().unwrap());
            world.fail_a_sync();
            world.forget_boot();
        },
        act: World::open,
    },
    Action {
        name: "repair",
        begin: |world| {
            world.fill(2 * IN_SEGMENT - 1);
            (0..2).for_each(|_| world.append().unwrap());
            world.fail_a_sync();
            world.queue = None;
        },
        act: |world| {
            let repaired = repair(&world.directory, &world.options)?;
            assert_eq!((repaired.next_offset, repaired.lost), (world.end(), 0));
            Ok(())
        },
    },
    Action {
        name: "verify",
        begin: |world| world.fill(2 * IN_SEGMENT + 1),
        act: |world| {
            let found = verify(&world.directory)?;
            assert!(found.is_sound(), "{:?}", found.all_faults().collect::<Vec<_>>());
            Ok(())
        },
    },
];

/// A queue with messages that this process has not appended.
fn reopened(world: &mut World, count: usize) {
    world.fill(count);
    world.queue = None;
    world.open().unwrap();
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
        let acted = (self.act)(&mut world);
        let seen = world.watched.end();
        if seen.refused == 0 {
            acted.unwrap();
            return None;
        }
        let is_sync = fault.place.call == Call::Sync;
        let effect = match acted {
            Ok(()) => "unnoticed",
            Err(error) => {
                check_words(&error, &seen);
                match (self.act)(&mut world) {
                    Ok(()) => "refused",
                    Err(QueueError::SyncFailed { .. }) if is_sync => "no syncs",
                    Err(error) if is_temporary(fault) => panic!("it still fails: {error}"),
                    Err(_) => "stopped",
                }
            }
        };
        world.check();
        if world.queue.is_none() {
            world.open().unwrap();
        }
        world.check_later(effect != "no syncs");
        Some(effect)
    }
}

#[test]
fn each_fault_at_each_call_of_each_action_has_its_effect_and_takes_nothing() {
    let table = table::table(&ACTIONS);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/faults.md");
    mainstem_testkit::document_part(&document, "queue", &table);
}
