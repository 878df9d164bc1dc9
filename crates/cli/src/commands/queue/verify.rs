//! `mainstem queue verify`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_queue::Directory;
use serde_json::json;

use crate::output::{counted, print, print_json, print_line};

/// Arguments of `queue verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Checks the control file, every batch (length, CRC, order of offsets) and every index entry. Nothing is changed. Processes
that append and read meanwhile are not held up.")]
pub(crate) struct Verify {
    /// Directory of the queue.
    dir: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Verifies the queue.
pub(crate) fn run(verify: &Verify) -> Result<()> {
    let found = mainstem_queue::verify(&verify.dir)?;
    let faults: Vec<String> = found.all_faults().collect();
    let batches: u64 = found.segments.iter().map(|segment| segment.batches).sum();
    let next = found.segments.last().map_or(0, |segment| segment.next_offset);
    match verify.json {
        true => print_json(&json!({"segments": found.segments.len(), "batches": batches, "next": next,
            "synced": found.synced, "faults": faults}))?,
        false => {
            for fault in &faults {
                print(fault)?;
            }
            let segments = counted(found.segments.len() as u64, "segment");
            print_line(&format!("{segments}, {}, up to offset {next}", counted(batches, "batch")))?;
        }
    }
    let remedy = match Directory::inspect(&verify.dir).log_directory() {
        Some(_) => {
            "it is within a broker's log directory, so that no queue may be written there; copy it elsewhere"
        }
        None => "`mainstem queue repair` cuts the queue at the first one",
    };
    match faults.len() as u64 {
        0 => Ok(()),
        count => bail!("{} found; {remedy}", counted(count, "fault")),
    }
}
