//! Public keys: kinds and sizes.

use std::fmt;

use crate::der::{self, Reader, SEQUENCE};

/// The facts of a certificate's public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// An RSA key, by the number of bits of its modulus.
    Rsa(usize),
    /// A point of a curve, by the curve's object identifier.
    Curve(String),
    /// A key of another kind, by its object identifier.
    Other(String),
}

const RSA: &str = "1.2.840.113549.1.1.1";
const RSA_PSS: &str = "1.2.840.113549.1.1.10";
const ELLIPTIC: &str = "1.2.840.10045.2.1";
/// P-256, P-384, P-521.
const CURVES: [&str; 3] = ["1.2.840.10045.3.1.7", "1.3.132.0.34", "1.3.132.0.35"];
/// Ed25519, and ML-DSA of three sizes.
const OTHERS: [&str; 4] =
    ["1.3.101.112", "2.16.840.1.101.3.4.3.17", "2.16.840.1.101.3.4.3.18", "2.16.840.1.101.3.4.3.19"];
/// Sizes of accepted RSA keys, in bits.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

impl PublicKey {
    /// Reads the contents of a `SubjectPublicKeyInfo` (RFC 5280, 4.1).
    pub(super) fn read(mut fields: Reader<'_>) -> der::Result<PublicKey> {
        let mut algorithm = fields.enter(SEQUENCE, "its key has no algorithm")?;
        let kind = der::dotted(algorithm.take(der::OID, "its key's algorithm has no identifier")?);
        match kind.as_str() {
            RSA => {
                let bits = fields.take(der::BIT_STRING, "its key has no bits")?;
                let mut numbers =
                    Reader::new(bits.get(1..).unwrap_or_default()).enter(SEQUENCE, "its RSA key is none")?;
                Ok(PublicKey::Rsa(bits_of(numbers.take(der::INTEGER, "its RSA key has no modulus")?)))
            }
            // A curve may be described in full instead of named.
            ELLIPTIC => match algorithm.optional(der::OID)? {
                Some(curve) => Ok(PublicKey::Curve(der::dotted(curve))),
                None => Ok(PublicKey::Curve("without a name".to_owned())),
            },
            _ => Ok(PublicKey::Other(kind)),
        }
    }

    /// Returns the fault of the key, with advice; None if signatures can be verified with it.
    pub(crate) fn fault(&self) -> Option<KeyFault<'_>> {
        let is_sound = match self {
            PublicKey::Rsa(bits) => RSA_BITS.contains(bits),
            PublicKey::Curve(curve) => CURVES.contains(&curve.as_str()),
            PublicKey::Other(kind) => OTHERS.contains(&kind.as_str()),
        };
        (!is_sound).then_some(KeyFault(self))
    }
}

/// A key that is not accepted. Displayed as the rest of a sentence that begins with the owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyFault<'a>(&'a PublicKey);

impl fmt::Display for KeyFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            PublicKey::Rsa(bits) if bits < RSA_BITS.start() => {
                write!(f, "RSA key has {bits} bits, at least 2048 are needed: have it issued again for a larger one")
            }
            PublicKey::Rsa(bits) => {
                write!(f, "RSA key has {bits} bits, at most 8192 are supported: have it issued again for a smaller one")
            }
            PublicKey::Curve(curve) => write!(
                f,
                "key is of the curve {}, which is not supported: have it issued again for one of P-256, P-384 or P-521",
                curve_name(curve)
            ),
            PublicKey::Other(kind) if kind == RSA_PSS => f.write_str(
                "key is for RSA-PSS alone, which is not supported: have it issued again for a plain RSA key, which signs by RSA-PSS too",
            ),
            PublicKey::Other(kind) => write!(
                f,
                "key is of the kind {}, which is not supported: have it issued again for one of RSA, ECDSA or Ed25519",
                kind_name(kind)
            ),
        }
    }
}

fn curve_name(oid: &str) -> &str {
    match oid {
        "1.3.132.0.10" => "secp256k1",
        "1.3.132.0.33" => "P-224",
        "1.2.840.10045.3.1.1" => "P-192",
        other => other,
    }
}

fn kind_name(oid: &str) -> &str {
    match oid {
        "1.3.101.113" => "Ed448",
        "1.2.840.10040.4.1" => "DSA",
        other => other,
    }
}

/// The bits of a number that is not negative.
fn bits_of(number: &[u8]) -> usize {
    let digits = &number[number.iter().take_while(|digit| **digit == 0).count()..];
    digits.first().map_or(0, |first| digits.len() * 8 - first.leading_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::der::Malformed;

    #[test]
    fn bits() {
        assert_eq!(bits_of(&[]), 0);
        assert_eq!(bits_of(&[0, 0]), 0);
        assert_eq!(bits_of(&[0, 0x80, 0]), 16);
        assert_eq!(bits_of(&[0x7f, 0]), 15);
    }

    #[test]
    fn what_is_no_key() {
        for bad in [&[][..], &[0x30, 0], &[0x30, 2, 4, 0]] {
            assert!(PublicKey::read(Reader::new(bad)).is_err_and(|Malformed(what)| what.contains("key")));
        }
        let rsa = [0x30, 11, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
        assert!(PublicKey::read(Reader::new(&rsa)).is_err());
        for bits in [&[3, 0][..], &[3, 1, 0], &[3, 3, 0, 0x30, 0]] {
            assert!(PublicKey::read(Reader::new(&[&rsa[..], bits].concat())).is_err(), "{bits:?}");
        }
    }
}
