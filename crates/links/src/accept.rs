//! The other end of a link: it checks the hello, reads frames, and has them taken by their partitions.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mainstem_replication::eraftpb::{Message, MessageType};
use mainstem_replication::link::{self, Alias, Frame, FrameError, Heartbeat};
use mainstem_replication::{MessageError, Repeat, Repeated};
use mainstem_security::KafkaPrincipal;
use parking_lot::Mutex;

use super::calls::{Answers, CallKind};
use super::channel::{Channel, ChannelReader};
use super::gate::{Arrived, NodeGate};
use super::group::{Group, GroupHandle};
use super::hello::{Hello, Welcome};
use super::{BODY_BYTES_MAX, Links, PeerLink, set_silence_max};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// A buffer that has grown for a large frame goes back to this size.
const KEPT_BYTES: usize = 1 << 20;
/// Groups on one link.
const ALIASES_MAX: usize = 1 << 20;
/// How often it is looked whether the peer may still speak as a node.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// The link that a peer has dialled.
pub(super) struct Incoming {
    /// A peer that is there says something within this time.
    alive_max: Duration,
    current: Mutex<Current>,
    /// Held while frames are taken: a new link begins when the old one is out of the way.
    turn: Mutex<()>,
    /// When something came over it last.
    heard_ms: AtomicU64,
}

#[derive(Default)]
struct Current {
    generation: u64,
    /// How many links there were: which one is the current.
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
enum Kept {
    /// The link that is there is of a later process of the node.
    Later,
    /// The link that is there lives, and anybody may have dialled the other one.
    Alive,
}

impl Incoming {
    /// Nothing was dialled yet.
    pub(super) fn new(alive_max: Duration) -> Incoming {
        let (current, turn, heard_ms) = Default::default();
        Incoming { alive_max, current, turn, heard_ms }
    }

    pub(super) fn end(&self) {
        self.current.lock().shut_down();
    }

    /// Whether the peer has a link that was accepted, and has said something on it lately.
    pub(super) fn is_alive(&self, now_ms: u64) -> bool {
        self.current.lock().stream.is_some() && self.is_heard(now_ms)
    }

