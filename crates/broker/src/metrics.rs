//! What the broker counts, and its exposition for Prometheus.

use std::sync::atomic::{AtomicU64, Ordering};

use mainstem_log::Ends;
use mainstem_wire::ApiKey;

use crate::api;
use crate::broker::Broker;

mod exposition;
mod quotas;

use exposition::{Exposition, Kind};

/// Keys that requests are counted by: all of the protocol's, 0 to 92.
const API_KEYS: usize = 93;

/// Counters of the data path. Relaxed: each is right by itself, none orders anything.
pub(crate) struct Metrics {
    /// Requests by API.
    pub(crate) requests: RequestCounts,
    batches_in: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    closed: AtomicU64,
}

/// Requests and their bytes by API key.
pub(crate) struct RequestCounts([(AtomicU64, AtomicU64); API_KEYS]);

impl RequestCounts {
    /// One more request, of so many bytes.
    pub(crate) fn count(&self, api: ApiKey, bytes: usize) {
        let (count, total) = &self.0[api as usize];
        count.fetch_add(1, Ordering::Relaxed);
        total.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            requests: RequestCounts(std::array::from_fn(|_| Default::default())),
            batches_in: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            closed: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// One batch of so many bytes was appended.
    pub(crate) fn appended(&self, bytes: usize) {
        self.batches_in.fetch_add(1, Ordering::Relaxed);
        self.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// So many bytes of records were put into an answer.
    pub(crate) fn fetched(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A connection was closed for a reason worth a log line.
    pub(crate) fn closed(&self) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The text that Prometheus scrapes (exposition format 0.0.4).
pub(crate) fn exposition(broker: &Broker) -> String {
    let mut text = Exposition::default();
    let metrics = &broker.metrics;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    text.describe("mainstem_requests_total", Kind::Counter, "Requests received, by API.");
    for api in api::served() {
        let (requests, _) = &metrics.requests.0[api as usize];
        text.sample("mainstem_requests_total", &[("api", api.name())], count(requests));
    }
    text.describe("mainstem_request_bytes_total", Kind::Counter, "Bytes of requests received, by API.");
    for api in api::served() {
        let (_, bytes) = &metrics.requests.0[api as usize];
        text.sample("mainstem_request_bytes_total", &[("api", api.name())], count(bytes));
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
        count(&metrics.closed),
    );
    text.one("mainstem_connections", Kind::Gauge, "Connections open now.", broker.connections.open() as f64);
    text.one(
        "mainstem_request_memory_bytes",
        Kind::Gauge,
        "Memory reserved for large requests that are being read (queued.max.request.bytes).",
        broker.request_memory.used() as f64,
    );
    text.one(
        "mainstem_fetch_sessions",
        Kind::Gauge,
        "Fetch sessions open now.",
        broker.fetch_sessions.lock().len() as f64,
    );
    partitions(broker, &mut text);
    quotas::expose(broker, &mut text);
    text.into_text()
}

/// A metric of each partition: its name, what it means, and where it is taken from.
type Column = (&'static str, &'static str, fn(&Ends) -> i64);

fn partitions(broker: &Broker, text: &mut Exposition) {
    let topics = broker.topics.all();
    let partitions: Vec<_> = topics.iter().flat_map(|topic| &topic.partitions).collect();
    text.one("mainstem_topics", Kind::Gauge, "Topics served.", topics.len() as f64);
    let offline = partitions.iter().filter(|partition| partition.is_offline()).count();
    text.one("mainstem_partitions", Kind::Gauge, "Partitions served.", (partitions.len() - offline) as f64);
    text.one(
        "mainstem_offline_partitions",
        Kind::Gauge,
        "Partitions whose files cannot be used.",
        offline as f64,
    );
    text.one(
        "mainstem_offline_log_directories",
        Kind::Gauge,
        "Log directories that cannot be used.",
        broker.dirs.failures().count() as f64,
    );
    let ends = partitions.iter().filter_map(|partition| Some((partition, partition.ends().ok()?)));
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
