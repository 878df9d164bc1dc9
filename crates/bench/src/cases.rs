//! The cases: how each kind of workload is run once on one system, and the figures that it gives.

mod bandwidth;
mod cluster;
mod cpu;
mod embedded;
mod heap;
mod idle;
pub(crate) mod load;
mod secured;
mod slow_consumers;
mod soak;
mod start;
mod transactions;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;

use crate::batch::{BatchBuilder, ProducerFields};
use crate::broker::{DEFAULT_HEAP_MIB, Launch, System};
use crate::clock;
use crate::connection::Connection;
use crate::environment::Environment;
use crate::load::create_serving_topic;
use crate::payload::{Payload, PayloadCodec};
use crate::protocol::{TopicId, data};
use crate::results::{Curves, Samples};
use crate::secure::CertificateKey;
use crate::workload::{Acks, Durability, Kind, MANY_PARTITIONS, Workload};

/// Values of 1 KiB in a batch that stays below `message.max.bytes`.
const FILL_RECORDS: usize = 900;

/// The lengths and sizes of measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Load before the window.
    pub warmup: Duration,
    /// The measured time of a load.
    pub window: Duration,
    /// Records of a run with Kafka's own tools.
    pub records: u64,
    /// Data that the broker holds which is killed before a start, in MiB.
    pub killed_mib: u64,
    /// The measured time of a soak.
    pub soak: Duration,
    /// Data on the disk for slow consumers, in MiB.
    pub cold_mib: u64,
}

impl Default for Extent {
    /// The extent of the project's own results.
    fn default() -> Self {
        Self {
            warmup: Duration::from_secs(15),
            window: Duration::from_secs(10),
            records: 2_000_000,
            killed_mib: 10 << 10,
            soak: Duration::from_secs(15 * 60),
            cold_mib: 2 << 10,
        }
    }
}

/// One run that is to be made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) environment: &'a Environment,
    pub(crate) system: System,
    pub(crate) durability: Durability,
    pub(crate) extent: Extent,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// The figures, by their keys.
    pub(crate) figures: BTreeMap<String, f64>,
    pub(crate) curves: Curves,
    pub(crate) samples: Samples,
    /// Remarks for a reader of the figures.
    pub(crate) notes: Vec<String>,
}

impl Measured {
    pub(crate) fn of<const N: usize>(figures: [(&str, f64); N]) -> Self {
        let mut measured = Self::default();
        measured.add(figures);
        measured
    }

    pub(crate) fn add<const N: usize>(&mut self, figures: [(&str, f64); N]) {
        self.figures.extend(figures.map(|(key, value)| (key.to_owned(), value)));
    }
}

impl Case<'_> {
    /// One run on a fresh data directory, or on nodes that are shared.
    pub(crate) fn run(&self, workload: Workload) -> Result<Measured> {
        if !workload.shares_nodes() {
            drop(self.environment.nodes.take());
        }
        match workload.kind {
            Kind::Load(shape) => load::run(self, shape, DEFAULT_HEAP_MIB),
            Kind::BandwidthIn(acks) => bandwidth::run_in(self, acks),
            Kind::BandwidthOut => bandwidth::run_out(self),
            Kind::Idle => idle::run(self),
            Kind::Start(left) => start::run(self, left),
            Kind::HeapSweep(shape) => heap::run(self, shape),
            Kind::Soak(shape) => soak::run(self, shape),
            Kind::SlowConsumers(shape) => slow_consumers::run(self, shape),
            Kind::Embedded(load) => embedded::run(self, load),
            Kind::Transactions(settings) => transactions::run_commits(self, settings),
            Kind::ReadCommitted => transactions::run_reads(self),
            Kind::TransactionalIds(count) => transactions::run_ids(self, count),
            Kind::Handshakes(key) => secured::run_handshakes(self, key),
            Kind::Logins(shape) => secured::run_logins(self, shape),
            Kind::Unauthenticated(shape) => secured::run_unauthenticated(self, shape),
            Kind::Acls(shape) => secured::run_acls(self, shape),
            Kind::Cluster(kind) => cluster::run(self, kind),
        }
    }

    /// The options of a start in all cases but loads.
    fn launch(&self) -> Launch {
        let (system, durability) = (self.system, self.durability);
        Launch {
            system,
            durability,
            heap_mib: DEFAULT_HEAP_MIB,
            partitions: 0,
            settings: &[],
            key: CertificateKey::P256,
        }
    }
}

/// A topic of 1,000 partitions with a record in each, so that their segments are open.
fn fill_partitions(connection: &mut Connection) -> Result<TopicId> {
    let topic = create_serving_topic(connection, "many", MANY_PARTITIONS, &[])?;
    let codec = PayloadCodec::new(1_024);
    for partition in 0..MANY_PARTITIONS {
        let batch = batch_of(&codec, 1, partition);
        data::produce(connection, Acks::Leader, &topic, partition, &batch)?;
    }
    Ok(topic)
}

/// Spreads that many bytes over the partitions of a topic, in batches of [`FILL_RECORDS`].
fn fill_bytes(connection: &mut Connection, topic: &TopicId, partitions: i32, bytes: u64) -> Result<()> {
    let batch = batch_of(&PayloadCodec::new(1_024), FILL_RECORDS, 0);
    for index in 0..bytes.div_ceil(batch.len() as u64) {
        let partition = (index % partitions as u64) as i32;
        data::produce(connection, Acks::Leader, topic, partition, &batch)?;
    }
    Ok(())
}

/// A batch of equal records.
fn batch_of(codec: &PayloadCodec, records: usize, partition: i32) -> Vec<u8> {
    let payload = Payload { sequence: 0, sent_ns: 0, producer: 0, partition: partition as u32 };
    let mut batch = BatchBuilder::default();
    let timestamp_ms = clock::wall_ms();
    for _ in 0..records {
        batch.append(timestamp_ms, codec.value_bytes(), |writer| codec.write(writer, payload));
    }
    batch.finish(ProducerFields::NONE).to_vec()
}
