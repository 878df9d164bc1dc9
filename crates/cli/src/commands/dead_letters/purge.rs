//! `mainstem dead-letters purge`.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, TopicPartition};
use serde_json::{Value, json};

use super::letters::{Chosen, Letter, read_before};
use crate::execution::{Execution, Plan};
use crate::offsets::Offsets;
use crate::output::{counted, print_json, print_line, table};
use crate::target::Target;

/// Arguments of `dead-letters purge`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command first reads every record that it would delete. If one is no letter, it deletes nothing, whatever the name of the
topic. A letter names its topic, partition and offset in headers (__dlq.errors.*). Records written meanwhile stay.")]
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
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

/// The letters to delete.
struct Found {
    /// The end of each partition, exclusive: letters before it are deleted.
    ends: Offsets,
    /// The first offset and the count in each partition that has some.
    letters: BTreeMap<TopicPartition, (i64, u64)>,
}

/// Shows the letters, and deletes them if that is asked for.
pub(crate) async fn run(purge: &Purge) -> Result<()> {
    let admin = purge.target.connect().await?;
    let found = find(&admin, purge).await?;
    if !purge.execution.begin(purge.json, async { Ok(plan(purge, &found)) }).await? {
        return Ok(());
    }
    admin.delete_records(&found.ends).await?;
    let count = found.count();
    match purge.json {
        true => print_json(&json!({"topic": purge.topic, "deleted": count})),
        false => print_line(&format!("deleted {} of {}", counted(count, "letter"), purge.topic)),
    }
}

/// Reads all letters to delete.
///
/// # Errors
/// If one of the records is no letter.
async fn find(admin: &Admin, purge: &Purge) -> Result<Found> {
    let chosen = Chosen { topic: purge.topic.clone(), partition: purge.partition, offset: None };
    let mut letters = BTreeMap::new();
    let count = |letter: Letter| {
        if letter.noted().is_some() {
            return Ok(true);
        }
        let record = &letter.record;
        if letter.source().is_none() {
            bail!(
                "{} is not a topic of dead letters alone: the record at offset {} of {} names no topic, partition and offset \
                 that it comes from; nothing was deleted; purge what precedes it (--partition and --before), or delete the \
                 topic by `mainstem topic delete`",
                purge.topic,
                record.offset,
                record.partition
            );
        }
        let (_, count) = letters.entry(record.partition.clone()).or_insert((record.offset, 0));
        *count += 1;
        Ok(true)
    };
    let ends = read_before(admin, purge.target.config()?, &chosen, purge.before, count).await?;
    Ok(Found { ends, letters })
}

impl Found {
    fn count(&self) -> u64 {
        self.letters.values().map(|(_, count)| count).sum()
    }
}

fn plan(purge: &Purge, found: &Found) -> Plan {
    let (mut rows, mut json) = (Vec::new(), Vec::new());
    for (key, (from, count)) in &found.letters {
        let before = found.ends.get(key).copied().unwrap_or(*from);
        let numbers = [count.to_string(), from.to_string(), before.to_string()];
        rows.push([key.partition.to_string()].into_iter().chain(numbers).collect());
        json.push(json!({"partition": key.partition, "letters": count, "from": from, "before": before}));
    }
    let count = found.count();
    let text = match count {
        0 => format!("{} has no letters to delete", purge.topic),
        _ => {
            let rows = table(&[">PARTITION", ">LETTERS", ">FROM", ">BEFORE"], rows);
            format!("{} of {} would be deleted:\n\n{rows}", counted(count, "letter"), purge.topic)
        }
    };
    Plan { text, json: json!({"topic": purge.topic, "letters": count, "partitions": Value::from(json)}) }
}
