//! The answers of a node to others, on the controllers' listener: questions of founding, and links once there are any.

use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use std::time::Duration;

use mainstem_links::{Arrived, is_hello, read_frame};
use mainstem_runtime::supervised;
use serde::{Deserialize, Serialize};

use super::joining::JOIN_MAGIC;
use super::{ANSWER_TIME, BYTES_MAX, Founder, JoinAnswer, JoinRequest, MAGIC};

/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The place of a connection among those whose first frame has not arrived, until this is dropped.
struct Permit {
    founder: Arc<Founder>,
    id: u64,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.founder.answering.lock().leave(self.id);
    }
}

impl Founder {
    /// Answers others on the controllers' listener.
    ///
    /// # Errors
    /// When no thread can be made.
    pub(crate) fn answer_on(self: &Arc<Self>, listener: TcpListener) -> io::Result<Answering> {
        let own = self.clone();
        listener.set_nonblocking(false)?;
        let address = listener.local_addr()?;
        let why = "other nodes would not be answered any more";
        let thread = supervised::spawn_vital("controller-accept", why, move || {
            loop {
                let accepted = listener.accept();
                if own.is_over.load(Ordering::Acquire) {
                    return;
                }
                match accepted {
                    Ok((stream, _)) => own.answer_apart(stream),
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })?;
        Ok(Answering { founder: self.clone(), address, thread: Some(thread) })
    }

    /// Answers in a thread of its own, so that a silent unauthenticated peer holds up no other.
    fn answer_apart(self: &Arc<Self>, stream: TcpStream) {
        let (Ok(peer), Ok(control)) = (stream.peer_addr(), stream.try_clone()) else { return };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let now_ms = self.gate.clock().mono_ms();
        let closed = self.answering.lock().enter(id, peer.ip().to_canonical(), now_ms, control);
        if let Some(other) = closed {
            // The connection may be closed already.
            let _ = other.shutdown(Shutdown::Both);
        }
        // Without a thread it is dropped immediately.
        let permit = Permit { founder: self.clone(), id };
        let _ = supervised::spawn_apart("founding-answer", move || {
            // Faults of the peer were reported; those of the network are not.
            let _ = permit.founder.answer(stream);
        });
    }

    /// Answers the first frame: a question of founding, or the hello of a link.
    fn answer(&self, stream: TcpStream) -> io::Result<()> {
        set_times(&stream)?;
        let mut arrived = self.gate.accept(stream)?;
        let frame = match read_frame(&mut arrived.channel.reader, BYTES_MAX) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                self.gate.refused(arrived.peer.ip(), &error.to_string());
                return Err(error);
            }
            read => read?,
        };
        match self.links.get() {
            _ if frame.starts_with(MAGIC) => self.reply(arrived),
            _ if frame.starts_with(JOIN_MAGIC) => self.reply_to_join(arrived, &frame[JOIN_MAGIC.len()..]),
            Some(links) if is_hello(&frame) => {
                links.accept(arrived, frame);
                Ok(())
            }
            // Before the founding there is nothing to link.
            None if is_hello(&frame) => Ok(()),
            _ => {
                self.gate.refused(arrived.peer.ip(), "it is no other node");
                Ok(())
            }
        }
    }

    fn reply(&self, arrived: Arrived) -> io::Result<()> {
        let Some(mut arrived) = self.allowed(arrived)? else { return Ok(()) };
        let text = serde_json::to_vec(&*self.own.lock()).expect("ids are text");
        arrived.channel.writer.write_all(&framed(&text)?)
    }

    /// Answers a node that wants to join, when the metadata leader has decided.
    fn reply_to_join(&self, arrived: Arrived, request: &[u8]) -> io::Result<()> {
        let Some(mut arrived) = self.allowed(arrived)? else { return Ok(()) };
        let request: JoinRequest = serde_json::from_slice(request).map_err(io::Error::other)?;
        let answer = match self.join_handler.get() {
            _ if !self.gate.may_join(&arrived, (request.node, &request.host)) => {
                JoinAnswer::Refused(format!(
                    "the request of node {} at {} came from {}, without a proof that it is of that node: nodes prove it by \
                 mainstem.node.secret.location",
                    request.node,
                    request.host,
                    arrived.peer.ip()
                ))
            }
            Some(handler) => handler.join(&request),
            None => JoinAnswer::NotNow("it is starting".to_owned()),
        };
        let text = serde_json::to_vec(&answer).expect("ids are text");
        arrived.channel.writer.write_all(&framed(&text)?)
    }

    /// A connection whose peer may act as a node; `None`: it was refused.
    fn allowed(&self, arrived: Arrived) -> io::Result<Option<Arrived>> {
        let ip = arrived.peer.ip();
        let Err(refused) = self.gate.check(&arrived.principal, ip) else { return Ok(Some(arrived)) };
        self.gate.refused(ip, &refused);
        let text = serde_json::to_vec(&Refused { refused }).expect("it is text");
        arrived.channel.refuse(&framed(&text)?);
        Ok(None)
    }
}

/// The answer to a peer that may not act as a node.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    pub(super) refused: String,
}

/// The thread that answers.
pub(crate) struct Answering {
    founder: Arc<Founder>,
    address: SocketAddr,
    thread: Option<mainstem_runtime::sync::Thread>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.founder.is_over.store(true, Ordering::Release);
        // The thread waits for a connection. If none can be made, it ends with the process.
        let woken = TcpStream::connect_timeout(&self.address, ANSWER_TIME).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Sets the time-outs of a connection.
pub(super) fn set_times(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(ANSWER_TIME))?;
    stream.set_write_timeout(Some(ANSWER_TIME))
}

/// Puts a length before bytes.
pub(super) fn framed(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    Ok([&length.to_be_bytes(), bytes].concat())
}
