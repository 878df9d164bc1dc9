//! A broker at rest: 1,000 partitions, 1,000 connections, nothing to do.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::cpu::CpuTimes;
use super::{Case, Measured, fill_partitions};
use crate::broker::Running;
use crate::connection::Connection;
use crate::process;
use crate::protocol::admin;
use crate::sampler::{MIB, Sampler};

const CONNECTIONS: usize = 1_000;
/// Time of rest before the CPU at rest of a broker is measured, and time of that measurement.
const SETTLE: Duration = Duration::from_secs(2);
const REST: Duration = Duration::from_secs(5);
/// Descriptors for the connections and all else.
const DESCRIPTORS: u64 = 2_048;

pub(super) fn run(case: &Case<'_>) -> Result<Measured> {
    raise_descriptor_limit(DESCRIPTORS)?;
    let broker = Running::start_ready(case.environment, case.launch())?;
    let sampler = Sampler::start(broker.pid(), Arc::default());
    fill_partitions(&mut Connection::open(broker.endpoint())?)?;
    let connections = (0..CONNECTIONS)
        .map(|_| {
            let mut connection = Connection::open(broker.endpoint())?;
            admin::api_versions(&mut connection)?;
            Ok(connection)
        })
        .collect::<Result<Vec<_>>>()?;
    thread::sleep(SETTLE);
    let (begin, before) = (Instant::now(), CpuTimes::sample(broker.pid())?);
    thread::sleep(REST);
    let cpu = CpuTimes::sample(broker.pid())?.since(&before);
    let seconds = begin.elapsed().as_secs_f64();
    let memory = process::memory(broker.pid())?;
    let mut samples = sampler.finish();
    // The records that open the partitions are not counted.
    samples.messages.clear();
    drop(connections);
    broker.stop()?;
    let mut measured = Measured::of([
        ("vm_hwm_mib", memory.peak as f64 / MIB),
        ("vm_rss_mib", memory.resident as f64 / MIB),
        ("idle_cpu_percent", 100.0 * cpu.broker_s() / seconds),
    ]);
    measured.samples = samples;
    cpu.add_circumstances(&mut measured, seconds);
    Ok(measured)
}

/// Raises the limit of open files for this process, and for those that it starts.
pub(super) fn raise_descriptor_limit(wanted: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).with_context(|| {
            format!("the connections need {wanted} open files: raise the limit by `ulimit -n`")
        })?;
    }
    Ok(())
}
