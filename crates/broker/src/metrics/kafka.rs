//! Kafka's metrics, under the names that the common configurations of Prometheus' JMX exporter for Kafka give them
//! (kafka-2_0_0.yml, kafka-kraft-3_0_0.yml), for which most dashboards are made.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use mainstem_operator::{Exposition, Kind};

use super::load;
use crate::broker::Broker;
use mainstem_net::latency::Part;
use mainstem_node::client_view::Leaders;
use mainstem_store::partition::{Extent, Partition, ReplicationHealth};
use mainstem_store::topics::Topic;

/// The most groups whose states are counted at each scrape: counting holds the coordinator's lock.
const COUNTED_GROUPS_MAX: usize = 10_000;

/// States of groups, as Kafka's metrics spell them, and as its APIs do.
const GROUP_STATES: [(&str, &str); 5] = [
    ("kafka_coordinator_group_groupmetadatamanager_numgroupspreparingrebalance", "PreparingRebalance"),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupscompletingrebalance", "CompletingRebalance"),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupsstable", "Stable"),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupsdead", "Dead"),
    ("kafka_coordinator_group_groupmetadatamanager_numgroupsempty", "Empty"),
];

/// Measured parts of requests, beside their number.
const REQUEST_PARTS: [(Part, &str, &str); 5] = [
    (Part::Bytes, "requestbytes", "Bytes of a request, lately."),
    (Part::Total, "totaltimems", "Milliseconds from a request's last byte to its answer, lately."),
    (Part::Local, "localtimems", "Milliseconds that threads were at a request, lately."),
    (
        Part::Remote,
        "remotetimems",
        "Milliseconds that a request waited, for records, the disk or members, lately.",
    ),
    (Part::Throttle, "throttletimems", "Milliseconds for which a request's client was held back, lately."),
];

/// A metric of logs: its name, its meaning, and its source.
type LogColumn = (&'static str, &'static str, fn(&Extent) -> f64);

/// Data that are gathered once for all metrics.
struct View<'a> {
    broker: &'a Broker,
    topics: &'a [Arc<Topic>],
    /// Partitions that have their own series.
    shown: &'a [Arc<Partition>],
    /// The number of partitions with a replica here, and of those whose files cannot be used.
    partitions: usize,
    offline: usize,
}

/// Writes them all; series by topic and partition for `shown` alone.
pub(super) fn expose(
    broker: &Broker,
    topics: &[Arc<Topic>],
    shown: &[Arc<Partition>],
    text: &mut Exposition,
) {
    let all = || topics.iter().flat_map(|topic| &topic.partitions);
    let offline = all().filter(|partition| partition.is_offline()).count();
    let partitions = all().filter(|partition| !partition.is_elsewhere()).count();
    let view = View { broker, topics, shown, partitions, offline };
    view.traffic(text);
    view.requests(text);
    view.replicas(text);
    view.changes(text);
    view.controller(text);
    view.snapshots(text);
    view.connections(text);
    view.groups(text);
    view.logs(text);
}

