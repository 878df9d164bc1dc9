//! The operator's HTTP listener: `/metrics` for Prometheus and `/health`.
//!
//! It has a thread of its own, from before the recovery of the logs on: however busy the event loops are, `/health`
//! is answered. `/health` takes no lock that is held during a wait for the disk. `/metrics` does, and is made on
//! another thread, one at a time.
//!
//! With `mainstem.http.authentication` it speaks TLS. A client without credentials sees only the status of `/health`.
//! A thread of its own, of low priority, checks passwords.

mod passwords;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use base64::prelude::{BASE64_STANDARD, Engine};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, header};
use mainstem_operator::{Service, serve, text};
use mainstem_security::{KafkaPrincipal, Secret};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, oneshot};

use crate::broker::Broker;
use crate::health::{Health, Serving};
use crate::metrics::{self, METRICS_LISTENER};
use mainstem_listener_security::TlsSettings;
use mainstem_net::transport::{DetachedTransport, Sealed, Transport};
use mainstem_runtime::supervised;
use passwords::{Passwords, Turn};

/// The listener's thread, which ends when this is dropped.
pub(crate) struct Operator {
    served: Arc<Served>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<mainstem_runtime::sync::Thread>,
}

/// State of the answers.
struct Served {
    health: Arc<Health>,
    /// The TLS settings, if clients have to authenticate.
    tls: Option<Arc<TlsSettings>>,
    /// The checker of passwords, if clients may use one.
    passwords: Option<Passwords>,
    /// The broker, once there is one.
    broker: OnceLock<Arc<Broker>>,
    /// Held while metrics are gathered.
    gathering: Mutex<()>,
}

