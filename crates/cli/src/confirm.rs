//! The question before something goes for good.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result, bail};

/// Asks a person at a terminal; scripts are not asked, nor is whoever said `--yes`.
///
/// # Errors
/// When the answer is not yes.
pub(crate) fn confirm(yes: bool, question: impl FnOnce() -> String) -> Result<()> {
    if yes || !io::stdin().is_terminal() {
        return Ok(());
    }
    eprint!("{} [y/N] ", question());
    io::stderr().flush().context("the question cannot be asked")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => bail!("nothing was deleted"),
    }
}
