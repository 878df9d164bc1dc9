//! The machine: what a result must say of it, and whether it is quiet enough to measure.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use crate::process;

/// CPUs that others may use while we measure.
const BUSY_CPUS_MAX: f64 = 0.15;
const SAMPLE: Duration = Duration::from_secs(1);

/// CPU model, kernel and memory, for the head of a report.
pub(crate) fn describe() -> Value {
    json!({
        "cpu": first_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        "cpus": thread::available_parallelism().map_or(0, usize::from),
        "memory": first_field("/proc/meminfo", "MemTotal").unwrap_or_else(|| "unknown".to_owned()),
        "kernel": read_trimmed("/proc/sys/kernel/osrelease"),
        "architecture": std::env::consts::ARCH,
    })
}

fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn first_field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Fails, naming who is busy, if others use the CPUs for a second.
pub(crate) fn require_quiet() -> Result<()> {
    let machine_before = process::machine_cpu_time()?;
    let before: HashMap<u32, Duration> =
        process::all_cpu_times().into_iter().map(|(pid, _, time)| (pid, time)).collect();
    thread::sleep(SAMPLE);
    let busy =
        (process::machine_cpu_time()?.saturating_sub(machine_before)).as_secs_f64() / SAMPLE.as_secs_f64();
    if busy <= BUSY_CPUS_MAX {
        return Ok(());
    }
    let mut busiest: Vec<_> = process::all_cpu_times()
        .into_iter()
        .map(|(pid, name, time)| (time.saturating_sub(before.get(&pid).copied().unwrap_or_default()), name))
        .filter(|(time, _)| !time.is_zero())
        .collect();
    busiest.sort_unstable_by(|left, right| right.cmp(left));
    let names: Vec<_> =
        busiest.iter().take(3).map(|(time, name)| format!("{name} {:.2}", time.as_secs_f64())).collect();
    bail!(
        "the machine is busy: others use {busy:.2} CPUs, at most {BUSY_CPUS_MAX} are tolerable ({}); wait, or measure \
         anyway with --force",
        names.join(", ")
    )
}
