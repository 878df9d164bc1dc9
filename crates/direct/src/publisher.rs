//! The publisher: serves journals as streams.

mod connections;
mod link;
mod places;
mod replay;

use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::Stream as FuturesStream;
use mainstem_lines::{OneLine, Sentence};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tonic::metadata::MetadataMap;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use crate::chunk::{Transform, Transformed};
use crate::error::{DirectError, Result, causes};
use crate::journal::Journal;
use crate::member::{AskManage, Granted};
use crate::past::Past;
use crate::peer_lines::PeerLines;
use crate::proto::publisher_server::{Publisher as Service, PublisherServer};
use crate::proto::{self, FromConsumer, from_consumer};
use crate::session::{ALIVE_EVERY, DEAD_AFTER, Session};
use crate::stages::Frames;
use crate::stream::Stream;
use crate::tls::{Pem, ServerPem, ServerTls};
use connections::{Connections, PeerInfo};
use places::{Bounded, CALL_WITHIN, CALLS_MAX, Places, SESSIONS_MAX};
use replay::{REPLAYS_MAX, Replaying};

/// Frames of consumers are small: a filter, or finished ranges.
const INBOUND_BYTES_MAX: usize = 128 << 10;
/// The most bytes that a client may have sent and that are not read, by call and by connection: the windows of HTTP/2 towards the
/// publisher. Consumers choose those towards them.
const CALL_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// The most subscriptions of one connection.
const STREAMS_OF_CONNECTION_MAX: u32 = 1_024;
/// The interval at which consumers' positions are written.
const KEEP_EVERY: Duration = Duration::from_millis(100);
/// The interval at which they are synced: a power cut repeats what was done since.
const SYNC_EVERY: Duration = Duration::from_secs(5);
/// The interval at which files of certificates are checked for changes.
const LOOK_AT_FILES_EVERY: Duration = Duration::from_secs(1);
/// The time limit for `Open` on a new subscription.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// The time in which the last frames of ended subscriptions may be read. Then their connections end.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);

/// A call that asks for authorization.
#[derive(Debug)]
pub struct Access<'a> {
    /// The kind of the call.
    pub call: Call,
    /// The stream; empty where all are asked for.
    pub stream: &'a str,
    /// The consumer; empty where none is named.
    pub consumer: &'a str,
    /// The metadata of the call.
    pub metadata: &'a MetadataMap,
    /// The client's certificates in DER, its own first; none without TLS, or without one.
    pub certificates: Vec<Vec<u8>>,
}

/// The kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Reads events, new ones or a replay.
    Subscribe,
    /// Lists streams and consumers.
    Describe,
    /// Changes a consumer, from outside or as one of its instances ([`Consumer::keep_filter`](crate::Consumer::keep_filter)).
    Manage,
}

/// The rights of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Grant {
    /// Everything that it asks for.
    Everything,
    /// Only events that pass; the consumer cannot widen it.
    Only(proto::Filter),
}

type Judge = dyn Fn(&Access<'_>) -> Result<Grant, String> + Send + Sync;

/// Serves journals as streams.
///
/// ```no_run
/// use mainstem_direct::{Journal, Publisher};
///
/// # async fn serve() -> mainstem_direct::Result<()> {
/// let cart = Journal::open("cart")?;
/// Publisher::new().stream(&cart).serve("127.0.0.1:8101").await
/// # }
/// ```
#[derive(Default)]
#[must_use = "a publisher serves nothing before it is started"]
pub struct Publisher {
    streams: Vec<(Journal, Option<String>, Option<Arc<Transform>>)>,
    /// Certificate and key.
    tls: Option<(Pem, Pem)>,
    client_authorities: Option<Pem>,
    is_insecure: bool,
    judge: Option<Arc<Judge>>,
    sessions_max: Option<usize>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let streams: Vec<&str> = self.streams.iter().map(|(journal, ..)| journal.name()).collect();
        f.debug_struct("Publisher").field("streams", &streams).finish_non_exhaustive()
    }
}

