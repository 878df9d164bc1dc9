//! A Raft group's replica of this node, as links and the ticker know it.
//!
//! Links carry messages of groups and know nothing of what a group replicates. Whoever has a replica implements [`Group`] and registers a
//! [`GroupHandle`] with [`Links::register`](super::Links::register). What is asked for each heartbeat and at each tick is in
//! [`ReplicaStatus`], which needs no lock.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use mainstem_replication::eraftpb::{Message, MessageType};
use mainstem_replication::{GroupId, MessageError, ReplicaId};

/// Age of a leader's last turn, in milliseconds, above which its coalesced heartbeat is not sent: something holds its lock.
const TURN_MAX_MS: u64 = 800;

/// A replica of a group. Only [`Group::carry_out_disk_step`] and [`Group::read_batches`] may wait for a disk.
pub trait Group: Send + Sync {
    /// The topic and the number of the partition that is replicated, for messages.
    fn topic_partition(&self) -> (Arc<str>, i32);

    /// Takes part from now on. Called once, when it is registered.
    fn take_part(&self, now_ms: u64);

    /// Lets the time pass; where another thread has the replica, the next tick makes up for it.
    fn tick(&self, now_ms: u64);

    /// Takes a message of another replica, without waiting for a disk: one that would wait is given back, and
    /// [`Group::carry_out_disk_step`] is to follow, on a thread that may wait. `batches` are those of an append, the first at `offset`.
    ///
    /// # Errors
    /// The message is at fault: the link is to be ended. Of a replica that is out of service nothing is said.
    fn step_unless_it_waits(
        &self,
        message: Message,
        offset: i64,
        batches: &[u8],
    ) -> Result<Option<DiskStep>, MessageError>;

    /// Takes a message that was given back. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Group::step_unless_it_waits`].
    fn carry_out_disk_step(&self, step: DiskStep, offset: i64, batches: &[u8]) -> Result<(), MessageError>;

    /// Has the heartbeats of a leader coalesced from the one on that was just taken ([`Group::step_unless_it_waits`]).
    fn accept_coalesced(&self, from: ReplicaId, term: u64);

    /// The follower on a node has refused its coalesced heartbeat: it gets the next one in full.
    fn note_refusal(&self, node: i32);

    /// A node is known to be gone. Where it leads, another replica is wanted: the first one whose node is alive.
    fn node_gone(&self, node: i32, is_alive: &dyn Fn(i32) -> bool, now_ms: u64);

    /// Messages that were sent to a node may not have arrived.
    fn report_unreachable(&self, node: i32);

    /// Adds the batches of a range of offsets to `out`, as they are in the log.
    ///
    /// # Errors
    /// They are not there any more as they were, or cannot be read.
    fn read_batches(&self, offsets: &Range<i64>, out: &mut Vec<u8>) -> io::Result<()>;
}

/// A message whose taking waits for the disk.
pub struct DiskStep {
    /// The message.
    pub message: Message,
    /// The log directory whose disk that is.
    pub dir: PathBuf,
}

/// A group's replica of this node.
pub struct GroupHandle {
    /// The group.
    pub id: GroupId,
    /// This node's replica of it.
    pub own: ReplicaId,
    /// State that is known without the replica's lock.
    pub status: ReplicaStatus,
    group: Weak<dyn Group>,
}

impl GroupHandle {
    /// Keeps nothing alive.
    pub fn new(
        id: GroupId,
        own: ReplicaId,
        earlier: Arc<EarlierTicks>,
        group: Weak<dyn Group>,
    ) -> Arc<GroupHandle> {
        Arc::new(GroupHandle { id, own, status: ReplicaStatus::new(earlier), group })
    }

    /// The replica, unless it has gone.
    pub fn group(&self) -> Option<Arc<dyn Group>> {
        self.group.upgrade()
    }

    /// Takes the repeated heartbeat of a term. Returns false where none of that term is coalesced, or the replica has gone.
    pub(super) fn accept_repeat(&self, term: u64, now_ms: u64) -> bool {
        self.group.strong_count() > 0 && self.status.accept_repeat(term, now_ms)
    }

