//! A subscription: metrics, an interval, and the clients that it is for.

use std::collections::BTreeMap;

use mainstem_config::client_match::{ClientSelector, client_match, items};
use mainstem_wire::Uuid;
use regex::Regex;

/// The interval of subscriptions that name none: five minutes.
pub(super) const INTERVAL_MS_DEFAULT: u32 = 300_000;

/// The properties of a client that asks.
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
    /// The conditions that all have to match.
    selectors: Vec<(ClientSelector, Regex)>,
}

impl Subscription {
    /// Reads a configuration whose values were validated; a value of another form counts as not set.
    pub fn new(values: &BTreeMap<String, String>) -> Subscription {
        let list = |key: &str| items(values.get(key).map_or("", String::as_str)).map(str::to_owned).collect();
        let interval = values.get("interval.ms").and_then(|text| text.trim().parse().ok());
        let patterns: Vec<String> = list("match");
        Subscription {
            metrics: list("metrics"),
            interval_ms: interval.unwrap_or(INTERVAL_MS_DEFAULT),
            selectors: patterns.iter().filter_map(|item| client_match(item)).collect(),
        }
    }

    /// Returns true if it is for this client.
    pub(super) fn matches(&self, id: Uuid, client: &ClientFacts<'_>) -> bool {
        self.selectors.iter().all(|(selector, pattern)| match selector {
            ClientSelector::InstanceId => pattern.is_match(&id.to_string()),
            ClientSelector::ClientId => pattern.is_match(client.client_id),
            ClientSelector::SoftwareName => pattern.is_match(client.software_name),
            ClientSelector::SoftwareVersion => pattern.is_match(client.software_version),
            ClientSelector::SourceAddress => pattern.is_match(client.source_address),
            ClientSelector::SourcePort => pattern.is_match(&client.source_port.to_string()),
        })
    }
}
