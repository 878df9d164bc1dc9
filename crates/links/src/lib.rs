//! Links between nodes: messages between replicas of groups, and small requests of a node to another.
//!
//! Each node dials every other node. It sends its messages over the connection that it dialled, and receives only the answers to
//! its requests there. A link begins as a Kafka connection to the peer's CONTROLLER listener; its first request is the hello
//! ([`hello`]), and frames follow (`mainstem_replication::link`).
//!
//! A message is put into the [`Outbox`](outbox::Outbox) of its link under the lock of its replica, which orders it. A
//! thread for each link writes: heartbeats first, then messages without batches, then appends, whose batches are read from
//! the log at that moment. An outbox is bounded. A message that does not fit is dropped, and the group asks again. When a link
//! ends, all its messages are dropped in the same way.
//!
//! If a peer refuses to be dialled again, its process is gone: the groups that it leads elect another leader immediately, without
//! waiting for the election timeout.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait in the time of the machine"))]

mod accept;
pub mod awaited;
mod calls;
pub mod channel;
mod dial;
mod disk_steps;
mod gate;
mod group;
#[cfg(any(test, feature = "sim"))]
pub mod hand;
pub mod hello;
mod out_of_sync;
mod outbox;
mod peers;
mod reading;
mod setbacks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod throttle;
pub mod ticker;
mod writing;

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainstem_replication::eraftpb::MessageType;
use mainstem_replication::{GroupId, Outgoing, RepeatAnswer, ReplicaId, Setback};
use parking_lot::{Mutex, RwLock};

pub use calls::{CallError, CallHandler, CallKind, CallReply};
pub use gate::{ANY_NODE, Arrived, GateNode, NodeGate, read_frame};
pub use group::{DiskStep, EarlierTicks, Group, GroupHandle, ReplicaStatus};
pub use hello::is_hello;

use awaited::Awaited;
use calls::{Callers, OnAnswer};
use disk_steps::DiskSteps;
use group::is_append;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::supervised;
use mainstem_runtime::sync::{self, RecvTimeoutError, Thread};
use out_of_sync::OutOfSync;
use outbox::Item;
use peers::{PeerLink, Peers};
use setbacks::Setbacks;
pub use throttle::{CATCH_UP_RATE, Rates, Throttle, Throttled};

/// Limit of the bytes of a frame behind its head: that of Kafka's requests (`socket.request.max.bytes`), and more than a
/// batch can have.
const BODY_BYTES_MAX: usize = 100 << 20;
/// Interval at which a caller that waits for an answer checks whether it still wants it, and a link that waits for its turn the same.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// Threads that serve the requests of other nodes.
const CALL_THREADS: usize = 4;

/// The reason for which a link with a peer ends that is gone.
const GONE: &str = "the node was removed from the cluster, or has another address now";

/// Identity of this node towards other nodes.
#[derive(Debug, Clone)]
pub struct LinkIdentity {
    /// `node.id`.
    pub node: i32,
    /// Ascends from one start of the node to the next: a later one takes the place of an earlier one.
    pub generation: u64,
    /// The cluster: links begin when it is founded.
    pub cluster_id: String,
}

/// Another node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its `node.id`.
    pub node: i32,
    /// Host of its CONTROLLER listener.
    pub host: String,
    /// The port there.
    pub port: u16,
}

/// Options of the links of a node.
#[derive(Debug, Clone)]
pub struct LinksOptions {
    /// The broker's clock.
    pub clock: Clock,
    /// `replica.lag.time.max.ms`.
    pub replica_lag_max_ms: u64,
    /// Bytes a second for replicas that catch up.
    pub catch_up_rate: u64,
    /// Limits of a link's silence.
    pub silence: SilenceLimits,
    /// Limits of the time and the bytes for which groups wait for a replica that is away.
    pub absence: AbsenceLimits,
    /// The place of the nodes that are not reached.
    pub awaited: Arc<Awaited>,
}

/// Limits up to which the logs of a group stay as they are for a replica that is away. Behind them it gets a copy when it is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbsenceLimits {
    /// Time without progress, in milliseconds.
    pub time_ms: u64,
    /// Bytes of the log that it holds back.
    pub bytes: u64,
}

impl Default for AbsenceLimits {
    fn default() -> Self {
        AbsenceLimits { time_ms: 15 * 60_000, bytes: 1 << 30 }
    }
}

