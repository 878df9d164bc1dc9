//! The transport of a test's client: a socket, or a session on one. All of them block.

use std::io::{self, Error, ErrorKind, Read, Write};
use std::net::TcpStream;

use mainstem_security::tls::{TlsError, TlsSession, TlsState};

use super::scripted::XorStream;

/// A connection.
pub(super) enum Wire {
    Plain(TcpStream),
    Tls(Box<Session>),
    Xor(Box<XorStream>),
}

/// A session on a socket.
pub(super) struct Session {
    pub(super) stream: TcpStream,
    pub(super) tls: TlsSession,
    opened: Vec<u8>,
    is_peer_closed: bool,
}

impl Session {
    /// Makes the handshake, in pieces of at most so many bytes.
    pub(super) fn begin(mut stream: TcpStream, mut tls: TlsSession, piece: usize) -> io::Result<Session> {
        let (mut received, mut opened) = (Vec::new(), Vec::new());
        loop {
            let mut outgoing = Vec::new();
            let state = tls.handshake(&mut received, &mut outgoing, &mut opened);
            for part in outgoing.chunks(piece) {
                stream.write_all(part)?;
            }
            if state.map_err(of_session)? == TlsState::Open {
                return Ok(Session { stream, tls, opened, is_peer_closed: false });
            }
            received = read_some(&mut stream)?;
        }
    }
}

fn of_session(error: TlsError) -> Error {
    Error::new(ErrorKind::InvalidData, error)
}

fn read_some(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut received = vec![0; 16 * 1024];
    let length = stream.read(&mut received)?;
    if length == 0 {
        return Err(Error::from(ErrorKind::UnexpectedEof));
    }
    received.truncate(length);
    Ok(received)
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let session = match self {
            Wire::Plain(stream) => return stream.read(into),
            Wire::Xor(stream) => return stream.read(into),
            Wire::Tls(session) => session,
        };
        while session.opened.is_empty() && !session.is_peer_closed {
            let mut received = read_some(&mut session.stream)?;
            let mut outgoing = Vec::new();
            let state = session.tls.open(&mut received, &mut outgoing, &mut session.opened);
            session.stream.write_all(&outgoing)?;
            session.is_peer_closed = state.map_err(of_session)? == TlsState::PeerClosed;
        }
        let length = into.len().min(session.opened.len());
        into[..length].copy_from_slice(&session.opened[..length]);
        session.opened.drain(..length);
        Ok(length)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(bytes),
            Wire::Xor(stream) => stream.write(bytes),
            Wire::Tls(session) => {
                let mut sealed = Vec::new();
                session.tls.seal(bytes, &mut sealed).map_err(of_session)?;
                session.stream.write_all(&sealed)?;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
