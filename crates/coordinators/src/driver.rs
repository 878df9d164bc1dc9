//! The driver of a coordinator: requests come from whoever asks, records go into an internal topic, replies back to who asked.
//!
//! One driver serves every coordinator that is a state machine over one internal topic ([`Coordinator`]). The state
//! machine decides under one short lock. Its appends are made without that lock, in the order in which they were
//! decided, one at a time for each partition; what becomes of them comes back when they are durable.
//!
//! A panic in any of this leaves a machine half changed, or a decision half carried out: the process ends, and the next
//! start rebuilds the coordinator from its log.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak, mpsc};

use mainstem_coordination::groups::{CoordinatorRecord, LogEntry, Token};
use mainstem_coordination::writes::{self, Consequence};
use mainstem_log::{TransactionMarker, VerificationGuard};
use mainstem_records::{BatchOptions, LeaderEpoch};
use mainstem_runtime::clock::{Clock, Now};
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::AbortOnPanic;
use mainstem_store::partition::{Durable, Partition};
use mainstem_store::replay::{Checksums, Entry};
use mainstem_store::scratch::with_scratch;
use mainstem_store::store::Store;
use mainstem_wire::ErrorCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

/// No deadline.
const NEVER: u64 = u64::MAX;

/// Why the process ends when a coordinator panics.
const HALF_CHANGED: &str = "a coordinator is half changed, which is whole in its log alone";

/// A coordinator's state machine, as its driver sees it. No method does I/O or reads a clock.
pub trait Coordinator: Send + Sized + 'static {
    /// A request, which may borrow from its frame.
    type Request<'a>;
    /// The answer to a request.
    type Reply: Send + 'static;
    /// The coordinator's name for an append.
    type Ticket: Copy + Send + 'static;
    /// What it asks for besides appends and replies.
    type Other: Send + 'static;

    /// The internal topic that holds its records.
    const TOPIC: &'static str;

    /// Takes a request.
    fn step(&mut self, now: Now, token: Token, origin: &RequestOrigin<'_>, request: Self::Request<'_>);

    /// What it has decided since the last call, in order.
    fn effects(&mut self) -> Vec<Effect<Self>>;

    /// The monotonic time of its next deadline, in milliseconds.
    fn next_deadline_ms(&self) -> Option<u64>;

    /// Fires the deadlines that are due.
    fn tick(&mut self, now: Now);

    /// Takes the outcome of an append: durable, or not in the log and never will be.
    fn appended(&mut self, now: Now, ticket: Self::Ticket, outcome: Result<(), ErrorCode>);

    /// The partition of [`TOPIC`](Self::TOPIC) that an append goes to.
    fn partition_of(ticket: Self::Ticket) -> i32;

    /// The partition of [`TOPIC`](Self::TOPIC) that has a key: a group's id, a transactional id.
    fn partition_for(&self, key: &str) -> i32;

    /// Sets the number of partitions of [`TOPIC`](Self::TOPIC). None of them is served yet.
    fn set_partition_count(&mut self, count: i32);

    /// Begins to load a partition that this node leads in an epoch.
    fn begin_load(&mut self, partition: i32, leader_epoch: LeaderEpoch);

    /// Replays an entry of the log. Returns the number of records that do not decode.
    fn load(&mut self, now: Now, partition: i32, entry: LogEntry<'_>) -> u64;

    /// Serves a partition whose entries are all replayed.
    fn finish_load(&mut self, now: Now, partition: i32);

    /// Gives a partition up, loaded or not.
    fn unload(&mut self, now: Now, partition: i32);
}

/// The origin of a request, as far as coordinators look at it.
#[derive(Debug, Clone, Copy)]
pub struct RequestOrigin<'a> {
    /// Version of the request and its response.
    pub version: i16,
    /// The client id of its header; empty without one.
    pub client_id: &'a str,
    /// The address of the client.
    pub address: IpAddr,
}

