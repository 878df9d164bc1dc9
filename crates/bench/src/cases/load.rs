//! A load by the driver's own clients: throughput, CPU, latencies, memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use super::cpu::CpuTimes;
use super::{Case, Measured};
use crate::broker::{Launch, Running};
use crate::connection::Connection;
use crate::disk;
use crate::latency;
use crate::load::{Keeps, Load, Outcome, Plan};
use crate::process;
use crate::protocol::sync_costs;
use crate::results::Curves;
use crate::sampler::{MIB, Sampler};
use crate::workload::{Durability, LoadShape, Pace};

/// One load; `heap_mib` is for Kafka.
pub(crate) fn run(case: &Case<'_>, shape: LoadShape, heap_mib: u32) -> Result<Measured> {
    let mut costs = Measured::default();
    if case.durability == Durability::Fsync {
        let fdatasync = disk::fdatasync_costs(&case.environment.data_root)?;
        latency::add_figures(&mut costs.figures, "fdatasync", &fdatasync);
    }
    let launch = Launch { heap_mib, partitions: shape.partitions, ..case.launch() };
    let broker = Running::start_ready(case.environment, launch)?;
    let order = LoadOrder { shape, window: case.extent.window, keeps: Keeps::All };
    let mut measured = measure(case, &broker, order)?;
    broker.stop()?;
    measured.figures.extend(costs.figures);
    Ok(measured)
}

/// A load on a broker that runs already.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadOrder {
    pub(super) shape: LoadShape,
    pub(super) window: Duration,
    pub(super) keeps: Keeps,
}

/// Loads a broker and measures it; it runs on afterwards.
pub(super) fn measure(case: &Case<'_>, broker: &Running, order: LoadOrder) -> Result<Measured> {
    let pid = broker.pid();
    let acked = Arc::new(AtomicU64::new(0));
    let plan = Plan {
        shape: order.shape,
        target: broker.target(),
        durability: case.durability,
        keeps: order.keeps,
        warmup: case.extent.warmup,
        acked: acked.clone(),
    };
    let observe = || {
        let mut syncs = Syncs::of(&plan)?;
        let before = CpuTimes::sample(pid)?;
        thread::sleep(order.window);
        let cpu = CpuTimes::sample(pid)?.since(&before);
        Ok((cpu, syncs.as_mut().map(Syncs::take).transpose()?))
    };
    let load = Load::prepare(&plan);
    let sampler = Sampler::start(pid, acked);
    let (outcome, (cpu, syncs)) = load
        .and_then(|load| load.run(observe))
        .map_err(|error| broker.fault(format_args!("the load failed: {error:#}; the broker's last lines")))?;
    let mut measured = Measured { samples: sampler.finish(), ..Measured::default() };
    let memory = process::memory(pid)?;
    let seconds = outcome.window.as_secs_f64();
    cpu.add_figures(&mut measured, outcome.acked_in_window as f64, seconds);
    measured.add([("vm_hwm_mib", memory.peak as f64 / MIB), ("vm_rss_mib", memory.resident as f64 / MIB)]);
    add_outcome(&mut measured, &outcome, order.shape);
    if let Some(syncs_ns) = syncs {
        latency::add_figures(&mut measured.figures, "fdatasync_loaded", &syncs_ns);
    }
    Ok(measured)
}

/// The durations of syncs under the load, which only the probe reports.
struct Syncs(Connection);

impl Syncs {
    /// Begins to count; none for a system that does not report them.
    fn of(plan: &Plan) -> Result<Option<Self>> {
        if plan.target.has_topics_and_groups || plan.durability != Durability::Fsync {
            return Ok(None);
        }
        let mut syncs = Self(Connection::open(plan.target.address)?);
        syncs.take()?;
        Ok(Some(syncs))
    }

    /// Returns the nanoseconds of syncs since the last call.
    fn take(&mut self) -> Result<Histogram<u64>> {
        sync_costs::take(&mut self.0)
    }
}

pub(super) fn add_outcome(measured: &mut Measured, outcome: &Outcome, shape: LoadShape) {
    let seconds = outcome.window.as_secs_f64();
    measured.add([
        ("messages_per_s", outcome.acked_in_window as f64 / seconds),
        ("window_s", seconds),
        ("produced", outcome.produced as f64),
        ("consumed", outcome.consumed as f64),
    ]);
    if let Pace::Rate { per_s } = shape.pace {
        let offered_per_s = f64::from(per_s) * f64::from(shape.producers);
        measured.add([("offered_per_s", offered_per_s), ("unsent", outcome.unsent_in_window as f64)]);
        latency::add_figures(&mut measured.figures, "late", &outcome.late_ns);
    }
    latency::add_figures(&mut measured.figures, "ack", &outcome.ack_ns);
    latency::add_figures(&mut measured.figures, "end_to_end", &outcome.end_to_end_ns);
    measured.curves = Curves {
        ack_us: latency::curve(&outcome.ack_ns),
        end_to_end_us: latency::curve(&outcome.end_to_end_ns),
    };
}
