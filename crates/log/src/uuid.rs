//! 16-byte ids in Kafka's text form: base64url without padding, 22 characters.

use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rustix::rand::{GetRandomFlags, getrandom};

/// As Java decodes: the last character's bits that belong to no byte may be any.
const BASE64URL: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true),
);

/// A random id as Kafka makes them: none whose text starts with `-` (tools would take it for an option), none of
/// the first hundred (reserved for directories by KIP-858).
pub(crate) fn random() -> [u8; 16] {
    loop {
        let id = random_bytes();
        if id[..15] != [0; 15] && !to_base64url(&id).starts_with('-') {
            return id;
        }
    }
}

fn random_bytes() -> [u8; 16] {
    let mut id = [0; 16];
    let mut filled = 0;
    while filled < id.len() {
        // An interrupted call is made again; the kernel has no other reason to refuse a few bytes.
        filled += getrandom(&mut id[filled..], GetRandomFlags::empty()).unwrap_or(0);
    }
    id
}

/// Kafka's text form of an id.
pub(crate) fn to_base64url(id: &[u8; 16]) -> String {
    BASE64URL.encode(id)
}

/// An id from Kafka's text form; padding (`==`) is accepted as Java's decoder does.
pub(crate) fn from_base64url(text: &str) -> Option<[u8; 16]> {
    let text = text.strip_suffix("==").unwrap_or(text);
    BASE64URL.decode(text).ok()?.try_into().ok()
}

/// 32 hexadecimal digits, as in the names of directories that wait for deletion.
pub(crate) fn to_hex(id: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*id))
}

/// The id of 32 hexadecimal digits; `None`: it is none.
pub(crate) fn from_hex(text: &str) -> Option<[u8; 16]> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = text.len() == 32 && text.bytes().all(is_digit);
    let number = is_id.then(|| u128::from_str_radix(text, 16).ok()).flatten()?;
    Some(number.to_be_bytes())
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
            prop_assert_eq!(text.len(), 22);
            prop_assert_eq!(from_base64url(&text), Some(id));
        }
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(random(), random());
    }
}
