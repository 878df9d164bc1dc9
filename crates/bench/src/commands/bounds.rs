//! `mainstem-bench bounds`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::Args;
use mainstem_bench::{Bound, BoundsOrder, run_bounds};
use mainstem_terminal::{print, print_json};
use serde_json::json;

/// Arguments of `mainstem-bench bounds`.
#[derive(Debug, Args)]
pub(crate) struct Bounds {
    /// A test program of the record, and where it is.
    #[arg(long = "program", value_name = "NAME=PATH", value_parser = program)]
    programs: Vec<(String, PathBuf)>,
    /// The record.
    #[arg(long, value_name = "FILE", default_value = "bench/bounds.txt")]
    record: PathBuf,
    /// Only tests that have this in their names.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    only: String,
    /// Runs of each test, of which the median counts.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    runs: u16,
    /// Record what is measured, instead of comparing.
    #[arg(long)]
    update: bool,
    /// Measure on a busy machine as well.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Measures, and fails if a figure is beyond its bound.
pub(crate) fn run(bounds: &Bounds) -> Result<()> {
    let order = BoundsOrder {
        programs: bounds.programs.iter().cloned().collect::<BTreeMap<_, _>>(),
        record: bounds.record.clone(),
        only: bounds.only.clone(),
        runs: usize::from(bounds.runs),
        update: bounds.update,
        force: bounds.force,
    };
    // An error of printing, such as a closed pipe, is returned at the end.
    let mut printed = Ok(());
    let found = run_bounds(&order, |bound| {
        if !bounds.json && printed.is_ok() {
            printed = print(&bound.to_string());
        }
    })?;
    printed?;
    if bounds.json {
        print_json(&found.iter().map(describe).collect())?;
    }
    let beyond = found.iter().filter(|bound| bound.is_failure()).count();
    ensure!(
        beyond == 0,
        "{beyond} of {} figures are not within what {} permits",
        found.len(),
        order.record.display()
    );
    Ok(())
}

fn describe(bound: &Bound) -> serde_json::Value {
    json!({
        "test": bound.test,
        "figure": bound.figure,
        "median": bound.median,
        "max": bound.max,
        "is_failure": bound.is_failure(),
    })
}

fn program(text: &str) -> Result<(String, PathBuf)> {
    let (name, path) = text.split_once('=').context("a program is given as NAME=PATH")?;
    Ok((name.to_owned(), PathBuf::from(path)))
}
