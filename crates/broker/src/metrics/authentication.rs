//! Connections that were authenticated and that were not, under the names that JMX exporters give Kafka's.

use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_operator::{Exposition, Kind};

use super::load;
use crate::broker::Broker;

/// Counts of all listeners with SASL.
#[derive(Default)]
pub(crate) struct Authentications {
    /// First authentications, and renewals of a session.
    succeeded: [AtomicU64; 2],
    failed: [AtomicU64; 2],
    expired: AtomicU64,
}

impl Authentications {
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

    /// Writes them all.
    pub(super) fn expose(&self, text: &mut Exposition) {
        let (succeeded, failed) = (&self.succeeded, &self.failed);
        for (name, help, count) in [
            (
                "kafka_server_socket_server_metrics_successful_authentication_total",
                "Connections that were authenticated.",
                &succeeded[0],
            ),
            (
                "kafka_server_socket_server_metrics_failed_authentication_total",
                "Connections whose credentials were refused.",
                &failed[0],
            ),
            (
                "kafka_server_socket_server_metrics_successful_reauthentication_total",
                "Sessions that were renewed.",
                &succeeded[1],
            ),
            (
                "kafka_server_socket_server_metrics_failed_reauthentication_total",
                "Renewals of sessions that were refused.",
                &failed[1],
            ),
            (
                "kafka_server_socket_server_metrics_expired_connections_killed_count",
                "Connections that were closed since they did not renew their session.",
                &self.expired,
            ),
        ] {
            text.one(name, Kind::Counter, help, load(count));
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

/// Writes how often a principal was denied something, where there is an authorizer.
pub(super) fn expose_denials(broker: &Broker, text: &mut Exposition) {
    if let Some(authorization) = broker.security.authorization() {
        let help = "Questions of the authorizer that were answered with no, but for those of lists.";
        let name = "kafka_server_authorizer_metrics_authorization_denied_total";
        text.one(name, Kind::Counter, help, authorization.denied() as f64);
    }
}
