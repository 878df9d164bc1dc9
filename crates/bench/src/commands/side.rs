//! `mainstem-bench side`: one load on an embedded queue, in a process of its own so that its memory is its own.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use mainstem_bench::SideOptions;
use mainstem_terminal::print;

/// Arguments of `mainstem-bench side`.
#[derive(Debug, Args)]
pub(crate) struct Side {
    /// The load.
    load: String,
    /// Folder for its queues, with nothing else in it.
    directory: PathBuf,
    /// Numbers of the load, by name.
    #[arg(value_name = "NAME=VALUE")]
    numbers: Vec<String>,
}

/// Runs the load and prints what was measured, as one line of JSON.
pub(crate) fn run(side: &Side) -> Result<()> {
    let arguments = std::iter::once(&side.load).chain(&side.numbers).cloned().collect();
    let options = SideOptions { directory: side.directory.clone(), arguments };
    print(&mainstem_bench::run_side(&options)?.to_string())
}
