//! The listener and its connections.
//!
//! A connection is for one request, GET or HEAD. A new connection never waits. If the most connections are open, it replaces the
//! oldest one without a request, or else the oldest of all. A peer may have half of them; beyond that, a new connection of
//! it replaces one of its own.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use mainstem_peers::{Peer, half};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;

/// The most connections at the same time.
const CONNECTIONS_MAX: usize = 64;

/// A request's header has to arrive in this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection's answer has to be read in this time.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The pause after a connection could not be accepted, mostly because descriptors are used up.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The answers of a listener.
pub trait Service: Send + Sync + 'static {
    /// A connection, such as a session of TLS over it.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    /// The properties of the client that are known.
    type Client: Send + Sync + 'static;

    /// Begins a connection.
    ///
    /// # Errors
    /// The reason why there is none; the connection is closed then.
    fn open(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<(Self::Stream, Self::Client)>;

    /// Answers a GET or HEAD; the body of an answer to the latter is left out.
    fn answer(
        &self,
        request: &Request<Incoming>,
        client: &Self::Client,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// The open connections, the oldest first. They end when it is dropped.
#[derive(Default)]
struct OpenConnections(VecDeque<OpenConnection>);

struct OpenConnection {
    peer: Peer,
    task: AbortHandle,
    has_asked: Arc<AtomicBool>,
}

impl OpenConnections {
    /// Closes connections until one more of this peer may be opened.
    fn close_beyond_limits(&mut self, peer: Peer) {
        self.0.retain(|one| !one.task.is_finished());
        while self.0.iter().filter(|one| one.peer == peer).count() >= half(CONNECTIONS_MAX) {
            self.end_oldest(|one| one.peer == peer);
        }
        while self.0.len() >= CONNECTIONS_MAX {
            self.end_oldest(|_| true);
        }
    }

    /// Closes the oldest of the connections that count, of which there is one.
    fn end_oldest(&mut self, counts: impl Fn(&OpenConnection) -> bool) {
        let is_idle = |one: &OpenConnection| !one.has_asked.load(Ordering::Relaxed);
        let idle = self.0.iter().position(|one| counts(one) && is_idle(one));
        let oldest = idle.or_else(|| self.0.iter().position(counts));
        if let Some(one) = oldest.and_then(|at| self.0.remove(at)) {
            one.task.abort();
        }
    }
}

impl Drop for OpenConnections {
    fn drop(&mut self) {
        self.0.iter().for_each(|one| one.task.abort());
    }
}

/// Answers at a listener until this is dropped, each connection in a task of its own.
pub async fn serve<S: Service>(listener: TcpListener, service: Arc<S>) {
    let mut connections = OpenConnections::default();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let peer = Peer::of(address.ip());
        connections.close_beyond_limits(peer);
        let has_asked = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(converse(service.clone(), stream, address, has_asked.clone())).abort_handle();
        connections.0.push_back(OpenConnection { peer, task, has_asked });
        // Connections that were accepted before are read from first.
        tokio::task::yield_now().await;
    }
}

async fn converse<S: Service>(
    service: Arc<S>,
    stream: TcpStream,
    peer: SocketAddr,
    has_asked: Arc<AtomicBool>,
) {
    let Ok((stream, client)) = service.open(stream, peer) else { return };
    let client = Arc::new(client);
    let answers = service_fn(|request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        let (service, client) = (service.clone(), client.clone());
        async move {
            Ok::<_, Infallible>(match *request.method() {
                Method::GET | Method::HEAD => service.answer(&request, &client).await,
                _ => not_allowed(),
            })
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).keep_alive(false).header_read_timeout(HEADER_TIMEOUT);
    let conversation = http.serve_connection(TokioIo::new(stream), answers);
    // A scraper may go away early.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, conversation).await;
}

fn not_allowed() -> Response<Full<Bytes>> {
    let mut refused =
        text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "Nothing is changed here: GET.\n".into());
    refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
    refused
}

/// A short answer.
pub fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Hello;

    impl Service for Hello {
        type Stream = TcpStream;
        type Client = SocketAddr;

        fn open(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
            Ok((stream, peer))
        }

        async fn answer(&self, request: &Request<Incoming>, client: &SocketAddr) -> Response<Full<Bytes>> {
            let said = format!("{} {}\n", client.ip(), request.uri().path());
            text(StatusCode::OK, "text/plain", said)
        }
    }

    async fn asked(stream: &mut TcpStream, line: &str) -> String {
        stream.write_all(format!("{line} HTTP/1.1\r\nhost: here\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn listening() -> (SocketAddr, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (address, tokio::spawn(serve(listener, Arc::new(Hello))))
    }

    #[tokio::test]
    async fn a_request_is_answered_and_nothing_is_changed() {
        let (address, _serving) = listening().await;
        let connect = || TcpStream::connect(address);
        let answer = asked(&mut connect().await.unwrap(), "GET /how").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("\r\n\r\n127.0.0.1 /how\n"),
            "{answer}"
        );
        let head = asked(&mut connect().await.unwrap(), "HEAD /how").await;
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
        let post = asked(&mut connect().await.unwrap(), "POST /how").await;
        assert!(post.starts_with("HTTP/1.1 405") && post.contains("allow: GET, HEAD"), "{post}");
    }

    #[tokio::test]
    async fn who_says_nothing_takes_no_place_of_who_asks() {
        let (address, _serving) = listening().await;
        let mut silent = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let answer = asked(&mut TcpStream::connect(address).await.unwrap(), "GET /").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        // The first ones have gone for that.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
    }

    /// Connects from an address of this machine.
    async fn connect_from(from: &str, to: SocketAddr) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
        socket.connect(to).await.unwrap()
    }

    /// Answers nothing at `/wait`.
    struct Slow;

    impl Service for Slow {
        type Stream = TcpStream;
        type Client = ();

        fn open(&self, stream: TcpStream, _: SocketAddr) -> io::Result<(TcpStream, ())> {
            Ok((stream, ()))
        }

        async fn answer(&self, request: &Request<Incoming>, (): &()) -> Response<Full<Bytes>> {
            if request.uri().path() == "/wait" {
                std::future::pending::<()>().await;
            }
            text(StatusCode::OK, "text/plain", "here\n".into())
        }
    }

    #[tokio::test]
    async fn one_peer_closes_no_connection_of_another_one_that_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let _serving = tokio::spawn(serve(listener, Arc::new(Slow)));
        // It waits for its answer while another peer opens more connections than may be open.
        let mut waits = connect_from("127.0.0.2", address).await;
        waits.write_all(b"GET /wait HTTP/1.1\r\nhost: here\r\n\r\n").await.unwrap();
        let mut others = Vec::new();
        for _ in 0..3 * CONNECTIONS_MAX {
            let mut other = connect_from("127.0.0.1", address).await;
            let _ = other.write_all(b"GET /wait HTTP/1.1\r\nhost: here\r\n\r\n").await;
            others.push(other);
        }
        // Those beyond its share have gone: what was accepted before the last one was looked at.
        let ends = others.len() - CONNECTIONS_MAX;
        for other in &mut others[..ends] {
            assert_eq!(other.read(&mut [0]).await.unwrap_or(0), 0);
        }
        assert!(
            tokio::time::timeout(Duration::ZERO, waits.read(&mut [0])).await.is_err(),
            "the one of the other peer is there"
        );
        assert!(asked(&mut connect_from("127.0.0.2", address).await, "GET /").await.ends_with("here\n"));
    }

    #[tokio::test]
    async fn connections_end_with_the_service() {
        let (address, serving) = listening().await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        // One that is answered later was accepted after it.
        asked(&mut TcpStream::connect(address).await.unwrap(), "GET /").await;
        serving.abort();
        assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
    }
}
