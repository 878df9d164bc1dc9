//! An instance of a consumer, which reads a stream. It stays connected, and resumes at its position after a lost
//! connection.
//!
//! ```text
//!             ┌────────── task ──────────┐
//! publisher ──┤ frames ──▶ check ──▶ inbox├──▶ Consumer::next
//!           ◀─┤ done, credit ◀── inbox ◀──┤◀── Consumer::done, release
//!             └──────────────────────────┘
//! ```
//!
//! The inbox holds at most the given credit, and one frame. Outgoing frames are not queued. The inbox keeps their latest
//! state: the latest position, and the credit that is due.

pub(crate) mod inbox;
mod replay;

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstem_lines::{OneLine, Sentence};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::error::{DirectError, Refused, Result, causes, words_of};
use crate::journal::FRAME_BYTES_MAX;
use crate::proto::publisher_client::PublisherClient;
use crate::proto::{self, from_publisher};
use crate::session::{ALIVE_EVERY, DEAD_AFTER};
use crate::slices::{Done, SliceRange};
use crate::tls::{ClientTls, Pem};
use crate::tls_words::{self, error_of_tls};
use inbox::{Fault, Inbox, Rejected};
pub use replay::{Replay, Replayed};

const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Waits between attempts to connect.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(3);
/// The longest wait for a publisher on this machine, where an attempt costs nothing.
const RETRY_MAX_LOCAL: Duration = Duration::from_millis(250);
/// The time that a leaving instance gives the publisher to confirm what was done.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// The most bytes of a frame beside its batches.
const FRAME_HEAD_BYTES: usize = 64 << 10;
/// The default credit of a consumer.
const CREDIT_BYTES: u64 = 2 << 20;

/// The address of a publisher, with the certificates and metadata to reach it.
#[derive(Debug, Clone)]
pub struct Address {
    /// `HOST:PORT`.
    at: String,
    tls: Option<ClientTls>,
    metadata: Vec<(String, String)>,
}

impl Address {
    /// Parses `grpc://HOST:PORT`, or `HOST:PORT`.
    ///
    /// # Errors
    /// [`DirectError::Invalid`] for anything else.
    pub fn new(url: &str) -> Result<Address> {
        let at = url.strip_prefix("grpc://").unwrap_or(url).trim_end_matches('/');
        let port = at.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let is_address = port.is_some_and(|(host, _)| !host.is_empty() && !at.contains(['/', ' ', ',', '@']));
        match is_address {
            true => Ok(Address { at: at.to_owned(), tls: None, metadata: Vec::new() }),
            false => Err(DirectError::Invalid(format!(
                "{url:?} is no address of a publisher; write grpc://HOST:PORT"
            ))),
        }
    }

    /// Connects by TLS to a publisher whose certificate is signed by these authorities, in PEM.
    #[must_use]
    pub fn tls(self, authorities: impl AsRef<[u8]>) -> Address {
        self.trust(Pem::Text(authorities.as_ref().to_vec()))
    }

    /// The same, from a file, which is read for each connection. If it cannot be used, the last usable contents are.
    #[must_use]
    pub fn tls_file(self, authorities: impl Into<PathBuf>) -> Address {
        self.trust(Pem::File(authorities.into()))
    }

