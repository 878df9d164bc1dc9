//! Bounds on what tests measure: latency beside a load, CPU time at rest, time until a waiter is woken.
//!
//! A test measures such a figure and does not judge it, since its verdict must not depend on how busy the machine is. It prints a line
//! `figure: NAME VALUE`; less is better, and most figures are ratios of two times of one run. This runs those tests on a quiet machine and
//! compares the median of several runs with what is recorded, times the factor that the record permits.

mod measure;
mod record;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use self::measure::measure;
use self::record::Record;
use crate::machine;

/// Options of `mainstem-bench bounds`.
#[derive(Debug)]
pub struct BoundsOrder {
    /// Test programs by their names in the record.
    pub programs: BTreeMap<String, PathBuf>,
    /// The file of recorded bounds.
    pub record: PathBuf,
    /// Only tests whose names contain this.
    pub only: String,
    /// Runs of each test, of which the median counts.
    pub runs: usize,
    /// True to record the medians, instead of comparing them.
    pub update: bool,
    /// True to measure on a busy machine as well.
    pub force: bool,
}

/// A figure of a test beside what is recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct Bound {
    /// The test, as its program names it.
    pub test: String,
    /// The figure.
    pub figure: String,
    /// The median of the runs; none if the test does not measure it any more.
    pub median: Option<f64>,
    /// The bound; none if it is not recorded.
    pub max: Option<f64>,
}

impl Bound {
    /// True if it is beyond its bound, or is not both measured and recorded.
    pub fn is_failure(&self) -> bool {
        !matches!((self.median, self.max), (Some(median), Some(max)) if median <= max)
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(text, "{} {}: ", self.test, self.figure)?;
        match (self.median, self.max) {
            (Some(median), Some(max)) if median <= max => write!(text, "{median:.3}, at most {max:.3}"),
            (Some(median), Some(max)) => write!(text, "{median:.3} IS MORE THAN {max:.3}"),
            (Some(median), None) => write!(text, "{median:.3} IS NOT RECORDED"),
            (None, _) => write!(text, "RECORDED, AND NOT MEASURED"),
        }
    }
}

/// Runs the tests of the record, and compares what they measure with it or records it.
///
/// # Errors
/// If the record cannot be read or written, the machine is busy, a program is not named, or a test fails.
pub fn run_bounds(order: &BoundsOrder, mut say: impl FnMut(&Bound)) -> Result<Vec<Bound>> {
    let text =
        fs::read_to_string(&order.record).with_context(|| format!("read {}", order.record.display()))?;
    let mut record = Record::parse(&text).with_context(|| format!("in {}", order.record.display()))?;
    let mut bounds = Vec::new();
    let tests = record.tests_with(&order.only);
    ensure!(!tests.is_empty(), "no test of {} has {:?} in its name", order.record.display(), order.only);
    for (program, test) in tests {
        let path = order.programs.get(&program);
        let path =
            path.with_context(|| format!("{test} is a test of {program}: say where that is by --program"))?;
        let quiet = || if order.force { Ok(()) } else { machine::wait_until_quiet() };
        let medians = measure(path, &test, order.runs, quiet)?;
        if order.update {
            record.update(&program, &test, &medians);
        }
        let judged = record.judge(&program, &test, &medians);
        judged.iter().for_each(&mut say);
        bounds.extend(judged);
    }
    if order.update {
        let path = &order.record;
        fs::write(path, record.to_string()).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(bounds)
}
