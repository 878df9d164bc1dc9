//! Family R: three nodes, three replicas of everything, acks=all.

mod offsets;
mod offsets_load;

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::cpu::CpuTimes;
use super::load::add_outcome;
use super::{Case, Measured, batch_of};
use crate::broker::nodes::{NODES, Nodes};
use crate::broker::{DEFAULT_HEAP_MIB, System};
use crate::connection::Connection;
use crate::latency;
use crate::load::cluster::{self, ClusterPlan, ClusterTopic, failover};
use crate::payload::PayloadCodec;
use crate::process;
use crate::protocol::data;
use crate::sampler::MIB;
use crate::workload::{Acks, ClusterKind, Harm, LoadShape, MANY_PARTITIONS};

/// Warm-up of nodes that are warm, or that compile nothing as they run.
const WARM: Duration = Duration::from_secs(2);
/// Time of rest before the CPU at rest of nodes is measured, and time of that measurement.
const SETTLE: Duration = Duration::from_secs(10);
const REST: Duration = Duration::from_secs(10);
/// Delay of a delayed sync, in microseconds.
const SYNC_DELAY_US: u32 = 200_000;

pub(super) fn run(case: &Case<'_>, kind: ClusterKind) -> Result<Measured> {
    let left = case.environment.nodes.take();
    let mut nodes = match left.filter(|nodes| nodes.serve(case.system, case.durability)) {
        Some(nodes) => nodes,
        None => Nodes::start(case.environment, case.system, case.durability, DEFAULT_HEAP_MIB)?,
    };
    let measured = match kind {
        ClusterKind::Load(shape) => load(case, &mut nodes, shape),
        ClusterKind::Replica(shape, harm) => replica(case, &mut nodes, shape, harm),
        ClusterKind::Leader(harm) => leader(case, &mut nodes, harm),
        ClusterKind::Idle => idle(case, &mut nodes),
        ClusterKind::Start => start(case, &mut nodes),
        ClusterKind::OffsetsKept => offsets::run(case, &mut nodes),
        ClusterKind::OffsetsLoad => offsets_load::run(case, &mut nodes),
    };
    let measured = measured.map_err(|error| nodes.fault(&format!("{error:#}; the nodes' last lines")))?;
    // The stop is not measured of nodes of which one was killed or paused, and not of Kafka's: the last of them wait for a controller.
    match kind {
        ClusterKind::Load(_) | ClusterKind::Replica(..) => *case.environment.nodes.borrow_mut() = Some(nodes),
        ClusterKind::Idle if case.system.is_mainstem() => nodes.stop()?,
        _ => drop(nodes),
    }
    Ok(measured)
}

fn topic(case: &Case<'_>, nodes: &mut Nodes, name: &str, partitions: i32) -> Result<ClusterTopic> {
    nodes.wait_until(|nodes| {
        nodes.addresses.iter().all(|node| Connection::open(*node).is_ok()).then_some(())
    })?;
    cluster::create_topic(&nodes.addresses, name, partitions, (case.system, case.durability))
}

fn warmup(case: &Case<'_>, nodes: &Nodes) -> Duration {
    match nodes.are_warm() || case.system != System::Kafka {
        true => case.extent.warmup.min(WARM),
        false => case.extent.warmup,
    }
}

fn load(case: &Case<'_>, nodes: &mut Nodes, shape: LoadShape) -> Result<Measured> {
    let (warmup, name) = (warmup(case, nodes), nodes.next_topic());
    let topic = topic(case, nodes, &name, shape.partitions)?;
    let partitions = (0..shape.partitions).collect();
    let plan = ClusterPlan { shape, topic: &topic, partitions, warmup, acked: Arc::new(AtomicU64::new(0)) };
    let pids = nodes.pids();
    let (outcome, cpu) = cluster::run(&plan, || {
        let before = CpuTimes::sample_all(&pids)?;
        thread::sleep(case.extent.window);
        Ok(CpuTimes::sample_all(&pids)?.since(&before))
    })?;
    let mut measured = Measured::default();
    cpu.add_figures(&mut measured, outcome.acked_in_window as f64, outcome.window.as_secs_f64());
    add_memory(&mut measured, &pids)?;
    add_outcome(&mut measured, &outcome, shape);
    Ok(measured)
}

/// Adds the memory of the node that has the most.
fn add_memory(measured: &mut Measured, pids: &[u32]) -> Result<()> {
    let memory = pids.iter().map(|pid| process::memory(*pid)).collect::<Result<Vec<_>>>()?;
    let most = |of: fn(&process::Memory) -> u64| memory.iter().map(of).max().unwrap_or(0) as f64 / MIB;
    measured.add([("vm_hwm_mib", most(|one| one.peak)), ("vm_rss_mib", most(|one| one.resident))]);
    Ok(())
}

