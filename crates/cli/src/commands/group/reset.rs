//! `mainstem group reset`: sets the offsets at which a group continues.

mod file;
mod plan;

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, ErrorCode, TopicPartition};
use serde_json::{Value, json};

use super::topic_partitions::{TopicPartitions, resolve};
use crate::execution::Execution;
use crate::failure::advised;
use crate::offsets::Offsets;
use crate::output::{counted, print, print_json, shown, table};
use crate::target::Target;
use crate::{duration, timestamp};
use plan::{Planned, To};

/// Arguments of `group reset`.
#[derive(Debug, Args)]
pub(crate) struct Reset {
    /// Name of the group. One that does not exist comes to be by its first offset.
    group: String,
    /// A topic, or some partitions of it as TOPIC:0,1; may come several times.
    #[arg(long = "topic", short, value_name = "TOPIC[:PARTITIONS]", conflicts_with = "from_file",
        required_unless_present_any = ["all_topics", "from_file"])]
    topics: Vec<TopicPartitions>,
    /// Every partition in which the group has an offset.
    #[arg(long, conflicts_with_all = ["topics", "from_file"])]
    all_topics: bool,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    execution: Execution,
    /// Only show the offsets, as without --execute.
    #[arg(long, conflicts_with = "execute")]
    dry_run: bool,
    /// Print TOPIC,PARTITION,OFFSET lines, as --from-file reads them.
    #[arg(long, conflicts_with = "json")]
    export: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The new offset. One that a partition does not have any more, or not yet, counts as its first or its last one.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Place {
    /// The first existing record.
    #[arg(long)]
    to_earliest: bool,
    /// Behind the last record.
    #[arg(long)]
    to_latest: bool,
    /// The offset that the group has; behind the last record where it has none.
    #[arg(long)]
    to_current: bool,
    /// This offset.
    #[arg(long, value_name = "OFFSET", allow_negative_numbers = true, value_parser = clap::value_parser!(i64).range(0..))]
    to_offset: Option<i64>,
    /// The group's offset plus so many records, or minus if negative.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    shift_by: Option<i64>,
    /// The first record at or after a time such as 2026-11-21T22:00:00Z; UTC unless it says otherwise.
    #[arg(long, value_name = "TIME", value_parser = timestamp::argument)]
    to_datetime: Option<i64>,
    /// The first record of the last hour for PT1H, of the last day and a half for P1DT12H.
    #[arg(long, value_name = "DURATION", value_parser = duration::argument)]
    by_duration: Option<i64>,
    /// The offsets that a file names: a line TOPIC,PARTITION,OFFSET each.
    #[arg(long, value_name = "FILE")]
    from_file: Option<PathBuf>,
}

impl Place {
    fn to(&self) -> Result<To> {
        Ok(match self {
            Place { to_offset: Some(offset), .. } => To::Offset(*offset),
            Place { shift_by: Some(count), .. } => To::ShiftBy(*count),
            Place { to_datetime: Some(ms), .. } => To::Time(*ms),
            Place { by_duration: Some(ms), .. } => To::Time(timestamp::now_ms().saturating_sub(*ms)),
            Place { from_file: Some(path), .. } => To::Each(file::read(path)?),
            Place { to_earliest: true, .. } => To::Earliest,
            Place { to_latest: true, .. } => To::Latest,
            Place { .. } => To::Current,
        })
    }
}

/// Shows the changes, and makes them with --execute.
pub(crate) async fn run(reset: &Reset) -> Result<()> {
    let to = reset.place.to()?;
    let admin = reset.target.connect().await?;
    let committed = inactive(&admin, &reset.group).await?;
    let partitions = partitions(&admin, reset, &to, &committed).await?;
    let planned = plan::plan(&admin, &to, &partitions, &committed).await?;
    if reset.execution.execute {
        let offsets = planned.iter().map(|one| (one.partition.clone(), one.new)).collect();
        let set = admin.set_group_offsets(&reset.group, &offsets).await;
        set.map_err(|error| advised(error, advice))?;
    }
    match reset {
        Reset { json: true, .. } => print_json(&to_json(reset, &planned)),
        Reset { export: true, .. } => print(&file::write(&planned)),
        _ => print(&to_text(reset, &planned)),
    }
}

/// Advice about a refusal.
fn advice(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::UNKNOWN_MEMBER_ID | ErrorCode::STALE_MEMBER_EPOCH => {
            Some("the group has got members meanwhile; stop them, then try again")
        }
        _ => None,
    }
}

/// The offsets of a group without members. Members would continue from their positions, and commit over the new offsets.
async fn inactive(admin: &Admin, group: &str) -> Result<Offsets> {
    match admin.describe_group(group).await? {
        Some(found) if !found.members.is_empty() || found.state != "Empty" => bail!(
            "group {group} is in use (state {}, {}); stop its members first, `mainstem group describe {group}` shows \
             them",
            found.state,
            counted(found.members.len() as u64, "member")
        ),
        _ => Ok(admin.group_offsets(group).await?),
    }
}

async fn partitions(
    admin: &Admin,
    reset: &Reset,
    to: &To,
    committed: &Offsets,
) -> Result<BTreeSet<TopicPartition>> {
    if let To::Each(offsets) = to {
        return Ok(offsets.keys().cloned().collect());
    }
    if !reset.all_topics {
        return resolve(admin, &reset.topics).await;
    }
    if committed.is_empty() {
        bail!("group {} has no offsets; name the topics that it is to read with --topic", reset.group);
    }
    Ok(committed.keys().cloned().collect())
}

fn to_json(reset: &Reset, planned: &[Planned]) -> Value {
    let one = |planned: &Planned| {
        json!({
            "topic": &*planned.partition.topic,
            "partition": planned.partition.partition,
            "current_offset": planned.current,
            "new_offset": planned.new,
            "note": planned.note,
        })
    };
    json!({
        "group": reset.group,
        "executed": reset.execution.execute,
        "offsets": planned.iter().map(one).collect::<Value>(),
    })
}

fn to_text(reset: &Reset, planned: &[Planned]) -> String {
    let count = counted(planned.len() as u64, "partition");
    let said = match reset.execution.execute {
        true => format!("reset group {} in {count}", shown(&reset.group)),
        false => {
            format!(
                "nothing was changed: --execute sets these offsets of group {} in {count}",
                shown(&reset.group)
            )
        }
    };
    format!("{}\n\n{said}", as_table(planned))
}

fn as_table(planned: &[Planned]) -> String {
    let row = |planned: &Planned| {
        vec![
            planned.partition.topic.to_string(),
            planned.partition.partition.to_string(),
            planned.current.map_or("-".to_owned(), |offset| offset.to_string()),
            planned.new.to_string(),
            planned.note.unwrap_or_default().to_owned(),
        ]
    };
    table(&["TOPIC", ">PARTITION", ">CURRENT", ">NEW", "NOTE"], planned.iter().map(row).collect())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn a_line_per_partition() {
        let key = |partition| TopicPartition::new("orders", partition);
        let planned =
            |partition, current, new, note| Planned { partition: key(partition), current, new, note };
        let planned =
            [planned(0, Some(90), 100, None), planned(1, None, 1000, Some("the partition begins here"))];
        expect![[r#"
            TOPIC   PARTITION  CURRENT   NEW  NOTE
            orders          0       90   100
            orders          1        -  1000  the partition begins here"#]]
        .assert_eq(&as_table(&planned));
    }
}
