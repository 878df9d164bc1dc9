//! The rule of all commands that destroy records or positions: without `--execute` they show what they would do, and do nothing.
//! It is the same at a terminal and in a script; no question is asked.

use anyhow::Result;
use clap::Args;
use serde_json::{Value, json};

use crate::output::{print, print_json};

/// The flag of such a command.
#[derive(Debug, Args)]
pub(crate) struct Execution {
    /// Do it. Without it the command shows what it would do, and does nothing.
    #[arg(long, short = 'y', visible_alias = "yes")]
    pub(crate) execute: bool,
}

/// The effect that a command would have.
pub(crate) struct Plan {
    /// Text for people.
    pub(crate) text: String,
    /// JSON object for programs.
    pub(crate) json: Value,
}

impl Execution {
    /// Returns true if the command is to be carried out. If not, the plan is made and shown; with `--execute` none is made.
    ///
    /// # Errors
    /// When no plan can be made.
    pub(crate) async fn begin(
        &self,
        is_json: bool,
        plan: impl Future<Output = Result<Plan>>,
    ) -> Result<bool> {
        if self.execute {
            return Ok(true);
        }
        let Plan { text, mut json } = plan.await?;
        if is_json {
            json["executed"] = json!(false);
            print_json(&json)?;
        } else {
            print(&format!("{text}\n\nnothing was changed: --execute does it"))?;
        }
        Ok(false)
    }
}
