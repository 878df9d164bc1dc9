//! The workloads: a table of all of them, by the names that reports use.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::broker::System;
use crate::embedded::{EmbeddedLoad, Event, Waiting};
use crate::secure::CertificateKey;

/// Partitions of a topic, unless a workload says otherwise.
const PARTITIONS: i32 = 6;
/// Partitions of a broker that has many.
pub(crate) const MANY_PARTITIONS: i32 = 1_000;

/// The place of a record at which a broker counts it as written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Durability {
    /// In the kernel's page cache, as Kafka does by default.
    PageCache,
    /// On the disk: topics have `flush.messages=1`.
    Fsync,
}

impl Durability {
    /// Both, in the order of reports.
    pub const ALL: [Self; 2] = [Self::PageCache, Self::Fsync];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::PageCache => "page-cache",
            Self::Fsync => "fsync",
        }
    }

    /// The durability of that name; an error names all of them.
    pub fn parse(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|durability| durability.name() == name);
        found.with_context(|| format!("there is no durability {name}: take page-cache or fsync"))
    }
}

/// The acknowledgements that a producer waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Acks {
    Leader,
    All,
}

impl Acks {
    /// The value in the protocol.
    pub(crate) fn code(self) -> i16 {
        match self {
            Self::Leader => 1,
            Self::All => -1,
        }
    }

    /// The value of the Java client's setting.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Leader => "1",
            Self::All => "all",
        }
    }
}

/// The pace at which a producer sends records.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Pace {
    /// One record, its acknowledgement, the next record.
    Closed,
    /// At the instants of a schedule, whatever the broker does; batches form only while five requests are under way.
    Rate { per_s: u32 },
    /// As soon as fewer than `outstanding_max` records are unacknowledged; batches wait for `linger`.
    Pipelined { outstanding_max: u64, linger: Duration },
}

/// The load of the driver's own clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LoadShape {
    /// The size of a record's value.
    pub(crate) value_bytes: usize,
    pub(crate) partitions: i32,
    pub(crate) producers: u32,
    pub(crate) consumers: u32,
    pub(crate) pace: Pace,
    pub(crate) acks: Acks,
    /// True if the producers are idempotent (KIP-98).
    pub(crate) idempotent: bool,
}

/// The state of a broker before the start that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// No data.
    Nothing,
    /// 1,000 partitions with a record each, stopped in order.
    Clean,
    /// 1,000 partitions with many bytes in all, killed.
    Killed,
}

/// The harm that is done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// `kill -9`.
    Kill,
    /// SIGSTOP.
    Stop,
    /// Each of its syncs takes 200 ms longer.
    DelaySyncs,
}

/// The kind of measurement on three nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ClusterKind {
    Load(LoadShape),
    /// This load on partitions that the harmed node does not lead.
    Replica(LoadShape, Harm),
    /// The pause of acknowledgements after harm to a leader.
    Leader(Harm),
    /// 1,000 partitions at rest.
    Idle,
    /// Process start to the first acknowledged record.
    Start,
    /// The size of `__consumer_offsets` while groups commit for long.
    OffsetsKept,
    /// The time from an election to the offsets of groups, after `kill -9` of their coordinator.
    OffsetsLoad,
}

/// The kind of measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    /// Records through the driver's own producers and consumers.
    Load(LoadShape),
    /// Kafka's own producer tool, batches of 128 KiB.
    BandwidthIn(Acks),
    /// Kafka's own consumer tool.
    BandwidthOut,
    /// 1,000 partitions, 1,000 idle connections.
    Idle,
    /// Process start to the first acknowledged record.
    Start(Left),
    /// A load with less and less memory for the JVM.
    HeapSweep(LoadShape),
    /// At 80 % of what this load reaches, for long, beside clients that come, go, stall and die.
    Soak(LoadShape),
    /// This load beside 64 consumers that read old data slowly.
    SlowConsumers(LoadShape),
    /// Messages through a queue in shared memory, without a broker.
    Embedded(EmbeddedLoad),
    /// A transactional producer that commits every 100 records, with further settings of the broker.
    Transactions(&'static [&'static str]),
    /// Records of transactions, read with both isolation levels.
    ReadCommitted,
    /// A number of known transactional ids.
    TransactionalIds(u32),
    /// Connections that are encrypted, log in and go, as many as there can be.
    Handshakes(CertificateKey),
    /// This load alone, and beside 200 logins a second.
    Logins(LoadShape),
    /// This load alone, and while 10,000 unauthenticated connections send nothing.
    Unauthenticated(LoadShape),
    /// This load without an authorizer, and with one that knows 10,000 rules of its user.
    Acls(LoadShape),
    /// Three nodes, with three replicas of everything.
    Cluster(ClusterKind),
}

