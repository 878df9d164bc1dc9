//! `mainstem-bench report`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;

use mainstem_terminal::{counted, print, print_json};

/// Arguments of `mainstem-bench report`.
#[derive(Debug, Args)]
pub(crate) struct Report {
    /// A folder of runs, as `mainstem-bench run` writes it.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Makes the report and says where it is.
pub(crate) fn run(report: &Report) -> Result<()> {
    let summary = mainstem_bench::report(&report.dir)?;
    if report.json {
        return print_json(&json!({ "out": report.dir, "summary": summary }));
    }
    let plots = summary.cells.iter().map(|cell| cell.plots.len() as u64).sum();
    print(&format!(
        "{} and {} of {}",
        report.dir.join("SUMMARY.md").display(),
        counted(plots, "plot"),
        counted(summary.cells.len() as u64, "cell"),
    ))
}
