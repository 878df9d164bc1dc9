//! The four messages, parsed exactly as strictly as by Kafka's patterns.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Padded, as Kafka's patterns require; bits beyond the last byte are accepted, as by Java's decoder.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireCanonical)
        .with_decode_allow_trailing_bits(true),
);

pub(super) fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

fn from_base64(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

/// Encodes a name for a message: `=` and `,` are escaped.
pub(super) fn to_saslname(name: &str) -> String {
    name.replace('=', "=3D").replace(',', "=2C")
}

/// Decodes a name of a message; None if it is invalid.
pub(super) fn from_saslname(text: &str) -> Option<String> {
    let mut name = String::with_capacity(text.len());
    let mut parts = text.split('=');
    name.push_str(parts.next()?);
    for part in parts {
        let (character, rest) = match part.as_bytes() {
            [b'3', b'D', ..] => ('=', &part[2..]),
            [b'2', b'C', ..] => (',', &part[2..]),
            _ => return None,
        };
        name.push(character);
        name.push_str(rest);
    }
    Some(name)
}

/// `gs2-header [reserved-mext ","] username "," nonce ["," extensions]`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientFirst<'a> {
    /// As in the message; empty if absent.
    pub(super) authorization_id: &'a str,
    pub(super) name: String,
    pub(super) nonce: &'a str,
    pub(super) has_token: bool,
    /// Everything after the gs2 header: what both sides sign.
    pub(super) bare: &'a str,
}

impl<'a> ClientFirst<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<ClientFirst<'a>> {
        let text = ascii(message)?.strip_prefix("n,")?;
        let (authorization_id, bare) = match text.strip_prefix("a=") {
            Some(rest) => rest.split_once(',')?,
            None => ("", text.strip_prefix(',')?),
        };
        if text.starts_with("a=")
            && (authorization_id.is_empty() || from_saslname(authorization_id).is_none())
        {
            return None;
        }
        let mut parts = bare.split(',');
        let mut part = parts.next()?;
        if let Some(reserved) = part.strip_prefix("m=") {
            is_value(reserved).then_some(())?;
            part = parts.next()?;
        }
        let name = from_saslname(part.strip_prefix("n=")?).filter(|name| !name.is_empty())?;
        let nonce = parts.next()?.strip_prefix("r=").filter(|nonce| is_printable(nonce))?;
        let mut has_token = false;
        for extension in parts {
            let (key, value) = extension_of(extension)?;
            // Java's parseBoolean; other names are ignored. The last one of a name counts.
            if key == "tokenauth" {
                has_token = value.eq_ignore_ascii_case("true");
            }
        }
        Some(ClientFirst { authorization_id, name, nonce, has_token, bare })
    }
}

/// `[reserved-mext ","] nonce "," salt "," iteration-count ["," extensions]`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerFirst<'a> {
    pub(super) nonce: &'a str,
    pub(super) salt: Vec<u8>,
    /// Digits; they may be too many for a number.
    pub(super) iterations: &'a str,
}

impl<'a> ServerFirst<'a> {
    pub(super) fn parse(text: &'a str) -> Option<ServerFirst<'a>> {
        let mut parts = text.split(',');
        let mut part = parts.next()?;
        if let Some(reserved) = part.strip_prefix("m=") {
            is_value(reserved).then_some(())?;
            part = parts.next()?;
        }
        let nonce = part.strip_prefix("r=").filter(|nonce| is_printable(nonce))?;
        let salt = from_base64(parts.next()?.strip_prefix("s=")?)?;
        let iterations = parts.next()?.strip_prefix("i=")?;
        let is_number = !iterations.is_empty() && iterations.bytes().all(|byte| byte.is_ascii_digit());
        let has_good_extensions = parts.all(|part| extension_of(part).is_some());
        (is_number && has_good_extensions).then_some(ServerFirst { nonce, salt, iterations })
    }
}

/// `channel-binding "," nonce ["," extensions] "," proof`
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ClientFinal<'a> {
    pub(super) nonce: &'a str,
    pub(super) proof: Vec<u8>,
    /// Everything before the proof: what both sides sign. The channel binding in it is not checked, as in Kafka; no binding was offered.
    pub(super) without_proof: &'a str,
}

impl<'a> ClientFinal<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<ClientFinal<'a>> {
        let text = ascii(message)?;
        let (without_proof, proof) = text.rsplit_once(",p=")?;
        let mut parts = without_proof.split(',');
        from_base64(parts.next()?.strip_prefix("c=")?)?;
        let nonce = parts.next()?.strip_prefix("r=").filter(|nonce| is_printable(nonce))?;
        parts.all(|part| extension_of(part).is_some()).then_some(())?;
        Some(ClientFinal { nonce, proof: from_base64(proof)?, without_proof })
    }
}

/// `("e=" server-error-value | "v=" signature) ["," extensions]`
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerFinal<'a> {
    Error(&'a str),
    Signature(Vec<u8>),
}

impl<'a> ServerFinal<'a> {
    pub(super) fn parse(message: &'a [u8]) -> Option<ServerFinal<'a>> {
        let text = ascii(message)?;
        if let Some(error) = text.strip_prefix("e=") {
            let is_safe = !error.is_empty() && !error.contains(['=', ',']);
            return is_safe.then_some(ServerFinal::Error(error));
        }
        let mut parts = text.split(',');
        let signature = from_base64(parts.next()?.strip_prefix("v=")?)?;
        parts.all(|part| extension_of(part).is_some()).then_some(ServerFinal::Signature(signature))
    }
}

/// The text of a message, all of whose characters are 0x01 to 0x7f.
pub(super) fn ascii(message: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(message).ok()?;
    text.bytes().all(|byte| (0x01..=0x7f).contains(&byte)).then_some(text)
}

fn is_printable(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| (0x21..=0x7e).contains(&byte))
}

fn is_value(text: &str) -> bool {
    !text.is_empty() && !text.contains(',')
}

fn extension_of(text: &str) -> Option<(&str, &str)> {
    let (key, value) = text.split_once('=')?;
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphabetic());
    (is_key && is_value(value)).then_some((key, value))
}
