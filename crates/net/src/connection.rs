//! One connection: read requests, serve them in order, write responses in order.
//!
//! A request passes two stages. *Ordered*: it is decoded and acts (a produce appends) before the next one is looked at.
//! *Finished*: its response is encoded, perhaps later, and leaves after those of the requests before it. A produce that waits
//! for the disk does not hold back the next request. Any other request that waits (a long poll, a join) does, as in Kafka.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use mainstem_security::tls::{TlsError, is_client_hello};
use mainstem_wire::ApiKey;
use mainstem_wire::frame::FrameError;
use tokio::io::AsyncReadExt;

use crate::answers::{AnswerShare, LARGE_ANSWER_BYTES};
use crate::authentication::{Frame, Gate, authentications};
use crate::buffers::RequestMemory;
use crate::event_loop::Placement;
use crate::handled::{ClientState, Handled, Later};
use crate::input::{FillContext, Input};
use crate::output::ResponseBuffer;
use crate::transport::{self, Transport};
use crate::unauthenticated::Permit;
use crate::{Net, Service};
use mainstem_requests::context::ConnectionContext;
use mainstem_runtime::clock::{Timer, machine_timeout};
use mainstem_runtime::heap;
use mainstem_runtime::wake;

/// Requests of one connection that may wait for the disk at the same time.
const IN_FLIGHT_MAX: usize = 128;

/// Response bytes that may wait for a slow reader before its next request is served.
const BACKLOG_BYTES_MAX: usize = 256 * 1024;

/// The cost of a received byte in sent ones: it is copied and checked, while bytes from a file are only referred to. So readers
/// of the records of two fast producers can keep up.
const RECEIVED_COST: usize = 4;

/// Time for which a connection serves requests before others on its loop get their turn; one request may take longer.
const TURN_TIME_MAX: Duration = Duration::from_millis(1);

/// Requests after which a connection asks whether its loop is overloaded.
const RELIEF_INTERVAL: u32 = 1024;

/// The longest pause of a large request's sender while others wait for memory.
const STALLED_SENDER: Duration = Duration::from_secs(1);

/// While others wait for memory, a large request has to arrive in this time, plus one second per
/// [`SLOW_SENDER_BYTES_PER_SECOND`].
const SLOW_SENDER_GRACE: Duration = Duration::from_secs(10);
const SLOW_SENDER_BYTES_PER_SECOND: usize = 1 << 20;

/// The interval in which the progress of a large request is checked.
const SLOW_SENDER_CHECK: Duration = Duration::from_millis(500);

const _: () =
    assert!(LARGE_ANSWER_BYTES == 2 * BACKLOG_BYTES_MAX, "an answer may come behind what waits already");

/// The longest pause of a large answer's reader while other large answers are refused for lack of memory.
const STALLED_READER: Duration = Duration::from_secs(1);

/// The time for which the bytes that a client sends after a last answer are dropped, up to [`LINGER_BYTES_MAX`].
const LINGER_TIME_MAX: Duration = Duration::from_secs(1);
/// The part of that time for which the end of the connection is held back after the last answer. Most clients close it
/// themselves then. A client that sees both at once may take it for a lost connection and retry (kafka-python).
const ANSWER_ALONE_TIME: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 64 * 1024;

/// The answer of a listener without TLS to a client that begins a TLS session: a fatal alert, `unexpected_message` (RFC 8446,
/// 6.2). Many clients would retry after the end of the stream alone.
const NO_TLS_HERE: [u8; 7] = [21, 3, 3, 0, 2, 2, 10];

