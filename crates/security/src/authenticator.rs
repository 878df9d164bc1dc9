//! The authentication of a SASL connection, from its first frame to its principal.
//!
//! ```text
//!          ApiVersions           SaslHandshake               token, token ...
//!  Start ───────────────▶ Named ────────────────▶ Exchange ───────────────────▶ Done(Session)
//!    └──────────────SaslHandshake──────────────────▲ │
//!                                                    └─ a refusal ▶ Fail, with what the peer is sent
//! ```
//!
//! The tokens are the bodies of SaslAuthenticate after SaslHandshake v1, and bare frames after v0. A session may be
//! renewed on the same connection (KIP-368): [`Session::admit`] says when, and [`Authenticator::again`] begins at
//! the handshake. Any other request ends the connection before its body is looked at.
//!
//! Differences from Kafka: a re-authentication with another mechanism gets an error (Kafka closes the connection), and bytes that are no
//! Kafka request are never taken for a GSSAPI token.

mod session;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_wire::frame::{self, OpenRequest, Version};
use mainstem_wire::messages::api_versions_request::ApiVersionsRequest;
use mainstem_wire::messages::sasl_authenticate_request::SaslAuthenticateRequest;
use mainstem_wire::messages::sasl_authenticate_response::SaslAuthenticateResponse;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;
use mainstem_wire::messages::sasl_handshake_response::SaslHandshakeResponse;
use mainstem_wire::{ApiKey, ErrorCode, Message};

pub use session::{Admission, Now, Session};

use crate::KafkaPrincipal;
use crate::sasl::{Credentials, Identity, Mechanism, Progress, Refusal, ServerExchange};

/// The SASL settings of a listener.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SaslRules {
    /// The mechanisms that clients may choose, in the order in which they are named to them.
    pub mechanisms: Vec<Mechanism>,
    /// `connections.max.reauth.ms` of each mechanism; none or 0 lets a session last.
    pub max_reauth_ms: BTreeMap<Mechanism, u64>,
}

/// The inputs of a step from outside.
pub struct StepContext<'a> {
    /// The time.
    pub now: Now,
    /// The users that may log in.
    pub credentials: &'a dyn Credentials,
    /// Makes 128 random bits, for a nonce.
    pub random: &'a mut dyn FnMut() -> u128,
}

/// The result of a frame.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "what was decided has to be sent"]
pub enum Step {
    /// Send this frame and wait for the next one.
    Reply(Vec<u8>),
    /// The frame is an ApiVersions request: answer it as on any connection and wait for the next one.
    Ask {
        /// Name and version of the client's software (KIP-511), if it gave any.
        software: Option<(String, String)>,
    },
    /// Send this frame; the connection belongs to the session's principal from now on.
    Done {
        /// The last frame of the exchange.
        reply: Vec<u8>,
        /// The principal, and the time for which it is authenticated.
        session: Session,
    },
    /// Send the answer, if there is one, and close.
    Fail(Failure),
}

/// The reason why a connection ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The frame with the error for the peer. `connection.failed.authentication.delay.ms` delays it, and the close.
    pub reply: Option<Vec<u8>>,
    /// For the log.
    pub detail: String,
    /// True if credentials were refused, which counts as a failed authentication; otherwise the peer does not speak the protocol.
    pub is_refusal: bool,
}

/// The authentication of one connection.
#[derive(Debug)]
pub struct Authenticator {
    rules: Arc<SaslRules>,
    state: State,
    /// The mechanism and principal of the session before, if this is a re-authentication.
    previous: Option<(Mechanism, KafkaPrincipal)>,
    /// True if a SaslAuthenticate of version 1 came, whose clients renew their sessions.
    client_renews: bool,
}

#[derive(Debug)]
enum State {
    /// It waits for ApiVersions or SaslHandshake.
    Start,
    /// It waits for SaslHandshake.
    Named,
    /// It waits for tokens.
    Exchange { mechanism: Mechanism, exchange: ServerExchange, has_headers: bool },
    /// It waits for a token, which is refused: the handshake named another mechanism than before.
    OtherMechanism { refusal: String },
    /// Ended.
    Over,
}

