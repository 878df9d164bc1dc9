//! `mainstem topic offsets`: offsets of each partition by time.

use std::collections::BTreeMap;

use anyhow::Result;
use clap::Args;
use mainstem_client::{Isolation, Position, TopicPartition};
use serde_json::{Value, json};

use crate::commands::consume::Start;
use crate::output::{print, print_json, table};
use crate::target::Target;
use crate::topic;

/// Arguments of `topic offsets`.
#[derive(Debug, Args)]
#[command(after_help = "\
The offset for a time is that of the first record with this timestamp or a later one. It is `-` (null in JSON) if all records are
older, or the partition has no leader.")]
pub(crate) struct Offsets {
    /// Name of the topic.
    topic: String,
    /// The place: beginning, end, a time as 2026-11-21T22:00:00Z, or @MS for milliseconds since 1970.
    #[arg(long, value_name = "WHERE", default_value = "end", value_parser = position)]
    at: Position,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

fn position(text: &str) -> Result<Position, String> {
    match text.parse() {
        Ok(Start::Beginning) => Ok(Position::Beginning),
        Ok(Start::End) => Ok(Position::End),
        Ok(Start::Time(ms)) => Ok(Position::Time(ms)),
        _ => Err("expected beginning, end, a time such as 2026-11-21T22:00:00Z, or @MS".to_owned()),
    }
}

/// Prints the offsets.
pub(crate) async fn run(asked: &Offsets) -> Result<()> {
    let admin = asked.target.connect().await?;
    let topic = topic::find(&admin, &asked.topic).await?;
    let sought = topic::led(&topic).into_iter().map(|key| (key, asked.at));
    let mut found = admin.offsets(sought, Isolation::ReadUncommitted).await?;
    for key in topic::partitions(&[topic], &[])? {
        found.entry(key).or_insert(None);
    }
    match asked.json {
        true => print_json(&to_json(&found)),
        false => print(&to_text(&found)),
    }
}

fn to_json(found: &BTreeMap<TopicPartition, Option<i64>>) -> Value {
    let one = |(key, offset): (&TopicPartition, &Option<i64>)| json!({"partition": key.partition, "offset": offset});
    found.iter().map(one).collect()
}

fn to_text(found: &BTreeMap<TopicPartition, Option<i64>>) -> String {
    let row = |(key, offset): (&TopicPartition, &Option<i64>)| {
        let offset = offset.map_or("-".to_owned(), |offset| offset.to_string());
        vec![key.partition.to_string(), offset]
    };
    table(&[">PARTITION", ">OFFSET"], found.iter().map(row).collect())
}
