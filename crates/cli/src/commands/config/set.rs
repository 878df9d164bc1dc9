//! `mainstem config set`.

use anyhow::Result;
use clap::Args;
use serde_json::json;

use crate::configs::{self, Resource, Setting};
use crate::output::{joined, print_json, print_line};
use crate::target::Target;

/// Arguments of `config set`.
#[derive(Debug, Args)]
#[group(id = "changes", required = true, multiple = true, args = ["set", "delete"])]
pub(crate) struct Set {
    /// The resource: topic/NAME, broker/ID, broker (the defaults of all brokers), group/NAME, logger/ID or
    /// client-metrics/NAME.
    #[arg(value_parser = Resource::parse)]
    resource: Resource,
    /// The settings, such as retention.ms=86400000. A list is set as a whole.
    #[arg(value_name = "KEY=VALUE", value_parser = Setting::parse)]
    set: Vec<Setting>,
    /// A setting that goes back to its default; may be given several times.
    #[arg(long, short, value_name = "KEY")]
    delete: Vec<String>,
    /// Set keys of brokers that are not known here, too: those of plug-ins, and of other releases.
    #[arg(long)]
    force: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Changes the settings, all or none.
pub(crate) async fn run(set: &Set) -> Result<()> {
    if !set.force {
        set.resource.check_keys(&set.set)?;
    }
    let admin = set.target.connect().await?;
    configs::alter(&admin, &set.resource, &set.set, &set.delete).await?;
    if set.json {
        let values = Setting::to_json(&set.set, &set.resource);
        return print_json(
            &json!({"resource": set.resource.to_string(), "set": values, "deleted": set.delete}),
        );
    }
    let mut changes: Vec<String> = set.set.iter().map(|setting| setting.to_text(&set.resource)).collect();
    if !set.delete.is_empty() {
        changes.push(format!("back to the default: {}", joined(&set.delete)));
    }
    print_line(&format!("changed {}: {}", set.resource, changes.join("; ")))
}
