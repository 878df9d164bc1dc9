//! The gate of a connection, which decides about a frame before it is served.
//!
//! A listener without SASL or TLS has none. On a listener with SASL, frames go to the authenticator until the principal is
//! known, and again while the session is renewed (KIP-368). In between they are served until the session is over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_lines::OneLine;
use mainstem_security::tls::TlsSession;
use mainstem_security::{Admission, Authenticator, Failure, Now, Session, Step, StepContext};
use mainstem_wire::{ApiKey, frame};

use crate::connection::CloseReason;
use crate::counters::ListenerAuthentications;
use crate::handled::{ClientState, Handled};
use crate::output::ResponseBuffer;
use crate::unauthenticated::Permit;
use crate::{Net, Service};
use mainstem_listener_security::{SaslSettings, TlsSettings};
use mainstem_requests::context::ConnectionContext;
use mainstem_runtime::clock::Clock;
use mainstem_runtime::random;

/// The largest frame during a handshake, if the gate has no other limit.
const FIRST_FRAME_BYTES_MAX: usize = 512 * 1024;

/// The authentication that a connection has to pass before its requests are served.
pub enum Gate {
    /// The listener requires none, or the connection has passed it.
    Open,
    /// The handshake of TLS alone.
    Tls(Box<TlsGate>),
    /// SASL, over TLS if the listener has that.
    Sasl(Box<SaslGate>),
}

/// A connection of a listener without SASL whose session is not begun yet.
pub struct TlsGate {
    settings: Arc<TlsSettings>,
    permit: Permit,
    deadline: Instant,
}

impl TlsGate {
    /// Waits for the handshake of a connection that has just been accepted.
    pub fn new(settings: Arc<TlsSettings>, permit: Permit, deadline: Instant) -> TlsGate {
        TlsGate { settings, permit, deadline }
    }
}

/// The authentication of a connection by SASL, and the session that it gave.
pub struct SaslGate {
    /// The listener's settings when the authentication began: the connection's, or the session renewal's.
    settings: Arc<SaslSettings>,
    state: State,
}

enum State {
    /// The principal is not known yet. The permit and the time are bounded.
    Unauthenticated { authenticator: Authenticator, permit: Permit, deadline: Instant },
    /// The session's principal, with a renewal that may be running.
    Session { session: Session, renewal: Option<Authenticator> },
    /// It has failed; nothing more is read. The connection keeps its permit until it has ended.
    Refused(Option<Permit>),
}

/// A frame with its connection, and the buffer for its answer.
pub struct Frame<'a> {
    /// Its bytes without the length.
    pub bytes: &'a [u8],
    /// The connection, which changes when it is authenticated.
    pub context: &'a mut Arc<ConnectionContext>,
    /// The state of the client between requests.
    pub client: &'a mut ClientState,
    /// Takes the answer.
    pub response: &'a mut ResponseBuffer,
}

impl Frame<'_> {
    fn serve(self, service: &dyn Service) -> Handled {
        service.serve(self.context, self.client, self.bytes, self.response)
    }
}

impl Gate {
    /// Serves a frame, or has it authenticate the connection.
    pub fn handle(&mut self, net: &Net, service: &dyn Service, frame: Frame<'_>) -> Handled {
        match self {
            Gate::Open => frame.serve(service),
            // Nothing is in clear before the handshake is over.
            Gate::Tls(_) => Handled::Silent,
            Gate::Sasl(gate) => gate.handle(net, service, frame),
        }
    }

