//! `mainstem cluster reassign`: which nodes have the replicas of partitions.

mod file;
mod generate;
mod throttle;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use mainstem_client::{Admin, ErrorCode, Reassignment, TopicPartition};
use serde_json::{Value, json};

use crate::execution::{Execution, Plan};
use crate::failure::advised;
use crate::output::{counted, joined, print, print_json, print_line, shown, table};
use crate::target::Target;
use crate::topic;

/// Arguments of `cluster reassign`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without a file or --cancel the command shows the running reassignments. A file has the form of kafka-reassign-partitions.sh:
  {\"version\":1,\"partitions\":[{\"topic\":\"orders\",\"partition\":0,\"replicas\":[2,3,1]}]}
The first replica is the preferred leader. Without --execute the command shows the changes, and the current assignment as such a
file, which undoes them.

--generate proposes such a file: replicas are even over the nodes and their racks, with as few moves as possible. To empty a node,
leave it out of --nodes.
  mainstem cluster reassign --generate --nodes 1,2,3 --to-file plan.json
  mainstem cluster reassign --from-file plan.json --throttle 50000000 --execute
  mainstem cluster reassign --from-file plan.json --verify --execute")]
pub(crate) struct Reassign {
    /// Reassign the partitions of this file.
    #[arg(long, visible_alias = "reassignment-json-file", value_name = "FILE")]
    from_file: Option<PathBuf>,
    /// Cancel reassignments that are running: those of the partitions in --from-file, or all.
    #[arg(long)]
    cancel: bool,
    /// Propose replicas for the partitions of --topic, or for all.
    #[arg(long, conflicts_with_all = ["from_file", "cancel"])]
    generate: bool,
    /// A topic for --generate; repeat it for several.
    #[arg(long, value_name = "TOPIC", requires = "generate")]
    topic: Vec<String>,
    /// The nodes for --generate that may have replicas; without it all nodes.
    #[arg(
        long,
        value_name = "NODE,...",
        value_delimiter = ',',
        requires = "generate",
        visible_alias = "broker-list"
    )]
    nodes: Vec<i32>,
    /// The number of replicas for --generate; without it each partition keeps its own.
    #[arg(long, value_name = "COUNT", requires = "generate", value_parser = clap::value_parser!(u16).range(1..))]
    replication_factor: Option<u16>,
    /// Write what --generate proposes to a new file.
    #[arg(long, value_name = "FILE", requires = "generate")]
    to_file: Option<PathBuf>,
    /// Bytes a second that each node sends and takes for the moves at most. It takes the place of rates that the nodes have, until --verify
    /// takes it away.
    #[arg(long, value_name = "BYTES", requires = "from_file", conflicts_with_all = ["cancel", "verify"],
          value_parser = clap::value_parser!(u64).range(1..))]
    throttle: Option<u64>,
    /// Show how far the partitions of --from-file are, and take their throttle away when all are done.
    #[arg(long, requires = "from_file", conflicts_with = "cancel")]
    verify: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    execution: Execution,
    #[command(flatten)]
    target: Target,
}

/// The replicas of partitions.
type Assignment = BTreeMap<TopicPartition, Vec<i32>>;

/// Shows, begins or cancels reassignments.
pub(crate) async fn run(reassign: &Reassign) -> Result<()> {
    let file = reassign.from_file.as_deref().map(file::read).transpose()?;
    let admin = reassign.target.connect().await?;
    match (file, reassign.cancel) {
        (None, false) if reassign.generate => propose(reassign, &admin).await,
        (None, false) => list(reassign, &admin).await,
        (file, true) => cancel(reassign, &admin, file).await,
        (Some(wanted), false) if reassign.verify => verify::run(reassign, &admin, &wanted).await,
        (Some(wanted), false) => start(reassign, &admin, wanted).await,
    }
}