/// An effect that a coordinator asks its driver for.
pub enum Effect<C: Coordinator> {
    /// Answer a request.
    Reply {
        /// That of the request.
        token: Token,
        /// The answer.
        reply: C::Reply,
    },
    /// Append records as one batch, then report its outcome.
    Append {
        /// To report with.
        ticket: C::Ticket,
        /// Timestamp of the records, wall clock milliseconds.
        timestamp_ms: i64,
        /// Says whose transaction the batch belongs to, if any.
        batch: BatchOptions,
        /// Never empty.
        records: Vec<CoordinatorRecord>,
    },
    /// Something of this coordinator's own.
    Other(C::Other),
}

/// Called with the outcome of a write, after the coordinator has taken it.
pub type OnWritten = Box<dyn FnOnce(Result<(), ErrorCode>) + Send>;

/// One write to a partition of the coordinator's topic.
struct Write<C: Coordinator> {
    ticket: C::Ticket,
    /// The epoch in which the partition was taken over when it was decided: in another one it may not be true any more.
    epoch: Option<LeaderEpoch>,
    content: Content,
    on_written: Option<OnWritten>,
}

enum Content {
    Records {
        timestamp_ms: i64,
        batch: BatchOptions,
        guard: VerificationGuard,
        records: Vec<CoordinatorRecord>,
    },
    Marker(TransactionMarker),
}

/// The writes of one partition that are decided and not made yet.
struct Lane<C: Coordinator> {
    writes: VecDeque<Write<C>>,
    /// A thread is making them.
    is_busy: bool,
}

/// Called with what a coordinator asks for besides appends and replies, without its lock.
pub type Perform<C> = Box<dyn Fn(<C as Coordinator>::Other) + Send + Sync>;

/// A coordinator with what connects it to the node.
pub struct Driver<C: Coordinator> {
    /// Has the internal topic.
    store: Arc<Store>,
    stopping: Arc<Stopping>,
    perform: OnceLock<Perform<C>>,
    own: Weak<Driver<C>>,
    core: Mutex<Core<C>>,
    /// By partition; those with nothing to write are not there.
    lanes: Mutex<HashMap<i32, Lane<C>>>,
    /// The deadline that the timer waits for, so that a step knows whether to wake it.
    armed_ms: AtomicU64,
    rearm: Notify,
}

struct Core<C: Coordinator> {
    machine: C,
    waiting: HashMap<Token, oneshot::Sender<C::Reply>>,
    last_token: u64,
    /// The leader epochs in which partitions were taken over.
    epochs: HashMap<i32, LeaderEpoch>,
}

/// A coordinator that is locked. A panic of the holder ends the process.
struct Locked<'a, C: Coordinator> {
    // The first field is dropped first: the process has ended before another thread can have the lock.
    _whole: Option<AbortOnPanic>,
    core: MutexGuard<'a, Core<C>>,
}

impl<C: Coordinator> Deref for Locked<'_, C> {
    type Target = Core<C>;

    fn deref(&self) -> &Core<C> {
        &self.core
    }
}

impl<C: Coordinator> DerefMut for Locked<'_, C> {
    fn deref_mut(&mut self) -> &mut Core<C> {
        &mut self.core
    }
}

/// Ends the process if the caller panics before this is dropped. None where it panics already: what it does while it
/// unwinds has not begun yet.
fn whole_or_over() -> Option<AbortOnPanic> {
    (!std::thread::panicking()).then_some(AbortOnPanic(HALF_CHANGED))
}

/// A reply that is there, or will be.
pub enum Asked<R> {
    /// The reply.
    Now(R),
    /// It comes later, unless the broker stops first.
    Later(oneshot::Receiver<R>),
}

impl<R> Asked<R> {
    /// The reply, on a thread where waiting is allowed.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE when the broker stops first.
    pub fn wait(self) -> Result<R, ErrorCode> {
        match self {
            Asked::Now(reply) => Ok(reply),
            Asked::Later(receiver) => {
                receiver.blocking_recv().map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE)
            }
        }
    }

    /// The reply, in a task.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE when the broker stops first.
    pub async fn reply(self) -> Result<R, ErrorCode> {
        match self {
            Asked::Now(reply) => Ok(reply),
            Asked::Later(receiver) => receiver.await.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE),
        }
    }
}

