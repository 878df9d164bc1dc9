//! SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), both halves, as Kafka speaks them.
//!
//! ```text
//!  client                                              server
//!    n,,n=USER,r=NONCE[,tokenauth=true]          ─▶
//!                          ◀─   r=NONCE+NONCE',s=SALT,i=ITERATIONS
//!    c=biws,r=NONCE+NONCE',p=PROOF               ─▶
//!                          ◀─   v=SIGNATURE
//! ```
//!
//! As in Kafka there is no channel binding, and names and passwords are UTF-8 as they come: SASLprep is not applied, and a user name on the
//! wire is ASCII. Unlike in Kafka, an unknown user is answered like a known one, with a salt that is always the same for it, and fails in
//! the second step: Kafka's first answer reveals which users exist.

mod client;
mod credential;
mod messages;
mod server;
#[cfg(test)]
mod tests;

use std::fmt;

pub use client::{ITERATIONS_CLIENT_MAX, ScramClient};
pub use credential::{ScramCredential, salted_password};
pub(crate) use server::ScramServer;

use crate::crypto::Hash;

/// A hash for SCRAM. The discriminants are those of metadata records and requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i8)]
pub enum ScramMechanism {
    /// SCRAM-SHA-256.
    Sha256 = 1,
    /// SCRAM-SHA-512.
    Sha512 = 2,
}

impl ScramMechanism {
    /// Both.
    pub const ALL: [ScramMechanism; 2] = [ScramMechanism::Sha256, ScramMechanism::Sha512];
    /// The fewest iterations of a credential.
    pub const ITERATIONS_MIN: u32 = 4096;
    /// The most iterations of a credential that is made.
    pub const ITERATIONS_MAX: u32 = 16_384;

    /// The name of the mechanism.
    pub const fn name(self) -> &'static str {
        match self {
            ScramMechanism::Sha256 => "SCRAM-SHA-256",
            ScramMechanism::Sha512 => "SCRAM-SHA-512",
        }
    }

    /// The number in records and requests.
    pub const fn code(self) -> i8 {
        self as i8
    }

    /// The mechanism of a number.
    pub fn from_code(code: i8) -> Option<ScramMechanism> {
        ScramMechanism::ALL.into_iter().find(|mechanism| mechanism.code() == code)
    }

    /// Bytes of its keys.
    pub const fn key_bytes(self) -> usize {
        self.hash().len()
    }

    /// Returns true if a user of this name can log in by SCRAM. A name on the wire is ASCII without NUL, as in Kafka. A broker stores other
    /// names too, but no client can log in by them.
    pub fn carries_name(name: &str) -> bool {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii() && byte != 0)
    }

    pub(crate) const fn hash(self) -> Hash {
        match self {
            ScramMechanism::Sha256 => Hash::Sha256,
            ScramMechanism::Sha512 => Hash::Sha512,
        }
    }
}

impl fmt::Display for ScramMechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `first ^ second`, of equal lengths.
fn xor(first: &[u8], second: &[u8]) -> Vec<u8> {
    assert_eq!(first.len(), second.len(), "keys of one hash have one length");
    first.iter().zip(second).map(|(a, b)| a ^ b).collect()
}

/// Random bits in characters that a nonce may have.
fn nonce_text(bits: u128) -> String {
    format!("{bits:032x}")
}