    /// Returns true if it still leads in a term and its clock goes: it had its turn within the time between two ticks of a replica at rest.
    pub(super) fn leads_on(&self, term: u64, now_ms: u64) -> bool {
        self.group.strong_count() > 0 && self.status.leads_on(term, now_ms)
    }
}

/// Remembers that a replica of the node has its next tick earlier than before, so that the ticker has to ask for its time again.
#[derive(Debug, Default)]
pub struct EarlierTicks(AtomicBool);

impl EarlierTicks {
    fn note(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns true if a replica has one since the last call. A caller that gets `true` sees the times that the replicas have set.
    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Acquire)
    }
}

/// State of a replica that is known without its lock. Times are monotonic milliseconds.
#[derive(Debug, Default)]
pub struct ReplicaStatus {
    /// When its time is to pass next. Written under the replica's lock only.
    next_tick_ms: AtomicU64,
    earlier: Arc<EarlierTicks>,
    /// When it has passed last.
    ticked_ms: AtomicU64,
    /// The term in which it leads; 0: it does not.
    leads_in: AtomicU64,
    /// The term of the leader whose heartbeats are coalesced; 0: no leader's are.
    coalesced_term: AtomicU64,
    /// When that was repeated last.
    last_contact_ms: AtomicU64,
    /// Nodes that have answered to such a heartbeat since the last tick, by their ranks among the links.
    answered: AtomicU64,
}

impl ReplicaStatus {
    /// The status of a replica whose first tick is due at once.
    fn new(earlier: Arc<EarlierTicks>) -> ReplicaStatus {
        ReplicaStatus { earlier, ..ReplicaStatus::default() }
    }

    /// When time has to pass for it.
    pub fn next_tick_ms(&self) -> u64 {
        self.next_tick_ms.load(Ordering::Relaxed)
    }

    /// Sets when time has to pass for it. Called under the replica's lock.
    pub fn set_next_tick_ms(&self, next_ms: u64) {
        let is_earlier = next_ms < self.next_tick_ms();
        self.next_tick_ms.store(next_ms, Ordering::Relaxed);
        if is_earlier {
            self.earlier.note();
        }
    }

    /// Time has passed for it.
    pub fn set_ticked(&self, now_ms: u64) {
        self.ticked_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Sets the term in which it leads, and that of the leader whose heartbeats are coalesced at it. Called under the replica's lock.
    pub fn set_terms(&self, leads_in: Option<u64>, coalesced_term: Option<u64>) {
        self.leads_in.store(leads_in.unwrap_or(0), Ordering::Relaxed);
        self.coalesced_term.store(coalesced_term.unwrap_or(0), Ordering::Relaxed);
    }

    fn accept_repeat(&self, term: u64, now_ms: u64) -> bool {
        let is_coalesced = self.coalesced_term.load(Ordering::Relaxed) == term;
        if is_coalesced {
            self.last_contact_ms.store(now_ms, Ordering::Relaxed);
        }
        is_coalesced
    }

    /// The time at which the coalesced heartbeat was repeated last.
    pub fn last_contact_ms(&self) -> u64 {
        self.last_contact_ms.load(Ordering::Relaxed)
    }

    fn leads_on(&self, term: u64, now_ms: u64) -> bool {
        let ticked_ms = self.ticked_ms.load(Ordering::Relaxed);
        self.leads_in.load(Ordering::Relaxed) == term && now_ms <= ticked_ms + TURN_MAX_MS
    }

    /// The node of a follower, by its rank among the links, has answered to its coalesced heartbeat.
    pub(super) fn note_answer(&self, rank: usize) {
        self.answered.fetch_or(1 << rank, Ordering::Relaxed);
    }

    /// Takes the ranks of the nodes that have answered since the last call, as bits.
    pub fn take_answered(&self) -> u64 {
        match self.answered.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.answered.swap(0, Ordering::Relaxed),
        }
    }
}

/// Returns true if a message carries entries: one that is lost has to be made up for.
pub(super) fn is_append(message: &Message) -> bool {
    message.get_msg_type() == MessageType::MsgAppend
}
