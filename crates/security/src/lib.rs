//! Authentication and authorisation of peers, as state machines for broker and client.
//!
//! [`Authenticator`] takes the frames of a connection until it knows the principal, by one of the mechanisms in [`scram`] and [`plain`];
//! their client halves are here as well. [`jaas`] reads the text in which Kafka keeps credentials. [`tls`] has the sessions, and [`store`]
//! the stores of their keys. An [`Authorizer`] decides by [`acl`]s on the requests of a principal.
//!
//! Architecture invariant: no I/O, no clock, no randomness of its own (times and random bits are arguments); no bytes of
//! a peer or a file make it panic, run for long or allocate beyond their own length; a [`Secret`] is never printed.

pub mod acl;
mod authenticator;
mod authorizer;
mod crypto;
mod der;
mod error;
#[doc(hidden)]
pub mod fuzz;
pub mod jaas;
pub mod mapping;
pub mod plain;
mod principal;
mod sasl;
pub mod scram;
mod secret;
pub mod store;
pub mod tls;
pub mod x509;

pub use authenticator::{
    Admission, Authenticator, Failure, Now, SaslRules, Session, Step, StepContext, authenticate_out_of_place,
    handshake_out_of_place,
};
pub use authorizer::{AclIndex, AuditLine, Authorizer, AuthorizerRules, Question, Verdict};
pub use error::SecurityError;
pub use principal::KafkaPrincipal;
pub use sasl::{ClientExchange, ClientStep, Credentials, DecoyShape, Mechanism, Refusal, TokenCredential};
pub use secret::Secret;