impl Operator {
    /// Serves a socket, until this is dropped. There is no broker yet.
    ///
    /// # Errors
    /// The system's, when no thread or epoll instance can be made.
    pub(crate) fn start(
        socket: std::net::TcpListener,
        health: Arc<Health>,
        tls: Option<Arc<TlsSettings>>,
    ) -> io::Result<Self> {
        let passwords = tls.is_some().then(Passwords::start).transpose()?;
        let (broker, gathering) = (OnceLock::new(), Mutex::default());
        let served = Arc::new(Served { health, tls, passwords, broker, gathering });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(1)
            .build()?;
        let (stop, stopped) = oneshot::channel();
        let own = served.clone();
        let why = "health would not be answered any more";
        let thread = supervised::spawn_vital("operator", why, move || {
            runtime.block_on(async {
                tokio::select! {
                    () = accept(own, socket) => {}
                    // A dropped sender means the same.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Operator { served, stop: Some(stop), thread: Some(thread) })
    }

    /// Sets the broker for all answers from now on.
    pub(crate) fn tell_of(&self, broker: &Arc<Broker>) {
        // Each of these has one broker.
        let _ = self.served.broker.set(broker.clone());
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the process.
            let _ = thread.join();
        }
    }
}

async fn accept(served: Arc<Served>, socket: std::net::TcpListener) {
    match TcpListener::from_std(socket) {
        Ok(socket) => serve(socket, served).await,
        Err(error) => tracing::error!("the HTTP listener cannot be served: {error}"),
    }
}

/// The client of a request.
struct Client {
    host: IpAddr,
    /// Its certificate's principal, once the handshake is over.
    certificate: Arc<OnceLock<KafkaPrincipal>>,
}

/// A connection.
enum Stream {
    Plain(TcpStream),
    Encrypted(Box<Encrypted>),
}

/// A socket with a session of TLS on it.
struct Encrypted {
    transport: Transport,
    tls: Arc<TlsSettings>,
    /// The client's principal, once the handshake is over, if it has shown a certificate.
    certificate: Arc<OnceLock<KafkaPrincipal>>,
    is_open: bool,
}

impl Encrypted {
    fn begin(
        stream: TcpStream,
        tls: Arc<TlsSettings>,
        certificate: Arc<OnceLock<KafkaPrincipal>>,
    ) -> io::Result<Self> {
        let session = tls.session().map_err(io::Error::other)?;
        let transport = DetachedTransport::new(stream.into_std()?, Some(Sealed::begin(session))).attach()?;
        Ok(Encrypted { transport, tls, certificate, is_open: false })
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.transport).poll_read(context, into));
        if read.is_err() && self.transport.is_handshaking() {
            self.tls.handshakes().failed();
        }
        read?;
        if !self.is_open
            && let Some(session) = self.transport.tls().filter(|session| !session.is_handshaking())
        {
            let principal = session.principal(&self.tls.mapping()).map_err(io::Error::other)?;
            if session.peer_certificate().is_some() {
                // It is set once.
                let _ = self.certificate.set(principal);
            }
            let own = &mut *self;
            own.transport.count_session(own.tls.handshakes());
            own.is_open = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.transport.poll_send(bytes, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.transport.poll_shutdown(context)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Stream::Encrypted(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl Service for Served {
    type Stream = Stream;
    type Client = Client;

    fn open(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<(Stream, Client)> {
        let client = Client { host: peer.ip(), certificate: Arc::default() };
        let stream = match self.tls.clone() {
            None => Stream::Plain(stream),
            Some(tls) => {
                Stream::Encrypted(Box::new(Encrypted::begin(stream, tls, client.certificate.clone())?))
            }
        };
        Ok((stream, client))
    }

    async fn answer(&self, request: &Request<Incoming>, client: &Client) -> Response<Full<Bytes>> {
        let refused = self.refusal(request, client).await;
        match (request.uri().path(), refused) {
            ("/health", refused) => {
                let serving = self.broker.get().map(|broker| serving(broker));
                let (is_well, report) = self.health.report(serving.as_ref());
                let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                // Load balancers and orchestrators have no passwords.
                let report = if refused.is_none() { format!("{report}\n") } else { "{}\n".to_owned() };
                text(status, "application/json", report)
            }
            (_, Some(refused)) => refused,
            ("/metrics", None) => self.metrics().await,
            (_, None) => {
                text(StatusCode::NOT_FOUND, "text/plain", "There are /metrics and /health.\n".into())
            }
        }
    }
}

impl Served {
    /// The refusal of a client that does not authenticate, or may not describe the cluster; none if it may be answered.
    async fn refusal(&self, request: &Request<Incoming>, client: &Client) -> Option<Response<Full<Bytes>>> {
        self.tls.as_ref()?;
        let Some(broker) = self.broker.get().cloned() else {
            return Some(text(
                StatusCode::SERVICE_UNAVAILABLE,
                "text/plain",
                "Not yet: see /health.\n".into(),
            ));
        };
        let principal = match (client.certificate.get().cloned(), credentials(request)) {
            (Some(principal), _) => principal,
            (None, None) => return Some(Refusal::NoUser.response()),
            (None, Some(login)) => match self.log_in(&broker, client.host.to_canonical(), login).await {
                Ok(principal) => principal,
                Err(refusal) => return Some(refusal.response()),
            },
        };
        let authorization = broker.security.authorization();
        if authorization.is_none_or(|rules| rules.may_describe_cluster(&principal, client.host)) {
            return None;
        }
        let why = format!("{principal} may not Describe the cluster.\n");
        Some(text(StatusCode::FORBIDDEN, "text/plain", why))
    }

    /// The user of a name and a password, or the reason why there is none.
    async fn log_in(
        &self,
        broker: &Arc<Broker>,
        address: IpAddr,
        login: (String, Secret),
    ) -> Result<KafkaPrincipal, Refusal> {
        let passwords = self.passwords.as_ref().ok_or(Refusal::NoUser)?;
        let turn = passwords.turn(address).ok_or(Refusal::TooMany)?;
        let (user, turn) = passwords.check(turn, broker.clone(), login).await.ok_or(Refusal::NoUser)?;
        let counts = broker.net.counters.authentications.of(METRICS_LISTENER);
        if let Some(user) = user {
            counts.succeeded(false);
            return Ok(user);
        }
        counts.failed(false);
        if broker.net.unauthenticated.may_log_refusal(broker.clock.instant()) {
            tracing::warn!(peer = %address, "a request for metrics was refused: it has no user's password");
        }
        Self::hold_back(broker, turn).await;
        Err(Refusal::NoUser)
    }

    /// Waits for the delay of a refusal, which slows down guessing. The turn is kept even if the client does not wait.
    async fn hold_back(broker: &Broker, turn: Turn) {
        let (clock, delay) = (broker.clock.clone(), broker.config().authentication.failed_delay);
        let passing = tokio::spawn(async move {
            clock.sleep(delay).await;
            drop(turn);
        });
        // The task is not ended before the listener is.
        let _ = passing.await;
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

/// The reason why a client is not authenticated.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// It has not sent the name and the password of a user.
    NoUser,
    /// Its address has as many passwords in progress as it may.
    TooMany,
}

impl Refusal {
    fn response(self) -> Response<Full<Bytes>> {
        let (status, why, header, value) = match self {
            Refusal::NoUser => (
                StatusCode::UNAUTHORIZED,
                "A user and its password are needed.\n",
                header::WWW_AUTHENTICATE,
                "Basic realm=\"mainstem\", charset=\"UTF-8\"",
            ),
            Refusal::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                "Other passwords of this address are being checked, or were refused a moment ago: try again.\n",
                header::RETRY_AFTER,
                "1",
            ),
        };
        let mut refused = text(status, "text/plain", why.into());
        refused.headers_mut().insert(header, header::HeaderValue::from_static(value));
        refused
    }
}

/// The name and the password of a request (RFC 7617).
fn credentials(request: &Request<Incoming>) -> Option<(String, Secret)> {
    let value = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = value.split_once(' ')?;
    let decoded =
        BASE64_STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let (name, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((name.to_owned(), Secret::from(password.to_owned())))
}

/// The parts of a broker that its health depends on.
pub(crate) fn serving(broker: &Broker) -> Serving<'_> {
    Serving { store: &broker.store, cluster: broker.cluster.as_deref(), security: &broker.security }
}