    /// The deadline for the authentication; none if the connection is authenticated, or need not be.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Gate::Sasl(gate) => match &gate.state {
                State::Unauthenticated { deadline, .. } => Some(*deadline),
                _ => None,
            },
            Gate::Tls(gate) => Some(gate.deadline),
            Gate::Open => None,
        }
    }

    /// The largest frame as long as the connection is not authenticated; none if it is, or need not be.
    pub fn frame_bytes_max(&self) -> Option<usize> {
        match self {
            Gate::Sasl(gate) => {
                let is_known = matches!(gate.state, State::Session { .. } | State::Refused(None));
                (!is_known).then_some(gate.settings.receive_bytes_max)
            }
            Gate::Tls(_) => Some(FIRST_FRAME_BYTES_MAX),
            Gate::Open => None,
        }
    }

    /// The permit of a connection that is not authenticated.
    pub fn permit(&mut self) -> Option<&mut Permit> {
        match self {
            Gate::Sasl(gate) => match &mut gate.state {
                State::Unauthenticated { permit, .. } | State::Refused(Some(permit)) => Some(permit),
                State::Session { .. } | State::Refused(None) => None,
            },
            Gate::Tls(gate) => Some(&mut gate.permit),
            Gate::Open => None,
        }
    }

    /// Notes that the handshake of the connection's session is over. If the gate asks for nothing else, the principal is that of the
    /// client's certificate, or anonymous. `session` is the TLS session, if it is one.
    pub fn encrypted(
        &mut self,
        net: &Net,
        context: &mut Arc<ConnectionContext>,
        session: Option<&TlsSession>,
    ) -> Result<(), CloseReason> {
        match self {
            Gate::Open => return Ok(()),
            Gate::Sasl(_) => {
                let permit = self.permit();
                permit.into_iter().for_each(|permit| permit.progressed(now(net).monotonic_ms));
                return Ok(());
            }
            Gate::Tls(gate) => {
                // Another session shows no certificate, so the client is not known, and the deadline ends the connection.
                let Some(session) = session else { return Ok(()) };
                let principal = session.principal(&gate.settings.mapping()).map_err(|error| {
                    authentications(net, context).failed(false);
                    CloseReason::NotAuthenticated(OneLine(&error.to_string()).to_string())
                })?;
                *context = Arc::new(context.authenticated(&principal.to_string()));
            }
        }
        authentications(net, context).succeeded(false);
        tracing::debug!(
            peer = %context.peer, connection = context.id, principal = %OneLine(&context.principal),
            protocol = session.and_then(TlsSession::protocol), cipher = session.and_then(TlsSession::cipher_suite),
            "connected by TLS"
        );
        *self = Gate::Open;
        Ok(())
    }
}

impl SaslGate {
    /// Waits for the first frame of a connection that has just been accepted.
    pub fn new(settings: Arc<SaslSettings>, permit: Permit, deadline: Instant) -> SaslGate {
        let authenticator = Authenticator::new(settings.rules.clone());
        SaslGate { settings, state: State::Unauthenticated { authenticator, permit, deadline } }
    }

    /// As [`Gate::handle`]. A session that lasts costs a request nothing.
    fn handle(&mut self, net: &Net, service: &dyn Service, frame: Frame<'_>) -> Handled {
        if let State::Session { session, renewal: None } = &self.state
            && !session.ends()
        {
            return frame.serve(service);
        }
        let now = now(net);
        let step = match &mut self.state {
            State::Refused(_) => return Handled::Silent,
            State::Unauthenticated { authenticator, permit, .. } => {
                permit.progressed(now.monotonic_ms);
                step(authenticator, service, &self.settings, &frame, now)
            }
            State::Session { renewal: Some(authenticator), .. } => {
                step(authenticator, service, &self.settings, &frame, now)
            }
            State::Session { session, renewal } => match admit(session, frame.bytes, now) {
                Admission::Serve => return frame.serve(service),
                Admission::Expired => {
                    authentications(net, frame.context).expired();
                    return Handled::Close(CloseReason::SessionExpired);
                }
                Admission::Renew => {
                    // A user of the last authentication may not exist any more.
                    if let Some(settings) = service.sasl(frame.context.listener) {
                        self.settings = settings;
                    }
                    let authenticator =
                        renewal.insert(Authenticator::again(self.settings.rules.clone(), session));
                    step(authenticator, service, &self.settings, &frame, now)
                }
            },
        };
        self.follow(net, service, frame, step)
    }

