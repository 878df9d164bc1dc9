//! One connection to a broker: many requests in flight, answers in their order.
//!
//! Two tasks own the halves of the socket. The writer puts each request's promise into the queue of those in flight
//! before its bytes are written; the reader resolves the oldest promise by each frame that arrives. The one of the two that
//! fails first ends the connection for all.

use std::collections::{HashMap, VecDeque};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use mainstem_wire::frame::{self, LENGTH_BYTES};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::request_header::RequestHeader;
use mainstem_wire::{ApiKey, ErrorCode, Request, Unencodable};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::Error;
use crate::reply::Reply;
use crate::retry::deadline;
use crate::sasl::Sasl;
use crate::tls::{self, Tls};

/// The version of ApiVersions that is asked for. A broker that lacks it answers with version 0 (KIP-511).
const API_VERSIONS: i16 = 3;
/// The oldest release of Apache Kafka that is supported.
const OLDEST_RELEASE: &str = "3.9";
/// The version of Fetch that is new in that release (KIP-853).
const FETCH_OF_OLDEST_RELEASE: i16 = 17;
/// A response is not larger than this, whatever its length says.
pub(crate) const RESPONSE_BYTES_MAX: usize = 256 << 20;
/// The buffer grows with what arrives by at most this, not with what was announced.
const READ_STEP_BYTES: usize = 256 << 10;
/// The share of a session's time after which it is renewed.
const RENEWED_AT: f64 = 0.85;
/// The reason of a connection's end if there is no other.
const CLOSED: &str = "it was closed";
/// Requests that were waiting together are written together, up to about this many bytes.
const WRITE_BYTES: usize = 256 << 10;

/// The options of every connection of a client.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionOptions {
    /// Sent in each request's header.
    pub(crate) client_id: Arc<str>,
    /// The time limit for connecting.
    pub(crate) connect_timeout: Duration,
    /// The time limit for the answer to a request that does not wait by itself.
    pub(crate) request_timeout: Duration,
    /// Its encryption; none if it is not encrypted.
    pub(crate) tls: Option<Tls>,
    /// The mechanism and user that authenticate on it.
    pub(crate) sasl: Option<Arc<Sasl>>,
}

/// A connection; cheap to clone. It ends when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    broker: Arc<str>,
    options: ConnectionOptions,
    offers: Arc<Offers>,
    shared: Arc<Shared>,
}

/// The versions and features of a broker.
#[derive(Debug, Default)]
struct Offers {
    versions: HashMap<i16, RangeInclusive<i16>>,
    /// Levels of the cluster's features (KIP-584).
    features: HashMap<String, i16>,
}

#[derive(Debug)]
struct Shared {
    outgoing: mpsc::UnboundedSender<Outgoing>,
    /// Requests that were made while the session is renewed. They are sent after that; none if no renewal runs.
    held: Mutex<Option<Vec<Outgoing>>>,
    next_id: AtomicI32,
    in_flight: InFlight,
    /// The reason if the connection has ended.
    lost: Arc<Lost>,
}

/// Set once, by the task that notices first.
type Lost = Mutex<Option<End>>;

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    promise: Promise,
}

/// The outcome that a request waits for.
#[derive(Debug)]
enum Promise {
    /// Its response.
    Answer(Awaited),
    /// That it was written to the socket: it gets no response.
    Written(oneshot::Sender<()>),
}

/// A response that has to come, whether or not a caller still waits for it.
#[derive(Debug)]
struct Awaited {
    answer: oneshot::Sender<Bytes>,
    /// Name of the request.
    api: &'static str,
    /// The time limit for the response.
    limit: Duration,
    /// The end of that time.
    until: Instant,
}

/// The promises of requests in flight, oldest first.
type InFlight = Arc<Mutex<VecDeque<Awaited>>>;

