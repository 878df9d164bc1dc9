//! `mainstem man`: the manual, as pages that `man` shows.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_mangen::Man;

use crate::output::{counted, print_line, written};

/// Arguments of `man`.
#[derive(Debug, Args)]
pub(crate) struct Manual {
    /// Write a page for each command into this directory, such as ~/.local/share/man/man1. [default: print the page
    /// of mainstem itself; `mainstem man | man -l -` shows it]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints a page, or writes all.
pub(crate) fn run(manual: &Manual, command: Command) -> Result<()> {
    let Some(dir) = &manual.dir else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        return io::stdout().lock().write_all(&page).map_err(written);
    };
    let pages = count(&command);
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("the pages cannot be written to {}", dir.display()))?;
    print_line(&format!("{} in {}", counted(pages, "page"), dir.display()))
}

/// The number of pages: one for the command, and one for each visible command below it.
fn count(command: &Command) -> u64 {
    let shown = |below: &&Command| below.get_name() != "help" && !below.is_hide_set();
    1 + command.get_subcommands().filter(shown).map(count).sum::<u64>()
}
