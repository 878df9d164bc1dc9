//! Errors of a configuration, a store or a peer's answer.

use crate::scram::ScramMechanism;

/// An error that an operator, or the user of a client, has to act upon. No message holds a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SecurityError {
    /// A text of `sasl.jaas.config` that is not of the form `MODULE FLAG (KEY=VALUE)*;`.
    #[error("sasl.jaas.config: {0}")]
    Jaas(String),
    /// A text that is no principal.
    #[error("expected a string in format principalType:principalName but got {0}")]
    Principal(String),
    /// A malformed message of a SCRAM server.
    #[error("the broker's {mechanism} message is malformed: {what}")]
    ScramMessage {
        /// The mechanism.
        mechanism: ScramMechanism,
        /// The fault.
        what: &'static str,
    },
    /// A SCRAM server asks for fewer or more rounds of hashing than are safe to make.
    #[error(
        "the broker's number of {mechanism} iterations is {iterations}, where {min} to {max} are accepted: have the user's credentials \
         created again with an acceptable number"
    )]
    ScramIterations {
        /// The mechanism.
        mechanism: ScramMechanism,
        /// The number that the server asked for.
        iterations: String,
        /// The fewest.
        min: u32,
        /// The most.
        max: u32,
    },
    /// A SCRAM server does not know the password either: it is not the broker that it claims to be.
    #[error(
        "the broker could not prove that it knows the {0} credentials: check whom the connection leads to"
    )]
    ScramServer(ScramMechanism),
    /// A SCRAM server ended the exchange with an error.
    #[error("the broker refused the {mechanism} exchange with {error}: check user name and password")]
    ScramRefused {
        /// The mechanism.
        mechanism: ScramMechanism,
        /// The server's word for it.
        error: String,
    },
    /// The peer sends more although the exchange has ended.
    #[error("the broker went on with {0} after the exchange was over")]
    ExchangeOver(&'static str),
    /// A certificate that cannot be read.
    #[error("a certificate cannot be read: {0}")]
    Certificate(&'static str),
    /// A key store that cannot be opened.
    #[error("key store {store}: {what}")]
    Store {
        /// Its path, or the property that holds it.
        store: String,
        /// The cause.
        what: String,
    },
    /// A rule of `ssl.principal.mapping.rules` that cannot be obeyed.
    #[error("ssl.principal.mapping.rules: invalid rule {rule}: {what}")]
    MappingRule {
        /// The rule.
        rule: String,
        /// The fault.
        what: String,
    },
    /// Properties of TLS that contradict each other or cannot be honoured.
    #[error("{0}")]
    TlsProperty(String),
    /// A key or certificate that TLS cannot use.
    #[error("{what}: {reason}")]
    TlsMaterial {
        /// The key or certificate.
        what: String,
        /// The cause.
        reason: String,
    },
    /// Keys that may not replace those in force.
    #[error("the reloaded key store is refused, the one before stays in force: {0}")]
    Reload(String),
    /// No rule of `ssl.principal.mapping.rules` applies to a peer.
    #[error("no rule of ssl.principal.mapping.rules applies to {0}")]
    Unmapped(String),
    /// A mechanism that is not built in.
    #[error("SASL mechanism {0} is not supported: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512")]
    Mechanism(String),
}
