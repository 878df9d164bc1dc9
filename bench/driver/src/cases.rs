//! The cases of a comparison: a load, a start, or a broker at rest; each run of one gives a set of figures.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Map, Value, json};

use crate::broker::{Environment, Running, System};
use crate::connection::Connection;
use crate::load::{self, Plan, WORKLOADS, Workload};
use crate::payload::{Payload, PayloadCodec};
use crate::process;
use crate::protocol::{admin, data};

const IDLE_PARTITIONS: i32 = 1_000;
const IDLE_CONNECTIONS: usize = 1_000;
/// How long a broker is left alone before and while its CPU at rest is measured.
const SETTLE: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_secs(5);
const MIB: f64 = 1024.0 * 1024.0;
/// Descriptors for the idle connections and all else.
const DESCRIPTORS: u64 = 2_048;

/// One kind of run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Case {
    Load(Workload),
    /// Process start to first acknowledged record on an empty directory.
    Start,
    /// 1,000 partitions with a record each, and 1,000 idle connections.
    Idle,
}

/// How long a load is warmed and measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) warmup: Duration,
    pub(crate) window: Duration,
}

impl Case {
    pub(crate) fn all() -> Vec<Self> {
        WORKLOADS.into_iter().map(Self::Load).chain([Self::Start, Self::Idle]).collect()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Load(workload) => workload.name,
            Self::Start => "start",
            Self::Idle => "idle",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Self> {
        let names: Vec<_> = Self::all().into_iter().map(Self::name).collect();
        let found = Self::all().into_iter().find(|case| case.name() == name);
        found.with_context(|| format!("no workload {name}; there are {}", names.join(", ")))
    }

    /// Whether the system and the durability make sense for it. The probe has no topics, so it neither starts nor
    /// rests as a broker does; start and rest do not depend on fsync.
    pub(crate) fn applies_to(self, system: System, fsync: bool) -> bool {
        match self {
            Self::Load(_) => true,
            Self::Start | Self::Idle => system.is_broker() && !fsync,
        }
    }

    /// One run on a fresh data directory; returns the figures by their keys, and totals beside them.
    pub(crate) fn run(
        self,
        environment: &Environment,
        system: System,
        fsync: bool,
        times: Times,
    ) -> Result<Map<String, Value>> {
        match self {
            Self::Load(workload) => run_load(environment, system, fsync, times, workload),
            Self::Start => run_start(environment, system),
            Self::Idle => run_idle(environment, system),
        }
    }
}

/// CPU time of the broker, of this process and of the whole machine.
struct CpuTimes {
    broker: Duration,
    driver: Duration,
    machine: Duration,
}

impl CpuTimes {
    fn sample(broker: u32) -> Result<Self> {
        Ok(Self {
            broker: process::cpu_time(broker)?,
            driver: process::cpu_time(std::process::id())?,
            machine: process::machine_cpu_time()?,
        })
    }

    fn since(&self, before: &Self) -> Self {
        Self {
            broker: self.broker.saturating_sub(before.broker),
            driver: self.driver.saturating_sub(before.driver),
            machine: self.machine.saturating_sub(before.machine),
        }
    }
}

fn run_load(
    environment: &Environment,
    system: System,
    fsync: bool,
    times: Times,
    workload: Workload,
) -> Result<Map<String, Value>> {
    let broker = Running::start_ready(environment, system, fsync)?;
    let pid = broker.pid();
    let plan = Plan { workload, target: broker.target(), fsync, warmup: times.warmup };
    let observe = || {
        let before = CpuTimes::sample(pid)?;
        thread::sleep(times.window);
        Ok(CpuTimes::sample(pid)?.since(&before))
    };
    let (outcome, cpu) = load::run(&plan, observe)
        .with_context(|| format!("the load failed; the broker's last lines:\n{}", broker.log_tail()))?;
    let memory = process::memory(pid)?;
    broker.stop()?;
    let seconds = outcome.window.as_secs_f64();
    let messages = outcome.acked_in_window as f64;
    let others = cpu.machine.saturating_sub(cpu.broker + cpu.driver);
    Ok(object(json!({
        "messages_per_s": messages / seconds,
        // A load so small that the broker used no tick counts as one tick (10 ms).
        "messages_per_cpu_s": messages / cpu.broker.as_secs_f64().max(0.01),
        "ack_p50_us": micros(&outcome.ack_ns, 50.0),
        "ack_p90_us": micros(&outcome.ack_ns, 90.0),
        "ack_p99_us": micros(&outcome.ack_ns, 99.0),
        "ack_p999_us": micros(&outcome.ack_ns, 99.9),
        "ack_max_us": micros(&outcome.ack_ns, 100.0),
        "end_to_end_p50_us": micros(&outcome.end_to_end_ns, 50.0),
        "end_to_end_p90_us": micros(&outcome.end_to_end_ns, 90.0),
        "end_to_end_p99_us": micros(&outcome.end_to_end_ns, 99.0),
        "end_to_end_p999_us": micros(&outcome.end_to_end_ns, 99.9),
        "end_to_end_max_us": micros(&outcome.end_to_end_ns, 100.0),
        "vm_hwm_mib": memory.peak as f64 / MIB,
        "vm_rss_mib": memory.resident as f64 / MIB,
        "broker_cpu_s": cpu.broker.as_secs_f64(),
        "driver_cpus": cpu.driver.as_secs_f64() / seconds,
        "other_cpus": others.as_secs_f64() / seconds,
        "window_s": seconds,
        "produced": outcome.produced,
        "consumed": outcome.consumed,
    })))
}

fn micros(histogram: &Histogram<u64>, percentile: f64) -> f64 {
    histogram.value_at_percentile(percentile) as f64 / 1_000.0
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("figures are written as an object, not as {other}"),
    }
}

