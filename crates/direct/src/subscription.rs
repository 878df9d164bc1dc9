//! What a publisher keeps of a consumer: how far its slices are, its filter, whether it is paused. Beside the journal, so that
//! it outlives all processes; and, as a named tailer, in the terms of the queue, whose retention may wait for it.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use mainstem_queue::{Queue, Start, Tailer};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, watch};

use crate::error::{DirectError, Result};
use crate::handover::{Connection, Effect, Handover, JoinError, Joining, Part};
use crate::kept::{BODY_BYTES_MAX, KeptFile};
use crate::proto;
use crate::slices::{Done, SliceRange, normalized};

const FOLDER: &str = "subscriptions";
const EXTENSION: &str = ".subscription";
/// After an unclean start assignments may have been forgotten that instances still have: so many numbers are left out.
const SKIPPED_GENERATIONS: u64 = 1 << 20;

/// A subscription's file, as it is written.
#[derive(Clone, PartialEq, Message)]
struct Written {
    #[prost(int32, tag = "1")]
    epoch: i32,
    #[prost(uint64, tag = "2")]
    generation: u64,
    #[prost(message, repeated, tag = "3")]
    parts: Vec<WrittenPart>,
    #[prost(bool, tag = "4")]
    is_paused: bool,
    #[prost(message, optional, tag = "5")]
    filter: Option<proto::Filter>,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenPart {
    #[prost(uint32, tag = "1")]
    from: u32,
    #[prost(uint32, tag = "2")]
    to: u32,
    #[prost(int64, tag = "3")]
    offset: i64,
    #[prost(uint64, tag = "4")]
    assignment: u64,
    /// Beginnings and ends by turns, each relative to the number before.
    #[prost(uint64, repeated, tag = "5")]
    finished: Vec<u64>,
}

/// What a session hears of its consumer.
#[derive(Debug)]
pub(crate) enum Control {
    Assign { assignment: u64, slices: SliceRange, offset: i64, is_resumed: bool, parts: Vec<Part> },
    Revoke { assignment: u64, is_lost: bool },
    Fence,
}

/// What holds for all instances of a consumer.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Settings {
    pub(crate) is_paused: bool,
    pub(crate) filter: Option<proto::Filter>,
}

/// A consumer.
#[derive(Debug)]
pub(crate) struct Subscription {
    name: String,
    epoch: i32,
    started: Instant,
    state: Mutex<State>,
    settings: watch::Sender<Settings>,
}

#[derive(Debug)]
struct State {
    handover: Handover,
    file: KeptFile,
    /// None once the consumer was forgotten: nothing of it is kept any more.
    tailer: Option<Tailer>,
    is_dirty: bool,
    mailboxes: HashMap<Connection, mpsc::UnboundedSender<Control>>,
    connections: Connection,
}

/// What may take back what is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// A power cut, until the next sync: positions, from which events are repeated.
    Written,
    /// Nothing: what was decided.
    OnDisk,
}

/// An instance that is connected.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) connection: Connection,
    pub(crate) mailbox: mpsc::UnboundedReceiver<Control>,
}

/// A consumer as it is looked at from outside.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) offset: i64,
    pub(crate) generation: u64,
    pub(crate) settings: Settings,
    pub(crate) instances: Vec<(String, Option<SliceRange>)>,
}

