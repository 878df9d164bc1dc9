//! Connections of clients: their limits, and the time limit of the first request.
//!
//! ```text
//! accepted ──▶ waiting ──first request──▶ served ──▶ gone
//!                 │ 10 s, or too many wait, or the publisher stops
//!                 └──────────────▶ ended
//! ```
//!
//! HTTP/2 and TLS wait for a silent peer without a limit, and the server waits for its connections when it ends. So each
//! socket is wrapped: without a request within [`FIRST_REQUEST_WITHIN`] its next read fails, and its connection ends.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::Stream;
use futures_util::task::AtomicWaker;
use mainstem_peers::{Shares, half};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

use super::link::Link;
use crate::peer_lines::PeerLines;
use crate::tls::ServerTls;

/// The most connections, within half of the descriptors that the process may open; the other half is for its journals. One
/// costs 15 KiB before its first request, and a descriptor.
const CONNECTIONS_MAX: usize = 4_096;
/// The most connections without a request. If one more comes, the one that has waited longest ends.
const WAITING_MAX: usize = 256;
/// The time limit of the first request, with all that comes before: TLS and the preface of HTTP/2.
const FIRST_REQUEST_WITHIN: Duration = Duration::from_secs(10);
/// The most connections of one peer without a request. If one more comes, its own that has waited longest ends.
const WAITING_OF_PEER_MAX: usize = WAITING_MAX / 2;
/// The wait after the system had no descriptor for a connection.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// The first byte of TLS: a handshake record.
const TLS_HANDSHAKE: u8 = 0x16;

/// Returns the most connections that the limit of descriptors allows.
fn most_by_descriptors() -> usize {
    use rustix::process::{Resource, getrlimit};
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(files / 2).unwrap_or(usize::MAX).clamp(1, CONNECTIONS_MAX)
}

/// All connections of a publisher.
#[derive(Debug)]
pub(super) struct Connections {
    /// The TLS configuration; none for plain text.
    tls: Option<Arc<ServerTls>>,
    most: usize,
    open: Mutex<Open>,
    lines: Arc<PeerLines>,
}

#[derive(Debug)]
struct Open {
    next: u64,
    /// The share of each peer, at most half.
    shares: Shares,
    /// By number, so by age.
    all: BTreeMap<u64, Arc<Peer>>,
    /// Connections without a request, and some that have made one since.
    waiting: VecDeque<u64>,
    /// A connection was refused since the last one ended.
    is_full: bool,
    has_stopped: bool,
}

/// The other end of a connection.
#[derive(Debug)]
pub(super) struct Peer {
    address: SocketAddr,
    of: mainstem_peers::Peer,
    /// It counts against the share of its peer.
    is_of_share: bool,
    /// Its certificates in DER, its own first.
    certificates: OnceLock<Vec<Vec<u8>>>,
    state: Mutex<State>,
    /// The task that reads from it.
    reader: AtomicWaker,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Served,
    /// Ended by this end, with the reason.
    Ended(&'static str),
}

/// The connection of a request.
#[derive(Debug, Clone)]
pub(super) struct PeerInfo(Arc<Peer>);

impl PeerInfo {
    pub(super) fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Returns the client's certificates; none without TLS, or if clients are not asked for any.
    pub(super) fn certificates(&self) -> Vec<Vec<u8>> {
        self.0.certificates.get().cloned().unwrap_or_default()
    }

    pub(super) fn shows(&self, certificates: Vec<Vec<u8>>) {
        // A connection has one handshake.
        let _ = self.0.certificates.set(certificates);
    }

    /// Notes that a request has come.
    pub(super) fn serve(&self) {
        let mut state = self.0.state.lock();
        if *state == State::Waiting {
            *state = State::Served;
        }
    }
}

impl Peer {
    fn end(&self, why: &'static str) {
        *self.state.lock() = State::Ended(why);
        self.reader.wake();
    }

    fn is_waiting(&self) -> bool {
        *self.state.lock() == State::Waiting
    }
}

impl Connections {
    pub(super) fn new(tls: Option<Arc<ServerTls>>, lines: Arc<PeerLines>) -> Arc<Connections> {
        Connections::with_most(most_by_descriptors(), tls, lines)
    }

    fn with_most(most: usize, tls: Option<Arc<ServerTls>>, lines: Arc<PeerLines>) -> Arc<Connections> {
        let open = Open {
            next: 0,
            shares: Shares::new(half(most)),
            all: BTreeMap::new(),
            waiting: VecDeque::new(),
            is_full: false,
            has_stopped: false,
        };
        Arc::new(Connections { tls, most, open: Mutex::new(open), lines })
    }