/// The fields of a request that its answer needs.
#[derive(Clone, Copy)]
struct Asked {
    api_key: ApiKey,
    version: i16,
    correlation_id: i32,
}

impl Authenticator {
    /// Waits for the first frame of a connection.
    pub fn new(rules: Arc<SaslRules>) -> Authenticator {
        Authenticator { rules, state: State::Start, previous: None, client_renews: false }
    }

    /// Waits for the handshake that [`Session::admit`] let through, to renew the session.
    pub fn again(rules: Arc<SaslRules>, session: &Session) -> Authenticator {
        let previous = Some((session.mechanism, session.principal.clone()));
        Authenticator { rules, state: State::Named, previous, client_renews: session.client_renews }
    }

    /// Returns true if an authenticated connection renews its session.
    pub fn is_again(&self) -> bool {
        self.previous.is_some()
    }

    /// Takes the body of a frame. Nothing may come after [`Step::Done`] or [`Step::Fail`].
    pub fn step(&mut self, frame: &[u8], context: StepContext<'_>) -> Step {
        let step = match std::mem::replace(&mut self.state, State::Over) {
            State::Exchange { mechanism, exchange, has_headers } => {
                self.token(frame, mechanism, exchange, has_headers, context)
            }
            State::OtherMechanism { refusal } => Self::refuse_mechanism(frame, refusal),
            State::Over => Err(protocol("a frame came after the end of the authentication")),
            state => self.request(frame, state, context),
        };
        step.unwrap_or_else(Step::Fail)
    }

    /// Handles ApiVersions or SaslHandshake.
    fn request(&mut self, frame: &[u8], state: State, context: StepContext<'_>) -> Result<Step, Failure> {
        let mut request = open(frame)?;
        match (request.api_key, &state) {
            (ApiKey::SaslHandshake, _) => self.handshake(request, context),
            (ApiKey::ApiVersions, State::Start) => Ok(self.name(&mut request)),
            (other, _) => Err(protocol(format!(
                "Unexpected Kafka request of type {} during SASL handshake.",
                other.name()
            ))),
        }
    }

