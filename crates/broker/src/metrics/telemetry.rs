//! Metrics that clients pushed (KIP-714), each as `kafka_client_` and its name.

use mainstem_limits::telemetry::Sample;
use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;
use crate::telemetry::{CLIENT_LABEL, INSTANCE_LABEL};

/// Writes them all: at most `coordination::telemetry::SERIES_MAX`.
pub(super) fn expose(broker: &Broker, text: &mut Exposition) {
    text.one(
        "kafka_server_client_metrics_instance_count",
        Kind::Gauge,
        "Client instances that have asked for their telemetry subscriptions.",
        broker.telemetry.instances() as f64,
    );
    broker.telemetry.with_series(|series| {
        text.one(
            "mainstem_client_telemetry_refused_total",
            Kind::Counter,
            "Numbers that clients pushed and that were over the limit of series.",
            series.refused() as f64,
        );
        for (name, samples) in series.by_metric() {
            let is_gauge = samples.iter().any(|sample| sample.is_gauge);
            let kind = if is_gauge { Kind::Gauge } else { Kind::Counter };
            text.describe(name, kind, "Pushed by clients.");
            samples.iter().for_each(|sample| write(text, name, sample));
        }
    });
}

fn write(text: &mut Exposition, name: &str, sample: &Sample<'_>) {
    let id = sample.id.to_string();
    let mut labels = vec![(INSTANCE_LABEL, id.as_str()), (CLIENT_LABEL, sample.client_id)];
    labels.extend(sample.labels.iter().map(|(label, value)| (label.as_str(), value.as_str())));
    text.sample(name, &labels, sample.value);
}
