//! The machine: its description for a result, and a check that it is quiet enough to measure.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::process;

/// CPUs that others may use while we measure.
pub(crate) const BUSY_CPUS_MAX: f64 = 0.15;
const SAMPLE: Duration = Duration::from_secs(1);
/// Number of looks for a quiet second before a run, and the time between two. Work that the run before has left, such as writing pages
/// back, is over by then.
const LOOKS_MAX: u32 = 5;
const PAUSE: Duration = Duration::from_secs(5);

/// CPU model, kernel and memory, for the head of a report.
pub(crate) fn describe() -> Value {
    json!({
        "cpu": first_field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        "cpus": cpus(),
        "memory": first_field("/proc/meminfo", "MemTotal").unwrap_or_else(|| "unknown".to_owned()),
        "kernel": read_trimmed("/proc/sys/kernel/osrelease"),
        "architecture": std::env::consts::ARCH,
    })
}

/// A field of /proc/meminfo, in bytes.
pub(crate) fn memory_bytes(field: &str) -> Result<u64> {
    let text = first_field("/proc/meminfo", &format!("{field}:"));
    let kib =
        text.as_deref().and_then(|text| text.strip_suffix(" kB")).and_then(|kib| kib.parse::<u64>().ok());
    Ok(kib.with_context(|| format!("/proc/meminfo does not tell {field}"))? << 10)
}

/// CPUs that this process may use; 0 if that is not known.
pub(crate) fn cpus() -> usize {
    thread::available_parallelism().map_or(0, usize::from)
}

fn read_trimmed(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn first_field(path: &str, key: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// CPU time that others use on the machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Busyness {
    /// CPUs in use.
    pub(crate) cpus: f64,
    /// The processes that use them: (name, CPUs), the busiest first.
    pub(crate) by: Vec<(String, f64)>,
}

impl Busyness {
    /// Looks at the machine for a second, in which this process sleeps.
    pub(crate) fn look() -> Result<Self> {
        let machine_before = process::machine_cpu_time()?;
        let before: HashMap<u32, Duration> =
            process::all_cpu_times().into_iter().map(|(pid, _, time)| (pid, time)).collect();
        thread::sleep(SAMPLE);
        let used = process::machine_cpu_time()?.saturating_sub(machine_before);
        let mut by: Vec<_> = process::all_cpu_times()
            .into_iter()
            .map(|(pid, name, time)| {
                let used = time.saturating_sub(before.get(&pid).copied().unwrap_or_default());
                (name, used.as_secs_f64() / SAMPLE.as_secs_f64())
            })
            .filter(|(_, cpus)| *cpus > 0.0)
            .collect();
        by.sort_by(|left, right| right.1.total_cmp(&left.1));
        Ok(Self { cpus: used.as_secs_f64() / SAMPLE.as_secs_f64(), by })
    }

    /// Returns the reason not to measure now; `None` if the machine is quiet enough.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.cpus <= BUSY_CPUS_MAX {
            return None;
        }
        let names: Vec<_> = self.by.iter().take(3).map(|(name, cpus)| format!("{name} {cpus:.2}")).collect();
        let by = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        Some(format!(
            "the machine is busy: others use {:.2} CPUs{by}, and at most {BUSY_CPUS_MAX} are tolerable: wait, or \
             measure anyway by --force",
            self.cpus
        ))
    }
}

/// Fails, naming who is busy, if others use the CPUs for a second.
pub(crate) fn require_quiet() -> Result<()> {
    Busyness::look()?.refusal().map_or(Ok(()), |reason| bail!(reason))
}

/// Waits for a second in which others use no CPUs, about half a minute at most; then fails as [`require_quiet`] does.
pub(crate) fn wait_until_quiet() -> Result<()> {
    until_quiet(Busyness::look, || thread::sleep(PAUSE))
}

fn until_quiet(mut look: impl FnMut() -> Result<Busyness>, mut pause: impl FnMut()) -> Result<()> {
    let mut looks = 1;
    while let Some(reason) = look()?.refusal() {
        ensure!(looks < LOOKS_MAX, reason);
        looks += 1;
        pause();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result if the looks find so many CPUs in use one after another, then none; and the number of looks.
    fn wait(busy: &[f64]) -> (Result<()>, usize) {
        let (mut looks, mut pauses) = (0, 0);
        let look = || {
            let cpus = busy.get(looks).copied().unwrap_or_default();
            looks += 1;
            Ok(Busyness { cpus, by: vec![("rustc".to_owned(), cpus)] })
        };
        let waited = until_quiet(look, || pauses += 1);
        assert_eq!(pauses + 1, looks, "a pause between each two looks");
        (waited, looks)
    }

    #[test]
    fn a_run_waits_for_the_machine_to_get_quiet_but_not_for_ever() {
        let (waited, looks) = wait(&[]);
        assert_eq!((waited.is_ok(), looks), (true, 1));
        let (waited, looks) = wait(&[0.9, 0.4, 0.1]);
        assert_eq!((waited.is_ok(), looks), (true, 3));
        let (waited, looks) = wait(&[0.9, 0.8, 0.7, 0.6, 0.5]);
        let reason = waited.unwrap_err().to_string();
        assert!(reason.contains("others use 0.50 CPUs (rustc 0.50)"), "{reason}");
        assert_eq!(looks, 5);
    }

    #[test]
    fn a_busy_machine_is_refused_by_name() {
        let by = [("rustc", 0.9), ("java", 0.3), ("a", 0.2), ("b", 0.1)];
        let by = by.map(|(name, cpus)| (name.to_owned(), cpus)).to_vec();
        let refusal = Busyness { cpus: 1.5, by: by.clone() }.refusal().unwrap();
        assert!(refusal.contains("1.50 CPUs (rustc 0.90, java 0.30, a 0.20)"), "{refusal}");
        assert!(refusal.contains("--force"));
        assert_eq!(Busyness { cpus: 0.15, by }.refusal(), None);
        // Time that the host took belongs to no process.
        assert!(Busyness { cpus: 0.5, by: Vec::new() }.refusal().unwrap().contains("0.50 CPUs, and"));
    }
}