    /// After an ApiVersions that is answered with an error, another one may come.
    fn name(&mut self, request: &mut OpenRequest<'_>) -> Step {
        self.state = State::Start;
        let Version::Known(version) = request.version else { return Step::Ask { software: None } };
        let Ok(asked) = request.decode::<ApiVersionsRequest<'_>>() else {
            return Step::Ask { software: None };
        };
        let (name, version_text) = (&asked.client_software_name, &asked.client_software_version);
        if version < 3 {
            self.state = State::Named;
            return Step::Ask { software: None };
        }
        if !(is_software(name) && is_software(version_text)) {
            return Step::Ask { software: None };
        }
        self.state = State::Named;
        Step::Ask { software: Some((name.to_string(), version_text.to_string())) }
    }

    fn handshake(&mut self, mut request: OpenRequest<'_>, context: StepContext<'_>) -> Result<Step, Failure> {
        let asked = Asked::of(&request);
        let body: SaslHandshakeRequest<'_> = request.decode().map_err(|error| protocol(error.to_string()))?;
        let mechanisms = self.rules.mechanisms.iter();
        let mut response = SaslHandshakeResponse {
            mechanisms: mechanisms.clone().map(|mechanism| Cow::Borrowed(mechanism.name())).collect(),
            ..SaslHandshakeResponse::default()
        };
        let Some(mechanism) = mechanisms.copied().find(|mechanism| mechanism.name() == body.mechanism) else {
            response.error_code = ErrorCode::UNSUPPORTED_SASL_MECHANISM.0;
            let shown: String = body.mechanism.chars().take(40).collect();
            return Err(Failure {
                reply: Some(asked.reply(&response)?),
                detail: format!("Unsupported SASL mechanism {shown}"),
                is_refusal: true,
            });
        };
        self.state = match &self.previous {
            Some((before, _)) if *before != mechanism => State::OtherMechanism {
                refusal: format!(
                    "SASL mechanism '{mechanism}' requested by client is not supported for re-authentication of \
                     mechanism '{before}'"
                ),
            },
            _ => State::Exchange {
                mechanism,
                exchange: ServerExchange::new(mechanism, (context.random)()),
                has_headers: asked.version >= 1,
            },
        };
        Ok(Step::Reply(asked.reply(&response)?))
    }

    fn refuse_mechanism(frame: &[u8], refusal: String) -> Result<Step, Failure> {
        let reply = open(frame).ok().filter(|request| request.api_key == ApiKey::SaslAuthenticate);
        let reply = reply.map(|request| Asked::of(&request).refusal(&refusal)).transpose()?;
        Err(Failure { reply, detail: refusal, is_refusal: true })
    }

    /// Handles a token, in a request or bare.
    fn token(
        &mut self,
        frame: &[u8],
        mechanism: Mechanism,
        mut exchange: ServerExchange,
        has_headers: bool,
        context: StepContext<'_>,
    ) -> Result<Step, Failure> {
        let (asked, token) = if has_headers {
            let (asked, token) = authenticate_request(frame)?;
            self.client_renews |= asked.version > 0;
            (Some(asked), token)
        } else {
            (None, Cow::Borrowed(frame))
        };
        let progress = exchange.step(&token, context.credentials);
        let progress = progress.and_then(|progress| self.check_principal(progress));
        match progress {
            Ok(Progress::Challenge(token)) => {
                self.state = State::Exchange { mechanism, exchange, has_headers };
                Ok(Step::Reply(token_frame(asked, token, 0)?))
            }
            Ok(Progress::Complete(token, identity)) => {
                let session = self.session(mechanism, identity, context.now);
                let reply = token_frame(asked, token, session.lifetime_ms)?;
                Ok(Step::Done { reply, session })
            }
            Err(refusal) => Err(self.refused(mechanism, asked, refusal)?),
        }
    }

    /// Checks that a re-authentication keeps the principal.
    fn check_principal(&self, progress: Progress) -> Result<Progress, Refusal> {
        match (&progress, &self.previous) {
            (Progress::Complete(_, identity), Some((_, before))) => {
                let now = KafkaPrincipal::user(identity.name.clone());
                if now == *before {
                    return Ok(progress);
                }
                Err(Refusal::shown(format!(
                    "Cannot change principals during re-authentication from {}.{}: {}.{}",
                    before.principal_type, before.name, now.principal_type, now.name
                )))
            }
            _ => Ok(progress),
        }
    }

    fn session(&self, mechanism: Mechanism, identity: Identity, now: Now) -> Session {
        let limit = self.rules.max_reauth_ms.get(&mechanism).copied().filter(|limit| *limit > 0);
        let left = |end: i64| u64::try_from(end.saturating_sub(now.wall_ms)).unwrap_or_default();
        let credential = identity.expires_at_ms.map(left);
        let lifetime_ms = match (credential, limit) {
            (Some(credential), Some(limit)) => Some(credential.min(limit)),
            (credential, limit) => credential.or(limit),
        };
        Session {
            mechanism,
            principal: KafkaPrincipal::user(identity.name),
            by_token: identity.by_token,
            lifetime_ms: lifetime_ms.unwrap_or_default(),
            expires_at_ms: lifetime_ms.map(|lifetime| now.monotonic_ms.saturating_add(lifetime)),
            client_renews: self.client_renews,
            renewal_began_ms: None,
        }
    }

    /// Makes the answer to the peer and the message for the log. Bare tokens have no place for an error: the connection ends.
    fn refused(
        &self,
        mechanism: Mechanism,
        asked: Option<Asked>,
        refusal: Refusal,
    ) -> Result<Failure, Failure> {
        let during = if self.is_again() { "re-authentication" } else { "authentication" };
        let text = match refusal.is_shown {
            true => refusal.detail.clone(),
            false => format!(
                "Authentication failed during {during} due to invalid credentials with SASL mechanism {mechanism}"
            ),
        };
        let reply = asked.map(|asked| asked.refusal(&text)).transpose()?;
        Ok(Failure { reply, detail: refusal.detail, is_refusal: true })
    }
}

