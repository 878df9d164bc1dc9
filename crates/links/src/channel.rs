//! A connection between two nodes: bytes as they are, or sealed by TLS. One thread reads from it and another one writes.
//!
//! What a session has to answer by itself, such as new keys, goes before what the writer seals next, which is all that TLS
//! asks for: the reader never waits for the peer to take something.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_security::tls::{TlsError, TlsSession, TlsState};
use parking_lot::Mutex;

use mainstem_runtime::clock::machine_now;

/// Bytes that are sealed at once.
const SEALED_AT_ONCE: usize = 64 << 10;
/// Bytes that are read from the socket at once.
const READ_BYTES: usize = 64 << 10;
/// Limit of the bytes that a TLS session wants to send by itself and that wait to be written.
const PENDING_MAX: usize = 64 << 10;
/// After the last message to a peer that is refused, what it still sends is read and dropped, for this time and up to
/// `LINGER_BYTES`. A connection that is closed at once would be reset, and the message lost.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 << 10;

/// Both directions of a connection.
pub struct Channel {
    /// The end that is read from.
    pub reader: ChannelReader,
    /// The end that is written to.
    pub writer: ChannelWriter,
}

/// Receiving half of a connection, decrypted if it is TLS.
pub struct ChannelReader {
    socket: TcpStream,
    tls: Option<Sealed>,
    /// In clear and not taken yet, from `taken` on.
    opened: Vec<u8>,
    taken: usize,
    /// Buffer of bytes from the socket.
    received: Vec<u8>,
    is_over: bool,
    deadline: Option<Instant>,
}

/// Sending half of a connection, encrypted if it is TLS.
pub struct ChannelWriter {
    socket: TcpStream,
    tls: Option<Sealed>,
    sealed: Vec<u8>,
}

type Sealed = Arc<Mutex<Session>>;

struct Session {
    session: TlsSession,
    /// Sealed already, and to be sent before anything else.
    pending: Vec<u8>,
}

impl Channel {
    /// A connection without TLS. Reads fail after `deadline`, until [`Self::begin`].
    ///
    /// # Errors
    /// The system's.
    pub fn plain(socket: TcpStream, deadline: Instant) -> io::Result<Channel> {
        Channel::new(socket, None, Vec::new(), deadline)
    }

    /// Begins a session of TLS and waits until both sides agree.
    ///
    /// # Errors
    /// When one side does not accept the other's certificate, or not in time. An alert that says so was sent.
    pub fn sealed(mut socket: TcpStream, mut session: TlsSession, deadline: Instant) -> io::Result<Channel> {
        let (mut received, mut out, mut opened) = (vec![0; READ_BYTES], Vec::new(), Vec::new());
        let mut count = 0;
        loop {
            let state = session.handshake(&mut received[..count], &mut out, &mut opened);
            socket.write_all(&out)?;
            out.clear();
            match state {
                Err(error) => {
                    linger(&mut socket);
                    return Err(of_session(error));
                }
                Ok(TlsState::Handshaking) => {}
                Ok(TlsState::Open) => break,
                Ok(TlsState::PeerClosed) => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            set_deadline(&socket, deadline)?;
            count = match socket.read(&mut received) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => 0,
                Err(error) => return Err(in_time(error)),
            };
        }
        let session = Session { session, pending: Vec::new() };
        Channel::new(socket, Some(Arc::new(Mutex::new(session))), opened, deadline)
    }

    fn new(
        socket: TcpStream,
        tls: Option<Sealed>,
        opened: Vec<u8>,
        deadline: Instant,
    ) -> io::Result<Channel> {
        let writer = ChannelWriter { socket: socket.try_clone()?, tls: tls.clone(), sealed: Vec::new() };
        let (taken, is_over, received) = (0, false, Vec::new());
        let deadline = Some(deadline);
        let reader = ChannelReader { socket, tls, opened, taken, received, is_over, deadline };
        Ok(Channel { reader, writer })
    }