    /// Shows a certificate of this client, with its key, in PEM.
    #[must_use]
    pub fn identity(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Address {
        self.show(Pem::Text(certificate.as_ref().to_vec()), Pem::Text(key.as_ref().to_vec()))
    }

    /// The same, from files, which are read for each connection. If they cannot be used, the last usable contents are.
    #[must_use]
    pub fn identity_files(self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Address {
        self.show(Pem::File(certificate.into()), Pem::File(key.into()))
    }

    fn trust(mut self, authorities: Pem) -> Address {
        self.tls = Some(self.tls.unwrap_or_default().trust(authorities));
        self
    }

    fn show(mut self, certificate: Pem, key: Pem) -> Address {
        self.tls = Some(self.tls.unwrap_or_default().identity(certificate, key));
        self
    }

    /// Sends a header with each call, such as `authorization`.
    #[must_use]
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Address {
        self.metadata.push((name.into(), value.into()));
        self
    }

    /// `HOST:PORT`.
    pub fn at(&self) -> &str {
        &self.at
    }

    pub(crate) async fn connect(&self) -> Result<PublisherClient<Channel>> {
        let unreachable = |error: tonic::transport::Error| {
            let (address, reason) = (self.at.clone(), causes(&error));
            match error_of_tls(&error).is_some() {
                true => DirectError::Tls { address, reason },
                false => DirectError::Unreachable { address, reason },
            }
        };
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.at)).map_err(unreachable)?;
        let mut endpoint = endpoint
            .connect_timeout(CONNECT_WITHIN)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(ALIVE_EVERY)
            .keep_alive_timeout(DEAD_AFTER - ALIVE_EVERY)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(8 << 20);
        if let Some(tls) = &self.tls {
            let of_tls = |reason| DirectError::Tls { address: self.at.clone(), reason };
            endpoint = tls.of(&endpoint).map_err(of_tls)?;
        }
        // The connect timeout of the endpoint covers TCP alone; TLS may stall behind it.
        let connected = tokio::time::timeout(CONNECT_WITHIN, endpoint.connect()).await;
        let channel = connected.map_err(|_| DirectError::Unreachable {
            address: self.at.clone(),
            reason: format!("it did not answer within {CONNECT_WITHIN:?}"),
        })?;
        let client = PublisherClient::new(channel.map_err(unreachable)?);
        Ok(client.max_decoding_message_size(FRAME_BYTES_MAX + FRAME_HEAD_BYTES))
    }

    /// Makes a request with the metadata of each call.
    pub(crate) fn request<T>(&self, message: T) -> Result<Request<T>> {
        let mut request = Request::new(message);
        for (name, value) in &self.metadata {
            let invalid = |reason: String| {
                DirectError::Invalid(format!("the metadata {name:?} cannot be sent: {reason}"))
            };
            let key = MetadataKey::<Ascii>::from_bytes(name.to_lowercase().as_bytes());
            let key = key.map_err(|error| invalid(error.to_string()))?;
            let value =
                MetadataValue::try_from(value.as_str()).map_err(|error| invalid(error.to_string()))?;
            request.metadata_mut().append(key, value);
        }
        Ok(request)
    }

    /// The reason why a call has ended. If the connection ended before an answer, it says what may be the cause.
    fn reason(&self, status: &Status, was_answered: bool) -> String {
        let (words, is_of_connection) = words_of(status);
        let hint = match self.tls {
            _ if !is_of_connection || was_answered => return words,
            None => "a publisher that serves by TLS ends connections without it",
            // The error says it already.
            Some(_) if tls_words::words(status).is_some() => return words,
            Some(_) => "the publisher may want a certificate of this client, or not accept it",
        };
        format!("the connection ended without an answer ({words}); {hint}")
    }

    /// The error of a call that a status has ended.
    pub(crate) fn error_of(&self, stream: &str, status: &Status) -> DirectError {
        let address = self.at.clone();
        if let Some(refused) = Refused::of_status(status) {
            return DirectError::Refused { address, stream: stream.to_owned(), refused };
        }
        match words_of(status) {
            (_, true) => DirectError::Unreachable { address, reason: self.reason(status, false) },
            (message, false) => DirectError::Status { address, code: status.code(), message },
        }
    }