impl View<'_> {
    /// Writes records and bytes: of the broker, and by topic for those with series.
    fn traffic(&self, text: &mut Exposition) {
        let metrics = &self.broker.counters;
        let totals = [load(&metrics.messages_in), load(&metrics.bytes_in), load(&metrics.bytes_out)];
        let columns: [(&str, &str); 3] = [
            ("kafka_server_brokertopicmetrics_messagesin_total", "Records appended."),
            ("kafka_server_brokertopicmetrics_bytesin_total", "Bytes of records appended."),
            ("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of records fetched."),
        ];
        for (rank, (name, help)) in columns.into_iter().enumerate() {
            text.describe(name, Kind::Counter, help);
            text.sample(name, &[], totals[rank]);
            let mut topic: Option<(&str, f64)> = None;
            for partition in self.shown {
                let traffic = &partition.traffic;
                let value = load([&traffic.messages_in, &traffic.bytes_in, &traffic.bytes_out][rank]);
                match &mut topic {
                    Some((of, sum)) if *of == &*partition.topic => *sum += value,
                    _ => {
                        if let Some((of, sum)) = topic.replace((&partition.topic, value)) {
                            text.sample(name, &[("topic", of)], sum);
                        }
                    }
                }
            }
            if let Some((of, sum)) = topic {
                text.sample(name, &[("topic", of)], sum);
            }
        }
        let requests =
            |key: mainstem_wire::ApiKey| self.broker.net.counters.latencies.received_of(key) as f64;
        text.one(
            "kafka_server_brokertopicmetrics_totalproducerequests_total",
            Kind::Counter,
            "Produce requests.",
            requests(mainstem_wire::ApiKey::Produce),
        );
        text.one(
            "kafka_server_brokertopicmetrics_totalfetchrequests_total",
            Kind::Counter,
            "Fetch requests.",
            requests(mainstem_wire::ApiKey::Fetch),
        );
        text.one(
            "kafka_server_brokertopicmetrics_failedproducerequests_total",
            Kind::Counter,
            "Partitions of produce requests whose records were refused.",
            load(&metrics.failed_produces),
        );
        text.one(
            "kafka_server_brokertopicmetrics_failedfetchrequests_total",
            Kind::Counter,
            "Partitions of fetch requests that were answered with an error.",
            load(&metrics.failed_fetches),
        );
    }

    /// Writes the number and size of requests, and their times. There is no RequestQueueTimeMs, ResponseQueueTimeMs
    /// or ResponseSendTimeMs: the thread that reads a request serves it, and sends its answer in the same turn as far
    /// as the socket takes it. These would be clock readings without a queue between.
    fn requests(&self, text: &mut Exposition) {
        let name = "kafka_network_requestmetrics_requests_total";
        text.describe(name, Kind::Counter, "Requests received.");
        for api in (self.broker.served)() {
            text.sample(
                name,
                &[("request", api.name())],
                self.broker.net.counters.latencies.received_of(api) as f64,
            );
        }
        for (part, name, help) in REQUEST_PARTS {
            self.request_part(part, name, help, text);
        }
    }

    /// Writes quantiles and count of one part of requests.
    fn request_part(&self, part: Part, name: &str, help: &str, text: &mut Exposition) {
        let summaries =
            self.broker.net.counters.latencies.summaries(part, (self.broker.served)().into_iter());
        let name = format!("kafka_network_requestmetrics_{name}");
        text.describe(&name, Kind::Gauge, help);
        for summary in &summaries {
            for (quantile, value) in summary.quantiles {
                text.sample(&name, &[("request", summary.api.name()), ("quantile", quantile)], value);
            }
        }
        let name = format!("{name}_count");
        text.describe(&name, Kind::Counter, "Requests of which that is known.");
        for summary in &summaries {
            text.sample(&name, &[("request", summary.api.name())], summary.count as f64);
        }
    }

    fn replicas(&self, text: &mut Exposition) {
        let mut gauge = |name: &str, help: &str, value: usize| {
            let name = format!("kafka_server_replicamanager_{name}");
            text.one(&name, Kind::Gauge, help, value as f64);
        };
        gauge("partitioncount", "Partitions on this node.", self.partitions);
        let all = || self.topics.iter().flat_map(|topic| &topic.partitions);
        let health: Vec<_> = all().map(|partition| partition.replication_health()).collect();
        let count = |is: fn(&ReplicationHealth) -> bool| health.iter().filter(|one| is(one)).count();
        gauge("leadercount", "Partitions that this node leads.", count(|one| one.is_leader));
        gauge("offlinereplicacount", "Partitions whose files cannot be used.", self.offline);
        let under = count(ReplicationHealth::is_under_replicated);
        gauge("underreplicatedpartitions", "Partitions led here with replicas that are behind.", under);
        let under = count(|one| one.is_leader && one.in_sync < one.needed);
        gauge(
            "underminisrpartitioncount",
            "Partitions led here with fewer replicas in sync than they need.",
            under,
        );
        let at = count(|one| one.is_leader && one.in_sync == one.needed);
        gauge(
            "atminisrpartitioncount",
            "Partitions led here with as many replicas in sync as they need.",
            at,
        );
        gauge("reassigningpartitions", "Partitions that move to another node.", 0);
        text.one(
            "kafka_server_kafkaserver_brokerstate",
            Kind::Gauge,
            "3: the broker runs. 6: it stops.",
            if self.broker.stopping.is_stopping() { 6.0 } else { 3.0 },
        );
    }

    fn controller(&self, text: &mut Exposition) {
        let (is_active, offline, imbalanced) = match &self.broker.cluster {
            None => (true, self.offline, 0),
            Some(_) if self.broker.controller.decides() => {
                let (offline, imbalanced) = self.led_by_none_and_by_others();
                (true, offline, imbalanced)
            }
            // One node counts for the whole cluster.
            Some(_) => (false, 0, 0),
        };
        let image = self.broker.controller.image();
        let topics: usize = image.topics().count();
        let partitions: usize = image.topics().map(|topic| topic.partitions.len()).sum();
        let fenced = image.brokers().filter(|broker| broker.fenced).count();
        let active = image.brokers().count() - fenced;
        drop(image);
        let mut gauge = |name: &str, help: &str, value: usize| {
            let name = format!("kafka_controller_kafkacontroller_{name}");
            text.one(&name, Kind::Gauge, help, value as f64);
        };
        gauge("activecontrollercount", "Whether this node is the controller.", usize::from(is_active));
        gauge("globaltopiccount", "Topics of the cluster.", topics);
        gauge("globalpartitioncount", "Partitions of the cluster.", partitions);
        gauge("offlinepartitionscount", "Partitions without a leader, at the controller.", offline);
        gauge(
            "preferredreplicaimbalancecount",
            "Partitions that another than the first replica leads, or none, at the controller.",
            imbalanced,
        );
        gauge("activebrokercount", "Nodes that take part.", active);
        gauge("fencedbrokercount", "Nodes that do not.", fenced);
    }

    /// Writes figures of metadata snapshots, which are each node's own.
    fn snapshots(&self, text: &mut Exposition) {
        let (bytes, age_ms, loaded) = self.broker.controller.snapshot_counts.get();
        let mut gauge = |name: &str, help: &str, value: u64| {
            text.one(&format!("kafka_server_{name}"), Kind::Gauge, help, value as f64);
        };
        gauge(
            "snapshotemitter_latestsnapshotgeneratedbytes",
            "Bytes of the metadata snapshot that this node has written last, or began with; 0: none.",
            bytes,
        );
        gauge(
            "snapshotemitter_latestsnapshotgeneratedagems",
            "Milliseconds since this node has written a metadata snapshot, or since its start.",
            age_ms,
        );
        gauge(
            "metadataloader_handleloadsnapshotcount",
            "Metadata snapshots that this node has loaded since its start: at the start, or from the leader.",
            loaded,
        );
    }

    /// The number of partitions without a leader, and of those that their preferred leader does not lead.
    fn led_by_none_and_by_others(&self) -> (usize, usize) {
        let image = self.broker.controller.image();
        let (mut offline, mut imbalanced) = (0, 0);
        for topic in image.topics() {
            let leaders = Leaders::of(&self.broker.node, &image, topic);
            for (index, partition) in (0..).zip(&topic.partitions) {
                let leader = leaders.get(index, partition).leader_id;
                offline += usize::from(leader < 0);
                imbalanced += usize::from(partition.preferred_leader().is_some_and(|node| node != leader));
            }
        }
        (offline, imbalanced)
    }

    /// Writes elections, ISR shrinks and expansions, and lags. Each node has those of the partitions that it leads,
    /// so that sums over all nodes are those of the cluster.
    fn changes(&self, text: &mut Exposition) {
        let led = self.broker.cluster.as_ref().map(|cluster| &cluster.led);
        let mut counter = |name: &str, help: &str, value: Option<&AtomicU64>| {
            text.one(name, Kind::Counter, help, value.map_or(0.0, load));
        };
        counter(
            "kafka_server_replicamanager_isrshrinks_total",
            "Times that a partition led here was found with replicas that had fallen out of sync.",
            led.map(|led| &led.isr_shrinks),
        );
        counter(
            "kafka_server_replicamanager_isrexpands_total",
            "Times that a partition led here was found with replicas that were in sync again.",
            led.map(|led| &led.isr_expands),
        );
        counter(
            "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
            "Elections that made this node the leader of a partition.",
            led.map(|led| &led.elections),
        );
        counter(
            "kafka_controller_controllerstats_uncleanleaderelections_total",
            "Elections that may have lost acknowledged records. A replica without them is never elected.",
            None,
        );
        if let Some(cluster) = &self.broker.cluster {
            let name = "mainstem_peer_clock_ahead_seconds";
            let help =
                "How far the clock of another node is ahead of this node's; negative where it is behind.";
            text.describe(name, Kind::Gauge, help);
            for (node, ahead_ms) in cluster.clocks.ahead_ms() {
                text.sample(name, &[("node", &node.to_string())], ahead_ms as f64 / 1_000.0);
            }
        }
        let lag = self.broker.cluster.as_ref().map(|_| self.lag()).unwrap_or_default();
        let name = "kafka_server_replicafetchermanager_maxlag";
        text.describe(
            name,
            Kind::Gauge,
            "Most records that a replica lacks of a partition that is led here.",
        );
        let most = lag.values().max().copied().unwrap_or(0);
        text.sample(name, &[("clientid", "Replica")], most as f64);
        if !lag.is_empty() {
            let name = "mainstem_replica_lag_records_max";
            text.describe(name, Kind::Gauge, "The same of each node that has such replicas.");
            for (node, records) in &lag {
                text.sample(name, &[("node", &node.to_string())], *records as f64);
            }
        }
    }

    /// The largest lag of each node's replicas in the partitions led here.
    fn lag(&self) -> BTreeMap<i32, i64> {
        let mut most = BTreeMap::new();
        for partition in self.topics.iter().flat_map(|topic| &topic.partitions) {
            for (node, records) in partition.lacking() {
                let known = most.entry(node).or_insert(0);
                *known = records.max(*known);
            }
        }
        most
    }

    fn connections(&self, text: &mut Exposition) {
        let config = self.broker.config();
        let name = "kafka_server_socket_server_metrics_connection_count";
        text.describe(name, Kind::Gauge, "Connections open now, by listener.");
        for (index, endpoint) in config.listeners.open.iter().enumerate() {
            let labels = [("listener", endpoint.listener.as_str()), ("networkprocessor", "0")];
            text.sample(name, &labels, self.broker.net.connections.open_of(index) as f64);
        }
        text.one(
            "kafka_server_socket_server_metrics_connection_creation_total",
            Kind::Counter,
            "Connections that were accepted and served.",
            self.broker.net.connections.made() as f64,
        );
        text.one(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            Kind::Gauge,
            "Fetch sessions open now (KIP-227).",
            self.broker.fetch_sessions.lock().len() as f64,
        );
    }

    fn groups(&self, text: &mut Exposition) {
        let (stats, states) = self.broker.groups.counts(COUNTED_GROUPS_MAX);
        let mut gauge =
            |name: &str, help: &str, value: usize| text.one(name, Kind::Gauge, help, value as f64);
        gauge("kafka_coordinator_group_groupmetadatamanager_numgroups", "Groups.", stats.groups);
        gauge("kafka_coordinator_group_groupmetadatamanager_numoffsets", "Committed offsets.", stats.offsets);
        let help = "Longest time until a partition of the coordinator was served, of the last minute, in ms.";
        let name = "kafka_server_group_coordinator_metrics_partition_load_time_max";
        gauge(name, help, self.broker.groups.load_time_max_ms() as usize);
        let name = "kafka_server_transaction_coordinator_metrics_partition_load_time_max";
        gauge(name, help, self.broker.transactions.load_time_max_ms() as usize);
        let Some(states) = states else { return };
        for (name, state) in GROUP_STATES {
            gauge(name, "Groups in the state that the name ends with.", *states.get(state).unwrap_or(&0));
        }
    }

    /// Writes sizes and ends of logs.
    fn logs(&self, text: &mut Exposition) {
        let of = |partition: &Arc<Partition>| Some((partition.clone(), partition.extent().ok()?));
        let logs: Vec<_> = self.shown.iter().filter_map(of).collect();
        let columns: [LogColumn; 4] = [
            ("kafka_log_log_size", "Bytes of a partition's segments.", |extent| extent.bytes as f64),
            ("kafka_log_log_numlogsegments", "Segments of a partition.", |extent| extent.segments as f64),
            ("kafka_log_log_logstartoffset", "First offset of a partition.", |extent| {
                extent.ends.log_start as f64
            }),
            ("kafka_log_log_logendoffset", "Next offset of a partition.", |extent| {
                extent.ends.log_end as f64
            }),
        ];
        for (name, help, value) in columns {
            text.describe(name, Kind::Gauge, help);
            for (partition, extent) in &logs {
                let index = partition.index.to_string();
                let labels = [("topic", &*partition.topic), ("partition", index.as_str())];
                text.sample(name, &labels, value(extent));
            }
        }
        let failed = self.broker.store.dirs.failures();
        text.one(
            "kafka_log_logmanager_offlinelogdirectorycount",
            Kind::Gauge,
            "Log directories that cannot be used.",
            failed.count() as f64,
        );
    }
}
