//! `mainstem dead-letters purge`.

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::Position;
use serde_json::json;

use super::letters::partitions;
use crate::deletion::Confirmation;
use crate::offsets::{self, Offsets};
use crate::output::{counted, print, print_json};
use crate::topic;

/// What `dead-letters purge` takes.
#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// Name of the topic, such as dlq.GROUP.TOPIC.
    topic: String,
    /// Only letters of this partition of it.
    #[arg(long, short, value_name = "N")]
    partition: Option<i32>,
    /// Only letters before this offset of --partition.
    #[arg(long, value_name = "OFFSET", requires = "partition")]
    before: Option<i64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    confirmation: Confirmation,
}

/// Deletes the letters that are there.
pub(crate) async fn run(purge: &Purge) -> Result<()> {
    let question = || format!("delete the letters of {}?", purge.topic);
    let admin = purge.confirmation.begin(question).await?;
    let topic = topic::find(&admin, &purge.topic).await?;
    let keys = partitions(&topic, purge.partition)?;
    let begins = offsets::find(&admin, &keys, Position::Beginning).await?;
    let mut before: Offsets = offsets::find(&admin, &keys, Position::End).await?;
    if let (Some(wanted), Some((key, end))) = (purge.before, before.iter_mut().next()) {
        if wanted > *end {
            bail!("{key} ends at offset {end}; nothing was deleted");
        }
        *end = wanted;
    }
    let count: i64 = before.iter().map(|(key, end)| (end - begins.get(key).unwrap_or(end)).max(0)).sum();
    admin.delete_records(&before).await?;
    match purge.json {
        true => print_json(&json!({"topic": purge.topic, "deleted": count})),
        false => {
            let letters = counted(u64::try_from(count).unwrap_or(0), "letter");
            print(&format!("deleted {letters} of {}", purge.topic))
        }
    }
}
