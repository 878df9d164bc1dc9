//! Counting by callgrind: instructions of a process, or within one function of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace;

/// valgrind, and the folder for its counts.
pub(super) struct Callgrind {
    valgrind: PathBuf,
    /// Also for logs.
    pub(super) dir: PathBuf,
}

impl Callgrind {
    /// valgrind on PATH, if it is there.
    pub(super) fn find() -> Option<Callgrind> {
        let valgrind = workspace::find_program("valgrind")?;
        let dir = workspace::root().join("target/counts");
        // The files of the last run. If there are none, nothing needs to be removed.
        let _ = fs::remove_dir_all(&dir);
        Some(Callgrind { valgrind, dir })
    }

    /// A program to be counted, in all of it or within the functions of a name only. Its environment is empty: what it
    /// holds would move the stack, and may change what the program does.
    pub(super) fn command(&self, program: &Path, within: Option<&str>, out: &Path) -> Result<Command> {
        fs::create_dir_all(&self.dir).with_context(|| format!("create {}", self.dir.display()))?;
        let mut command = Command::new(&self.valgrind);
        command.env_clear().args(["--tool=callgrind", "--quiet"]);
        command.arg(format!("--callgrind-out-file={}", out.display()));
        if let Some(function) = within {
            command.arg(format!("--toggle-collect=*{function}*"));
        }
        command.arg(program);
        Ok(command)
    }

    /// Returns the file for the counts of a name.
    pub(super) fn out(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{}.callgrind", name.replace('/', "-")))
    }
}

/// All instructions in a file of callgrind's.
pub(super) fn total(out: &Path) -> Result<u64> {
    let text =
        fs::read_to_string(out).with_context(|| format!("callgrind has not written {}", out.display()))?;
    parse_total(&text).with_context(|| format!("{} has no total", out.display()))
}

fn parse_total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_found() {
        let text = "version: 1\nevents: Ir\nsummary: 17\n\nfn=(1) main\n0 17\n\ntotals: 17\n";
        assert_eq!(parse_total(text), Some(17));
        assert_eq!(parse_total("events: Ir\n"), None);
    }
}