    fn is_local(&self) -> bool {
        let host = self.at.rsplit_once(':').map_or("", |(host, _)| host.trim_matches(['[', ']']));
        host.eq_ignore_ascii_case("localhost")
            || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

/// The stream that an instance reads, and its settings.
#[derive(Debug, Clone)]
pub struct ConsumerConfig {
    pub(crate) address: Address,
    pub(crate) stream: String,
    pub(crate) consumer: String,
    pub(crate) instance: String,
    pub(crate) pinned: Option<SliceRange>,
    pub(crate) filter: Option<proto::Filter>,
    pub(crate) start: proto::Start,
    pub(crate) credit_bytes: u64,
}

impl ConsumerConfig {
    /// A stream at an address, read under a consumer's name.
    pub fn new(address: Address, stream: impl Into<String>, consumer: impl Into<String>) -> ConsumerConfig {
        let random = random();
        ConsumerConfig {
            address,
            stream: stream.into(),
            consumer: consumer.into(),
            instance: format!("{}-{random:016x}", std::process::id()),
            pinned: None,
            filter: None,
            start: proto::Start::Earliest,
            credit_bytes: CREDIT_BYTES,
        }
    }

    /// The instance's name; by default a unique one.
    #[must_use]
    pub fn instance(mut self, name: impl Into<String>) -> ConsumerConfig {
        self.instance = name.into();
        self
    }

    /// Reads these slices alone; no other instance reads them. By default instances share all slices.
    #[must_use]
    pub fn pinned(mut self, slices: SliceRange) -> ConsumerConfig {
        self.pinned = Some(slices);
        self
    }

    /// Reads only events that pass this filter and the one that the publisher stores for the consumer.
    #[must_use]
    pub fn filter(mut self, filter: proto::Filter) -> ConsumerConfig {
        self.filter = Some(filter);
        self
    }

    /// The start of a consumer that the publisher does not know; by default the first event of the journal.
    #[must_use]
    pub fn start(mut self, start: proto::Start) -> ConsumerConfig {
        self.start = start;
        self
    }

    /// The bytes that are read ahead; 2 MiB by default.
    #[must_use]
    pub fn credit_bytes(mut self, bytes: u64) -> ConsumerConfig {
        self.credit_bytes = bytes.max(1);
        self
    }
}

/// An event of an instance's subscription.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerEvent {
    /// The instance was assigned slices.
    Assigned {
        /// The assignment's number.
        assignment: u64,
        /// The slices.
        slices: SliceRange,
        /// The first offset to read.
        offset: i64,
        /// The epoch of the event before `offset`.
        epoch: i32,
    },
    /// Events, or offsets without an event for this instance.
    Records {
        /// The assignment's number.
        assignment: u64,
        /// The first offset.
        from: i64,
        /// The offset behind the last one.
        next: i64,
        /// Record batches of Kafka's format, whose CRCs were not checked.
        batches: Bytes,
        /// The ranges of the batches in these bytes.
        ranges: Vec<Range<usize>>,
    },
    /// The instance has to give the slices back. No event comes, of these slices or of others, before [`Consumer::release`] says
    /// that no handler runs any more.
    Revoking {
        /// The assignment's number.
        assignment: u64,
    },
    /// Other instances have the slices already, or an administrator has moved the consumer to another offset.
    Lost {
        /// The assignment's number.
        assignment: u64,
        /// True if the consumer was reset. Otherwise the publisher has received nothing of this instance for too long.
        by_reset: bool,
    },
    /// Events from here on have passed the stored filter in its present version.
    FilteredFrom {
        /// The first such offset.
        offset: i64,
    },
}

/// An instance of a consumer. If it is dropped without [`Consumer::leave`], the publisher takes it for lost.
#[derive(Debug)]
pub struct Consumer {
    config: ConsumerConfig,
    /// The offset behind the last event that was returned; none without slices.
    position: Option<i64>,
    inbox: Arc<Inbox>,
    task: JoinHandle<()>,
}

impl Consumer {
    /// Connects in the background, and reconnects when the connection is lost.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new(config: ConsumerConfig) -> Consumer {
        let inbox = Arc::new(Inbox::new(config.credit_bytes, random()));
        let task = tokio::spawn(run(config.clone(), inbox.clone()));
        Consumer { config, position: None, inbox, task }
    }

    /// The consumer's name, which all of its instances have.
    pub fn name(&self) -> &str {
        &self.config.consumer
    }