impl Connection {
    /// Connects, asks which versions the broker has, and authenticates if the options have a user.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the broker is older than [`OLDEST_RELEASE`], [`Error::Connect`], or why it does not answer.
    pub(crate) async fn open(broker: &str, options: ConnectionOptions) -> Result<Connection, Error> {
        let failed = |reason: String| Error::Connect { broker: broker.to_owned(), reason };
        let stream = tokio::time::timeout(options.connect_timeout, TcpStream::connect(broker))
            .await
            .map_err(|_| failed(format!("no answer within {:?}", options.connect_timeout)))?
            .map_err(|error| failed(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| failed(error.to_string()))?;
        let shared = match &options.tls {
            None => {
                let (reading, writing) = stream.into_split();
                run(reading, writing, broker)
            }
            Some(tls) => {
                let (reading, writing) = tokio::io::split(tls.connect(broker, stream, &options).await?);
                run(reading, writing, broker)
            }
        };
        let versions = HashMap::from([(ApiKey::ApiVersions as i16, 0..=API_VERSIONS)]);
        let mut connection = Connection {
            broker: broker.into(),
            options,
            offers: Arc::new(Offers { versions, ..Offers::default() }),
            shared: Arc::new(shared),
        };
        connection.offers = Arc::new(connection.ask_offers().await?);
        connection.check_release()?;
        if let Some(sasl) = connection.options.sasl.clone() {
            let lasts = sasl.authenticate(&connection).await?;
            if let Some(lasts) = lasts {
                tokio::spawn(renew(connection.weak(), sasl, lasts));
            }
        }
        Ok(connection)
    }

    async fn ask_offers(&self) -> Result<Offers, Error> {
        let request = ApiVersionsRequest {
            client_software_name: "mainstem-client".into(),
            client_software_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        };
        let reply = self.call(&request).await?;
        if reply.leading_code() == Some(ErrorCode::UNSUPPORTED_VERSION.code()) {
            let newest = newest_api_versions(&reply.as_version(0))?;
            return Err(self.too_old(ApiKey::ApiVersions, API_VERSIONS, newest));
        }
        let response = reply.read()?;
        reply.check(response.error_code, None, || "the broker's versions".to_owned())?;
        let versions = response.api_keys.iter();
        let features = response.finalized_features.iter();
        Ok(Offers {
            versions: versions.map(|api| (api.api_key, api.min_version..=api.max_version)).collect(),
            features: features.map(|one| (one.name.to_string(), one.max_version_level)).collect(),
        })
    }

    /// Checks that the broker is of the oldest supported release, or of a newer one.
    fn check_release(&self) -> Result<(), Error> {
        let newest = self.offers.versions.get(&(ApiKey::Fetch as i16)).map_or(0, |versions| *versions.end());
        match newest >= FETCH_OF_OLDEST_RELEASE {
            true => Ok(()),
            false => Err(self.too_old(ApiKey::Fetch, FETCH_OF_OLDEST_RELEASE, newest)),
        }
    }

    /// The error for a broker without a version that the oldest supported release has.
    fn too_old(&self, api: ApiKey, needed: i16, newest: i16) -> Error {
        let reason = format!(
            "{name} {needed}, which Apache Kafka {OLDEST_RELEASE} does, the oldest release that this client supports; \
             the newest there is {name} {newest}: upgrade the broker",
            name = api.name()
        );
        Error::Unsupported { broker: self.broker.to_string(), reason }
    }

    /// Address of the broker.
    pub(crate) fn broker(&self) -> &str {
        &self.broker
    }

    /// The level of a feature; 0 where the cluster has none.
    pub(crate) fn feature(&self, name: &str) -> i16 {
        self.offers.features.get(name).copied().unwrap_or(0)
    }

    /// Returns true if the connection has ended, so that nothing more can be asked on it.
    pub(crate) fn is_lost(&self) -> bool {
        self.close_if_overdue();
        self.shared.lost.lock().is_some() || self.shared.outgoing.is_closed()
    }

    /// Closes the connection if its oldest response is overdue. A caller that waits for it does so too, but callers with a shorter
    /// time of their own may all be gone by then. Without this check the next callers would ask a silent broker.
    fn close_if_overdue(&self) {
        let overdue = {
            let in_flight = self.shared.in_flight.lock();
            in_flight.front().filter(|oldest| oldest.until <= Instant::now()).map(|one| (one.api, one.limit))
        };
        if let Some((api, limit)) = overdue {
            self.close_as_late(api, limit);
        }
    }

    /// The newest version of a request that both sides have, up to `newest`.
    pub(crate) fn version_up_to<'q, R: Request<'q>>(&self, newest: i16) -> Result<i16, Error> {
        let unsupported = |reason| Error::Unsupported { broker: self.broker.to_string(), reason };
        let name = R::KEY.name();
        let theirs =
            self.offers.versions.get(&(R::KEY as i16)).ok_or_else(|| unsupported(name.to_owned()))?;
        let ours = R::VERSIONS;
        let version = newest.min(*ours.end()).min(*theirs.end());
        if version < *ours.start() || version < *theirs.start() {
            return Err(unsupported(format!(
                "{name} in versions {ours:?}, which are spoken here, but {theirs:?}"
            )));
        }
        Ok(version)
    }

    /// Checks that the broker has the version of a request that first has `what`, or a newer one.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if not.
    pub(crate) fn needs<'q, R: Request<'q>>(&self, oldest: i16, what: &str) -> Result<(), Error> {
        let version = self.version::<R>()?;
        if version >= oldest {
            return Ok(());
        }
        let reason =
            format!("{} {oldest}, which is needed for {what}; the newest there is {version}", R::KEY.name());
        Err(Error::Unsupported { broker: self.broker.to_string(), reason })
    }

    /// The newest version of a request that both sides have.
    pub(crate) fn version<'q, R: Request<'q>>(&self) -> Result<i16, Error> {
        self.version_up_to::<R>(i16::MAX)
    }

    /// Sends a request in the newest common version and waits for its response.
    pub(crate) async fn call<'q, R: Request<'q>>(&self, request: &R) -> Result<Reply<R>, Error> {
        self.call_up_to(request, i16::MAX).await
    }

    /// The same in the newest common version up to `newest`.
    pub(crate) async fn call_up_to<'q, R: Request<'q>>(
        &self,
        request: &R,
        newest: i16,
    ) -> Result<Reply<R>, Error> {
        let version = self.version_up_to::<R>(newest)?;
        self.call_within(request, version, self.options.request_timeout).await
    }

    /// Sends a request in a version and waits for its response, at most for `limit`. After that it closes the connection, since
    /// responses come in order and none can overtake the missing one.
    pub(crate) async fn call_within<'q, R: Request<'q>>(
        &self,
        request: &R,
        version: i16,
        limit: Duration,
    ) -> Result<Reply<R>, Error> {
        self.ask(request, version, limit)?.reply().await
    }

    /// Sends a request in a version, before this returns and so behind all that was asked before; the response comes
    /// later, within `limit`.
    pub(crate) fn ask<'q, R: Request<'q>>(
        &self,
        request: &R,
        version: i16,
        limit: Duration,
    ) -> Result<Pending, Error> {
        let (answer, answered) = oneshot::channel();
        let until = deadline(limit);
        let awaited = Awaited { answer, api: R::KEY.name(), limit, until };
        let correlation_id = self.send(request, version, Promise::Answer(awaited))?;
        Ok(Pending { connection: self.clone(), version, correlation_id, answered, limit, until })
    }

    /// Sends a request that gets no response: a produce with acks=0. The order is that of [`Connection::ask`].
    pub(crate) fn send_unanswered<'q, R: Request<'q>>(
        &self,
        request: &R,
        version: i16,
    ) -> Result<PendingWrite, Error> {
        let (written, is_written) = oneshot::channel();
        self.send(request, version, Promise::Written(written))?;
        Ok(PendingWrite { connection: self.clone(), api: R::KEY.name(), is_written })
    }

    fn send<'q, R: Request<'q>>(&self, request: &R, version: i16, promise: Promise) -> Result<i32, Error> {
        let api = R::KEY.name();
        if self.is_lost() {
            return Err(self.why_lost(api));
        }
        let correlation_id = self.shared.next_id.fetch_add(1, Ordering::Relaxed) & i32::MAX;
        let header = RequestHeader {
            request_api_key: R::KEY as i16,
            request_api_version: version,
            correlation_id,
            client_id: Some((&*self.options.client_id).into()),
            ..Default::default()
        };
        let mut bytes = Vec::new();
        frame::write_request(&mut bytes, &header, request).map_err(|error| {
            let reason = format!("{api} in version {version}: {error}");
            match error.kind {
                // No other broker could be asked for it either.
                Unencodable::Length(_) => Error::Invalid(format!("a request cannot hold it: {reason}")),
                _ => Error::Unsupported { broker: self.broker.to_string(), reason },
            }
        })?;
        let outgoing = Outgoing { bytes, promise };
        let mut held = self.shared.held.lock();
        match &mut *held {
            Some(held) if !authenticates(R::KEY) => held.push(outgoing),
            _ => self.shared.outgoing.send(outgoing).map_err(|_| self.why_lost(api))?,
        }
        Ok(correlation_id)
    }

    fn weak(&self) -> WeakConnection {
        let (broker, options, offers) = (self.broker.clone(), self.options.clone(), self.offers.clone());
        WeakConnection { broker, options, offers, shared: Arc::downgrade(&self.shared) }
    }

    /// Authenticates again. Requests that are made meanwhile wait: a broker closes a connection on which another request
    /// comes between the messages of an exchange.
    async fn renew(&self, sasl: &Sasl) -> Option<Duration> {
        *self.shared.held.lock() = Some(Vec::new());
        let renewed = sasl.authenticate(self).await;
        if let Err(error) = &renewed {
            self.shared.lost.lock().get_or_insert(End::Refused(error.clone()));
        }
        let mut held = self.shared.held.lock();
        // Nothing is asked in a session that was not renewed: the requests fail with the reason.
        for outgoing in held.take().into_iter().flatten().filter(|_| renewed.is_ok()) {
            // If the connection is lost meanwhile, the request fails with that.
            let _ = self.shared.outgoing.send(outgoing);
        }
        renewed.ok().flatten()
    }

    /// Closes the connection, since no later response can overtake the one that took too long. Returns that error.
    fn close_as_late(&self, api: &'static str, after: Duration) -> Error {
        let late = Error::RequestTimedOut { broker: self.broker.to_string(), api, after };
        self.shared.lost.lock().get_or_insert(End::Late(late.clone()));
        late
    }

    /// The error of a request that gets no answer.
    fn why_lost(&self, api: &'static str) -> Error {
        let broker = self.broker.to_string();
        match self.shared.lost.lock().clone() {
            Some(End::Late(error) | End::Refused(error)) => error,
            Some(End::Lost(reason)) => Error::ConnectionLost { broker, api, reason },
            Some(End::NoFrame(reason)) => Error::Malformed { broker, api, reason },
            None => Error::ConnectionLost { broker, api, reason: CLOSED.to_owned() },
        }
    }
}

/// A connection that does not keep itself alive.
struct WeakConnection {
    broker: Arc<str>,
    options: ConnectionOptions,
    offers: Arc<Offers>,
    shared: Weak<Shared>,
}

impl WeakConnection {
    fn upgrade(&self) -> Option<Connection> {
        let shared = self.shared.upgrade()?;
        let (broker, options, offers) = (self.broker.clone(), self.options.clone(), self.offers.clone());
        Some(Connection { broker, options, offers, shared })
    }
}

/// Renews the session of a connection before it ends, for as long as there are both (KIP-368).
async fn renew(connection: WeakConnection, sasl: Arc<Sasl>, lasts: Duration) {
    let mut next = Some(lasts);
    while let Some(lasts) = next {
        tokio::time::sleep(lasts.mul_f64(RENEWED_AT)).await;
        let Some(connection) = connection.upgrade() else { return };
        next = connection.renew(&sasl).await;
    }
}

/// Returns true for the requests by which a connection is authenticated.
fn authenticates(api: ApiKey) -> bool {
    matches!(api, ApiKey::SaslHandshake | ApiKey::SaslAuthenticate)
}

/// A response that is awaited.
#[derive(Debug)]
pub(crate) struct Pending {
    connection: Connection,
    version: i16,
    correlation_id: i32,
    answered: oneshot::Receiver<Bytes>,
    limit: Duration,
    until: Instant,
}

impl Pending {
    /// The response to the request, which was of kind `R`. If it is overdue, the connection is closed.
    pub(crate) async fn reply<'q, R: Request<'q>>(self) -> Result<Reply<R>, Error> {
        let connection = &self.connection;
        let frame = match tokio::time::timeout_at(self.until, self.answered).await {
            Ok(Ok(frame)) => frame,
            Ok(Err(_)) => return Err(connection.why_lost(R::KEY.name())),
            Err(_) => return Err(connection.close_as_late(R::KEY.name(), self.limit)),
        };
        Reply::open(frame, self.version, self.correlation_id, &connection.broker)
    }
}

/// A request without a response, on its way to the socket.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    connection: Connection,
    api: &'static str,
    is_written: oneshot::Receiver<()>,
}

