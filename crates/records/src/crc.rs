//! CRC-32C of batches. The library computes long ones. Short ones would take most of a queue's time, so they are computed here in
//! three streams at once by the CPU's instruction: each instruction waits for the one before it in its stream.

/// More bytes than this go to the library, which has three streams too, but begins with them at 768 bytes.
const SHORT_MAX: usize = 768;

/// CRC-32C of some bytes.
#[inline]
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// CRC-32C of bytes that follow others, whose CRC is given.
#[inline]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() <= SHORT_MAX
        && let Some(crc) = x86::append(crc, bytes)
    {
        return crc;
    }
    crc32c::crc32c_append(crc, bytes)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![allow(unsafe_code, reason = "functions that not every CPU can run")]

    use std::arch::x86_64::{
        _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi64_si128,
        _mm_cvtsi128_si64,
    };

    use super::SHORT_MAX;

    const WORD: usize = size_of::<u64>();
    /// Words of one stream, at most.
    const STREAM_MAX: usize = SHORT_MAX / WORD / 3;
    /// Below so many words for each stream, joining them takes longer than they save.
    const STREAM_MIN: usize = 2;
    /// The polynomial, with the bits reversed.
    const POLYNOMIAL: u32 = 0x82f6_3b78;

    /// At N: what moves a CRC over N words: x^(64 N - 33) modulo the polynomial, since the product of reversed numbers is one place off,
    /// and the instruction that reduces it multiplies by x^32.
    const OVER_WORDS: [u32; 2 * STREAM_MAX + 1] = over_words();

    const fn over_words() -> [u32; 2 * STREAM_MAX + 1] {
        let mut over = [0; 2 * STREAM_MAX + 1];
        // x^0
        let (mut power, mut exponent, mut words) = (1_u32 << 31, 0, 1);
        while words < over.len() {
            while exponent < 64 * words - 33 {
                power = if power & 1 == 0 { power >> 1 } else { power >> 1 ^ POLYNOMIAL };
                exponent += 1;
            }
            over[words] = power;
            words += 1;
        }
        over
    }

    /// `None` on a CPU that has not these instructions.
    #[inline]
    pub(super) fn append(crc: u32, bytes: &[u8]) -> Option<u32> {
        if !(is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")) {
            return None;
        }
        // SAFETY: the CPU has what the function is compiled for.
        Some(!unsafe { run(!crc, bytes) })
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn run(state: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<WORD>();
        let each = words.len() / 3;
        let (mut state, words) = match (STREAM_MIN..=STREAM_MAX).contains(&each) {
            true => {
                let (streams, words) = words.split_at(3 * each);
                (three_streams(state, streams, each), words)
            }
            false => (u64::from(state), words),
        };
        for word in words {
            state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
        }
        tail(state as u32, rest)
    }

    /// The three streams begin with the state and with nothing; what the first two come to is moved over what follows them.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn three_streams(state: u32, words: &[[u8; WORD]], each: usize) -> u64 {
        let (first, words) = words.split_at(each);
        let (second, third) = words.split_at(each);
        let [mut one, mut two, mut three] = [u64::from(state), 0, 0];
        for ((first, second), third) in first.iter().zip(second).zip(third) {
            one = _mm_crc32_u64(one, u64::from_le_bytes(*first));
            two = _mm_crc32_u64(two, u64::from_le_bytes(*second));
            three = _mm_crc32_u64(three, u64::from_le_bytes(*third));
        }
        // Both products are below 2^64 and are reduced at once.
        _mm_crc32_u64(0, product(one, OVER_WORDS[2 * each]) ^ product(two, OVER_WORDS[each])) ^ three
    }

    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn product(state: u64, by: u32) -> u64 {
        let product =
            _mm_clmulepi64_si128::<0>(_mm_cvtsi64_si128(state as i64), _mm_cvtsi64_si128(i64::from(by)));
        _mm_cvtsi128_si64(product) as u64
    }

    /// Fewer than eight bytes.
    #[target_feature(enable = "sse4.2,pclmulqdq")]
    fn tail(mut state: u32, mut rest: &[u8]) -> u32 {
        if let Some((part, more)) = rest.split_first_chunk() {
            (state, rest) = (_mm_crc32_u32(state, u32::from_le_bytes(*part)), more);
        }
        if let Some((part, more)) = rest.split_first_chunk() {
            (state, rest) = (_mm_crc32_u16(state, u16::from_le_bytes(*part)), more);
        }
        match rest {
            [byte] => _mm_crc32_u8(state, *byte),
            _ => state,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_has_the_crc_of_the_library() {
        let bytes: Vec<u8> =
            (0..2 * SHORT_MAX as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for from in 0..9 {
            for len in 0..SHORT_MAX + 20 {
                let part = &bytes[from..from + len];
                assert_eq!(crc32c(part), crc32c::crc32c(part), "{len} bytes from {from} on");
                assert_eq!(
                    append(0x1234_5678, part),
                    crc32c::crc32c_append(0x1234_5678, part),
                    "{len} bytes"
                );
            }
        }
        assert_eq!(crc32c(b"123456789"), 0xe306_9283, "the check value of CRC-32C");
    }
}
