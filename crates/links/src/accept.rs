//! The other end of a link: it checks the hello, reads frames, and has them taken by their partitions.

use std::io::{self, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::calls::Answers;
use super::channel::Channel;
use super::gate::Arrived;
use super::hello::{Hello, Welcome};
use super::reading::{Leave, Receiver};
use super::{LOOK_AGAIN, Links, PeerLink, set_silence_max};

/// The link that a peer has dialled.
pub(super) struct Incoming {
    /// A live peer sends something within this time.
    alive_max: Duration,
    current: Mutex<Current>,
    handover: Arc<Handover>,
}

/// State that the links of a node have in common, those at its earlier addresses included.
#[derive(Default)]
pub(super) struct Handover {
    /// Held while frames are taken: a new link begins when the old one is out of the way.
    turn: Mutex<()>,
    /// Time of the last frame that came over one, in milliseconds.
    received_ms: AtomicU64,
}

#[derive(Default)]
struct Current {
    generation: u64,
    /// Number of the current link: links of this peer are counted from 1.
    number: u64,
    stream: Option<TcpStream>,
    /// The address that it was dialled from.
    from: Option<IpAddr>,
}

/// A hello that asks for the place of a node's link.
struct Claim {
    generation: u64,
    stream: TcpStream,
    /// The address that it comes from.
    from: IpAddr,
    now_ms: u64,
}

/// Why a link does not get the place of another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NotReplaced {
    /// The existing link is of a later process of the node.
    Later,
    /// The existing link is alive, and the new one may have been dialled by anyone.
    Alive,
}

impl Incoming {
    /// Nothing was dialled yet.
    pub(super) fn new(alive_max: Duration, handover: Arc<Handover>) -> Incoming {
        Incoming { alive_max, current: Mutex::default(), handover }
    }

    pub(super) fn end(&self) {
        self.current.lock().shut_down();
    }

    /// Returns true if the peer has a link that was accepted, and has sent something on it within `alive_max`.
    pub(super) fn is_alive(&self, now_ms: u64) -> bool {
        self.current.lock().stream.is_some() && self.is_live(now_ms)
    }