impl Subscription {
    /// Names of the consumers that are kept beside a journal.
    pub(crate) fn names(directory: &Path) -> Result<Vec<String>> {
        let folder = directory.join(FOLDER);
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| DirectError::io("reading", &folder, error))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let file = entry.map_err(|error| DirectError::io("reading", &folder, error))?.file_name();
            let name = file.to_str().and_then(|name| name.strip_suffix(EXTENSION));
            names.extend(name.and_then(decoded));
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Opens what is kept of a consumer; one that is new begins at `start`.
    pub(crate) fn open(queue: &Queue, epoch: i32, name: &str, start: i64) -> Result<Subscription> {
        let path = path(queue.directory(), name);
        let folder = path.parent().expect("it has one");
        std::fs::create_dir_all(folder).map_err(|error| DirectError::io("making", folder, error))?;
        let (file, kept) = KeptFile::open(&path)?;
        let is_new = kept.is_none();
        let (handover, settings) = match kept {
            None => (Handover::new(start), Settings::default()),
            Some(bytes) => restored(&bytes, epoch).ok_or_else(|| {
                let reason = "it is of another version of this program, or no subscription; use that version, or delete it to \
                              have the consumer begin anew";
                DirectError::Damaged { path: path.clone(), reason: reason.to_owned() }
            })?,
        };
        let mut state = State {
            handover,
            file,
            tailer: Some(queue.tailer(name)?),
            is_dirty: is_new,
            mailboxes: HashMap::new(),
            connections: 0,
        };
        state.keep(epoch, &settings, Kept::OnDisk)?;
        if is_new {
            // Its name too: a consumer that begins at the end would miss what came before it is known again.
            for directory in [folder, queue.directory()] {
                let synced = File::open(directory).and_then(|directory| directory.sync_all());
                synced.map_err(|error| DirectError::io("syncing", directory, error))?;
            }
        }
        Ok(Subscription {
            name: name.to_owned(),
            epoch,
            started: Instant::now(),
            state: Mutex::new(state),
            settings: watch::Sender::new(settings),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn settings(&self) -> watch::Receiver<Settings> {
        self.settings.subscribe()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let instances = state.handover.instances().map(|(name, slices)| (name.to_owned(), slices));
        Snapshot {
            offset: state.handover.frontier(),
            generation: state.handover.generation(),
            instances: instances.collect(),
            settings: self.settings.borrow().clone(),
        }
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// An instance comes; the connection of `joining` is given here.
    pub(crate) fn join(&self, joining: Joining) -> Result<Joined, JoinError> {
        let mut state = self.state.lock();
        state.connections += 1;
        let connection = state.connections;
        let (sender, mailbox) = mpsc::unbounded_channel();
        if state.tailer.is_none() {
            // It was forgotten just now. Without its sender the mailbox ends, and the session with it.
            return Ok(Joined { connection, mailbox });
        }
        let effects = state.handover.join(Joining { connection, ..joining }, self.now_ms())?;
        state.mailboxes.insert(connection, sender);
        self.carry_out(&mut state, effects);
        Ok(Joined { connection, mailbox })
    }

    /// An instance goes; `is_lost` if it may come back.
    pub(crate) fn leave(&self, connection: Connection, is_lost: bool) {
        let mut state = self.state.lock();
        state.mailboxes.remove(&connection);
        let effects = state.handover.leave(connection, is_lost, self.now_ms());
        self.carry_out(&mut state, effects);
        if !is_lost {
            // It is the confirmation that the instance waits for.
            self.keep(&mut state, Kept::Written);
        }
    }

    pub(crate) fn done(&self, connection: Connection, done: &Done) {
        let mut state = self.state.lock();
        state.is_dirty |= state.handover.done(connection, done);
    }

    pub(crate) fn released(&self, connection: Connection, done: &Done) {
        let mut state = self.state.lock();
        let effects = state.handover.released(connection, done, self.now_ms());
        state.is_dirty = true;
        self.carry_out(&mut state, effects);
    }

    /// Has time pass, and keeps what has changed.
    pub(crate) fn tick(&self) {
        let mut state = self.state.lock();
        let now_ms = self.now_ms();
        if state.handover.due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let effects = state.handover.tick(now_ms);
            self.carry_out(&mut state, effects);
        }
        self.keep(&mut state, Kept::Written);
    }

    /// Has what is kept on the disk, without holding anything up meanwhile.
    pub(crate) fn sync(&self) {
        let Some(syncing) = self.state.lock().file.to_sync() else { return };
        match syncing.sync() {
            Ok(number) => self.state.lock().file.synced(number),
            Err(error) => {
                tracing::error!("how far consumer {} is cannot be synced: {error}", self.name);
            }
        }
    }

    pub(crate) fn reset(&self, offset: i64) -> Result<()> {
        let mut state = self.state.lock();
        let effects = state.handover.reset(offset, self.now_ms());
        state.is_dirty = true;
        self.carry_out(&mut state, effects);
        state.keep(self.epoch, &self.settings.borrow(), Kept::OnDisk)
    }

    /// Keeps other settings, and has all sessions follow them.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        let mut state = self.state.lock();
        let mut settings = self.settings.borrow().clone();
        change(&mut settings);
        state.is_dirty = true;
        state.keep(self.epoch, &settings, Kept::OnDisk)?;
        self.settings.send_replace(settings);
        Ok(())
    }

    /// Deletes what is kept of it, if no instance is connected; false if one is.
    pub(crate) fn forget(&self, queue: &Queue) -> Result<bool> {
        let mut state = self.state.lock();
        if state.handover.instances().next().is_some() {
            return Ok(false);
        }
        state.tailer = None;
        queue.remove_tailer(&self.name)?;
        let path = state.file.path();
        std::fs::remove_file(path).map_err(|error| DirectError::io("deleting", path, error))?;
        Ok(true)
    }

    fn carry_out(&self, state: &mut State, effects: Vec<Effect>) {
        if effects.iter().any(|effect| matches!(effect, Effect::Assign { .. })) {
            // Its number is kept before any instance learns it: no later one may be the same.
            state.is_dirty = true;
            self.keep(state, Kept::Written);
        }
        for effect in effects {
            let (connection, control) = match effect {
                Effect::Assign { connection, assignment, slices, offset, is_resumed, parts } => {
                    (connection, Control::Assign { assignment, slices, offset, is_resumed, parts })
                }
                Effect::Revoke { connection, assignment, is_lost } => {
                    (connection, Control::Revoke { assignment, is_lost })
                }
                Effect::Fence { connection } => (connection, Control::Fence),
            };
            if let Some(mailbox) = state.mailboxes.get(&connection) {
                // A session that has just ended leaves by itself.
                let _ = mailbox.send(control);
            }
        }
    }

    fn keep(&self, state: &mut State, kept: Kept) {
        if let Err(error) = state.keep(self.epoch, &self.settings.borrow(), kept) {
            tracing::error!(
                "how far consumer {} is cannot be kept: {error}; events are repeated after a restart",
                self.name
            );
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let settings = self.settings.borrow().clone();
        if let Err(error) = self.state.get_mut().keep(self.epoch, &settings, Kept::Written) {
            tracing::error!("how far consumer {} is cannot be kept: {error}", self.name);
        }
    }
}

impl State {
    fn keep(&mut self, epoch: i32, settings: &Settings, kept: Kept) -> Result<()> {
        let Some(tailer) = &mut self.tailer else { return Ok(()) };
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        let written = |with_finished: bool| Written {
            epoch,
            generation: self.handover.generation(),
            parts: self.handover.parts().iter().map(|part| written_part(part, with_finished)).collect(),
            is_paused: settings.is_paused,
            filter: settings.filter.clone(),
        };
        let mut bytes = written(true).encode_to_vec();
        if bytes.len() > BODY_BYTES_MAX {
            // What is left out is only repeated, if an instance is killed.
            bytes = written(false).encode_to_vec();
        }
        self.file.write(&bytes, kept == Kept::OnDisk).inspect_err(|_| self.is_dirty = true)?;
        // Retention may have been faster: then the session finds that out.
        let _ = tailer.seek(Start::Offset(self.handover.frontier()));
        Ok(())
    }
}

fn written_part(part: &Part, with_finished: bool) -> WrittenPart {
    let mut finished = Vec::new();
    let mut before = part.offset;
    for range in part.finished.iter().filter(|_| with_finished) {
        finished.extend([(range.start - before) as u64, (range.end - range.start) as u64]);
        before = range.end;
    }
    WrittenPart {
        from: part.slices.from.into(),
        to: part.slices.to.into(),
        offset: part.offset,
        assignment: part.assignment,
        finished,
    }
}

fn restored(bytes: &[u8], epoch: i32) -> Option<(Handover, Settings)> {
    let written = Written::decode(bytes).ok()?;
    let part = |part: &WrittenPart| {
        let mut before = part.offset;
        let (pairs, _) = part.finished.as_chunks::<2>();
        let ranges = pairs.iter().map(|[gap, len]| {
            let start = before.saturating_add_unsigned(*gap);
            before = start.saturating_add_unsigned(*len);
            start..before
        });
        Some(Part {
            slices: SliceRange::new(part.from, part.to)?,
            offset: part.offset,
            finished: normalized(part.offset, ranges.collect::<Vec<_>>().into_iter()),
            assignment: part.assignment,
        })
    };
    let parts = written.parts.iter().map(part).collect::<Option<Vec<_>>>()?;
    let mut handover = Handover::restored(written.generation, parts)?;
    if written.epoch != epoch {
        handover.skip_generations(SKIPPED_GENERATIONS);
    }
    Some((handover, Settings { is_paused: written.is_paused, filter: written.filter }))
}

fn path(directory: &Path, name: &str) -> PathBuf {
    directory.join(FOLDER).join(encoded(name) + EXTENSION)
}

/// A file name for any name: other bytes than letters, digits, `-` and `_` as `%` and two digits.
pub(crate) fn encoded(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => char::from(byte).to_string(),
        other => format!("%{other:02x}"),
    };
    name.bytes().map(encode).collect()
}

fn decoded(file: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(file.len());
    let mut rest = file.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::criteria;

    #[test]
    fn what_is_kept_comes_back_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..100).for_each(|_| assert!(queue.append("x").is_ok()));
        let name = "größe/../7";
        let open = |epoch| Subscription::open(&queue, epoch, name, 3).unwrap();
        let subscription = open(0);
        let joining = Joining { connection: 0, name: "one".to_owned(), pinned: None, held: None };
        let joined = subscription.join(joining).unwrap();
        let done = Done { assignment: 1, offset: 40, finished: vec![45..50, 60..61] };
        subscription.done(joined.connection, &done);
        let filter = criteria::only([criteria::tag("vip")]);
        subscription
            .set(|settings| {
                *settings = Settings { is_paused: true, filter: Some(filter.clone()) };
            })
            .unwrap();
        drop(subscription);
        assert_eq!(Subscription::names(dir.path()).unwrap(), [name]);
        let again = open(0);
        let snapshot = again.snapshot();
        assert_eq!((snapshot.offset, snapshot.generation), (40, 1));
        assert_eq!(snapshot.settings, Settings { is_paused: true, filter: Some(filter) });
        assert_eq!(again.state.lock().handover.parts()[0].finished, [45..50, 60..61]);
        assert_eq!(queue.tailers().unwrap()[0].position, 40);
        drop(again);
        let after_a_kill = open(1);
        assert_eq!(after_a_kill.snapshot().generation, 1 + SKIPPED_GENERATIONS);
        assert!(after_a_kill.forget(&queue).unwrap());
        assert_eq!(Subscription::names(dir.path()).unwrap(), [""; 0]);
        assert_eq!(queue.tailers().unwrap(), []);
    }
}
