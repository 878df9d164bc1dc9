//! What a publisher keeps of a consumer: how far its slices are, its filter, whether it is paused. Beside the journal, so that
//! it outlives all processes; and, as a named tailer, in the terms of the queue, whose retention may wait for it.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use mainstem_queue::{Queue, Start, Tailer};
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::{mpsc, watch};

use crate::error::{DirectError, Refused, Result};
use crate::handover::{Connection, Effect, Handover, JoinError, Joining, Part};
use crate::kept::{BODY_BYTES_MAX, KeptFile};
use crate::proto;
use crate::resume::{Epoch, JournalView, Received};
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
    /// The run of the last event that is done.
    #[prost(message, optional, tag = "6")]
    run: Option<proto::Epoch>,
    #[prost(message, repeated, tag = "7")]
    earlier: Vec<WrittenEarlier>,
    #[prost(int64, tag = "8")]
    filtered_from: i64,
}

#[derive(Clone, PartialEq, Message)]
struct WrittenEarlier {
    #[prost(message, optional, tag = "1")]
    filter: Option<proto::Filter>,
    #[prost(int64, tag = "2")]
    until: i64,
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
    /// The first offset that `filter` is asked about.
    pub(crate) filtered_from: i64,
    /// Filters of before, ascending: what is not done of their events goes through them still, also after a restart.
    pub(crate) earlier: Vec<Earlier>,
    /// Which change of the filter it is, of this process.
    pub(crate) version: u64,
}

/// A filter that another one has followed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Earlier {
    pub(crate) filter: Option<proto::Filter>,
    /// The offset behind the last event that goes through it.
    pub(crate) until: i64,
}

/// So many changes of the filter are kept while events of before them are not done; of more, the oldest count as one.
const EARLIER_MAX: usize = 4;
/// What a filter and those before it may have in all: beside the positions of all slices it fits into the file.
const FILTERS_BYTES_MAX: usize = 35 << 10;

impl Settings {
    /// Has another filter hold from an offset on.
    fn change_filter(&mut self, filter: Option<proto::Filter>, from: i64, frontier: i64) {
        let before = Earlier { filter: std::mem::replace(&mut self.filter, filter), until: from };
        self.earlier.push(before);
        self.earlier.retain(|one| one.until > frontier);
        (self.filtered_from, self.version) = (from, self.version + 1);
        while self.earlier.len() > EARLIER_MAX
            || self.filter_bytes() > FILTERS_BYTES_MAX && !self.earlier.is_empty()
        {
            self.earlier.remove(0);
        }
    }

    fn filter_bytes(&self) -> usize {
        let earlier = self.earlier.iter().filter_map(|one| one.filter.as_ref());
        earlier.chain(&self.filter).map(Message::encoded_len).sum()
    }

    /// Has the filter hold for all events, as when a consumer goes on elsewhere.
    fn forget_earlier(&mut self) {
        if self.filtered_from == 0 {
            return;
        }
        self.earlier.clear();
        (self.filtered_from, self.version) = (0, self.version + 1);
    }
}

/// How far events were sent to any instance, and through which filters they go.
#[derive(Debug, Default)]
struct Sent {
    version: u64,
    to: i64,
}

/// A consumer.
#[derive(Debug)]
pub(crate) struct Subscription {
    name: String,
    started: Instant,
    state: Mutex<State>,
    settings: watch::Sender<Settings>,
    /// Locked after the state.
    sent: Mutex<Sent>,
}

#[derive(Debug)]
struct State {
    handover: Handover,
    file: KeptFile,
    /// The runs of the journal.
    runs: Arc<[Epoch]>,
    diverged: Option<Diverged>,
    /// None once the consumer was forgotten: nothing of it is kept any more.
    tailer: Option<Tailer>,
    is_dirty: bool,
    mailboxes: HashMap<Connection, mpsc::UnboundedSender<Control>>,
    connections: Connection,
}

