//! The operator's HTTP listener: `/metrics` for Prometheus and `/health`.
//!
//! It has a thread of its own and is there before the logs are recovered: whatever keeps the event loops busy, `/health`
//! is answered. It takes no lock that is held while something waits for the disk. `/metrics` does, and is made on another
//! thread, one at a time.
//!
//! A connection is for one request. When all seats are taken the oldest connection goes: one that has not asked yet
//! before one that is answered. A newcomer never waits.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};
use tokio::task::AbortHandle;

use crate::broker::Broker;
use crate::health::Health;
use crate::metrics;
use crate::net::listener::ACCEPT_PAUSE;
use crate::supervised::AbortOnPanic;

/// Connections at the same time.
const CONNECTIONS_MAX: usize = 64;

/// A request's header has to arrive in this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(3);

/// A connection's answer has to be read in this time.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);

/// The listener's thread, which ends when this is dropped.
pub(crate) struct Operator {
    served: Arc<Served>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// What is told.
struct Served {
    health: Arc<Health>,
    /// Once there is one.
    broker: OnceLock<Arc<Broker>>,
    /// Held while metrics are gathered.
    gathering: Mutex<()>,
}

impl Operator {
    /// Serves a socket, until this is dropped. There is no broker yet.
    ///
    /// # Errors
    /// The system's, when no thread or epoll instance can be made.
    pub(crate) fn start(socket: std::net::TcpListener, health: Arc<Health>) -> io::Result<Self> {
        let served = Arc::new(Served { health, broker: OnceLock::new(), gathering: Mutex::default() });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let own = served.clone();
        let thread = std::thread::Builder::new().name("operator".into()).spawn(move || {
            let _guard = AbortOnPanic("health would not be answered any more");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(own, socket) => {}
                    // A sender that is dropped says the same.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Operator { served, stop: Some(stop), thread: Some(thread) })
    }

    /// From now on it is this broker of which is told.
    pub(crate) fn tell_of(&self, broker: &Arc<Broker>) {
        // There is one broker for each of these.
        let _ = self.served.broker.set(broker.clone());
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended the process.
            let _ = thread.join();
        }
    }
}

/// The connections that are there, the oldest first.
#[derive(Default)]
struct Seats(VecDeque<Seat>);

struct Seat {
    task: AbortHandle,
    has_asked: Arc<AtomicBool>,
}

impl Seats {
    /// Makes room for one more.
    fn make_room(&mut self) {
        self.0.retain(|seat| !seat.task.is_finished());
        while self.0.len() >= CONNECTIONS_MAX {
            let idle = self.0.iter().position(|seat| !seat.has_asked.load(Ordering::Relaxed));
            if let Some(seat) = self.0.remove(idle.unwrap_or(0)) {
                seat.task.abort();
            }
        }
    }
}

async fn accept(served: Arc<Served>, socket: std::net::TcpListener) {
    let socket = match TcpListener::from_std(socket) {
        Ok(socket) => socket,
        Err(error) => return tracing::error!("the HTTP listener cannot be served: {error}"),
    };
    let mut seats = Seats::default();
    loop {
        let Ok((stream, _)) = socket.accept().await else {
            tokio::time::sleep(ACCEPT_PAUSE).await;
            continue;
        };
        seats.make_room();
        let has_asked = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(answer(served.clone(), stream, has_asked.clone())).abort_handle();
        seats.0.push_back(Seat { task, has_asked });
        // Those that were accepted before are read from first.
        tokio::task::yield_now().await;
    }
}

async fn answer(served: Arc<Served>, stream: TcpStream, has_asked: Arc<AtomicBool>) {
    let service = service_fn(|request: Request<Incoming>| {
        has_asked.store(true, Ordering::Relaxed);
        let served = served.clone();
        async move { Ok::<_, Infallible>(served.route(request.method(), request.uri().path()).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // A scraper that goes away early is its own affair.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

impl Served {
    async fn route(self: Arc<Self>, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            let mut refused =
                text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "Nothing is changed here: GET.\n".into());
            refused.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("GET, HEAD"));
            return refused;
        }
        match path {
            "/metrics" => self.metrics().await,
            "/health" => {
                let (is_well, report) = self.health.report(self.broker.get().map(Arc::as_ref));
                let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                text(status, "application/json", format!("{report}\n"))
            }
            _ => text(StatusCode::NOT_FOUND, "text/plain", "There are /metrics and /health.\n".into()),
        }
    }

    async fn metrics(&self) -> Response<Full<Bytes>> {
        let Some(broker) = self.broker.get().cloned() else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", "Not yet: see /health.\n".into());
        };
        let _turn = self.gathering.lock().await;
        match tokio::task::spawn_blocking(move || metrics::exposition(&broker)).await {
            Ok(exposed) => text(StatusCode::OK, "text/plain; version=0.0.4", exposed),
            Err(error) => {
                tracing::error!("the metrics could not be gathered: {error}");
                text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "The log says why.\n".into())
            }
        }
    }
}

fn text(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