/// KIP-511: `[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?`
fn is_software(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// The failure of a peer that breaks the protocol.
fn protocol(detail: impl Into<String>) -> Failure {
    Failure { reply: None, detail: detail.into(), is_refusal: false }
}

fn open(frame: &[u8]) -> Result<OpenRequest<'_>, Failure> {
    frame::open_request(frame).map_err(|error| protocol(format!("no request of Kafka's: {error}")))
}

/// The token in a SaslAuthenticate. A handshake out of turn is answered, as in Kafka; anything else is not looked at.
fn authenticate_request(frame: &[u8]) -> Result<(Asked, Cow<'_, [u8]>), Failure> {
    let mut request = open(frame)?;
    let asked = Asked::of(&request);
    let unexpected =
        || format!("Unexpected Kafka request of type {} during SASL authentication.", asked.api_key.name());
    match request.api_key {
        ApiKey::SaslAuthenticate => {
            let body: SaslAuthenticateRequest<'_> =
                request.decode().map_err(|error| protocol(error.to_string()))?;
            Ok((asked, body.auth_bytes))
        }
        ApiKey::SaslHandshake => {
            Err(Failure { reply: Some(asked.reply(&handshake_out_of_place())?), ..protocol(unexpected()) })
        }
        _ => Err(protocol(unexpected())),
    }
}

/// A token as the answer to a SaslAuthenticate, or by itself.
fn token_frame(asked: Option<Asked>, token: Vec<u8>, lifetime_ms: u64) -> Result<Vec<u8>, Failure> {
    let Some(asked) = asked else {
        let len = i32::try_from(token.len()).map_err(|error| protocol(error.to_string()))?;
        return Ok([&len.to_be_bytes(), token.as_slice()].concat());
    };
    asked.reply(&SaslAuthenticateResponse {
        auth_bytes: Cow::Owned(token),
        session_lifetime_ms: i64::try_from(lifetime_ms).unwrap_or(i64::MAX),
        ..SaslAuthenticateResponse::default()
    })
}

impl Asked {
    fn of(request: &OpenRequest<'_>) -> Asked {
        Asked {
            api_key: request.api_key,
            version: request.response_version(),
            correlation_id: request.header.correlation_id,
        }
    }

    fn reply<'a, M: Message<'a>>(self, response: &M) -> Result<Vec<u8>, Failure> {
        let mut reply = Vec::new();
        frame::write_response(&mut reply, self.api_key, self.version, self.correlation_id, response)
            .map_err(|error| protocol(format!("the answer cannot be encoded: {error}")))?;
        Ok(reply)
    }

    /// Encodes SASL_AUTHENTICATION_FAILED with this message.
    fn refusal(self, text: &str) -> Result<Vec<u8>, Failure> {
        self.reply(&SaslAuthenticateResponse {
            error_code: ErrorCode::SASL_AUTHENTICATION_FAILED.0,
            error_message: Some(Cow::Borrowed(text)),
            ..SaslAuthenticateResponse::default()
        })
    }
}

/// The answer to a SaslHandshake on a listener without SASL, or on an authenticated connection that may not authenticate again.
pub fn handshake_out_of_place() -> SaslHandshakeResponse<'static> {
    SaslHandshakeResponse { error_code: ErrorCode::ILLEGAL_SASL_STATE.0, ..SaslHandshakeResponse::default() }
}

/// The answer to a SaslAuthenticate that follows no SaslHandshake.
pub fn authenticate_out_of_place() -> SaslAuthenticateResponse<'static> {
    SaslAuthenticateResponse {
        error_code: ErrorCode::ILLEGAL_SASL_STATE.0,
        error_message: Some(Cow::Borrowed(
            "SaslAuthenticate request received after successful authentication",
        )),
        ..SaslAuthenticateResponse::default()
    }
}
