//! `mainstem group lag`: the lag of each group.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use mainstem_client::{Admin, GroupListing, TopicPartition};
use serde_json::{Map, Value, json};

use super::latest::latest_offsets;
use crate::offsets::Offsets;
use crate::output::{print, print_json, table};
use crate::target::Target;

/// Arguments of `group lag`.
#[derive(Debug, Args)]
#[command(after_help = "\
The lag is the sum of the records between committed offsets and the ends of partitions; the largest comes first. A partition has
no lag if the group has committed nothing in it, its topic is gone, or it has no leader. The last two are counted under UNKNOWN.
Brokers do not report committed offsets of share groups.")]
pub(crate) struct Lag {
    /// Only these groups. [default: all]
    groups: Vec<String>,
    /// A row for each topic of a group.
    #[arg(long)]
    by_topic: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The partitions of a group, or of a group in one topic, with their lag.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Behind {
    group: String,
    state: String,
    /// None in a row for all topics.
    topic: Option<Arc<str>>,
    partitions: usize,
    /// Partitions whose end is unknown.
    unknown: usize,
    /// None if it is unknown of all partitions.
    lag: Option<i64>,
}

/// Shows the lag of the groups.
pub(crate) async fn run(asked: &Lag) -> Result<()> {
    let admin = asked.target.connect().await?;
    let groups = chosen(&admin, &asked.groups).await?;
    let mut committed = Vec::new();
    for group in groups {
        let offsets = admin.group_offsets(&group.group_id).await?;
        committed.push((group, offsets));
    }
    let keys: BTreeSet<TopicPartition> =
        committed.iter().flat_map(|(_, offsets)| offsets.keys().cloned()).collect();
    let latest = latest_offsets(&admin, &keys).await?;
    let mut rows: Vec<Behind> = committed
        .iter()
        .flat_map(|(group, offsets)| behind(group, offsets, &latest, asked.by_topic))
        .collect();
    rows.sort_by_key(|row| Reverse(row.lag));
    match (asked.json, rows.is_empty()) {
        (true, _) => print_json(&rows.iter().map(Behind::to_json).collect()),
        (false, true) => print("no group has committed an offset"),
        (false, false) => print(&as_table(&rows, asked.by_topic)),
    }
}

/// The named groups, or all.
///
/// # Errors
/// If one that is named is missing.
async fn chosen(admin: &Admin, names: &[String]) -> Result<Vec<GroupListing>> {
    let mut groups = admin.groups().await?;
    for name in names {
        if !groups.iter().any(|group| group.group_id == *name) {
            anyhow::bail!("there is no group {name}; `mainstem group list` shows those that are");
        }
    }
    groups.retain(|group| names.is_empty() || names.contains(&group.group_id));
    Ok(groups)
}

/// The rows of a group; none if it has committed nothing.
fn behind(group: &GroupListing, committed: &Offsets, latest: &Offsets, by_topic: bool) -> Vec<Behind> {
    let mut rows: BTreeMap<Option<Arc<str>>, Behind> = BTreeMap::new();
    for (key, offset) in committed {
        let topic = by_topic.then(|| key.topic.clone());
        let row = rows.entry(topic.clone()).or_insert_with(|| Behind {
            group: group.group_id.clone(),
            state: group.state.clone(),
            topic,
            partitions: 0,
            unknown: 0,
            lag: None,
        });
        row.partitions += 1;
        match latest.get(key) {
            Some(latest) => {
                let lag = latest.saturating_sub(*offset).max(0);
                row.lag = Some(row.lag.unwrap_or(0).saturating_add(lag));
            }
            None => row.unknown += 1,
        }
    }
    rows.into_values().collect()
}

impl Behind {
    fn to_json(&self) -> Value {
        let mut json = Map::from_iter([
            ("group".to_owned(), json!(self.group)),
            ("state".to_owned(), json!(self.state)),
            ("partitions".to_owned(), json!(self.partitions)),
            ("unknown".to_owned(), json!(self.unknown)),
            ("lag".to_owned(), json!(self.lag)),
        ]);
        if let Some(topic) = &self.topic {
            json.insert("topic".to_owned(), json!(&**topic));
        }
        Value::Object(json)
    }

    fn to_row(&self) -> Vec<String> {
        let mut row = vec![self.group.clone(), self.state.clone()];
        row.extend(self.topic.as_deref().map(str::to_owned));
        row.extend([self.partitions.to_string(), self.unknown.to_string()]);
        row.push(self.lag.map_or("-".to_owned(), |lag| lag.to_string()));
        row
    }
}

fn as_table(rows: &[Behind], by_topic: bool) -> String {
    let columns: &[&str] = match by_topic {
        true => &["GROUP", "STATE", "TOPIC", ">PARTITIONS", ">UNKNOWN", ">LAG"],
        false => &["GROUP", "STATE", ">PARTITIONS", ">UNKNOWN", ">LAG"],
    };
    table(columns, rows.iter().map(Behind::to_row).collect())
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn lag_is_summed_up_over_what_is_known() {
        let group = GroupListing {
            group_id: "g".into(),
            state: "Empty".into(),
            group_type: "Classic".into(),
            protocol_type: "consumer".into(),
            coordinator: 1,
        };
        let offsets = |all: &[(&str, i32, i64)]| {
            all.iter().map(|(topic, index, offset)| (TopicPartition::new(*topic, *index), *offset)).collect()
        };
        let committed = offsets(&[("a", 0, 10), ("a", 1, 7), ("b", 0, 1), ("gone", 0, 3)]);
        // The log of a-1 ends before the commit: it was cut.
        let latest = offsets(&[("a", 0, 15), ("a", 1, 5), ("b", 0, 2)]);
        expect![[r#"
            GROUP  STATE  PARTITIONS  UNKNOWN  LAG
            g      Empty           4        1    6"#]]
        .assert_eq(&as_table(&behind(&group, &committed, &latest, false), false));
        expect![[r#"
            GROUP  STATE  TOPIC  PARTITIONS  UNKNOWN  LAG
            g      Empty  a               2        0    5
            g      Empty  b               1        0    1
            g      Empty  gone            1        1    -"#]]
        .assert_eq(&as_table(&behind(&group, &committed, &latest, true), true));
    }
}
