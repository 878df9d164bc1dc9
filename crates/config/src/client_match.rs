//! Client match patterns of telemetry subscriptions (KIP-714): `client_id=PATTERN`, and the properties to match.

use regex::{Regex, RegexBuilder};

/// A compiled pattern takes at most so many bytes.
const PATTERN_BYTES_MAX: usize = 256 << 10;

/// The property of a client that a pattern is matched against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientSelector {
    /// The client instance id.
    InstanceId,
    /// The client id of the request header.
    ClientId,
    /// The name of the client library.
    SoftwareName,
    /// The version of the client library.
    SoftwareVersion,
    /// The address from which the client connects.
    SourceAddress,
    /// The port from which the client connects.
    SourcePort,
}

impl ClientSelector {
    fn of(name: &str) -> Option<ClientSelector> {
        Some(match name {
            "client_instance_id" => ClientSelector::InstanceId,
            "client_id" => ClientSelector::ClientId,
            "client_software_name" => ClientSelector::SoftwareName,
            "client_software_version" => ClientSelector::SoftwareVersion,
            "client_source_address" => ClientSelector::SourceAddress,
            "client_source_port" => ClientSelector::SourcePort,
            _ => return None,
        })
    }
}

/// The items of a comma-separated list, trimmed, without empty ones.
pub fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// `client_id=PATTERN`; the pattern has to match the whole value, as in Kafka.
pub fn client_match(item: &str) -> Option<(ClientSelector, Regex)> {
    let mut parts = item.split('=');
    let (Some(name), Some(pattern), None) = (parts.next(), parts.next(), parts.next()) else { return None };
    let selector = ClientSelector::of(name.trim())?;
    let whole = format!("^(?:{})$", pattern.trim());
    let mut pattern = RegexBuilder::new(&whole);
    pattern.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    Some((selector, pattern.build().ok()?))
}

/// Checks a value of `match`.
///
/// # Errors
/// The mistake, in Kafka's words.
pub fn check_match(text: &str) -> Result<(), String> {
    match items(text).find(|item| client_match(item).is_none()) {
        Some(item) => Err(format!("Illegal client matching pattern: {item}")),
        None => Ok(()),
    }
}