/// The reason for which a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum CloseReason {
    /// The peer closed it, between requests.
    #[error("the client closed the connection")]
    PeerClosed,
    /// The peer closed it within a request.
    #[error("the client closed the connection within a request")]
    PeerClosedWithinRequest,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The bytes are no request.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A request was understood so far that only closing is left.
    #[error("{0}")]
    Refused(String),
    /// Nothing happened for `connections.max.idle.ms`.
    #[error("nothing was received or sent for {0:?} (connections.max.idle.ms)")]
    Idle(Duration),
    /// A large request arrived too slowly while others waited for memory.
    #[error("a request of {0} bytes arrived too slowly while others waited for queued.max.request.bytes")]
    SlowSender(usize),
    /// There is no memory for a large answer.
    #[error("an answer of {0} bytes does not fit beside what other connections have not read")]
    NoMemoryForAnswer(usize),
    /// A large answer is not read while others are refused theirs.
    #[error("an answer of {0} bytes was not read while others had no room for theirs")]
    SlowReader(u64),
    /// The client did not authenticate, or its credentials were refused.
    #[error("authentication failed: {0}")]
    NotAuthenticated(String),
    /// The session could not be begun, or its peer broke the protocol.
    #[error("TLS: {0}")]
    Tls(TlsError),
    /// The client begins a session at a listener without TLS.
    #[error(
        "the client speaks TLS, which this listener does not: give it the port of a listener with SSL or SASL_SSL, \
             or have it use PLAINTEXT or SASL_PLAINTEXT"
    )]
    SpeaksTls,
    /// The client did not authenticate in time.
    #[error("it was not authenticated within {0:?} (mainstem.authentication.timeout.ms)")]
    AuthenticatesTooSlowly(Duration),
    /// Its permit as an unauthenticated connection was given to another one.
    #[error(
        "it was not authenticated, and others came since (mainstem.unauthenticated.connections.max, a tenth for each \
         address)"
    )]
    NoPermit,
    /// The session was over, and the client did not renew it.
    #[error("its session is over and was not renewed (connections.max.reauth.ms)")]
    SessionExpired,
    /// The broker stops.
    #[error("the broker stops")]
    Stopping,
    /// The node knows of no leader of anything: the client is to ask another one.
    #[error("this node is cut off from the others")]
    CutOff,
    /// The loop is overloaded and the connection moves to another; not an end.
    #[error("the connection moves to another event loop")]
    Moves,
}

impl CloseReason {
    /// Returns true if the client has to read the last answer: otherwise it would retry for ever.
    fn has_last_words(&self) -> bool {
        matches!(self, Self::NotAuthenticated(_) | Self::Tls(_) | Self::SpeaksTls)
    }

    /// Returns true if an unauthenticated peer causes this, as often as it connects.
    fn is_of_unauthenticated_peer(&self) -> bool {
        matches!(
            self,
            Self::NotAuthenticated(_)
                | Self::Tls(_)
                | Self::SpeaksTls
                | Self::AuthenticatesTooSlowly(_)
                | Self::NoPermit
        )
    }

    /// Returns true if an operator should read about it: it is neither ordinary nor the broker's own doing.
    fn is_noteworthy(&self) -> bool {
        !matches!(
            self,
            Self::PeerClosed | Self::Stopping | Self::CutOff | Self::Moves | Self::Idle(_) | Self::Io(_)
        )
    }
}

/// A connection's state between polls.
pub struct Connection {
    transport: Transport,
    context: Arc<ConnectionContext>,
    net: Arc<Net>,
    service: Arc<dyn Service>,
    input: Input,
    output: ResponseBuffer,
    in_flight: VecDeque<InFlight>,
    /// Bytes of the finished ones among them.
    finished_bytes: usize,
    /// The share of large answers in the memory for all connections.
    answers: AnswerShare,
    /// The last request in flight has to finish before the next one is served.
    blocked: bool,
    muted_until: Option<Instant>,
    /// Nothing more is read; the connection ends when what is in flight is sent.
    draining: Option<CloseReason>,
    /// The clock as it was last read: when this turn began, or when its last request was served.
    now: Instant,
    active_at: Instant,
    timer: Timer,
    client: ClientState,
    gate: Gate,
    /// True until the connection is authenticated.
    is_unauthenticated: bool,
    /// True if it ends with an answer.
    has_last_answer: bool,
    /// True if the handshake of its session was not over when that was checked last.
    is_handshaking: bool,
    served: u32,
    placement: Placement,
    /// True once the placement is on another loop.
    moves: bool,
}

/// A connection on its way from one loop to another: what it is beside its memory.
pub struct Moving {
    /// The socket with its session.
    pub transport: Transport,
    /// The connection.
    pub context: Arc<ConnectionContext>,
    /// The state of its authentication.
    pub gate: Gate,
    /// The loop to which it moves.
    pub placement: Placement,
}

enum InFlight {
    Finished(ResponseBuffer),
    Waiting(Waiting),
}