    /// Time of the last frame that came over its links; `None` before the first one.
    pub(super) fn last_heard_ms(&self) -> Option<u64> {
        Some(self.handover.received_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    fn is_live(&self, now_ms: u64) -> bool {
        let silent_ms = now_ms.saturating_sub(self.handover.received_ms.load(Ordering::Relaxed));
        Duration::from_millis(silent_ms) < self.alive_max
    }

    pub(super) fn note_received(&self, now_ms: u64) {
        self.handover.received_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Replaces the existing link by a new one, unless the existing one is of a later process of the same node. Without
    /// authentication a hello may be of anyone: if it comes neither from the node's address nor from that of its link, it does not
    /// replace a link that is alive, and any hello from the node's address replaces it. Returns the number of the new link.
    ///
    /// The question and the act are one: of two processes that dial at once the later one keeps the place.
    fn claim(&self, claim: Claim, is_known_at: impl Fn(IpAddr) -> bool) -> Result<u64, NotReplaced> {
        let Claim { generation, stream, from, now_ms } = claim;
        let mut current = self.current.lock();
        let is_there = current.stream.is_some();
        // A node behind a gateway does not come from its host's address; it comes from the same one each time.
        let is_alike = current.from == Some(from);
        let is_known = is_known_at(from);
        if is_there && !is_known && !is_alike && self.is_live(now_ms) {
            return Err(NotReplaced::Alive);
        }
        let gives_way = is_known && !current.from.is_some_and(is_known_at);
        if is_there && generation < current.generation && !gives_way {
            return Err(NotReplaced::Later);
        }
        current.shut_down();
        let number = current.number + 1;
        *current = Current { generation, number, stream: Some(stream), from: Some(from) };
        self.note_received(now_ms);
        Ok(number)
    }

    /// Waits for the end of the links before the one with this number. Returns `None` if that one has to end itself.
    fn turn(&self, number: u64, is_over: impl Fn() -> bool) -> Option<MutexGuard<'_, ()>> {
        loop {
            // A later link may have the turn, for as long as it lives.
            let turn = self.handover.turn.try_lock_for(LOOK_AGAIN);
            if !self.is_current(number) || is_over() {
                return None;
            }
            if turn.is_some() {
                return turn;
            }
        }
    }

    fn is_current(&self, number: u64) -> bool {
        self.current.lock().number == number
    }

    fn release(&self, number: u64) {
        let mut current = self.current.lock();
        if current.number == number {
            current.stream = None;
        }
    }
}

impl Current {
    fn shut_down(&self) {
        if let Some(stream) = &self.stream {
            // It may be gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Serves a connection that began with a hello, until the link ends.
pub(super) fn run(links: &Arc<Links>, arrived: Arrived, frame: &[u8]) {
    let Arrived { mut channel, principal, peer: from, ends } = arrived;
    let Ok(control) = prepare(&mut channel, links.options.silence.silence_max) else { return };
    let is_proven = links.gate.proves();
    // A cluster's id is all that a forged hello lacks where nothing else is asked for.
    let may_know = is_proven || links.is_at_a_peer(from.ip());
    let checked = links
        .gate
        .check(&principal, from.ip())
        .and_then(|()| Hello::decode(frame).map_err(|error| error.to_string()))
        .and_then(|hello| links.gate.check_link(&principal, hello.node).map(|()| hello))
        .and_then(|hello| check(links, &hello, may_know).map(|peer| (hello, peer)))
        .and_then(|(hello, peer)| {
            let (generation, now_ms) = (hello.generation, links.now_ms());
            let claim = Claim { generation, stream: control, from: from.ip(), now_ms };
            match peer.incoming.claim(claim, |address| is_proven || peer.is_at(address)) {
                Ok(number) => Ok((hello, peer, number)),
                Err(kept) => Err(kept.explained(hello.node)),
            }
        });
    let refusal = checked.as_ref().err().cloned().unwrap_or_default();
    let cluster_id = if may_know || refusal.is_empty() { links.cluster_id.clone() } else { String::new() };
    let welcome = Welcome { cluster_id, node: links.node, refusal };
    let (hello, peer, number) = match checked {
        Ok(checked) => checked,
        Err(refusal) => {
            links.counters.refused.fetch_add(1, Ordering::Relaxed);
            links.gate.refused(from.ip(), &refusal);
            return channel.refuse(&welcome.encode());
        }
    };
    let welcomed = channel.writer.write_all(&welcome.encode());
    if welcomed.is_ok() {
        let Channel { reader, writer } = channel;
        let Some(_turn) = peer.incoming.turn(number, || links.is_over(&peer)) else {
            return peer.incoming.release(number);
        };
        let leave = Leave { principal, host: from.ip(), ends, looked_at: links.clock().instant() };
        let answers = Answers::new(Box::new(writer), peer.serving.clone());
        let mut receiver = Receiver::new((links.clone(), peer.clone()), answers, Some(leave));
        if let Err(error) = receiver.run(reader) {
            links.counters.refused.fetch_add(u64::from(is_fault(&error)), Ordering::Relaxed);
            links.gate.link_ended(from.ip(), hello.node, &error.to_string());
            // A peer that may not act as a node gets nothing either. A silent peer receives nothing as far as can be known, although a
            // middlebox may still accept what is sent: the next link to it has to be answered.
            if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::TimedOut) {
                peer.outbox.lock().end();
                peer.wake.notify_one();
            }
        }
    }
    peer.incoming.release(number);
}

/// Sets a connection up as a link. Returns the handle that ends it.
fn prepare(channel: &mut Channel, silence_max: Duration) -> io::Result<TcpStream> {
    let socket = channel.control()?;
    socket.set_nodelay(true)?;
    set_silence_max(&socket, silence_max)?;
    channel.begin(Some(silence_max))?;
    Ok(socket)
}

/// The peer that a hello is of. `may_know`: the one that sent it may learn which cluster this node is of.
///
/// # Errors
/// Why it is of none, for the log of both nodes.
fn check(links: &Links, hello: &Hello, may_know: bool) -> Result<Arc<PeerLink>, String> {
    let (node, own) = (hello.node, links.node);
    if hello.to != own {
        return Err(format!(
            "node {node} wants to reach node {}, and this is node {own}; check controller.quorum.voters of both",
            hello.to
        ));
    }
    if node == own {
        return Err(format!("another process has this node's id, {own}; give each node its own node.id"));
    }
    let (own_cluster, other) = (&links.cluster_id, &hello.cluster_id);
    if own_cluster != other && !may_know {
        return Err(format!(
            "node {node} is of cluster {other}, this one of another: one of both has another cluster's directory, or \
             controller.quorum.voters of node {own} names no host with the address that node {node} comes from"
        ));
    }
    if own_cluster != other {
        return Err(format!(
            "node {node} is of cluster {other}, this one of cluster {own_cluster}: one of both has another cluster's directory"
        ));
    }
    links.peer(node).ok_or_else(|| {
        format!(
            "node {node} is not known to node {own} (yet): neither controller.quorum.voters nor the metadata name it; wait until \
             node {own} has the metadata that name it, or add it to the cluster"
        )
    })
}

impl NotReplaced {
    fn explained(self, node: i32) -> String {
        match self {
            NotReplaced::Later => format!(
                "another process with node.id {node} has started since; stop one of both, or give it its own node.id"
            ),
            NotReplaced::Alive => format!(
                "node {node} has a link that lives, and this one comes from an address that its host in controller.quorum.voters \
                 does not have; name the host by which it connects there, or have nodes prove who they are \
                 (mainstem.node.secret.location, or listener CONTROLLER by SSL with client certificates, or by SASL)"
            ),
        }
    }
}

/// Returns true if a link ended because of invalid data.
fn is_fault(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn stream(listener: &TcpListener) -> TcpStream {
        let address = listener.local_addr().expect("it has one");
        TcpStream::connect(address).expect("it listens")
    }

    #[test]
    fn a_hello_that_anybody_may_have_sent_takes_no_place_of_a_link_that_lives() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let alive_max = Duration::from_secs(3);
        let incoming = Incoming::new(alive_max, Arc::default());
        let (of_node, of_gateway, elsewhere) = ([10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]);
        let claim_from = |from: [u8; 4], generation: u64, now_ms: u64| {
            let claim = Claim { generation, stream: stream(&listener), from: from.into(), now_ms };
            incoming.claim(claim, |address| address == IpAddr::from(of_node))
        };
        let claim = |generation: u64, is_known: bool, now_ms: u64| {
            claim_from(if is_known { of_node } else { elsewhere }, generation, now_ms)
        };
        assert_eq!(claim(5, true, 1_000), Ok(1));
        let alive_ms = u64::try_from(alive_max.as_millis()).expect("some seconds");
        for now_ms in [1_000, 1_000 + alive_ms - 1] {
            assert_eq!(claim(u64::MAX, false, now_ms), Err(NotReplaced::Alive));
        }
        // The same process again, and a later one, from where the node is.
        assert_eq!(claim(5, true, 1_500), Ok(2));
        assert_eq!(claim(4, true, 1_500), Err(NotReplaced::Later));
        assert_eq!(claim(6, true, 1_500), Ok(3));
        // Nothing was received for so long.
        assert_eq!(claim(5, false, 1_500 + alive_ms), Err(NotReplaced::Later));
        assert_eq!(claim(6, false, 1_500 + alive_ms), Ok(4));
        // The node comes back, whatever the other one has called itself.
        assert_eq!(claim(u64::MAX, false, 1_500 + 2 * alive_ms), Ok(5));
        assert_eq!(claim(6, true, 1_500 + 2 * alive_ms), Ok(6));
        incoming.release(6);
        assert_eq!(claim(1, false, 1_500 + 2 * alive_ms), Ok(7), "there is no link");
        incoming.release(7);
        // A node whose address is not its host's dials again, and a later process of it does.
        let now_ms = 1_500 + 3 * alive_ms;
        let of_gateway = |generation: u64| claim_from(of_gateway, generation, now_ms);
        assert_eq!([5, 5, 6].map(of_gateway), [Ok(8), Ok(9), Ok(10)]);
        assert_eq!(
            (of_gateway(5), claim(7, false, now_ms)),
            (Err(NotReplaced::Later), Err(NotReplaced::Alive))
        );
    }

    #[test]
    fn a_link_waits_for_the_earlier_ones_of_its_node_and_not_for_a_later_one() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (alive_max, handover) = (Duration::from_secs(3), Arc::<Handover>::default());
        let [incoming, elsewhere] = [(); 2].map(|()| Incoming::new(alive_max, handover.clone()));
        let claim = |incoming: &Incoming| {
            let claim =
                Claim { generation: 1, stream: stream(&listener), from: [10, 0, 0, 1].into(), now_ms: 1 };
            incoming.claim(claim, |_| true)
        };
        assert_eq!((claim(&incoming), claim(&incoming), claim(&elsewhere)), (Ok(1), Ok(2), Ok(1)));
        let later = incoming.turn(2, || false).expect("nothing is before it");
        assert!(incoming.turn(1, || false).is_none(), "another one has its place");
        // The node has moved, and the last link at its old address still takes frames.
        let looks = std::cell::Cell::new(0);
        let is_over = || looks.replace(looks.get() + 1) == 2;
        assert!(elsewhere.turn(1, is_over).is_none());
        assert_eq!(looks.get(), 3);
        drop(later);
        assert!(elsewhere.turn(1, || false).is_some());
    }
}
