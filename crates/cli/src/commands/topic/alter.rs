//! `mainstem topic alter`.

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::configs::{self, Resource, Setting};
use crate::output::{counted, joined, print_json, print_line};
use crate::target::Target;
use crate::topic;

/// Arguments of `topic alter`.
#[derive(Debug, Args)]
#[group(id = "changes", required = true, multiple = true, args = ["partitions", "set", "delete_config"])]
pub(crate) struct Alter {
    /// Name of the topic.
    topic: String,
    /// The new number of partitions, more than now. Keys may go to other partitions than before.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// A setting of the topic, such as retention.ms=86400000; may be given several times.
    #[arg(long, visible_alias = "config", short, visible_short_alias = 'c', value_name = "KEY=VALUE", value_parser = Setting::parse)]
    set: Vec<Setting>,
    /// A setting that goes back to its default; may be given several times.
    #[arg(long, short, value_name = "KEY")]
    delete_config: Vec<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Alters the topic. Settings come first, as a mistake there is more likely.
pub(crate) async fn run(alter: &Alter) -> Result<()> {
    let admin = alter.target.connect().await?;
    topic::find(&admin, &alter.topic).await?;
    if !alter.set.is_empty() || !alter.delete_config.is_empty() {
        configs::alter(&admin, &Resource::topic(&alter.topic), &alter.set, &alter.delete_config).await?;
    }
    if let Some(count) = alter.partitions {
        let created = admin.create_partitions(&alter.topic, count).await;
        created.with_context(|| match alter.set.is_empty() {
            true => "no partition was added".to_owned(),
            false => "the settings were changed, but no partition was added".to_owned(),
        })?;
    }
    report(alter)
}

fn report(alter: &Alter) -> Result<()> {
    if alter.json {
        return print_json(&json!({
            "topic": alter.topic,
            "partitions": alter.partitions,
            "set": Setting::to_json(&alter.set, &Resource::topic(&alter.topic)),
            "deleted": alter.delete_config,
        }));
    }
    let mut changes = Vec::new();
    if let Some(count) = alter.partitions {
        changes.push(format!("{} now", counted(count.unsigned_abs().into(), "partition")));
    }
    let resource = Resource::topic(&alter.topic);
    changes.extend(alter.set.iter().map(|setting| setting.to_text(&resource)));
    if !alter.delete_config.is_empty() {
        changes.push(format!("back to the default: {}", joined(&alter.delete_config)));
    }
    print_line(&format!("altered topic {}: {}", alter.topic, changes.join("; ")))
}
