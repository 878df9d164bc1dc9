//! Sixteen bytes that stand for a key: SipHash-2-4 with 128 bits (Aumasson, Bernstein 2012).
//!
//! Two keys with one hash would be taken for one key, and the older record would be lost. Kafka takes MD5, for which
//! anybody can make such keys. This hash is keyed with random bytes that are not known outside, so that only chance is
//! left: below 1 in 10^20 for a billion keys.

/// Hashes keys under one secret.
#[derive(Debug, Clone)]
pub(crate) struct KeyHasher {
    k0: u64,
    k1: u64,
}

/// The hash of a key.
pub(crate) type KeyHash = [u64; 2];

impl KeyHasher {
    /// A hasher with this secret.
    pub(crate) fn new(secret: [u8; 16]) -> KeyHasher {
        let (low, high) = secret.split_at(8);
        KeyHasher { k0: word(low), k1: word(high) }
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        let mut state = State::new(self.k0, self.k1);
        let mut words = key.chunks_exact(8);
        for bytes in &mut words {
            state.absorb(word(bytes));
        }
        let mut last = [0; 8];
        let rest = words.remainder();
        last[..rest.len()].copy_from_slice(rest);
        last[7] = key.len() as u8;
        state.absorb(u64::from_le_bytes(last));
        state.finish()
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("the caller has cut eight bytes"))
}

/// The four words of SipHash.
struct State(u64, u64, u64, u64);

impl State {
    fn new(k0: u64, k1: u64) -> State {
        // "somepseudorandomlygeneratedbytes", and 0xee for the longer output.
        State(
            k0 ^ 0x736f_6d65_7073_6575,
            k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
            k0 ^ 0x6c79_6765_6e65_7261,
            k1 ^ 0x7465_6462_7974_6573,
        )
    }

    #[inline]
    fn round(&mut self) {
        let State(v0, v1, v2, v3) = self;
        *v0 = v0.wrapping_add(*v1);
        *v2 = v2.wrapping_add(*v3);
        *v1 = v1.rotate_left(13) ^ *v0;
        *v3 = v3.rotate_left(16) ^ *v2;
        *v0 = v0.rotate_left(32);
        *v2 = v2.wrapping_add(*v1);
        *v0 = v0.wrapping_add(*v3);
        *v1 = v1.rotate_left(17) ^ *v2;
        *v3 = v3.rotate_left(21) ^ *v0;
        *v2 = v2.rotate_left(32);
    }

    #[inline]
    fn absorb(&mut self, word: u64) {
        self.3 ^= word;
        self.round();
        self.round();
        self.0 ^= word;
    }

    fn output(&mut self) -> u64 {
        for _ in 0..4 {
            self.round();
        }
        self.0 ^ self.1 ^ self.2 ^ self.3
    }

    fn finish(mut self) -> KeyHash {
        self.2 ^= 0xee;
        let low = self.output();
        self.1 ^= 0xdd;
        [low, self.output()]
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
