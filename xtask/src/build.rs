//! All that is compiled before the first test runs.
//!
//! The product is built once, in the release profile and with the features that users get; whatever runs the broker runs this
//! binary. Test programs and examples are built in the dev profile.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::nextest::Nextest;
use crate::workspace;

/// Examples that tests or README.md run, and the program that loads the broker while its instructions are counted.
const EXAMPLES: [&str; 5] = ["letters", "lockstep", "orders", "stream_lag", "trades"];

/// A cargo command at the root of the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(workspace::cargo());
    command.args(arguments).current_dir(workspace::root());
    command
}

/// Runs a cargo command, which has to succeed.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let status = cargo(arguments).status().context("start cargo")?;
    ensure!(status.success(), "cargo {} ended with {status}", arguments.join(" "));
    Ok(())
}

/// The broker and its tools, exactly as the first command of README.md builds them.
pub(crate) fn product() -> Result<()> {
    if std::env::var_os("MAINSTEM_BINARY").is_some() {
        println!("the broker is {}, and is not built", workspace::product().display());
        return Ok(());
    }
    run(&["build", "--release"])
}

/// The examples that are run.
pub(crate) fn examples() -> Result<()> {
    let mut arguments = vec!["build", "--workspace"];
    arguments.extend(EXAMPLES.iter().flat_map(|name| ["--example", name]));
    run(&arguments)
}

/// The examples, and the test programs, whose number is returned.
pub(crate) fn tests() -> Result<usize> {
    examples()?;
    Nextest::install()?.build()
}