impl Publisher {
    /// A publisher without streams.
    pub fn new() -> Publisher {
        Publisher::default()
    }

    /// Serves a journal, under its own name.
    pub fn stream(mut self, journal: &Journal) -> Publisher {
        self.streams.push((journal.clone(), None, None));
        self
    }

    /// Serves a journal under another name, transformed for consumers. `transform` makes the event that they see, or leaves it
    /// out. It runs once per event however many consumers there are. Its consumers are not those of the journal's other streams,
    /// so a journal can be served only once.
    pub fn transformed(
        mut self,
        journal: &Journal,
        name: impl Into<String>,
        transform: impl Fn(&mainstem_queue::Record<'_>) -> Option<Transformed> + Send + Sync + 'static,
    ) -> Publisher {
        self.streams.push((journal.clone(), Some(name.into()), Some(Arc::new(transform))));
        self
    }

    /// Serves by TLS: a certificate with those that lead to its authority, and its key, in PEM.
    pub fn tls(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Publisher {
        self.tls = Some((Pem::Text(certificate.into()), Pem::Text(key.into())));
        self
    }

    /// The same, from files. They are read again within some seconds of a change, for new connections. If they cannot be
    /// used, the last usable contents are, and the log says why.
    pub fn tls_files(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Publisher {
        self.tls = Some((Pem::File(certificate.into()), Pem::File(key.into())));
        self
    }

    /// Asks clients for certificates of these authorities, in PEM. It needs [`Publisher::tls`].
    pub fn client_authorities(mut self, authorities: impl Into<Vec<u8>>) -> Publisher {
        self.client_authorities = Some(Pem::Text(authorities.into()));
        self
    }

    /// The same, from a file, which is read again as those of [`Publisher::tls_files`].
    pub fn client_authorities_file(mut self, authorities: impl Into<PathBuf>) -> Publisher {
        self.client_authorities = Some(Pem::File(authorities.into()));
        self
    }

    /// Allows an address beyond this machine without TLS.
    pub fn insecure(mut self) -> Publisher {
        self.is_insecure = true;
        self
    }

    /// Authorizes each call by a function, which refuses with a reason, or grants what may be seen.
    pub fn authorize(
        mut self,
        judge: impl Fn(&Access<'_>) -> Result<Grant, String> + Send + Sync + 'static,
    ) -> Publisher {
        self.judge = Some(Arc::new(judge));
        self
    }

    /// Limits the instances that are served at one time, of all streams together: 4,096 by default, at least 1. Others are refused until
    /// one leaves, and try again. If the limit is above 16, one address (of IPv6, one network of 64 bits) may have half.
    pub fn sessions_max(mut self, sessions_max: usize) -> Publisher {
        self.sessions_max = Some(sessions_max.max(1));
        self
    }

    /// Serves at `HOST:PORT` until the future is dropped or serving fails.
    ///
    /// # Errors
    /// As [`Publisher::start`].
    pub async fn serve(self, address: &str) -> Result<()> {
        self.start(address).await?.wait().await
    }

    /// Serves at `HOST:PORT` in the background; port 0 chooses a free one.
    ///
    /// # Errors
    /// - [`DirectError::Invalid`] if there is no stream, or if two have one name or one journal.
    /// - [`DirectError::Exposed`] if the address is beyond this machine without TLS.
    /// - [`DirectError::Invalid`] if the certificate cannot be used, or if client certificates are wanted without TLS.
    /// - [`DirectError::Bind`].
    /// - The errors of opening the stored consumers.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(self, address: &str) -> Result<Serving> {
        let tls = self.server_tls()?;
        let streams = self.open_streams()?;
        let judge = self.judge;
        let sessions_max = self.sessions_max.unwrap_or(SESSIONS_MAX);
        let at = resolve(address)?;
        if !at.ip().is_loopback() && tls.is_none() && !self.is_insecure {
            return Err(DirectError::Exposed { address: address.to_owned() });
        }
        let bind = |source| DirectError::Bind { address: address.to_owned(), source };
        let listener = TcpListener::bind(at).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let (stop, stops) = watch::channel(false);
        let shared = Arc::new(Shared {
            streams,
            judge,
            sessions: Places::new(sessions_max, "instances are connected to this publisher"),
            replays: Places::new(REPLAYS_MAX, "replays are under way"),
            stops: stops.clone(),
            lines: Arc::new(PeerLines::new()),
        });
        let server = Server::builder()
            .http2_keepalive_interval(Some(ALIVE_EVERY))
            .http2_keepalive_timeout(Some(DEAD_AFTER - ALIVE_EVERY))
            .max_concurrent_streams(STREAMS_OF_CONNECTION_MAX)
            .initial_stream_window_size(CALL_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let connections = Connections::new(tls.clone(), shared.lines.clone());
        let service = PublisherServer::from_arc(shared.clone()).max_decoding_message_size(INBOUND_BYTES_MAX);
        let service = Bounded::new(service, CALLS_MAX, CALL_WITHIN);
        let (incoming, mut is_stopped) = (connections.clone().accept(listener), stops.clone());
        let stopping = connections.clone();
        let served = server.serve_with_incoming_shutdown(service, incoming, async move {
            // The sender is dropped with the server.
            let _ = is_stopped.wait_for(|stops| *stops).await;
            stopping.stop();
        });
        let mut is_stopped = stops;
        let drained = async move {
            let _ = is_stopped.wait_for(|stops| *stops).await;
            tokio::time::sleep(DRAIN_WITHIN).await;
        };
        let task = tokio::spawn(async move {
            let (mut served, mut drained) = (std::pin::pin!(served), std::pin::pin!(drained));
            let mut is_drained = false;
            let mut every = tokio::time::interval(KEEP_EVERY);
            every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut syncs = tokio::time::interval(SYNC_EVERY);
            syncs.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut looks = tokio::time::interval(LOOK_AT_FILES_EVERY);
            looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            let mut syncing = JoinSet::new();
            let ended = loop {
                tokio::select! {
                    ended = &mut served => break ended,
                    () = &mut drained, if !is_drained => {
                        is_drained = true;
                        let left = connections.end_all();
                        tracing::warn!("{left} connections have not ended within {DRAIN_WITHIN:?} and are cut");
                    }
                    _ = every.tick() => shared.tick(),
                    _ = looks.tick(), if tls.is_some() => {
                        let tls = tls.clone();
                        // On another thread, as syncs are, so that a disk that hangs does not hold up what is served.
                        drop(tokio::task::spawn_blocking(move || tls.iter().for_each(|tls| tls.look())));
                    }
                    _ = syncs.tick() => {
                        let shared = shared.clone();
                        // Its errors are in the log.
                        while syncing.try_join_next().is_some() {}
                        syncing.spawn_blocking(move || shared.sync());
                    }
                }
            };
            // The tasks of ended connections, and syncs under way, have the journals open a moment longer.
            let are_closed = async {
                shared.sessions.all_free().await;
                shared.replays.all_free().await;
                while syncing.join_next().await.is_some() {}
            };
            if tokio::time::timeout(DRAIN_WITHIN, are_closed).await.is_err() {
                tracing::warn!(
                    "calls have not ended within {DRAIN_WITHIN:?}: the journals stay open until they do"
                );
            }
            shared.tick();
            shared.sync();
            ended.map_err(|error| DirectError::Unreachable {
                address: address.to_string(),
                reason: causes(&error),
            })
        });
        tracing::info!("streams are served at {address}");
        Ok(Serving { address, stop, task: Some(task) })
    }

    fn server_tls(&self) -> Result<Option<Arc<ServerTls>>> {
        let Some((certificate, key)) = self.tls.clone() else {
            return match self.client_authorities {
                None => Ok(None),
                Some(_) => Err(DirectError::Invalid(
                    "clients can be asked for certificates by TLS alone; give the publisher its own (Publisher::tls)".to_owned(),
                )),
            };
        };
        let pem = ServerPem { certificate, key, client_authorities: self.client_authorities.clone() };
        let tls = ServerTls::new(pem).map_err(|reason| {
            DirectError::Invalid(format!("the certificate or its key cannot be used: {reason}"))
        })?;
        Ok(Some(Arc::new(tls)))
    }

    fn open_streams(&self) -> Result<Vec<Arc<Stream>>> {
        if self.streams.is_empty() {
            return Err(DirectError::Invalid(
                "the publisher has no stream; add one (Publisher::stream)".to_owned(),
            ));
        }
        let past = Arc::<Past>::default();
        let mut streams: Vec<Arc<Stream>> = Vec::new();
        for (journal, name, transform) in &self.streams {
            let name = name.clone().unwrap_or_else(|| journal.name().to_owned());
            if streams.iter().any(|one| one.name() == name) {
                return Err(DirectError::Invalid(format!(
                    "two streams have the name {name}; name one otherwise"
                )));
            }
            if streams.iter().any(|one| one.journal().directory() == journal.directory()) {
                let directory = journal.directory().display();
                return Err(DirectError::Invalid(format!(
                    "{directory} is served by two streams, which one can have"
                )));
            }
            streams.push(Arc::new(Stream::new(journal.clone(), name, transform.clone(), past.clone())?));
        }
        let patterns = crate::pipeline_cache::Patterns::default();
        streams.iter().for_each(|stream| stream.pipelines().count_among(&patterns));
        Ok(streams)
    }
}

/// Returns the address to serve at. Of several addresses of a name a loopback one comes first.
fn resolve(address: &str) -> Result<SocketAddr> {
    let bind = |source| DirectError::Bind { address: address.to_owned(), source };
    let mut all: Vec<SocketAddr> = address.to_socket_addrs().map_err(bind)?.collect();
    all.sort_by_key(|one| (!one.ip().is_loopback(), matches!(one.ip(), IpAddr::V6(_))));
    all.first().copied().ok_or_else(|| bind(std::io::ErrorKind::AddrNotAvailable.into()))
}

/// A publisher that serves until this is dropped.
#[derive(Debug)]
pub struct Serving {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<Result<()>>>,
}

impl Serving {
    /// The address that is served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all subscriptions, which consumers resume at the next publisher. When it returns, nothing of the publisher has a journal
    /// open.
    ///
    /// # Errors
    /// The reason why it had ended before.
    pub async fn stop(mut self) -> Result<()> {
        self.stop.send_replace(true);
        self.ended().await
    }

    /// Waits until serving ends.
    ///
    /// # Errors
    /// The reason why it has ended.
    pub async fn wait(mut self) -> Result<()> {
        self.ended().await
    }

    async fn ended(&mut self) -> Result<()> {
        let Some(task) = &mut self.task else { return Ok(()) };
        match task.await {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Ok(()),
            },
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Dropping the future of `serve` ends the publisher.
        self.stop.send_replace(true);
    }
}

/// The certificates that the client of a request has shown.
fn certificates_of<T>(request: &Request<T>) -> Vec<Vec<u8>> {
    request.extensions().get::<PeerInfo>().map(PeerInfo::certificates).unwrap_or_default()
}

struct Shared {
    streams: Vec<Arc<Stream>>,
    judge: Option<Arc<Judge>>,
    /// Places for instances.
    sessions: Places,
    /// Places for replays.
    replays: Places,
    stops: watch::Receiver<bool>,
    lines: Arc<PeerLines>,
}

impl Shared {
    fn tick(&self) {
        let is_stopping = *self.stops.borrow();
        for subscription in self.streams.iter().flat_map(|stream| stream.subscriptions()) {
            match is_stopping {
                false => subscription.tick(),
                true => subscription.keep_changes(),
            }
        }
    }

    /// Syncs the stored consumers.
    fn sync(&self) {
        self.streams.iter().flat_map(|stream| stream.subscriptions()).for_each(|one| one.sync());
    }

    fn stream(&self, name: &str) -> Result<&Arc<Stream>, Status> {
        self.streams.iter().find(|stream| stream.name() == name).ok_or_else(|| {
            let known: Vec<&str> = self.streams.iter().map(|stream| stream.name()).collect();
            let known = known.join(", ");
            Status::not_found(format!("there is no stream {:?} here, but {}", OneLine(name), OneLine(&known)))
        })
    }

    fn judge<T>(
        &self,
        request: &Request<T>,
        call: Call,
        stream: &str,
        consumer: &str,
    ) -> Result<Grant, Status> {
        let Some(judge) = &self.judge else { return Ok(Grant::Everything) };
        let (metadata, certificates) = (request.metadata(), certificates_of(request));
        let access = Access { call, stream, consumer, metadata, certificates };
        judge(&access).map_err(|reason| denied(&reason))
    }

    /// Returns the check of changes of a consumer by one of its instances, for when they come; `None` without an
    /// authorizer.
    fn judge_changes<T>(&self, request: &Request<T>, stream: &str, consumer: &str) -> Option<Box<AskManage>> {
        let judge = self.judge.clone()?;
        let (metadata, certificates) = (request.metadata().clone(), certificates_of(request));
        let (stream, consumer) = (stream.to_owned(), consumer.to_owned());
        Some(Box::new(move || {
            let (call, certificates) = (Call::Manage, certificates.clone());
            let (stream, consumer) = (stream.as_str(), consumer.as_str());
            let access = Access { call, stream, consumer, metadata: &metadata, certificates };
            judge(&access).map(drop).map_err(|reason| denied(&reason))
        }))
    }

    async fn open_session(
        &self,
        mut request: Request<Streaming<FromConsumer>>,
        asked: &mut Asked,
    ) -> Result<Session, Status> {
        let first = tokio::time::timeout(OPEN_WITHIN, request.get_mut().message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("Open did not come within 10 s"))??;
        let Some(from_consumer::Frame::Open(open)) = first.and_then(|first| first.frame) else {
            return Err(Status::invalid_argument("the first frame has to be Open"));
        };
        (asked.stream, asked.consumer) = (open.stream.clone(), open.consumer.clone());
        let filter = match self.judge(&request, Call::Subscribe, &open.stream, &open.consumer)? {
            Grant::Everything => None,
            Grant::Only(filter) => Some(filter),
        };
        let manage = self.judge_changes(&request, &open.stream, &open.consumer);
        let granted = Granted { peer: ip_of(&request), filter, manage };
        let stream = self.stream(&open.stream)?.clone();
        Session::open(stream, open, request.into_inner(), granted, self.stops.clone(), self.lines.clone())
    }

    fn open_replay(&self, request: &Request<proto::ReplayRequest>) -> Result<Replaying, Status> {
        let asked = request.get_ref();
        let filter = match self.judge(request, Call::Subscribe, &asked.stream, &asked.consumer)? {
            Grant::Everything => None,
            Grant::Only(filter) => Some(filter),
        };
        let granted = Granted { peer: ip_of(request), filter, manage: None };
        let place = self.replays.take(ip_of(request))?;
        Replaying::open(self.stream(&asked.stream)?.clone(), asked, granted, self.stops.clone(), place)
    }

    fn describe_asked(
        &self,
        request: &Request<proto::DescribeRequest>,
    ) -> Result<proto::DescribeReply, Status> {
        let name = request.get_ref().stream.as_str();
        self.judge(request, Call::Describe, name, "")?;
        let mut streams: Vec<proto::StreamInfo> = match name {
            "" => self.streams.iter().map(|stream| stream.describe()).collect(),
            name => vec![self.stream(name)?.describe()],
        };
        streams.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(proto::DescribeReply { streams })
    }

    fn manage_asked(&self, request: &Request<proto::ManageRequest>) -> Result<proto::ManageReply, Status> {
        let asked = request.get_ref();
        self.judge(request, Call::Manage, &asked.stream, &asked.consumer)?;
        let action = asked.action.as_ref();
        let action = action
            .ok_or_else(|| Status::invalid_argument("the action is of a later version of the protocol"))?;
        self.stream(&asked.stream)?.manage(&asked.consumer, action, ip_of(request))
    }
}

/// Makes the status of a refusal by the authorizer. Its words may contain names that came with the call.
fn denied(reason: &str) -> Status {
    Status::permission_denied(OneLine(reason).to_string())
}

/// The address that a request came from.
fn ip_of<T>(request: &Request<T>) -> Option<IpAddr> {
    request.extensions().get::<PeerInfo>().map(|peer| peer.address().ip())
}

/// A call, for the log.
struct Asked {
    call: Call,
    peer: Option<SocketAddr>,
    stream: String,
    consumer: String,
}

impl Asked {
    /// Notes that the connection has made a request.
    fn new<T>(request: &Request<T>, call: Call, stream: &str, consumer: &str) -> Asked {
        let peer = request.extensions().get::<PeerInfo>();
        if let Some(peer) = peer {
            peer.serve();
        }
        let peer = peer.map(PeerInfo::address);
        Asked { call, peer, stream: stream.to_owned(), consumer: consumer.to_owned() }
    }

    /// Logs the refusal of the call.
    fn log<T>(&self, lines: &PeerLines, outcome: Result<T, Status>) -> Result<T, Status> {
        outcome.inspect_err(|status| {
            let Asked { call, stream, consumer, .. } = self;
            let peer = self.peer.map_or_else(|| "an unknown address".to_owned(), |peer| peer.to_string());
            lines.warn(format_args!(
                "{call:?} by {peer} of stream {:?} for consumer {:?} is refused: {}",
                OneLine(stream),
                OneLine(consumer),
                Sentence(status.message())
            ));
        })
    }
}

#[tonic::async_trait]
impl Service for Shared {
    type SubscribeStream = Frames;

    async fn subscribe(
        &self,
        request: Request<Streaming<FromConsumer>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let mut asked = Asked::new(&request, Call::Subscribe, "", "");
        // Before anything of it is read. A refusal here is not in the log each time.
        let place = self.sessions.take(ip_of(&request))?;
        let session = self.open_session(request, &mut asked).await;
        let session = asked.log(&self.lines, session)?;
        let frames = futures_util::stream::unfold(Some((session, place)), |state| async {
            let (mut session, place) = state?;
            let frame = session.next_frame().await?;
            // After an error the session is over, and ends before the error is sent.
            let state = frame.is_ok().then_some((session, place));
            Some((frame, state))
        });
        Ok(Response::new(Frames { frames: Box::pin(frames), consumer: asked.consumer, peer: asked.peer }))
    }

    type ReplayStream = Pin<Box<dyn FuturesStream<Item = Result<proto::Replayed, Status>> + Send>>;

    async fn replay(
        &self,
        request: Request<proto::ReplayRequest>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        let (stream, consumer) = (&request.get_ref().stream, &request.get_ref().consumer);
        let asked = Asked::new(&request, Call::Subscribe, stream, consumer);
        let replaying = asked.log(&self.lines, self.open_replay(&request))?;
        Ok(Response::new(Box::pin(replaying.frames())))
    }

    async fn describe(
        &self,
        request: Request<proto::DescribeRequest>,
    ) -> Result<Response<proto::DescribeReply>, Status> {
        let asked = Asked::new(&request, Call::Describe, &request.get_ref().stream, "");
        asked.log(&self.lines, self.describe_asked(&request)).map(Response::new)
    }

    async fn manage(
        &self,
        request: Request<proto::ManageRequest>,
    ) -> Result<Response<proto::ManageReply>, Status> {
        let (stream, consumer) = (&request.get_ref().stream, &request.get_ref().consumer);
        let asked = Asked::new(&request, Call::Manage, stream, consumer);
        asked.log(&self.lines, self.manage_asked(&request)).map(Response::new)
    }
}