impl<C: Coordinator> Driver<C> {
    /// A driver of a coordinator that serves no partition yet.
    pub fn new(machine: C, store: Arc<Store>, stopping: Arc<Stopping>) -> Arc<Self> {
        let core =
            Mutex::new(Core { machine, waiting: HashMap::new(), last_token: 0, epochs: HashMap::new() });
        let (lanes, armed_ms) = (Mutex::new(HashMap::new()), AtomicU64::new(NEVER));
        Arc::new_cyclic(|own| Driver {
            store,
            stopping,
            perform: OnceLock::new(),
            own: own.clone(),
            core,
            lanes,
            armed_ms,
            rearm: Notify::new(),
        })
    }

    /// Has this called with what the coordinator asks for besides appends and replies. Called once, before the coordinator takes a
    /// partition over.
    pub fn set_perform(&self, perform: Perform<C>) {
        assert!(self.perform.set(perform).is_ok(), "a coordinator's work is performed in one way");
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.store.clock
    }

    /// The partition of the coordinator's topic of an index, if this node has it.
    fn partition(&self, index: i32) -> Option<Arc<Partition>> {
        self.store.topics.partition(C::TOPIC, index)
    }

    /// Locks the coordinator to change it.
    fn lock(&self) -> Locked<'_, C> {
        let core = self.core.lock();
        Locked { _whole: whole_or_over(), core }
    }

    /// Looks at the coordinator, which no panic can change then.
    pub fn look<T>(&self, look: impl FnOnce(&C) -> T) -> T {
        look(&self.core.lock().machine)
    }

    /// The partition of the coordinator's topic that has a key.
    pub fn partition_for(&self, key: &str) -> i32 {
        self.look(|machine| machine.partition_for(key))
    }

    /// Changes the coordinator, and carries out what follows from that.
    pub fn change<T>(&self, change: impl FnOnce(&mut C, Now) -> T) -> T {
        let mut core = self.lock();
        let value = change(&mut core.machine, self.clock().now());
        self.carry_out(core, VerificationGuard::NONE);
        value
    }

    /// Sets what the coordinator goes by, from which nothing follows yet.
    pub fn set(&self, set: impl FnOnce(&mut C)) {
        set(&mut self.lock().machine);
    }

    /// Asks the coordinator.
    pub fn ask(&self, origin: &RequestOrigin<'_>, request: C::Request<'_>) -> Asked<C::Reply> {
        self.ask_verified(origin, request, VerificationGuard::NONE)
    }

    /// Asks the coordinator; what it writes at once for a producer's transaction may begin that in its partition
    /// (KIP-890).
    pub fn ask_verified(
        &self,
        origin: &RequestOrigin<'_>,
        request: C::Request<'_>,
        guard: VerificationGuard,
    ) -> Asked<C::Reply> {
        let mut core = self.lock();
        core.last_token += 1;
        let token = Token(core.last_token);
        let (sender, mut receiver) = oneshot::channel();
        core.waiting.insert(token, sender);
        core.machine.step(self.clock().now(), token, origin, request);
        self.carry_out(core, guard);
        match receiver.try_recv() {
            Ok(reply) => Asked::Now(reply),
            Err(_) => Asked::Later(receiver),
        }
    }

    /// What a reply about a key has to be confirmed with ([`Self::confirm`]); to be asked before the coordinator is. `None`
    /// where its partition has one replica, which always leads, or was not taken over.
    pub fn lease(&self, key: &str) -> Option<(Arc<Partition>, LeaderEpoch)> {
        self.store.peers.as_ref()?;
        let core = self.core.lock();
        let index = core.machine.partition_for(key);
        let epoch = core.epochs.get(&index).copied()?;
        drop(core);
        let partition = self.partition(index).filter(|one| one.is_replicated())?;
        Some((partition, epoch))
    }

    /// Holds a reply that was made from memory until it is known that this node still leads: another coordinator may have
    /// acknowledged something since. In the other case `refusal` is the reply. One that comes later follows a write.
    pub fn confirm(
        (partition, epoch): (Arc<Partition>, LeaderEpoch),
        asked: Asked<C::Reply>,
        refusal: C::Reply,
    ) -> Asked<C::Reply> {
        let Asked::Now(reply) = asked else { return asked };
        let (sender, receiver) = oneshot::channel();
        let confirmed = move |result: Result<(), ErrorCode>| {
            // The connection may be gone.
            let _ = sender.send(if result.is_ok() { reply } else { refusal });
        };
        partition.when_confirmed(epoch, Durable::Call(Box::new(confirmed)));
        Asked::Later(receiver)
    }

    /// The same of all partitions of some keys, or of all that were taken over.
    fn leases(&self, keys: Keys) -> Vec<(Arc<Partition>, LeaderEpoch)> {
        if self.store.peers.is_none() {
            return Vec::new();
        }
        let core = self.core.lock();
        let epochs: BTreeMap<i32, LeaderEpoch> = match keys {
            Keys::All => core.epochs.iter().map(|(index, epoch)| (*index, *epoch)).collect(),
            Keys::These(keys) => {
                let indexes = keys.iter().map(|key| core.machine.partition_for(key));
                indexes.filter_map(|index| Some((index, *core.epochs.get(&index)?))).collect()
            }
        };
        drop(core);
        let lease = |(index, epoch)| {
            let partition = self.partition(index).filter(|one| one.is_replicated())?;
            Some((partition, epoch))
        };
        epochs.into_iter().filter_map(lease).collect()
    }

    /// Writes a marker into a partition of the coordinator's topic, in the order of the coordinator's own writes, if
    /// `begin` finds that it may be written now. `on_written` is called once, also when it may not;
    /// it is dropped uncalled only when the broker has stopped.
    pub fn write_marker(
        &self,
        marker: TransactionMarker,
        begin: impl FnOnce(&mut C, Now) -> Result<C::Ticket, ErrorCode>,
        on_written: OnWritten,
    ) {
        let mut core = self.lock();
        match begin(&mut core.machine, self.clock().now()) {
            Ok(ticket) => {
                let epoch = core.epochs.get(&C::partition_of(ticket)).copied();
                let content = Content::Marker(marker);
                self.queue(Write { ticket, epoch, content, on_written: Some(on_written) });
                self.carry_out(core, VerificationGuard::NONE);
                self.drain(C::partition_of(ticket));
            }
            Err(error) => {
                drop(core);
                on_written(Err(error));
            }
        }
    }

    /// Does what the coordinator has decided: replies, then, without the lock, writes and the rest.
    fn carry_out(&self, mut core: Locked<'_, C>, guard: VerificationGuard) {
        // Also behind the lock: a decision that is not carried out is waited for by those whom it was to answer.
        let _whole = whole_or_over();
        let (mut lanes, mut others) = (Vec::new(), Vec::new());
        for effect in core.machine.effects() {
            match effect {
                Effect::Reply { token, reply } => {
                    if let Some(waiting) = core.waiting.remove(&token) {
                        // The connection may be gone; a group finds out by its session time-out.
                        let _ = waiting.send(reply);
                    }
                }
                Effect::Append { ticket, timestamp_ms, batch, records } => {
                    let guard = if batch.is_transactional { guard } else { VerificationGuard::NONE };
                    let epoch = core.epochs.get(&C::partition_of(ticket)).copied();
                    let content = Content::Records { timestamp_ms, batch, guard, records };
                    self.queue(Write { ticket, epoch, content, on_written: None });
                    lanes.push(C::partition_of(ticket));
                }
                Effect::Other(other) => others.push(other),
            }
        }
        let deadline = core.machine.next_deadline_ms().unwrap_or(NEVER);
        drop(core);
        if deadline < self.armed_ms.load(Ordering::Acquire) {
            self.rearm.notify_one();
        }
        lanes.into_iter().for_each(|partition| self.drain(partition));
        others.into_iter().for_each(|other| self.perform(other));
    }

    fn perform(&self, other: C::Other) {
        if let Some(perform) = self.perform.get() {
            perform(other);
        }
    }

    /// Puts a write behind the others of its partition. To be called under the coordinator's lock, which orders them.
    fn queue(&self, write: Write<C>) {
        let mut lanes = self.lanes.lock();
        let empty = || Lane { writes: VecDeque::new(), is_busy: false };
        lanes.entry(C::partition_of(write.ticket)).or_insert_with(empty).writes.push_back(write);
    }

    /// Makes the writes of a partition, unless another thread is at it: that one makes these too.
    fn drain(&self, partition: i32) {
        // A partition that stays busy would never be written again.
        let _whole = whole_or_over();
        let mut lanes = self.lanes.lock();
        match lanes.get_mut(&partition) {
            Some(lane) if !lane.is_busy => lane.is_busy = true,
            _ => return,
        }
        while let Some(write) = lanes.get_mut(&partition).and_then(|lane| lane.writes.pop_front()) {
            drop(lanes);
            self.write(write);
            lanes = self.lanes.lock();
        }
        lanes.remove(&partition);
    }

    fn write(&self, write: Write<C>) {
        let Write { ticket, epoch: decided_in, content, on_written } = write;
        match append::<C>(self, (C::partition_of(ticket), decided_in), content) {
            Ok((partition, upto, epoch)) => {
                let is_cached = partition.settings().write_caching && !partition.is_replicated();
                let own = self.own.clone();
                let durable = Durable::Call(Box::new(move |result| {
                    // Who waits behind a node that is gone is gone, too.
                    if let Some(driver) = own.upgrade() {
                        driver.written((ticket, decided_in), result, on_written);
                    }
                }));
                // Called without any lock, since the answer may come at once.
                match is_cached {
                    true => durable.done(Ok(())),
                    false => partition.when_committed(upto, epoch, durable),
                }
            }
            Err(error) => {
                let mut core = self.lock();
                core.machine.appended(self.clock().now(), ticket, Err(error));
                self.carry_out(core, VerificationGuard::NONE);
                on_written.into_iter().for_each(|on_written| on_written(Err(error)));
            }
        }
    }

    /// A write is durable, or it is not known whether its records will be there after a restart: then the partition is
    /// given up, unless it was taken over anew since.
    fn written(
        &self,
        (ticket, epoch): (C::Ticket, Option<LeaderEpoch>),
        result: Result<(), ErrorCode>,
        on_written: Option<OnWritten>,
    ) {
        let _whole = whole_or_over();
        let result = writes::without_min_insync(result);
        let mut core = self.lock();
        let (now, partition) = (self.clock().now(), C::partition_of(ticket));
        match Consequence::of(result, epoch, core.epochs.get(&partition).copied()) {
            Consequence::Report => core.machine.appended(now, ticket, Ok(())),
            Consequence::GiveUp => core.machine.unload(now, partition),
            Consequence::Nothing => {}
        }
        self.carry_out(core, VerificationGuard::NONE);
        on_written.into_iter().for_each(|on_written| on_written(result));
    }

    /// Gives partitions up: they are gone, or cannot be used.
    pub fn unload(&self, partitions: &[Arc<Partition>]) {
        self.change(|machine, now| {
            partitions.iter().for_each(|partition| machine.unload(now, partition.index));
        });
    }

    /// Sets the number of partitions of the coordinator's topic, of which none is served yet.
    pub fn set_partition_count(&self, partitions: usize) {
        if let Ok(count @ 1..) = i32::try_from(partitions) {
            self.lock().machine.set_partition_count(count);
        }
    }

    /// Takes one partition over that this node has begun to lead, and gives it up again if it leads no more by then.
    pub fn load_one(&self, partition: &Arc<Partition>) {
        self.take_over(partition);
    }

    /// Takes partitions over that are not served yet: the coordinator is rebuilt from what they hold. Where one cannot
    /// be read, the others are served. Waits until what was read is durable: nothing follows from a record that a power
    /// cut may take back.
    pub fn load(&self, partitions: &[Arc<Partition>]) {
        self.set_partition_count(partitions.len());
        for partition in partitions {
            self.take_over(partition);
        }
    }

    fn take_over(&self, partition: &Arc<Partition>) {
        // A partition that is half loaded would stay so.
        let _whole = whole_or_over();
        let now = self.clock().now();
        let leader_epoch = partition.lead(LeaderEpoch::NONE);
        let mut core = self.lock();
        core.machine.begin_load(partition.index, leader_epoch.unwrap_or(LeaderEpoch::ZERO));
        core.epochs.insert(partition.index, leader_epoch.unwrap_or(LeaderEpoch::ZERO));
        drop(core);
        let is_read = leader_epoch.is_ok() && self.replay(partition);
        let loaded = is_read && leader_epoch.is_ok_and(|epoch| is_durable(partition, epoch));
        core = self.lock();
        match loaded {
            true => core.machine.finish_load(now, partition.index),
            false => core.machine.unload(now, partition.index),
        }
        self.carry_out(core, VerificationGuard::NONE);
    }

    /// Replays a partition. Returns true if all of it could be read.
    fn replay(&self, partition: &Partition) -> bool {
        let (now, index, topic) = (self.clock().now(), partition.index, C::TOPIC);
        let mut malformed = 0;
        let replayed = partition.replay(Checksums::Unread, |entry| {
            if let Some(entry) = keyed(entry) {
                malformed += self.lock().machine.load(now, index, entry);
            }
        });
        if malformed > 0 {
            tracing::error!(partition = index, malformed, "{topic} has records that do not decode");
        }
        match replayed {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::error!(
                    "partition {topic}-{index} cannot be read: {error}; repair or move away its directory, then start \
                     again; until then what it coordinates is not served"
                );
                false
            }
            // It is offline, or was deleted.
            Err(_) => false,
        }
    }

    /// Fires the deadlines that are due. Returns when the next one is.
    fn tick(&self) -> u64 {
        let mut core = self.lock();
        core.machine.tick(self.clock().now());
        let deadline = core.machine.next_deadline_ms().unwrap_or(NEVER);
        self.armed_ms.store(deadline, Ordering::Release);
        self.carry_out(core, VerificationGuard::NONE);
        deadline
    }

    /// Fires deadlines until the broker stops.
    pub async fn run_timer(self: Arc<Self>) {
        let (clock, stopping) = (self.clock(), &self.stopping);
        let mut stopped = std::pin::pin!(stopping.notified());
        while !stopping.is_stopping() {
            let deadline = self.tick();
            let due = async {
                match deadline {
                    NEVER => std::future::pending().await,
                    deadline => clock.sleep_until(clock.instant_of(deadline)).await,
                }
            };
            tokio::select! {
                () = due => {}
                () = self.rearm.notified() => {}
                () = &mut stopped => return,
            }
        }
    }

    /// Asks about one key, and has what is answered from memory confirmed ([`Self::confirm`]).
    pub fn ask_confirmed(
        &self,
        origin: &RequestOrigin<'_>,
        (request, key): (C::Request<'_>, &str),
        refusal: C::Reply,
    ) -> Asked<C::Reply> {
        let lease = self.lease(key);
        let asked = self.ask(origin, request);
        match lease {
            Some(lease) => Self::confirm(lease, asked, refusal),
            None => asked,
        }
    }

    /// Asks from memory as often as `ask` wants to, and waits for the majority then. Who asks for one key after the other keeps
    /// others waiting for the coordinator no longer than one key takes.
    pub fn confirmed_here<T>(&self, keys: Keys, ask: impl FnOnce(&Driver<C>) -> T) -> (T, Overtaken) {
        let leases = self.leases(keys);
        let answers = ask(self);
        (answers, Overtaken::wait(leases))
    }

    /// Asks what is answered at once.
    pub fn ask_here(&self, origin: &RequestOrigin<'_>, request: C::Request<'_>) -> C::Reply {
        let Asked::Now(reply) = self.ask(origin, request) else {
            unreachable!("what is in memory is not waited for")
        };
        reply
    }
}