/// A request that is answered later.
struct Waiting {
    response: Later,
    api: Option<ApiKey>,
    since: Instant,
    /// Time that the loop spent on it before it waited.
    local: Duration,
}

impl Waiting {
    fn poll(&mut self, net: &Net, context: &mut Context<'_>) -> Poll<Result<ResponseBuffer, CloseReason>> {
        let Poll::Ready(response) = self.response.as_mut().poll(context) else { return Poll::Pending };
        if let (Some(api), Ok(response)) = (self.api, &response) {
            let local = self.local + response.in_background;
            net.counters.latencies.answered_later(api, net.clock.elapsed(self.since), local);
        }
        Poll::Ready(response.map_err(CloseReason::Refused))
    }
}

impl Connection {
    /// A connection that was just accepted (or moved); it has to be made on the loop that will serve it.
    pub fn new(
        transport: Transport,
        context: Arc<ConnectionContext>,
        (net, service): (Arc<Net>, Arc<dyn Service>),
        gate: Gate,
        placement: Placement,
    ) -> Self {
        let now = net.clock.instant();
        let idle = now + net.limits.connection_idle;
        let first_look = gate.deadline().map_or(idle, |deadline| deadline.min(idle));
        Connection {
            is_handshaking: transport.is_handshaking(),
            transport,
            context,
            input: Input::new(gate.frame_bytes_max().unwrap_or(net.limits.request_bytes_max)),
            output: ResponseBuffer::default(),
            in_flight: VecDeque::new(),
            finished_bytes: 0,
            answers: net.answers.begin(),
            blocked: false,
            muted_until: None,
            draining: None,
            now,
            active_at: now,
            timer: net.clock.timer(first_look),
            client: ClientState::default(),
            is_unauthenticated: gate.frame_bytes_max().is_some(),
            has_last_answer: false,
            gate,
            served: 0,
            placement,
            moves: false,
            net,
            service,
        }
    }

    /// Serves until the connection ends, and logs why where an operator should know.
    pub async fn serve(&mut self) {
        let net = self.net.clone();
        let mut stopping = std::pin::pin!(net.stopping.notified());
        let mut registered = false;
        let reason = poll_fn(|context| {
            // Polled once: it keeps this task's waker, and another poll would lock what all connections share.
            if !std::mem::replace(&mut registered, true) {
                let _ = stopping.as_mut().poll(context);
            }
            if net.stopping.is_stopping() {
                self.drain(CloseReason::Stopping);
            }
            self.poll(context)
        })
        .await;
        self.linger(&reason).await;
        if reason.is_noteworthy() {
            self.net.counters.closed();
            self.log_end(&reason);
        }
    }

    /// Logs the end of the connection, unless the limit on such lines is reached: peers may connect, and be refused, very often.
    fn log_end(&self, reason: &CloseReason) {
        let peer = self.context.peer;
        let (limiter, now) = (&self.net.unauthenticated, self.net.clock.instant());
        let is_shown = match reason.is_of_unauthenticated_peer() {
            true => limiter.may_log_refusal(now),
            false => limiter.may_log_closing(now),
        };
        if !is_shown {
            return;
        }
        tracing::warn!(%peer, connection = self.context.id, "connection closed: {reason}");
    }

    /// Returns the connection for another loop, if it did not end but moves.
    pub fn into_moving(self) -> Option<Moving> {
        let Connection { transport, context, gate, placement, moves, .. } = self;
        moves.then_some(Moving { transport, context, gate, placement })
    }

    /// Waits until the last answer has arrived. If a socket is closed with bytes unread, the system sends a reset. On a reset the
    /// client may drop bytes that it has not read yet, and retry for ever.
    async fn linger(&mut self, reason: &CloseReason) {
        match reason {
            CloseReason::Moves => return,
            CloseReason::SpeaksTls => self.transport.say_unsealed(&NO_TLS_HERE),
            _ if reason.has_last_words() => {}
            _ => return self.transport.say_goodbye(),
        }
        let alone = if self.has_last_answer { ANSWER_ALONE_TIME } else { Duration::ZERO };
        // On the heap, or every connection would hold memory that few of them need.
        Box::pin(end_in_time(&mut self.transport, self.gate.permit(), alone)).await;
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        self.now = self.net.clock.instant();
        wake::begin_turn(self.now);
        if self.has_lost_permit(context) {
            return Poll::Ready(CloseReason::NoPermit);
        }
        match self.poll_turn(context) {
            Poll::Ready(Err(reason)) => Poll::Ready(reason),
            Poll::Ready(Ok(())) => {
                wake::end_turn(context);
                Poll::Pending
            }
            Poll::Pending => self.poll_timer(context),
        }
    }

