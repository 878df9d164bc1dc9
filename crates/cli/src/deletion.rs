//! What the commands share that delete things by their names.

use std::io::{self, IsTerminal, Write};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_client::Admin;
use serde_json::{Map, Value, json};

use crate::output::{print, print_json};
use crate::target::Target;

/// What such a command takes beside the names.
#[derive(Debug, Args)]
pub(crate) struct Deletion {
    /// Do nothing, successfully, for what does not exist.
    #[arg(long)]
    pub(crate) if_exists: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// What every command takes that asks before it deletes.
#[derive(Debug, Args)]
pub(crate) struct Confirmation {
    /// Do not ask for confirmation on a terminal.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    target: Target,
}

impl Confirmation {
    /// Connects, then asks a person at a terminal; scripts are not asked, nor is a person who said `--yes`.
    ///
    /// # Errors
    /// When there is no broker, or the answer is not yes.
    pub(crate) async fn begin(&self, question: impl FnOnce() -> String) -> Result<Admin> {
        let admin = self.target.connect().await?;
        if self.yes || !io::stdin().is_terminal() {
            return Ok(admin);
        }
        eprint!("{} [y/N] ", question());
        io::stderr().flush().context("the question cannot be asked")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("the answer cannot be read")?;
        match answer.trim() {
            "y" | "Y" | "yes" => Ok(admin),
            _ => bail!("nothing was deleted"),
        }
    }
}

impl Deletion {
    /// Connects, and asks as [`Confirmation::begin`] does.
    ///
    /// # Errors
    /// When there is no broker, or the answer is not yes.
    pub(crate) async fn begin(&self, question: impl FnOnce() -> String) -> Result<Admin> {
        self.confirmation.begin(question).await
    }

    /// Says what became of each: it was deleted, or it was not there. `noun` is what they are.
    pub(crate) fn report(&self, noun: &str, results: &[(&str, bool)]) -> Result<()> {
        if self.json {
            let line = |(name, deleted): &(&str, bool)| {
                Map::from_iter([(noun.to_owned(), json!(name)), ("deleted".to_owned(), json!(deleted))])
            };
            return print_json(&results.iter().map(line).collect::<Value>());
        }
        let line = |(name, deleted): &(&str, bool)| match deleted {
            true => format!("deleted {noun} {name}"),
            false => format!("there is no {noun} {name}"),
        };
        print(&results.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}
