//! How long a connection stays authenticated (KIP-368).

use mainstem_wire::ApiKey;

use crate::KafkaPrincipal;
use crate::sasl::Mechanism;

/// The time, by two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds of a clock that never goes back: what sessions are measured by.
    pub monotonic_ms: u64,
    /// Milliseconds since 1970: what credentials end by.
    pub wall_ms: i64,
}

/// A connection renews its session once in this time at most.
const RENEWAL_INTERVAL_MS: u64 = 1000;

/// Who a connection belongs to, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// How it was authenticated.
    pub mechanism: Mechanism,
    /// Whose it is.
    pub principal: KafkaPrincipal,
    /// Whether it speaks for its principal by a delegation token. It may not ask for tokens.
    pub by_token: bool,
    /// What the client knows; 0 if the session lasts.
    pub lifetime_ms: u64,
    /// When it ends, by the monotonic clock.
    pub(super) expires_at_ms: Option<u64>,
    /// Whether the client's SaslAuthenticate was one whose clients renew their sessions (v1).
    pub client_renews: bool,
    /// When the last renewal began.
    pub(super) renewal_began_ms: Option<u64>,
}

/// What to do with a request on a connection that is authenticated.
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
    /// Judges a request by its API. A handshake is let through even when the session is over, once a second at most, if
    /// the session can end at all.
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

    /// Goes on in the session that a renewal gave.
    pub fn renew(&mut self, renewed: Session) {
        assert_eq!(self.principal, renewed.principal, "a renewal keeps the principal");
        let renewal_began_ms = self.renewal_began_ms;
        *self = Session { renewal_began_ms, ..renewed };
    }

    /// Whether the session ends at all.
    pub fn ends(&self) -> bool {
        self.expires_at_ms.is_some()
    }

    /// When the session ends, in milliseconds of the monotonic clock; none if it lasts.
    pub fn expires_at_ms(&self) -> Option<u64> {
        self.expires_at_ms
    }
}
