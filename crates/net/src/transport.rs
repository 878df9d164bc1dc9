//! The transport of a connection: a socket with the bytes as they are, or sealed by a session (TLS, or another [`Seal`]).
//!
//! An idle connection has no buffer here. Opened bytes go to the reader immediately. Sealed bytes are at most one buffer
//! ahead of the socket.

use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::BufMut;
use mainstem_log::FileRange;
use mainstem_security::tls::{TlsError, TlsSession, TlsState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

use crate::buffers::{self, BUFFER_BYTES};
use mainstem_listener_security::{Handshakes, OpenSession};

/// Bytes that a plain connection sends before others on its loop get their turn: less than a millisecond's work.
const PLAIN_TURN_BYTES: usize = 1024 * 1024;

/// The same where each byte is encrypted.
const SEALED_TURN_BYTES: usize = 256 * 1024;

/// Bytes that are sealed at once: with what a session adds to them they fit a pooled buffer.
pub const SEALED_AT_ONCE: usize = 60 * 1024;

/// One side of a session that seals what is sent and opens what is received, over buffers that the transport owns. Each
/// method appends to them, also what has to be sent where it fails.
pub trait Seal: Send {
    /// Returns true while nothing can be sealed yet.
    fn is_handshaking(&self) -> bool;

    /// Takes bytes that were received during the handshake. They may be any part of it, and data may follow.
    ///
    /// # Errors
    /// When the peer cannot be understood, or is refused.
    fn handshake(
        &mut self,
        received: &mut [u8],
        sealed: &mut Vec<u8>,
        opened: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError>;

    /// Opens what was received after the handshake; what is not complete it keeps.
    ///
    /// # Errors
    /// When it was not sealed by the peer of the handshake.
    fn open(
        &mut self,
        received: &mut [u8],
        sealed: &mut Vec<u8>,
        opened: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError>;

    /// Seals all of the bytes, up to [`SEALED_AT_ONCE`] of them.
    ///
    /// # Errors
    /// When nothing can be sealed.
    fn seal(&mut self, bytes: &[u8], sealed: &mut Vec<u8>) -> Result<(), TlsError>;

    /// Seals that nothing more follows, where that can be said.
    ///
    /// # Errors
    /// When nothing can be sealed.
    fn close(&mut self, sealed: &mut Vec<u8>) -> Result<(), TlsError>;

    /// The session as one of TLS, which knows the peer's certificate.
    fn tls(&self) -> Option<&TlsSession>;
}

impl Seal for TlsSession {
    fn is_handshaking(&self) -> bool {
        TlsSession::is_handshaking(self)
    }

    fn handshake(
        &mut self,
        received: &mut [u8],
        sealed: &mut Vec<u8>,
        opened: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        TlsSession::handshake(self, received, sealed, opened)
    }

    fn open(
        &mut self,
        received: &mut [u8],
        sealed: &mut Vec<u8>,
        opened: &mut Vec<u8>,
    ) -> Result<TlsState, TlsError> {
        TlsSession::open(self, received, sealed, opened)
    }

    fn seal(&mut self, bytes: &[u8], sealed: &mut Vec<u8>) -> Result<(), TlsError> {
        TlsSession::seal(self, bytes, sealed)
    }

    fn close(&mut self, sealed: &mut Vec<u8>) -> Result<(), TlsError> {
        TlsSession::close(self, sealed)
    }

    fn tls(&self) -> Option<&TlsSession> {
        Some(self)
    }
}

/// A connection's socket and, where its bytes are sealed, the session.
pub struct Transport {
    stream: TcpStream,
    sealed: Option<Box<Sealed>>,
}

/// A transport between two loops: no loop watches its socket.
pub struct DetachedTransport {
    stream: std::net::TcpStream,
    sealed: Option<Box<Sealed>>,
}

/// A session, with what is on its way through it. One allocation, whatever the session is.
pub struct Sealed<S: ?Sized = dyn Seal> {
    /// In clear, received and not read by the connection yet: the part from `read` on.
    opened: Vec<u8>,
    read: usize,
    /// Sealed and not sent yet: the part from `sent` on.
    sealed: Vec<u8>,
    sent: usize,
    /// The peer has said that it sends nothing more.
    is_peer_closed: bool,
    /// This side has said that it sends nothing more.
    has_ended: bool,
    /// Counts as one that lasts since its handshake is over.
    counted: Option<OpenSession>,
    session: S,
}

impl Sealed {
    /// A session whose handshake begins.
    pub fn begin(session: impl Seal + 'static) -> Box<Sealed> {
        Box::new(Sealed {
            opened: Vec::new(),
            read: 0,
            sealed: Vec::new(),
            sent: 0,
            is_peer_closed: false,
            has_ended: false,
            counted: None,
            session,
        })
    }
}

impl DetachedTransport {
    /// A connection as it was accepted; with a session, if its bytes are sealed.
    pub fn new(stream: std::net::TcpStream, sealed: Option<Box<Sealed>>) -> DetachedTransport {
        DetachedTransport { stream, sealed }
    }

    /// Registers the socket with the loop that calls it.
    ///
    /// # Errors
    /// The system's, when the socket cannot be watched.
    pub fn attach(self) -> io::Result<Transport> {
        Ok(Transport { stream: TcpStream::from_std(self.stream)?, sealed: self.sealed })
    }
}

impl Transport {
    /// Takes the transport from its loop.
    ///
    /// # Errors
    /// The system's.
    pub fn detach(self) -> io::Result<DetachedTransport> {
        Ok(DetachedTransport { stream: self.stream.into_std()?, sealed: self.sealed })
    }

    /// Bytes that it may send and receive before others on its loop get their turn.
    pub fn turn_bytes_max(&self) -> usize {
        if self.sealed.is_some() { SEALED_TURN_BYTES } else { PLAIN_TURN_BYTES }
    }

    /// The session, where it is one of TLS.
    pub fn tls(&self) -> Option<&TlsSession> {
        self.sealed.as_ref().and_then(|sealed| sealed.session.tls())
    }

    /// The handshake of the session is over: it counts as one that lasts, if it is one of TLS.
    pub fn count_session(&mut self, handshakes: &Handshakes) {
        if let Some(sealed) = &mut self.sealed {
            sealed.counted = sealed.session.tls().map(|session| handshakes.done(session));
        }
    }

    /// Returns true if the handshake is not over.
    pub fn is_handshaking(&self) -> bool {
        self.sealed.as_ref().is_some_and(|sealed| sealed.session.is_handshaking())
    }

    /// Returns true if nothing is held: neither opened bytes that were not read, nor sealed bytes that were not sent.
    pub fn is_at_rest(&self) -> bool {
        self.sealed.as_ref().is_none_or(|held| held.sealed.is_empty() && held.opened.is_empty())
    }

    /// Returns true if the peer has everything that was sent, as far as this process can see.
    pub fn is_flushed(&self) -> bool {
        self.sealed.as_ref().is_none_or(|held| held.sealed.is_empty())
    }

    /// The socket beneath, for what is not data.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Ready when there may be something to read: the socket has, or a session holds it.
    pub fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.sealed {
            None => self.stream.poll_read_ready(context),
            Some(_) => Poll::Ready(Ok(())),
        }
    }

    /// Sends some of the bytes; how many. Those of a session count as sent when they are sealed: see
    /// [`poll_flush`](Self::poll_flush).
    pub fn poll_send(&mut self, bytes: &[u8], context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(sealed) = &mut self.sealed else {
            return Pin::new(&mut self.stream).poll_write(context, bytes);
        };
        ready!(sealed.poll_flush(&mut self.stream, context))?;
        let length = bytes.len().min(SEALED_AT_ONCE);
        sealed.seal(&bytes[..length])?;
        if let Poll::Ready(Err(error)) = sealed.poll_flush(&mut self.stream, context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(length))
    }

    /// Returns true if sent bytes are sealed, and so are copied in any case.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Sends some of the first `length` bytes of a file range, which are in memory, as they are; how many.
    ///
    /// # Panics
    /// Where what is sent is sealed.
    pub fn poll_send_file(
        &mut self,
        range: &FileRange,
        length: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        assert!(self.sealed.is_none(), "ranges of files are sent as they are on plain connections alone");
        match range.file.as_fd() {
            Some(file) => poll_sendfile(&self.stream, file, range.position, length, context),
            None => poll_copy(&mut self.stream, range, length, context),
        }
    }

    /// Sends what is sealed.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.sealed {
            Some(sealed) => sealed.poll_flush(&mut self.stream, context),
            None => Poll::Ready(Ok(())),
        }
    }

    /// Says that nothing more will be sent, as far as the socket takes it without waiting.
    pub fn say_goodbye(&mut self) {
        if let Some(held) = &mut self.sealed {
            held.say_goodbye();
            // The socket is closed in any case.
            let _ = self.stream.try_write(&held.sealed[held.sent..]);
        }
    }

    /// Sends bytes beside any session, as far as the socket takes them without waiting.
    pub fn say_unsealed(&self, bytes: &[u8]) {
        // The socket is closed in any case.
        let _ = self.stream.try_write(bytes);
    }

    /// Sends what is left, a last word of the session, and the end of the stream.
    pub fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(sealed) = &mut self.sealed {
            ready!(sealed.poll_flush(&mut self.stream, context))?;
            sealed.say_goodbye();
            ready!(sealed.poll_flush(&mut self.stream, context))?;
        }
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Transport { stream, sealed } = &mut *self;
        match sealed {
            Some(sealed) => sealed.poll_read(stream, context, into),
            None => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl Sealed {
    fn poll_read(
        &mut self,
        stream: &mut TcpStream,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.hand_over(into) && !self.is_peer_closed {
            let mut received = buffers::take();
            // No more than the reader takes, or what is opened would have to be kept.
            let free = into.remaining().clamp(1, BUFFER_BYTES);
            let filled = pin!(stream.read_buf(&mut (&mut received).limit(free))).poll(context);
            let result = match filled {
                Poll::Ready(Ok(1..)) => self.receive(&mut received),
                Poll::Ready(Ok(0)) => {
                    self.is_peer_closed = true;
                    Ok(())
                }
                Poll::Ready(Err(error)) => Err(error),
                Poll::Pending => {
                    buffers::give(received);
                    return Poll::Pending;
                }
            };
            buffers::give(received);
            // Also an alert that says what was wrong. If the socket does not take it now, its waker is kept.
            if let Poll::Ready(Err(error)) = self.poll_flush(stream, context) {
                return Poll::Ready(Err(result.err().unwrap_or(error)));
            }
            result?;
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the reader what is opened; whether there was any.
    fn hand_over(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let waiting = &self.opened[self.read..];
        let length = waiting.len().min(into.remaining());
        into.put_slice(&waiting[..length]);
        self.read += length;
        if self.read == self.opened.len() {
            buffers::give(std::mem::take(&mut self.opened));
            self.read = 0;
        }
        length > 0
    }

    fn receive(&mut self, received: &mut [u8]) -> io::Result<()> {
        if self.opened.capacity() == 0 {
            self.opened = buffers::take();
        }
        if self.sealed.capacity() == 0 {
            self.sealed = buffers::take();
        }
        let (session, sealed, opened) = (&mut self.session, &mut self.sealed, &mut self.opened);
        let state = match session.is_handshaking() {
            true => session.handshake(received, sealed, opened),
            false => session.open(received, sealed, opened),
        };
        self.is_peer_closed = state.map_err(of_session)? == TlsState::PeerClosed;
        Ok(())
    }

    fn seal(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.sealed.capacity() == 0 {
            self.sealed = buffers::take();
        }
        self.session.seal(bytes, &mut self.sealed).map_err(of_session)
    }

    fn say_goodbye(&mut self) {
        // What is only half sent would not be understood.
        let may_speak = self.sealed.is_empty() && !self.session.is_handshaking();
        if may_speak && !std::mem::replace(&mut self.has_ended, true) {
            // The connection ends in any case.
            let _ = self.session.close(&mut self.sealed);
        }
    }

    fn poll_flush(&mut self, stream: &mut TcpStream, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.sealed.len() {
            let sent = ready!(Pin::new(&mut *stream).poll_write(context, &self.sealed[self.sent..]))?;
            self.sent += sent;
        }
        self.sent = 0;
        buffers::give(std::mem::take(&mut self.sealed));
        Poll::Ready(Ok(()))
    }
}

impl<S: ?Sized> Drop for Sealed<S> {
    fn drop(&mut self) {
        buffers::give(std::mem::take(&mut self.opened));
        buffers::give(std::mem::take(&mut self.sealed));
    }
}

fn of_session(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Returns the error of the session in an I/O error, if it is one.
pub fn tls_error(error: &io::Error) -> Option<&TlsError> {
    error.get_ref()?.downcast_ref()
}

/// Appends bytes of the first `length` of a file range, at least one; how many.
pub fn read_range(range: &FileRange, length: usize, piece: &mut Vec<u8>) -> io::Result<usize> {
    let start = piece.len();
    piece.resize(start + length.min(SEALED_AT_ONCE), 0);
    let read = range.file.read_at(&mut piece[start..], range.position)?;
    // The file was cut below what a reader was promised: never a short frame, the connection ends.
    if read == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    piece.truncate(start + read);
    Ok(read)
}

/// Sends from a file that is not the kernel's.
fn poll_copy(
    stream: &mut TcpStream,
    range: &FileRange,
    length: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut piece = buffers::take();
    read_range(range, length, &mut piece)?;
    let sent = Pin::new(stream).poll_write(context, &piece);
    buffers::give(piece);
    sent
}

fn poll_sendfile(
    stream: &TcpStream,
    file: BorrowedFd<'_>,
    position: u64,
    length: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(stream.poll_write_ready(context))?;
        let send = || {
            let mut position = position;
            Ok(rustix::fs::sendfile(stream, file, Some(&mut position), length)?)
        };
        match stream.try_io(Interest::WRITABLE, send) {
            // The file was cut below what a reader was promised: never a short frame, the connection ends.
            Ok(0) => return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return Poll::Ready(other),
        }
    }
}
