//! Authenticated and refused connections, under the names that JMX exporters give Kafka's.

use mainstem_net::counters::{Authentications, ListenerAuthentications};
use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;

/// The listener label of the metrics' own port.
pub(crate) const METRICS_LISTENER: &str = "metrics";

/// A metric of each listener: its name, its meaning, and its source.
type Column = (&'static str, &'static str, fn(&ListenerAuthentications) -> u64);

/// All counts.
const COLUMNS: [Column; 5] = [
    (
        "kafka_server_socket_server_metrics_successful_authentication_total",
        "Connections that were authenticated.",
        |counts| counts.succeeded_total(false),
    ),
    (
        "kafka_server_socket_server_metrics_failed_authentication_total",
        "Connections whose credentials were refused.",
        |counts| counts.failed_total(false),
    ),
    (
        "kafka_server_socket_server_metrics_successful_reauthentication_total",
        "Sessions that were renewed.",
        |counts| counts.succeeded_total(true),
    ),
    (
        "kafka_server_socket_server_metrics_failed_reauthentication_total",
        "Renewals of sessions that were refused.",
        |counts| counts.failed_total(true),
    ),
    (
        "kafka_server_socket_server_metrics_expired_connections_killed_count",
        "Connections that were closed since they did not renew their session.",
        |counts| counts.expired_total(),
    ),
];

/// Writes the counts of all listeners; those of these listeners also while they are zero.
pub(super) fn expose<'a>(
    counts: &Authentications,
    listeners: impl Iterator<Item = &'a str>,
    text: &mut Exposition,
) {
    listeners.for_each(|listener| drop(counts.of(listener)));
    for (name, help, count) in COLUMNS {
        text.describe(name, Kind::Counter, help);
        for (listener, counts) in counts.all() {
            text.sample(name, &[("listener", &listener)], count(&counts) as f64);
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
