//! A consumer's state at its publisher: how far its slices are, its filter, whether it is paused. A file beside the journal
//! keeps it over all restarts. A named tailer of the queue has the same position, so that retention may wait for it.

mod settings;
mod store;
mod written;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use mainstem_lines::OneLine;
use mainstem_queue::Queue;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tonic::Status;

#[cfg(test)]
pub(crate) use settings::Earlier;
pub(crate) use settings::Settings;
pub(crate) use store::SubscriptionStore;
pub(crate) use written::Restored;

use crate::consumer::random;
use crate::error::{DirectError, Refused, Result};
use crate::filter::Filter;
use crate::handover::{Connection, Effect, Handover, JoinError, Joining, Part};
use crate::proto;
use crate::resume::{Epoch, JournalView};
use crate::slices::{Done, SliceRange};
use store::BesideJournal;
use written::Diverged;

/// A decision about an instance, for its session.
#[derive(Debug)]
pub(crate) enum Control {
    Assign { assignment: u64, slices: SliceRange, offset: i64, is_resumed: bool, parts: Vec<Part> },
    Revoke { assignment: u64, is_lost: bool },
    Fence,
}

/// The offset before which events were sent to any instance, and the version of the filters that hold.
#[derive(Debug, Default)]
struct Sent {
    version: u64,
    to: i64,
}

/// Returns the milliseconds since any fixed moment.
type Clock = dyn Fn() -> u64 + Send + Sync;

/// The I/O of a subscription.
pub(crate) struct Surroundings {
    pub(crate) store: Box<dyn SubscriptionStore>,
    pub(crate) clock: Box<Clock>,
}

/// A consumer.
pub(crate) struct Subscription {
    name: String,
    clock: Box<Clock>,
    state: Mutex<State>,
    settings: watch::Sender<Settings>,
    /// Locked after the state.
    sent: Mutex<Sent>,
}

#[derive(Debug)]
struct State {
    handover: Handover,
    /// The runs of the journal.
    runs: Arc<[Epoch]>,
    diverged: Option<Diverged>,
    /// None once the consumer was forgotten: nothing of it is stored any more.
    store: Option<Box<dyn SubscriptionStore>>,
    is_dirty: bool,
    mailboxes: HashMap<Connection, mpsc::UnboundedSender<Control>>,
    connections: Connection,
}

/// The durability of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// Survives a kill, and a power cut after the next sync. Enough for positions: their events are only repeated.
    Written,
    /// Survives a power cut: for decisions.
    OnDisk,
}

/// A connected instance.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) connection: Connection,
    pub(crate) mailbox: mpsc::UnboundedReceiver<Control>,
}

/// A consumer for `describe`.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) offset: i64,
    pub(crate) generation: u64,
    pub(crate) settings: Settings,
    pub(crate) instances: Vec<(String, Option<SliceRange>)>,
}

impl Subscription {
    /// Returns the names of the consumers that are stored beside a journal.
    pub(crate) fn names(directory: &Path) -> Result<Vec<String>> {
        store::names(directory)
    }

    /// Opens a consumer and compares it with the journal; a new one begins at `start`.
    pub(crate) fn open(queue: &Queue, view: &JournalView, name: &str, start: i64) -> Result<Subscription> {
        let was_there = store::is_there(queue.directory(), name);
        let (beside, kept) = BesideJournal::open(queue, name)?;
        let path = beside.path().to_owned();
        let restored = match &kept {
            None => Restored::new(view, start, random()),
            Some(bytes) => Restored::of(bytes, view).ok_or_else(|| {
                let reason = "it is of another version of this program, or no subscription; use that version, or delete it so that \
                              the consumer begins again";
                DirectError::Damaged { path: path.clone(), reason: reason.to_owned() }
            })?,
        };
        if kept.is_none() {
            // Before the first write: otherwise a start that fails here would find the file and not sync the names.
            store::sync_names(queue, &path).inspect_err(|_| {
                // An empty file is a consumer that begins at the first event, which no user has asked for.
                if !was_there {
                    let _ = std::fs::remove_file(&path);
                }
            })?;
        }
        let began = Instant::now();
        let clock = move || u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let surroundings = Surroundings { store: Box::new(beside), clock: Box::new(clock) };
        Subscription::new(name, restored, surroundings)
    }

