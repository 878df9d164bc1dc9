//! CPU time, of a run and of all others on the machine. The time of a stage says little if others use the machine as well.

use std::fs;
use std::iter::Sum;
use std::ops::{Add, Sub};

use anyhow::{Context, Result};
use rustix::param::clock_ticks_per_second;
use serde::Serialize;

/// CPU time in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct CpuTime {
    /// Used by this process and by its descendants that have ended.
    pub(crate) own: f64,
    /// Used by the whole machine, which a hypervisor's other guests are not part of.
    pub(crate) machine: f64,
}

impl CpuTime {
    /// The time used until now.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(crate) fn now() -> Result<CpuTime> {
        let read = |path: &str| fs::read_to_string(path).with_context(|| format!("read {path}"));
        let (process, machine) = (read("/proc/self/stat")?, read("/proc/stat")?);
        CpuTime::parse(&process, &machine, clock_ticks_per_second() as f64)
            .context("/proc/self/stat and /proc/stat are not as proc(5) has them")
    }

    fn parse(process: &str, machine: &str, ticks_per_second: f64) -> Option<CpuTime> {
        let sum = |numbers: &mut dyn Iterator<Item = &str>| -> Option<f64> {
            let ticks = numbers.map(str::parse::<u64>).sum::<Result<u64, _>>().ok()?;
            Some(ticks as f64 / ticks_per_second)
        };
        // utime, stime, cutime and cstime, behind a name that may have spaces.
        let (_, process) = process.rsplit_once(')')?;
        let own = sum(&mut process.split_whitespace().skip(11).take(4))?;
        // user, nice and system, then (behind idle and iowait) irq and softirq.
        let mut machine = machine.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let used = sum(&mut machine.by_ref().take(3))?;
        Some(CpuTime { own, machine: used + sum(&mut machine.skip(2).take(2))? })
    }

    /// Returns the time that was used by processes outside of this run.
    pub(crate) fn of_others(&self) -> f64 {
        (self.machine - self.own).max(0.0)
    }
}

impl Sub for CpuTime {
    type Output = CpuTime;

    fn sub(self, before: CpuTime) -> CpuTime {
        CpuTime { own: self.own - before.own, machine: self.machine - before.machine }
    }
}

impl Add for CpuTime {
    type Output = CpuTime;

    fn add(self, other: CpuTime) -> CpuTime {
        CpuTime { own: self.own + other.own, machine: self.machine + other.machine }
    }
}

impl Sum for CpuTime {
    fn sum<I: Iterator<Item = CpuTime>>(times: I) -> CpuTime {
        times.fold(CpuTime::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let process = "7 (a) b) S 1 7 7 0 -1 4194560 1 2 3 4 100 20 3000 400 20 0 1 0";
        let machine = "cpu  1000 200 3000 90000 5 60 7 8 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        let time = CpuTime::parse(process, machine, 100.0).unwrap();
        assert_eq!(time, CpuTime { own: 35.2, machine: 42.67 });
        assert!((time.of_others() - 7.47).abs() < 1e-9);
        assert_eq!(CpuTime::parse("7 (a", machine, 100.0), None);
        assert_eq!(CpuTime::parse(process, "", 100.0), None);
    }

    #[test]
    fn what_this_process_computes_is_its_own() {
        let before = CpuTime::now().unwrap();
        while (CpuTime::now().unwrap() - before).own < 0.05 {
            std::hint::spin_loop();
        }
        assert!((CpuTime::now().unwrap() - before).machine >= 0.03);
    }
}
