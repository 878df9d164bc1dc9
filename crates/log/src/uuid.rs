//! 16-byte ids in Kafka's text form: base64url without padding, 22 characters.

use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::BuildHasher;
use std::io::Read;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Length of the text form.
const TEXT_LEN: usize = 22;

/// A random id as Kafka makes them: none whose text starts with `-` (tools would take it for an option), none of
/// the first hundred (reserved for directories by KIP-858).
pub fn random() -> [u8; 16] {
    loop {
        let id = random_bytes();
        if id[..15] != [0; 15] && !to_base64url(&id).starts_with('-') {
            return id;
        }
    }
}

fn random_bytes() -> [u8; 16] {
    let mut id = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut urandom| urandom.read_exact(&mut id));
    if read.is_err() {
        // Each state has its own random keys: as good a source where the device is missing.
        let words = [RandomState::new().hash_one(0), RandomState::new().hash_one(1)];
        id[..8].copy_from_slice(&words[0].to_be_bytes());
        id[8..].copy_from_slice(&words[1].to_be_bytes());
    }
    id
}

/// Kafka's text form of an id.
pub fn to_base64url(id: &[u8; 16]) -> String {
    let bits = u128::from_be_bytes(*id);
    let sextet = |index: usize| match index {
        // The last character has the last two bits and four zeros.
        21 => (bits << 4) as usize & 0x3f,
        _ => (bits >> (122 - 6 * index)) as usize & 0x3f,
    };
    (0..TEXT_LEN).map(|index| char::from(ALPHABET[sextet(index)])).collect()
}

/// An id from Kafka's text form; padding (`==`) is accepted as Java's decoder does.
pub fn from_base64url(text: &str) -> Option<[u8; 16]> {
    let text = text.strip_suffix("==").unwrap_or(text).as_bytes();
    if text.len() != TEXT_LEN {
        return None;
    }
    let mut bits = 0_u128;
    for byte in &text[..TEXT_LEN - 1] {
        bits = bits << 6 | sextet_of(*byte)?;
    }
    Some((bits << 2 | sextet_of(text[TEXT_LEN - 1])? >> 4).to_be_bytes())
}

fn sextet_of(byte: u8) -> Option<u128> {
    ALPHABET.iter().position(|letter| *letter == byte).map(|index| index as u128)
}

/// 32 hexadecimal digits, as in the names of directories that wait for deletion.
pub(crate) fn to_hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_that_of_kafka() {
        // org.apache.kafka.common.Uuid of (0, 1), of all ones and of a random id, as toString() gives them.
        let check = |id: u128, text: &str| {
            assert_eq!(to_base64url(&id.to_be_bytes()), text);
            assert_eq!(from_base64url(text), Some(id.to_be_bytes()));
        };
        check(1, "AAAAAAAAAAAAAAAAAAAAAQ");
        check(u128::MAX, "_____________________w");
        check(0x0123_4567_89ab_cdef_fedc_ba98_7654_3210, "ASNFZ4mrze_-3LqYdlQyEA");
        assert_eq!(from_base64url("AAAAAAAAAAAAAAAAAAAAAQ=="), Some(1_u128.to_be_bytes()));
    }

    #[test]
    fn other_text_is_refused() {
        for text in
            ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAQ=", "AAAAAAAAAAAAAAAAAAAA+Q", "AAAAAAAAAAAAAAAAAAAAAQA"]
        {
            assert_eq!(from_base64url(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn an_id_survives_its_text(id: [u8; 16]) {
            let text = to_base64url(&id);
            prop_assert_eq!(text.len(), TEXT_LEN);
            prop_assert_eq!(from_base64url(&text), Some(id));
        }
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(random(), random());
    }
}