/// A workload by the name that it has in reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    name: &'static str,
    /// The family: a name by which several workloads can be asked for.
    family: &'static str,
    about: &'static str,
    pub(crate) kind: Kind,
}

/// The pause after which Kafka's broker repeats a write to the next transaction while the last one is ending.
const EAGER: &[&str] = &["add.partitions.to.txn.retry.backoff.ms=1"];

const SMALL: LoadShape = LoadShape {
    value_bytes: 100,
    partitions: PARTITIONS,
    producers: 1,
    consumers: 1,
    pace: Pace::Closed,
    acks: Acks::Leader,
    idempotent: false,
};
const LOCAL: LoadShape = LoadShape { value_bytes: 1_024, producers: 2, consumers: 2, ..SMALL };
const LINGERING: Pace = Pace::Pipelined { outstanding_max: 512, linger: Duration::from_millis(5) };

/// The family of workloads that measure security alone; other workloads are in it by their systems.
const SECURED: &str = "secured";
/// The family of three nodes.
const REPLICATED: &str = "replicated";
const REPLICA: LoadShape =
    LoadShape { value_bytes: 1_024, partitions: 18, acks: Acks::All, idempotent: true, ..SMALL };

const fn at_rate(per_s: u32) -> LoadShape {
    let pace = Pace::Rate { per_s };
    LoadShape { value_bytes: 1_024, pace, acks: Acks::All, idempotent: true, ..SMALL }
}

const fn workload(name: &'static str, family: &'static str, about: &'static str, kind: Kind) -> Workload {
    Workload { name, family, about, kind }
}

