//! The broker's metrics for Prometheus.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_log::Ends;
use mainstem_operator::{Exposition, Kind};

use crate::broker::Broker;
use mainstem_store::partition::Partition;
use mainstem_store::topics::Topic;

mod authentication;
mod authorizer;
mod cleaner;
mod copies;
mod kafka;
mod moves;
mod process;
mod quotas;
mod sessions;
mod telemetry;

pub(crate) use authentication::METRICS_LISTENER;

/// A counter's value as a number of Prometheus.
fn load(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

/// The text that Prometheus scrapes (exposition format 0.0.4).
pub(crate) fn exposition(broker: &Broker) -> String {
    let mut text = Exposition::default();
    let metrics = &broker.counters;
    let count = load;
    text.describe("mainstem_requests_total", Kind::Counter, "Requests received, by API.");
    for api in (broker.served)() {
        text.sample(
            "mainstem_requests_total",
            &[("api", api.name())],
            broker.net.counters.latencies.received_of(api) as f64,
        );
    }
    text.describe("mainstem_request_bytes_total", Kind::Counter, "Bytes of requests received, by API.");
    for api in (broker.served)() {
        let bytes = broker.net.counters.request_bytes(api) as f64;
        text.sample("mainstem_request_bytes_total", &[("api", api.name())], bytes);
    }
    text.one(
        "mainstem_batches_in_total",
        Kind::Counter,
        "Record batches appended.",
        count(&metrics.batches_in),
    );
    text.one(
        "mainstem_bytes_in_total",
        Kind::Counter,
        "Bytes of records appended.",
        count(&metrics.bytes_in),
    );
    text.one(
        "mainstem_bytes_out_total",
        Kind::Counter,
        "Bytes of records fetched.",
        count(&metrics.bytes_out),
    );
    text.one(
        "mainstem_connections_closed_for_cause_total",
        Kind::Counter,
        "Connections that the broker closed because of what the peer sent or did not send.",
        broker.net.counters.closed_total() as f64,
    );
    if let Some(cluster) = &broker.cluster {
        let (behind, refused, dropped) = cluster.links.counts();
        let mut counter =
            |name: &str, help: &str, value: u64| text.one(name, Kind::Counter, help, value as f64);
        let name = "mainstem_replicas_too_far_behind_total";
        counter(name, "Replicas that needed records which retention has removed here.", behind);
        let name = "mainstem_replica_records_lost_total";
        let help = "Committed records, known to this node, that power cuts have taken from a majority (write.caching).";
        counter(name, help, cluster.links.records_lost());
        let name = "mainstem_links_refused_total";
        counter(name, "Links of other nodes that were refused or ended because of what they sent.", refused);
        let name = "mainstem_link_messages_dropped_total";
        counter(name, "Messages of replicas for which there was no link, or no space in its queue.", dropped);
    }
    let name = "mainstem_feature_level";
    text.describe(
        name,
        Kind::Gauge,
        "Level of each feature that the cluster has finalised, as this node knows it.",
    );
    let image = broker.controller.image();
    for (feature, level) in image.served_features(broker.controller.view()) {
        text.sample(name, &[("feature", feature)], f64::from(level));
    }
    drop(image);
    text.one(
        "mainstem_panics_total",
        Kind::Counter,
        "Panics of requests and threads that the broker has survived: mistakes of the program.",
        broker.panics.caught_total() as f64,
    );
    text.one(
        "mainstem_log_lines_lost_total",
        Kind::Counter,
        "Lines of the log that could not be written, because they were not read.",
        broker.loggers.lines_lost() as f64,
    );
    text.one(
        "mainstem_connections",
        Kind::Gauge,
        "Connections open now.",
        broker.net.connections.open() as f64,
    );
    text.one(
        "mainstem_request_memory_bytes",
        Kind::Gauge,
        "Memory reserved for large requests that are being read (queued.max.request.bytes).",
        broker.net.request_memory.used() as f64,
    );
    text.one(
        "mainstem_answer_memory_bytes",
        Kind::Gauge,
        "Memory of large answers that are put together or not read yet.",
        broker.net.answers.used() as f64,
    );
    text.one(
        "mainstem_fetch_sessions",
        Kind::Gauge,
        "Fetch sessions open now.",
        broker.fetch_sessions.lock().len() as f64,
    );
    let topics = by_name(broker.store.topics.all());
    let shown = topics.iter().flat_map(|topic| topic.partitions.iter().cloned());
    let shown: Vec<_> = shown.take(broker.config().metrics_partitions_max).collect();
    partitions(broker, &topics, &shown, &mut text);
    let config = broker.config();
    let listeners = config.listeners.open.iter().map(|endpoint| endpoint.listener.as_str());
    authentication::expose(&broker.net.counters.authentications, listeners, &mut text);
    authentication::expose_certificates(broker, &mut text);
    authorizer::expose(broker, &mut text);
    sessions::expose(broker, &mut text);
    kafka::expose(broker, &topics, &shown, &mut text);
    cleaner::expose(broker, &mut text);
    copies::expose(broker, &mut text);
    moves::expose(broker, &mut text);
    process::expose(&mut text);
    quotas::expose(broker, &mut text);
    telemetry::expose(broker, &mut text);
    text.into_text()
}

/// A metric of each partition: its name, its meaning, and its source.
type Column = (&'static str, &'static str, fn(&Ends) -> i64);

/// Sorts topics by name, so that each scrape has the series of the same partitions.
fn by_name(mut topics: Vec<Arc<Topic>>) -> Vec<Arc<Topic>> {
    topics.sort_by(|a, b| a.name.cmp(&b.name));
    topics
}

fn strays(broker: &Broker, text: &mut Exposition) {
    let dirs: Vec<_> =
        broker.store.dirs.all().map(|dir| (dir.path().display().to_string(), dir.strays())).collect();
    text.describe(
        "mainstem_log_stray_directories",
        Kind::Gauge,
        "Partitions that no topic owns, set aside in the log directory. What is deleted is seen within a minute.",
    );
    for (dir, (directories, _)) in &dirs {
        text.sample("mainstem_log_stray_directories", &[("logDirectory", dir)], *directories as f64);
    }
    text.describe(
        "mainstem_log_stray_bytes",
        Kind::Gauge,
        "Bytes of partitions that no topic owns. What is deleted is seen within a minute.",
    );
    for (dir, (_, bytes)) in &dirs {
        text.sample("mainstem_log_stray_bytes", &[("logDirectory", dir)], *bytes as f64);
    }
}

fn partitions(broker: &Broker, topics: &[Arc<Topic>], shown: &[Arc<Partition>], text: &mut Exposition) {
    let partitions: usize = topics.iter().map(|topic| topic.partitions.len()).sum();
    text.one("mainstem_topics", Kind::Gauge, "Topics served.", topics.len() as f64);
    text.one("mainstem_partitions", Kind::Gauge, "Partitions served.", partitions as f64);
    let offline = topics.iter().flat_map(|topic| &topic.partitions);
    let offline = offline.filter(|partition| partition.is_offline()).count();
    text.one(
        "mainstem_offline_partitions",
        Kind::Gauge,
        "Partitions whose files cannot be opened.",
        offline as f64,
    );
    let full = broker.store.dirs.all().filter(|dir| dir.is_full()).count();
    text.one(
        "mainstem_full_log_directories",
        Kind::Gauge,
        "Log directories whose disk is full: appends are refused, reads go on.",
        full as f64,
    );
    strays(broker, text);
    let ends = shown.iter().filter_map(|partition| Some((partition, partition.ends().ok()?)));
    let ends: Vec<_> = ends.collect();
    let columns: [Column; 3] = [
        ("mainstem_partition_log_start_offset", "First offset of the partition.", |ends| ends.log_start),
        ("mainstem_partition_high_watermark", "First offset that cannot be read yet.", |ends| {
            ends.high_watermark
        }),
        ("mainstem_partition_durable_end_offset", "First offset that is not synced to disk.", |ends| {
            ends.durable_end
        }),
    ];
    for (name, help, value) in columns {
        text.describe(name, Kind::Gauge, help);
        for (partition, ends) in &ends {
            let index = partition.index.to_string();
            text.sample(name, &[("topic", &partition.topic), ("partition", &index)], value(ends) as f64);
        }
    }
}
