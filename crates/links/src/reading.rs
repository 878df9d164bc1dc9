//! Frames of the accepting end of a link, which their groups take.

use std::io::{self, Read};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mainstem_replication::eraftpb::{Message, MessageType};
use mainstem_replication::link::{self, Alias, Frame, FrameError, Heartbeat};
use mainstem_replication::{AcceptedHeartbeats, MessageError, Repeat};
use mainstem_security::KafkaPrincipal;

use super::calls::{Answers, CallKind};
use super::channel::ChannelReader;
use super::gate::NodeGate;
use super::group::{Group, GroupHandle};
use super::{BODY_BYTES_MAX, GONE, Links, PeerLink};

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;
/// A buffer that has grown for a large frame goes back to this size.
const KEPT_BYTES: usize = 1 << 20;
/// Groups on one link.
const ALIASES_MAX: usize = 1 << 20;
/// Interval of the checks whether the peer may still act as a node.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(1);

/// Check whether the peer may still act as a node.
pub(super) struct Leave {
    pub(super) principal: KafkaPrincipal,
    pub(super) host: IpAddr,
    /// When its session is over; it dials again then.
    pub(super) ends: Option<Instant>,
    pub(super) looked_at: Instant,
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

/// Takes frames.
pub(super) struct Receiver {
    links: Arc<Links>,
    peer: Arc<PeerLink>,
    from: i32,
    /// By number.
    aliases: Vec<Known>,
    /// Heartbeats that stand.
    accepted: AcceptedHeartbeats,
    answers: Arc<Answers>,
    leave: Option<Leave>,
    /// A message of this link that another thread took is at fault, and why.
    at_fault: Arc<OnceLock<String>>,
}

/// A group that has a number.
struct Known {
    alias: Alias,
    handle: Option<Arc<GroupHandle>>,
}

impl Receiver {
    /// A receiver of a link that a node has dialled. `leave` checks how long the node may act as one; `None` without such checks.
    pub(super) fn new(
        (links, peer): (Arc<Links>, Arc<PeerLink>),
        answers: Arc<Answers>,
        leave: Option<Leave>,
    ) -> Receiver {
        let from = peer.peer.node;
        let (aliases, accepted, at_fault) = (Vec::new(), AcceptedHeartbeats::default(), Arc::default());
        Receiver { links, peer, from, aliases, accepted, answers, leave, at_fault }
    }

    fn explained(&self, error: io::Error) -> io::Error {
        match error.kind() {
            io::ErrorKind::TimedOut => {
                let seconds = self.links.options.silence.silence_max.as_secs_f64();
                io::Error::new(io::ErrorKind::TimedOut, format!("nothing came for {seconds} s"))
            }
            _ => error,
        }
    }

    /// Takes frames until the link ends.
    ///
    /// # Errors
    /// The connection's, and what is wrong with a frame.
    pub(super) fn run(&mut self, mut stream: ChannelReader) -> io::Result<()> {
        let mut input = Input::new(BODY_BYTES_MAX);
        loop {
            self.take_all(&mut input)?;
            if !input.fill(&mut stream).map_err(|error| self.explained(error))? {
                return Ok(());
            }
            self.note_received()?;
        }
    }

    /// Takes the frames that were read as a whole.
    ///
    /// # Errors
    /// What is wrong with a frame.
    pub(super) fn take_all(&mut self, input: &mut Input) -> io::Result<()> {
        while let Some((frame, len)) = input.frame()? {
            self.take(frame)?;
            input.consume(len);
        }
        Ok(())
    }

    /// Something was read.
    ///
    /// # Errors
    /// The peer may not act as a node any more, or not at its address.
    pub(super) fn note_received(&mut self) -> io::Result<()> {
        if self.peer.is_gone() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, GONE));
        }
        self.peer.incoming.note_received(self.links.now_ms());
        self.leave.as_mut().map_or(Ok(()), |leave| leave.check(&self.links.gate))
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
            Frame::Coalesced(heartbeats) => {
                heartbeats.into_iter().try_for_each(|heartbeat| self.take_coalesced(heartbeat))
            }
            Frame::Repeat(repeat) => {
                self.take_repeat(&repeat);
                Ok(())
            }
            Frame::RepeatAnswer(answer) => {
                self.links.take_answer(&self.peer, &answer);
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

    fn take_coalesced(&mut self, heartbeat: Heartbeat) -> io::Result<()> {
        self.take_heartbeat(heartbeat)?;
        self.accepted.insert(heartbeat.alias, heartbeat.term);
        let known =
            self.aliases.get(heartbeat.alias as usize).ok_or_else(|| fault("a group without a number"))?;
        if let Some(group) = known.handle.as_ref().and_then(|handle| handle.group()) {
            group.accept_coalesced(known.alias.from, heartbeat.term);
        }
        Ok(())
    }

    /// Heartbeats of all groups at once. Only what is refused is looked at again by the peer.
    fn take_repeat(&mut self, repeat: &Repeat) {
        let (now_ms, aliases) = (self.links.now_ms(), &self.aliases);
        let answer = self.accepted.take(repeat, |alias, term| {
            let handle = aliases.get(alias as usize).and_then(|known| known.handle.as_ref());
            handle.is_some_and(|handle| handle.accept_repeat(term, now_ms))
        });
        self.peer.add(|outbox| outbox.push_answer(answer));
    }

    fn step(&mut self, alias: u32, mut message: Message, offset: i64, batches: &[u8]) -> io::Result<()> {
        let known = self.aliases.get_mut(alias as usize).ok_or_else(|| fault("a group without a number"))?;
        let group = match known.handle.as_ref().and_then(|handle| handle.group()) {
            Some(group) => Some(group),
            None => {
                let handle = self.links.group(known.alias.group);
                known.handle = handle.filter(|handle| handle.own == known.alias.to);
                known.handle.as_ref().and_then(|handle| handle.group())
            }
        };
        // A group that is not here, not yet or not any more, or another replica of it: nothing is answered.
        let Some(group) = group else { return Ok(()) };
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

/// Bytes that were read from a link and are not taken yet.
pub(super) struct Input {
    bytes: Vec<u8>,
    /// Number of the bytes that are taken.
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

    /// Adds bytes that were read elsewhere.
    #[cfg(any(test, feature = "sim"))]
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
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
