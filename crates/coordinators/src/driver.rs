//! The driver of a coordinator: it takes requests, appends records to an internal topic, and returns replies.
//!
//! One driver serves every coordinator that is a state machine over one internal topic ([`Coordinator`]). The state machine decides under
//! one short lock. Its appends are made without that lock, in the order in which they were decided, one at a time for each partition. Their
//! outcomes are reported to the state machine when they are durable.
//!
//! After a panic in any of this a state machine may be half changed, or a decision half carried out. So the process ends, and the next
//! start rebuilds the coordinator from its log.

mod confirmed;
#[cfg(feature = "sim")]
mod hand;
mod lanes;
mod load_times;
mod loading;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use mainstem_coordination::groups::{CoordinatorRecord, LogEntry, Token};
use mainstem_log::VerificationGuard;
use mainstem_records::{BatchOptions, LeaderEpoch};
use mainstem_runtime::clock::{Clock, Now};
use mainstem_runtime::stopping::Stopping;
use mainstem_runtime::supervised::AbortOnPanic;
use mainstem_runtime::sync;
use mainstem_store::partition::Partition;
use mainstem_store::store::Store;
use mainstem_store::topics::Topics;
use mainstem_wire::ErrorCode;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

pub use confirmed::{Keys, Overtaken};
pub use lanes::OnWritten;
use lanes::{Content, Lane, Write};
use load_times::LoadTimes;
use loading::Loading;
pub use loading::{Loads, loads};

/// Pause between two looks for a reply in a simulation.
const POLL_EVERY: Duration = Duration::from_millis(1);

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The reason that the log gives when a coordinator panics and the process ends.
const HALF_CHANGED: &str = "a coordinator is half changed, which is whole in its log alone";

/// A coordinator's state machine, as its driver sees it. No method does I/O or reads a clock.
pub trait Coordinator: Send + Sized + 'static {
    /// A request, which may borrow from its frame.
    type Request<'a>;
    /// The answer to a request.
    type Reply: Send + 'static;
    /// The coordinator's name for an append.
    type Ticket: Copy + Send + 'static;
    /// Its effects besides appends and replies.
    type Other: Send + 'static;

    /// The internal topic that holds its records.
    const TOPIC: &'static str;

    /// Takes a request.
    fn step(&mut self, now: Now, token: Token, origin: &RequestOrigin<'_>, request: Self::Request<'_>);

    /// Drains its decisions since the last call, in order.
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

    /// Begins to load a partition that this node leads in an epoch. Returns its loader: a coordinator without other users, which
    /// replays the partition without a lock.
    fn begin_load(&mut self, partition: i32, leader_epoch: LeaderEpoch) -> Self;

    /// Replays an entry of the log, in a loader. Returns the number of records that do not decode.
    fn load(&mut self, now: Now, partition: i32, entry: LogEntry<'_>) -> u64;

    /// Serves a partition whose loader has replayed all entries.
    fn finish_load(&mut self, now: Now, partition: i32, loader: Self);

    /// The partition of the last request that was refused because that partition is being loaded, once.
    fn take_wanted(&mut self) -> Option<i32>;

    /// Unloads a partition, whether it is loaded or still loading.
    fn unload(&mut self, now: Now, partition: i32);

    /// Asserts what holds between any two calls.
    fn check(&self);
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
        /// The token of the request.
        token: Token,
        /// The answer.
        reply: C::Reply,
    },
    /// Append records as one batch, then report its outcome.
    Append {
        /// The ticket to report the outcome with.
        ticket: C::Ticket,
        /// Timestamp of the records, wall clock milliseconds.
        timestamp_ms: i64,
        /// The transaction that the batch belongs to, if any.
        batch: BatchOptions,
        /// Never empty.
        records: Vec<CoordinatorRecord>,
    },
    /// An effect that only this coordinator has.
    Other(C::Other),
}

/// Called with a coordinator's effects besides appends and replies, without its lock.
pub type Perform<C> = Box<dyn Fn(<C as Coordinator>::Other) + Send + Sync>;

/// A coordinator with its connections to the node.
pub struct Driver<C: Coordinator> {
    clock: Clock,
    /// Has the internal topic.
    topics: Arc<Topics>,
    /// Other nodes may lead its partitions.
    has_peers: bool,
    perform: OnceLock<Perform<C>>,
    own: Weak<Driver<C>>,
    core: Mutex<Core<C>>,
    /// Threads that load partitions.
    loads: Arc<Loads>,
    /// Writes by partition; only partitions with writes have an entry.
    lanes: Mutex<HashMap<i32, Lane<C>>>,
    /// The deadline that the timer waits for, so that a step knows whether to wake it.
    armed_ms: AtomicU64,
    rearm: Notify,
    /// The state of a driver whose writes are made and reported by hand.
    #[cfg(feature = "sim")]
    by_hand: OnceLock<hand::ByHand<C>>,
}

struct Core<C: Coordinator> {
    machine: C,
    waiting: HashMap<Token, oneshot::Sender<C::Reply>>,
    last_token: u64,
    /// The leader epochs in which partitions were loaded.
    epochs: HashMap<i32, LeaderEpoch>,
    /// Loads that are neither finished nor cancelled, by partition.
    loads: HashMap<i32, Loading>,
    last_load: u64,
    load_times: LoadTimes,
}

/// A locked coordinator. A panic of the holder ends the process.
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