impl PendingWrite {
    /// Waits until the kernel has all of it; after `limit` the connection is closed.
    pub(crate) async fn written(self, limit: Duration) -> Result<(), Error> {
        match tokio::time::timeout(limit, self.is_written).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.connection.why_lost(self.api)),
            Err(_) => Err(self.connection.close_as_late(self.api, limit)),
        }
    }
}

/// The newest version of ApiVersions of a broker that refused one. It names that in version 0 (KIP-511), or nothing before Kafka 2.4.
fn newest_api_versions(refusal: &Reply<ApiVersionsRequest<'_>>) -> Result<i16, Error> {
    let response = refusal.read()?;
    let own = response.api_keys.iter().find(|api| api.api_key == ApiKey::ApiVersions as i16);
    Ok(own.map_or(0, |api| api.max_version.max(0)))
}

/// Starts the tasks of a connection.
fn run(
    reading: impl AsyncRead + Send + Unpin + 'static,
    writing: impl AsyncWrite + Send + Unpin + 'static,
    broker: &str,
) -> Shared {
    let broker = broker.to_owned();
    let (outgoing, requests) = mpsc::unbounded_channel();
    let in_flight = InFlight::default();
    let lost = Arc::new(Lost::default());
    let noted = lost.clone();
    let note = move |end: End| {
        noted.lock().get_or_insert(end);
    };
    let unanswered = Unanswered(in_flight.clone());
    tokio::spawn(async move {
        tokio::select! {
            // Without the reader nothing resolves requests in flight, and without the writer none is sent any more.
            end = read(reading, &broker, &unanswered.0) => note(end),
            () = write(writing, requests, &unanswered.0) => note(End::Lost(CLOSED.to_owned())),
        }
    });
    Shared { outgoing, held: Mutex::default(), next_id: AtomicI32::new(0), in_flight, lost }
}

