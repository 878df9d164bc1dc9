//! The other nodes of the cluster, and the links with each of them. They change while this node runs.
//!
//! A node has one [`PeerLink`] for as long as its address stays. One that is removed, or has another address, is marked as gone: its
//! connections end, and so does its thread, which is not waited for. A node that comes back gets another [`PeerLink`], so that no two
//! threads ever serve the same one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstem_config::Voter;
use mainstem_replication::CoalescedHeartbeats;
use mainstem_runtime::sync::Condvar;
use parking_lot::{Mutex, RwLock};

use super::accept::{Handover, Incoming};
use super::calls::{CallError, Serving};
use super::outbox::Outbox;
use super::{Lead, Links, Peer, SilenceLimits, dial};

/// Limit of the number of other nodes that a process has links with in its life: each has a bit in [`Wakes`](super::Wakes).
pub(super) const PEERS_MAX: usize = 64;

/// The other nodes, as they were set last.
pub(super) struct Peers {
    /// In the order of their ranks.
    current: RwLock<Arc<[Arc<PeerLink>]>>,
    /// Locked while they are set.
    known: Mutex<Known>,
    /// Each of them has a thread that dials it.
    are_dialled: bool,
}

/// The nodes that were set since the start.
#[derive(Default)]
struct Known {
    /// By rank: a rank belongs to a node for the life of the process.
    nodes: Vec<KnownNode>,
    /// The nodes without a rank: there were too many before them.
    left_out: BTreeSet<i32>,
}

/// State that the links with a node leave to the next ones.
#[derive(Clone)]
struct KnownNode {
    node: i32,
    handover: Arc<Handover>,
    serving: Arc<Serving>,
}

/// State of the links with one other node at one address.
pub(super) struct PeerLink {
    /// The rank of the node among all that were ever set.
    pub(super) rank: usize,
    pub(super) peer: Peer,
    pub(super) outbox: Mutex<Outbox>,
    /// The writer waits for something to write, or for its next attempt to dial.
    pub(super) wake: Condvar,
    /// Heartbeats that are coalesced at the peer.
    pub(super) coalesced: Mutex<CoalescedHeartbeats<Lead>>,
    pub(super) incoming: Incoming,
    /// Its requests that this node serves.
    pub(super) serving: Arc<Serving>,
    /// The id of its cluster, if it refused the last attempt to dial it as one of another cluster.
    pub(super) other_cluster: Mutex<Option<String>>,
    /// Those of its host, as of the last time that it was looked up.
    addresses: Mutex<Vec<IpAddr>>,
    /// The node was removed, or has another address.
    is_gone: AtomicBool,
}

impl Peers {
    /// None yet.
    pub(super) fn new(are_dialled: bool) -> Peers {
        Peers { current: RwLock::default(), known: Mutex::default(), are_dialled }
    }

    /// All of them, in the order of their ranks.
    pub(super) fn all(&self) -> Arc<[Arc<PeerLink>]> {
        self.current.read().clone()
    }

    /// The one with this id.
    pub(super) fn of(&self, node: i32) -> Option<Arc<PeerLink>> {
        self.current.read().iter().find(|peer| peer.peer.node == node).cloned()
    }

    /// Ends all links, those with peers that are being set at this moment included.
    pub(super) fn end_all(&self) {
        let _known = self.known.lock();
        self.all().iter().for_each(|peer| peer.end());
    }

    /// Acts on behalf of a peer, unless it is gone; meanwhile no peer goes.
    pub(super) fn unless_gone(&self, peer: &PeerLink, act: impl FnOnce()) {
        let _known = self.known.lock();
        if !peer.is_gone() {
            act();
        }
    }
}

impl Known {
    /// The rank of a node, which gets the next one if it has none; `None`: no rank is left.
    fn rank(&mut self, node: i32) -> Option<usize> {
        if let Some(rank) = self.nodes.iter().position(|known| known.node == node) {
            return Some(rank);
        }
        let rank = self.nodes.len();
        (rank < PEERS_MAX).then(|| {
            self.nodes.push(KnownNode { node, handover: Arc::default(), serving: Arc::default() });
            rank
        })
    }

    /// The nodes other than this one, by rank. Of two entries for a node the first one counts.
    fn ranked(&mut self, own: i32, peers: Vec<Peer>) -> BTreeMap<usize, Peer> {
        let (mut ranked, mut left_out) = (BTreeMap::new(), BTreeSet::new());
        for peer in peers.into_iter().filter(|peer| peer.node != own) {
            match self.rank(peer.node) {
                Some(rank) => _ = ranked.entry(rank).or_insert(peer),
                None => _ = left_out.insert(peer.node),
            }
        }
        // A state that lasts is logged once.
        for node in left_out.difference(&self.left_out) {
            tracing::error!(
                node,
                "node {node} gets no link: this node has had links with {PEERS_MAX} other nodes since its start, removed ones \
                 included, and cannot have more; restart this node, and have no more than {} nodes in the cluster",
                PEERS_MAX + 1
            );
        }
        self.left_out = left_out;
        ranked
    }
}

