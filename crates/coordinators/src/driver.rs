//! The driver of a coordinator: its requests come from connections, its records go into an internal topic, its replies
//! back to who asked.
//!
//! One driver serves every coordinator that is a state machine over one internal topic ([`Coordinator`]). The state
//! machine decides under one short lock. Its appends are made without that lock, in the order in which they were
//! decided, one at a time for each partition; what becomes of them comes back when they are durable.
//!
//! A panic in any of this leaves a machine half changed, or a decision half carried out: the process ends, and the next
//! start rebuilds the coordinator from its log.

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

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use mainstem_coordination::groups::{CoordinatorRecord, LogEntry, Token};
use mainstem_coordination::writes::{self, Consequence};
use mainstem_log::{TransactionMarker, VerificationGuard};
use mainstem_records::{BatchOptions, LeaderEpoch};
use mainstem_wire::ErrorCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::broker::Broker;
use crate::net::context::RequestContext;
use crate::net::dispatch::Handled;
use crate::net::output::ResponseBuffer;
use mainstem_runtime::clock::Now;
use mainstem_runtime::supervised::AbortOnPanic;
use mainstem_store::partition::{Durable, Partition};
use mainstem_store::replay::{Checksums, Entry};
use mainstem_store::scratch::with_scratch;

/// No deadline.
const NEVER: u64 = u64::MAX;

/// Why the process ends when a coordinator panics.
const HALF_CHANGED: &str = "a coordinator is half changed, which is whole in its log alone";

/// A coordinator's state machine, as its driver sees it. No method does I/O or reads a clock.
pub(crate) trait Coordinator: Send + Sized + 'static {
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

    /// The driver of this coordinator in a broker.
    fn driver(broker: &Broker) -> &Driver<Self>;

    /// Takes a request.
    fn step(&mut self, now: Now, token: Token, context: &RequestContext, request: Self::Request<'_>);

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

    /// Carries out what the coordinator asks for besides appends and replies, without its lock.
    fn perform(broker: &Arc<Broker>, other: Self::Other);
}

/// What a coordinator asks of its driver.
pub(crate) enum Effect<C: Coordinator> {
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
pub(crate) type OnWritten = Box<dyn FnOnce(Result<(), ErrorCode>) + Send>;

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

/// A coordinator with what connects it to the broker.
pub(crate) struct Driver<C: Coordinator> {
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
pub(crate) enum Asked<R> {
    Now(R),
    Later(oneshot::Receiver<R>),
}

impl<R> Asked<R> {
    /// The reply, on a thread where waiting is allowed.
    ///
    /// # Errors
    /// COORDINATOR_NOT_AVAILABLE when the broker stops first.
    pub(crate) fn wait(self) -> Result<R, ErrorCode> {
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
    pub(crate) async fn reply(self) -> Result<R, ErrorCode> {
        match self {
            Asked::Now(reply) => Ok(reply),
            Asked::Later(receiver) => receiver.await.map_err(|_| ErrorCode::COORDINATOR_NOT_AVAILABLE),
        }
    }
}

impl<C: Coordinator> Driver<C> {
    /// A driver of a coordinator that serves no partition yet.
    pub(crate) fn new(machine: C) -> Self {
        let core =
            Mutex::new(Core { machine, waiting: HashMap::new(), last_token: 0, epochs: HashMap::new() });
        let (lanes, armed_ms) = (Mutex::new(HashMap::new()), AtomicU64::new(NEVER));
        Driver { core, lanes, armed_ms, rearm: Notify::new() }
    }

    /// Locks the coordinator to change it.
    fn lock(&self) -> Locked<'_, C> {
        let core = self.core.lock();
        Locked { _whole: whole_or_over(), core }
    }

    /// Looks at the coordinator, which no panic can change then.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&C) -> T) -> T {
        look(&self.core.lock().machine)
    }

    /// The partition of the coordinator's topic that has a key.
    pub(crate) fn partition_for(&self, key: &str) -> i32 {
        self.look(|machine| machine.partition_for(key))
    }

