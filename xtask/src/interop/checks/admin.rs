//! Kafka's command line tools for what an administrator does to a cluster rather than to its topics.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::super::report::Report;
use super::super::world::World;
use super::tools::{PROCESS_DEADLINE, Tools, expect};
use crate::process::wait_until;

const TOPICS: &str = "kafka-topics";
const CONFIGS: &str = "kafka-configs";
const FEATURES: &str = "kafka-features";
const QUORUM: &str = "kafka-metadata-quorum";
const ELECTION: &str = "kafka-leader-election";
const REASSIGN: &str = "kafka-reassign-partitions";
const CLUSTER: &str = "kafka-cluster";
const TRANSACTIONS: &str = "kafka-transactions";

/// The node of every run, Mainstem's and Kafka's.
const NODE: &str = "1";

type Check = fn(&Tools<'_>) -> Result<()>;

/// Each check by its tool.
const CHECKS: &[(&str, &str, Check)] = &[
    (CONFIGS, "broker: alter, describe, delete", broker_configs),
    (CONFIGS, "cluster's defaults: alter, describe, delete", default_configs),
    (CONFIGS, "broker loggers: describe, alter", loggers),
    (FEATURES, "describe, upgrade, refuse", features),
    (QUORUM, "describe status and replication", quorum),
    (ELECTION, "preferred, of one partition and of all", election),
    (REASSIGN, "verify, list, cancel, generate, execute", reassignment),
    (CLUSTER, "id, endpoints, unregister", cluster),
    (TRANSACTIONS, "describe-producers", producers),
    (TRANSACTIONS, "abort a transaction whose producer was killed", abort),
];

/// Runs all of them.
pub(crate) fn run(world: &World, report: &Report) {
    let tools = Tools::new(world);
    for (tool, check, body) in CHECKS {
        report.check(tool, check, || body(&tools));
    }
}

fn broker_configs(tools: &Tools<'_>) -> Result<()> {
    let broker = format!("--entity-type brokers --entity-name {NODE}");
    let alter = format!("--alter {broker} --add-config max.connections=5000,log.retention.ms=500000000");
    expect(&tools.output(CONFIGS, &alter)?, &["Completed updating config"])?;
    let describe = format!("--describe {broker}");
    let set = [
        "max.connections=5000 sensitive=false synonyms={DYNAMIC_BROKER_CONFIG:max.connections=5000, \
         DEFAULT_CONFIG:max.connections=2147483647}",
        "log.retention.ms=500000000",
    ];
    tools.await_output(CONFIGS, &describe, &set)?;
    let add = |config: &str| format!("--alter {broker} --add-config {config}");
    tools.refused(CONFIGS, &add("num.partitions=7"), "Cannot update these configs dynamically")?;
    tools.refused(CONFIGS, &add("message.max.bytes=-1"), "Value must be at least 0")?;
    tools.refused(CONFIGS, &add("num.network.threads=1000"), "should not be greater than double")?;
    tools.output(CONFIGS, &format!("--alter {broker} --delete-config max.connections,log.retention.ms"))?;
    tools.await_gone(CONFIGS, &describe, "max.connections=5000")
}

fn default_configs(tools: &Tools<'_>) -> Result<()> {
    let all = "--entity-type brokers --entity-default";
    tools.output(CONFIGS, &format!("--alter {all} --add-config log.cleaner.backoff.ms=16000"))?;
    let set = ["DYNAMIC_DEFAULT_BROKER_CONFIG:log.cleaner.backoff.ms=16000"];
    tools.await_output(CONFIGS, &format!("--describe {all}"), &set)?;
    tools.refused(
        CONFIGS,
        &format!("--alter {all} --add-config sasl.enabled.mechanisms=PLAIN"),
        "broker id must be specified",
    )?;
    tools.output(CONFIGS, &format!("--alter {all} --delete-config log.cleaner.backoff.ms"))?;
    tools.await_gone(CONFIGS, &format!("--describe {all}"), "log.cleaner.backoff.ms=16000")
}

fn loggers(tools: &Tools<'_>) -> Result<()> {
    let loggers = format!("--entity-type broker-loggers --entity-name {NODE}");
    let describe = format!("--describe {loggers}");
    let before = tools.output(CONFIGS, &describe)?;
    let root = before.lines().map(str::trim).find_map(|line| line.strip_prefix("root="));
    let level = root.and_then(|rest| rest.split(' ').next()).context("the level of the root")?.to_owned();
    tools.output(CONFIGS, &format!("--alter {loggers} --add-config root=ERROR"))?;
    tools.await_output(CONFIGS, &describe, &["root=ERROR"])?;
    tools.refused(CONFIGS, &format!("--alter {loggers} --add-config root=LOUD"), "LOUD")?;
    tools.refused(CONFIGS, &format!("--alter {loggers} --add-config no.such=INFO"), "no.such")?;
    tools.output(CONFIGS, &format!("--alter {loggers} --add-config root={level}"))?;
    tools.await_output(CONFIGS, &describe, &[&format!("root={level}")])
}

fn features(tools: &Tools<'_>) -> Result<()> {
    let described = ["Feature: metadata.version", "FinalizedVersionLevel: 4.3-IV0"];
    expect(&tools.output(FEATURES, "describe")?, &described)?;
    let upgraded = tools.output(FEATURES, "upgrade --feature metadata.version=30")?;
    expect(&upgraded, &["metadata.version was upgraded to 30."])?;
    let dry = tools.output(FEATURES, "upgrade --dry-run --feature metadata.version=30")?;
    expect(&dry, &["metadata.version can be upgraded to 30."])?;
    tools.refused(
        FEATURES,
        "upgrade --feature metadata.version=99",
        "Could not upgrade metadata.version to 99",
    )?;
    tools.refused(
        FEATURES,
        "downgrade --feature metadata.version=29",
        "Could not downgrade metadata.version to 29",
    )
}

fn quorum(tools: &Tools<'_>) -> Result<()> {
    let status = tools.output(QUORUM, "describe --status")?;
    expect(&status, &["ClusterId:", "LeaderEpoch:", "CurrentObservers:", "MaxFollowerLag:"])?;
    let leader = status.lines().find_map(|line| line.strip_prefix("LeaderId:"));
    ensure!(leader.map(str::trim) == Some(NODE), "no leader {NODE} in:\n{status}");
    let replication = tools.output(QUORUM, "describe --replication")?;
    let row = replication
        .lines()
        .find(|line| line.starts_with(&format!("{NODE} ")) || line.starts_with(&format!("{NODE}\t")));
    let row = row.with_context(|| format!("a row of node {NODE} in:\n{replication}"))?;
    let fields: Vec<&str> = row.split_whitespace().collect();
    ensure!(fields.last() == Some(&"Leader"), "the node leads: {row}");
    let end: i64 = fields[2].parse().with_context(|| format!("the log end in {row}"))?;
    ensure!(end > 0 && fields[3] == "0", "a log end and no lag: {row}");
    Ok(())
}

fn election(tools: &Tools<'_>) -> Result<()> {
    tools.output(TOPICS, "--create --topic tool-election --partitions 2")?;
    let one = "--election-type preferred --topic tool-election --partition 0";
    expect(&tools.output(ELECTION, one)?, &["Valid replica already elected for partitions tool-election-0"])?;
    tools.output(ELECTION, "--election-type preferred --all-topic-partitions")?;
    tools.refused(ELECTION, "--election-type unclean --topic no-such-topic --partition 0", "no-such-topic")
}

fn reassignment(tools: &Tools<'_>) -> Result<()> {
    tools.output(TOPICS, "--create --topic tool-reassign --partitions 2")?;
    let plan = format!(
        r#"{{"version": 1, "partitions": [{{"topic": "tool-reassign", "partition": 0, "replicas": [{NODE}]}}]}}"#
    );
    let stay = file(tools, "reassign-stay.json", &plan)?;
    let stay = format!("--reassignment-json-file {}", stay.display());
    let verified = tools.output(REASSIGN, &format!("--verify {stay}"))?;
    expect(&verified, &["Reassignment of partition tool-reassign-0 is completed."])?;
    expect(&tools.output(REASSIGN, "--list")?, &["No partition reassignments found."])?;
    let cancelled = tools.output(REASSIGN, &format!("--cancel {stay}"))?;
    expect(&cancelled, &["None of the specified partition moves are active."])?;
    reassignment_to_the_same_node(tools)
}

/// Applies a proposal of the tool for one node, which has that assignment already: it completes right away.
fn reassignment_to_the_same_node(tools: &Tools<'_>) -> Result<()> {
    let topics = r#"{"version": 1, "topics": [{"topic": "tool-reassign"}]}"#;
    let topics = file(tools, "reassign-topics.json", topics)?;
    let options = format!("--generate --broker-list {NODE} --topics-to-move-json-file {}", topics.display());
    let generated = tools.output(REASSIGN, &options)?;
    expect(
        &generated,
        &["Current partition replica assignment", "Proposed partition reassignment configuration"],
    )?;
    let proposal = generated.lines().rfind(|line| line.starts_with('{')).context("the tool proposes")?;
    ensure!(proposal.contains(&format!(r#""replicas":[{NODE}]"#)), "{proposal}");
    let proposal = file(tools, "reassign-proposal.json", proposal)?;
    let proposal = format!("--reassignment-json-file {}", proposal.display());
    let executed = tools.output(REASSIGN, &format!("--execute {proposal}"))?;
    expect(&executed, &["Successfully started partition reassignments for tool-reassign-0,tool-reassign-1"])?;
    let verified = tools.output(REASSIGN, &format!("--verify {proposal}"))?;
    let is_done =
        |partition: i32| format!("Reassignment of partition tool-reassign-{partition} is completed.");
    expect(&verified, &[&is_done(0), &is_done(1)])?;
    let strange =
        r#"{"version": 1, "partitions": [{"topic": "tool-reassign", "partition": 0, "replicas": [7]}]}"#;
    let strange = file(tools, "reassign-strange.json", strange)?;
    let options = format!("--execute --reassignment-json-file {}", strange.display());
    tools.refused(REASSIGN, &options, "Unknown broker id 7")
}

fn file(tools: &Tools<'_>, name: &str, text: &str) -> Result<PathBuf> {
    let path = tools.world().run.join(name);
    fs::write(&path, text)?;
    Ok(path)
}

fn cluster(tools: &Tools<'_>) -> Result<()> {
    let id = tools.subcommand(CLUSTER, "cluster-id", "")?.success()?;
    expect(&id, &["Cluster ID: "])?;
    let endpoints = tools.subcommand(CLUSTER, "list-endpoints", "")?.success()?;
    expect(&endpoints, &["127.0.0.1", "broker"])?;
    let unregister = tools.subcommand(CLUSTER, "unregister", "--id 7")?;
    expect(&(unregister.out + &unregister.err), &["Broker ID 7 is not currently registered"])
}

fn producers(tools: &Tools<'_>) -> Result<()> {
    tools.output(TOPICS, "--create --topic tool-producers --partitions 1")?;
    let options = "--topic tool-producers";
    tools.call("kafka-console-producer", options, "one\ntwo\n")?.success()?;
    let described = tools.output(TRANSACTIONS, "describe-producers --topic tool-producers --partition 0")?;
    let rows: Vec<Vec<&str>> = described.lines().map(|line| line.split_whitespace().collect()).collect();
    let found = rows.iter().any(|row| row.len() == 6 && row[1] == "0" && row[3] == "1" && row[5] == "None");
    ensure!(found, "no producer of epoch 0 and sequence 1 in:\n{described}");
    Ok(())
}

/// Ends the transaction of a killed producer by the tool, in its partition; by itself it would last for an hour. A reader of committed
/// records gets those that were written after it, and none of its own.
fn abort(tools: &Tools<'_>) -> Result<()> {
    tools.output(TOPICS, "--create --topic tool-abort --partitions 1")?;
    let perf = "--topic tool-abort --num-records 1000000 --record-size 20 --throughput 200 --transactional-id tool-abort \
                --transaction-duration-ms 600000 --command-property transaction.timeout.ms=800000";
    let producer = tools.start_process("kafka-producer-perf-test", perf)?;
    let is_open = || Ok(open_since(tools, "tool-abort")?.is_some());
    wait_until(|| "a transaction is open".to_owned(), PROCESS_DEADLINE, is_open)?;
    drop(producer);
    end_transactions((tools, tools), "tool-abort")?;
    tools.call("kafka-console-producer", "--topic tool-abort", "afterwards\n")?.success()?;
    let read = tools.output(
        "kafka-console-consumer",
        "--topic tool-abort --from-beginning --isolation-level read_committed --max-messages 1 --timeout-ms 30000",
    )?;
    expect(&read, &["afterwards"])
}

/// Ends by `abort` the transactions of a topic's only partition that its killed producer has left open, until `describe-producers` shows
/// none. A request that it had sent before its end may be appended behind an abort, and opens a transaction again. The two tools may ask
/// different nodes.
pub(super) fn end_transactions((aborts, describes): (&Tools<'_>, &Tools<'_>), topic: &str) -> Result<()> {
    let mut ended = None;
    let is_ended = || {
        let Some(start) = open_since(describes, topic)? else { return Ok(true) };
        ensure!(
            ended < Some(start),
            "the transaction that was ended at offset {start} of {topic} is still open"
        );
        ended = Some(start);
        let end = format!("abort --topic {topic} --partition 0 --start-offset {start}");
        aborts.output(TRANSACTIONS, &end)?;
        Ok(false)
    };
    wait_until(|| format!("no transaction is open in {topic}"), PROCESS_DEADLINE, is_ended)
}

/// The first offset of the open transaction in a topic's only partition, by the last column of `describe-producers`.
pub(super) fn open_since(tools: &Tools<'_>, topic: &str) -> Result<Option<i64>> {
    let described =
        tools.output(TRANSACTIONS, &format!("describe-producers --topic {topic} --partition 0"))?;
    Ok(described.lines().find_map(|line| line.split_whitespace().nth(5)?.parse().ok()))
}