/// What a request that is answered from memory is about.
pub enum Keys {
    /// All groups, or transactional ids, that this node coordinates.
    All,
    /// These groups, or transactional ids.
    These(Vec<String>),
}

/// Partitions of a coordinator's topic that this node may not have led any more when it was asked: what it has in memory of
/// their keys, others may have changed since.
#[derive(Debug, Default)]
pub struct Overtaken(BTreeSet<i32>);

impl Overtaken {
    /// Whether a key may have another coordinator.
    pub fn has<C: Coordinator>(&self, coordinator: &Driver<C>, key: &str) -> bool {
        !self.0.is_empty() && self.0.contains(&coordinator.partition_for(key))
    }

    /// Waits for the answers of all majorities.
    fn wait(leases: Vec<(Arc<Partition>, LeaderEpoch)>) -> Overtaken {
        let mut overtaken = Overtaken::default();
        for (index, confirmed) in ask_majorities(leases) {
            if !confirmed.blocking_recv().unwrap_or(false) {
                overtaken.0.insert(index);
            }
        }
        overtaken
    }
}

/// Asks whether this node still leads partitions: all of them before the first answer is waited for.
fn ask_majorities(leases: Vec<(Arc<Partition>, LeaderEpoch)>) -> Vec<(i32, oneshot::Receiver<bool>)> {
    let ask = |(partition, epoch): (Arc<Partition>, LeaderEpoch)| {
        let (sender, receiver) = oneshot::channel();
        // The connection may be gone.
        let confirmed = move |result: Result<(), ErrorCode>| _ = sender.send(result.is_ok());
        partition.when_confirmed(epoch, Durable::Call(Box::new(confirmed)));
        (partition.index, receiver)
    };
    leases.into_iter().map(ask).collect()
}