/// Ends the process if the caller panics before this is dropped. None while the thread is panicking already: its work during unwinding has
/// not begun yet.
fn whole_or_over() -> Option<AbortOnPanic> {
    (!std::thread::panicking()).then_some(AbortOnPanic(HALF_CHANGED))
}

/// A reply, which is known now or comes later.
pub enum Asked<R> {
    /// The reply.
    Now(R),
    /// It comes later, unless the broker stops first.
    Later(oneshot::Receiver<R>),
}

/// Waits for a reply on a thread whose waits are a simulation's.
fn poll<R>(mut receiver: oneshot::Receiver<R>) -> Option<R> {
    loop {
        match receiver.try_recv() {
            Ok(reply) => return Some(reply),
            Err(oneshot::error::TryRecvError::Closed) => return None,
            Err(oneshot::error::TryRecvError::Empty) => sync::sleep(POLL_EVERY),
        }
    }
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
                let reply = if sync::is_simulated() { poll(receiver) } else { receiver.blocking_recv().ok() };
                reply.ok_or(ErrorCode::COORDINATOR_NOT_AVAILABLE)
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
    /// A driver of a coordinator that serves no partition yet, over the topics of a store.
    pub fn new(machine: C, store: &Store, loads: &Arc<Loads>) -> Arc<Self> {
        let topics = (store.topics.clone(), store.peers.is_some());
        Arc::new_cyclic(|own| Driver::over(machine, store.clock.clone(), (topics, loads.clone()), own))
    }

    fn over(
        machine: C,
        clock: Clock,
        ((topics, has_peers), loads): ((Arc<Topics>, bool), Arc<Loads>),
        own: &Weak<Self>,
    ) -> Self {
        let core = Core {
            machine,
            waiting: HashMap::new(),
            last_token: 0,
            epochs: HashMap::new(),
            loads: HashMap::new(),
            last_load: 0,
            load_times: LoadTimes::default(),
        };
        Driver {
            clock,
            topics,
            has_peers,
            perform: OnceLock::new(),
            own: own.clone(),
            core: Mutex::new(core),
            loads,
            lanes: Mutex::default(),
            armed_ms: AtomicU64::new(NEVER),
            rearm: Notify::new(),
            #[cfg(feature = "sim")]
            by_hand: OnceLock::new(),
        }
    }

    /// Sets the function that carries out the coordinator's effects besides appends and replies. Called once, before the coordinator loads
    /// a partition.
    pub fn set_perform(&self, perform: Perform<C>) {
        assert!(self.perform.set(perform).is_ok(), "a coordinator's work is performed in one way");
    }

    /// The time.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The topics of the node.
    pub(crate) fn topics(&self) -> &Topics {
        &self.topics
    }

    /// The partition of the coordinator's topic of an index, if this node has it.
    fn partition(&self, index: i32) -> Option<Arc<Partition>> {
        self.topics.partition(C::TOPIC, index)
    }

    /// Locks the coordinator to change it.
    fn lock(&self) -> Locked<'_, C> {
        let core = self.core.lock();
        Locked { _whole: whole_or_over(), core }
    }

    /// Reads the coordinator. A panic cannot change it then.
    pub fn look<T>(&self, look: impl FnOnce(&C) -> T) -> T {
        look(&self.core.lock().machine)
    }

    /// The partition of the coordinator's topic that has a key.
    pub fn partition_for(&self, key: &str) -> i32 {
        self.look(|machine| machine.partition_for(key))
    }

    /// Changes the coordinator, and carries out its effects.
    pub fn change<T>(&self, change: impl FnOnce(&mut C, Now) -> T) -> T {
        let mut core = self.lock();
        let value = change(&mut core.machine, self.clock().now());
        self.carry_out(core, VerificationGuard::NONE);
        value
    }

    /// Changes settings of the coordinator that have no effects yet.
    pub fn set(&self, set: impl FnOnce(&mut C)) {
        set(&mut self.lock().machine);
    }

    /// Asks the coordinator.
    pub fn ask(&self, origin: &RequestOrigin<'_>, request: C::Request<'_>) -> Asked<C::Reply> {
        self.ask_verified(origin, request, VerificationGuard::NONE)
    }

    /// Asks the coordinator. If it writes at once for a producer's transaction, the write may begin the transaction in its partition
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
        self.prefer_wanted(&mut core);
        self.carry_out(core, guard);
        match receiver.try_recv() {
            Ok(reply) => Asked::Now(reply),
            Err(_) => Asked::Later(receiver),
        }
    }

    /// Carries out the coordinator's decisions: replies, then, without the lock, writes and the rest.
    fn carry_out(&self, mut core: Locked<'_, C>, guard: VerificationGuard) {
        // Also after the lock is released: if a decision is not carried out, clients wait for its answer.
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
        #[cfg(feature = "sim")]
        if self.by_hand.get().is_some() {
            core.machine.check();
        }
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

    /// Fires the deadlines that are due. Returns the time of the next one.
    fn tick(&self) -> u64 {
        let mut core = self.lock();
        core.machine.tick(self.clock().now());
        let deadline = core.machine.next_deadline_ms().unwrap_or(NEVER);
        self.armed_ms.store(deadline, Ordering::Release);
        self.carry_out(core, VerificationGuard::NONE);
        deadline
    }

    /// Fires deadlines until the broker stops.
    pub async fn run_timer(self: Arc<Self>, stopping: Arc<Stopping>) {
        let clock = self.clock();
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
}