    /// Does all work that needs no waiting. Ready when a turn's share of bytes or time is used up, or when there is more to do
    /// and others were woken meanwhile. The peer is answered before they send, so that it works while they do.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CloseReason>> {
        let mut turn = self.transport.turn_bytes_max();
        let mut others_wait = false;
        loop {
            self.finish(context)?;
            self.count_answers()?;
            let before = turn;
            let send = self.output.poll_send(&mut self.transport, &self.net.cold_reads, &mut turn, context);
            if let Poll::Ready(Err(error)) = send {
                return Poll::Ready(Err(error.into()));
            }
            if turn < before {
                self.active_at = self.now;
            }
            if turn == 0 {
                return Poll::Ready(Ok(()));
            }
            if self.is_drained() {
                let reason = self.draining.take().expect("a drained connection has its reason");
                return Poll::Ready(Err(reason));
            }
            let progress = match self.may_serve() {
                true => self.poll_requests(&mut turn, context)?,
                false => self.poll_hang_up(context)?,
            };
            if !progress {
                return Poll::Pending;
            }
            if others_wait {
                return Poll::Ready(Ok(()));
            }
            others_wait = wake::woke_neighbour();
        }
    }

    /// Stage two: moves finished responses to the output, in the order of their requests.
    fn finish(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason> {
        while let Some(front) = self.in_flight.front_mut() {
            let (response, api) = match front {
                InFlight::Finished(response) => {
                    self.finished_bytes -= response.backlog();
                    (std::mem::take(response), None)
                }
                InFlight::Waiting(waiting) => match waiting.poll(&self.net, context) {
                    Poll::Ready(response) => (response?, waiting.api),
                    Poll::Pending => return self.poll_behind(context),
                },
            };
            self.in_flight.pop_front();
            self.output.append(response);
            self.check_output()?;
            self.apply_mute(api);
        }
        self.blocked = false;
        Ok(())
    }

    /// Polls what waits behind the front, so that each has its waker where it waits.
    fn poll_behind(&mut self, context: &mut Context<'_>) -> Result<(), CloseReason> {
        for entry in self.in_flight.iter_mut().skip(1) {
            if let InFlight::Waiting(waiting) = entry
                && let Poll::Ready(response) = waiting.poll(&self.net, context)
            {
                let mut response = response?;
                response.settle();
                self.answers.absorb(response.share.take());
                self.finished_bytes += response.backlog();
                *entry = InFlight::Finished(response);
            }
        }
        Ok(())
    }

    /// Fails when a response could not be encoded: what comes behind it would be taken for it.
    fn check_output(&mut self) -> Result<(), CloseReason> {
        self.output.unencodable.take().map_or(Ok(()), |why| Err(CloseReason::Refused(why)))
    }

    /// Counts what large answers hold; small ones are within what any connection may have waiting.
    fn count_answers(&mut self) -> Result<(), CloseReason> {
        self.answers.absorb(self.output.share.take());
        let held = self.output.backlog() + self.finished_bytes;
        let large = if held > LARGE_ANSWER_BYTES { held } else { 0 };
        if large as u64 != self.answers.bytes() && !self.answers.set(large) {
            return Err(CloseReason::NoMemoryForAnswer(large));
        }
        Ok(())
    }

    fn may_serve(&self) -> bool {
        !self.blocked
            && self.draining.is_none()
            && self.in_flight.len() < IN_FLIGHT_MAX
            && self.output.backlog() + self.finished_bytes < BACKLOG_BYTES_MAX
            && self.muted_until.is_none_or(|until| until <= self.net.clock.instant())
    }

    fn is_drained(&self) -> bool {
        self.draining.is_some()
            && self.in_flight.is_empty()
            && self.output.is_empty()
            && self.transport.is_flushed()
    }

    fn drain(&mut self, reason: CloseReason) {
        self.draining.get_or_insert(reason);
    }

    /// Serves what has been received, then reads once; what is read counts against the `turn`, and all of it is used
    /// up when serving takes long. Returns true if any progress was made. A request's time counts from the last reading of the
    /// clock: since its connection's turn began, or the request before it was served.
    fn poll_requests(&mut self, turn: &mut usize, context: &mut Context<'_>) -> Result<bool, CloseReason> {
        let mut began = None;
        while self.may_serve() {
            let Some(frame) = self.input.next_frame().map_err(no_frame)? else { break };
            let handled = match self.in_flight.is_empty() {
                true => {
                    if self.output.bytes.capacity() == 0 {
                        self.output = ResponseBuffer::pooled();
                    }
                    let frame = Frame {
                        bytes: frame,
                        context: &mut self.context,
                        client: &mut self.client,
                        response: &mut self.output,
                    };
                    self.gate.handle(&self.net, &*self.service, frame)
                }
                false => {
                    let mut response = ResponseBuffer::pooled();
                    let frame = Frame {
                        bytes: frame,
                        context: &mut self.context,
                        client: &mut self.client,
                        response: &mut response,
                    };
                    let handled = self.gate.handle(&self.net, &*self.service, frame);
                    // At once, not when those before it are answered.
                    self.output.mute = self.output.mute.max(response.mute.take());
                    if let Handled::Answered | Handled::AnsweredLast(_) = handled {
                        response.settle();
                        self.answers.absorb(response.share.take());
                        self.finished_bytes += response.backlog();
                        self.in_flight.push_back(InFlight::Finished(response));
                    }
                    handled
                }
            };
            self.served = self.served.wrapping_add(1);
            if self.is_unauthenticated {
                self.leave_authentication();
            }
            let before = std::mem::replace(&mut self.now, self.net.clock.instant());
            self.note(handled, before);
            self.check_output()?;
            self.active_at = self.now;
            if self.now - *began.get_or_insert(before) > TURN_TIME_MAX {
                *turn = 0;
                break;
            }
        }
        if began.is_none() {
            return self.poll_fill(turn, context);
        }
        self.input.rest();
        Ok(true)
    }

    fn poll_fill(&mut self, turn: &mut usize, context: &mut Context<'_>) -> Result<bool, CloseReason> {
        let filled = self.poll_receive(context);
        if self.is_handshaking && !self.transport.is_handshaking() {
            self.encrypted()?;
        }
        match filled {
            Poll::Ready(Ok(0)) if self.input.is_empty() => self.drain(CloseReason::PeerClosed),
            Poll::Ready(Ok(0)) => return Err(CloseReason::PeerClosedWithinRequest),
            Poll::Ready(Ok(read)) => {
                self.active_at = self.now;
                *turn = turn.saturating_sub(RECEIVED_COST * read);
            }
            Poll::Ready(Err(error)) => return Err(self.receive_failed(error)),
            Poll::Pending => {
                self.input.rest();
                return self.seek_relief().map(|()| false);
            }
        }
        Ok(true)
    }

    /// Reads once; how many bytes. Takes a buffer only when there is something to put into it.
    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // Of a large request it has to be known since when its sender sends nothing.
        if self.input.large_progress().is_none() {
            ready!(self.transport.poll_readable(context))?;
        }
        let memory = memory(&self.net, self.is_unauthenticated);
        let fill = FillContext { memory, peer: self.context.peer.ip(), now: self.now };
        self.input.poll_fill(&mut self.transport, fill, context)
    }

    /// While a request holds back the next one, reads ahead at most one buffer, to learn when the peer goes away.
    fn poll_hang_up(&mut self, context: &mut Context<'_>) -> Result<bool, CloseReason> {
        if self.blocked && self.draining.is_none() && self.input.is_empty() {
            let filled = self.poll_receive(context);
            self.input.rest();
            match filled {
                Poll::Ready(Ok(0)) => return Err(CloseReason::PeerClosed),
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
        Ok(false)
    }

    /// Takes over what became of a request that was begun at an instant, as of now.
    fn note(&mut self, handled: Handled, since: Instant) {
        let (api, local) = (self.client.api, self.now - since);
        self.apply_mute(api);
        if let Handled::Answered | Handled::AnsweredLast(_) = handled
            && let Some(api) = api
        {
            self.net.counters.latencies.answered_at_once(api, local);
        }
        match handled {
            Handled::Answered => {}
            Handled::AnsweredLast(reason) => self.drain(reason),
            Handled::Silent => {}
            Handled::Later { response, holds } => {
                self.blocked |= holds;
                self.in_flight.push_back(InFlight::Waiting(Waiting { response, api, since, local }));
            }
            Handled::Close(reason) => self.drain(reason),
            Handled::Last { response, reason } => {
                self.has_last_answer = true;
                self.in_flight.push_back(InFlight::Waiting(Waiting { response, api, since, local }));
                self.drain(reason);
            }
        }
    }

    /// Does not read for as long as an answer to a request of this API says.
    fn apply_mute(&mut self, api: Option<ApiKey>) {
        if let Some(delay) = self.output.mute.take() {
            if let Some(api) = api {
                self.net.counters.latencies.throttled(api, delay);
            }
            let until = self.net.clock.instant() + delay;
            let until = self.muted_until.map_or(until, |muted| muted.max(until));
            self.muted_until = Some(until);
            self.timer.reset(until);
        }
    }

    /// Lifts the limits of an unauthenticated connection once it is authenticated. It moves to a loop for data at the next pause.
    fn leave_authentication(&mut self) {
        if self.gate.frame_bytes_max().is_none() {
            self.is_unauthenticated = false;
            heap::freed(heap::LOGIN_BYTES);
            self.input.set_frame_bytes_max(self.net.limits.request_bytes_max);
            self.served = RELIEF_INTERVAL;
        }
    }

    /// The handshake of its session is over.
    fn encrypted(&mut self) -> Result<(), CloseReason> {
        self.is_handshaking = false;
        if let Some(tls) = self.service.tls(self.context.listener) {
            self.transport.count_session(tls.handshakes());
        }
        self.gate.encrypted(&self.net, &mut self.context, self.transport.tls())?;
        self.leave_authentication();
        Ok(())
    }

    /// Returns the reason for which the connection ends when nothing can be received.
    fn receive_failed(&self, error: std::io::Error) -> CloseReason {
        let Some(of_session) = transport::tls_error(&error) else { return error.into() };
        if self.is_handshaking {
            authentications(&self.net, &self.context).failed(false);
            let tls = self.service.tls(self.context.listener);
            tls.into_iter().for_each(|tls| tls.handshakes().failed());
        }
        CloseReason::Tls(of_session.clone())
    }

    /// Returns true if its permit was revoked in favour of another connection.
    fn has_lost_permit(&mut self, context: &mut Context<'_>) -> bool {
        self.gate.permit().is_some_and(|permit| Pin::new(permit.revoked()).poll(context).is_ready())
    }

    /// Between requests, a connection of a busy loop moves to a free one.
    fn seek_relief(&mut self) -> Result<(), CloseReason> {
        let is_at_rest = self.input.is_empty() && self.output.is_empty() && self.transport.is_at_rest();
        if self.served < RELIEF_INTERVAL || !is_at_rest {
            return Ok(());
        }
        self.served = 0;
        if self.in_flight.is_empty() {
            let reads = self.client.api == Some(ApiKey::Fetch);
            self.moves = self.placement.relieve(reads);
        }
        if self.moves { Err(CloseReason::Moves) } else { Ok(()) }
    }

    /// Nothing can be done now: is it time to give up, or to go on after a delay?
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        if self.input.large_progress().is_some() || self.answers.bytes() > 0 {
            self.look_by(self.net.clock.instant() + SLOW_SENDER_CHECK);
        }
        let mut look_again = wake::look_again();
        if let Some(instant) = look_again {
            self.look_by(instant);
        }
        while self.timer.poll(context).is_ready() {
            let now = self.net.clock.instant();
            if self.muted_until.is_some_and(|until| until <= now) {
                self.muted_until = None;
                context.waker().wake_by_ref();
            }
            if look_again.take_if(|instant| *instant <= now).is_some() {
                context.waker().wake_by_ref();
            }
            match self.overdue(now) {
                Err(reason) => return Poll::Ready(reason),
                Ok(next) => self.timer.reset(look_again.map_or(next, |instant| instant.min(next))),
            }
        }
        Poll::Pending
    }

    /// Makes the timer end at an instant at the latest. An earlier one stays: a useless look now and then costs less.
    fn look_by(&mut self, instant: Instant) {
        if self.timer.deadline() > instant {
            self.timer.reset(instant);
        }
    }

    /// Returns the time of the next look, or the reason for which the connection ends now.
    fn overdue(&self, now: Instant) -> Result<Instant, CloseReason> {
        let idle = self.net.limits.connection_idle;
        let deadline = self.gate.deadline();
        if deadline.is_some_and(|deadline| deadline <= now) && self.draining.is_none() {
            let allowed = self.net.config().authentication.timeout;
            return Err(CloseReason::AuthenticatesTooSlowly(allowed));
        }
        let mut next = self.active_at + idle;
        if next <= now && self.in_flight.is_empty() && self.muted_until.is_none() {
            return Err(CloseReason::Idle(idle));
        }
        if next <= now {
            next = now + idle;
        }
        if let Some(progress) = self.input.large_progress() {
            let bytes = progress.frame_bytes;
            let allowed =
                SLOW_SENDER_GRACE + Duration::from_secs((bytes / SLOW_SENDER_BYTES_PER_SECOND) as u64);
            // Not its fault while this side does not read.
            let may_send = !progress.waits_for_memory && self.muted_until.is_none();
            let is_stalled = progress.starved_since.is_some_and(|since| since + STALLED_SENDER <= now);
            let is_slow = progress.since + allowed <= now;
            if may_send
                && (is_stalled || is_slow)
                && memory(&self.net, self.is_unauthenticated).is_contended()
            {
                return Err(CloseReason::SlowSender(bytes));
            }
            next = next.min(now + SLOW_SENDER_CHECK);
        }
        if self.answers.bytes() > 0 {
            if self.active_at + STALLED_READER <= now && self.net.answers.is_contended() {
                return Err(CloseReason::SlowReader(self.answers.bytes()));
            }
            next = next.min(now + SLOW_SENDER_CHECK);
        }
        if let Some(until) = self.muted_until.into_iter().chain(deadline).min() {
            next = next.min(until);
        }
        Ok(next)
    }
}

