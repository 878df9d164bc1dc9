//! Reads a stream: an instance of a consumer, which stays connected, and goes on where it was when it was not.
//!
//! ```text
//!             ┌────────── task ──────────┐
//! publisher ──┤ frames ──▶ check ──▶ inbox├──▶ Consumer::next
//!           ◀─┤ done, credit ◀── inbox ◀──┤◀── Consumer::done, release
//!             └──────────────────────────┘
//! ```
//!
//! The inbox holds at most the credit that was given, and one frame. What is to be sent is not queued there but kept as it is
//! now: the latest position, the credit that is due.

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
/// On this machine an attempt costs nothing.
const RETRY_MAX_LOCAL: Duration = Duration::from_millis(250);
/// A publisher has so long to confirm what an instance has done when it leaves.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);
/// What a frame has beside its batches.
const FRAME_HEAD_BYTES: usize = 64 << 10;
/// A consumer's credit where it does not say otherwise.
const CREDIT_BYTES: u64 = 2 << 20;

/// Where a publisher is, and how to reach it.
#[derive(Debug, Clone)]
pub struct Address {
    /// `HOST:PORT`.
    at: String,
    tls: Option<ClientTls>,
    metadata: Vec<(String, String)>,
}

impl Address {
    /// Of `grpc://HOST:PORT`, or `HOST:PORT`.
    ///
    /// # Errors
    /// [`DirectError::Invalid`] if it is something else.
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

    /// By TLS, with a publisher whose certificate is of these authorities, in PEM.
    #[must_use]
    pub fn tls(self, authorities: impl AsRef<[u8]>) -> Address {
        self.trust(Pem::Text(authorities.as_ref().to_vec()))
    }

    /// The same, from a file, which is read for each connection; where it cannot be used, what was there before is.
    #[must_use]
    pub fn tls_file(self, authorities: impl Into<PathBuf>) -> Address {
        self.trust(Pem::File(authorities.into()))
    }

    /// Shows a certificate of this client, with its key, in PEM.
    #[must_use]
    pub fn identity(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Address {
        self.show(Pem::Text(certificate.as_ref().to_vec()), Pem::Text(key.as_ref().to_vec()))
    }

    /// The same, from files, which are read for each connection; where they cannot be used, what was there before is.
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

    /// Sends this with each call, such as `authorization`.
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
        // The time limit of the endpoint ends with TCP; TLS may stall behind it.
        let connected = tokio::time::timeout(CONNECT_WITHIN, endpoint.connect()).await;
        let channel = connected.map_err(|_| DirectError::Unreachable {
            address: self.at.clone(),
            reason: format!("it did not answer within {CONNECT_WITHIN:?}"),
        })?;
        let client = PublisherClient::new(channel.map_err(unreachable)?);
        Ok(client.max_decoding_message_size(FRAME_BYTES_MAX + FRAME_HEAD_BYTES))
    }

    /// A call with what is sent with each.
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

    /// Why a call has ended, with what may be behind it where the connection ended before an answer.
    fn reason(&self, status: &Status, was_answered: bool) -> String {
        let (words, is_of_connection) = words_of(status);
        let hint = match self.tls {
            _ if !is_of_connection || was_answered => return words,
            None => "a publisher that serves by TLS ends connections without it",
            // It has said so.
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

/// What an instance reads, and how.
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

    /// The instance's name; by default one that no other has.
    #[must_use]
    pub fn instance(mut self, name: impl Into<String>) -> ConsumerConfig {
        self.instance = name.into();
        self
    }

    /// Reads these slices alone, and no other instance does; by default instances share all.
    #[must_use]
    pub fn pinned(mut self, slices: SliceRange) -> ConsumerConfig {
        self.pinned = Some(slices);
        self
    }

    /// Reads what passes; beside that, what the filter that is kept at the publisher lets pass.
    #[must_use]
    pub fn filter(mut self, filter: proto::Filter) -> ConsumerConfig {
        self.filter = Some(filter);
        self
    }

    /// Where a consumer begins that the publisher does not know: at the beginning by default.
    #[must_use]
    pub fn start(mut self, start: proto::Start) -> ConsumerConfig {
        self.start = start;
        self
    }

    /// Bytes that are read ahead: 2 MiB by default.
    #[must_use]
    pub fn credit_bytes(mut self, bytes: u64) -> ConsumerConfig {
        self.credit_bytes = bytes.max(1);
        self
    }
}

/// What an instance hears of its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerEvent {
    /// Slices are its.
    Assigned {
        /// Names the assignment.
        assignment: u64,
        /// The slices.
        slices: SliceRange,
        /// The offset that comes first.
        offset: i64,
        /// The epoch of the event before it.
        epoch: i32,
    },
    /// Events, or offsets in which there are none for it.
    Records {
        /// Of which assignment.
        assignment: u64,
        /// Where they begin.
        from: i64,
        /// Where they end.
        next: i64,
        /// Record batches of Kafka's format, whose CRCs were not checked.
        batches: Bytes,
        /// Where in these bytes each is.
        ranges: Vec<Range<usize>>,
    },
    /// It has to give the slices back: nothing more comes, of them or of others, before [`Consumer::release`] says that nothing runs
    /// any more.
    Revoking {
        /// Which assignment.
        assignment: u64,
    },
    /// The slices are others' already, or go on elsewhere.
    Lost {
        /// Which assignment.
        assignment: u64,
        /// The consumer was reset. Otherwise the publisher has not heard of this instance for too long.
        by_reset: bool,
    },
    /// Events from here on have gone through the kept filter as it is now.
    FilteredFrom {
        /// The first of them.
        offset: i64,
    },
}

/// An instance of a consumer. It leaves when it is dropped, as one that is lost.
#[derive(Debug)]
pub struct Consumer {
    config: ConsumerConfig,
    /// The offset behind what was brought last; none without slices.
    position: Option<i64>,
    inbox: Arc<Inbox>,
    task: JoinHandle<()>,
}

impl Consumer {
    /// Connects in the background, and stays so.
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

