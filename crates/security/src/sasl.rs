//! SASL (RFC 4422): the mechanisms, and an exchange of tokens on either side of a connection.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::plain::{self, PlainUsers};
use crate::scram::{ScramClient, ScramCredential, ScramMechanism, ScramServer};
use crate::{Secret, SecurityError};

/// A mechanism that both halves know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mechanism {
    /// User name and password in clear (RFC 4616).
    Plain,
    /// A proof of the password (RFC 5802).
    Scram(ScramMechanism),
}

impl Mechanism {
    /// All of them.
    pub const ALL: [Mechanism; 3] = [
        Mechanism::Plain,
        Mechanism::Scram(ScramMechanism::Sha256),
        Mechanism::Scram(ScramMechanism::Sha512),
    ];

    /// The registered name, as in `sasl.enabled.mechanisms`.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::Scram(mechanism) => mechanism.name(),
        }
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mechanism {
    type Err = SecurityError;

    fn from_str(name: &str) -> Result<Mechanism, SecurityError> {
        let found = Mechanism::ALL.into_iter().find(|mechanism| mechanism.name() == name);
        found.ok_or_else(|| SecurityError::Mechanism(name.to_owned()))
    }
}

/// The broker's credentials of users. They are read on the thread of the exchange, so that look-ups must be short.
pub trait Credentials {
    /// The users of PLAIN, as the listener's JAAS text names them.
    fn plain(&self) -> Option<&PlainUsers>;

    /// A user's SCRAM credential.
    fn scram(&self, mechanism: ScramMechanism, user: &str) -> Option<Cow<'_, ScramCredential>>;

    /// The SCRAM credential of a delegation token (KIP-48), by the token's id.
    fn token(&self, mechanism: ScramMechanism, id: &str) -> Option<TokenCredential>;

    /// The typical form of credentials here, for users that have none.
    fn decoy(&self, mechanism: ScramMechanism) -> DecoyShape;
}

/// The form of the false credential that an unknown user is shown, so that it looks like a known user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecoyShape {
    /// It is in the cluster's metadata, so that a user's decoy is always the same on every node.
    pub key: Secret,
    /// The iterations of the majority of users.
    pub iterations: u32,
    /// The bytes of the majority's salts, at most 64.
    pub salt_bytes: usize,
    /// True if most salts are digits and lower-case letters, as Kafka's own tools make them.
    pub is_text: bool,
}

/// A delegation token as a credential.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenCredential {
    /// The token's HMAC, as a password would be kept.
    pub credential: ScramCredential,
    /// The name of the user that the token speaks for.
    pub owner: String,
    /// The end of the token, in milliseconds since 1970.
    pub expires_at_ms: i64,
}

/// The reason why a peer is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// For the log. It may say more than the peer should know, but holds no secret.
    pub detail: String,
    /// True if the peer sees the detail; otherwise it learns only that its credentials are not valid.
    pub is_shown: bool,
}

impl Refusal {
    /// A refusal whose detail the peer does not see.
    pub(crate) fn hidden(detail: impl Into<String>) -> Refusal {
        Refusal { detail: detail.into(), is_shown: false }
    }

    /// A refusal whose detail the peer sees.
    pub(crate) fn shown(detail: impl Into<String>) -> Refusal {
        Refusal { detail: detail.into(), is_shown: true }
    }
}

/// The identity that was authenticated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) name: String,
    pub(crate) by_token: bool,
    /// The end of the credential, in milliseconds since 1970.
    pub(crate) expires_at_ms: Option<i64>,
}

/// The server's answer to a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// A token, after which the client has to send one more.
    Challenge(Vec<u8>),
    /// The last token.
    Complete(Vec<u8>, Identity),
}

/// The server's half of an exchange.
#[derive(Debug)]
pub(crate) enum ServerExchange {
    Plain,
    Scram(ScramServer),
}

impl ServerExchange {
    /// Begins. The nonce is 128 random bits.
    pub(crate) fn new(mechanism: Mechanism, nonce: u128) -> ServerExchange {
        match mechanism {
            Mechanism::Plain => ServerExchange::Plain,
            Mechanism::Scram(mechanism) => ServerExchange::Scram(ScramServer::new(mechanism, nonce)),
        }
    }

    pub(crate) fn step(&mut self, token: &[u8], credentials: &dyn Credentials) -> Result<Progress, Refusal> {
        match self {
            ServerExchange::Plain => {
                let name = plain::authenticate(token, credentials.plain())?;
                let identity = Identity { name, by_token: false, expires_at_ms: None };
                Ok(Progress::Complete(Vec::new(), identity))
            }
            ServerExchange::Scram(server) => server.step(token, credentials),
        }
    }
}

/// The next act of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClientStep {
    /// Sends a token and waits for the next.
    Send(Vec<u8>),
    /// The broker is who it claims to be; requests may follow.
    Done,
}

/// The client's half of an exchange: one token to begin with, then one for each of the server's.
#[derive(Debug)]
pub enum ClientExchange {
    /// PLAIN, with whether the token is sent.
    Plain {
        /// The user.
        user: String,
        /// Its password.
        password: Secret,
        /// True if the only token is sent.
        is_sent: bool,
    },
    /// SCRAM.
    Scram(Box<ScramClient>),
}

impl ClientExchange {
    /// Begins. The nonce is 128 random bits; PLAIN needs none.
    pub fn new(
        mechanism: Mechanism,
        user: impl Into<String>,
        password: Secret,
        nonce: u128,
    ) -> ClientExchange {
        match mechanism {
            Mechanism::Plain => ClientExchange::Plain { user: user.into(), password, is_sent: false },
            Mechanism::Scram(mechanism) => {
                ClientExchange::Scram(Box::new(ScramClient::new(mechanism, user, password, nonce)))
            }
        }
    }

    /// Takes the server's token, which is empty at first, and returns the client's next one.
    ///
    /// With SCRAM the second call hashes the password as often as the server says, for up to a second: not for an
    /// event loop.
    ///
    /// # Errors
    /// When the server's token is malformed, refuses, or proves that the server does not know the credentials.
    pub fn step(&mut self, token: &[u8]) -> Result<ClientStep, SecurityError> {
        match self {
            ClientExchange::Plain { user, password, is_sent: false } => {
                let token = plain::client_token(user, password);
                if let ClientExchange::Plain { is_sent, .. } = self {
                    *is_sent = true;
                }
                Ok(ClientStep::Send(token))
            }
            ClientExchange::Plain { .. } => Ok(ClientStep::Done),
            ClientExchange::Scram(client) => client.step(token),
        }
    }
}
