//! The report of a folder of runs: SUMMARY.md and plots, made from the JSON alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::markdown;
use crate::plots;
use crate::results::Results;
use crate::summary::{Summary, summarize};

/// Reads the runs of a folder and writes `SUMMARY.md` and `plots/` into it.
///
/// # Errors
/// If the folder contains no runs, or a file that is none, or cannot be written.
pub fn report(folder: &Path) -> Result<Summary> {
    let results = Results::read(folder)?;
    let mut summary = summarize(&results);
    let charts = folder.join("plots");
    fs::create_dir_all(&charts).with_context(|| format!("{} cannot be made", charts.display()))?;
    for cell in &mut summary.cells {
        for (name, chart) in plots::charts_of(&results.runs, &cell.workload, &cell.durability) {
            chart.write(&charts, &name)?;
            cell.plots.push(name);
        }
    }
    let path = folder.join("SUMMARY.md");
    fs::write(&path, markdown::page(&summary))
        .with_context(|| format!("{} cannot be written", path.display()))?;
    Ok(summary)
}