    /// Accepts the connections of a listener.
    pub(super) fn accept(
        self: Arc<Connections>,
        listener: TcpListener,
    ) -> impl Stream<Item = io::Result<Link>> {
        futures_util::stream::unfold((self, listener), |(connections, listener)| async move {
            let mut is_failing = false;
            loop {
                match listener.accept().await {
                    Ok((stream, address)) => {
                        if let Some(socket) = connections.admit(stream, address) {
                            let tls = connections.tls.as_ref().map(|tls| tls.config());
                            return Some((Ok(Link::new(socket, tls)), (connections, listener)));
                        }
                    }
                    Err(error) => {
                        // Logged once, not for every attempt.
                        if !std::mem::replace(&mut is_failing, true) {
                            tracing::warn!(
                                "a connection cannot be accepted: {error}; it is tried again every {ACCEPT_AGAIN:?}"
                            );
                        }
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                }
            }
        })
    }

    fn admit(self: &Arc<Connections>, stream: TcpStream, address: SocketAddr) -> Option<Socket> {
        // A failure costs latency alone.
        let _ = stream.set_nodelay(true);
        let mut open = self.open.lock();
        if open.has_stopped {
            return None;
        }
        let most = self.most;
        if open.all.len() >= most {
            if !std::mem::replace(&mut open.is_full, true) {
                tracing::warn!(
                    "{most} connections are open, which is the most; {address} and others are refused"
                );
            }
            return None;
        }
        let of = mainstem_peers::Peer::of(address.ip());
        // A loopback client, which may be a proxy, may have all.
        let is_of_share = !address.ip().is_loopback();
        if is_of_share && !open.shares.take(of) {
            let most = open.shares.most_of_one();
            drop(open);
            self.lines.warn(format_args!(
                "a connection of {address} is refused: {of} has {most}, which is the most for one peer"
            ));
            return None;
        }
        let peer = Arc::new(Peer {
            address,
            of,
            is_of_share,
            certificates: OnceLock::new(),
            state: Mutex::new(State::Waiting),
            reader: AtomicWaker::new(),
        });
        let number = open.next;
        open.next += 1;
        open.all.insert(number, peer.clone());
        open.waiting.push_back(number);
        open.end_oldest_waiting(of);
        drop(open);
        let due = Some(Box::pin(tokio::time::sleep(FIRST_REQUEST_WITHIN)));
        Some(Socket { stream, peer, number, due, first: None, failure: None, connections: self.clone() })
    }

    /// Ends connections without a request, and admits no more.
    pub(super) fn stop(&self) {
        let mut open = self.open.lock();
        open.has_stopped = true;
        open.all.values().filter(|peer| peer.is_waiting()).for_each(|peer| peer.end("the publisher stops"));
    }

    /// Ends all connections; returns their number.
    pub(super) fn end_all(&self) -> usize {
        let open = self.open.lock();
        open.all.values().for_each(|peer| peer.end("the publisher stops"));
        open.all.len()
    }
}

impl Open {
    /// Ends the connections that have waited longest, if too many wait: of one peer, or of all.
    fn end_oldest_waiting(&mut self, of: mainstem_peers::Peer) {
        let (all, waiting) = (&self.all, &mut self.waiting);
        let is_own = |number: &u64| {
            all.get(number).filter(|peer| peer.is_of_share && peer.of == of && peer.is_waiting())
        };
        let own: Vec<&Arc<Peer>> = waiting.iter().filter_map(is_own).collect();
        for peer in &own[..own.len().saturating_sub(WAITING_OF_PEER_MAX)] {
            peer.end("too many connections of its address wait for a first request");
        }
        if waiting.len() > WAITING_MAX {
            waiting.retain(|number| all.get(number).is_some_and(|peer| peer.is_waiting()));
        }
        while waiting.len() > WAITING_MAX
            && let Some(oldest) = waiting.pop_front()
            && let Some(peer) = all.get(&oldest)
        {
            peer.end("too many connections wait for a first request");
        }
    }
}

/// The socket of a connection.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    peer: Arc<Peer>,
    number: u64,
    /// The time limit of the first request; none once it has come.
    due: Option<Pin<Box<Sleep>>>,
    /// The first byte that came.
    first: Option<u8>,
    /// The reason why the TLS handshake has failed.
    failure: Option<String>,
    connections: Arc<Connections>,
}

impl Socket {
    pub(super) fn info(&self) -> PeerInfo {
        PeerInfo(self.peer.clone())
    }

    /// Notes why the TLS handshake has failed.
    pub(super) fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }

