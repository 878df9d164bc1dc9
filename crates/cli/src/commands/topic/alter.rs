//! `mainstem topic alter`.

use anyhow::{Context, Result};
use clap::Args;
use mainstem_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use serde_json::{Map, Value, json};

use crate::client::check_message;
use crate::cluster::Cluster;
use crate::configs::{self, Resource, Setting};
use crate::output::{counted, joined, print, print_json};
use crate::target::Target;

const TIMEOUT_MS: i32 = 30_000;

/// What `topic alter` takes.
#[derive(Debug, Args)]
#[group(id = "changes", required = true, multiple = true, args = ["partitions", "set", "delete_config"])]
pub(crate) struct Alter {
    /// Name of the topic.
    topic: String,
    /// The new number of partitions, more than now. Keys may go to other partitions than before.
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// A setting of the topic, such as retention.ms=86400000; may be given several times.
    #[arg(long, short, value_name = "KEY=VALUE", value_parser = Setting::parse)]
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

/// Alters the topic: settings first, for a mistake there is more likely.
pub(crate) fn run(alter: &Alter) -> Result<()> {
    let mut cluster = alter.target.connect()?;
    cluster.topic(&alter.topic)?;
    if !alter.set.is_empty() || !alter.delete_config.is_empty() {
        configs::alter(&mut cluster, &Resource::topic(&alter.topic), &alter.set, &alter.delete_config)?;
    }
    if let Some(count) = alter.partitions {
        create_partitions(alter, count, &mut cluster).with_context(|| match alter.set.is_empty() {
            true => "no partition was added".to_owned(),
            false => "the settings were changed, but no partition was added".to_owned(),
        })?;
    }
    report(alter)
}

fn create_partitions(alter: &Alter, count: i32, cluster: &mut Cluster) -> Result<()> {
    let request = CreatePartitionsRequest {
        topics: vec![CreatePartitionsTopic {
            name: alter.topic.as_str().into(),
            count,
            assignments: None,
            ..Default::default()
        }],
        timeout_ms: TIMEOUT_MS,
        ..Default::default()
    };
    cluster.retrying(|cluster| {
        let response = cluster.any()?.call(&request)?;
        let result = response.results.first().context("the broker left out the topic")?;
        check_message(result.error_code, result.error_message.as_deref(), || {
            format!("cannot give {} {count} partitions", alter.topic)
        })
    })
}

fn report(alter: &Alter) -> Result<()> {
    if alter.json {
        let set: Map<String, Value> =
            alter.set.iter().map(|setting| (setting.key.clone(), setting.value.clone().into())).collect();
        return print_json(&json!({
            "topic": alter.topic,
            "partitions": alter.partitions,
            "set": set,
            "deleted": alter.delete_config,
        }));
    }
    let mut changes = Vec::new();
    if let Some(count) = alter.partitions {
        changes.push(format!("{} now", counted(count.unsigned_abs().into(), "partition")));
    }
    changes.extend(alter.set.iter().map(|setting| format!("{}={}", setting.key, setting.value)));
    if !alter.delete_config.is_empty() {
        changes.push(format!("back to the default: {}", joined(&alter.delete_config)));
    }
    print(&format!("altered topic {}: {}", alter.topic, changes.join("; ")))
}
