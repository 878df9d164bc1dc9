//! `mainstem cluster elect`: elects leaders of partitions.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use clap::Args;
use mainstem_client::{Admin, Election, Error, ErrorCode, Partition, TopicPartition};
use serde_json::{Value, json};

use crate::execution::{Execution, Plan};
use crate::failure::{self, advised};
use crate::output::{counted, joined, print, print_json, table};
use crate::target::Target;
use crate::topic;

/// Arguments of `cluster elect`.
#[derive(Debug, Args)]
#[command(after_help = "\
A preferred election makes the first replica of a partition the leader again, if it is in sync. It loses no record, and needs no
--execute. An unclean election (--unclean) makes a replica the leader that is not in sync, if no other can lead: RECORDS THAT IT
DOES NOT HAVE ARE LOST. Without --execute it only shows the partitions.")]
#[group(id = "which", required = true, multiple = false, args = ["topic", "all"])]
pub(crate) struct Elect {
    /// The topic.
    #[arg(long, short, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only this partition of the topic; may be given several times. [default: all]
    #[arg(long, short, value_name = "N", requires = "topic", conflicts_with = "all")]
    partition: Vec<i32>,
    /// All partitions of all topics.
    #[arg(long)]
    all: bool,
    /// An unclean election, which may lose records, of partitions that have no leader.
    #[arg(long)]
    unclean: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

/// The outcome of the election of each partition.
type Results = BTreeMap<TopicPartition, Result<(), Error>>;

/// The chosen partitions, by name.
type Chosen = BTreeMap<TopicPartition, Partition>;

/// Elects the leaders.
pub(crate) async fn run(elect: &Elect) -> Result<()> {
    let admin = elect.target.connect().await?;
    let election = if elect.unclean { Election::Unclean } else { Election::Preferred };
    let chosen = chosen(&admin, elect).await?;
    if chosen.is_empty() {
        return match (elect.json, elect.unclean) {
            (true, _) => print_json(&json!([])),
            (false, true) => print("every partition has a leader; there is none to elect"),
            (false, false) => print("the first replica of every partition leads it already"),
        };
    }
    if elect.unclean && !elect.execution.begin(elect.json, async { Ok(plan(&chosen)) }).await? {
        return Ok(());
    }
    let wanted: BTreeSet<TopicPartition> = chosen.keys().cloned().collect();
    let results = admin.elect_leaders(election, Some(&wanted)).await?;
    let results: Results = results.into_iter().map(|(key, outcome)| (key, outcome.map_err(words))).collect();
    report(&admin, elect, &results).await
}

/// The named partitions. With --all, only those that the election may change.
///
/// # Errors
/// If one that is named is missing.
async fn chosen(admin: &Admin, elect: &Elect) -> Result<Chosen> {
    let topics = match &elect.topic {
        Some(name) => vec![topic::find(admin, name).await?],
        None => admin.topics().await?,
    };
    let mut chosen = Chosen::new();
    for key in topic::partitions(&topics, &elect.partition)? {
        let topic = topics.iter().find(|topic| topic.name == key.topic);
        let Some(partition) = topic.and_then(|topic| topic.partition(key.partition).ok()) else { continue };
        let is_open = match elect.unclean {
            true => partition.leader.is_none(),
            false => partition.leader != partition.replicas.first().copied(),
        };
        if is_open || elect.topic.is_some() && !elect.unclean {
            chosen.insert(key, partition.clone());
        }
    }
    Ok(chosen)
}

fn plan(chosen: &Chosen) -> Plan {
    let row = |(key, partition): (&TopicPartition, &Partition)| {
        let numbers = [joined(&partition.replicas), joined(&partition.isr)];
        [key.topic.to_string(), key.partition.to_string()].into_iter().chain(numbers).collect()
    };
    let one = |(key, partition): (&TopicPartition, &Partition)| {
        json!({
            "topic": &*key.topic,
            "partition": key.partition,
            "replicas": partition.replicas,
            "isr": partition.isr,
        })
    };
    let rows = table(&["TOPIC", ">PARTITION", "REPLICAS", "IN SYNC"], chosen.iter().map(row).collect());
    let count = counted(chosen.len() as u64, "partition");
    let text = format!(
        "{count} without a leader would get one that may lack records, which are lost then:\n\n{rows}"
    );
    Plan { text, json: json!({ "partitions": chosen.iter().map(one).collect::<Value>() }) }
}

/// Says what became of each.
///
/// # Errors
/// If a partition could not be given a leader.
async fn report(admin: &Admin, elect: &Elect, results: &Results) -> Result<()> {
    let mut leaders = BTreeMap::new();
    for name in results.keys().map(|key| &key.topic).collect::<BTreeSet<_>>() {
        let topic = admin.find_topic(name).await?;
        for one in topic.iter().flat_map(|topic| &topic.partitions) {
            leaders.insert(TopicPartition::new(name.clone(), one.index), one.leader);
        }
    }
    let leader = |key: &TopicPartition| leaders.get(key).copied().flatten();
    let refusal = |outcome: &Result<(), Error>| match outcome {
        Err(error) if !Election::was_needless(outcome) => Some(failure::text(&error.clone().into())),
        _ => None,
    };
    let one = |(key, outcome): (&TopicPartition, &Result<(), Error>)| {
        json!({
            "topic": &*key.topic,
            "partition": key.partition,
            "leader": leader(key),
            "elected": outcome.is_ok(),
            "error": refusal(outcome),
        })
    };
    let line = |(key, outcome): (&TopicPartition, &Result<(), Error>)| {
        let by = leader(key).map_or("none".to_owned(), |node| node.to_string());
        let result = refusal(outcome).unwrap_or_else(|| match outcome {
            Ok(()) => "elected".to_owned(),
            Err(_) => "it leads already".to_owned(),
        });
        vec![key.topic.to_string(), key.partition.to_string(), by, result]
    };
    match elect.json {
        true => print_json(&results.iter().map(one).collect())?,
        false => {
            print(&table(&["TOPIC", ">PARTITION", ">LEADER", "RESULT"], results.iter().map(line).collect()))?
        }
    }
    match results.values().filter(|outcome| refusal(outcome).is_some()).count() {
        0 => Ok(()),
        failed => bail!(
            "{} of {} did not get the leader that was asked for",
            failed,
            counted(results.len() as u64, "partition")
        ),
    }
}

/// A refusal with what a person can do about it.
fn words(error: Error) -> Error {
    advised(error, |code| match code {
        ErrorCode::PREFERRED_LEADER_NOT_AVAILABLE => {
            Some("its first replica is not in sync; start that node, or wait until it has caught up")
        }
        ErrorCode::ELIGIBLE_LEADERS_NOT_AVAILABLE => {
            Some("none of its replicas that could lead is there; start one of their nodes")
        }
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
            Some("it takes the operation Alter on the cluster; `mainstem acl add` gives it")
        }
        _ => None,
    })
}