    /// Fails if this end has ended the connection.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let state = *self.peer.state.lock();
        match state {
            State::Served => self.due = None,
            State::Ended(why) => return Err(io::Error::new(io::ErrorKind::ConnectionAborted, why)),
            State::Waiting => {
                let is_due = self.due.as_mut().is_some_and(|due| due.as_mut().poll(context).is_ready());
                // A request that came just now is served.
                let mut state = self.peer.state.lock();
                if is_due && *state == State::Waiting {
                    let why = "no request came within 10 s";
                    *state = State::Ended(why);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
            }
        }
        Ok(())
    }

    /// Traces the write, for measurements.
    fn note(&self, written: &Poll<io::Result<usize>>) {
        if matches!(written, Poll::Ready(Ok(_))) {
            crate::stages::written(self.peer.address);
        }
    }

    /// Returns the reason why a connection has ended without a request; `None` if it needs no log line.
    fn why_unserved(&self) -> Option<String> {
        let is_tls = self.connections.tls.is_some();
        let why = match (*self.peer.state.lock(), self.first) {
            (State::Served, _) => None,
            (State::Ended("the publisher stops"), _) => None,
            (_, Some(first)) if is_tls && first != TLS_HANDSHAKE => {
                Some("it speaks no TLS, and TLS is served")
            }
            (_, Some(TLS_HANDSHAKE)) if !is_tls => Some("it speaks TLS, and plain text is served"),
            (State::Ended(why), _) => Some(why),
            (State::Waiting, Some(_)) => match &self.failure {
                Some(failure) => return Some(format!("the handshake of TLS has failed: {failure}")),
                None => Some("it sent no request of this protocol that could be read"),
            },
            // The client only checked that the port is open.
            (State::Waiting, None) => None,
        };
        why.map(str::to_owned)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(why) = self.why_unserved() {
            let peer = self.peer.address;
            let line = format_args!("the connection of {peer} has ended without a request: {why}");
            self.connections.lines.warn(line);
        }
        let mut open = self.connections.open.lock();
        open.all.remove(&self.number);
        if self.peer.is_of_share {
            open.shares.leave(self.peer.of);
        }
        open.is_full = false;
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Registered before the check, so that an end after it wakes the task.
        self.peer.reader.register(context.waker());
        self.check(context)?;
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.first.is_none() {
            self.first = buffer.filled().get(filled).copied();
        }
        read
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.note(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    #[tokio::test]
    async fn one_peer_takes_half_of_the_connections_and_another_one_is_served() {
        let connections = Connections::with_most(8, None, Arc::new(PeerLines::new()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = listener.local_addr().unwrap();
        let mut clients = Vec::new();
        let mut admit = async |address: &str| {
            clients.push(connect_from("127.0.0.1", to).await);
            let (stream, _) = listener.accept().await.unwrap();
            connections.admit(stream, SocketAddr::new(address.parse().unwrap(), 1))
        };
        let mut sockets = Vec::new();
        for host in 1..=4 {
            sockets.push(admit(&format!("2001:db8::{host}")).await.expect("it has its half"));
        }
        assert!(admit("2001:db8::5").await.is_none(), "a host has as many addresses as it likes");
        sockets.push(admit("192.0.2.1").await.expect("another peer"));
        for _ in 0..3 {
            sockets.push(admit("127.0.0.1").await.expect("this host may have all"));
        }
        assert!(admit("192.0.2.2").await.is_none(), "there are no more");
        drop(sockets);
        let open = connections.open.lock();
        assert!(open.shares.is_empty() && open.all.is_empty());
    }

    #[test]
    fn one_peer_ends_none_of_another_one_that_waits() {
        let mut open = Open {
            next: 0,
            shares: Shares::new(CONNECTIONS_MAX),
            all: BTreeMap::new(),
            waiting: VecDeque::new(),
            is_full: false,
            has_stopped: false,
        };
        let mut come = |address: &str| {
            let address: SocketAddr = address.parse().unwrap();
            let of = mainstem_peers::Peer::of(address.ip());
            let state = Mutex::new(State::Waiting);
            let (certificates, reader) = (OnceLock::new(), AtomicWaker::new());
            let peer = Arc::new(Peer { address, of, is_of_share: true, certificates, state, reader });
            open.all.insert(open.next, peer.clone());
            open.waiting.push_back(open.next);
            open.next += 1;
            open.end_oldest_waiting(of);
            peer
        };
        let other = come("192.0.2.1:1");
        let own: Vec<_> = (0..2 * WAITING_MAX).map(|n| come(&format!("[2001:db8::{n:x}]:1"))).collect();
        assert!(other.is_waiting(), "it was there first, and is another peer's");
        assert_eq!(own.iter().filter(|one| one.is_waiting()).count(), WAITING_OF_PEER_MAX);
    }
}