/// Drops the promises in flight, so that their callers wake, when the reading task ends, even with its runtime.
struct Unanswered(InFlight);

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.0.lock().clear();
    }
}

/// Writes requests until the connection is dropped or fails.
async fn write(
    mut socket: impl AsyncWrite + Unpin,
    mut requests: mpsc::UnboundedReceiver<Outgoing>,
    in_flight: &InFlight,
) {
    let (mut bytes, mut sent) = (Vec::new(), Vec::new());
    while let Some(first) = requests.recv().await {
        let mut next = Some(first);
        bytes.clear();
        while let Some(request) = next {
            match request.promise {
                Promise::Answer(answer) => in_flight.lock().push_back(answer),
                Promise::Written(written) => sent.push(written),
            }
            match bytes.is_empty() {
                true => bytes = request.bytes,
                false => bytes.extend_from_slice(&request.bytes),
            }
            next = if bytes.len() < WRITE_BYTES { requests.try_recv().ok() } else { None };
        }
        if socket.write_all(&bytes).await.is_err() || socket.flush().await.is_err() {
            // The reader finds the reason.
            return std::future::pending().await;
        }
        // The caller may have stopped waiting.
        for written in sent.drain(..) {
            let _ = written.send(());
        }
    }
}

/// The reason why nothing more comes from a broker.
#[derive(Debug, Clone)]
enum End {
    Lost(String),
    /// The bytes are no response: another connection would bring the same.
    NoFrame(String),
    /// It was closed, as a request took too long.
    Late(Error),
    /// The broker refused the client's credentials, or its session was not renewed.
    Refused(Error),
}

