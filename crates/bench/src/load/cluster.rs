//! Loads on several nodes: producers and consumers that know who leads each partition.
//!
//! The driver asks for leaders once, before the load. That they stay is a part of what is measured, and a refusal fails the run.
//! [`failover`] is for nodes that go away.

mod closed;
pub(crate) mod failover;
mod paced;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use self::closed::ClosedLoop;
use self::paced::Paced;
use super::consumer::Consumer;
use super::phases::Phases;
use super::producer::{ProducerTotals, identify};
use super::{Outcome, SETUP_MAX, join_all, measure, sum_up, topic_configs};
use crate::batch::{BatchBuilder, ProducerFields};
use crate::broker::System;
use crate::clock;
use crate::connection::Connection;
use crate::payload::{Payload, PayloadCodec};
use crate::protocol::{TopicId, admin, data};
use crate::workload::{Acks, Durability, LoadShape, Pace};

/// `linger.ms` and `batch.size` of the producers of a cluster.
const LINGER: Duration = Duration::from_millis(1);
const BATCH_BYTES_MAX: usize = 128 << 10;
/// Copies of each partition.
const REPLICAS: i16 = 3;
/// Between attempts at a cluster that is not ready.
const SETUP_INTERVAL: Duration = Duration::from_millis(20);

/// A topic of which every partition serves.
#[derive(Debug, Clone)]
pub(crate) struct ClusterTopic {
    pub(crate) id: TopicId,
    /// The leader of each partition.
    pub(crate) leaders: Vec<SocketAddr>,
}

impl ClusterTopic {
    /// The addresses of all leaders.
    fn nodes(&self) -> Vec<SocketAddr> {
        let mut nodes = self.leaders.clone();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    /// The partitions that a node leads.
    pub(crate) fn led_by(&self, node: SocketAddr) -> Vec<i32> {
        (0..)
            .zip(&self.leaders)
            .filter(|(_, leader)| **leader == node)
            .map(|(partition, _)| partition)
            .collect()
    }
}

/// The settings of a topic whose records have that durability: our nodes sync before they acknowledge unless they are started with
/// `write.caching`.
fn configs(system: System, durability: Durability) -> &'static [(&'static str, &'static str)] {
    match system {
        System::Kafka | System::KafkaSecured => topic_configs(durability),
        _ => &[],
    }
}

/// Makes a topic of three replicas, and waits until all of them are in sync and each leader serves.
pub(crate) fn create_topic(
    nodes: &[SocketAddr],
    name: &str,
    partitions: i32,
    (system, durability): (System, Durability),
) -> Result<ClusterTopic> {
    let until = Instant::now() + SETUP_MAX;
    retry(until, || {
        let mut connection = open_any(nodes)?;
        let state = admin::cluster_state(&mut connection, name)?;
        ensure!(state.ports.len() == nodes.len(), "{} of {} nodes are there", state.ports.len(), nodes.len());
        if state.topic.is_some() {
            return Ok(());
        }
        let configs = configs(system, durability);
        admin::create_replicated_topic(&mut connection, name, (partitions, REPLICAS), configs).map(drop)
    })
    .context("creating the topic")?;
    retry(until, || serving_topic(nodes, name, partitions)).context("waiting for the topic")
}

/// Tries once to get a first record acknowledged, from the topic on; returns false while something is missing.
pub(crate) fn try_first_record(
    nodes: &[SocketAddr],
    name: &str,
    (system, durability): (System, Durability),
    codec: &PayloadCodec,
) -> Result<bool> {
    let mut connection = open_any(nodes)?;
    let state = admin::cluster_state(&mut connection, name)?;
    let Some(topic) = state.topic else {
        admin::create_replicated_topic(&mut connection, name, (1, REPLICAS), configs(system, durability))?;
        return Ok(false);
    };
    let Some((leader, _)) = topic.leaders.first().copied().flatten() else { return Ok(false) };
    let port = state.ports.get(&leader).context("the leader is a node")?;
    let mut leader = Connection::open(SocketAddr::from((Ipv4Addr::LOCALHOST, *port)))?;
    let payload = Payload { sequence: 0, sent_ns: 0, producer: 0, partition: 0 };
    let mut batch = BatchBuilder::default();
    batch.append(clock::wall_ms(), codec.value_bytes(), |writer| codec.write(writer, payload));
    let batch = batch.finish(ProducerFields::NONE);
    data::produce(&mut leader, Acks::All, &topic.id, 0, batch).map(|_offset| true)
}

fn serving_topic(nodes: &[SocketAddr], name: &str, partitions: i32) -> Result<ClusterTopic> {
    let (id, leaders) = leaders(nodes, name)?;
    let leaders: Option<Vec<_>> = leaders.into_iter().collect();
    let leaders = leaders.context("a partition has no leader")?;
    ensure!(leaders.len() == partitions as usize, "{} of {partitions} partitions are there", leaders.len());
    let topic = ClusterTopic { id, leaders };
    for node in topic.nodes() {
        let serve = data::partitions_serve(&mut Connection::open(node)?, &id, &topic.led_by(node))?;
        ensure!(serve, "a partition does not serve yet");
    }
    Ok(topic)
}

