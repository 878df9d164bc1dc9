//! Security of one listener: its TLS sessions with the stores that they are made from, and its SASL mechanisms with the users that it
//! knows by itself.

mod handshakes;
mod sasl;
mod tls;

use mainstem_security::SecurityError;

pub use handshakes::{Handshakes, OpenSession, SuiteReport};
pub use sasl::{CurrentSasl, SaslSettings, decoy_secret};
pub use tls::{DaysLeft, TlsSettings, now_seconds};

/// The reason why a listener cannot authenticate its clients.
#[derive(Debug, thiserror::Error)]
pub enum ListenerSecurityError {
    /// A mechanism of SASL.
    #[error("listener.name.{listener}.{mechanism}.{source}")]
    Sasl {
        /// The listener, in small letters.
        listener: String,
        /// The mechanism, in small letters.
        mechanism: String,
        /// The cause.
        source: SecurityError,
    },
    /// `super.users` cannot be read.
    #[error("super.users: {0}")]
    SuperUsers(SecurityError),
    /// The proofs of nodes to each other cannot be used.
    #[error("the controllers' listener {0}: {1}")]
    Nodes(String, String),
    /// The users in `bootstrap.checkpoint` cannot be read.
    #[error("{0}")]
    FirstUsers(String),
    /// The stores or protocols of a listener cannot be used.
    #[error("the listener {listener} cannot use TLS: {source}")]
    Tls {
        /// The listener.
        listener: String,
        /// The cause.
        source: SecurityError,
    },
}