    /// The socket, to set its times, or to end both directions from elsewhere.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn control(&self) -> io::Result<TcpStream> {
        self.reader.socket.try_clone()
    }

    /// Removes the deadline. From here on a read fails only after this time without a byte, if one is given.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&mut self, silence_max: Option<Duration>) -> io::Result<()> {
        self.reader.deadline = None;
        self.reader.socket.set_read_timeout(silence_max)
    }

    /// The certificate of the peer, and the principal that follows from it.
    pub fn with_session<T>(&self, look: impl FnOnce(&TlsSession) -> T) -> Option<T> {
        self.reader.tls.as_ref().map(|tls| look(&tls.lock().session))
    }

    /// Sends a last word and sees to it that it arrives.
    pub fn refuse(mut self, last: &[u8]) {
        // It may have gone already.
        if self.writer.write_all(last).is_ok() {
            linger(&mut self.reader.socket);
        }
    }
}

/// Half-closes, and drops what comes.
fn linger(socket: &mut TcpStream) {
    let deadline = machine_now() + LINGER;
    let (mut dropped, mut buffer) = (0, vec![0; 4 << 10]);
    if socket.shutdown(Shutdown::Write).is_err() {
        return;
    }
    while dropped < LINGER_BYTES && set_deadline(socket, deadline).is_ok() {
        match socket.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => dropped += count,
        }
    }
}

fn set_deadline(socket: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(machine_now());
    match left.is_zero() {
        true => Err(in_time(io::ErrorKind::TimedOut.into())),
        false => socket.set_read_timeout(Some(left)),
    }
}

/// Names a time-out of the operating system.
fn in_time(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            io::Error::new(io::ErrorKind::TimedOut, "it did not say in time who it is")
        }
        _ => error,
    }
}

fn of_session(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Read for ChannelReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.taken < self.opened.len() {
                let ready = &self.opened[self.taken..];
                let count = ready.len().min(into.len());
                into[..count].copy_from_slice(&ready[..count]);
                self.taken += count;
                if self.taken == self.opened.len() {
                    self.opened.clear();
                    self.taken = 0;
                }
                return Ok(count);
            }
            if self.is_over {
                return Ok(0);
            }
            if let Some(deadline) = self.deadline {
                set_deadline(&self.socket, deadline)?;
            }
            let Some(tls) = &self.tls else {
                let read = self.socket.read(into);
                return if self.deadline.is_some() { read.map_err(in_time) } else { read };
            };
            self.received.resize(READ_BYTES, 0);
            let count = match self.socket.read(&mut self.received) {
                Err(error) if self.deadline.is_some() => return Err(in_time(error)),
                read => read?,
            };
            if count == 0 {
                return Ok(0);
            }
            let mut tls = tls.lock();
            let Session { session, pending } = &mut *tls;
            match session.open(&mut self.received[..count], pending, &mut self.opened) {
                Ok(state) => self.is_over = state == TlsState::PeerClosed,
                Err(error) => {
                    let alert = std::mem::take(pending);
                    drop(tls);
                    // The peer may have gone; it finds out by the end of the connection then.
                    let _ = self.socket.write_all(&alert);
                    return Err(of_session(error));
                }
            }
            if pending.len() > PENDING_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "it asks for new keys without end"));
            }
        }
    }
}

impl Write for ChannelWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.write(bytes) };
        let piece = &bytes[..bytes.len().min(SEALED_AT_ONCE)];
        self.sealed.clear();
        {
            let mut tls = tls.lock();
            let Session { session, pending } = &mut *tls;
            self.sealed.append(pending);
            session.seal(piece, &mut self.sealed).map_err(of_session)?;
        }
        self.socket.write_all(&self.sealed)?;
        Ok(piece.len())
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.tls.is_none() {
            return self.socket.write_vectored(slices);
        }
        match slices.iter().find(|slice| !slice.is_empty()) {
            Some(first) => self.write(first),
            None => Ok(0),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl ChannelWriter {
    /// Ends both directions.
    pub fn shut_down(&self) {
        // It may be gone already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}