/// Shows a proposal, and writes it where that is asked for.
async fn propose(reassign: &Reassign, admin: &Admin) -> Result<()> {
    ensure!(
        !reassign.execution.execute,
        "--generate only proposes: --execute goes with the file that it makes"
    );
    let brokers = admin.cluster_with_fenced().await?.brokers;
    let unknown = reassign.nodes.iter().find(|node| !brokers.contains_key(node));
    if let Some(unknown) = unknown {
        bail!("--nodes names {unknown}, which the cluster does not have; it has {}", joined(brokers.keys()));
    }
    let topics = admin.topics().await?;
    if let Some(missing) = reassign.topic.iter().find(|name| topics.iter().all(|topic| *topic.name != **name))
    {
        bail!("there is no topic {}", shown(missing));
    }
    let mut all = Assignment::new();
    for topic in &topics {
        for partition in &topic.partitions {
            let key = TopicPartition::new(topic.name.to_string(), partition.index);
            all.insert(key, partition.replicas.clone());
        }
    }
    if reassign.nodes.is_empty()
        && let Some((fenced, _)) = brokers.iter().find(|(_, broker)| broker.is_fenced == Some(true))
    {
        bail!(
            "node {fenced} takes no part at the moment: wait until it is back, or name the nodes that are to have replicas with --nodes, \
             with it or without it"
        );
    }
    let is_allowed = |node: &i32| reassign.nodes.is_empty() || reassign.nodes.contains(node);
    let nodes = brokers.into_iter().filter(|(node, _)| is_allowed(node));
    let nodes = nodes.map(|(node, broker)| (node, broker.rack)).collect();
    let is_chosen = |key: &&TopicPartition| {
        reassign.topic.is_empty() || reassign.topic.iter().any(|name| **name == *key.topic)
    };
    let chosen: BTreeSet<_> = all.keys().filter(is_chosen).cloned().collect();
    if let Some(moving) = admin.reassignments().await?.iter().find(|one| chosen.contains(&one.partition)) {
        bail!(
            "{} is being reassigned: wait until that is done (`mainstem cluster reassign` shows it), or cancel it with --cancel",
            moving.partition
        );
    }
    let wanted = generate::propose(&all, &chosen, &nodes, reassign.replication_factor.map(usize::from))?;
    if wanted.is_empty() {
        return match reassign.json {
            true => print_json(
                &json!({"partitions": [], "current": file::to_json(&Assignment::new()), "proposed": null}),
            ),
            false => print(
                "the replicas are even over the nodes; there is nothing to propose, and no file was written",
            ),
        };
    }
    let text = file::write(&wanted);
    if let Some(path) = &reassign.to_file {
        file::write_new(path, &text)?;
    }
    let mut plan = plan(&all, &wanted);
    match reassign.json {
        true => {
            plan.json["proposed"] = file::to_json(&wanted);
            print_json(&plan.json)
        }
        false => {
            let how = match &reassign.to_file {
                Some(path) => {
                    format!("{0} has it: mainstem cluster reassign --from-file {0}", path.display())
                }
                None => format!("as a file for --from-file:\n{text}"),
            };
            print(&format!("{}\n\n{how}", plan.text))
        }
    }
}

async fn list(reassign: &Reassign, admin: &Admin) -> Result<()> {
    ensure!(!reassign.execution.execute, "--execute goes with --from-file or --cancel; nothing was changed");
    let running = admin.reassignments().await?;
    match (reassign.json, running.is_empty()) {
        (true, _) => print_json(&running.iter().map(to_json).collect()),
        (false, true) => print("no reassignment is running"),
        (false, false) => print(&running_table(&running)),
    }
}

