//! `mainstem transaction find-hanging`.

use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use mainstem_client::{Admin, Topic, TopicPartition};

use super::open::{self, Open};
use crate::output::{print, print_json};
use crate::target::Target;
use crate::{timestamp, topic};

/// Arguments of `transaction find-hanging`.
#[derive(Debug, Args)]
#[command(after_help = "\
A transaction hangs if it is open in a partition and unknown to all coordinators. Consumers of committed records cannot pass it,
and neither can compaction. `mainstem transaction abort` ends it.")]
pub(crate) struct FindHanging {
    /// Only partitions that this node leads.
    #[arg(long, value_name = "ID")]
    broker_id: Option<i32>,
    /// Only this topic. [default: all]
    #[arg(long, short, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only this partition of the topic; may be given several times.
    #[arg(long, short, value_name = "N", requires = "topic")]
    partition: Vec<i32>,
    /// The longest that a transaction may be open, in minutes, as transaction.max.timeout.ms of the brokers.
    /// Transactions with a later write are skipped.
    #[arg(long, value_name = "MINUTES", default_value_t = 15)]
    max_transaction_timeout: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Finds the transactions.
pub(crate) async fn run(asked: &FindHanging) -> Result<()> {
    let admin = asked.target.connect().await?;
    let latest = timestamp::now_ms() - i64::from(asked.max_transaction_timeout) * 60_000;
    let mut hanging: Vec<Open> = Vec::new();
    for partition in partitions(&admin, asked).await? {
        for open in open::find(&admin, &partition).await? {
            if open.producer.last_timestamp_ms <= latest && open.owner(&admin).await?.is_none() {
                hanging.push(open);
            }
        }
    }
    match (asked.json, hanging.is_empty()) {
        (true, _) => print_json(&hanging.iter().map(Open::to_json).collect()),
        (false, true) => print("no transaction hangs"),
        (false, false) => print(&open::as_table(&hanging)),
    }
}

/// The partitions to search. Without names these are the ones with a leader.
async fn partitions(admin: &Admin, asked: &FindHanging) -> Result<Vec<TopicPartition>> {
    let topics = match &asked.topic {
        Some(name) => vec![topic::find(admin, name).await?],
        None => admin.topics().await?,
    };
    if !asked.partition.is_empty() {
        return topic::partitions(&topics, &asked.partition);
    }
    let led = |topic: Arc<Topic>| {
        let by = |leader: Option<i32>| {
            leader.is_some() && (asked.broker_id.is_none() || leader == asked.broker_id)
        };
        let found = topic.partitions.iter().filter(|partition| by(partition.leader));
        found.map(|one| TopicPartition::new(topic.name.clone(), one.index)).collect::<Vec<_>>()
    };
    Ok(topics.into_iter().flat_map(led).collect())
}
