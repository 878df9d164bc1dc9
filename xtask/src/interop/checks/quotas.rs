//! Quotas and client metrics, by Kafka's own tools, and clients that are throttled by a quota.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::install;
use super::super::report::Report;
use super::super::world::World;
use super::tools::{Tools, expect};
use crate::process::Process;

const CONFIGS: &str = "kafka-configs";
const CLIENT_METRICS: &str = "kafka-client-metrics";
const TOPICS: &str = "kafka-topics";
const PRODUCER_PERF: &str = "kafka-producer-perf-test";
const CONSUMER_PERF: &str = "kafka-consumer-perf-test";

/// The quota of a throttled client, per second.
const BYTES_PER_SECOND: u32 = 500_000;
const RECORD_BYTES: u32 = 1_000;
/// Records of ten seconds and more: the windows that may be filled in advance are then a small part.
const RECORDS: u32 = 6_000;
/// A fetch that is delayed uses none of the quota. So large fetches leave much of it unused, with Kafka too.
const FETCH_BYTES: u32 = 50_000;
/// The part by which a client may exceed its quota. A request's bytes besides records count too.
const TOLERANCE: f64 = 0.15;
/// The least of its quota that a client may end up with: it shares two cores with all other checks.
const SHARE_MIN: f64 = 0.6;
/// Number of attempts of a client that is too slow, which the machine may have caused.
const ATTEMPTS: u32 = 3;
const CLIENT_DEADLINE: Duration = Duration::from_secs(90);