/// What is kept is not of the journal as it is: until a reset no instance goes on.
#[derive(Debug, Clone, Copy)]
struct Diverged {
    /// The first offset whose event may be another one than was done.
    at: i64,
    /// The run of the last event that was done.
    run: Epoch,
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

    /// Opens what is kept of a consumer, and holds it against the journal; one that is new begins at `start`.
    pub(crate) fn open(queue: &Queue, view: &JournalView, name: &str, start: i64) -> Result<Subscription> {
        let path = path(queue.directory(), name);
        let folder = path.parent().expect("it has one");
        std::fs::create_dir_all(folder).map_err(|error| DirectError::io("making", folder, error))?;
        let (file, kept) = KeptFile::open(&path)?;
        let is_new = kept.is_none();
        let Restored { handover, settings, diverged } = match kept {
            None => Restored { handover: Handover::new(start), settings: Settings::default(), diverged: None },
            Some(bytes) => restored(&bytes, view).ok_or_else(|| {
                let reason = "it is of another version of this program, or no subscription; use that version, or delete it to \
                              have the consumer begin anew";
                DirectError::Damaged { path: path.clone(), reason: reason.to_owned() }
            })?,
        };
        let mut state = State {
            handover,
            file,
            runs: view.epochs.clone(),
            diverged,
            tailer: Some(queue.tailer(name)?),
            is_dirty: is_new,
            mailboxes: HashMap::new(),
            connections: 0,
        };
        state.keep(&settings, Kept::OnDisk)?;
        if is_new {
            // Its name too: a consumer that begins at the end would miss what came before it is known again.
            for directory in [folder, queue.directory()] {
                let synced = File::open(directory).and_then(|directory| directory.sync_all());
                synced.map_err(|error| DirectError::io("syncing", directory, error))?;
            }
        }
        Ok(Subscription {
            name: name.to_owned(),
            started: Instant::now(),
            state: Mutex::new(state),
            settings: watch::Sender::new(settings),
            sent: Mutex::default(),
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

    /// Refuses to go on where the journal does not have what is kept.
    pub(crate) fn check(&self, view: &JournalView) -> Result<(), Refused> {
        let state = self.state.lock();
        match state.diverged {
            Some(Diverged { at, .. }) => Err(Refused::Diverged { at }),
            None => view.check_offset(state.handover.frontier()),
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
        (state.is_dirty, state.diverged) = (true, None);
        self.carry_out(&mut state, effects);
        let mut settings = self.settings.borrow().clone();
        settings.forget_earlier();
        // An assignment may have been kept meanwhile, not on the disk.
        state.is_dirty = true;
        state.keep(&settings, Kept::OnDisk)?;
        let mut sent = self.sent.lock();
        *sent = Sent { version: settings.version, to: 0 };
        self.settings.send_replace(settings);
        Ok(())
    }

    /// Keeps other settings, and has all sessions follow them.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        let mut state = self.state.lock();
        let mut settings = self.settings.borrow().clone();
        change(&mut settings);
        state.is_dirty = true;
        state.keep(&settings, Kept::OnDisk)?;
        self.settings.send_replace(settings);
        Ok(())
    }

    /// Has another filter hold for all instances, from an offset on that none of them was sent; returns that.
    pub(crate) fn set_filter(&self, filter: Option<proto::Filter>) -> Result<i64> {
        let mut state = self.state.lock();
        let mut settings = self.settings.borrow().clone();
        if settings.filter == filter {
            return Ok(settings.filtered_from);
        }
        // No instance is sent anything meanwhile.
        let mut sent = self.sent.lock();
        let from = sent.to.max(state.handover.done_end());
        settings.change_filter(filter, from, state.handover.frontier());
        state.is_dirty = true;
        state.keep(&settings, Kept::OnDisk)?;
        sent.version = settings.version;
        self.settings.send_replace(settings);
        Ok(from)
    }

    /// An instance is to be sent events up to an offset, through filters of a version; false if there are others by now.
    pub(crate) fn send(&self, to: i64, version: u64) -> bool {
        let mut sent = self.sent.lock();
        let is_present = sent.version == version;
        if is_present {
            sent.to = sent.to.max(to);
        }
        is_present
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
                    // One that goes on was sent what is before.
                    let mut sent = self.sent.lock();
                    sent.to = sent.to.max(offset);
                    drop(sent);
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
        if let Err(error) = state.keep(&self.settings.borrow(), kept) {
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
        if let Err(error) = self.state.get_mut().keep(&settings, Kept::Written) {
            tracing::error!("how far consumer {} is cannot be kept: {error}", self.name);
        }
    }
}

impl State {
    fn keep(&mut self, settings: &Settings, kept: Kept) -> Result<()> {
        let Some(tailer) = &mut self.tailer else { return Ok(()) };
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        let last = self.runs.last().expect("a journal that is open has a run");
        let run = self
            .diverged
            .map(|diverged| diverged.run)
            .or_else(|| run_before(&self.runs, self.handover.done_end()));
        let written = |with_finished: bool| Written {
            epoch: last.epoch,
            generation: self.handover.generation(),
            parts: self.handover.parts().iter().map(|part| written_part(part, with_finished)).collect(),
            is_paused: settings.is_paused,
            filter: settings.filter.clone(),
            run: run.map(Epoch::to_proto),
            earlier: settings.earlier.iter().map(written_earlier).collect(),
            filtered_from: settings.filtered_from,
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

fn written_earlier(earlier: &Earlier) -> WrittenEarlier {
    WrittenEarlier { filter: earlier.filter.clone(), until: earlier.until }
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

/// What was kept of a consumer.
struct Restored {
    handover: Handover,
    settings: Settings,
    diverged: Option<Diverged>,
}

/// The run of the event before an offset.
fn run_before(runs: &[Epoch], offset: i64) -> Option<Epoch> {
    runs.iter().rev().find(|run| run.start < offset).copied()
}

/// Where a journal leaves what was done of it.
fn diverged_of(view: &JournalView, run: Epoch, done_end: i64) -> Option<Diverged> {
    let received = Received { journal: view.id, epoch: run.epoch, offset: done_end, runs: vec![run] };
    match view.check_received(&received) {
        Err(Refused::Diverged { at }) => Some(Diverged { at, run }),
        _ => None,
    }
}

fn restored(bytes: &[u8], view: &JournalView) -> Option<Restored> {
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
    if Some(written.epoch) != view.epochs.last().map(|run| run.epoch) {
        handover.skip_generations(SKIPPED_GENERATIONS);
    }
    // Without a run, as of before they were kept, only what is beyond the end is known not to be there.
    let unknown = Epoch { epoch: written.epoch, start: 0, run: 0 };
    let run = written.run.as_ref().map_or(unknown, Epoch::of_proto);
    let diverged = diverged_of(view, run, handover.done_end());
    let frontier = handover.frontier();
    let earlier = written.earlier.into_iter().filter(|one| one.until > frontier);
    let settings = Settings {
        is_paused: written.is_paused,
        filter: written.filter,
        filtered_from: written.filtered_from,
        earlier: earlier.map(|one| Earlier { filter: one.filter, until: one.until }).collect(),
        version: 0,
    };
    Some(Restored { handover, settings, diverged })
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
    use crate::resume::JournalId;

    /// A journal with these runs, all of one epoch.
    fn view(epoch: i32, runs: &[(u64, i64)], end: i64) -> JournalView {
        let run = |&(run, start): &(u64, i64)| Epoch { epoch, start, run };
        JournalView { id: JournalId([1; 16]), epochs: runs.iter().map(run).collect(), start: 0, end }
    }

    fn joined(subscription: &Subscription) -> Joined {
        let joining = Joining { connection: 0, name: "one".to_owned(), pinned: None, held: None };
        subscription.join(joining).unwrap()
    }

    #[test]
    fn a_kept_position_that_the_journal_has_lost_stops_the_consumer_until_a_reset() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..100).for_each(|_| assert!(queue.append("x").is_ok()));
        let open = |view: &JournalView| Subscription::open(&queue, view, "analytics", 0).unwrap();
        let before = view(0, &[(1, 0), (2, 20)], 50);
        let subscription = open(&before);
        let connection = joined(&subscription).connection;
        subscription.done(connection, &Done { assignment: 1, offset: 40, finished: Vec::new() });
        drop(subscription);
        // A power cut has taken all behind 30; another run has appended others since.
        let lost = Err(Refused::Diverged { at: 30 });
        let shorter = view(0, &[(1, 0), (2, 20), (3, 30)], 30);
        assert_eq!(open(&shorter).check(&shorter), lost);
        let longer = view(0, &[(1, 0), (2, 20), (3, 30)], 80);
        let subscription = open(&longer);
        assert_eq!(subscription.check(&longer), lost);
        // Other settings are kept, and change nothing of that.
        subscription.set(|settings| settings.is_paused = true).unwrap();
        drop(subscription);
        let subscription = open(&longer);
        assert_eq!(subscription.check(&longer), lost);
        subscription.reset(30).unwrap();
        assert_eq!(subscription.check(&longer), Ok(()));
        drop(subscription);
        assert_eq!(open(&longer).check(&longer), Ok(()));
    }

    #[test]
    fn filters_of_before_are_kept_as_long_as_they_are_needed_and_within_bounds() {
        let mut settings = Settings::default();
        let filter = |bytes: usize| Some(criteria::only([criteria::key(vec![b'k'; bytes])]));
        let untils = |settings: &Settings| settings.earlier.iter().map(|one| one.until).collect::<Vec<_>>();
        for from in 1..=9 {
            settings.change_filter(filter(10), from * 10, 20);
        }
        assert_eq!((untils(&settings), settings.filtered_from), (vec![60, 70, 80, 90], 90));
        settings.change_filter(filter(11), 100, 85);
        assert_eq!(untils(&settings), [90, 100]);
        settings.change_filter(filter(30_000), 110, 85);
        settings.change_filter(filter(30_001), 120, 85);
        assert_eq!(untils(&settings), [0; 0]);
        settings.forget_earlier();
        assert_eq!(settings.filtered_from, 0);
    }

    #[test]
    fn what_is_kept_comes_back_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..100).for_each(|_| assert!(queue.append("x").is_ok()));
        let name = "größe/../7";
        let open = |epoch| Subscription::open(&queue, &view(epoch, &[(1, 0)], 100), name, 3).unwrap();
        let subscription = open(0);
        let joined = joined(&subscription);
        let done = Done { assignment: 1, offset: 40, finished: vec![45..50, 60..61] };
        subscription.done(joined.connection, &done);
        let filter = criteria::only([criteria::tag("vip")]);
        subscription.set(|settings| settings.is_paused = true).unwrap();
        assert!(subscription.send(70, 0));
        assert_eq!(subscription.set_filter(Some(filter.clone())).unwrap(), 70);
        assert_eq!(subscription.set_filter(Some(filter.clone())).unwrap(), 70, "it is the same");
        assert!(!subscription.send(80, 0), "it has not followed the change");
        assert!(subscription.send(80, 1));
        drop(subscription);
        assert_eq!(Subscription::names(dir.path()).unwrap(), [name]);
        let again = open(0);
        let snapshot = again.snapshot();
        assert_eq!((snapshot.offset, snapshot.generation), (40, 1));
        let earlier = vec![Earlier { filter: None, until: 70 }];
        let kept = Settings { is_paused: true, filter: Some(filter), filtered_from: 70, earlier, version: 0 };
        assert_eq!(snapshot.settings, kept);
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
