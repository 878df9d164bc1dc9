//! The dialling end of a link: it writes what the outbox has, and reads answers to requests.

use std::collections::HashMap;
use std::io::{self, IoSlice, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_replication::link::{self, Alias, Frame, Heartbeat};
use mainstem_replication::{GroupId, ReplicaId};

use super::calls::{CALL_BYTES_MAX, CallError, SERVED};
use super::channel::{Channel, ChannelReader, ChannelWriter};
use super::group::is_append;
use super::hello::{Hello, Welcome, read_frame};
use super::outbox::{Batch, Item};
use super::{Lead, Links, PeerLink, set_silence_max};
use mainstem_runtime::clock::machine_now;
use mainstem_runtime::supervised;

/// Between two attempts to dial, at first and at most.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// A connection, and the answer to a hello, take at most so long.
const DIAL_TIME: Duration = Duration::from_secs(2);
/// How often it is looked whether a peer has proven who it is, and when it is said that it does not.
const PROOF_EVERY: Duration = Duration::from_millis(10);
const PROOF_TIME: Duration = Duration::from_secs(2);
/// Frames up to this size are gathered before they are written.
const GATHERED_BYTES: usize = 64 << 10;
/// Heartbeats in one frame.
const HEARTBEATS_MAX: usize = 10_000;

/// Why a link did not begin.
#[derive(Debug, thiserror::Error)]
enum DialError {
    /// The peer's process is not there, or does not listen yet.
    #[error("{0}")]
    Absent(io::Error),
    /// It cannot be reached, or does not answer.
    #[error("{0}")]
    Unreachable(#[from] io::Error),
    /// It takes no link from this node.
    #[error("{0}")]
    Refused(String),
    /// It takes none, as it is of another cluster.
    #[error("{refusal}")]
    OtherCluster { cluster_id: String, refusal: String },
}

/// Dials a peer, again and again, and writes what there is for it.
pub(super) fn run(links: &Arc<Links>, peer: &Arc<PeerLink>) {
    let (mut back_off, mut said) = (BACK_OFF_MIN, String::new());
    let mut is_gone = false;
    while !links.is_stopping() {
        let dialled = dial(links, peer);
        *peer.other_cluster.lock() = match &dialled {
            Err(DialError::OtherCluster { cluster_id, .. }) => Some(cluster_id.clone()),
            _ => None,
        };
        match dialled {
            Ok(mut channel) => {
                (back_off, is_gone) = (BACK_OFF_MIN, false);
                said.clear();
                links.awaited().reached(peer.peer.node);
                if await_proof(links, peer, &mut channel) {
                    serve(links, peer, channel);
                }
                // At once: a peer that refuses now has died.
                continue;
            }
            Err(error) => {
                if matches!(error, DialError::Absent(_)) && !std::mem::replace(&mut is_gone, true) {
                    links.node_gone(peer.peer.node);
                }
                let (node, text) = (peer.peer.node, error.to_string());
                links.awaited().not_reached(&peer.peer.voter(), &text, links.now_ms());
                // What goes on is said once.
                if said != text {
                    let (host, port) = (&peer.peer.host, peer.peer.port);
                    match error {
                        DialError::Refused(_) | DialError::OtherCluster { .. } => {
                            tracing::error!(node, "no link to {host}:{port}: {text}");
                        }
                        _ => tracing::warn!(node, "no link to {host}:{port}: {text}"),
                    }
                    said = text;
                }
            }
        }
        let mut outbox = peer.outbox.lock();
        if !links.is_stopping() {
            peer.wake.wait_for(&mut outbox, back_off);
        }
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

fn dial(links: &Links, peer: &PeerLink) -> Result<Channel, DialError> {
    let addresses: Vec<_> = (peer.peer.host.as_str(), peer.peer.port).to_socket_addrs()?.collect();
    peer.found_at(&addresses);
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    let mut connected = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, DIAL_TIME) {
            Ok(stream) => {
                connected = Some(stream);
                break;
            }
            Err(error) => last = error,
        }
    }
    let Some(stream) = connected else {
        return Err(match last.kind() {
            io::ErrorKind::ConnectionRefused => DialError::Absent(last),
            _ => DialError::Unreachable(last),
        });
    };
    stream.set_nodelay(true)?;
    set_silence_max(&stream, links.options.silence.silence_max)?;
    let mut channel =
        links.gate.dial(stream, (peer.peer.node, &peer.peer.host), DIAL_TIME).map_err(unproven)?;
    let hello = Hello {
        cluster_id: links.cluster_id.clone(),
        node: links.node,
        generation: links.generation,
        to: peer.peer.node,
    };
    channel.writer.write_all(&hello.encode())?;
    // A node that starts takes links a little later than connections.
    let frame = read_frame(&mut channel.reader).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => DialError::Unreachable(io::Error::other("it takes no links yet")),
        _ => unproven(error),
    })?;
    let welcome = Welcome::decode(&frame).map_err(|error| DialError::Refused(error.to_string()))?;
    // One that does not say its cluster's id does not know the address of this node.
    let is_told = !welcome.cluster_id.is_empty();
    if !welcome.refusal.is_empty() && is_told && welcome.cluster_id != links.cluster_id {
        let Welcome { cluster_id, refusal, .. } = welcome;
        return Err(DialError::OtherCluster { cluster_id, refusal });
    }
    if !welcome.refusal.is_empty() {
        return Err(DialError::Refused(welcome.refusal));
    }
    if welcome.node != peer.peer.node {
        let (found, wanted) = (welcome.node, peer.peer.node);
        return Err(DialError::Refused(format!(
            "there is node {found}, not node {wanted}; check controller.quorum.voters"
        )));
    }
    channel.begin(None)?;
    Ok(channel)
}

