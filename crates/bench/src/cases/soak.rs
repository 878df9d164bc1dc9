//! A load at 80 % of saturation for long, beside clients that come, go, stall and die. Memory has to stay flat, no client may see an error,
//! and nothing may be lost.

use anyhow::{Context, Result};

use super::load::{LoadOrder, measure};
use super::{Case, Measured, load};
use crate::broker::{DEFAULT_HEAP_MIB, Launch, Running};
use crate::load::Keeps;
use crate::load::visitors::Visitors;
use crate::results::Samples;
use crate::workload::{Acks, LoadShape, Pace};

/// The part of the saturated load's throughput at which it runs.
const PART: f64 = 0.8;
/// Old segments have to go while the load runs.
const SETTINGS: [&str; 1] = ["log.retention.check.interval.ms=5000"];
/// Memory is compared between these parts of the run: when it has settled, and at the end.
const SETTLED: (f64, f64) = (0.2, 0.3);
const END: (f64, f64) = (0.9, 1.0);

pub(super) fn run(case: &Case<'_>, saturated: LoadShape) -> Result<Measured> {
    let full = load::run(case, saturated, DEFAULT_HEAP_MIB).context("finding the saturation")?;
    let messages_per_s = full.figures.get("messages_per_s").copied().unwrap_or_default();
    let per_s = (PART * messages_per_s / f64::from(saturated.producers)).max(1.0) as u32;
    let shape = LoadShape { pace: Pace::Rate { per_s }, acks: Acks::All, idempotent: true, ..saturated };
    let launch = Launch { settings: &SETTINGS, ..case.launch() };
    let broker = Running::start_ready(case.environment, launch)?;
    let visitors = Visitors::start(broker.address, case.durability)?;
    let order = LoadOrder { shape, window: case.extent.soak, keeps: Keeps::Recent };
    let mut measured = measure(case, &broker, order)?;
    let visits =
        visitors.finish().with_context(|| format!("the broker's last lines:\n{}", broker.log_tail()))?;
    broker.stop()?;
    let growth = growth(&measured.samples);
    measured.add([("visits", visits as f64), ("messages_per_s_of_saturation", messages_per_s)]);
    measured.figures.extend(growth.map(|mib| ("vm_rss_growth_mib".to_owned(), mib)));
    Ok(measured)
}

/// Growth of the memory from the time when it had settled to the end of a run, in MiB.
fn growth(samples: &Samples) -> Option<f64> {
    Some(mean_within(samples, END)? - mean_within(samples, SETTLED)?)
}

/// The mean of the samples of a part of the run.
fn mean_within(samples: &Samples, (begin, end): (f64, f64)) -> Option<f64> {
    let count = samples.rss_mib.len() as f64;
    let within = &samples.rss_mib[(begin * count) as usize..(end * count) as usize];
    (!within.is_empty()).then(|| within.iter().sum::<f64>() / within.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_of_the_end_over_the_settled_part() {
        let of = |rss_mib: Vec<f64>| growth(&Samples { rss_mib, ..Samples::default() });
        let mut memory = vec![10.0; 100];
        memory[..20].fill(3.0);
        assert_eq!(of(memory.clone()), Some(0.0));
        memory[90..].fill(12.5);
        assert_eq!(of(memory), Some(2.5));
        assert_eq!(of(vec![1.0]), None);
    }
}
