//! `mainstem log verify`.

mod findings;
mod index;
mod partition;
mod segment;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::disk::{PartitionDir, find_partitions, losses_of};
use crate::output::{counted, print, print_json};

use findings::Findings;

/// Arguments of `log verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Checks that all segments of the last orderly stop exist, every batch (length, CRC, records, order of offsets and epochs), every
index entry, the leader epochs, the producer snapshots and the topic id. Nothing is changed. While a broker writes to the
directory, the end of a partition may look cut off.")]
pub(crate) struct Verify {
    /// A data directory, or the directory of one partition.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Verifies the directories.
pub(crate) fn run(verify: &Verify) -> Result<()> {
    let mut partitions = Vec::new();
    for dir in &verify.dirs {
        partitions.extend(find_partitions(dir)?);
    }
    let bar = progress(&partitions);
    let mut findings = Findings::default();
    for partition in &partitions {
        bar.set_message(name(&partition.path));
        partition::check(partition, &mut findings, &mut |bytes| bar.inc(bytes))?;
    }
    for dir in &verify.dirs {
        for (path, what) in losses_of(dir)? {
            findings.fault(&path, None, format!("since the last orderly stop records are missing: {what}"));
        }
    }
    bar.finish_and_clear();
    match verify.json {
        true => print_json(&findings.to_json())?,
        false => print(&findings.to_text())?,
    }
    match findings.faults.len() as u64 {
        0 => Ok(()),
        faults => bail!("{} found", counted(faults, "fault")),
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn progress(partitions: &[PartitionDir]) -> ProgressBar {
    let lengths =
        partitions.iter().flat_map(|p| &p.logs).map(|log| log.path.metadata().map_or(0, |m| m.len()));
    let template = "{bar:30} {bytes}/{total_bytes} ({bytes_per_sec}, {eta} left) {msg}";
    let style = ProgressStyle::with_template(template).expect("the template is constant");
    ProgressBar::new(lengths.sum()).with_style(style)
}
