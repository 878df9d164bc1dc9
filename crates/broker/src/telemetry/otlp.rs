//! The part of OpenTelemetry's metrics protocol (OTLP 1.x) that Kafka's clients send: gauges and sums of numbers.
//!
//! The messages have the fields in use; others are ignored.

use mainstem_limits::telemetry::{POINTS_PER_CLIENT_MAX, Point, Temporality};
use prost::Message;

/// The prefix of Kafka's own metrics, left out at `/metrics`.
const KAFKA_PREFIX: &str = "org.apache.kafka.";

/// The prefix of all metrics of clients at `/metrics`.
const NAME_PREFIX: &str = "kafka_client_";

/// The most bytes of names and values; longer ones are left out.
const TEXT_BYTES_MAX: usize = 256;
const LABELS_MAX: usize = 16;

/// Labels that the broker gives.
pub(crate) const INSTANCE_LABEL: &str = "client_instance_id";
pub(crate) const CLIENT_LABEL: &str = "client_id";

#[derive(Clone, PartialEq, Message)]
struct MetricsData {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "5")]
    gauge: Option<Gauge>,
    #[prost(message, optional, tag = "7")]
    sum: Option<Sum>,
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<NumberDataPoint>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

/// `AGGREGATION_TEMPORALITY_DELTA`.
const DELTA: i32 = 1;

#[derive(Clone, PartialEq, Message)]
struct NumberDataPoint {
    #[prost(double, optional, tag = "4")]
    as_double: Option<f64>,
    #[prost(sfixed64, optional, tag = "6")]
    as_int: Option<i64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
    #[prost(bool, optional, tag = "2")]
    boolean: Option<bool>,
    #[prost(int64, optional, tag = "3")]
    int: Option<i64>,
    #[prost(double, optional, tag = "4")]
    double: Option<f64>,
}

/// The numbers in a payload, at most [`POINTS_PER_CLIENT_MAX`]; `None` if it is malformed.
pub(super) fn points(payload: &[u8]) -> Option<Vec<Point>> {
    let data = MetricsData::decode(payload).ok()?;
    let scopes = data.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
    let metrics = scopes.flat_map(|scope| scope.metrics);
    Some(metrics.flat_map(metric_points).take(POINTS_PER_CLIENT_MAX).collect())
}

fn metric_points(metric: Metric) -> impl Iterator<Item = Point> {
    let name = metric_name(&metric.name);
    let gauge = metric.gauge.into_iter().flat_map(|gauge| gauge.data_points);
    let gauges = gauge.map(|point| (Temporality::Gauge, point));
    let sums = metric.sum.into_iter().flat_map(|sum| {
        let temporality = match sum.aggregation_temporality {
            DELTA => Temporality::Delta,
            _ => Temporality::Cumulative,
        };
        sum.data_points.into_iter().map(move |point| (temporality, point))
    });
    gauges.chain(sums).filter_map(move |(temporality, point)| {
        let value = point.as_double.or(point.as_int.map(|value| value as f64))?;
        let labels = labels(&point.attributes);
        value.is_finite().then(|| Point { name: name.clone(), labels, value, temporality })
    })
}

/// `org.apache.kafka.producer.record.send.total` becomes `kafka_client_producer_record_send_total`.
fn metric_name(name: &str) -> String {
    let own = name.strip_prefix(KAFKA_PREFIX).unwrap_or(name);
    format!("{NAME_PREFIX}{}", sanitized(own))
}

/// A name with an underscore in place of every character that Prometheus does not allow.
fn sanitized(name: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    name.chars().take(TEXT_BYTES_MAX).map(allowed).collect()
}

fn labels(attributes: &[KeyValue]) -> Vec<(String, String)> {
    let mut labels: Vec<(String, String)> = Vec::new();
    for attribute in attributes.iter().take(LABELS_MAX) {
        let mut name = sanitized(&attribute.key);
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
            name.insert(0, '_');
        }
        let is_taken = [INSTANCE_LABEL, CLIENT_LABEL].contains(&name.as_str())
            || labels.iter().any(|(other, _)| *other == name);
        if !is_taken {
            labels.push((name, attribute.value.as_ref().map(text).unwrap_or_default()));
        }
    }
    labels.sort();
    labels
}

fn text(value: &AnyValue) -> String {
    let texts = [
        value.string.as_ref().map(|text| text.chars().take(TEXT_BYTES_MAX).collect()),
        value.boolean.map(|value| value.to_string()),
        value.int.map(|value| value.to_string()),
        value.double.map(|value| value.to_string()),
    ];
    texts.into_iter().flatten().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn payload(metrics: Vec<Metric>) -> Vec<u8> {
        let scope_metrics = vec![ScopeMetrics { metrics }];
        MetricsData { resource_metrics: vec![ResourceMetrics { scope_metrics }] }.encode_to_vec()
    }

    fn attribute(key: &str, value: AnyValue) -> KeyValue {
        KeyValue { key: key.to_owned(), value: Some(value) }
    }

    #[test]
    fn gauges_and_sums_are_read() {
        let string = |text: &str| AnyValue { string: Some(text.to_owned()), ..AnyValue::default() };
        let double = NumberDataPoint {
            as_double: Some(1.5),
            attributes: vec![
                attribute("node.id", AnyValue { int: Some(3), ..AnyValue::default() }),
                attribute("client_id", string("spoofed")),
                attribute("9", string("nine")),
            ],
            ..NumberDataPoint::default()
        };
        let int = NumberDataPoint { as_int: Some(-7), ..NumberDataPoint::default() };
        let infinite = NumberDataPoint { as_double: Some(f64::INFINITY), ..NumberDataPoint::default() };
        let metrics = vec![
            Metric {
                name: "org.apache.kafka.producer.node.request.latency-avg".to_owned(),
                gauge: Some(Gauge { data_points: vec![double, infinite] }),
                sum: None,
            },
            Metric {
                name: "own.total".to_owned(),
                gauge: None,
                sum: Some(Sum { data_points: vec![int], aggregation_temporality: DELTA }),
            },
        ];
        let points = points(&payload(metrics)).expect("it is a message");
        let labels = [("_9".to_owned(), "nine".to_owned()), ("node_id".to_owned(), "3".to_owned())];
        assert_eq!(points.len(), 2);
        assert_eq!(points[0].name, "kafka_client_producer_node_request_latency_avg");
        assert_eq!((points[0].value, points[0].temporality), (1.5, Temporality::Gauge));
        assert_eq!(points[0].labels, labels);
        assert_eq!(points[1].name, "kafka_client_own_total");
        assert_eq!((points[1].value, points[1].temporality), (-7.0, Temporality::Delta));
    }

    #[test]
    fn a_payload_gives_no_more_than_its_share() {
        let point = NumberDataPoint { as_int: Some(1), ..NumberDataPoint::default() };
        let data_points = vec![point; POINTS_PER_CLIENT_MAX + 1];
        let metric = Metric { name: "m".to_owned(), gauge: Some(Gauge { data_points }), sum: None };
        assert_eq!(points(&payload(vec![metric])).expect("a message").len(), POINTS_PER_CLIENT_MAX);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            for point in points(&bytes).unwrap_or_default() {
                prop_assert!(point.value.is_finite() && point.name.starts_with(NAME_PREFIX));
            }
        }
    }
}