/// Returns the reason for which there is no frame. The beginning of a TLS session looks like a length beyond any bound.
fn no_frame(error: FrameError) -> CloseReason {
    match error {
        FrameError::Length { len, .. } if is_client_hello(&(len as u32).to_be_bytes()[..3]) => {
            CloseReason::SpeaksTls
        }
        error => error.into(),
    }
}

/// Ends a connection that was refused: after the client has read the last bytes, or immediately if its permit is given to
/// another connection.
async fn end_in_time(transport: &mut Transport, permit: Option<&mut Permit>, alone: Duration) {
    // What the client does with its end of the connection takes the machine's time.
    let end = machine_timeout(LINGER_TIME_MAX, end(transport, alone));
    let Some(permit) = permit else {
        // However it ends, the connection does.
        let _ = end.await;
        return;
    };
    heap::freed(heap::LOGIN_BYTES);
    permit.refused();
    tokio::select! {
        _ = end => {}
        _ = permit.revoked() => {}
    }
}

/// Ends a connection behind what was sent last, for which the peer has some time alone; drops what it sends meanwhile.
async fn end(transport: &mut Transport, alone: Duration) {
    let mut left = LINGER_BYTES_MAX;
    if !alone.is_zero() {
        let _ = poll_fn(|context| transport.poll_flush(context)).await;
        if machine_timeout(alone, drop_rest(transport, &mut left)).await.is_ok() {
            return;
        }
    }
    let _ = poll_fn(|context| transport.poll_shutdown(context)).await;
    drop_rest(transport, &mut left).await;
}

/// Reads and drops what a peer sends, up to its end.
async fn drop_rest(transport: &mut Transport, left: &mut usize) {
    let mut dropped = [0; 4096];
    while *left > 0 {
        match transport.socket().read(&mut dropped).await {
            Ok(0) | Err(_) => return,
            Ok(read) => *left = left.saturating_sub(read),
        }
    }
}

/// The memory for large requests. Unauthenticated connections have their own.
fn memory(net: &Net, is_unauthenticated: bool) -> &Arc<RequestMemory> {
    if is_unauthenticated { &net.unauthenticated_memory } else { &net.request_memory }
}