/// Runs a schedule on the partitions that the last node does not lead: first undisturbed, then with harm to that node from the beginning of
/// the window on.
fn replica(case: &Case<'_>, nodes: &mut Nodes, shape: LoadShape, harm: Harm) -> Result<Measured> {
    let victim = NODES - 1;
    let mut measured = Measured::default();
    for is_harmed in [false, true] {
        let (warmup, name) = (warmup(case, nodes), nodes.next_topic());
        let topic = topic(case, nodes, &name, shape.partitions)?;
        let led = topic.led_by(nodes.addresses[victim]);
        let plan = ClusterPlan {
            shape,
            topic: &topic,
            partitions: (0..shape.partitions).filter(|partition| !led.contains(partition)).collect(),
            warmup,
            acked: Arc::new(AtomicU64::new(0)),
        };
        let (outcome, ()) = cluster::run(&plan, || {
            let harmed = is_harmed.then(|| Harmed::begin(nodes, victim, harm)).transpose()?;
            thread::sleep(case.extent.window);
            harmed.map_or(Ok(()), Harmed::end)
        })?;
        match is_harmed {
            false => latency::add_figures(&mut measured.figures, "undisturbed_ack", &outcome.ack_ns),
            true => add_outcome(&mut measured, &outcome, shape),
        }
    }
    Ok(measured)
}

/// A node to which something is done.
#[derive(Debug)]
enum Harmed {
    Paused(u32),
    /// The process that delays its syncs.
    Traced(Child),
}

impl Harmed {
    fn begin(nodes: &Nodes, number: usize, harm: Harm) -> Result<Self> {
        let pid = nodes.pid(number)?;
        match harm {
            Harm::Stop => nodes.signal(number, Signal::STOP).map(|()| Self::Paused(pid)),
            Harm::DelaySyncs => delay_syncs(pid).map(Self::Traced),
            Harm::Kill => unreachable!("a replica that is killed is none of the workloads"),
        }
    }

    fn end(self) -> Result<()> {
        match self {
            Self::Paused(pid) => {
                let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
                let pid = pid.context("process ids are positive")?;
                Ok(rustix::process::kill_process(pid, Signal::CONT)?)
            }
            Self::Traced(mut strace) => {
                ensure!(strace.try_wait()?.is_none(), "strace, which delays syncs, has ended by itself");
                rustix::process::kill_process(rustix::process::Pid::from_child(&strace), Signal::INT)?;
                strace.wait()?;
                Ok(())
            }
        }
    }
}

/// Delays every sync of a process. The cost of tracing falls on the harmed node.
fn delay_syncs(pid: u32) -> Result<Child> {
    let calls = "fsync,fdatasync,sync_file_range,msync";
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={calls}")]);
    strace.args(["-e", &format!("inject={calls}:delay_exit={SYNC_DELAY_US}"), "-p", &pid.to_string()]);
    strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    strace.spawn().context("strace, which delays syncs, does not run: install it")
}

/// Measures the longest pause of acknowledgements after harm to a leader.
fn leader(case: &Case<'_>, nodes: &mut Nodes, harm: Harm) -> Result<Measured> {
    let (warmup, name) = (warmup(case, nodes), nodes.next_topic());
    let topic = topic(case, nodes, &name, 18)?;
    let victim = nodes.addresses[0];
    let pauses = failover::run(&name, &topic, victim, warmup, || match harm {
        Harm::Kill => {
            nodes.kill(0);
            Ok(())
        }
        Harm::Stop => nodes.signal(0, Signal::STOP),
        Harm::DelaySyncs => unreachable!("a leader with slow syncs is none of the workloads"),
    })?;
    let ms = |pause: Duration| pause.as_secs_f64() * 1_000.0;
    Ok(Measured::of([
        ("pause_ms", ms(pauses.longest)),
        ("shortest_pause_ms", ms(pauses.shortest)),
        ("produced", pauses.records as f64),
    ]))
}

fn idle(case: &Case<'_>, nodes: &mut Nodes) -> Result<Measured> {
    let topic = topic(case, nodes, "many", MANY_PARTITIONS)?;
    let codec = PayloadCodec::half_random(1_024);
    for node in nodes.addresses.clone() {
        let mut connection = Connection::open(node)?;
        for partition in topic.led_by(node) {
            let batch = batch_of(&codec, 1, partition);
            data::produce(&mut connection, Acks::All, &topic.id, partition, &batch)?;
        }
    }
    thread::sleep(SETTLE);
    let pids = nodes.pids();
    let cpu = |pid: &u32| process::cpu_time(*pid);
    let (begin, before) = (Instant::now(), pids.iter().map(cpu).collect::<Result<Vec<_>>>()?);
    thread::sleep(REST);
    let after = pids.iter().map(cpu).collect::<Result<Vec<_>>>()?;
    let seconds = begin.elapsed().as_secs_f64();
    let used = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before)).max();
    let used = used.unwrap_or_default().as_secs_f64();
    let mut measured = Measured::of([("idle_cpu_percent", 100.0 * used / seconds)]);
    add_memory(&mut measured, &pids)?;
    Ok(measured)
}

/// Measures the time from the start of three empty nodes to the first record that a majority has.
fn start(case: &Case<'_>, nodes: &mut Nodes) -> Result<Measured> {
    let (system, durability) = (case.system, case.durability);
    let codec = PayloadCodec::half_random(100);
    nodes.wait_until(|nodes| {
        let acked = cluster::try_first_record(&nodes.addresses, "first", (system, durability), &codec);
        acked.unwrap_or(false).then_some(())
    })?;
    let took = nodes.started_at.elapsed();
    let mut measured = Measured::of([("first_ack_ms", took.as_secs_f64() * 1_000.0)]);
    add_memory(&mut measured, &nodes.pids())?;
    Ok(measured)
}