/// Limits of the silence of links, by the machine's clock: the kernels of both ends count too.
#[derive(Debug, Clone, Copy)]
pub struct SilenceLimits {
    /// Time without messages after which a link sends a heartbeat.
    pub keep_alive: Duration,
    /// Time after which a peer that sends nothing, or takes nothing, counts as gone.
    pub silence_max: Duration,
}

impl SilenceLimits {
    /// A live peer sends something within this time, to keep its link alive.
    fn alive_max(&self) -> Duration {
        self.keep_alive * 3
    }
}

impl Default for SilenceLimits {
    fn default() -> Self {
        SilenceLimits { keep_alive: Duration::from_secs(1), silence_max: Duration::from_secs(10) }
    }
}

/// Links whose writers are to be woken, as bits by the ranks of peers.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Wakes(u64);

impl Wakes {
    /// All of both.
    pub fn and(self, other: Wakes) -> Wakes {
        Wakes(self.0 | other.0)
    }
}

/// All links of this node.
pub struct Links {
    node: i32,
    generation: u64,
    cluster_id: String,
    options: LinksOptions,
    peers: Peers,
    groups: RwLock<Groups>,
    /// A replica of any group that is registered has an earlier tick.
    pub earlier_ticks: Arc<EarlierTicks>,
    /// Replicas that cannot be in sync.
    pub out_of_sync: OutOfSync,
    handler: OnceLock<Arc<dyn CallHandler>>,
    callers: Callers,
    disk_steps: Arc<DiskSteps>,
    counters: Counters,
    setbacks: Setbacks,
    gate: Arc<NodeGate>,
    throttle: Throttle,
    rates: RwLock<Rates>,
    is_stopping: AtomicBool,
    threads: Mutex<Vec<Thread>>,
}

/// Counters of events, for the metrics.
#[derive(Debug, Default)]
struct Counters {
    too_far_behind: AtomicU64,
    lost: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicU64,
}

/// Groups that take part.
#[derive(Default)]
struct Groups {
    by_id: BTreeMap<GroupId, Arc<GroupHandle>>,
    /// All of them; built again after a change.
    all: Option<Arc<[Arc<GroupHandle>]>>,
}

/// A group that this node leads, by a coalesced heartbeat.
struct Lead {
    handle: Arc<GroupHandle>,
    term: u64,
}

impl Links {
    /// Starts to dial the peers. Others may be set later ([`Links::set_peers`]).
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub fn start(
        identity: LinkIdentity,
        peers: Vec<Peer>,
        options: LinksOptions,
        gate: Arc<NodeGate>,
    ) -> std::io::Result<Arc<Links>> {
        let links = Links::unstarted(identity, options, gate, true);
        let started = links.set_peers(peers).and_then(|()| links.spawn_callers());
        if let Err(error) = started {
            links.stop();
            return Err(error);
        }
        Ok(links)
    }

    /// Starts the threads that serve the requests of other nodes.
    fn spawn_callers(self: &Arc<Self>) -> std::io::Result<()> {
        for number in 0..CALL_THREADS {
            let worker = self.clone();
            self.spawn(format!("calls-{number}"), move || worker.callers.run())?;
        }
        Ok(())
    }

    /// Links without peers. `are_dialled`: each peer that is set gets a thread that dials it.
    fn unstarted(
        identity: LinkIdentity,
        options: LinksOptions,
        gate: Arc<NodeGate>,
        are_dialled: bool,
    ) -> Arc<Links> {
        let LinkIdentity { node, generation, cluster_id } = identity;
        let throttle = Throttle::new(options.clock.instant());
        Arc::new(Links {
            node,
            generation,
            cluster_id,
            options,
            peers: Peers::new(are_dialled),
            groups: RwLock::default(),
            earlier_ticks: Arc::default(),
            out_of_sync: OutOfSync::default(),
            handler: OnceLock::new(),
            callers: Callers::default(),
            disk_steps: Arc::default(),
            counters: Counters::default(),
            setbacks: Setbacks::default(),
            gate,
            throttle,
            rates: RwLock::default(),
            is_stopping: AtomicBool::new(false),
            threads: Mutex::default(),
        })
    }