/// The workloads, in the order of reports.
const WORKLOADS: [Workload; 48] = [
    workload(
        "small-msg-saturate",
        "small-msg-saturate",
        "100 B, one producer that awaits each acknowledgement, acks=1",
        Kind::Load(SMALL),
    ),
    workload(
        "local-1kb-saturate",
        "local-1kb-saturate",
        "1,024 B, two producers that await each acknowledgement, acks=1",
        Kind::Load(LOCAL),
    ),
    workload(
        "fixed-rate-2000",
        "fixed-rate-latency",
        "1,024 B, 2,000 records/s by schedule, acks=all, idempotent",
        Kind::Load(at_rate(2_000)),
    ),
    workload(
        "fixed-rate-10000",
        "fixed-rate-latency",
        "1,024 B, 10,000 records/s by schedule, acks=all, idempotent",
        Kind::Load(at_rate(10_000)),
    ),
    workload(
        "pipelined-small",
        "pipelined",
        "100 B, one producer, up to 512 records outstanding, linger 5 ms, acks=1",
        Kind::Load(LoadShape { pace: LINGERING, ..SMALL }),
    ),
    workload(
        "pipelined-1kb",
        "pipelined",
        "1,024 B, two producers, up to 512 records outstanding each, linger 5 ms, acks=all",
        Kind::Load(LoadShape { pace: LINGERING, acks: Acks::All, ..LOCAL }),
    ),
    workload(
        "bandwidth-in-acks-1",
        "bandwidth-in",
        "1,024 B, kafka-producer-perf-test, batches of 128 KiB, acks=1",
        Kind::BandwidthIn(Acks::Leader),
    ),
    workload(
        "bandwidth-in-acks-all",
        "bandwidth-in",
        "1,024 B, kafka-producer-perf-test, batches of 128 KiB, acks=all",
        Kind::BandwidthIn(Acks::All),
    ),
    workload(
        "bandwidth-out",
        "bandwidth-out",
        "1,024 B, kafka-consumer-perf-test over what the producer tool wrote",
        Kind::BandwidthOut,
    ),
    workload(
        "many-partitions",
        "many-partitions",
        "1,024 B over 1,000 partitions, one producer, up to 512 records outstanding, linger 5 ms, acks=all",
        Kind::Load(LoadShape {
            value_bytes: 1_024,
            partitions: MANY_PARTITIONS,
            pace: LINGERING,
            acks: Acks::All,
            ..SMALL
        }),
    ),
    workload(
        "slow-consumers",
        "slow-consumers",
        "fixed-rate-2000 beside 64 slow consumers of --cold-mib that are not in memory",
        Kind::SlowConsumers(at_rate(2_000)),
    ),
    workload(
        "soak",
        "soak",
        "--soak seconds at 80 % of local-1kb-saturate, beside clients that come, go, stall and die; once",
        Kind::Soak(LOCAL),
    ),
    workload(
        "transactions",
        "transactions",
        "100 B, one transactional producer that commits every 100 records, acks=all",
        Kind::Transactions(&[]),
    ),
    workload(
        "transactions-eager",
        "transactions",
        "the same, where Kafka looks every millisecond whether the last transaction has ended (20 by default)",
        Kind::Transactions(EAGER),
    ),
    workload(
        "read-committed",
        "transactions",
        "2,000 transactions of 100 records of 100 B, a tenth aborted, read with both isolation levels",
        Kind::ReadCommitted,
    ),
    workload(
        "transactional-ids",
        "transactions",
        "10,000 transactional ids, each initialised once",
        Kind::TransactionalIds(10_000),
    ),
    workload("idle", "idle", "1,000 partitions with a record each, 1,000 connections at rest", Kind::Idle),
    workload(
        "start",
        "starts",
        "process start to the first acknowledged record, empty directory",
        Kind::Start(Left::Nothing),
    ),
    workload(
        "start-clean",
        "starts",
        "the same with 1,000 partitions after a stop in order",
        Kind::Start(Left::Clean),
    ),
    workload(
        "start-killed",
        "starts",
        "the same with 1,000 partitions and --killed-mib of records after kill -9",
        Kind::Start(Left::Killed),
    ),
    workload(
        "heap-sweep",
        "heap-sweep",
        "the smallest JVM heap with which Kafka still holds local-1kb-saturate",
        Kind::HeapSweep(LOCAL),
    ),
    workload(
        "two-hops-25k",
        "embedded",
        "212 B, generator, queue, service, queue, recorder, 25,000/s by schedule, spinning",
        hops(25_000, Event::Binary(212), Waiting::Spin),
    ),
    workload(
        "two-hops-100k",
        "embedded",
        "the same with 100,000/s",
        hops(100_000, Event::Binary(212), Waiting::Spin),
    ),
    workload(
        "two-hops-500k",
        "embedded",
        "the same with 500,000/s",
        hops(500_000, Event::Binary(212), Waiting::Spin),
    ),
    workload(
        "two-hops-json-100k",
        "embedded",
        "512 B of JSON, 100,000/s",
        hops(100_000, Event::Json, Waiting::Spin),
    ),
    workload(
        "two-hops-yield-100k",
        "embedded",
        "212 B, 100,000/s, yielding",
        hops(100_000, Event::Binary(212), Waiting::Yield),
    ),
    workload(
        "two-hops-sleep-25k",
        "embedded",
        "212 B, 25,000/s, the service sleeps and is woken",
        hops(25_000, Event::Binary(212), Waiting::Sleep),
    ),
    workload(
        "queue-write",
        "embedded",
        "96 B, one writer as fast as it can, a message at a time; then read",
        Kind::Embedded(EmbeddedLoad::Write),
    ),
    workload(
        "queue-write-batches",
        "embedded",
        "the same in batches of 32",
        Kind::Embedded(EmbeddedLoad::WriteBatches),
    ),
    workload(
        "queue-contend",
        "embedded",
        "96 B, four writers that want the same queue",
        Kind::Embedded(EmbeddedLoad::Contend),
    ),
    workload(
        "queue-wake",
        "embedded",
        "212 B, a reader that sleeps is woken 1,000 times a second; then nothing comes",
        Kind::Embedded(EmbeddedLoad::Wake),
    ),
    workload(
        "handshakes-p256",
        SECURED,
        "full handshakes of TLS 1.3 with logins by SCRAM-SHA-512, four clients as fast as they can, P-256",
        Kind::Handshakes(CertificateKey::P256),
    ),
    workload(
        "handshakes-rsa",
        SECURED,
        "the same with a certificate of RSA-2048",
        Kind::Handshakes(CertificateKey::Rsa2048),
    ),
    workload(
        "secured-logins",
        SECURED,
        "small-msg-saturate over SASL_SSL alone, then beside 200 handshakes with logins a second",
        Kind::Logins(SMALL),
    ),
    workload(
        "secured-strangers",
        SECURED,
        "small-msg-saturate over SASL_SSL alone, then while 10,000 connections from 200 addresses say nothing and 500 of \
         them a second are replaced",
        Kind::Unauthenticated(SMALL),
    ),
    workload(
        "secured-acls",
        SECURED,
        "small-msg-saturate without an authorizer, then with one that knows 10,000 rules of its user",
        Kind::Acls(SMALL),
    ),
    workload(
        "replicated-closed",
        REPLICATED,
        "three nodes, 1,024 B over 18 partitions, four producers that await each acknowledgement, acks=all",
        Kind::Cluster(ClusterKind::Load(LoadShape { producers: 4, ..REPLICA })),
    ),
    workload(
        "replicated-rate-1000",
        REPLICATED,
        "three nodes, 1,024 B over 18 partitions, 1,000 records/s by schedule, linger 1 ms, acks=all",
        Kind::Cluster(ClusterKind::Load(LoadShape { pace: Pace::Rate { per_s: 1_000 }, ..REPLICA })),
    ),
    workload(
        "replicated-rate-5000",
        REPLICATED,
        "the same with 5,000 records/s",
        Kind::Cluster(ClusterKind::Load(LoadShape { pace: Pace::Rate { per_s: 5_000 }, ..REPLICA })),
    ),
    workload(
        "replicated-pipelined",
        REPLICATED,
        "three nodes, 1,024 B over 18 partitions, four producers, up to 512 records outstanding each, linger 1 ms, acks=all",
        Kind::Cluster(ClusterKind::Load(LoadShape {
            producers: 4,
            pace: Pace::Pipelined { outstanding_max: 512, linger: Duration::from_millis(1) },
            ..REPLICA
        })),
    ),
    workload(
        "replica-stopped",
        REPLICATED,
        "replicated-rate-1000 on partitions that the last node does not lead, which is stopped (SIGSTOP)",
        Kind::Cluster(ClusterKind::Replica(
            LoadShape { pace: Pace::Rate { per_s: 1_000 }, ..REPLICA },
            Harm::Stop,
        )),
    ),
    workload(
        "replica-slow-disk",
        REPLICATED,
        "the same with each sync of that node delayed by 200 ms (strace)",
        Kind::Cluster(ClusterKind::Replica(
            LoadShape { pace: Pace::Rate { per_s: 1_000 }, ..REPLICA },
            Harm::DelaySyncs,
        )),
    ),
    workload(
        "leader-killed",
        REPLICATED,
        "three nodes, 18 partitions: the longest pause of acknowledgements after kill -9 of a leader",
        Kind::Cluster(ClusterKind::Leader(Harm::Kill)),
    ),
    workload(
        "leader-stopped",
        REPLICATED,
        "the same after SIGSTOP",
        Kind::Cluster(ClusterKind::Leader(Harm::Stop)),
    ),
    workload(
        "replicated-idle",
        REPLICATED,
        "three nodes, 1,000 partitions with a record each, at rest; of the node with the most",
        Kind::Cluster(ClusterKind::Idle),
    ),
    workload(
        "replicated-start",
        REPLICATED,
        "start of three empty nodes to the first acknowledged record",
        Kind::Cluster(ClusterKind::Start),
    ),
    workload(
        "offsets-kept",
        REPLICATED,
        "three nodes, 10 groups, 1,000 commits/s for --soak seconds: the size of __consumer_offsets; once",
        Kind::Cluster(ClusterKind::OffsetsKept),
    ),
    workload(
        "offsets-load",
        REPLICATED,
        "three nodes, 5,000,000 committed offsets of 100,000 keys, kill -9 of a node: from election to OffsetFetch",
        Kind::Cluster(ClusterKind::OffsetsLoad),
    ),
];