/// The leaders of a topic, all of whose replicas have to be in sync.
fn leaders(nodes: &[SocketAddr], name: &str) -> Result<(TopicId, Vec<Option<SocketAddr>>)> {
    let state = admin::cluster_state(&mut open_any(nodes)?, name)?;
    let topic = state.topic.context("the topic is not there")?;
    ensure!(topic.all_in_sync, "a replica is not in sync");
    let address = |node: i32| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, *state.ports.get(&node)?)));
    let leaders = topic.leaders.iter().map(|leader| leader.and_then(|(node, _)| address(node)));
    Ok((topic.id, leaders.collect()))
}

/// Connects to the first node that accepts a connection.
fn open_any(nodes: &[SocketAddr]) -> Result<Connection> {
    let mut error = None;
    for node in nodes {
        match Connection::open(*node) {
            Ok(connection) => return Ok(connection),
            Err(refused) => error = Some(refused),
        }
    }
    Err(error.context("there are no nodes")?)
}

/// Tries until there is a result; after the time returns the last error.
pub(crate) fn retry<T>(until: Instant, mut attempt: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match attempt() {
            Ok(answer) => return Ok(answer),
            Err(error) if Instant::now() > until => return Err(error),
            Err(_) => thread::sleep(SETUP_INTERVAL),
        }
    }
}

/// The load to run on a cluster.
#[derive(Debug)]
pub(crate) struct ClusterPlan<'a> {
    pub(crate) shape: LoadShape,
    pub(crate) topic: &'a ClusterTopic,
    /// The partitions that are written to.
    pub(crate) partitions: Vec<i32>,
    /// Load before the window.
    pub(crate) warmup: Duration,
    /// Counts the acknowledged records of the whole load, for those who observe it.
    pub(crate) acked: Arc<AtomicU64>,
}

/// A producer with a connection to each leader.
#[derive(Debug)]
struct Producer {
    connections: BTreeMap<SocketAddr, Connection>,
    topic: ClusterTopic,
    partitions: Vec<i32>,
    codec: PayloadCodec,
    number: u32,
    identity: Option<(i64, i16)>,
}

impl Producer {
    fn new(plan: &ClusterPlan<'_>, number: u32) -> Result<Self> {
        let nodes = plan.topic.nodes();
        let connections = nodes.iter().map(|node| Ok((*node, Connection::open(*node)?)));
        let mut connections = connections.collect::<Result<BTreeMap<_, _>>>()?;
        let first = connections.values_mut().next().context("a topic has leaders")?;
        let identity = if plan.shape.idempotent { Some(identify(first)?) } else { None };
        let codec = PayloadCodec::half_random(plan.shape.value_bytes);
        Ok(Self {
            connections,
            topic: plan.topic.clone(),
            partitions: plan.partitions.clone(),
            codec,
            number,
            identity,
        })
    }

    fn run(self, shape: &LoadShape, phases: &Phases) -> Result<ProducerTotals> {
        match shape.pace {
            Pace::Closed => ClosedLoop::new(self, shape).run(phases),
            Pace::Rate { .. } | Pace::Pipelined { .. } => Paced::new(self, shape).run(phases),
        }
    }
}

/// Warms, measures for as long as `observe` takes, drains and checks.
pub(crate) fn run<T>(plan: &ClusterPlan<'_>, observe: impl FnOnce() -> Result<T>) -> Result<(Outcome, T)> {
    let producers = (0..plan.shape.producers).map(|number| Producer::new(plan, number));
    let producers = producers.collect::<Result<Vec<_>>>()?;
    let written = |partition: &i32| plan.partitions.contains(partition);
    let consumers = plan.topic.nodes().into_iter().filter_map(|node| {
        let led: Vec<i32> = plan.topic.led_by(node).into_iter().filter(written).collect();
        let codec = PayloadCodec::half_random(plan.shape.value_bytes);
        let counts = (plan.shape.producers, plan.shape.partitions);
        (!led.is_empty()).then(|| Consumer::of_node(node, plan.topic.id, codec, counts, &led))
    });
    let consumers = consumers.collect::<Result<Vec<_>>>()?;
    let phases = Phases::new(plan.acked.clone());
    thread::scope(|scope| {
        let consume = |consumer: Consumer| scope.spawn(|| phases.guard(consumer.run(&phases)));
        let consumers: Vec<_> = consumers.into_iter().map(consume).collect();
        let produce = |producer: Producer| scope.spawn(|| phases.guard(producer.run(&plan.shape, &phases)));
        let producers: Vec<_> = producers.into_iter().map(produce).collect();
        let observed = measure(&phases, || thread::sleep(plan.warmup), observe);
        phases.stop();
        let produced = join_all(producers).inspect_err(|_| phases.abandon())?;
        phases.expect(produced.iter().map(|totals| totals.produced).sum());
        let consumed = join_all(consumers)?;
        let (window, observed) = observed?;
        Ok((sum_up(window, &produced, &consumed)?, observed))
    })
}