async fn start(reassign: &Reassign, admin: &Admin, wanted: Assignment) -> Result<()> {
    let current = current(admin, &wanted).await?;
    let nodes = admin.nodes().await?;
    for (key, replicas) in &wanted {
        if let Some(unknown) = replicas.iter().find(|node| !nodes.contains(node)) {
            bail!(
                "{key} cannot go to node {unknown}, which the cluster does not have; it has {}; nothing was changed",
                joined(&nodes)
            );
        }
    }
    let throttled = |mut plan: Plan| {
        if let Some(rate) = reassign.throttle {
            plan.text += &format!("\n\neach node would send and take {rate} bytes a second for it at most");
            plan.json["throttle"] = json!(rate);
        }
        plan
    };
    let begin = reassign.execution.begin(reassign.json, async { Ok(throttled(plan(&current, &wanted))) });
    if !begin.await? {
        return Ok(());
    }
    let throttle = match reassign.throttle {
        Some(rate) => Some(throttle::set(admin, &current, &wanted, rate).await?),
        None => None,
    };
    let count = counted(wanted.len() as u64, "partition");
    let orders = wanted.into_iter().map(|(key, replicas)| (key, Some(replicas))).collect();
    if let Err(error) = carry_out(admin, &orders).await {
        let Some(throttle) = throttle else { return Err(error) };
        // Kafka takes some partitions of an order and refuses others.
        let running = admin.reassignments().await.unwrap_or_default();
        let begun = running.iter().filter(|one| orders.contains_key(&one.partition)).count() as u64;
        if begun == 0 {
            throttle.take_back(admin).await;
            return Err(error);
        }
        let begun = counted(begun, "partition");
        return Err(error.context(format!(
            "{begun} of the file move under the throttle, which --verify takes away; the rest"
        )));
    }
    match reassign.json {
        true => print_json(&json!({
            "partitions": keys(orders.keys()),
            "current": file::to_json(&current),
            "executed": true,
        })),
        false => {
            print_line(&format!(
                "began to reassign {count}; `mainstem cluster reassign` shows those that are not done. This file takes it back:"
            ))?;
            print_line(file::write(&current).trim_end())
        }
    }
}

async fn cancel(reassign: &Reassign, admin: &Admin, chosen: Option<Assignment>) -> Result<()> {
    let mut running = admin.reassignments().await?;
    if let Some(chosen) = &chosen {
        for key in chosen.keys() {
            ensure!(
                running.iter().any(|one| one.partition == *key),
                "no reassignment of {key} is running; nothing was cancelled"
            );
        }
        running.retain(|one| chosen.contains_key(&one.partition));
    }
    if running.is_empty() {
        return match reassign.json {
            true => print_json(&json!({"partitions": [], "executed": reassign.execution.execute})),
            false => print("no reassignment is running; there is nothing to cancel"),
        };
    }
    if !reassign.execution.begin(reassign.json, async { Ok(cancel_plan(&running)) }).await? {
        return Ok(());
    }
    let orders: BTreeMap<_, _> = running.iter().map(|one| (one.partition.clone(), None)).collect();
    carry_out(admin, &orders).await?;
    match reassign.json {
        true => print_json(&json!({"partitions": keys(orders.keys()), "executed": true})),
        false => {
            let count = counted(orders.len() as u64, "partition");
            print_line(&format!("cancelled the reassignment of {count}"))
        }
    }
}

async fn carry_out(admin: &Admin, orders: &BTreeMap<TopicPartition, Option<Vec<i32>>>) -> Result<()> {
    Ok(admin.reassign(orders).await.map_err(|error| advised(error, advice))?)
}

/// The replicas that the partitions have now.
///
/// # Errors
/// If one of them is missing.
async fn current(admin: &Admin, wanted: &Assignment) -> Result<Assignment> {
    let mut current = Assignment::new();
    for name in wanted.keys().map(|key| &key.topic).collect::<BTreeSet<_>>() {
        let found = topic::find(admin, name).await?;
        let named = wanted.keys().filter(|key| key.topic == *name).map(|key| key.partition);
        for key in topic::partitions(std::slice::from_ref(&found), &named.collect::<Vec<_>>())? {
            let replicas = found.partition(key.partition)?.replicas.clone();
            current.insert(key, replicas);
        }
    }
    Ok(current)
}

