//! A subscription: metrics, an interval, and the clients that it is for.

use std::collections::BTreeMap;

use mainstem_wire::Uuid;
use regex::{Regex, RegexBuilder};

/// Where a subscription says no interval: five minutes.
pub(super) const INTERVAL_MS_DEFAULT: u32 = 300_000;

/// A compiled pattern takes at most so many bytes.
const PATTERN_BYTES_MAX: usize = 256 << 10;

/// What is known of a client that asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFacts<'a> {
    /// Its id in its requests' headers.
    pub client_id: &'a str,
    /// The name of its library.
    pub software_name: &'a str,
    /// The version of its library.
    pub software_version: &'a str,
    /// The address from which it connects.
    pub source_address: &'a str,
    /// The port from which it connects.
    pub source_port: u16,
}

/// One subscription, as its configuration has it.
#[derive(Debug, Clone)]
pub struct Subscription {
    /// Prefixes of metrics' names; `*` is all.
    pub(super) metrics: Vec<String>,
    /// Milliseconds between pushes.
    pub(super) interval_ms: u32,
    /// What has to match, all of it.
    selectors: Vec<(Selector, Regex)>,
}

/// What of a client a pattern looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selector {
    InstanceId,
    ClientId,
    SoftwareName,
    SoftwareVersion,
    SourceAddress,
    SourcePort,
}

impl Selector {
    fn of(name: &str) -> Option<Selector> {
        Some(match name {
            "client_instance_id" => Selector::InstanceId,
            "client_id" => Selector::ClientId,
            "client_software_name" => Selector::SoftwareName,
            "client_software_version" => Selector::SoftwareVersion,
            "client_source_address" => Selector::SourceAddress,
            "client_source_port" => Selector::SourcePort,
            _ => return None,
        })
    }
}

impl Subscription {
    /// Reads a configuration whose values were validated; what does not fit counts as not set.
    pub fn new(values: &BTreeMap<String, String>) -> Subscription {
        let list = |key: &str| items(values.get(key).map_or("", String::as_str)).map(str::to_owned).collect();
        let interval = values.get("interval.ms").and_then(|text| text.trim().parse().ok());
        let patterns: Vec<String> = list("match");
        Subscription {
            metrics: list("metrics"),
            interval_ms: interval.unwrap_or(INTERVAL_MS_DEFAULT),
            selectors: patterns.iter().filter_map(|item| selector(item)).collect(),
        }
    }

    /// Whether it is for this client.
    pub(super) fn matches(&self, id: Uuid, client: &ClientFacts<'_>) -> bool {
        self.selectors.iter().all(|(selector, pattern)| match selector {
            Selector::InstanceId => pattern.is_match(&id.to_string()),
            Selector::ClientId => pattern.is_match(client.client_id),
            Selector::SoftwareName => pattern.is_match(client.software_name),
            Selector::SoftwareVersion => pattern.is_match(client.software_version),
            Selector::SourceAddress => pattern.is_match(client.source_address),
            Selector::SourcePort => pattern.is_match(&client.source_port.to_string()),
        })
    }
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

/// `client_id=PATTERN`; the pattern has to match the whole value, as in Kafka.
fn selector(item: &str) -> Option<(Selector, Regex)> {
    let mut parts = item.split('=');
    let (Some(name), Some(pattern), None) = (parts.next(), parts.next(), parts.next()) else { return None };
    let selector = Selector::of(name.trim())?;
    let whole = format!("^(?:{})$", pattern.trim());
    let mut pattern = RegexBuilder::new(&whole);
    pattern.size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
    Some((selector, pattern.build().ok()?))
}

/// Checks a value of `match`.
///
/// # Errors
/// What is wrong, in Kafka's words.
pub fn check_match(text: &str) -> Result<(), String> {
    match items(text).find(|item| selector(item).is_none()) {
        Some(item) => Err(format!("Illegal client matching pattern: {item}")),
        None => Ok(()),
    }
}