/// Appends to a partition of a coordinator's topic, where that is replicated in the epoch in which it was taken over: between two
/// epochs others may have led, and changed what this node goes by. Returns the partition, the end up to which it has to be durable, and
/// the leader epoch.
fn append<C: Coordinator>(
    driver: &Driver<C>,
    (partition, epoch): (i32, Option<LeaderEpoch>),
    content: Content,
) -> Result<(Arc<Partition>, i64, LeaderEpoch), ErrorCode> {
    let (partition, clock) =
        (driver.partition(partition).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?, driver.clock());
    let epoch = epoch.filter(|_| partition.is_replicated());
    let appended = match content {
        Content::Marker(marker) => partition.append_marker_decided(&marker, epoch, clock),
        Content::Records { timestamp_ms, batch, guard, records } => {
            let bytes =
                writes::batch_of(batch, timestamp_ms, &records).map_err(|_| ErrorCode::MESSAGE_TOO_LARGE)?;
            let append = |scratch: &mut _| partition.append_decided(&bytes, (guard, epoch), clock, scratch);
            with_scratch(append)
        }
    };
    let outcome = appended.map_err(|refused| refused.code())?;
    Ok((partition, outcome.appended.last_offset + 1, outcome.epoch))
}

/// Waits until all that is in a log is durable, and committed where there are several replicas. Returns false if it never
/// will be.
fn is_durable(partition: &Partition, epoch: LeaderEpoch) -> bool {
    let Ok(ends) = partition.ends() else { return false };
    if partition.settings().write_caching && !partition.is_replicated() {
        return true;
    }
    let (sender, durable) = mpsc::sync_channel(1);
    let told = move |result| {
        // The receiver waits below for as long as it takes.
        let _ = sender.send(result);
    };
    partition.when_committed(ends.log_end, epoch, Durable::Call(Box::new(told)));
    durable.recv().is_ok_and(|result| writes::without_min_insync(result).is_ok())
}

/// The entry as the state machines of coordinators read it: their records have a key.
fn keyed(entry: Entry<'_>) -> Option<LogEntry<'_>> {
    match entry {
        Entry::Record { record, producer } => {
            let value = record.value;
            record.key.map(|key| LogEntry::Record { key, value, producer })
        }
        Entry::End(end) => Some(LogEntry::End(end)),
        Entry::Control { .. } => None,
    }
}
