//! TLS sessions by listener, protocol and cipher suite: open ones, under the name that JMX exporters give Kafka's,
//! and all handshakes so far.

use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;
use mainstem_listener_security::SuiteReport;

/// Writes those of all listeners with TLS.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    let listeners: Vec<_> = broker.security.tls_listeners().collect();
    if listeners.is_empty() {
        return;
    }
    let reports: Vec<_> =
        listeners.iter().map(|tls| (tls.listener.as_str(), tls.handshakes().report())).collect();
    let name = "kafka_server_socket_server_metrics_connections";
    text.describe(name, Kind::Gauge, "Sessions of TLS that last, by what they agreed upon.");
    for (listener, suite) in suites(&reports) {
        let labels = [
            ("cipher", suite.cipher.as_str()),
            ("protocol", suite.protocol),
            ("listener", listener),
            ("networkprocessor", "0"),
        ];
        text.sample(name, &labels, suite.open as f64);
    }
    let name = "mainstem_tls_handshakes_total";
    text.describe(name, Kind::Counter, "Handshakes of TLS that were done, by what they agreed upon.");
    for (listener, suite) in suites(&reports) {
        let labels =
            [("cipher", suite.cipher.as_str()), ("protocol", suite.protocol), ("listener", listener)];
        text.sample(name, &labels, suite.done as f64);
    }
    let name = "mainstem_tls_handshakes_failed_total";
    text.describe(name, Kind::Counter, "Handshakes of TLS that came to no session.");
    for tls in &listeners {
        text.sample(name, &[("listener", &tls.listener)], tls.handshakes().failures() as f64);
    }
}

/// The protocols and cipher suites that each listener has seen.
fn suites<'a>(
    reports: &'a [(&'a str, Vec<SuiteReport>)],
) -> impl Iterator<Item = (&'a str, &'a SuiteReport)> {
    reports.iter().flat_map(|(listener, report)| report.iter().map(move |suite| (*listener, suite)))
}