    /// Changes the coordinator, and carries out what follows from that.
    pub(crate) fn change<T>(&self, broker: &Arc<Broker>, change: impl FnOnce(&mut C, Now) -> T) -> T {
        let mut core = self.lock();
        let value = change(&mut core.machine, broker.clock.now());
        self.carry_out(broker, core, VerificationGuard::NONE);
        value
    }

    /// Sets what the coordinator goes by, from which nothing follows yet.
    pub(crate) fn set(&self, set: impl FnOnce(&mut C)) {
        set(&mut self.lock().machine);
    }

    /// Asks the coordinator.
    pub(crate) fn ask(
        &self,
        broker: &Arc<Broker>,
        context: &RequestContext,
        request: C::Request<'_>,
    ) -> Asked<C::Reply> {
        self.ask_verified(broker, context, request, VerificationGuard::NONE)
    }

    /// Asks the coordinator; what it writes at once for a producer's transaction may begin that in its partition
    /// (KIP-890).
    pub(crate) fn ask_verified(
        &self,
        broker: &Arc<Broker>,
        context: &RequestContext,
        request: C::Request<'_>,
        guard: VerificationGuard,
    ) -> Asked<C::Reply> {
        let mut core = self.lock();
        core.last_token += 1;
        let token = Token(core.last_token);
        let (sender, mut receiver) = oneshot::channel();
        core.waiting.insert(token, sender);
        core.machine.step(broker.clock.now(), token, context, request);
        self.carry_out(broker, core, guard);
        match receiver.try_recv() {
            Ok(reply) => Asked::Now(reply),
            Err(_) => Asked::Later(receiver),
        }
    }

    /// What a reply about a key has to be confirmed with ([`Self::confirm`]); to be asked before the coordinator is. `None`
    /// where its partition has one replica, which always leads, or was not taken over.
    pub(crate) fn lease(&self, broker: &Broker, key: &str) -> Option<(Arc<Partition>, LeaderEpoch)> {
        broker.cluster.as_ref()?;
        let core = self.core.lock();
        let index = core.machine.partition_for(key);
        let epoch = core.epochs.get(&index).copied()?;
        drop(core);
        let partition = broker.store.topics.partition(C::TOPIC, index).filter(|one| one.is_replicated())?;
        Some((partition, epoch))
    }