fn plan(current: &Assignment, wanted: &Assignment) -> Plan {
    let now = |key: &TopicPartition| current.get(key).cloned().unwrap_or_default();
    let row = |(key, replicas): (&TopicPartition, &Vec<i32>)| {
        let lists = [joined(now(key)), joined(replicas)];
        [key.topic.to_string(), key.partition.to_string()].into_iter().chain(lists).collect()
    };
    let one = |(key, replicas): (&TopicPartition, &Vec<i32>)| {
        json!({
            "topic": &*key.topic,
            "partition": key.partition,
            "replicas": now(key),
            "new_replicas": replicas,
        })
    };
    let rows = table(&["TOPIC", ">PARTITION", "REPLICAS", "NEW REPLICAS"], wanted.iter().map(row).collect());
    let count = counted(wanted.len() as u64, "partition");
    let back = file::write(current);
    let text = format!("{count} would be reassigned:\n\n{rows}\n\nthis file takes it back:\n{back}");
    let partitions: Value = wanted.iter().map(one).collect();
    Plan { text, json: json!({"partitions": partitions, "current": file::to_json(current)}) }
}

fn cancel_plan(running: &[Reassignment]) -> Plan {
    let count = counted(running.len() as u64, "reassignment");
    let partitions: Value = running.iter().map(to_json).collect();
    Plan {
        text: format!("{count} would be cancelled:\n\n{}", running_table(running)),
        json: json!({ "partitions": partitions }),
    }
}

fn running_table(running: &[Reassignment]) -> String {
    let row = |one: &Reassignment| {
        vec![
            one.partition.topic.to_string(),
            one.partition.partition.to_string(),
            joined(&one.replicas),
            joined(&one.adding),
            joined(&one.removing),
        ]
    };
    let columns = ["TOPIC", ">PARTITION", "REPLICAS", "ADDING", "REMOVING"];
    table(&columns, running.iter().map(row).collect())
}

fn to_json(one: &Reassignment) -> Value {
    json!({
        "topic": &*one.partition.topic,
        "partition": one.partition.partition,
        "replicas": one.replicas,
        "adding": one.adding,
        "removing": one.removing,
    })
}

fn keys<'k>(keys: impl Iterator<Item = &'k TopicPartition>) -> Value {
    keys.map(|key| json!({"topic": &*key.topic, "partition": key.partition})).collect()
}

/// Advice about a refusal.
fn advice(code: ErrorCode) -> Option<&'static str> {
    match code {
        ErrorCode::NO_REASSIGNMENT_IN_PROGRESS => Some("its reassignment is done, or was cancelled before"),
        ErrorCode::REASSIGNMENT_IN_PROGRESS => {
            Some("another reassignment of it is running; wait for it, or cancel it with --cancel")
        }
        ErrorCode::CLUSTER_AUTHORIZATION_FAILED => {
            Some("it takes the operation Alter on the cluster; `mainstem acl add` gives it")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_plan_has_what_takes_it_back() {
        let key = TopicPartition::new("orders", 0);
        let current = Assignment::from([(key.clone(), vec![1, 2])]);
        let wanted = Assignment::from([(key.clone(), vec![2, 3])]);
        expect![[r#"
            1 partition would be reassigned:

            TOPIC   PARTITION  REPLICAS  NEW REPLICAS
            orders          0  1,2       2,3

            this file takes it back:
            {"partitions":[{"partition":0,"replicas":[1,2],"topic":"orders"}],"version":1}"#]]
        .assert_eq(&plan(&current, &wanted).text);
        let running =
            Reassignment { partition: key, replicas: vec![1, 2, 3], adding: vec![3], removing: vec![1] };
        expect![[r#"
            1 reassignment would be cancelled:

            TOPIC   PARTITION  REPLICAS  ADDING  REMOVING
            orders          0  1,2,3     3       1"#]]
        .assert_eq(&cancel_plan(&[running]).text);
    }
}
