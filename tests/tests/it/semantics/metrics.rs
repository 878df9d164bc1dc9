//! `/metrics` under the names that Kafka's dashboards use.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mainstem_testkit::figure;
use mainstem_tests::broker::{Broker, Setup, share_of_a_core};
use mainstem_tests::kafka::batch;
use mainstem_tests::wait::{TIMEOUT, eventually};

use crate::semantics::{TOPIC, broker_with_topic};

/// Prefixes of metrics; other words of an expression are functions, labels and variables.
const PREFIXES: [&str; 3] = ["kafka_", "mainstem_", "process_"];

/// Names in PromQL expressions.
fn names_in(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| PREFIXES.iter().any(|prefix| word.starts_with(prefix))).collect()
}

/// Every string under a key `expr`, at any depth.
fn expressions<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (key, value) in fields {
                match value.as_str() {
                    Some(text) if key == "expr" => found.push(text),
                    _ => expressions(value, found),
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
        _ => {}
    }
}

fn value_of(metrics: &str, sample: &str) -> Option<f64> {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok())
}

#[test]
fn the_dashboard_asks_for_nothing_that_is_not_there() {
    let dashboard = include_str!("../../../../docs/grafana/mainstem.json");
    let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
    let mut asked = Vec::new();
    expressions(&dashboard, &mut asked);
    assert!(asked.len() > 20, "{} panels", asked.len());
    let (broker, mut client) = broker_with_topic("metrics-dashboard", 2, &[]);
    client.produce(TOPIC, 0, -1, &batch(&[b"a"])).unwrap();
    client.fetch(TOPIC, 0, 0).unwrap();
    client.find_coordinator("group").unwrap();
    client.commit("group", TOPIC, 0, 1).unwrap();
    let metrics = broker.http("/metrics");
    let exposed: BTreeSet<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for expression in asked {
        let names = names_in(expression);
        assert!(!names.is_empty(), "no metric in {expression}");
        for name in names {
            assert!(exposed.contains(name), "{name} of the panel {expression} is not exposed");
        }
    }
}

#[test]
fn every_metric_is_described_once_and_its_samples_follow() {
    let (broker, mut client) = broker_with_topic("metrics-format", 2, &[]);
    client.produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
    let metrics = broker.http("/metrics");
    let (_, body) = metrics.split_once("\r\n\r\n").unwrap();
    let mut described = BTreeSet::new();
    let mut current = "";
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split(' ').next().unwrap();
            assert!(described.insert(current), "{current} is described twice");
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            assert_eq!(name, current, "{line}");
            let value = line.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
        }
    }
    assert!(described.len() > 50, "{described:?}");
}

#[test]
fn traffic_is_counted() {
    let (broker, mut client) = broker_with_topic("metrics-traffic", 1, &[]);
    let written = batch(&[b"a", b"b", b"c"]);
    client.produce(TOPIC, 0, 1, &written).unwrap();
    client.fetch(TOPIC, 0, 0).unwrap();
    client.produce("no-such-topic", 0, 1, &written).unwrap_err();
    let metrics = broker.http("/metrics");
    let topic = |name: &str| value_of(&metrics, &format!("kafka_server_brokertopicmetrics_{name}"));
    let bytes = Some(written.len() as f64);
    assert_eq!(topic("messagesin_total{topic=\"topic\"}"), Some(3.0));
    assert_eq!(topic("bytesin_total{topic=\"topic\"}"), bytes);
    assert_eq!(topic("bytesout_total{topic=\"topic\"}"), bytes);
    assert_eq!(topic("messagesin_total"), Some(3.0));
    assert_eq!(topic("failedproducerequests_total"), Some(1.0));
    let requests = "kafka_network_requestmetrics_requests_total{request=\"Produce\"}";
    assert_eq!(value_of(&metrics, requests), Some(2.0));
    let median = "kafka_network_requestmetrics_totaltimems{request=\"Produce\",quantile=\"0.50\"}";
    assert!(value_of(&metrics, median).is_some_and(|ms| ms > 0.0), "{median}");
    for part in ["requestbytes", "totaltimems", "localtimems", "remotetimems", "throttletimems"] {
        let count = format!("kafka_network_requestmetrics_{part}_count{{request=\"Produce\"}}");
        assert_eq!(value_of(&metrics, &count), Some(2.0), "{part}");
    }
    let bytes = "kafka_network_requestmetrics_requestbytes{request=\"Produce\",quantile=\"0.50\"}";
    assert!(value_of(&metrics, bytes).is_some_and(|size| size > written.len() as f64), "{bytes}");
    let end = "kafka_log_log_logendoffset{topic=\"topic\",partition=\"0\"}";
    assert_eq!(value_of(&metrics, end), Some(3.0));
    let connections =
        "kafka_server_socket_server_metrics_connection_count{listener=\"PLAINTEXT\",networkprocessor=\"0\"}";
    assert_eq!(value_of(&metrics, connections), Some(1.0));
    assert_eq!(value_of(&metrics, "kafka_controller_kafkacontroller_activecontrollercount"), Some(1.0));
    assert!(value_of(&metrics, "process_resident_memory_bytes").is_some_and(|bytes| bytes > 1e6));
}

