//! Usage of clients with quotas, under the names of the common configuration of Kafka's JMX exporter.

use mainstem_limits::quotas::Usage;
use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;

/// The most clients for each kind of quota, the busiest first.
const CLIENTS_MAX: usize = 1_000;

/// A metric of a kind of quota: its name and its meaning.
type Measure = (&'static str, &'static str);

const BYTE_RATE: Measure = ("kafka_server_quota_byte_rate", "Bytes per second of clients with a quota.");
const REQUEST_TIME: Measure = (
    "kafka_server_quota_request_time",
    "Time of event loops that clients with a quota take, in percent of one.",
);
const TOKENS: Measure =
    ("kafka_server_quota_tokens", "Partitions that clients with a quota may still create or delete.");
const THROTTLE_TIME: Measure = (
    "kafka_server_quota_throttle_time",
    "Milliseconds for which clients with a quota were last held back, of the last minute.",
);

/// Writes them all.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    let kinds = broker.quotas.usage().map(|(resource, mut usage)| {
        let busy = |usage: &Usage| (usage.throttle_ms as f64, usage.value);
        usage.sort_by(|a, b| busy(b).partial_cmp(&busy(a)).expect("rates are numbers"));
        usage.truncate(CLIENTS_MAX);
        (resource, usage)
    });
    for (name, help) in [BYTE_RATE, REQUEST_TIME, TOKENS, THROTTLE_TIME] {
        text.describe(name, Kind::Gauge, help);
        for (resource, usage) in &kinds {
            let measure = match *resource {
                "Request" => REQUEST_TIME,
                "ControllerMutation" => TOKENS,
                _ => BYTE_RATE,
            };
            let value: fn(&Usage) -> f64 = match name {
                name if name == THROTTLE_TIME.0 => |usage| usage.throttle_ms as f64,
                name if name == measure.0 => |usage| usage.value,
                _ => continue,
            };
            for client in usage {
                let labels = [
                    ("resource", *resource),
                    ("user", client.user.as_str()),
                    ("clientId", client.client_id.as_str()),
                ];
                text.sample(name, &labels, value(client));
            }
        }
    }
}