    /// Waits for the next event. The future may be dropped at any time, and loses nothing.
    ///
    /// # Errors
    /// The reason why the subscription cannot continue. It does continue when a publisher is away or a connection is lost: each
    /// attempt that fails is a warning in the log (`tracing`) with its cause. [`DirectError::Tls`] is an error before the first
    /// connection only.
    pub async fn next(&mut self) -> Result<ConsumerEvent> {
        let event = self.inbox.next().await?;
        match event {
            ConsumerEvent::Assigned { offset, .. } => self.position = Some(offset),
            ConsumerEvent::Records { next, .. } => self.position = Some(next),
            ConsumerEvent::Lost { .. } => self.position = None,
            ConsumerEvent::Revoking { .. } | ConsumerEvent::FilteredFrom { .. } => {}
        }
        Ok(event)
    }

    /// Holds records back, and keeps them.
    pub fn hold(&mut self) {
        self.inbox.hold(true);
    }

    /// Returns records again.
    pub fn resume(&mut self) {
        self.inbox.hold(false);
    }

    /// The offset behind the last event of the stream, as its publisher said last, at least every 5 s; none before the first connection.
    pub fn end(&self) -> Option<i64> {
        self.inbox.end()
    }

    /// A handle that reports how far the instance is.
    pub fn positions(&self) -> Positions {
        Positions(self.inbox.clone())
    }

    /// Answers [`ConsumerEvent::Revoking`]: no handler of the assignment runs any more, and `done` is what was done of it.
    pub fn release(&mut self, done: Done) {
        self.position = None;
        self.inbox.release(done);
    }

    /// Stores another filter at the publisher, for all instances. [`ConsumerEvent::FilteredFrom`] says from which offset on it
    /// holds. A publisher that authorizes calls checks [`Call::Manage`](crate::Call::Manage); if it refuses, the subscription
    /// ends.
    pub fn keep_filter(&mut self, filter: proto::Filter) {
        self.inbox.keep_filter(filter);
    }