    /// Holds a reply that was made from memory until it is known that this node still leads: another coordinator may have
    /// acknowledged something since. In the other case `refusal` is the reply. One that comes later follows a write.
    pub(crate) fn confirm(
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
    fn leases(&self, broker: &Broker, keys: Keys) -> Vec<(Arc<Partition>, LeaderEpoch)> {
        if broker.cluster.is_none() {
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
            let partition =
                broker.store.topics.partition(C::TOPIC, index).filter(|one| one.is_replicated())?;
            Some((partition, epoch))
        };
        epochs.into_iter().filter_map(lease).collect()
    }

    /// Writes a marker into a partition of the coordinator's topic, in the order of the coordinator's own writes, if
    /// `begin` finds that it may be written now. `on_written` is called once: also when it may not.
    pub(crate) fn write_marker(
        &self,
        broker: &Arc<Broker>,
        marker: TransactionMarker,
        begin: impl FnOnce(&mut C, Now) -> Result<C::Ticket, ErrorCode>,
        on_written: OnWritten,
    ) {
        let mut core = self.lock();
        match begin(&mut core.machine, broker.clock.now()) {
            Ok(ticket) => {
                let epoch = core.epochs.get(&C::partition_of(ticket)).copied();
                let content = Content::Marker(marker);
                self.queue(Write { ticket, epoch, content, on_written: Some(on_written) });
                self.carry_out(broker, core, VerificationGuard::NONE);
                self.drain(broker, C::partition_of(ticket));
            }
            Err(error) => {
                drop(core);
                on_written(Err(error));
            }
        }
    }

    /// Does what the coordinator has decided: replies, then, without the lock, writes and the rest.
    fn carry_out(&self, broker: &Arc<Broker>, mut core: Locked<'_, C>, guard: VerificationGuard) {
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
        lanes.into_iter().for_each(|partition| self.drain(broker, partition));
        others.into_iter().for_each(|other| C::perform(broker, other));
    }

    /// Puts a write behind the others of its partition. To be called under the coordinator's lock, which orders them.
    fn queue(&self, write: Write<C>) {
        let mut lanes = self.lanes.lock();
        let empty = || Lane { writes: VecDeque::new(), is_busy: false };
        lanes.entry(C::partition_of(write.ticket)).or_insert_with(empty).writes.push_back(write);
    }

    /// Makes the writes of a partition, unless another thread is at it: that one makes these too.
    fn drain(&self, broker: &Arc<Broker>, partition: i32) {
        // A partition that stays busy would never be written again.
        let _whole = whole_or_over();
        let mut lanes = self.lanes.lock();
        match lanes.get_mut(&partition) {
            Some(lane) if !lane.is_busy => lane.is_busy = true,
            _ => return,
        }
        while let Some(write) = lanes.get_mut(&partition).and_then(|lane| lane.writes.pop_front()) {
            drop(lanes);
            self.write(broker, write);
            lanes = self.lanes.lock();
        }
        lanes.remove(&partition);
    }

    fn write(&self, broker: &Arc<Broker>, write: Write<C>) {
        let Write { ticket, epoch: decided_in, content, on_written } = write;
        match append::<C>(broker, (C::partition_of(ticket), decided_in), content) {
            Ok((partition, upto, epoch)) => {
                let is_cached = partition.settings().write_caching && !partition.is_replicated();
                let broker = broker.clone();
                let durable = Durable::Call(Box::new(move |result| {
                    C::driver(&broker).written(&broker, (ticket, decided_in), result, on_written);
                }));
                // Called without any lock, since the answer may come at once.
                match is_cached {
                    true => durable.done(Ok(())),
                    false => partition.when_committed(upto, epoch, durable),
                }
            }
            Err(error) => {
                let mut core = self.lock();
                core.machine.appended(broker.clock.now(), ticket, Err(error));
                self.carry_out(broker, core, VerificationGuard::NONE);
                on_written.into_iter().for_each(|on_written| on_written(Err(error)));
            }
        }
    }

    /// A write is durable, or it is not known whether its records will be there after a restart: then the partition is
    /// given up, unless it was taken over anew since.
    fn written(
        &self,
        broker: &Arc<Broker>,
        (ticket, epoch): (C::Ticket, Option<LeaderEpoch>),
        result: Result<(), ErrorCode>,
        on_written: Option<OnWritten>,
    ) {
        let _whole = whole_or_over();
        let result = writes::without_min_insync(result);
        let mut core = self.lock();
        let (now, partition) = (broker.clock.now(), C::partition_of(ticket));
        match Consequence::of(result, epoch, core.epochs.get(&partition).copied()) {
            Consequence::Report => core.machine.appended(now, ticket, Ok(())),
            Consequence::GiveUp => core.machine.unload(now, partition),
            Consequence::Nothing => {}
        }
        self.carry_out(broker, core, VerificationGuard::NONE);
        on_written.into_iter().for_each(|on_written| on_written(result));
    }

    /// Gives partitions up: they are gone, or cannot be used.
    pub(crate) fn unload(&self, broker: &Arc<Broker>, partitions: &[Arc<Partition>]) {
        self.change(broker, |machine, now| {
            partitions.iter().for_each(|partition| machine.unload(now, partition.index));
        });
    }

    /// Sets the number of partitions of the coordinator's topic, of which none is served yet.
    pub(crate) fn set_partition_count(&self, partitions: usize) {
        if let Ok(count @ 1..) = i32::try_from(partitions) {
            self.lock().machine.set_partition_count(count);
        }
    }

    /// Takes one partition over that this node has begun to lead, and gives it up again if it leads no more by then.
    pub(crate) fn load_one(&self, broker: &Arc<Broker>, partition: &Arc<Partition>) {
        self.take_over(broker, partition);
    }

    /// Takes partitions over that are not served yet: the coordinator is rebuilt from what they hold. Where one cannot
    /// be read, the others are served. Waits until what was read is durable: nothing follows from a record that a power
    /// cut may take back.
    pub(crate) fn load(&self, broker: &Arc<Broker>, partitions: &[Arc<Partition>]) {
        self.set_partition_count(partitions.len());
        for partition in partitions {
            self.take_over(broker, partition);
        }
    }

    fn take_over(&self, broker: &Arc<Broker>, partition: &Arc<Partition>) {
        // A partition that is half loaded would stay so.
        let _whole = whole_or_over();
        let now = broker.clock.now();
        let leader_epoch = partition.lead(LeaderEpoch::NONE);
        let mut core = self.lock();
        core.machine.begin_load(partition.index, leader_epoch.unwrap_or(LeaderEpoch::ZERO));
        core.epochs.insert(partition.index, leader_epoch.unwrap_or(LeaderEpoch::ZERO));
        drop(core);
        let is_read = leader_epoch.is_ok() && self.replay(broker, partition);
        let loaded = is_read && leader_epoch.is_ok_and(|epoch| is_durable(partition, epoch));
        core = self.lock();
        match loaded {
            true => core.machine.finish_load(now, partition.index),
            false => core.machine.unload(now, partition.index),
        }
        self.carry_out(broker, core, VerificationGuard::NONE);
    }

    /// Replays a partition. Returns true if all of it could be read.
    fn replay(&self, broker: &Broker, partition: &Partition) -> bool {
        let (now, index, topic) = (broker.clock.now(), partition.index, C::TOPIC);
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
    fn tick(&self, broker: &Arc<Broker>) -> u64 {
        let mut core = self.lock();
        core.machine.tick(broker.clock.now());
        let deadline = core.machine.next_deadline_ms().unwrap_or(NEVER);
        self.armed_ms.store(deadline, Ordering::Release);
        self.carry_out(broker, core, VerificationGuard::NONE);
        deadline
    }

    /// Fires deadlines until the broker stops.
    pub(crate) async fn run_timer(broker: Arc<Broker>) {
        let driver = C::driver(&broker);
        let mut stopping = std::pin::pin!(broker.stopping.notified());
        while !broker.stopping.is_stopping() {
            let deadline = driver.tick(&broker);
            let due = async {
                match deadline {
                    NEVER => std::future::pending().await,
                    deadline => broker.clock.sleep_until(broker.clock.instant_of(deadline)).await,
                }
            };
            tokio::select! {
                () = due => {}
                () = driver.rearm.notified() => {}
                () = &mut stopping => return,
            }
        }
    }

    /// Asks the coordinator and encodes its reply, now or later.
    pub(crate) fn answer(
        broker: &Arc<Broker>,
        context: RequestContext,
        request: C::Request<'_>,
        out: &mut ResponseBuffer,
        encode: impl FnOnce(&RequestContext, C::Reply, &mut ResponseBuffer) -> Handled + Send + 'static,
    ) -> Handled {
        match C::driver(broker).ask(broker, &context, request) {
            Asked::Now(reply) => encode(&context, reply, out),
            later => Handled::Later { response: Box::pin(answer_later(context, later, encode)), holds: true },
        }
    }

    /// The same of a request about one key. What is answered from memory is held until a majority has confirmed that this node
    /// coordinates the key; where it does not, `refusal` is the reply.
    pub(crate) fn answer_confirmed(
        broker: &Arc<Broker>,
        context: RequestContext,
        (request, key): (C::Request<'_>, &str),
        refusal: C::Reply,
        out: &mut ResponseBuffer,
        encode: impl FnOnce(&RequestContext, C::Reply, &mut ResponseBuffer) -> Handled + Send + 'static,
    ) -> Handled {
        match C::driver(broker).ask_confirmed(broker, &context, (request, key), refusal) {
            Asked::Now(reply) => encode(&context, reply, out),
            later => Handled::Later { response: Box::pin(answer_later(context, later, encode)), holds: true },
        }
    }

    /// Asks about one key, and has what is answered from memory confirmed ([`Self::confirm`]).
    pub(crate) fn ask_confirmed(
        &self,
        broker: &Arc<Broker>,
        context: &RequestContext,
        (request, key): (C::Request<'_>, &str),
        refusal: C::Reply,
    ) -> Asked<C::Reply> {
        let lease = self.lease(broker, key);
        let asked = self.ask(broker, context, request);
        match lease {
            Some(lease) => Self::confirm(lease, asked, refusal),
            None => asked,
        }
    }

    /// The same of a request that is answered from memory, on a thread where waiting is allowed: held until a majority has
    /// confirmed that this node leads the partitions of the keys. `encode` gets those of which it did not.
    pub(crate) fn answer_confirmed_here(
        broker: &Arc<Broker>,
        context: &RequestContext,
        (request, keys): (C::Request<'_>, Keys),
        out: &mut ResponseBuffer,
        encode: impl FnOnce(&RequestContext, C::Reply, &Overtaken, &mut ResponseBuffer) -> Handled,
    ) -> Handled {
        let ask = |driver: &Driver<C>| driver.ask_here(broker, context, request);
        let (reply, overtaken) = Self::confirmed_here(broker, keys, ask);
        encode(context, reply, &overtaken, out)
    }

    /// Asks from memory as often as `ask` wants to, and waits for the majority then. Who asks for one key after the other keeps
    /// others waiting for the coordinator no longer than one key takes.
    pub(crate) fn confirmed_here<T>(
        broker: &Broker,
        keys: Keys,
        ask: impl FnOnce(&Driver<C>) -> T,
    ) -> (T, Overtaken) {
        let driver = C::driver(broker);
        let leases = driver.leases(broker, keys);
        let answers = ask(driver);
        (answers, Overtaken::wait(leases))
    }

    /// Asks what is answered at once.
    pub(crate) fn ask_here(
        &self,
        broker: &Arc<Broker>,
        context: &RequestContext,
        request: C::Request<'_>,
    ) -> C::Reply {
        let Asked::Now(reply) = self.ask(broker, context, request) else {
            unreachable!("what is in memory is not waited for")
        };
        reply
    }
}

/// What a request that is answered from memory is about.
pub(crate) enum Keys {
    /// All groups, or transactional ids, that this node coordinates.
    All,
    /// These groups, or transactional ids.
    These(Vec<String>),
}

/// Partitions of a coordinator's topic that this node may not have led any more when it was asked: what it has in memory of
/// their keys, others may have changed since.
#[derive(Debug, Default)]
pub(crate) struct Overtaken(BTreeSet<i32>);

impl Overtaken {
    /// Whether a key may have another coordinator.
    pub(crate) fn has<C: Coordinator>(&self, coordinator: &Driver<C>, key: &str) -> bool {
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

/// Waits for a reply and encodes it.
///
/// # Errors
/// When the broker stops first.
pub(crate) async fn answer_later<R>(
    context: RequestContext,
    asked: Asked<R>,
    encode: impl FnOnce(&RequestContext, R, &mut ResponseBuffer) -> Handled,
) -> Result<ResponseBuffer, String> {
    let reply = asked.reply().await.map_err(|_| "the coordinator ended".to_owned())?;
    let mut out = ResponseBuffer::pooled();
    encode(&context, reply, &mut out);
    Ok(out)
}

/// Appends to a partition of a coordinator's topic, where that is replicated in the epoch in which it was taken over: between two
/// epochs others may have led, and changed what this node goes by. Returns the partition, the end up to which it has to be durable, and
/// the leader epoch.
fn append<C: Coordinator>(
    broker: &Broker,
    (partition, epoch): (i32, Option<LeaderEpoch>),
    content: Content,
) -> Result<(Arc<Partition>, i64, LeaderEpoch), ErrorCode> {
    let partition =
        broker.store.topics.partition(C::TOPIC, partition).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
    let epoch = epoch.filter(|_| partition.is_replicated());
    let appended = match content {
        Content::Marker(marker) => partition.append_marker_decided(&marker, epoch, &broker.clock),
        Content::Records { timestamp_ms, batch, guard, records } => {
            let bytes =
                writes::batch_of(batch, timestamp_ms, &records).map_err(|_| ErrorCode::MESSAGE_TOO_LARGE)?;
            let append =
                |scratch: &mut _| partition.append_decided(&bytes, (guard, epoch), &broker.clock, scratch);
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
