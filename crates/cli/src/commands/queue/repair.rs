//! `mainstem queue repair`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use mainstem_queue::{Options, Repaired};
use serde_json::{Value, json};

use crate::execution::{Execution, Plan};
use crate::output::{counted, print_json, print_line};

/// Arguments of `queue repair`.
#[derive(Debug, Args)]
#[command(after_help = "\
All messages behind the first damage are deleted: copy the directory before, if they may be of use. End all processes that have
the queue open. Partitions of a broker are refused, also while it does not run: it repairs its partitions when it starts.")]
pub(crate) struct Repair {
    /// Directory of the queue.
    dir: PathBuf,
    /// Segment size where the queue's own rules are lost: 64 KiB to 1 GiB.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    segment_bytes: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
}

/// Shows the cut, and repairs the queue with --execute.
pub(crate) async fn run(repair: &Repair) -> Result<()> {
    if !repair.execution.begin(repair.json, plan(repair)).await? {
        return Ok(());
    }
    let options = Options::new().segment_bytes(repair.segment_bytes);
    let repaired = mainstem_queue::repair(&repair.dir, &options)?;
    if repair.json {
        return print_json(&to_json(&repaired));
    }
    let control = if repaired.control_rebuilt { "; the control file was made again" } else { "" };
    print_line(&format!(
        "the queue continues at offset {}; {}{control}",
        repaired.next_offset,
        lost(&repaired)
    ))
}

async fn plan(repair: &Repair) -> Result<Plan> {
    let planned = mainstem_queue::plan_repair(&repair.dir)?;
    let control = if planned.control_rebuilt { "; the control file would be made again" } else { "" };
    let text = format!(
        "{}: the queue would continue at offset {}; {}{control}",
        repair.dir.display(),
        planned.next_offset,
        lost(&planned)
    );
    Ok(Plan { text, json: to_json(&planned) })
}

fn lost(repaired: &Repaired) -> String {
    match repaired.lost {
        0 => "no message is known to be lost".to_owned(),
        lost => format!("{} lost", counted(lost, "message")),
    }
}

fn to_json(repaired: &Repaired) -> Value {
    json!({"next": repaired.next_offset, "lost": repaired.lost, "control_rebuilt": repaired.control_rebuilt})
}
