//! TLS 1.2 and 1.3, by rustls: settings of a listener or a client, and sessions whose buffers the caller owns.
//!
//! [`TlsProperties`] are Kafka's `ssl.*`. With the contents of the stores that they name they make a [`TlsMaterial`], from which
//! [`TlsServer`] and [`TlsClient`] are made; these begin [`TlsSession`]s. A changed store makes a new material, which replaces the old one
//! if [`TlsMaterial::check_reload`] agrees. Open sessions keep the old material, and none is resumed over a reload.
//!
//! No data before the end of the handshake (0-RTT), no renegotiation, no compression, no tickets: 1,024 sessions of a listener are
//! remembered in memory. A certificate is trusted if a trusted authority issued it, or, as in Java, if it is in the trust store itself;
//! unlike in Java it must then be valid as well. webpki builds and verifies paths. `faults` adds Java's further checks, and the message for
//! each [`Refusal`].

mod endpoints;
mod faults;
mod material;
mod names;
mod properties;
mod refusal;
mod session;
#[cfg(test)]
mod tests;
mod trust;
mod verify;

pub use endpoints::{SESSIONS_MAX, TlsClient, TlsServer, client_verifier, server_verifier};
pub use material::{Identity, TlsMaterial};
pub use names::{cipher_suite_name, protocol_name};
pub use properties::{ClientAuth, TlsProperties};
pub use refusal::Refusal;
pub use session::{TlsError, TlsSession, TlsState};

/// Returns true if a peer that should send a length and a request begins a TLS session instead. Such a client was configured with `SSL` at
/// a port without it.
pub fn is_client_hello(bytes: &[u8]) -> bool {
    matches!(bytes, [0x16, 0x03, 0..=4, _, _, 0x01, ..] | [0x16, 0x03, 0..=4])
}
