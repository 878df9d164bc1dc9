//! CPU time over a part of a run, by who used it.

use std::time::Duration;

use anyhow::Result;

use super::Measured;
use crate::process;

/// The resolution of CPU times in /proc: one tick.
const TICK: f64 = 0.01;

/// CPU time of the broker, of this process with the tools that it ran, and of the whole machine.
#[derive(Debug)]
pub(crate) struct CpuTimes {
    broker: Duration,
    driver: Duration,
    machine: Duration,
}

impl CpuTimes {
    pub(crate) fn sample(broker: u32) -> Result<Self> {
        Ok(Self { broker: process::cpu_time(broker)?, ..Self::before_broker()? })
    }

    /// Samples the CPU time of several nodes together.
    pub(crate) fn sample_all(nodes: &[u32]) -> Result<Self> {
        let times = nodes.iter().map(|node| process::cpu_time(*node)).collect::<Result<Vec<_>>>()?;
        Ok(Self { broker: times.iter().sum(), ..Self::before_broker()? })
    }

    /// Samples the CPU time before the broker's process begins.
    pub(crate) fn before_broker() -> Result<Self> {
        Ok(Self {
            broker: Duration::ZERO,
            driver: process::cpu_time_with_children(std::process::id())?,
            machine: process::machine_cpu_time()?,
        })
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            broker: self.broker.saturating_sub(before.broker),
            driver: self.driver.saturating_sub(before.driver),
            machine: self.machine.saturating_sub(before.machine),
        }
    }

    pub(crate) fn broker_s(&self) -> f64 {
        self.broker.as_secs_f64()
    }

    /// Adds the CPU that was used for that many messages in that time.
    pub(crate) fn add_figures(&self, measured: &mut Measured, messages: f64, seconds: f64) {
        // A load so small that the broker used no tick counts as one tick.
        measured.add([("messages_per_cpu_s", messages / self.broker.as_secs_f64().max(TICK))]);
        self.add_circumstances(measured, seconds);
    }

    /// Adds the number of CPUs that the driver and others used in that time.
    pub(crate) fn add_circumstances(&self, measured: &mut Measured, seconds: f64) {
        let others = self.machine.saturating_sub(self.broker + self.driver);
        measured.add([
            ("driver_cpus", self.driver.as_secs_f64() / seconds),
            ("other_cpus", others.as_secs_f64() / seconds),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_neither_the_broker_nor_the_driver_used_is_of_others() {
        let times = |broker, driver, machine| CpuTimes {
            broker: Duration::from_millis(broker),
            driver: Duration::from_millis(driver),
            machine: Duration::from_millis(machine),
        };
        let mut measured = Measured::default();
        times(1_500, 700, 9_600).since(&times(500, 200, 7_600)).add_circumstances(&mut measured, 2.0);
        let expected = [("driver_cpus", 0.25), ("other_cpus", 0.25)];
        assert_eq!(measured.figures, Measured::of(expected).figures);
    }
}
