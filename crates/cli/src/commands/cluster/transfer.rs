//! `mainstem cluster transfer`: has another node lead a partition.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_client::{Election, ErrorCode, TopicPartition};
use serde_json::json;

use crate::output::{print, print_json};
use crate::target::Target;

/// Arguments of `cluster transfer`.
#[derive(Debug, Args)]
pub(crate) struct Transfer {
    /// The topic.
    topic: String,
    /// The partition's number.
    partition: i32,
    /// The node that is to lead it: one of its replicas.
    node: i32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Makes the node the first of the partition's replicas, and elects that one.
pub(crate) async fn run(transfer: &Transfer) -> Result<()> {
    let Transfer { topic, partition, node, json, target } = transfer;
    let admin = target.connect().await?;
    let partitions = admin.replicas(topic).await?;
    let known = partitions.iter().find(|one| one.partition.index == *partition);
    let known = known.with_context(|| format!("topic {topic} has no partition {partition}"))?;
    let mut replicas = known.partition.replicas.clone();
    if !replicas.contains(node) {
        bail!("node {node} has no replica of {topic}-{partition}; these have: {replicas:?}");
    }
    replicas.retain(|replica| replica != node);
    replicas.insert(0, *node);
    let key = TopicPartition::new(topic.as_str(), *partition);
    if replicas != known.partition.replicas {
        admin.reassign(&BTreeMap::from([(key.clone(), Some(replicas))])).await?;
    }
    let elected = admin.elect_leaders(Election::Preferred, Some(&BTreeSet::from([key.clone()]))).await?;
    let is_new = match elected.into_iter().find(|(one, _)| *one == key).map(|(_, outcome)| outcome) {
        Some(Err(error)) if error.code() == Some(ErrorCode::ELECTION_NOT_NEEDED) => false,
        Some(Err(error)) => return Err(error.into()),
        _ => true,
    };
    if *json {
        return print_json(&json!({
            "topic": topic, "partition": partition, "leader": node, "was_transferred": is_new,
        }));
    }
    print(&match is_new {
        true => format!("node {node} leads {topic}-{partition}"),
        false => format!("node {node} leads {topic}-{partition} already"),
    })
}
