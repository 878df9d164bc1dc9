//! Topic, directory and member ids.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A 128-bit id, written as Kafka writes it: base64url without padding, 22 characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Uuid(pub [u8; 16]);

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl Uuid {
    /// "No id", `AAAAAAAAAAAAAAAAAAAAAA`.
    pub const ZERO: Uuid = Uuid([0; 16]);
    /// The topic id of the metadata log, `AAAAAAAAAAAAAAAAAAAAAQ`.
    pub const METADATA_TOPIC: Uuid = Uuid::from_u128(1);

    /// The id with these bits, the highest first on the wire.
    pub const fn from_u128(bits: u128) -> Self {
        Uuid(bits.to_be_bytes())
    }

    /// The bits of the id.
    pub const fn to_u128(self) -> u128 {
        u128::from_be_bytes(self.0)
    }

    /// Returns true if this is the zero id, Kafka's "no id".
    pub fn is_zero(self) -> bool {
        self == Uuid::ZERO
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.to_u128();
        let mut text = [0u8; 22];
        // 21 characters of six bits, then two bits that are filled up with zeros.
        for (at, character) in text.iter_mut().enumerate() {
            let six = if at < 21 { bits >> (122 - 6 * at) } else { bits << 4 };
            *character = ALPHABET[(six & 0x3f) as usize];
        }
        f.pad(std::str::from_utf8(&text).expect("the alphabet is ASCII"))
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("an id has 22 characters of base64url, optionally padded, not {0:?}")]
pub struct ParseUuidError(String);

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let fault = || ParseUuidError(text.chars().take(64).collect());
        let characters = text.strip_suffix("==").unwrap_or(text).as_bytes();
        if characters.len() != 22 {
            return Err(fault());
        }
        let mut bits = 0u128;
        for (at, character) in characters.iter().enumerate() {
            let six = ALPHABET.iter().position(|each| each == character).ok_or_else(fault)? as u128;
            bits = if at < 21 { bits << 6 | six } else { bits << 2 | six >> 4 };
        }
        Ok(Uuid::from_u128(bits))
    }
}
