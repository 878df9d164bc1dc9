//! Distinguished names by RFC 2253, as Java's `X500Principal.getName()` prints them.

use std::fmt::Write as _;

use crate::der::{self, Malformed, OID, Reader, SEQUENCE, SET};

/// Prints the relative names of a distinguished name: the last one first, values escaped, and attributes without a keyword in the RFC by
/// their identifier and in hexadecimal.
///
/// # Errors
/// When the bytes are no name.
pub(crate) fn rfc2253(name: &[u8]) -> der::Result<String> {
    let mut relatives = Vec::new();
    let mut reader = Reader::new(name);
    while !reader.is_empty() {
        let mut values = reader.enter(SET, "a part of its name is no set")?;
        let mut parts = Vec::new();
        while !values.is_empty() {
            parts.push(attribute(values.enter(SEQUENCE, "a part of its name is no pair")?)?);
        }
        relatives.push(parts.join("+"));
    }
    relatives.reverse();
    Ok(relatives.join(","))
}

/// The keyword of an attribute type, if RFC 2253 has one.
fn keyword(oid: &[u8]) -> Option<&'static str> {
    Some(match oid {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 6] => "C",
        [0x55, 4, 7] => "L",
        [0x55, 4, 8] => "ST",
        [0x55, 4, 9] => "STREET",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1] => "UID",
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25] => "DC",
        _ => return None,
    })
}

fn attribute(mut pair: Reader<'_>) -> der::Result<String> {
    let oid = pair.take(OID, "a part of its name has no type")?;
    let value = pair.any()?.ok_or(Malformed("a part of its name has no value"))?;
    match keyword(oid) {
        Some(keyword) if is_string(value.tag) => {
            // Java reads every kind of string as UTF-8.
            Ok(format!("{keyword}={}", escaped(&String::from_utf8_lossy(value.value))))
        }
        keyword => {
            let mut text = keyword.map_or_else(|| der::dotted(oid), str::to_owned);
            text.push_str("=#");
            for byte in value.whole {
                write!(text, "{byte:02x}").expect("a String takes all");
            }
            Ok(text)
        }
    }
}

/// UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString.
fn is_string(tag: u8) -> bool {
    matches!(tag, 0x0c | 0x13 | 0x14 | 0x16 | 0x1b | 0x1e)
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        match character {
            ',' | '=' | '+' | '<' | '>' | '#' | ';' | '"' | '\\' => text.extend(['\\', character]),
            '\0' => text.push_str("\\00"),
            other => text.push(other),
        }
    }
    let is_blank = |c: char| matches!(c, ' ' | '\r');
    let lead = text.len() - text.trim_start_matches(is_blank).len();
    let trail = text.trim_end_matches(is_blank).len();
    let outside = |at: usize| at < lead || at >= trail;
    let mut whole = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        if outside(at) {
            whole.push('\\');
        }
        whole.push(character);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    /// Names in DER and what `X500Principal.getName()` of Java 17 made of them, both in hexadecimal.
    #[test]
    fn as_java_prints_them() {
        let lines = include_str!("java_names.txt").lines();
        let mut count = 0;
        for line in lines {
            let (name, printed) = line.split_once(' ').unwrap_or((line, ""));
            let name = unhex(name);
            let inner = Reader::new(&name).take(SEQUENCE, "").unwrap();
            let printed = String::from_utf8(unhex(printed.trim())).unwrap();
            assert_eq!(rfc2253(inner).unwrap(), printed, "{line}");
            count += 1;
        }
        assert!(count > 100);
    }

    #[test]
    fn what_is_no_name() {
        for bad in
            [&[0x30, 0][..], &[0x31, 2, 4, 0], &[0x31, 2, 0x30, 0], &[0x31, 5, 0x30, 3, 6, 1, 5], &[0x31, 9]]
        {
            assert!(rfc2253(bad).is_err(), "{bad:?}");
        }
    }
}