const fn hops(per_s: u32, event: Event, waiting: Waiting) -> Kind {
    Kind::Embedded(EmbeddedLoad::Hops { event, per_s, waiting })
}

impl Workload {
    /// Every workload, in the order of reports.
    pub fn all() -> &'static [Self] {
        &WORKLOADS
    }

    /// Returns the workloads of a name: one, a family, or `all`.
    pub fn select(name: &str) -> Result<Vec<Self>> {
        let matches = |workload: &&Self| [workload.name, workload.family, "all"].contains(&name);
        let found: Vec<_> = WORKLOADS.iter().filter(matches).copied().collect();
        let names = WORKLOADS.map(Self::name).join(", ");
        ensure!(!found.is_empty(), "there is no workload {name}: take all, or some of {names}");
        Ok(found)
    }

    /// The one workload of exactly that name; an error names all of them.
    pub fn parse(name: &str) -> Result<Self> {
        let names = WORKLOADS.map(Self::name).join(", ");
        let found = WORKLOADS.into_iter().find(|workload| workload.name == name);
        found.with_context(|| format!("there is no workload {name}: take one of {names}"))
    }

    /// The name in reports and on the command line.
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the name of the family of this workload.
    pub fn family(self) -> &'static str {
        self.family
    }

    /// Returns its description, in a line.
    pub fn about(self) -> &'static str {
        self.about
    }

    /// Returns true if it can be run on a system, with that durability. The probe is no whole broker, and a workload that writes nothing
    /// while it is measured does not depend on the durability.
    pub fn applies_to(self, system: System, durability: Durability) -> bool {
        let writes = match self.kind {
            Kind::Load(_) | Kind::BandwidthIn(_) | Kind::Transactions(_) => true,
            Kind::Cluster(kind) => {
                matches!(kind, ClusterKind::Load(_) | ClusterKind::Replica(..) | ClusterKind::Leader(_))
            }
            _ => false,
        };
        if durability == Durability::Fsync && !writes {
            return false;
        }
        match self.kind {
            Kind::Embedded(load) => {
                system == System::Queue || system == System::Chronicle && load.is_of_peer()
            }
            Kind::Load(_) => !system.is_embedded(),
            Kind::Handshakes(_) | Kind::Logins(_) | Kind::Unauthenticated(_) => system.is_secured(),
            Kind::Acls(_) => matches!(system, System::Kafka | System::Mainstem),
            Kind::Cluster(_)
            | Kind::Transactions(_)
            | Kind::ReadCommitted
            | Kind::TransactionalIds(_)
            | Kind::SlowConsumers(_)
            | Kind::Soak(_)
            | Kind::Start(_) => system.is_broker() && !system.is_secured(),
            Kind::HeapSweep(_) => system == System::Kafka,
            _ => system.is_broker(),
        }
    }

    /// Returns true if one run is enough, however many rounds there are. Such a run takes long, and looks for a leak or a loss, for which a
    /// median means nothing.
    pub(crate) fn is_made_once(self) -> bool {
        matches!(self.kind, Kind::Soak(_) | Kind::Cluster(ClusterKind::OffsetsKept))
    }

    /// Returns true if it runs on the nodes that the load before it has left, of the same system: three JVMs take long to get warm.
    pub(crate) fn shares_nodes(self) -> bool {
        matches!(self.kind, Kind::Cluster(ClusterKind::Load(_) | ClusterKind::Replica(..)))
    }

    /// Returns its load, if it consists of one.
    pub(crate) fn shape(self) -> Option<LoadShape> {
        match self.kind {
            Kind::Load(shape) => Some(shape),
            _ => None,
        }
    }

    /// Returns true if Kafka's own tools are its clients: Kafka's jars are needed then, whatever the systems are.
    pub(crate) fn needs_kafka_tools(self) -> bool {
        matches!(self.kind, Kind::BandwidthIn(_) | Kind::BandwidthOut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str) -> Vec<&'static str> {
        Workload::select(name).unwrap().into_iter().map(Workload::name).collect()
    }

    #[test]
    fn a_name_selects_one_a_family_or_all() {
        assert_eq!(names("idle"), ["idle"]);
        assert_eq!(names("fixed-rate-latency"), ["fixed-rate-2000", "fixed-rate-10000"]);
        assert_eq!(names("starts"), ["start", "start-clean", "start-killed"]);
        assert_eq!(names("all").len(), WORKLOADS.len());
        let error = Workload::select("idel").unwrap_err().to_string();
        assert!(error.contains("idel") && error.contains("pipelined-small"), "{error}");
    }

    #[test]
    fn names_are_used_once_and_are_file_names() {
        let mut all = WORKLOADS.map(Workload::name).to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), WORKLOADS.len());
        assert!(all.iter().all(|name| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')));
    }

    #[test]
    fn the_probe_carries_loads_and_nothing_else() {
        let on =
            |name: &str, system, durability| Workload::parse(name).unwrap().applies_to(system, durability);
        assert!(on("pipelined-1kb", System::Probe, Durability::Fsync));
        assert!(!on("bandwidth-in-acks-1", System::Probe, Durability::PageCache));
        assert!(on("bandwidth-in-acks-1", System::Mainstem, Durability::Fsync));
        assert!(!on("bandwidth-out", System::Mainstem, Durability::Fsync));
        assert!(!on("start", System::Probe, Durability::PageCache));
        assert!(!on("idle", System::Kafka, Durability::Fsync));
        assert!(on("heap-sweep", System::Kafka, Durability::PageCache));
        assert!(!on("heap-sweep", System::Mainstem, Durability::PageCache));
    }
}