    /// When something came over its links last; none before the first one.
    pub(super) fn last_heard_ms(&self) -> Option<u64> {
        Some(self.heard_ms.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
    }

    fn is_heard(&self, now_ms: u64) -> bool {
        let silent_ms = now_ms.saturating_sub(self.heard_ms.load(Ordering::Relaxed));
        Duration::from_millis(silent_ms) < self.alive_max
    }

    fn heard(&self, now_ms: u64) {
        self.heard_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Gives the place of the link that is there to another, unless that one is of a later process of the same node. Where nothing
    /// proves whose a hello is, one that comes neither from where the node is nor from where its link does takes the place of no link
    /// that lives, and gives way to any that comes from where the node is. Returns the number of the new link.
    ///
    /// The question and the act are one: of two processes that dial at once the later one keeps the place.
    fn claim(&self, claim: Claim, is_known_at: impl Fn(IpAddr) -> bool) -> Result<u64, Kept> {
        let Claim { generation, stream, from, now_ms } = claim;
        let mut current = self.current.lock();
        let is_there = current.stream.is_some();
        // A node behind a gateway does not come from its host's address; it comes from the same one each time.
        let is_alike = current.from == Some(from);
        let is_known = is_known_at(from);
        if is_there && !is_known && !is_alike && self.is_heard(now_ms) {
            return Err(Kept::Alive);
        }
        let gives_way = is_known && !current.from.is_some_and(is_known_at);
        if is_there && generation < current.generation && !gives_way {
            return Err(Kept::Later);
        }
        current.shut_down();
        let number = current.number + 1;
        *current = Current { generation, number, stream: Some(stream), from: Some(from) };
        self.heard(now_ms);
        Ok(number)
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
        .and_then(|hello| match links.gate.proven_node(&principal) {
            Some(node) if node != hello.node => {
                Err(format!("it has proven to be node {node}, and says that it is node {}", hello.node))
            }
            _ => Ok(hello),
        })
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
        let _turn = peer.incoming.turn.lock();
        if !peer.incoming.is_current(number) || links.is_stopping() {
            return peer.incoming.release(number);
        }
        let leave = Leave { principal, host: from.ip(), ends, looked_at: links.clock().instant() };
        let mut receiver = Receiver {
            links,
            peer: &peer,
            from: hello.node,
            aliases: Vec::new(),
            repeated: Repeated::default(),
            answers: Answers::new(writer, peer.serving.clone()),
            leave,
            at_fault: Arc::default(),
        };
        if let Err(error) = receiver.run(reader) {
            links.counters.refused.fetch_add(u64::from(is_fault(&error)), Ordering::Relaxed);
            links.gate.link_ended(from.ip(), hello.node, &error.to_string());
            // Who may not speak is to hear nothing either. Who is silent does not hear, as far as can be known, although what is
            // between may go on taking what is sent: the next link to it has to be answered.
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

/// Whether the peer may still speak as a node.
struct Leave {
    principal: KafkaPrincipal,
    host: IpAddr,
    /// When its session is over; it dials again then.
    ends: Option<Instant>,
    looked_at: Instant,
}

impl Leave {
    fn check(&mut self, gate: &NodeGate) -> io::Result<()> {
        let now = gate.clock().instant();
        if now.saturating_duration_since(self.looked_at) < LOOKED_AT_EVERY {
            return Ok(());
        }
        self.looked_at = now;
        if self.ends.is_some_and(|ends| now >= ends) {
            return Err(io::Error::other("its session is over (connections.max.reauth.ms)"));
        }
        gate.check(&self.principal, self.host)
            .map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

/// The peer that a hello is of. `may_know`: the one that sent it may hear of which cluster this node is.
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
    let Some(peer) = links.peer(node) else {
        return Err(format!("node {node} is not one of controller.quorum.voters of node {own}"));
    };
    Ok(peer.clone())
}

impl Kept {
    fn explained(self, node: i32) -> String {
        match self {
            Kept::Later => format!(
                "another process with node.id {node} has started since; stop one of both, or give it its own node.id"
            ),
            Kept::Alive => format!(
                "node {node} has a link that lives, and this one comes from an address that its host in controller.quorum.voters \
                 does not have; name the host by which it connects there, or have nodes prove who they are \
                 (mainstem.node.secret.location, or listener CONTROLLER by SSL with client certificates, or by SASL)"
            ),
        }
    }
}

/// Whether a link ended because of what was sent.
fn is_fault(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidData
}

/// Takes frames.
struct Receiver<'a> {
    links: &'a Arc<Links>,
    peer: &'a PeerLink,
    from: i32,
    /// By number.
    aliases: Vec<Known>,
    /// Heartbeats that stand.
    repeated: Repeated,
    answers: Arc<Answers>,
    leave: Leave,
    /// A message of this link that another thread took is at fault, and why.
    at_fault: Arc<OnceLock<String>>,
}

/// A group that has a number.
struct Known {
    alias: Alias,
    handle: Option<Arc<GroupHandle>>,
}

impl Receiver<'_> {
    fn explained(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let seconds = self.links.options.silence.silence_max.as_secs_f64();
                io::Error::new(io::ErrorKind::TimedOut, format!("nothing came for {seconds} s"))
            }
            _ => error,
        }
    }

    fn run(&mut self, mut stream: ChannelReader) -> io::Result<()> {
        let mut input = Input::new(BODY_BYTES_MAX);
        loop {
            while let Some((frame, len)) = input.frame()? {
                self.take(frame)?;
                input.consume(len);
            }
            if !input.fill(&mut stream).map_err(|error| self.explained(error))? {
                return Ok(());
            }
            self.peer.incoming.heard(self.links.now_ms());
            self.leave.check(&self.links.gate)?;
        }
    }

    fn take(&mut self, frame: Frame<'_>) -> io::Result<()> {
        if let Some(what) = self.at_fault.get() {
            return Err(fault(what));
        }
        match frame {
            Frame::Call { id, kind, body } => {
                self.take_call(id, CallKind(kind), body);
                Ok(())
            }
            Frame::Group(alias) => self.take_group(alias),
            Frame::Heartbeats(heartbeats) => {
                heartbeats.into_iter().try_for_each(|heartbeat| self.take_heartbeat(heartbeat))
            }
            Frame::Standing(heartbeats) => {
                heartbeats.into_iter().try_for_each(|heartbeat| self.take_standing(heartbeat))
            }
            Frame::Repeat(repeat) => {
                self.take_repeat(&repeat);
                Ok(())
            }
            Frame::RepeatAnswer(answer) => {
                self.links.take_answer(self.peer, &answer);
                Ok(())
            }
            Frame::Message { alias, message } => self.step(alias, message, 0, &[]),
            Frame::Append { alias, message, offset, batches } => self.step(alias, message, offset, batches),
            Frame::Answer { .. } => Err(fault("it answers what was not asked on this link")),
        }
    }

    fn take_group(&mut self, alias: Alias) -> io::Result<()> {
        if alias.number as usize != self.aliases.len() || self.aliases.len() >= ALIASES_MAX {
            return Err(fault("a group's number that does not follow"));
        }
        if alias.from.node() != self.from || alias.to.node() != self.links.node {
            return Err(fault("it speaks for another node, or to one"));
        }
        self.aliases.push(Known { alias, handle: None });
        Ok(())
    }

    fn take_heartbeat(&mut self, heartbeat: Heartbeat) -> io::Result<()> {
        let Heartbeat { alias, term, commit } = heartbeat;
        let message = Message { msg_type: MessageType::MsgHeartbeat, term, commit, ..Message::default() };
        self.step(alias, message, 0, &[])
    }

    fn take_standing(&mut self, heartbeat: Heartbeat) -> io::Result<()> {
        self.take_heartbeat(heartbeat)?;
        self.repeated.insert(heartbeat.alias, heartbeat.term);
        let known =
            self.aliases.get(heartbeat.alias as usize).ok_or_else(|| fault("a group without a number"))?;
        if let Some(group) = known.handle.as_ref().and_then(|handle| handle.group()) {
            group.let_stand(known.alias.from, heartbeat.term);
        }
        Ok(())
    }

    /// Heartbeats of all groups at once. Only what is refused is looked at again by the peer.
    fn take_repeat(&mut self, repeat: &Repeat) {
        let (now_ms, aliases) = (self.links.now_ms(), &self.aliases);
        let answer = self.repeated.take(repeat, |alias, term| {
            let handle = aliases.get(alias as usize).and_then(|known| known.handle.as_ref());
            handle.is_some_and(|handle| handle.hear(term, now_ms))
        });
        self.peer.add(|outbox| outbox.push_answer(answer));
    }

    fn step(&mut self, alias: u32, mut message: Message, offset: i64, batches: &[u8]) -> io::Result<()> {
        let known = self.aliases.get_mut(alias as usize).ok_or_else(|| fault("a group without a number"))?;
        let group = match known.handle.as_ref().and_then(|handle| handle.group()) {
            Some(group) => Some(group),
            None => {
                known.handle = self.links.group(known.alias.group);
                known.handle.as_ref().and_then(|handle| handle.group())
            }
        };
        // A group that is not here, not yet or not any more, or another replica of it: nothing is answered.
        let is_addressed = known.handle.as_ref().is_some_and(|handle| handle.own == known.alias.to);
        let Some(group) = group.filter(|_| is_addressed) else { return Ok(()) };
        (message.from, message.to) = (known.alias.from.0, known.alias.to.0);
        let step = group.step_unless_it_waits(message, offset, batches);
        if let Some(step) = step.map_err(|error| fault(&explained(&*group, &error)))? {
            let (dir, batches, at_fault) = (step.dir.clone(), batches.to_vec(), self.at_fault.clone());
            let carry_out = move || {
                if let Err(error) = group.carry_out_disk_step(step, offset, &batches) {
                    // The first fault is the one; the link ends with the next frame.
                    let _ = at_fault.set(explained(&*group, &error));
                }
            };
            self.links.disk_steps.push(&dir, Box::new(carry_out));
        }
        Ok(())
    }

    fn take_call(&self, id: u64, kind: CallKind, body: &[u8]) {
        let Some(reply) = self.answers.begin(id, body.len()) else { return };
        let Some(handler) = self.links.handler.get().cloned() else { return };
        let (from, body) = (self.from, body.to_vec());
        self.links.callers.push(Box::new(move || handler.call(from, kind, body, reply)));
    }
}

/// The fault of a message, with the partition that it was for.
fn explained(group: &dyn Group, error: &MessageError) -> String {
    let (topic, index) = group.topic_partition();
    format!("{topic}-{index}: {error}")
}

fn fault(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// What was read from a link and is not taken yet.
pub(super) struct Input {
    bytes: Vec<u8>,
    /// So many of them are taken.
    taken: usize,
    body_max: usize,
}

impl Input {
    pub(super) fn new(body_max: usize) -> Input {
        Input { bytes: Vec::new(), taken: 0, body_max }
    }

    /// Reads more; it grows with what arrives and not with what a length promises. Returns false at the end of the
    /// connection between two frames.
    ///
    /// # Errors
    /// The socket's; the end of the connection within a frame.
    pub(super) fn fill(&mut self, stream: &mut impl Read) -> io::Result<bool> {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        let filled = self.bytes.len();
        let missing = link::needed(&self.bytes).saturating_sub(filled);
        // At most as much again as there is, but for small frames.
        let more = missing.clamp(READ_BYTES, filled.max(READ_BYTES));
        self.bytes.resize(filled + more, 0);
        let read = loop {
            match stream.read(&mut self.bytes[filled..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        self.bytes.truncate(filled + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) if filled == 0 => Ok(false),
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended within a frame")),
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(io::ErrorKind::TimedOut.into())
            }
            Err(error) => Err(error),
        }
    }

    /// The next frame, if it is whole, and its length.
    pub(super) fn frame(&self) -> io::Result<Option<(Frame<'_>, usize)>> {
        let decoded = link::decode(&self.bytes[self.taken..], self.body_max);
        decoded.map_err(|error: FrameError| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// The frame was taken.
    pub(super) fn consume(&mut self, len: usize) {
        self.taken += len;
        if self.taken == self.bytes.len() {
            self.bytes.clear();
            self.bytes.shrink_to(KEPT_BYTES);
            self.taken = 0;
        }
    }
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
        let incoming = Incoming::new(alive_max);
        let (of_node, of_gateway, stranger) = ([10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]);
        let claim_from = |from: [u8; 4], generation: u64, now_ms: u64| {
            let claim = Claim { generation, stream: stream(&listener), from: from.into(), now_ms };
            incoming.claim(claim, |address| address == IpAddr::from(of_node))
        };
        let claim = |generation: u64, is_known: bool, now_ms: u64| {
            claim_from(if is_known { of_node } else { stranger }, generation, now_ms)
        };
        assert_eq!(claim(5, true, 1_000), Ok(1));
        let alive_ms = u64::try_from(alive_max.as_millis()).expect("some seconds");
        for now_ms in [1_000, 1_000 + alive_ms - 1] {
            assert_eq!(claim(u64::MAX, false, now_ms), Err(Kept::Alive));
        }
        // The same process again, and a later one, from where the node is.
        assert_eq!(claim(5, true, 1_500), Ok(2));
        assert_eq!(claim(4, true, 1_500), Err(Kept::Later));
        assert_eq!(claim(6, true, 1_500), Ok(3));
        // Nothing was heard for so long.
        assert_eq!(claim(5, false, 1_500 + alive_ms), Err(Kept::Later));
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
        assert_eq!((of_gateway(5), claim(7, false, now_ms)), (Err(Kept::Later), Err(Kept::Alive)));
    }
}