    /// What happens next. The future may be dropped at will, and loses nothing.
    ///
    /// # Errors
    /// Why the subscription cannot go on. A publisher that is away is no such reason, nor a connection that was lost: each attempt
    /// that fails is a warning in the log (`tracing`), which says why. [`DirectError::Tls`] is one before the first connection.
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

    /// Brings no records, and forgets none.
    pub fn hold(&mut self) {
        self.inbox.hold(true);
    }

    /// Brings them again.
    pub fn resume(&mut self) {
        self.inbox.hold(false);
    }

    /// The offset behind the last event of the stream, as its publisher said last, which it does every 5 s at least; none before the first
    /// connection.
    pub fn end(&self) -> Option<i64> {
        self.inbox.end()
    }

    /// What can say how far the instance is.
    pub fn positions(&self) -> Positions {
        Positions(self.inbox.clone())
    }

    /// Nothing of an assignment runs any more, and this is what was done of it: the answer to [`ConsumerEvent::Revoking`].
    pub fn release(&mut self, done: Done) {
        self.position = None;
        self.inbox.release(done);
    }

    /// Has another filter kept at the publisher, for all instances; [`ConsumerEvent::FilteredFrom`] says from where on it holds.
    /// Where the publisher judges calls, it is [`Call::Manage`](crate::Call::Manage); refused, the subscription ends.
    pub fn keep_filter(&mut self, filter: proto::Filter) {
        self.inbox.keep_filter(filter);
    }

    /// Goes, after the publisher has confirmed what was done, for which it has 5 s; it is connected to again where it is away.
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

/// Says how far an instance is.
#[derive(Debug, Clone)]
pub struct Positions(Arc<Inbox>);

impl Positions {
    /// What was done of an assignment; one that has ended is ignored. It is sent soon, and again after a reconnection.
    pub fn done(&self, done: Done) {
        self.0.done(done);
    }

    /// The assignment that the instance has now, if it has one.
    pub fn assignment(&self) -> Option<u64> {
        self.0.assignment()
    }
}

/// Connects again and again until the instance has left or cannot go on.
async fn run(config: ConsumerConfig, inbox: Arc<Inbox>) {
    keep_connected(&config, &inbox, || connected(&config, &inbox)).await;
}

/// The same, by connections of `connect`, each until it ends; `Ok` if the instance has left by that.
///
/// What cannot be right without a change of certificates or of the address fails before the first connection; later it is tried
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
            // What it has done is said at once.
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

/// A number that no other process, and no other call, is likely to have.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Not all that have lost a publisher come back at one time.
fn jittered(wait: Duration) -> Duration {
    let jitter = random() % 1_000;
    wait.mul_f64(0.75 + jitter as f64 / 2_000.0)
}

/// The wait after this one.
fn longer(config: &ConsumerConfig, wait: Duration) -> Duration {
    let max = if config.address.is_local() { RETRY_MAX_LOCAL } else { RETRY_MAX };
    (wait * 2).min(max)
}

/// One connection, until it ends; `Ok` if the instance has left.
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
            // A later version of the protocol may say more.
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

/// What a status means for the subscription.
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