type Check = fn(&Tools<'_>) -> Result<()>;

/// Each check by its tool.
const CHECKS: &[(&str, &str, Check)] = &[
    (CONFIGS, "quotas of clients, users, pairs and addresses: add, describe, delete", quotas),
    (CLIENT_METRICS, "subscriptions: alter, describe, list, delete", client_metrics),
    (PRODUCER_PERF, "held to producer_byte_rate, and notified", slow_producer),
    (CONSUMER_PERF, "held to consumer_byte_rate, and notified", slow_consumer),
    ("librdkafka's producer", "held to producer_byte_rate, and notified", slow_librdkafka),
];

/// Runs all of them.
pub(crate) fn run(world: &World, report: &Report) {
    let tools = Tools::new(world);
    for (tool, check, body) in CHECKS {
        report.check(tool, check, || patiently(|| body(&tools)));
    }
}

/// A client that stayed below its quota, as it also does on a machine without time for it.
#[derive(Debug, thiserror::Error)]
#[error("{share:.3} of its quota, in {seconds:.1} s")]
struct TooSlow {
    share: f64,
    seconds: f64,
}

/// Repeats a check if the client was too slow. Only the broker can make a client faster than its quota.
fn patiently(body: impl Fn() -> Result<()>) -> Result<()> {
    for _ in 1..ATTEMPTS {
        match body() {
            Err(error) if error.is::<TooSlow>() => {}
            done => return done,
        }
    }
    body()
}

fn quotas(tools: &Tools<'_>) -> Result<()> {
    let cases = [
        ("--entity-type clients --entity-name quota-tool", "client-id 'quota-tool'"),
        ("--entity-type clients --entity-default", "the default client-id"),
        ("--entity-type users --entity-name quota-user", "user-principal 'quota-user'"),
        (
            "--entity-type users --entity-name quota-user --entity-type clients --entity-name quota-tool",
            "user-principal 'quota-user', client-id 'quota-tool'",
        ),
    ];
    for (entity, named) in cases {
        // High enough that the default does not throttle the other clients of this run.
        let values = "producer_byte_rate=900000000,request_percentage=9000";
        expect(&tools.output(CONFIGS, &format!("--alter {entity} --add-config {values}"))?, &["Completed"])?;
        let described = [named, "producer_byte_rate=9.0E8", "request_percentage=9000.0"];
        tools.await_output(CONFIGS, &format!("--describe {entity}"), &described)?;
        let delete = format!("--alter {entity} --delete-config producer_byte_rate,request_percentage");
        expect(&tools.output(CONFIGS, &delete)?, &["Completed"])?;
        let left = tools.output(CONFIGS, &format!("--describe {entity}"))?;
        ensure!(!left.contains("producer_byte_rate"), "it is still there:\n{left}");
    }
    let ip = "--entity-type ips --entity-name 192.0.2.1";
    tools.output(CONFIGS, &format!("--alter {ip} --add-config connection_creation_rate=7"))?;
    tools.await_output(
        CONFIGS,
        &format!("--describe {ip}"),
        &["192.0.2.1", "connection_creation_rate=7.0"],
    )?;
    tools.output(CONFIGS, &format!("--alter {ip} --delete-config connection_creation_rate"))?;
    tools.refused(
        CONFIGS,
        &format!("--alter {ip} --add-config producer_byte_rate=7"),
        "producer_byte_rate",
    )?;
    let clients = "--entity-type clients --entity-name quota-tool";
    tools.refused(CONFIGS, &format!("--alter {clients} --add-config producer_byte_rate=0"), "greater than 0")
}

fn client_metrics(tools: &Tools<'_>) -> Result<()> {
    let alter = "--alter --name tool-metrics --metrics org.apache.kafka.producer.,org.apache.kafka.consumer. \
                 --interval 60000 --match client_id=unmatched.*";
    expect(&tools.output(CLIENT_METRICS, alter)?, &["tool-metrics"])?;
    let described = ["interval.ms=60000", "client_id=unmatched.*", "org.apache.kafka.producer."];
    tools.await_output(CLIENT_METRICS, "--describe --name tool-metrics", &described)?;
    tools.await_output(CLIENT_METRICS, "--list", &["tool-metrics"])?;
    tools.refused(CLIENT_METRICS, "--alter --name tool-metrics --interval 1", "interval must be between")?;
    tools.output(CLIENT_METRICS, "--delete --name tool-metrics")?;
    Ok(())
}

/// Gives a client a quota.
fn hold(tools: &Tools<'_>, client_id: &str, key: &str) -> Result<()> {
    let entity = format!("--entity-type clients --entity-name {client_id}");
    tools.output(CONFIGS, &format!("--alter {entity} --add-config {key}={BYTES_PER_SECOND}"))?;
    tools.await_output(CONFIGS, &format!("--describe {entity}"), &[key])
}

/// Checks that a client that moved so many bytes took as long as its quota requires.
fn judge(bytes: f64, seconds: f64, throttle_max: f64) -> Result<()> {
    let share = bytes / seconds / f64::from(BYTES_PER_SECOND);
    ensure!(share <= 1.0 + TOLERANCE, "{share:.3} of its quota, in {seconds:.1} s");
    ensure!(share >= SHARE_MIN, TooSlow { share, seconds });
    ensure!(throttle_max > 0.0, "it was not notified that it is throttled");
    Ok(())
}

/// The value of one of a client's own metrics, as `--print-metrics` shows it.
fn metric(output: &str, name: &str) -> Result<f64> {
    let line = output
        .lines()
        .find(|line| line.contains(name))
        .with_context(|| format!("no {name} in:\n{output}"))?;
    let value = line.rsplit(':').next().context("a value")?.trim();
    value.parse().with_context(|| format!("a number in {line}"))
}

fn slow_producer(tools: &Tools<'_>) -> Result<()> {
    hold(tools, "quota-java-producer", "producer_byte_rate")?;
    tools.output(TOPICS, "--create --if-not-exists --topic tool-quota --partitions 1")?;
    let options = format!(
        "--topic tool-quota --num-records {RECORDS} --record-size {RECORD_BYTES} --throughput -1 --print-metrics \
         --command-property client.id=quota-java-producer"
    );
    let output = own_process(tools, PRODUCER_PERF, &options)?;
    let summary = output.lines().find(|line| line.contains(&format!("{RECORDS} records sent")));
    let rate = summary.and_then(|line| line.split(", ").nth(1)).and_then(|rate| rate.split(' ').next());
    let rate: f64 = rate.with_context(|| format!("records/sec in:\n{output}"))?.parse()?;
    let throttle_max = metric(&output, "produce-throttle-time-max")?;
    judge(f64::from(RECORDS * RECORD_BYTES), f64::from(RECORDS) / rate, throttle_max)
}

fn slow_consumer(tools: &Tools<'_>) -> Result<()> {
    hold(tools, "quota-java-consumer", "consumer_byte_rate")?;
    let options = format!(
        "--topic tool-quota --num-records {RECORDS} --timeout 60000 --hide-header --print-metrics --fetch-size {FETCH_BYTES} \
         --command-property client.id=quota-java-consumer"
    );
    let output = own_process(tools, CONSUMER_PERF, &options)?;
    // start.time, end.time, MB, MB/sec, records, records/sec, rebalance.time.ms, fetch.time.ms, ...
    let line = output.lines().find(|line| line.split(", ").count() >= 8);
    let line = line.with_context(|| format!("no summary in:\n{output}"))?;
    let fields: Vec<&str> = line.split(", ").collect();
    // The tool ends with the poll in which it has enough. There are more records if the producer's check was made twice.
    let records: u32 = fields[4].parse().with_context(|| format!("records in {line}"))?;
    ensure!(records >= RECORDS, "records consumed: {line}");
    let seconds = fields[7].trim().parse::<f64>()? / 1000.0;
    judge(f64::from(records * RECORD_BYTES), seconds, metric(&output, "fetch-throttle-time-max")?)
}

fn slow_librdkafka(tools: &Tools<'_>) -> Result<()> {
    // A topic of its own: the records of the tools' topic are counted at the same time.
    tools.output(TOPICS, "--create --if-not-exists --topic rdkafka-quota --partitions 1")?;
    hold(tools, "quota-rdkafka", "producer_byte_rate")?;
    let mut python = Command::new(install::python());
    python.arg(install::sources("python").join("quotas.py")).arg(tools.bootstrap());
    python.args(["rdkafka-quota", "quota-rdkafka", &RECORDS.to_string(), &RECORD_BYTES.to_string()]);
    let output = tools.world().run.join("quota-rdkafka.json");
    Process::start_to_file("quota-rdkafka", &mut python, &tools.world().logs, &output)?
        .wait(CLIENT_DEADLINE)?;
    let figures: serde_json::Value = serde_json::from_str(&fs::read_to_string(output)?)?;
    let number = |key: &str| figures[key].as_f64().with_context(|| format!("{key} in {figures}"));
    judge(f64::from(RECORDS * RECORD_BYTES), number("seconds")?, number("throttle_max")?)
}

/// Runs a tool by its script, beside the JVM that other checks use. Returns its output.
fn own_process(tools: &Tools<'_>, tool: &str, options: &str) -> Result<String> {
    let printed = tools.world().run.join(format!("quota-{tool}.txt"));
    tools.start_process(tool, &format!("{options} > {}", printed.display()))?.wait(CLIENT_DEADLINE)?;
    Ok(fs::read_to_string(printed)?)
}
