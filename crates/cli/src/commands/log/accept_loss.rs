//! `mainstem log accept-loss`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_log::segment_record::ACCEPT_LOSS;
use serde_json::json;

use crate::disk::losses_of;
use crate::output::{print, print_json};

/// Arguments of `log accept-loss`.
#[derive(Debug, Args)]
#[command(after_help = "\
A partition is offline if some of its segments are missing, or shorter than after the last orderly stop. Put them back, or run this
command to serve the partition without them. The next start then serves it, and its log names the missing segments. This counts
once, and for the segments that are missing now.")]
pub(crate) struct AcceptLoss {
    /// Directories of partitions, such as ./mainstem-data/orders-0.
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Records that the losses in the directories are accepted. Each must have a loss.
pub(crate) fn run(accept: &AcceptLoss) -> Result<()> {
    let mut losses = Vec::new();
    for dir in &accept.dirs {
        let Some((_, what)) = losses_of(dir)?.into_iter().next() else {
            bail!("nothing is missing in {}: there is nothing to accept", dir.display());
        };
        losses.push((dir, what));
    }
    losses.iter().try_for_each(|(dir, _)| accept_in(dir))?;
    match accept.json {
        true => {
            let accepted = losses.iter().map(|(dir, what)| json!({ "dir": dir, "missing": what }));
            print_json(&json!({ "accepted": accepted.collect::<Vec<_>>() }))
        }
        false => print(&losses.iter().map(|(dir, what)| line(dir, what)).collect::<String>()),
    }
}

fn line(dir: &Path, what: &str) -> String {
    format!("{}: the next start serves it without what is missing: {what}\n", dir.display())
}

fn accept_in(dir: &Path) -> Result<()> {
    let path = dir.join(ACCEPT_LOSS);
    let written = fs::create_dir_all(dir).and_then(|()| fs::write(&path, b""));
    written.with_context(|| format!("cannot write {}", path.display()))
}