    /// Starts a thread that [`Links::stop`] joins. A panic in one ends the process: groups would wait for what it does.
    fn spawn(&self, name: String, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = supervised::spawn_vital(&name, "links between nodes would be cut off", run)?;
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
        Ok(())
    }

    /// Serves requests of other nodes from now on. Called once.
    pub fn serve_calls(&self, handler: Arc<dyn CallHandler>) {
        let _ = self.handler.set(handler);
    }

    /// Ends all links and joins their threads.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.peers.end_all();
        self.setbacks.rest(self.now_ms()).into_iter().for_each(|line| tracing::warn!("{line}"));
        self.callers.stop();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A panic has ended the process already.
            let _ = thread.join();
        }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    /// Frames of a group go to this replica from now on, and it gets its ticks.
    pub fn register(&self, handle: &Arc<GroupHandle>) {
        let mut groups = self.groups.write();
        groups.by_id.insert(handle.id, handle.clone());
        groups.all = None;
        drop(groups);
        if let Some(group) = handle.group() {
            group.take_part(self.now_ms());
        }
    }

    /// Frames of a group are dropped from now on.
    pub fn unregister(&self, group: GroupId) {
        let mut groups = self.groups.write();
        groups.by_id.remove(&group);
        groups.all = None;
    }

    /// A group, if a replica of it is here.
    fn group(&self, id: GroupId) -> Option<Arc<GroupHandle>> {
        self.groups.read().by_id.get(&id).cloned()
    }

    /// All groups that are registered.
    pub fn groups(&self) -> Arc<[Arc<GroupHandle>]> {
        if let Some(all) = &self.groups.read().all {
            return all.clone();
        }
        let mut groups = self.groups.write();
        let all: Arc<[_]> = groups.by_id.values().cloned().collect();
        groups.all = Some(all.clone());
        all
    }

    /// Puts messages of a replica into the outboxes of links. Called under the replica's lock, which keeps their order.
    /// `catches_up` returns for a replica whose appends may take their time the rates that count for it. Returns the links whose
    /// writers are to be woken ([`Links::wake`]), and the replicas that have to be reported unreachable.
    pub fn send(
        &self,
        handle: &Arc<GroupHandle>,
        messages: Vec<Outgoing>,
        catches_up: impl Fn(ReplicaId) -> Option<Throttled>,
    ) -> (Wakes, Vec<ReplicaId>) {
        let (mut wakes, mut lost) = (Wakes::default(), Vec::new());
        let peers = self.peers.all();
        for outgoing in messages {
            // The caller has to learn that it was not sent.
            let is_offer = outgoing.message.get_msg_type() == MessageType::MsgSnapshot;
            let (to, counts) =
                (outgoing.to, is_append(&outgoing.message) || is_offer || outgoing.begins_coalescing);
            let catches_up = if outgoing.bytes > 0 { catches_up(to) } else { None };
            let peer = peers.iter().find(|peer| peer.peer.node == to.node());
            let taken = peer.is_some_and(|peer| {
                let mut outbox = peer.outbox.lock();
                let taken = outbox.push(Item { handle: handle.clone(), outgoing, catches_up });
                if outbox.wants_wake() {
                    wakes.0 |= 1 << peer.rank;
                }
                taken
            });
            if !taken {
                self.counters.dropped.fetch_add(1, Ordering::Relaxed);
                if counts && !lost.contains(&to) {
                    lost.push(to);
                }
            }
        }
        (wakes, lost)
    }

    /// Rates of Kafka's keys, in place of those before. Returns true if they are others.
    pub fn set_rates(&self, rates: Rates) -> bool {
        let mut current = self.rates.write();
        let are_new = *current != rates;
        if are_new {
            *current = rates;
            self.throttle.reset(self.clock().instant());
        }
        are_new
    }

    /// Bytes a second for a replica that catches up: see [`Rates`].
    pub fn catch_up_rate(&self, throttled: Throttled) -> u64 {
        self.throttled_rate(throttled).unwrap_or(self.options.catch_up_rate)
    }

    /// Bytes a second that Kafka's throttles leave a replica, the lower one of those that count for it. None if no throttle counts.
    pub fn throttled_rate(&self, throttled: Throttled) -> Option<u64> {
        self.rates.read().of(throttled)
    }

    /// Wakes writers.
    pub fn wake(&self, wakes: Wakes) {
        if wakes != Wakes::default() {
            self.of_ranks(wakes.0, |peer| peer.wake.notify_one());
        }
    }

    /// Calls `act` with each peer of a set of ranks, in their order.
    fn of_ranks(&self, ranks: u64, act: impl FnMut(&Arc<PeerLink>)) {
        self.peers.all().iter().filter(|peer| ranks & (1 << peer.rank) != 0).for_each(act);
    }

    fn peer(&self, node: i32) -> Option<Arc<PeerLink>> {
        self.peers.of(node)
    }

    /// Has all coalesced heartbeats repeated.
    pub fn repeat(&self, now_ms: u64) {
        for peer in self.peers.all().iter().filter(|peer| !peer.coalesced.lock().is_empty()) {
            peer.add(|outbox| outbox.push_repeat(now_ms));
        }
    }

    /// A peer has answered to all heartbeats that are coalesced there.
    fn take_answer(&self, peer: &PeerLink, answer: &RepeatAnswer) {
        let on_accepted = |lead: &Lead| lead.handle.status.note_answer(peer.rank);
        let refused = peer.coalesced.lock().answered(answer, on_accepted);
        for group in refused.iter().filter_map(|lead| lead.handle.group()) {
            group.note_refusal(peer.peer.node);
        }
    }

    /// The nodes of a set of ranks.
    pub fn nodes(&self, ranks: u64) -> Vec<i32> {
        let mut nodes = Vec::new();
        self.of_ranks(ranks, |peer| nodes.push(peer.peer.node));
        nodes
    }

    /// Returns true if the host of a peer has this address.
    fn is_at_a_peer(&self, address: IpAddr) -> bool {
        self.peers.all().iter().any(|peer| peer.is_at(address))
    }

    /// The nodes to which there is a link, in ascending order of ids.
    pub fn connected(&self) -> Vec<i32> {
        let peers = self.peers.all();
        let connected = peers.iter().filter(|peer| peer.outbox.lock().is_open());
        let mut nodes: Vec<_> = connected.map(|peer| peer.peer.node).collect();
        nodes.sort_unstable();
        nodes
    }

    /// When something came over a link of another node last, in monotonic milliseconds; none where nothing has since the start.
    pub fn last_heard_ms(&self, node: i32) -> Option<u64> {
        self.peer(node)?.incoming.last_heard_ms()
    }

    /// The clusters of the other nodes, where every one of them answers that it is of another cluster than this node.
    pub fn other_clusters(&self) -> Option<Vec<(i32, String)>> {
        let of_peer = |peer: &Arc<PeerLink>| Some((peer.peer.node, peer.other_cluster.lock().clone()?));
        let clusters: Option<Vec<_>> = self.peers.all().iter().map(of_peer).collect();
        clusters.filter(|clusters| !clusters.is_empty())
    }

    /// Asks a node, and waits for the answer on this thread until the time is over. Returns `NotConnected` immediately if there is no
    /// link.
    pub fn call_blocking(
        &self,
        node: i32,
        kind: CallKind,
        body: Vec<u8>,
        time: Duration,
    ) -> Result<Vec<u8>, CallError> {
        self.call_while(node, kind, body, time, || true)
    }

    /// The same, for no longer than something holds, which is looked at every [`LOOK_AGAIN`].
    pub fn call_while(
        &self,
        node: i32,
        kind: CallKind,
        body: Vec<u8>,
        time: Duration,
        holds: impl Fn() -> bool,
    ) -> Result<Vec<u8>, CallError> {
        let (answer, answered) = sync::channel();
        self.call_then(node, kind, body, Box::new(move |result| _ = answer.send(result)));
        let deadline = self.clock().instant() + time;
        loop {
            let left = deadline.saturating_duration_since(self.clock().instant());
            match answered.recv_timeout(left.min(LOOK_AGAIN)) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) if !left.is_zero() && holds() => {}
                Err(_) => return Err(CallError::TimedOut),
            }
        }
    }

    /// Asks a node; the answer goes to a function, which must not block. It is `TimedOut` after [`calls::CALL_TIME_MAX_MS`].
    pub fn call_then(&self, node: i32, kind: CallKind, body: Vec<u8>, on_answer: OnAnswer) {
        let Some(peer) = self.peer(node) else { return on_answer(Err(CallError::NotConnected)) };
        let mut outbox = peer.outbox.lock();
        let refused = outbox.push_call(kind, body, on_answer, self.now_ms());
        drop(outbox);
        match refused {
            None => peer.wake.notify_one(),
            Some((on_answer, error)) => on_answer(Err(error)),
        }
    }

    /// Ends requests whose answers have not come in time.
    pub fn end_overdue_calls(&self, now_ms: u64) {
        for peer in self.peers.all().iter() {
            let overdue = peer.outbox.lock().take_overdue(now_ms);
            overdue.into_iter().for_each(|on_answer| on_answer(Err(CallError::TimedOut)));
        }
    }

    /// Takes over a connection whose first request was a hello ([`is_hello`]); `frame` is that request without its length.
    /// Returns at once.
    pub fn accept(self: &Arc<Self>, arrived: Arrived, frame: Vec<u8>) {
        let links = self.clone();
        let run = move || accept::run(&links, arrived, &frame);
        if let Err(error) = self.spawn("link-from".into(), run) {
            tracing::error!("no thread can be made for a link of another node: {error}");
        }
    }

    /// Which nodes are not reached, and why.
    pub fn awaited(&self) -> &Awaited {
        &self.options.awaited
    }

    /// The id of this node's cluster.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// Milliseconds of the broker's clock.
    pub fn now_ms(&self) -> u64 {
        self.clock().mono_ms()
    }

    /// The broker's clock.
    pub fn clock(&self) -> &Clock {
        &self.options.clock
    }

    /// `replica.lag.time.max.ms`.
    pub fn replica_lag_max_ms(&self) -> u64 {
        self.options.replica_lag_max_ms
    }

    /// Limits up to which groups wait for a replica that is away.
    pub fn absence_limits(&self) -> AbsenceLimits {
        self.options.absence
    }

    /// A replica was found to need what is not here any more.
    pub fn note_too_far_behind(&self) {
        self.counters.too_far_behind.fetch_add(1, Ordering::Relaxed);
    }

    /// Something has befallen the replica of a partition here: it is said of all at once ([`Links::say_setbacks`]).
    pub fn note_setback(&self, setback: Setback, group: &dyn Group) {
        self.setbacks.note(setback, group.topic_partition(), self.now_ms());
    }

    /// Says what has befallen replicas, when what belongs together has come.
    pub fn say_setbacks(&self, now_ms: u64) {
        self.setbacks.due(now_ms).into_iter().for_each(|line| tracing::warn!("{line}"));
    }

    /// Committed records of a partition are gone.
    pub fn note_lost(&self, records: i64) {
        self.counters.lost.fetch_add(records.unsigned_abs(), Ordering::Relaxed);
    }

    /// Committed records that were found to be gone since the start.
    pub fn records_lost(&self) -> u64 {
        self.counters.lost.load(Ordering::Relaxed)
    }

    /// Replicas that were found too far behind, links that were refused, and messages that were dropped, since the start.
    pub fn counts(&self) -> (u64, u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { too_far_behind, refused, dropped, .. } = &self.counters;
        (load(too_far_behind), load(refused), load(dropped))
    }

    /// A node's process is gone: the groups that it leads look for another leader.
    fn node_gone(&self, node: i32) {
        let connected = self.connected();
        let now_ms = self.now_ms();
        for group in self.groups().iter().filter_map(|one| one.group()) {
            group.node_gone(node, &|other| connected.contains(&other), now_ms);
        }
    }

    /// Reports to the groups that messages on their way to a node are lost.
    fn report_unreachable(&self, node: i32) {
        for group in self.groups().iter().filter_map(|one| one.group()) {
            group.report_unreachable(node);
        }
    }
}

/// A peer that the network keeps away is noticed by what it does not acknowledge.
fn set_silence_max(stream: &TcpStream, silence_max: Duration) -> std::io::Result<()> {
    stream.set_write_timeout(Some(silence_max))?;
    let silence_ms = u32::try_from(silence_max.as_millis()).unwrap_or(u32::MAX);
    Ok(rustix::net::sockopt::set_tcp_user_timeout(stream, silence_ms)?)
}

/// Heartbeats that are like any other travel together.
fn is_plain_heartbeat(outgoing: &Outgoing) -> bool {
    outgoing.message.get_msg_type() == MessageType::MsgHeartbeat && outgoing.message.context.is_empty()
}

#[cfg(test)]
mod tests;