/// Reads responses until the connection fails, and returns the reason.
async fn read(mut socket: impl AsyncRead + Unpin, broker: &str, in_flight: &InFlight) -> End {
    let mut buffer = BytesMut::new();
    loop {
        loop {
            match take_frame(&mut buffer) {
                Ok(Some(frame)) => match in_flight.lock().pop_front() {
                    // The caller may have stopped waiting.
                    Some(awaited) => drop(awaited.answer.send(frame)),
                    None => return End::Lost("it sent a response that was not asked for".to_owned()),
                },
                Ok(None) => break,
                Err(error) => return End::NoFrame(error.to_string()),
            }
        }
        buffer.reserve(READ_STEP_BYTES.min(missing(&buffer)));
        match socket.read_buf(&mut buffer).await {
            Ok(0) => return End::Lost("the broker closed it".to_owned()),
            Ok(_) => {}
            Err(error) => {
                return tls::refusal(broker, &error)
                    .map_or_else(|| End::Lost(error.to_string()), End::Refused);
            }
        }
    }
}

/// Bytes that are missing to the end of the first frame, at least a small read's worth.
fn missing(buffer: &BytesMut) -> usize {
    let len = frame::frame_len(buffer, RESPONSE_BYTES_MAX).ok().flatten().unwrap_or(0);
    (LENGTH_BYTES + len).saturating_sub(buffer.len()).max(4096)
}

/// The body of the first frame in the buffer, if it is complete.
fn take_frame(buffer: &mut BytesMut) -> Result<Option<Bytes>, frame::FrameError> {
    let Some(len) = frame::frame_len(buffer, RESPONSE_BYTES_MAX)? else { return Ok(None) };
    if buffer.len() < LENGTH_BYTES + len {
        return Ok(None);
    }
    let mut frame = buffer.split_to(LENGTH_BYTES + len);
    Ok(Some(frame.split_off(LENGTH_BYTES).freeze()))
}
