//! `mainstem topic delete-records`: deletes records from the beginning of partitions.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, ErrorCode, Position, TopicPartition};
use serde_json::{Value, json};

use crate::commands::consume::Start;
use crate::execution::{Execution, Plan};
use crate::failure::advised;
use crate::offsets::{self, Offsets};
use crate::output::{counted, print, print_json, shown, table};
use crate::target::Target;
use crate::topic;

/// Arguments of `topic delete-records`.
#[derive(Debug, Args)]
#[command(after_help = "\
Records are deleted from the beginning of a partition (its low watermark rises), never from between others. Records written
meanwhile stay. Without --execute the command shows which records it would delete. Times are those of the records' timestamps.")]
pub(crate) struct DeleteRecords {
    /// Name of the topic.
    topic: String,
    /// Only this partition; may be given several times. [default: all]
    #[arg(long, short, value_name = "N")]
    partition: Vec<i32>,
    /// Delete records before this: an offset, a time as 2026-11-21T22:00:00Z, @MS for milliseconds since 1970, end
    /// for all records, or -N for all but the last N of each partition.
    #[arg(long, value_name = "WHERE", value_parser = before, allow_hyphen_values = true)]
    before: Start,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

fn before(text: &str) -> Result<Start, String> {
    match text.parse() {
        Ok(Start::Beginning) => {
            Err("nothing is before the beginning; name an offset, a time or end".to_owned())
        }
        Ok(start) => Ok(start),
        Err(_) => {
            Err("expected an offset such as 42, a time such as 2026-11-21T22:00:00Z, @MS, end, or -N"
                .to_owned())
        }
    }
}

/// The records of a partition to delete: from its first offset to before another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    earliest: i64,
    before: i64,
}

impl Cut {
    fn records(self) -> u64 {
        u64::try_from(self.before - self.earliest).unwrap_or(0)
    }
}

/// The cut of each chosen partition.
type Cuts = BTreeMap<TopicPartition, Cut>;

/// Shows the records, and deletes them if that is asked for.
pub(crate) async fn run(delete: &DeleteRecords) -> Result<()> {
    let admin = delete.target.connect().await?;
    let cuts = find(&admin, delete).await?;
    if !delete.execution.begin(delete.json, async { Ok(plan(delete, &cuts)) }).await? {
        return Ok(());
    }
    let wanted: Offsets = cuts
        .iter()
        .filter(|(_, cut)| cut.records() > 0)
        .map(|(key, cut)| (key.clone(), cut.before))
        .collect();
    if !wanted.is_empty() {
        admin.delete_records(&wanted).await.map_err(|error| advised(error, advice))?;
    }
    let count = counted(cuts.values().map(|cut| cut.records()).sum(), "record");
    match delete.json {
        true => print_json(&to_json(delete, &cuts, true)),
        false => print(&format!("deleted up to {count} of {}", shown(&delete.topic))),
    }
}

/// Finds the cut of each partition.
///
/// # Errors
/// If a partition is missing, or ends before the offset.
async fn find(admin: &Admin, delete: &DeleteRecords) -> Result<Cuts> {
    let found = topic::find(admin, &delete.topic).await?;
    let keys = topic::partitions(&[found], &delete.partition)?;
    let earliest = offsets::find(admin, &keys, Position::Beginning).await?;
    let latest = offsets::find(admin, &keys, Position::End).await?;
    let at_time = match delete.before {
        Start::Time(ms) => offsets::find(admin, &keys, Position::Time(ms)).await?,
        _ => Offsets::new(),
    };
    let mut cuts = Cuts::new();
    for key in keys {
        let end = |offsets: &Offsets| offsets.get(&key).copied().unwrap_or(0);
        let (earliest, latest) = (end(&earliest), end(&latest));
        let before = match delete.before {
            Start::Offset(offset) if offset > latest => bail!(
                "{key} ends at offset {latest}, before {offset}; nothing was deleted; name an offset up to {latest}, or \
                 --partition N for another partition"
            ),
            Start::Offset(offset) => offset,
            Start::BeforeEnd(count) => latest.saturating_sub(count),
            Start::Time(_) => at_time.get(&key).copied().unwrap_or(latest),
            Start::End => latest,
            Start::Beginning => earliest,
        };
        cuts.insert(key, Cut { earliest, before: before.max(earliest) });
    }
    Ok(cuts)
}

fn plan(delete: &DeleteRecords, cuts: &Cuts) -> Plan {
    let count = cuts.values().map(|cut| cut.records()).sum();
    let row = |(key, cut): (&TopicPartition, &Cut)| {
        let numbers = [cut.before - cut.earliest, cut.earliest, cut.before].map(|number| number.to_string());
        [key.partition.to_string()].into_iter().chain(numbers).collect()
    };
    let topic = shown(&delete.topic);
    let text = match count {
        0 => format!("{topic} has no records to delete"),
        _ => {
            let rows = table(&[">PARTITION", ">RECORDS", ">FROM", ">BEFORE"], cuts.iter().map(row).collect());
            format!("{} of {topic} would be deleted:\n\n{rows}", counted(count, "record"))
        }
    };
    Plan { text, json: to_json(delete, cuts, false) }
}

fn to_json(delete: &DeleteRecords, cuts: &Cuts, executed: bool) -> Value {
    let one = |(key, cut): (&TopicPartition, &Cut)| {
        json!({
            "partition": key.partition,
            "records": cut.records(),
            "from": cut.earliest,
            "before": cut.before,
        })
    };
    json!({"topic": delete.topic, "partitions": cuts.iter().map(one).collect::<Value>(), "executed": executed})
}

/// Advice about a refusal.
fn advice(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::POLICY_VIOLATION => Some(
            "its cleanup.policy is compact alone, where the last record of each key stays; add delete to it by \
             `mainstem topic alter`, or write records without a value",
        ),
        ErrorCode::INVALID_TOPIC_EXCEPTION => {
            Some("it is one of the brokers' own topics, whose records stay")
        }
        ErrorCode::OFFSET_OUT_OF_RANGE => Some("the partition does not have the offset any more; look again"),
        _ => None,
    }
}
