//! Links without threads and sockets, for simulations: their owner carries the bytes between both ends, and decides when a link
//! begins and ends. What the ends do is what they do over sockets.

use std::io::{self, Write};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::calls::{AnswerWriter, Answers, CALL_BYTES_MAX};
use crate::dial::take_answers;
use crate::reading::{Input, Receiver};
use crate::writing::{Next, Writer};
use crate::{BODY_BYTES_MAX, LinkIdentity, Links, LinksOptions, NodeGate, Peer, PeerLink};

impl Links {
    /// Links of which none is dialled, and which make no thread.
    pub fn by_hand(identity: LinkIdentity, peers: Vec<Peer>, options: LinksOptions) -> Arc<Links> {
        let gate = Arc::new(NodeGate::open_to_all(options.clock.clone()));
        let links = Links::unstarted(identity, options, gate, false);
        links.disk_steps.by_hand();
        // Nothing fails where no thread is made.
        let _ = links.set_peers(peers);
        links
    }

    /// Starts the threads that serve the requests of other nodes; they are those of a schedule.
    ///
    /// # Errors
    /// The system's, when no thread can be made.
    pub fn start_callers(self: &Arc<Self>) -> io::Result<()> {
        self.spawn_callers()
    }

    /// Takes the messages that wait for a disk.
    pub fn run_disk_steps(&self) {
        self.disk_steps.run_all();
    }

    /// Acts like a process that dies: messages that wait for a disk, requests and those who wait for answers are forgotten.
    pub fn forget_waiting(&self) {
        self.disk_steps.forget_all();
        self.callers.stop();
        for peer in self.peers.all().iter() {
            let waiting = peer.outbox.lock().close();
            // Without the lock: they may hold the last of what asks again when it is dropped.
            drop(waiting);
        }
    }

    /// Returns true if a node is one of the peers: it is to be dialled, and its links are accepted.
    pub fn has_peer(&self, node: i32) -> bool {
        self.peer(node).is_some()
    }

    /// A node has refused to be dialled: its process is gone.
    pub fn dial_refused(&self, node: i32) {
        self.node_gone(node);
    }
}

/// The dialling end of a link, which writes.
pub struct WritingEnd {
    links: Arc<Links>,
    peer: Arc<PeerLink>,
    writer: Writer<Vec<u8>>,
    /// Answers of the other end, as they have come.
    answers: Input,
}

impl WritingEnd {
    /// The link to a node begins.
    ///
    /// # Panics
    /// When the node is none of the peers.
    pub fn begin(links: &Arc<Links>, node: i32) -> WritingEnd {
        let peer = links.peer(node).expect("it is a peer");
        peer.begin(None);
        let writer = Writer::new(Vec::new(), links.clone(), links.clock().instant());
        let answers = Input::new(CALL_BYTES_MAX);
        WritingEnd { links: links.clone(), peer, writer, answers }
    }

    /// The bytes that it writes now; none where there is nothing to write.
    ///
    /// # Errors
    /// The cause that ends the link: it was ended from elsewhere, as for a node that is no peer any more, or batches cannot be read.
    pub fn write(&mut self) -> io::Result<Vec<u8>> {
        let now = self.links.clock().instant();
        loop {
            let next = self.writer.next(&mut self.peer.outbox.lock(), now);
            match next {
                Next::Write(batch) => self.writer.write(&self.peer, batch, now)?,
                Next::Wait(_) => return Ok(std::mem::take(self.writer.stream_mut())),
                Next::End => return Err(io::ErrorKind::ConnectionAborted.into()),
            }
        }
    }

    /// Takes bytes of the other end: answers to requests.
    ///
    /// # Errors
    /// What is wrong with them, which ends the link.
    pub fn read_answers(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.answers.add(bytes);
        take_answers(&self.peer, &mut self.answers)
    }

    /// The link ends, and what was on its way is lost.
    pub fn end(self) {
        self.peer.close();
        self.links.report_unreachable(self.peer.peer.node);
    }
}

/// The accepting end of a link, which reads.
pub struct ReadingEnd {
    receiver: Receiver,
    input: Input,
    answers: AnswersOut,
}

/// Bytes of answers on their way out; `None`: the link has ended.
#[derive(Clone)]
struct AnswersOut(Arc<Mutex<Option<Vec<u8>>>>);

impl Write for AnswersOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock() {
            Some(out) => out.extend_from_slice(bytes),
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AnswerWriter for AnswersOut {
    fn shut_down(&self) {
        *self.0.lock() = None;
    }
}

impl ReadingEnd {
    /// The link that a node has dialled begins.
    ///
    /// # Panics
    /// When the node is none of the peers.
    pub fn begin(links: &Arc<Links>, node: i32) -> ReadingEnd {
        let peer = links.peer(node).expect("it is a peer");
        let out = AnswersOut(Arc::new(Mutex::new(Some(Vec::new()))));
        let answers = Answers::new(Box::new(out.clone()), peer.serving.clone());
        let receiver = Receiver::new((links.clone(), peer), answers, None);
        ReadingEnd { receiver, input: Input::new(BODY_BYTES_MAX), answers: out }
    }

    /// The bytes of answers that it writes now.
    pub fn write_answers(&mut self) -> Vec<u8> {
        self.answers.0.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes bytes that the other end has written.
    ///
    /// # Errors
    /// The defect of the frames, or that the node is no peer any more, which ends the link.
    pub fn read(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.receiver.note_received()?;
        self.input.add(bytes);
        self.receiver.take_all(&mut self.input)
    }
}

/// Answers that come later go nowhere.
impl Drop for ReadingEnd {
    fn drop(&mut self) {
        self.answers.shut_down();
    }
}
