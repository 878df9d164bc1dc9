//! Sixteen bytes that stand for a key: SipHash-2-4 with 128 bits (Aumasson, Bernstein 2012).
//!
//! Two keys with one hash would be taken for one key, and the older record would be lost. Kafka takes MD5, for which
//! anybody can make such keys. This hash is keyed with random bytes that are not known outside, so that only chance is
//! left: below 1 in 10^20 for a billion keys.

use siphasher::sip128::SipHasher24;

/// Hashes keys under one secret.
#[derive(Debug, Clone)]
pub(crate) struct KeyHasher(SipHasher24);

/// The hash of a key.
pub(crate) type KeyHash = [u64; 2];

impl KeyHasher {
    /// A hasher with this secret.
    pub(crate) fn new(secret: [u8; 16]) -> KeyHasher {
        KeyHasher(SipHasher24::new_with_key(&secret))
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let hash = self.0.hash(key);
        [hash.h1, hash.h2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the reference implementation: key and input count up from 0.
    #[test]
    fn it_is_the_reference_hash() {
        let hasher = KeyHasher::new(std::array::from_fn(|index| index as u8));
        let check = |len: u8, expected: [u8; 16]| {
            let input: Vec<u8> = (0..len).collect();
            let [low, high] = hasher.hash(&input);
            assert_eq!([low.to_le_bytes(), high.to_le_bytes()].concat(), expected, "{len}");
        };
        check(0, *b"\xa3\x81\x7f\x04\xba\x25\xa8\xe6\x6d\xf6\x72\x14\xc7\x55\x02\x93");
        check(1, *b"\xda\x87\xc1\xd8\x6b\x99\xaf\x44\x34\x76\x59\x11\x9b\x22\xfc\x45");
        check(2, *b"\x81\x77\x22\x8d\xa4\xa4\x5d\xc7\xfc\xa3\x8b\xde\xf6\x0a\xff\xe4");
    }

    #[test]
    fn keys_that_differ_in_length_alone_differ() {
        let hasher = KeyHasher::new([7; 16]);
        let hashes: std::collections::BTreeSet<_> = (0..64).map(|len| hasher.hash(&vec![0; len])).collect();
        assert_eq!(hashes.len(), 64);
    }
}
