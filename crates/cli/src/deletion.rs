//! Flags and reports of the commands that delete things by their names.

use anyhow::Result;
use clap::Args;
use mainstem_client::Admin;
use serde_json::{Map, Value, json};

use crate::execution::{Execution, Plan};
use crate::output::{print, print_json, shown};
use crate::target::Target;

/// Arguments of such a command beside the names.
#[derive(Debug, Args)]
pub(crate) struct Deletion {
    /// Do nothing, successfully, for what does not exist.
    #[arg(long)]
    pub(crate) if_exists: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

impl Deletion {
    /// Connects.
    ///
    /// # Errors
    /// When there is no broker.
    pub(crate) async fn connect(&self) -> Result<Admin> {
        self.target.connect().await
    }

    /// Returns true if the deletion is to be carried out, as [`Execution::begin`] does.
    ///
    /// # Errors
    /// When no plan can be made.
    pub(crate) async fn begin(&self, plan: impl Future<Output = Result<Plan>>) -> Result<bool> {
        self.execution.begin(self.json, plan).await
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
            true => format!("deleted {noun} {}", shown(name)),
            false => format!("there is no {noun} {}", shown(name)),
        };
        print(&results.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}