/// One of both does not believe the other, or the connection cannot be.
fn unproven(error: io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::InvalidData => DialError::Refused(error.to_string()),
        _ => DialError::Unreachable(error),
    }
}

/// Where a peer does not prove who it is when it is dialled, it does so by a link of its own: until that is there, nothing
/// goes to it but signs of life. Returns false if the link has ended.
fn await_proof(links: &Links, peer: &PeerLink, channel: &mut Channel) -> bool {
    if !links.gate.wants_proof() {
        return true;
    }
    let node = peer.peer.node;
    let (begun, mut sign_at, mut is_said) = (machine_now(), machine_now(), false);
    let mut sign = Vec::new();
    link::heartbeats(&[], &mut sign);
    while !peer.incoming.is_alive(links.now_ms()) {
        if links.is_stopping() {
            return false;
        }
        if !is_said && machine_now().duration_since(begun) >= PROOF_TIME {
            is_said = true;
            let why = format!(
                "nothing is sent to node {node}, which takes this node's link, until it has proven who it is by a link of \
                 its own; its log, or this one, says why it does not"
            );
            tracing::warn!(node, "{why}");
            links.awaited().not_reached(&peer.peer.voter(), why, links.now_ms());
        }
        if machine_now().duration_since(sign_at) >= links.options.silence.keep_alive {
            sign_at = machine_now();
            if channel.writer.write_all(&sign).is_err() {
                std::thread::sleep(BACK_OFF_MIN);
                return false;
            }
        }
        std::thread::sleep(PROOF_EVERY);
    }
    links.awaited().reached(node);
    true
}