impl Links {
    /// Sets the other nodes of the cluster, as the metadata name them. This node itself is passed over.
    ///
    /// A node that is not linked yet is dialled, and its hello is accepted. A node with another host or port than before is dialled there,
    /// and its links end. A node that is not named any more loses its links, is not dialled, and is refused. A node that stays the same
    /// keeps its links. Each node keeps its rank, even while it is not named; of more than 64 nodes the last ones are left out.
    ///
    /// Does not wait for links that end: requests on them get `Disconnected` soon. Does nothing once [`Links::stop`] has begun.
    ///
    /// # Errors
    /// The system's, when no thread can be made to dial a node. That node is left out, and can be set again.
    pub fn set_peers(self: &Arc<Self>, peers: Vec<Peer>) -> io::Result<()> {
        let mut known = self.peers.known.lock();
        if self.is_stopping() {
            return Ok(());
        }
        let mut wanted = known.ranked(self.node, peers);
        let before = self.peers.all();
        let stays = |link: &Arc<PeerLink>| wanted.get(&link.rank) == Some(&link.peer);
        let (mut links, gone): (Vec<_>, Vec<_>) = before.iter().cloned().partition(stays);
        let removed: Vec<_> = gone.iter().filter(|link| !wanted.contains_key(&link.rank)).collect();
        links.iter().for_each(|link| _ = wanted.remove(&link.rank));
        let mut result = Ok(());
        for (rank, peer) in wanted {
            let link = Arc::new(PeerLink::new(rank, peer, &self.options.silence, &known.nodes[rank]));
            match self.begin_to_dial(&link) {
                Ok(()) => links.push(link),
                Err(error) => result = Err(error),
            }
        }
        links.sort_unstable_by_key(|link| link.rank);
        *self.peers.current.write() = links.into();
        gone.iter().for_each(|link| link.leave());
        removed.iter().for_each(|link| self.awaited().forget(link.peer.node));
        result
    }

    /// Starts the thread that dials a peer, unless the links are without threads.
    fn begin_to_dial(self: &Arc<Self>, peer: &Arc<PeerLink>) -> io::Result<()> {
        if !self.peers.are_dialled {
            return Ok(());
        }
        let (links, peer) = (self.clone(), peer.clone());
        self.spawn(format!("link-to-{}", peer.peer.node), move || dial::run(&links, &peer))
    }

    /// Returns true if a peer is not to be dialled, nor to be accepted, any more.
    pub(super) fn is_over(&self, peer: &PeerLink) -> bool {
        self.is_stopping() || peer.is_gone()
    }
}

impl Peer {
    /// The node as messages name it.
    pub(super) fn voter(&self) -> Voter {
        Voter { id: self.node, host: self.host.clone(), port: self.port }
    }
}

impl PeerLink {
    fn new(rank: usize, peer: Peer, silence: &SilenceLimits, known: &KnownNode) -> PeerLink {
        let addresses = peer.host.parse::<IpAddr>().ok().map(|address| address.to_canonical());
        PeerLink {
            rank,
            peer,
            addresses: Mutex::new(addresses.into_iter().collect()),
            outbox: Mutex::default(),
            wake: Condvar::new(),
            coalesced: Mutex::default(),
            incoming: Incoming::new(silence.alive_max(), known.handover.clone()),
            serving: known.serving.clone(),
            other_cluster: Mutex::default(),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Its host was looked up.
    pub(super) fn found_at(&self, addresses: &[SocketAddr]) {
        *self.addresses.lock() = addresses.iter().map(|address| address.ip().to_canonical()).collect();
    }

    /// Returns true if its host has this address.
    pub(super) fn is_at(&self, address: IpAddr) -> bool {
        self.addresses.lock().contains(&address.to_canonical())
    }

    /// Returns true if the node was removed, or has another address. This is final.
    pub(super) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Adds something for the writer, and wakes it where it sleeps.
    pub(super) fn add(&self, add: impl FnOnce(&mut Outbox)) {
        let mut outbox = self.outbox.lock();
        add(&mut outbox);
        if outbox.wants_wake() {
            drop(outbox);
            self.wake.notify_one();
        }
    }

    /// A link begins, whose connection is ended by this.
    pub(super) fn begin(&self, control: Option<TcpStream>) {
        self.coalesced.lock().begin();
        self.outbox.lock().open(control);
    }

    /// Its link has ended: those that wait for an answer get `Disconnected`.
    pub(super) fn close(&self) {
        let waiting = self.outbox.lock().close();
        waiting.into_iter().for_each(|on_answer| on_answer(Err(CallError::Disconnected)));
    }

    pub(super) fn end(&self) {
        self.outbox.lock().end();
        self.wake.notify_one();
        self.incoming.end();
    }

    /// Ends its links, and begins no others.
    fn leave(&self) {
        // Before the links end: one that begins later than that sees it.
        self.is_gone.store(true, Ordering::Release);
        self.end();
    }
}