    /// Leaves when the publisher has confirmed what was done, or after 5 s. It reconnects for that if the publisher is away.
    pub async fn leave(mut self) {
        self.inbox.leave();
        if tokio::time::timeout(LEAVE_WITHIN, &mut self.task).await.is_err() {
            tracing::warn!(
                "the publisher has not confirmed the last positions; what they cover may be repeated"
            );
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A handle that reports how far an instance is.
#[derive(Debug, Clone)]
pub struct Positions(Arc<Inbox>);

impl Positions {
    /// Notes what was done of an assignment; one that has ended is ignored. It is sent soon, and again after a
    /// reconnection.
    pub fn done(&self, done: Done) {
        self.0.done(done);
    }

    /// The assignment that the instance has now, if it has one.
    pub fn assignment(&self) -> Option<u64> {
        self.0.assignment()
    }
}

/// Reconnects until the instance has left or cannot continue.
async fn run(config: ConsumerConfig, inbox: Arc<Inbox>) {
    keep_connected(&config, &inbox, || connected(&config, &inbox)).await;
}

/// Makes a connection with `connect`, waits for its end, and repeats that until the instance has left.
///
/// An error that only other certificates or another address can end is fatal before the first connection. Later it is tried
/// again, as certificates are replaced one after the other.
async fn keep_connected<F>(config: &ConsumerConfig, inbox: &Inbox, mut connect: impl FnMut() -> F)
where
    F: Future<Output = Result<(), Fault>>,
{
    let mut wait = RETRY_FIRST;
    loop {
        let began = Instant::now();
        let Err(fault) = connect().await else { return };
        if inbox.has_left() {
            return;
        }
        let reason = match fault {
            Fault::Fatal(error) => return fail(inbox, error),
            Fault::Tls(error) if inbox.journal().is_none() => return fail(inbox, error),
            Fault::Tls(error) => error.to_string(),
            Fault::Lost { was_opened, reason } => {
                if was_opened || began.elapsed() > RETRY_MAX {
                    wait = RETRY_FIRST;
                }
                reason
            }
        };
        let (stream, at, reason) = (OneLine(&config.stream), OneLine(&config.address.at), Sentence(&reason));
        tracing::warn!("stream {stream} of {at}: {reason}; again in {} ms", wait.as_millis());
        tokio::select! {
            () = tokio::time::sleep(jittered(wait)) => {}
            // The last position is sent at once.
            () = inbox.left(), if !inbox.is_leaving() => {}
        }
        if inbox.has_left() {
            return;
        }
        wait = longer(config, wait);
    }
}

fn fail(inbox: &Inbox, error: DirectError) {
    tracing::error!("{error}");
    inbox.fail(error);
}

/// Returns a number that is unlikely to come twice, in this process or another.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Spreads the reconnections of those that have lost a publisher at the same time.
fn jittered(wait: Duration) -> Duration {
    let jitter = random() % 1_000;
    wait.mul_f64(0.75 + jitter as f64 / 2_000.0)
}

/// The wait after this one.
fn longer(config: &ConsumerConfig, wait: Duration) -> Duration {
    let max = if config.address.is_local() { RETRY_MAX_LOCAL } else { RETRY_MAX };
    (wait * 2).min(max)
}

/// Runs one connection until it ends; `Ok` if the instance has left.
async fn connected(config: &ConsumerConfig, inbox: &Arc<Inbox>) -> Result<(), Fault> {
    let lost = |reason: String| Fault::Lost { was_opened: false, reason };
    let mut client = config.address.connect().await.map_err(|error| match error {
        DirectError::Tls { .. } => Fault::Tls(error),
        _ => lost(error.to_string()),
    })?;
    let open = inbox.open(config);
    let outbound = inbox.clone().outbound(open);
    let request = config.address.request(outbound).map_err(Fault::Fatal)?;
    let answered = tokio::time::timeout(DEAD_AFTER, client.subscribe(request)).await;
    let answer = answered.map_err(|_| lost("it did not answer within 15 s".to_owned()))?;
    let mut inbound = answer.map_err(|status| fault_of(config, &status, false))?.into_inner();
    let mut was_opened = false;
    loop {
        let message = tokio::time::timeout(DEAD_AFTER, inbound.message()).await;
        let message =
            message.map_err(|_| Fault::Lost { was_opened, reason: "nothing came for 15 s".to_owned() })?;
        match message.map_err(|status| fault_of(config, &status, was_opened))? {
            Some(proto::FromPublisher { frame: Some(frame), end }) => {
                match &frame {
                    from_publisher::Frame::Opened(_) => was_opened = true,
                    from_publisher::Frame::Records(records) => {
                        crate::stages::received(&config.consumer, records);
                    }
                    _ => {}
                }
                inbox.take(frame).map_err(|rejected| match rejected {
                    Rejected::Refused(refused) => Fault::Fatal(refused_by(config, refused)),
                    Rejected::Protocol(reason) => {
                        let reason = format!("the publisher does not keep to the protocol: {reason}");
                        let (stream, at) = (OneLine(&config.stream), OneLine(&config.address.at));
                        tracing::error!("stream {stream} of {at}: {}", Sentence(&reason));
                        Fault::Lost { was_opened: false, reason }
                    }
                })?;
                inbox.note_end(end);
            }
            // A frame of a later version of the protocol.
            Some(proto::FromPublisher { frame: None, end }) => inbox.note_end(end),
            None if inbox.is_leaving() => return Ok(()),
            None => {
                return Err(Fault::Lost {
                    was_opened,
                    reason: "the publisher has ended the subscription".to_owned(),
                });
            }
        }
    }
}

fn refused_by(config: &ConsumerConfig, refused: Refused) -> DirectError {
    let (address, stream) = (config.address.at.clone(), config.stream.clone());
    DirectError::Refused { address, stream, refused }
}

/// Decides from a status whether the subscription ends or a reconnection may help.
pub(crate) fn fault_of(config: &ConsumerConfig, status: &Status, was_opened: bool) -> Fault {
    let address = config.address.at.clone();
    if let Some(refused) = Refused::of_status(status) {
        return Fault::Fatal(refused_by(config, refused));
    }
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::DataLoss
        | Code::Unimplemented => {
            let (message, _) = words_of(status);
            Fault::Fatal(DirectError::Status { address, code: status.code(), message })
        }
        _ => Fault::Lost { was_opened, reason: config.address.reason(status, was_opened) },
    }
}

#[cfg(test)]
mod tests;