#[test]
fn series_of_partitions_are_bounded() {
    let broker = Setup::new("metrics-bound").set("mainstem.metrics.partitions.max", 3).start();
    let mut client = broker.connect();
    client.create_topic("a", 2, &[]).unwrap();
    client.create_topic("b", 2, &[]).unwrap();
    let metrics = broker.http("/metrics");
    let shown: Vec<&str> = metrics.lines().filter(|line| line.starts_with("kafka_log_log_size{")).collect();
    assert_eq!(shown.len(), 3, "{shown:?}");
    assert_eq!(value_of(&metrics, "kafka_server_replicamanager_partitioncount"), Some(4.0));
}

/// Connections to the HTTP listener.
fn connect_to_http(broker: &Broker, count: usize) -> Vec<TcpStream> {
    let address = broker.ready()["http"].as_str().unwrap();
    (0..count).map(|_| TcpStream::connect(address).unwrap()).collect()
}

#[test]
fn scrapers_that_stay_keep_no_other_out() {
    let broker = Setup::new("metrics-staying").start();
    let begin = Instant::now();
    // If each kept its place (of 64) for half a minute, this would take five minutes.
    let staying: Vec<TcpStream> = (0..640)
        .map(|_| {
            let mut scraper = connect_to_http(&broker, 1).remove(0);
            scraper.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
            assert!(scraper.read(&mut [0; 512]).unwrap() > 0);
            scraper
        })
        .collect();
    assert!(broker.http("/health").contains("ok"));
    assert!(begin.elapsed() < TIMEOUT, "scrapers waited for others: {:?}", begin.elapsed());
    drop(staying);
}

#[test]
fn requests_to_change_something_are_refused() {
    let broker = Setup::new("metrics-post").start();
    for (method, expected) in [("POST", "405"), ("DELETE", "405"), ("HEAD", "200"), ("GET", "200")] {
        let mut scraper = connect_to_http(&broker, 1).remove(0);
        let request = format!("{method} /health HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        scraper.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        scraper.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{method}: {answer}");
        let has_methods = answer.to_lowercase().contains("allow: get, head");
        assert_eq!(has_methods, expected == "405", "{method}: {answer}");
    }
}

#[test]
fn want_of_descriptors_passes() {
    let broker = Setup::new("metrics-descriptors").start();
    broker.limit_open_files(3);
    let waiting = connect_to_http(&broker, 1);
    // The other listener reports that it has none, and does not wait for this one.
    let _client = TcpStream::connect(broker.address()).unwrap();
    eventually("the broker wants descriptors", || {
        broker.log().contains("no connection can be accepted").then_some(())
    });
    broker.limit_open_files(1000);
    drop(waiting);
    assert!(broker.http("/health").contains("ok"));
}

/// A connection that cannot be accepted is retried now and then. The figure is the share of a core that this takes, instead of a whole
/// core.
#[test]
#[ignore = "mainstem-bench bounds runs it: it measures, and does nothing else"]
fn want_of_descriptors_costs_no_time() {
    let broker = Setup::new("metrics-descriptors-cost").start();
    broker.limit_open_files(3);
    let _waiting = connect_to_http(&broker, 1);
    figure("cpu_permille", 1_000.0 * share_of_a_core(&broker, Duration::from_secs(5)));
    broker.limit_open_files(1000);
}