    /// Does what the authenticator has decided.
    fn follow(&mut self, net: &Net, service: &dyn Service, frame: Frame<'_>, step: Step) -> Handled {
        frame.client.api = api_of(frame.bytes);
        if let (Some(api), false) = (frame.client.api, matches!(step, Step::Ask { .. })) {
            net.counters.received(api, frame.bytes.len());
        }
        match step {
            Step::Ask { .. } => frame.serve(service),
            Step::Reply(reply) => {
                frame.response.bytes.extend_from_slice(&reply);
                Handled::Answered
            }
            Step::Done { reply, session } => {
                frame.response.bytes.extend_from_slice(&reply);
                self.authenticated(net, frame.context, session);
                Handled::Answered
            }
            Step::Fail(failure) => self.refused(net, frame.context, failure),
        }
    }

    fn authenticated(&mut self, net: &Net, context: &mut Arc<ConnectionContext>, authenticated: Session) {
        if let State::Session { session, renewal } = &mut self.state {
            authentications(net, context).succeeded(true);
            session.renew(authenticated);
            *renewal = None;
            return;
        }
        authentications(net, context).succeeded(false);
        *context = Arc::new(context.authenticated(&authenticated.principal.to_string()));
        tracing::debug!(
            peer = %context.peer, connection = context.id, principal = %OneLine(&context.principal),
            "authenticated by {}", authenticated.mechanism
        );
        self.state = State::Session { session: authenticated, renewal: None };
    }

    /// The connection ends. The answer to credentials that were refused is held back for a while, which slows
    /// down guessing.
    fn refused(&mut self, net: &Net, context: &ConnectionContext, failure: Failure) -> Handled {
        let permit = match std::mem::replace(&mut self.state, State::Refused(None)) {
            State::Unauthenticated { permit, .. } => Some(permit),
            // The connection was authenticated before.
            _ => None,
        };
        let again = permit.is_none();
        if let Some(permit) = &permit {
            permit.refused();
        }
        self.state = State::Refused(permit);
        let reason = CloseReason::NotAuthenticated(OneLine(&failure.detail).to_string());
        if !failure.is_refusal {
            return Handled::Close(reason);
        }
        authentications(net, context).failed(again);
        let delay = net.config().authentication.failed_delay;
        let response = Box::pin(last_words(net.clock.clone(), failure.reply, delay));
        Handled::Last { response, reason }
    }
}

/// The answer after which a connection ends, when it is time.
async fn last_words(clock: Clock, reply: Option<Vec<u8>>, delay: Duration) -> Result<ResponseBuffer, String> {
    clock.sleep(delay).await;
    let mut response = ResponseBuffer::default();
    response.bytes = reply.unwrap_or_default();
    Ok(response)
}

fn step(
    authenticator: &mut Authenticator,
    service: &dyn Service,
    settings: &SaslSettings,
    frame: &Frame<'_>,
    now: Now,
) -> Step {
    let users = service.users(settings);
    let mut random = || u128::from_ne_bytes(random::bytes());
    authenticator.step(frame.bytes, StepContext { now, credentials: &*users, random: &mut random })
}

fn admit(session: &mut Session, frame: &[u8], now: Now) -> Admission {
    match api_of(frame) {
        Some(api) => session.admit(api, now),
        // What has no API is refused when it is served, unless the session is over.
        None => session.admit(ApiKey::ApiVersions, now),
    }
}

fn api_of(bytes: &[u8]) -> Option<ApiKey> {
    frame::open_request(bytes).ok().map(|open| open.api_key)
}

fn now(net: &Net) -> Now {
    let now = net.clock.now();
    Now { monotonic_ms: now.mono_ms, wall_ms: now.wall_ms }
}

/// The counts of authentications at the listener of a connection.
pub(crate) fn authentications(net: &Net, context: &ConnectionContext) -> Arc<ListenerAuthentications> {
    let endpoint = &net.config().listeners.open[context.listener];
    net.counters.authentications.of(&endpoint.listener)
}
