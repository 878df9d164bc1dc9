//! Kafka's command line tools for log directories: their contents, and moves from one to another.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::tools::{Check, TOPICS, Tools, expect};

const LOG_DIRS: &str = "kafka-log-dirs";
const REASSIGN: &str = "kafka-reassign-partitions";
const GET_OFFSETS: &str = "kafka-get-offsets";

/// The topic that is moved.
const TOPIC: &str = "tool-log-dirs";
const RECORDS: usize = 1_000;

/// The second check moves the partitions that the first one has filled.
pub(super) const CHECKS: &[(&str, &str, Check)] = &[
    (LOG_DIRS, "describe all, some topics, some brokers", describe),
    (REASSIGN, "log_dirs: execute, verify, with a throttle", move_replicas),
];

/// The JSON that `kafka-log-dirs --describe` prints behind two lines of text.
#[derive(Debug, Deserialize)]
struct Described {
    brokers: Vec<DescribedBroker>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DescribedBroker {
    broker: i32,
    log_dirs: Vec<DescribedDir>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DescribedDir {
    log_dir: String,
    error: Option<String>,
    partitions: Vec<DescribedReplica>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DescribedReplica {
    partition: String,
    size: u64,
    offset_lag: i64,
    is_future: bool,
}

/// The directories of the one broker.
fn described(tools: &Tools<'_>, options: &str) -> Result<Vec<DescribedDir>> {
    let output = tools.output(LOG_DIRS, &format!("--describe {options}"))?;
    let json = output.lines().last().context("the tool prints something")?;
    let described: Described =
        serde_json::from_str(json).with_context(|| format!("it printed:\n{output}"))?;
    let [broker] = <[DescribedBroker; 1]>::try_from(described.brokers)
        .map_err(|brokers| anyhow::anyhow!("not one broker: {brokers:?}"))?;
    ensure!(broker.broker == 1, "broker {}", broker.broker);
    ensure!(broker.log_dirs.iter().all(|dir| dir.error.is_none()), "a directory has an error: {broker:?}");
    Ok(broker.log_dirs)
}

/// Returns the directory of each partition of [`TOPIC`] that is in one and is not being moved.
fn places(tools: &Tools<'_>) -> Result<BTreeMap<String, String>> {
    let mut places = BTreeMap::new();
    for dir in described(tools, &format!("--topic-list {TOPIC}"))? {
        for replica in dir.partitions.into_iter().filter(|replica| !replica.is_future) {
            let other = places.insert(replica.partition, dir.log_dir.clone());
            ensure!(other.is_none(), "a partition is in two directories: {places:?}");
        }
    }
    Ok(places)
}

fn describe(tools: &Tools<'_>) -> Result<()> {
    tools.output(TOPICS, &format!("--create --topic {TOPIC} --partitions 2"))?;
    tools.await_output(TOPICS, "--list", &[TOPIC])?;
    let produce = format!("--topic {TOPIC} --num-records {RECORDS} --record-size 100 --throughput -1");
    tools.output("kafka-producer-perf-test", &produce)?;
    let dirs = described(tools, "")?;
    ensure!(dirs.len() == 2, "not two directories: {dirs:?}");
    let all: Vec<_> = dirs.iter().flat_map(|dir| &dir.partitions).collect();
    ensure!(all.iter().any(|replica| !replica.partition.starts_with(TOPIC)), "no other topics: {all:?}");
    for partition in [0, 1] {
        let name = format!("{TOPIC}-{partition}");
        let replica = all.iter().find(|replica| replica.partition == name);
        let replica = replica.with_context(|| format!("no {name} in {all:?}"))?;
        ensure!(replica.offset_lag == 0 && !replica.is_future, "{replica:?}");
    }
    let size: u64 =
        all.iter().filter(|replica| replica.partition.starts_with(TOPIC)).map(|replica| replica.size).sum();
    ensure!(size > 100 * RECORDS as u64, "{size} bytes for {RECORDS} records");
    ensure!(places(tools)?.len() == 2, "only the partitions of the topic are asked for");
    ensure!(described(tools, "--broker-list 1")?.len() == 2, "the broker by its number");
    tools.refused(LOG_DIRS, "--describe --broker-list 77", "77")
}

/// Moves both partitions, each to the other directory.
fn move_replicas(tools: &Tools<'_>) -> Result<()> {
    let dirs: Vec<String> = described(tools, "")?.into_iter().map(|dir| dir.log_dir).collect();
    let before = places(tools)?;
    let mut wanted = BTreeMap::new();
    for (partition, place) in &before {
        let other = dirs.iter().find(|dir| *dir != place).context("another directory")?;
        wanted.insert(partition.clone(), other.clone());
    }
    let entries: Vec<String> = (0..2)
        .map(|partition| {
            let dir = &wanted[&format!("{TOPIC}-{partition}")];
            format!(
                r#"{{"topic": "{TOPIC}", "partition": {partition}, "replicas": [1], "log_dirs": ["{dir}"]}}"#
            )
        })
        .collect();
    let file = tools.file("log-dirs.json");
    fs::write(&file, format!(r#"{{"version": 1, "partitions": [{}]}}"#, entries.join(", ")))?;
    let file = format!("--reassignment-json-file {}", file.display());
    let execute = format!("{file} --execute --replica-alter-log-dirs-throttle 100000000");
    let executed = tools.output(REASSIGN, &execute)?;
    let started = [0, 1].map(|partition| format!("for replica {TOPIC}-{partition} with broker 1"));
    expect(&executed, &["Successfully started moving log directory", &started[0], &started[1]])?;
    let done = [0, 1]
        .map(|partition| format!("Reassignment of replica {TOPIC}-{partition}-1 completed successfully"));
    tools.await_output(REASSIGN, &format!("{file} --verify"), &[&done[0], &done[1]])?;
    let after = places(tools)?;
    ensure!(after == wanted, "moved from {before:?} to {after:?}");
    let offsets = tools.output(GET_OFFSETS, &format!("--topic {TOPIC}"))?;
    let sum: usize = offsets.lines().filter_map(|line| line.rsplit(':').next()?.parse::<usize>().ok()).sum();
    ensure!(sum == RECORDS, "{sum} records after the move:\n{offsets}");
    let consume = format!("--topic {TOPIC} --from-beginning --max-messages {RECORDS} --timeout-ms 30000");
    let read = tools.output("kafka-console-consumer", &consume)?.lines().count();
    ensure!(read == RECORDS, "{read} records are read after the move");
    Ok(())
}
