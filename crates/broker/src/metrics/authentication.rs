//! Connections that were authenticated and that were not, under the names that JMX exporters give Kafka's.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_operator::{Exposition, Kind};
use parking_lot::RwLock;

use super::load;
use crate::broker::Broker;

/// What stands for a listener's name where the metrics' own port was asked.
pub(crate) const METRICS_LISTENER: &str = "metrics";

/// Counts of all listeners, by their names.
#[derive(Default)]
pub(crate) struct Authentications(RwLock<BTreeMap<String, Arc<ListenerAuthentications>>>);

/// Counts of one listener.
#[derive(Default)]
pub(crate) struct ListenerAuthentications {
    /// First authentications, and renewals of a session.
    succeeded: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    expired: AtomicU64,
}

impl ListenerAuthentications {
    /// A connection was authenticated, or `again`.
    pub(crate) fn succeeded(&self, again: bool) {
        self.succeeded[usize::from(again)].fetch_add(1, Ordering::Relaxed);
    }

    /// Credentials were refused, or a renewal was.
    pub(crate) fn failed(&self, again: bool) {
        self.failed[usize::from(again)].fetch_add(1, Ordering::Relaxed);
    }

    /// A connection was closed since its session was over.
    pub(crate) fn expired(&self) {
        self.expired.fetch_add(1, Ordering::Relaxed);
    }
}

/// A metric of each listener: its name, what it means, and where it is taken from.
type Column = (&'static str, &'static str, fn(&ListenerAuthentications) -> &AtomicU64);

/// All that is counted.
const COLUMNS: [Column; 5] = [
    (
        "kafka_server_socket_server_metrics_successful_authentication_total",
        "Connections that were authenticated.",
        |counts| &counts.succeeded[0],
    ),
    (
        "kafka_server_socket_server_metrics_failed_authentication_total",
        "Connections whose credentials were refused.",
        |counts| &counts.failed[0],
    ),
    (
        "kafka_server_socket_server_metrics_successful_reauthentication_total",
        "Sessions that were renewed.",
        |counts| &counts.succeeded[1],
    ),
    (
        "kafka_server_socket_server_metrics_failed_reauthentication_total",
        "Renewals of sessions that were refused.",
        |counts| &counts.failed[1],
    ),
    (
        "kafka_server_socket_server_metrics_expired_connections_killed_count",
        "Connections that were closed since they did not renew their session.",
        |counts| &counts.expired,
    ),
];

impl Authentications {
    /// The counts of a listener. There are as many as the configuration has listeners.
    pub(crate) fn of(&self, listener: &str) -> Arc<ListenerAuthentications> {
        if let Some(counts) = self.0.read().get(listener) {
            return counts.clone();
        }
        self.0.write().entry(listener.to_owned()).or_default().clone()
    }

    /// Writes them all; those of these listeners also where nothing was counted yet.
    pub(super) fn expose<'a>(&self, listeners: impl Iterator<Item = &'a str>, text: &mut Exposition) {
        listeners.for_each(|listener| drop(self.of(listener)));
        let all = self.0.read();
        for (name, help, count) in COLUMNS {
            text.describe(name, Kind::Counter, help);
            for (listener, counts) in all.iter() {
                text.sample(name, &[("listener", listener)], load(count(counts)));
            }
        }
    }
}

/// Writes when the certificates of the listeners expire, and which of them could not be read again.
pub(super) fn expose_certificates(broker: &Broker, text: &mut Exposition) {
    let listeners: Vec<_> = broker.security.tls_listeners().collect();
    if listeners.is_empty() {
        return;
    }
    let name = "mainstem_listener_certificate_expiry_timestamp_seconds";
    text.describe(name, Kind::Gauge, "When the certificate of a listener expires, in seconds since 1970.");
    for tls in &listeners {
        if let Some(at) = tls.expires_at() {
            text.sample(name, &[("listener", &tls.listener)], at as f64);
        }
    }
    let name = "mainstem_listener_key_store_failed";
    text.describe(name, Kind::Gauge, "1 where the key stores of a listener have changed and cannot be used.");
    for tls in &listeners {
        text.sample(name, &[("listener", &tls.listener)], f64::from(u8::from(tls.failure().is_some())));
    }
}