/// Writes until the link ends.
fn serve(links: &Arc<Links>, peer: &Arc<PeerLink>, channel: Channel) {
    let Ok(control) = channel.control() else {
        tracing::error!(node = peer.peer.node, "no descriptor is left for a link");
        return std::thread::sleep(BACK_OFF_MAX);
    };
    peer.standing.lock().begin();
    let Channel { reader, writer } = channel;
    peer.outbox.lock().open(control);
    if links.is_stopping() {
        // The stop has ended all links that were open, and does not know of this one.
        peer.end();
    }
    tracing::info!(node = peer.peer.node, "linked to node {}", peer.peer.node);
    let answers = {
        let peer = peer.clone();
        let name = format!("link-answers-{}", peer.peer.node);
        supervised::spawn_vital(&name, "who waits for another node would wait for ever", move || {
            let ended = read_answers(&peer, reader);
            peer.outbox.lock().end();
            peer.wake.notify_one();
            ended
        })
    };
    let written = match &answers {
        Ok(_) => Writer::new(writer, links.clone()).run(peer),
        Err(error) => Err(io::Error::new(error.kind(), "no thread can be made")),
    };
    let waiting = peer.outbox.lock().close();
    waiting.into_iter().for_each(|on_answer| on_answer(Err(CallError::Disconnected)));
    let read = answers.map(std::thread::JoinHandle::join);
    if !links.is_stopping() {
        let why = match (written, read) {
            (Err(error), _) => error.to_string(),
            (Ok(()), Ok(Ok(Err(error)))) => error.to_string(),
            _ => "the node has ended it".to_owned(),
        };
        tracing::warn!(node = peer.peer.node, "the link to node {} ended: {why}", peer.peer.node);
        links.report_unreachable(peer.peer.node);
    }
}

/// Reads answers until the link ends.
fn read_answers(peer: &PeerLink, mut stream: ChannelReader) -> io::Result<()> {
    let mut input = super::accept::Input::new(CALL_BYTES_MAX);
    while input.fill(&mut stream)? {
        while let Some((frame, len)) = input.frame()? {
            let Frame::Answer { id, status, body } = frame else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it sent what is no answer"));
            };
            let answer = if status == SERVED { Ok(body.to_vec()) } else { Err(CallError::Refused) };
            let on_answer = peer.outbox.lock().take_waiting(id);
            if let Some(on_answer) = on_answer {
                on_answer(answer);
            }
            input.consume(len);
        }
    }
    Ok(())
}

/// Writes frames to a connection.
struct Writer {
    stream: ChannelWriter,
    links: Arc<Links>,
    /// The numbers of groups on this link, by group and receiver.
    aliases: HashMap<(GroupId, ReplicaId), u32>,
    out: Vec<u8>,
    batches: Vec<u8>,
    written_at: Instant,
}

impl Writer {
    fn new(stream: ChannelWriter, links: Arc<Links>) -> Writer {
        Writer {
            stream,
            links,
            aliases: HashMap::new(),
            out: Vec::new(),
            batches: Vec::new(),
            written_at: machine_now(),
        }
    }

    fn run(mut self, peer: &PeerLink) -> io::Result<()> {
        while let Some(batch) = self.next(peer) {
            self.write(peer, batch)?;
        }
        Ok(())
    }

    /// What is to be written next; `None`: the link has ended.
    fn next(&mut self, peer: &PeerLink) -> Option<Batch> {
        let keep_alive = self.links.options.silence.keep_alive;
        let mut outbox = peer.outbox.lock();
        loop {
            if !outbox.is_open() {
                return None;
            }
            // Only those who catch up have to be asked about.
            let pause = match outbox.has_behind() {
                true => self.links.throttle.pause(self.links.clock().instant()),
                false => Duration::ZERO,
            };
            let batch = outbox.take(pause.is_zero());
            if batch.is_throttled {
                // What follows in its group costs no more than that did.
                let rate = |item: &Item| item.catches_up.unwrap_or(self.links.options.catch_up_rate);
                let cost = batch.append.as_ref().map(|item| (item.outgoing.bytes, rate(item)));
                let (bytes, rate) = cost.unwrap_or((0, 1));
                self.links.throttle.charge(self.links.clock().instant(), bytes, rate);
            }
            if !batch.is_empty()
                || !self.out.is_empty()
                || machine_now().duration_since(self.written_at) >= keep_alive
            {
                return Some(batch);
            }
            let pause = self.links.clock().machine_wait(pause);
            let time = if outbox.has_behind() { pause.min(keep_alive) } else { keep_alive };
            peer.wake.wait_for(&mut outbox, time);
        }
    }

