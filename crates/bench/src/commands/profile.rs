//! `mainstem-bench profile`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use mainstem_bench::{Durability, ProfileOrder, System, Tool, Workload};
use serde_json::json;

use crate::commands::settings::{LengthArguments, SystemArguments};
use mainstem_terminal::{print, print_json};

/// Arguments of `mainstem-bench profile`.
#[derive(Debug, Args)]
pub(crate) struct ProfileArguments {
    /// A load (`mainstem-bench list`).
    #[arg(value_name = "NAME", default_value = "small-msg-saturate", value_parser = Workload::parse)]
    workload: Workload,
    /// The system under load.
    #[arg(long, value_name = "NAME", default_value = "mainstem", value_parser = System::parse)]
    system: System,
    /// The tool that observes the broker: strace, perf-stat, perf-record.
    #[arg(long, value_name = "NAME", default_value = "strace", value_parser = tool)]
    tool: Tool,
    /// Place of a record at which it counts as written: page cache, or disk.
    #[arg(long, value_name = "NAME", default_value = "page-cache", value_parser = Durability::parse)]
    durability: Durability,
    #[command(flatten)]
    length: LengthArguments,
    /// Folder for the tool's output.
    #[arg(long, value_name = "DIR", default_value = "target/bench-profile")]
    out: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    systems_at: SystemArguments,
}

/// Runs the load under the tool and prints what it saw.
pub(crate) fn run(profile: &ProfileArguments) -> Result<()> {
    let order = ProfileOrder {
        system: profile.system,
        workload: profile.workload,
        durability: profile.durability,
        tool: profile.tool,
        extent: profile.length.extent(),
        out: profile.out.clone(),
    };
    let seen = mainstem_bench::profile(&order, &profile.systems_at.settings()?)?;
    match profile.json {
        true => print_json(&json!(seen)),
        false => print(&seen.to_string()),
    }
}

fn tool(name: &str) -> Result<Tool> {
    let found = Tool::ALL.into_iter().find(|tool| tool.name() == name);
    found.with_context(|| {
        format!("there is no tool {name}: take one of {}", Tool::ALL.map(Tool::name).join(", "))
    })
}
