//! `mainstem-bench run`.

use std::iter;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::{Args, ValueEnum};
use mainstem_bench::{Cell, Durability, Extent, Order, Selection, Summary, System, Workload};
use serde_json::json;

use crate::commands::settings::{LengthArguments, SystemArguments, seconds};
use mainstem_terminal::{counted, print, print_json, table};

/// Arguments of `mainstem-bench run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Runs are interleaved between the systems, each on a fresh data directory. Raw runs (JSON), SUMMARY.md and plots go to
--out. Exit code 1 if a run failed. A full comparison takes hours; a first look, in a minute:
  mainstem-bench run small-msg-saturate --runs 1 --warmup 2 --window 3 --durability page-cache --out /tmp/bench")]
pub(crate) struct Run {
    /// Names of workloads or families (`mainstem-bench list`), or `all`.
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Measure this broker beside Mainstem and the probe.
    #[arg(long, value_enum)]
    peer: Option<Peer>,
    /// Measure exactly these: kafka, mainstem, mainstem-same, mainstem-split, probe, chronicle, mainstem-queue.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = System::parse, conflicts_with = "peer")]
    systems: Vec<System>,
    /// Number of measurements of each system.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1000))]
    runs: u32,
    /// Places of a record at which it counts as written: page cache, or disk.
    #[arg(
        long, value_name = "LIST", value_delimiter = ',', default_value = "page-cache,fsync",
        value_parser = Durability::parse
    )]
    durability: Vec<Durability>,
    #[command(flatten)]
    length: LengthArguments,
    /// Records of a run with Kafka's own tools.
    #[arg(long, value_name = "N", default_value_t = Extent::default().records, value_parser = clap::value_parser!(u64).range(4..))]
    records: u64,
    /// Data of a broker that is killed before a start, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = Extent::default().killed_mib)]
    killed_mib: u64,
    /// Measured time of a soak, in seconds.
    #[arg(long, value_name = "SECONDS", default_value = "900", value_parser = seconds)]
    soak: Duration,
    /// Data on the disk for slow consumers, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = Extent::default().cold_mib, value_parser = clap::value_parser!(u64).range(16..))]
    cold_mib: u64,
    /// Folder for the results; it has to be empty. [default: bench/results/DATE-N-cores]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Fill the memory with pages of a file before each run, so that none has to get it from the host of a virtual machine
    /// while it is measured. Takes as much disk as there is memory.
    #[arg(long)]
    fill_memory: bool,
    /// Measure although the machine is busy.
    #[arg(long)]
    force: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    systems_at: SystemArguments,
}

/// A broker that is measured beside ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Peer {
    /// Apache Kafka 4.3.0.
    Kafka,
    /// Chronicle Queue 5.27ea11, beside the embedded queue.
    Chronicle,
}

/// Makes the runs and the report.
pub(crate) fn run(run: &Run) -> Result<()> {
    let order = run.order()?;
    let summary = mainstem_bench::run(&order, &run.systems_at.settings()?)?;
    let out = &order.out;
    match run.json {
        true => print_json(&json!({ "out": out, "summary": summary }))?,
        false => {
            print(&summary_text(&summary))?;
            print(&format!("raw runs, SUMMARY.md and plots are in {}", out.display()))?;
        }
    }
    let failed = summary.failed.len();
    ensure!(
        failed == 0,
        "{} failed: {} says why",
        counted(failed as u64, "run"),
        out.join("SUMMARY.md").display()
    );
    Ok(())
}

impl Run {
    fn order(&self) -> Result<Order> {
        let mut workloads: Vec<Workload> = Vec::new();
        for name in &self.names {
            workloads.extend(Workload::select(name)?);
        }
        // In the order of the list, and none twice.
        let workloads = Workload::all().iter().copied().filter(|workload| workloads.contains(workload));
        let selection = Selection {
            systems: self.chosen_systems(),
            workloads: workloads.collect(),
            durabilities: self.durability.clone(),
            rounds: self.runs as usize,
        };
        let extent = Extent {
            records: self.records,
            killed_mib: self.killed_mib,
            soak: self.soak,
            cold_mib: self.cold_mib,
            ..self.length.extent()
        };
        let out = self.out.clone().unwrap_or_else(mainstem_bench::default_out);
        Ok(Order { selection, extent, out, force: self.force, fill_memory: self.fill_memory })
    }

    fn chosen_systems(&self) -> Vec<System> {
        match (self.systems.is_empty(), self.peer) {
            (false, _) => self.systems.clone(),
            (true, Some(Peer::Kafka)) => vec![System::Kafka, System::Mainstem, System::Probe],
            (true, Some(Peer::Chronicle)) => vec![System::Chronicle, System::Queue],
            (true, None) => vec![System::Mainstem, System::Probe, System::Queue],
        }
    }
}

/// Returns the medians of each cell, and the verdicts on the goals.
fn summary_text(summary: &Summary) -> String {
    let cells = summary.cells.iter().map(|cell| {
        let columns: Vec<String> =
            cell.systems.iter().map(|system| format!(">{}", system.to_uppercase())).collect();
        let columns: Vec<&str> = iter::once("MEDIAN").chain(columns.iter().map(String::as_str)).collect();
        let mut text =
            format!("{}, {}\n{}\n", cell.workload, cell.durability, table(&columns, medians(cell)));
        for goal in &cell.goals {
            let verdict = if goal.is_reached { "reached" } else { "missed" };
            text.push_str(&format!("goal {verdict}: {} ({}, {:.3})\n", goal.goal, goal.system, goal.value));
        }
        text
    });
    cells.collect::<Vec<_>>().join("\n")
}

fn medians(cell: &Cell) -> Vec<Vec<String>> {
    let rows = cell.rows.iter().filter(|row| row.is_of_system);
    rows.map(|row| {
        let medians = row.values.iter().map(|spread| {
            spread.map_or_else(String::new, |spread| format!("{:.*}", row.digits, spread.median))
        });
        iter::once(row.title.to_owned()).chain(medians).collect()
    })
    .collect()
}
