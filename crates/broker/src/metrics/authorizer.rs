//! Decisions of the authorizer, under the names that JMX exporters give Kafka's. Kafka has rates per minute of the
//! same. Here they are counts, whose increase is the rate.

use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;

/// Writes the counts of decisions, and of rules; nothing without an authorizer.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    let Some(authorization) = broker.security.authorization() else { return };
    let (allowed, denied) = (authorization.allowed(), authorization.denied());
    for (name, help, count) in [
        (
            "kafka_server_authorizer_metrics_authorization_request_total",
            "Questions of requests to the authorizer, but for those of lists.",
            allowed + denied,
        ),
        (
            "kafka_server_authorizer_metrics_authorization_allowed_total",
            "Those that were answered with yes.",
            allowed,
        ),
        (
            "kafka_server_authorizer_metrics_authorization_denied_total",
            "Those that were answered with no.",
            denied,
        ),
    ] {
        text.one(name, Kind::Counter, help, count as f64);
    }
    let name = "kafka_server_authorizer_metrics_acls_total_count";
    text.one(name, Kind::Gauge, "Rules (ACLs) of the cluster.", authorization.rules_count() as f64);
}