    /// Begins with what was stored. A new consumer is stored at once.
    ///
    /// # Errors
    /// If it cannot be.
    pub(crate) fn new(name: &str, restored: Restored, surroundings: Surroundings) -> Result<Subscription> {
        let Restored { handover, settings, diverged, runs, is_new } = restored;
        let Surroundings { store, clock } = surroundings;
        let mut state = State {
            handover,
            runs,
            diverged,
            store: Some(store),
            is_dirty: is_new,
            mailboxes: HashMap::new(),
            connections: 0,
        };
        state.keep(&settings, Durability::OnDisk)?;
        Ok(Subscription {
            name: name.to_owned(),
            clock,
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

    /// Refuses a consumer whose position the journal does not have. The view may be of a moment ago: other instances may have passed
    /// its end since. What the journal has lost was noticed when the consumer was opened.
    pub(crate) fn check(&self, view: &JournalView) -> Result<(), Refused> {
        let state = self.state.lock();
        let offset = state.handover.frontier();
        match state.diverged {
            // At an offset that retention has removed no consumer can continue.
            Some(Diverged { at, .. }) => Err(Refused::Diverged { at: at.max(view.start) }),
            None if offset < view.start => {
                Err(Refused::OutOfRange { offset, start: view.start, end: view.end })
            }
            None => Ok(()),
        }
    }

    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// Takes an instance; the connection of `joining` is assigned here.
    pub(crate) fn join(&self, joining: Joining) -> Result<Joined, JoinError> {
        let mut state = self.state.lock();
        state.connections += 1;
        let connection = state.connections;
        let (sender, mailbox) = mpsc::unbounded_channel();
        if state.store.is_none() {
            // The consumer was just forgotten. Without a sender the mailbox ends, and with it the session.
            return Ok(Joined { connection, mailbox });
        }
        let has_held = joining.held.is_some();
        let effects = state.handover.join(Joining { connection, ..joining }, self.now_ms())?;
        state.is_dirty = true;
        state.mailboxes.insert(connection, sender);
        self.carry_out(&mut state, effects);
        if has_held {
            // The instance takes the answer as a confirmation of what it has reported done.
            self.keep(&mut state, Durability::Written);
        }
        Ok(Joined { connection, mailbox })
    }

    /// Takes an instance off; `is_lost` if it may come back.
    pub(crate) fn leave(&self, connection: Connection, is_lost: bool) {
        let mut state = self.state.lock();
        state.mailboxes.remove(&connection);
        let effects = state.handover.leave(connection, is_lost, self.now_ms());
        self.carry_out(&mut state, effects);
        if !is_lost {
            // The instance leaves for good, and waits for this write as its confirmation.
            state.is_dirty = true;
            self.keep(&mut state, Durability::Written);
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

    /// Acts on what is due by the time, and stores what has changed.
    pub(crate) fn tick(&self) {
        let mut state = self.state.lock();
        let now_ms = self.now_ms();
        if state.handover.due_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            let effects = state.handover.tick(now_ms);
            state.is_dirty = true;
            self.carry_out(&mut state, effects);
        }
        self.keep(&mut state, Durability::Written);
    }

    /// Stores what has changed while the publisher stops. Slices change hands no more: all instances come back to the next publisher.
    pub(crate) fn keep_changes(&self) {
        self.keep(&mut self.state.lock(), Durability::Written);
    }

    /// Syncs what was written, without the lock.
    pub(crate) fn sync(&self) {
        let syncing = self.state.lock().store.as_ref().and_then(|store| store.to_sync());
        let Some(syncing) = syncing else { return };
        let number = syncing.number();
        let synced = syncing.sync();
        let mut state = self.state.lock();
        let Some(store) = &mut state.store else { return };
        match synced {
            Ok(()) => store.synced(number),
            Err(error) => {
                tracing::error!(
                    "how far consumer {} is cannot be synced, and is written again: {error}",
                    OneLine(&self.name)
                );
                state.is_dirty |= store.sync_failed(number);
            }
        }
    }

    /// Moves all instances to an offset, and to the present filter alone. The change is on disk before any instance receives it. The
    /// filter holds before any instance is assigned slices, so that no event behind the offset goes through an earlier filter.
    ///
    /// # Errors
    /// If it cannot be stored; then nothing changes.
    pub(crate) fn reset(&self, offset: i64) -> Result<()> {
        let mut state = self.state.lock();
        let mut settings = self.settings.borrow().clone();
        settings.forget_earlier();
        let effects = state.reset(offset, self.now_ms(), &settings)?;
        let mut sent = self.sent.lock();
        *sent = Sent { version: settings.version, to: 0 };
        self.settings.send_replace(settings);
        drop(sent);
        self.hand_out(&state, effects);
        Ok(())
    }

    /// Stores other settings, and has all sessions follow them.
    ///
    /// # Errors
    /// If they cannot be stored; then the earlier ones hold.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Settings)) -> Result<()> {
        let mut state = self.state.lock();
        let mut settings = self.settings.borrow().clone();
        change(&mut settings);
        state.is_dirty = true;
        state.keep(&settings, Durability::OnDisk)?;
        self.settings.send_replace(settings);
        Ok(())
    }

    /// Changes the filter as a peer has asked; see [`Subscription::set_filter`].
    ///
    /// # Errors
    /// If it cannot be compiled or stored.
    pub(crate) fn keep_filter(&self, filter: &proto::Filter) -> Result<(), Status> {
        Filter::compile(filter).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let filter = Some(filter.clone()).filter(|filter| !filter.exclude.is_empty());
        self.set_filter(filter).map(drop).map_err(crate::stream::internal)
    }

    /// Changes the filter for all instances; returns the offset from which it holds, which no instance was sent yet.
    ///
    /// # Errors
    /// If it cannot be stored; then the earlier filter holds.
    pub(crate) fn set_filter(&self, filter: Option<proto::Filter>) -> Result<i64> {
        let mut state = self.state.lock();
        let mut settings = self.settings.borrow().clone();
        if settings.filter == filter {
            return Ok(settings.filtered_from);
        }
        // The lock keeps every instance from being sent events meanwhile.
        let mut sent = self.sent.lock();
        // And not before the last change: its answer named that offset as the first that no instance was sent.
        let from = sent.to.max(state.handover.done_end()).max(settings.filtered_from);
        settings.change_filter(filter, from, state.handover.frontier());
        state.is_dirty = true;
        state.keep(&settings, Durability::OnDisk)?;
        sent.version = settings.version;
        self.settings.send_replace(settings);
        Ok(from)
    }

    /// Notes that an instance is sent events up to an offset, through filters of a version; false if the version is
    /// outdated.
    pub(crate) fn send(&self, to: i64, version: u64) -> bool {
        let mut sent = self.sent.lock();
        let is_present = sent.version == version;
        if is_present {
            sent.to = sent.to.max(to);
        }
        is_present
    }

    /// Deletes the stored state, if no instance is connected; false if one is.
    ///
    /// # Errors
    /// If it cannot be deleted; then nothing changes.
    pub(crate) fn forget(&self) -> Result<bool> {
        let mut state = self.state.lock();
        if state.handover.instances().next().is_some() {
            return Ok(false);
        }
        if let Some(store) = &mut state.store {
            store.delete()?;
        }
        state.store = None;
        Ok(true)
    }

    fn carry_out(&self, state: &mut State, effects: Vec<Effect>) {
        if effects.iter().any(|effect| matches!(effect, Effect::Assign { .. })) {
            // The number is stored before any instance learns it, so that no later assignment has the same.
            state.is_dirty = true;
            self.keep(state, Durability::Written);
        }
        self.hand_out(state, effects);
    }

    /// Sends decisions to their sessions.
    fn hand_out(&self, state: &State, effects: Vec<Effect>) {
        for effect in effects {
            let (connection, control) = match effect {
                Effect::Assign { connection, assignment, slices, offset, is_resumed, parts } => {
                    // An instance that resumes was sent everything before the offset.
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

    fn keep(&self, state: &mut State, durability: Durability) {
        if let Err(error) = state.keep(&self.settings.borrow(), durability) {
            tracing::error!(
                "how far consumer {} is cannot be kept: {error}; events are repeated after a restart",
                OneLine(&self.name)
            );
        }
    }
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("name", &self.name)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let settings = self.settings.borrow().clone();
        if let Err(error) = self.state.get_mut().keep(&settings, Durability::Written) {
            tracing::error!("how far consumer {} is cannot be kept: {error}", OneLine(&self.name));
        }
    }
}

impl State {
    /// Moves all slices to an offset; returns the messages to the instances, to be sent once it counts.
    ///
    /// # Errors
    /// If it cannot be stored; then nothing has changed, and the earlier state is written again.
    fn reset(&mut self, offset: i64, now_ms: u64, settings: &Settings) -> Result<Vec<Effect>> {
        let (handover, diverged) = (self.handover.clone(), self.diverged);
        let effects = self.handover.reset(offset, now_ms);
        (self.is_dirty, self.diverged) = (true, None);
        let kept = self.keep(settings, Durability::OnDisk);
        if kept.is_err() {
            (self.handover, self.diverged) = (handover, diverged);
        }
        kept.map(|()| effects)
    }

    fn keep(&mut self, settings: &Settings, durability: Durability) -> Result<()> {
        let Some(store) = &mut self.store else { return Ok(()) };
        if !std::mem::take(&mut self.is_dirty) {
            return Ok(());
        }
        let bytes = written::encode(&self.handover, settings, &self.runs, self.diverged);
        store.write(&bytes, durability == Durability::OnDisk).inspect_err(|_| self.is_dirty = true)?;
        store.seek(self.handover.frontier());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::written::skipped_generations;
    use super::*;
    use crate::filter::criteria;
    use crate::handover::Held;
    use crate::resume::JournalId;
    use crate::slot_file::Syncing;

    /// A journal with these runs, all of one epoch.
    fn view(epoch: i32, runs: &[(u64, i64)], end: i64) -> JournalView {
        let run = |&(run, start): &(u64, i64)| Epoch { epoch, start, run };
        JournalView { id: JournalId([1; 16]), epochs: runs.iter().map(run).collect(), start: 0, end }
    }

    /// A disk in memory. A test can look at what a sync makes durable, and have it fail.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<Contents>>);

    #[derive(Default)]
    struct Contents {
        kept: Vec<u8>,
        on_sync: Option<Box<OnSync>>,
    }

    type OnSync = dyn FnMut() -> Result<()> + Send;

    impl Disk {
        fn on_sync(&self, on_sync: impl FnMut() -> Result<()> + Send + 'static) {
            self.0.lock().on_sync = Some(Box::new(on_sync));
        }

        fn is_sound(&self) {
            let before = self.0.lock().on_sync.take();
            drop(before);
        }
    }

    impl std::fmt::Debug for Disk {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Disk")
        }
    }

    impl SubscriptionStore for Disk {
        fn write(&mut self, bytes: &[u8], is_synced: bool) -> Result<()> {
            let mut contents = self.0.lock();
            // A write whose sync fails may be there all the same.
            bytes.clone_into(&mut contents.kept);
            let on_sync = contents.on_sync.as_mut().filter(|_| is_synced);
            on_sync.map_or(Ok(()), |on_sync| on_sync())
        }

        fn seek(&mut self, _: i64) {}

        fn to_sync(&self) -> Option<Syncing> {
            Some(Syncing::that_fails(7))
        }

        fn synced(&mut self, _: u64) {
            unreachable!("no sync of this one succeeds");
        }

        fn sync_failed(&mut self, number: u64) -> bool {
            assert_eq!(number, 7);
            true
        }

        fn delete(&mut self) -> Result<()> {
            let mut contents = self.0.lock();
            contents.on_sync.as_mut().map_or(Ok(()), |on_sync| on_sync())
        }
    }

    /// A consumer of a journal of 100 events, and its store.
    fn on_disk() -> (Arc<Subscription>, Disk) {
        let disk = Disk::default();
        let surroundings = Surroundings { store: Box::new(disk.clone()), clock: Box::new(|| 0) };
        let restored = Restored::new(&view(0, &[(1, 0)], 100), 0, 7);
        (Arc::new(Subscription::new("analytics", restored, surroundings).unwrap()), disk)
    }

    fn joined(subscription: &Subscription) -> Joined {
        joined_as(subscription, "one", None)
    }

    fn joined_as(subscription: &Subscription, name: &str, held: Option<Held>) -> Joined {
        let name = name.to_owned();
        subscription.join(Joining { connection: 0, name, attempt: None, pinned: None, held }).unwrap()
    }

    /// The number of the assignment that an instance gets when it joins.
    fn assigned(joined: &mut Joined) -> u64 {
        match joined.mailbox.try_recv() {
            Ok(Control::Assign { assignment, .. }) => assignment,
            other => panic!("it is not assigned slices: {other:?}"),
        }
    }

    #[test]
    fn a_position_that_others_have_brought_past_a_view_is_no_fault() {
        let (subscription, _disk) = on_disk();
        let before = view(0, &[(1, 0)], 50);
        let mut joined = joined(&subscription);
        let done = Done { assignment: assigned(&mut joined), offset: 55, finished: Vec::new() };
        subscription.done(joined.connection, &done);
        assert_eq!(subscription.check(&before), Ok(()));
        let retained = JournalView { start: 60, ..view(0, &[(1, 0)], 100) };
        let taken = Refused::OutOfRange { offset: 55, start: 60, end: 100 };
        assert_eq!(subscription.check(&retained), Err(taken));
    }

    #[test]
    fn a_kept_position_that_the_journal_has_lost_stops_the_consumer_until_a_reset() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..100).for_each(|_| assert!(queue.append("x").is_ok()));
        let open = |view: &JournalView| Subscription::open(&queue, view, "analytics", 0).unwrap();
        let before = view(0, &[(1, 0), (2, 20)], 50);
        let subscription = open(&before);
        let mut joined = joined(&subscription);
        let done = Done { assignment: assigned(&mut joined), offset: 40, finished: Vec::new() };
        subscription.done(joined.connection, &done);
        drop(subscription);
        // A power cut has erased everything behind 30; another run has appended other events since.
        let lost = Err(Refused::Diverged { at: 30 });
        let shorter = view(0, &[(1, 0), (2, 20), (3, 30)], 30);
        assert_eq!(open(&shorter).check(&shorter), lost);
        let longer = view(0, &[(1, 0), (2, 20), (3, 30)], 80);
        let subscription = open(&longer);
        assert_eq!(subscription.check(&longer), lost);
        let retained = JournalView { start: 60, ..longer.clone() };
        assert_eq!(
            subscription.check(&retained),
            Err(Refused::Diverged { at: 60 }),
            "30 is not there to go on at"
        );
        // Other settings are stored, and change nothing of that.
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
    fn what_a_reset_decides_is_on_the_disk_before_an_instance_receives_it() {
        let (subscription, disk) = on_disk();
        let mut joined = joined(&subscription);
        let before = assigned(&mut joined);
        assert!(subscription.send(50, 0));
        let filter = Some(criteria::only([criteria::tag("vip")]));
        assert_eq!(subscription.set_filter(filter).unwrap(), 50);
        let mailbox = Arc::new(Mutex::new(joined.mailbox));
        let (meanwhile, heard) = (subscription.clone(), mailbox.clone());
        disk.on_sync(move || {
            assert!(heard.lock().try_recv().is_err(), "an instance hears of what is not on the disk");
            assert!(meanwhile.send(60, 1), "what it has continues");
            Ok(())
        });
        subscription.reset(0).unwrap();
        disk.is_sound();
        let mut mailbox = mailbox.lock();
        let revoked = mailbox.try_recv();
        assert!(
            matches!(revoked, Ok(Control::Revoke { assignment, is_lost: true }) if assignment == before),
            "{revoked:?}"
        );
        assert!(matches!(mailbox.try_recv(), Ok(Control::Assign { offset: 0, is_resumed: false, .. })));
        assert!(!subscription.send(10, 1), "the filters of before hold for nothing of it");
        assert!(subscription.send(10, 2));
        assert_eq!(subscription.set_filter(None).unwrap(), 10);
    }

    #[test]
    fn what_cannot_be_kept_changes_nothing() {
        let (subscription, disk) = on_disk();
        let mut joined = joined(&subscription);
        let assignment = assigned(&mut joined);
        assert!(subscription.send(50, 0));
        subscription.done(joined.connection, &Done { assignment, offset: 40, finished: Vec::new() });
        let seen = || {
            let snapshot = subscription.snapshot();
            (snapshot.offset, snapshot.generation, snapshot.settings)
        };
        assert_eq!(seen(), (40, assignment, Settings::default()));
        disk.on_sync(|| Err(DirectError::Closed));
        let filter = Some(criteria::only([criteria::tag("vip")]));
        let changes: [(&str, &dyn Fn() -> bool); 3] = [
            ("reset", &|| subscription.reset(0).is_err()),
            ("pause", &|| subscription.set(|settings| settings.is_paused = true).is_err()),
            ("filter", &|| subscription.set_filter(filter.clone()).is_err()),
        ];
        for (change, fails) in changes {
            assert!(fails(), "{change}");
            assert_eq!(seen(), (40, assignment, Settings::default()), "{change}");
            assert!(subscription.send(50, 0), "{change}: sessions go on");
            // The next write has the state that holds.
            subscription.tick();
            let kept = Restored::of(&disk.0.lock().kept, &view(0, &[(1, 0)], 100)).unwrap();
            assert_eq!((kept.handover.frontier(), kept.settings), (40, Settings::default()), "{change}");
        }
        assert!(joined.mailbox.try_recv().is_err(), "instances have heard of nothing");
        subscription.leave(joined.connection, false);
        assert!(subscription.forget().is_err());
        disk.is_sound();
        // It is known still, and continues.
        assigned(&mut joined_as(&subscription, "one", None));
        assert_eq!(subscription.snapshot().offset, 40);
    }

    #[test]
    fn what_cannot_be_synced_is_written_again() {
        let (subscription, disk) = on_disk();
        let mut joined = joined(&subscription);
        let assignment = assigned(&mut joined);
        assert!(subscription.send(50, 0));
        subscription.done(joined.connection, &Done { assignment, offset: 40, finished: Vec::new() });
        let written = || {
            disk.0.lock().kept.clear();
            subscription.tick();
            !disk.0.lock().kept.is_empty()
        };
        assert!(written());
        assert!(!written(), "nothing has changed");
        subscription.sync();
        assert!(written());
    }

    #[test]
    fn what_an_instance_had_when_the_publisher_ended_is_kept_for_it_unless_it_had_left() {
        for is_lost in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let queue = Queue::open(dir.path()).unwrap();
            let open = || Subscription::open(&queue, &view(0, &[(1, 0)], 0), "analytics", 0).unwrap();
            let subscription = open();
            let connection = joined(&subscription).connection;
            subscription.leave(connection, is_lost);
            drop(subscription);
            let next = open();
            let is_assigned = |name: &str| {
                matches!(joined_as(&next, name, None).mailbox.try_recv(), Ok(Control::Assign { .. }))
            };
            assert_eq!(is_assigned("two"), !is_lost);
            assert_eq!(is_assigned("one"), is_lost, "it has come back");
        }
    }

    /// A consumer may be new at its publisher while instances of it live: it was forgotten, or the directory is an older copy.
    #[test]
    fn what_was_done_before_a_consumer_was_new_again_is_of_no_assignment_of_now() {
        for is_copy in [false, true] {
            let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
            let queues = dirs.each_ref().map(|dir| Queue::open(dir.path()).unwrap());
            let open =
                |queue: &Queue| Subscription::open(queue, &view(0, &[(1, 0)], 100), "analytics", 0).unwrap();
            let subscription = open(&queues[0]);
            let mut one = joined(&subscription);
            let assignment = assigned(&mut one);
            subscription.leave(one.connection, true);
            assert!(is_copy || subscription.forget().unwrap());
            drop(subscription);
            let subscription = open(&queues[usize::from(is_copy)]);
            assert_ne!(assigned(&mut joined_as(&subscription, "two", None)), assignment);
            let done = Done { assignment, offset: 40, finished: Vec::new() };
            joined_as(&subscription, "one", Some(Held { done, slices: Some(SliceRange::ALL), sent_to: 50 }));
            assert_eq!(subscription.snapshot().offset, 0, "it is not what two has done");
        }
    }

    #[test]
    fn what_is_kept_comes_back_after_any_end() {
        let dir = tempfile::tempdir().unwrap();
        let queue = Queue::open(dir.path()).unwrap();
        (0..100).for_each(|_| assert!(queue.append("x").is_ok()));
        let name = "größe/../7";
        let open = |epoch| Subscription::open(&queue, &view(epoch, &[(1, 0)], 100), name, 3).unwrap();
        let subscription = open(0);
        let mut joined = joined(&subscription);
        let first = assigned(&mut joined);
        let done = Done { assignment: first, offset: 40, finished: vec![45..50, 60..61] };
        subscription.done(joined.connection, &done);
        let filter = criteria::only([criteria::tag("vip")]);
        subscription.set(|settings| settings.is_paused = true).unwrap();
        assert!(subscription.send(70, 0));
        assert_eq!(subscription.set_filter(Some(filter.clone())).unwrap(), 70);
        assert_eq!(subscription.set_filter(Some(filter.clone())).unwrap(), 70, "it is the same");
        assert!(!subscription.send(80, 0), "it has not followed the change");
        assert!(subscription.send(80, 1));
        drop(subscription);
        // The offset up to which events were sent is forgotten; the one that an answer has named is not.
        let again = open(0);
        assert_eq!(again.set_filter(None).unwrap(), 70);
        assert_eq!(again.set_filter(Some(filter.clone())).unwrap(), 70);
        drop(again);
        assert_eq!(Subscription::names(dir.path()).unwrap(), [name]);
        let again = open(0);
        let snapshot = again.snapshot();
        assert_eq!((snapshot.offset, snapshot.generation), (40, first + 2 * skipped_generations(1)));
        let earlier = vec![Earlier { filter: None, until: 70 }];
        let kept = Settings { is_paused: true, filter: Some(filter), filtered_from: 70, earlier, version: 0 };
        assert_eq!(snapshot.settings, kept);
        assert_eq!(again.state.lock().handover.parts()[0].finished, [45..50, 60..61]);
        assert_eq!(queue.tailers().unwrap()[0].position, 40);
        drop(again);
        let after_a_kill = open(1);
        assert_eq!(after_a_kill.snapshot().generation, first + 2 * skipped_generations(1));
        assert!(after_a_kill.forget().unwrap());
        assert_eq!(Subscription::names(dir.path()).unwrap(), [""; 0]);
        assert_eq!(queue.tailers().unwrap(), []);
    }
}
