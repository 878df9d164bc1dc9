//! `mainstem group delete-offsets`.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use mainstem_client::{Admin, ErrorCode, TopicPartition};
use serde_json::{Value, json};

use super::topic_partitions::{TopicPartitions, resolve};
use crate::execution::{Execution, Plan};
use crate::failure::advised;
use crate::output::{counted, print, print_json, shown, table};
use crate::target::Target;

/// Arguments of `group delete-offsets`.
#[derive(Debug, Args)]
pub(crate) struct DeleteOffsets {
    /// Name of the group.
    group: String,
    /// A topic, or some partitions of it as TOPIC:0,1; may come several times.
    #[arg(long = "topic", short, required = true, value_name = "TOPIC[:PARTITIONS]")]
    topics: Vec<TopicPartitions>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

/// Deletes the offsets.
pub(crate) async fn run(delete: &DeleteOffsets) -> Result<()> {
    let admin = delete.target.connect().await?;
    let partitions = resolve(&admin, &delete.topics).await?;
    if !delete.execution.begin(delete.json, plan(&admin, &delete.group, &partitions)).await? {
        return Ok(());
    }
    let deleted = admin.delete_group_offsets(&delete.group, &partitions).await;
    deleted.map_err(|error| advised(error, advice))?;
    report(&delete.group, &partitions, delete.json)
}

/// The partitions with the offsets that the group has there.
async fn plan(admin: &Admin, group: &str, partitions: &BTreeSet<TopicPartition>) -> Result<Plan> {
    let committed = admin.group_offsets(group).await?;
    let offset = |key: &TopicPartition| committed.get(key).copied();
    let row = |key: &TopicPartition| {
        let offset = offset(key).map_or("-".to_owned(), |offset| offset.to_string());
        vec![key.topic.to_string(), key.partition.to_string(), offset]
    };
    let one = |key: &TopicPartition| json!({"topic": &*key.topic, "partition": key.partition, "offset": offset(key)});
    let rows = table(&["TOPIC", ">PARTITION", ">OFFSET"], partitions.iter().map(row).collect());
    let text = format!("these offsets of group {} would be deleted:\n\n{rows}", shown(group));
    let offsets: Value = partitions.iter().map(one).collect();
    Ok(Plan { text, json: json!({"group": group, "offsets": offsets}) })
}

/// Advice about a refusal.
fn advice(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::GROUP_ID_NOT_FOUND => {
            Some("there is no such group, `mainstem group list` shows those that are")
        }
        ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC => {
            Some("members of the group read the topic; stop them first, `mainstem group describe` shows them")
        }
        ErrorCode::NON_EMPTY_GROUP => Some(
            "it has members whose topics are not known; stop them first, `mainstem group describe` shows them",
        ),
        _ => None,
    }
}

fn report(group: &str, partitions: &BTreeSet<TopicPartition>, json: bool) -> Result<()> {
    if json {
        let one = |key: &TopicPartition| json!({"topic": &*key.topic, "partition": key.partition});
        return print_json(
            &json!({"group": group, "deleted": partitions.iter().map(one).collect::<Value>()}),
        );
    }
    let row = |key: &TopicPartition| vec![key.topic.to_string(), key.partition.to_string()];
    let rows = table(&["TOPIC", ">PARTITION"], partitions.iter().map(row).collect());
    let count = counted(partitions.len() as u64, "partition");
    print(&format!("group {} has no offset any more in {count}\n\n{rows}", shown(group)))
}
