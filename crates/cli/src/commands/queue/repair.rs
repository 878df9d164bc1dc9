//! `mainstem queue repair`.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use mainstem_queue::Options;
use serde_json::json;

use crate::output::{counted, print, print_json};

/// What `queue repair` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
What follows the first damage is deleted: copy the directory before if it may be of use. End all processes that have the
queue open.")]
pub(crate) struct Repair {
    /// Directory of the queue.
    dir: PathBuf,
    /// Segment size where the queue's own rules are lost: 64 KiB to 1 GiB.
    #[arg(long, default_value_t = 64 << 20, value_name = "BYTES")]
    segment_bytes: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Repairs the queue.
pub(crate) fn run(repair: &Repair) -> Result<()> {
    let options = Options::new().segment_bytes(repair.segment_bytes);
    let repaired = mainstem_queue::repair(&repair.dir, &options)?;
    if repair.json {
        return print_json(&json!({"next": repaired.next_offset, "lost": repaired.lost,
            "control_rebuilt": repaired.control_rebuilt}));
    }
    let lost = match repaired.lost {
        0 => "no message is known to be lost".to_owned(),
        lost => format!("{} lost", counted(lost, "message")),
    };
    let control = if repaired.control_rebuilt { "; the control file was made anew" } else { "" };
    print(&format!("the queue goes on at offset {}; {lost}{control}", repaired.next_offset))
}
