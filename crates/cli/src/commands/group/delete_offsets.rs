//! `mainstem group delete-offsets`.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::offset_delete_request::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};
use serde_json::{Value, json};

use super::topic_partitions::{TopicPartitions, resolve};
use crate::client::check_message;
use crate::cluster::Cluster;
use crate::output::{counted, print, print_json, table};
use crate::target::Target;

/// What `group delete-offsets` takes.
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
    target: Target,
}

/// Deletes the offsets.
pub(crate) fn run(delete: &DeleteOffsets) -> Result<()> {
    let mut cluster = delete.target.connect()?;
    let partitions = resolve(&mut cluster, &delete.topics)?;
    cluster.retrying(|cluster| request(cluster, &delete.group, &partitions))?;
    report(&delete.group, &partitions, delete.json)
}

fn request(cluster: &mut Cluster, group: &str, partitions: &BTreeSet<(String, i32)>) -> Result<()> {
    let mut topics: Vec<OffsetDeleteRequestTopic<'_>> = Vec::new();
    for (name, partition_index) in partitions {
        if topics.last().is_none_or(|topic| topic.name != *name) {
            topics.push(OffsetDeleteRequestTopic { name: name.into(), partitions: Vec::new() });
        }
        let partition = OffsetDeleteRequestPartition { partition_index: *partition_index };
        topics.last_mut().expect("it was just pushed").partitions.push(partition);
    }
    let request = OffsetDeleteRequest { group_id: group.into(), topics };
    let coordinator = cluster.find_coordinator(group)?;
    let response = cluster.node(coordinator)?.call(&request)?;
    check_message(response.error_code, advice(response.error_code), || {
        format!("cannot delete offsets of group {group}")
    })?;
    for topic in &response.topics {
        for partition in &topic.partitions {
            check_message(partition.error_code, advice(partition.error_code), || {
                format!(
                    "cannot delete the offset of group {group} in {}-{}",
                    topic.name, partition.partition_index
                )
            })?;
        }
    }
    Ok(())
}

/// What a person can do about a refusal.
fn advice(code: i16) -> Option<&'static str> {
    match ErrorCode::from(code) {
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

fn report(group: &str, partitions: &BTreeSet<(String, i32)>, json: bool) -> Result<()> {
    if json {
        let one = |(topic, partition): &(String, i32)| json!({"topic": topic, "partition": partition});
        return print_json(
            &json!({"group": group, "deleted": partitions.iter().map(one).collect::<Value>()}),
        );
    }
    let row = |(topic, partition): &(String, i32)| vec![topic.clone(), partition.to_string()];
    let rows = table(&["TOPIC", ">PARTITION"], partitions.iter().map(row).collect());
    let count = counted(partitions.len() as u64, "partition");
    print(&format!("group {group} has no offset any more in {count}\n\n{rows}"))
}
