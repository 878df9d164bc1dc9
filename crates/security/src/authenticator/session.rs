//! Sessions: the time that a connection stays authenticated (KIP-368).

use mainstem_wire::ApiKey;

use crate::KafkaPrincipal;
use crate::sasl::Mechanism;

/// The time, by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds of a clock that never goes back: sessions are measured by it.
    pub monotonic_ms: u64,
    /// Milliseconds since 1970: credentials expire by it.
    pub wall_ms: i64,
}

/// A connection renews its session once in this time at most.
const RENEWAL_INTERVAL_MS: u64 = 1000;

/// The principal of a connection, and the time for which it is authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The mechanism that authenticated it.
    pub mechanism: Mechanism,
    /// The principal.
    pub principal: KafkaPrincipal,
    /// True if it was authenticated by a delegation token of its principal. Then it may not ask for tokens.
    pub by_token: bool,
    /// The session lifetime in the answer to the client, in milliseconds; 0 if the session does not end.
    pub lifetime_ms: u64,
    /// The monotonic time of its end, in milliseconds.
    pub(super) expires_at_ms: Option<u64>,
    /// True if the client's SaslAuthenticate had version 1, whose clients renew their sessions.
    pub client_renews: bool,
    /// The monotonic time when the last renewal began, in milliseconds.
    pub(super) renewal_began_ms: Option<u64>,
}

/// The treatment of a request on an authenticated connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Serve it. A SaslHandshake that comes here is answered with ILLEGAL_SASL_STATE.
    Serve,
    /// Give it to [`super::Authenticator::again`].
    Renew,
    /// Close the connection, and count it: the session is over.
    Expired,
}

impl Session {
    /// Decides on a request by its API. If the session has an end, a handshake is admitted even after it, once a second at most.
    pub fn admit(&mut self, api_key: ApiKey, now: Now) -> Admission {
        let Some(expires_at) = self.expires_at_ms else { return Admission::Serve };
        let now = now.monotonic_ms;
        let is_early = |began: u64| now.saturating_sub(began) < RENEWAL_INTERVAL_MS;
        if api_key == ApiKey::SaslHandshake && !self.renewal_began_ms.is_some_and(is_early) {
            self.renewal_began_ms = Some(now);
            return Admission::Renew;
        }
        if now > expires_at { Admission::Expired } else { Admission::Serve }
    }

    /// Replaces the session by the one that a renewal gave.
    pub fn renew(&mut self, renewed: Session) {
        assert_eq!(self.principal, renewed.principal, "a renewal keeps the principal");
        let renewal_began_ms = self.renewal_began_ms;
        *self = Session { renewal_began_ms, ..renewed };
    }

    /// Returns true if the session has an end.
    pub fn ends(&self) -> bool {
        self.expires_at_ms.is_some()
    }

    /// The end of the session, in milliseconds of the monotonic clock; none if it has none.
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }
}