    fn write(&mut self, peer: &PeerLink, batch: Batch) -> io::Result<()> {
        let is_last = batch.append.is_none();
        if batch.is_empty() && self.out.is_empty() {
            // Nothing but a sign of life.
            link::heartbeats(&[], &mut self.out);
        }
        self.put_heartbeats(peer, batch.heartbeats.into_values());
        if let Some(at_ms) = batch.repeat {
            let leads = |lead: &Lead| lead.handle.leads_on(lead.term, at_ms);
            let repeat = peer.standing.lock().repeat(leads);
            repeat.iter().for_each(|repeat| link::repeat(repeat, &mut self.out));
        }
        batch.answer.iter().for_each(|answer| link::repeat_answer(answer, &mut self.out));
        for item in batch.control {
            let alias = self.alias(&item);
            // A type that no replica sends is not sent.
            link::message(alias, &item.outgoing.message, &mut self.out);
        }
        for call in batch.calls {
            link::call(call.id, call.kind.0, &call.body, &mut self.out);
        }
        if let Some(item) = batch.append {
            self.put_append(&item)?;
        }
        if is_last || self.out.len() >= GATHERED_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn put_heartbeats(&mut self, peer: &PeerLink, items: impl Iterator<Item = Item>) {
        let (mut once, mut stand) = (Vec::new(), Vec::new());
        for item in items {
            let (term, commit) = (item.outgoing.message.term, item.outgoing.message.commit);
            let alias = self.alias(&item);
            if item.outgoing.stands {
                peer.standing.lock().insert(alias, Lead { handle: item.handle, term });
                stand.push(Heartbeat { alias, term, commit });
            } else {
                once.push(Heartbeat { alias, term, commit });
            }
        }
        for heartbeats in once.chunks(HEARTBEATS_MAX) {
            link::heartbeats(heartbeats, &mut self.out);
        }
        for heartbeats in stand.chunks(HEARTBEATS_MAX) {
            link::standing_heartbeats(heartbeats, &mut self.out);
        }
    }

    fn put_append(&mut self, item: &Item) -> io::Result<()> {
        debug_assert!(is_append(&item.outgoing.message));
        let (alias, outgoing) = (self.alias(item), &item.outgoing);
        self.batches.clear();
        if !outgoing.offsets.is_empty() {
            let gone = || io::Error::new(io::ErrorKind::NotFound, "the partition is gone");
            let group = item.handle.group().ok_or_else(gone)?;
            group.read_batches(&outgoing.offsets, &mut self.batches)?;
        }
        let len = u32::try_from(self.batches.len()).map_err(io::Error::other)?;
        link::append_head(alias, &outgoing.message, outgoing.offset, len, &mut self.out);
        if self.out.len() + self.batches.len() <= GATHERED_BYTES {
            self.out.extend_from_slice(&self.batches);
            return Ok(());
        }
        write_both(&mut self.stream, &self.out, &self.batches)?;
        self.written_at = machine_now();
        self.out.clear();
        // One large batch does not keep its memory.
        self.batches.shrink_to(1 << 20);
        Ok(())
    }

    /// The number of a group on this link, which the peer learns from a frame before its first use.
    fn alias(&mut self, item: &Item) -> u32 {
        let number = self.aliases.len() as u32;
        let known = self.aliases.entry((item.handle.id, item.outgoing.to));
        *known.or_insert_with(|| {
            let alias = Alias { number, group: item.handle.id, from: item.handle.own, to: item.outgoing.to };
            link::group(&alias, &mut self.out);
            number
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.out.is_empty() {
            self.stream.write_all(&self.out)?;
            self.written_at = machine_now();
            self.out.clear();
            self.out.shrink_to(2 * GATHERED_BYTES);
        }
        Ok(())
    }
}

fn write_both(stream: &mut impl Write, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut slices = [IoSlice::new(head), IoSlice::new(body)];
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        match stream.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