/// A native client that tries everything anew each millisecond, from the connection on, until a record is
/// acknowledged; the topic is made by the broker when its metadata is asked for.
fn run_start(environment: &Environment, system: System) -> Result<Map<String, Value>> {
    let mut broker = Running::start(environment, system, false)?;
    let codec = PayloadCodec::new(100);
    let mut connection = None;
    broker.wait_until(|broker| {
        let attempt =
            connection.take().map_or_else(|| Connection::open(broker.address), Ok).and_then(|mut open| {
                let acked = try_first_record(&mut open, &codec);
                // A refusal leaves the connection usable, a failure of the connection shows at the next attempt.
                if acked.is_ok() {
                    connection = Some(open);
                }
                acked
            });
        attempt.unwrap_or(false).then_some(())
    })?;
    let first_ack = broker.started_at.elapsed();
    let memory = process::memory(broker.pid())?;
    broker.stop()?;
    Ok(object(json!({
        "first_ack_ms": first_ack.as_secs_f64() * 1_000.0,
        "vm_hwm_mib": memory.peak as f64 / MIB,
    })))
}

/// Whether a record was acknowledged; false while the topic is not there yet.
fn try_first_record(connection: &mut Connection, codec: &PayloadCodec) -> Result<bool> {
    let Some(topic) = admin::topic_state(connection, "first")? else { return Ok(false) };
    if topic.led_partitions == 0 {
        return Ok(false);
    }
    let payload = Payload { sequence: 0, sent_ns: 0, producer: 0, partition: 0 };
    data::produce(connection, &topic.id, codec, payload).map(|_offset| true)
}

fn run_idle(environment: &Environment, system: System) -> Result<Map<String, Value>> {
    raise_descriptor_limit()?;
    let broker = Running::start_ready(environment, system, false)?;
    fill_partitions(&broker)?;
    let connections = (0..IDLE_CONNECTIONS)
        .map(|_| {
            let mut connection = Connection::open(broker.address)?;
            admin::api_versions(&mut connection)?;
            Ok(connection)
        })
        .collect::<Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let before = process::cpu_time(broker.pid())?;
    thread::sleep(REST);
    let at_rest = process::cpu_time(broker.pid())?.saturating_sub(before);
    let memory = process::memory(broker.pid())?;
    drop(connections);
    broker.stop()?;
    Ok(object(json!({
        "vm_hwm_mib": memory.peak as f64 / MIB,
        "vm_rss_mib": memory.resident as f64 / MIB,
        "idle_cpu_percent": 100.0 * at_rest.as_secs_f64() / REST.as_secs_f64(),
    })))
}

/// Writes one record into each of 1,000 partitions, so that their segments are open.
fn fill_partitions(broker: &Running) -> Result<()> {
    let mut connection = Connection::open(broker.address)?;
    let topic = load::create_serving_topic(&mut connection, "many", IDLE_PARTITIONS, &[])?;
    let codec = PayloadCodec::new(1_024);
    for partition in 0..IDLE_PARTITIONS as u32 {
        let payload = Payload { sequence: 0, sent_ns: 0, producer: 0, partition };
        data::produce(&mut connection, &topic, &codec, payload)?;
    }
    Ok(())
}

fn raise_descriptor_limit() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < DESCRIPTORS) {
        let wanted = Rlimit { current: Some(DESCRIPTORS), maximum: limit.maximum };
        setrlimit(Resource::Nofile, wanted).context("1,000 connections need a higher limit of open files")?;
    }
    Ok(())
}
