//! Bytes that must not be seen: passwords, keys, tokens.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A password or a key. It prints as `[hidden]`, as in Kafka, and is overwritten when it is dropped. Two are compared in
/// a time that depends on their lengths alone.
#[derive(Clone, Default)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Makes a secret of bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Secret {
        Secret(Zeroizing::new(bytes.into()))
    }

    /// The bytes themselves: for cryptography and for the peer, never for a log.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.expose().ct_eq(other.expose()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Secret {
        Secret::new(text.as_bytes())
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret::new(text.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        let secret = Secret::from("pencil");
        assert_eq!(format!("{secret} {secret:?} {:?}", Some(&secret)), "[hidden] [hidden] Some([hidden])");
        assert_eq!(secret, Secret::new(b"pencil".as_slice()));
        assert_ne!(secret, Secret::from("pencils"));
        assert_ne!(secret, Secret::from("pencim"));
    }
}
