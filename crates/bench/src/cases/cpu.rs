//! CPU time over a part of a run, by who used it.

use std::time::Duration;

use anyhow::Result;

use super::Measured;
use crate::process;

/// The least that /proc tells: one tick.
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
        Ok(Self {
            broker: process::cpu_time(broker)?,
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

    /// Adds what that many messages in that time used.
    pub(crate) fn add_figures(&self, measured: &mut Measured, messages: f64, seconds: f64) {
        let others = self.machine.saturating_sub(self.broker + self.driver);
        measured.add([
            // A load so small that the broker used no tick counts as one tick.
            ("messages_per_cpu_s", messages / self.broker.as_secs_f64().max(TICK)),
            ("driver_cpus", self.driver.as_secs_f64() / seconds),
            ("other_cpus", others.as_secs_f64() / seconds),
        ]);
    }
}
