//! `mainstem completions`: a script by which a shell completes the commands.

use std::io;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output::written;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell. In bash: `source <(mainstem completions bash)`; others have a directory for it.
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(completions: &Completions, mut command: Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut command, "mainstem", &mut script);
    io::Write::write_all(&mut io::stdout().lock(), &script).map_err(written)
}
