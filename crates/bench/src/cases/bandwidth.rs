//! Kafka's own performance tools as clients: large batches in, everything out.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use super::cpu::CpuTimes;
use super::{Case, Measured};
use crate::broker::{KafkaInstall, Running};
use crate::connection::Connection;
use crate::load::{create_serving_topic, topic_configs};
use crate::process;
use crate::protocol::admin;
use crate::sampler::{MIB, Sampler};
use crate::workload::Acks;

const TOPIC: &str = "bench";
const WARM_TOPIC: &str = "warm";
const PARTITIONS: i32 = 6;
const RECORD_BYTES: u64 = 1_024;
const BATCH_BYTES: u64 = 128 << 10;
/// The warm-up moves this part of the records.
const WARM_PART: u64 = 4;

/// The producer tool: warmed by a quarter of the records on a topic of its own, then measured.
pub(super) fn run_in(case: &Case<'_>, acks: Acks) -> Result<Measured> {
    let bench = Bench::start(case)?;
    bench.create_topic(WARM_TOPIC)?;
    bench.create_topic(TOPIC)?;
    bench.produce(WARM_TOPIC, case.extent.records / WARM_PART, acks)?;
    bench.measure(|| {
        let rate = bench.produce(TOPIC, case.extent.records, acks)?;
        bench.require_records(TOPIC, case.extent.records)?;
        Ok(rate)
    })
}

/// The consumer tool over what the producer tool wrote: warmed by a quarter of it, then measured.
pub(super) fn run_out(case: &Case<'_>) -> Result<Measured> {
    let bench = Bench::start(case)?;
    bench.create_topic(TOPIC)?;
    bench.produce(TOPIC, case.extent.records, Acks::Leader)?;
    bench.require_records(TOPIC, case.extent.records)?;
    bench.consume("warm", case.extent.records / WARM_PART)?;
    bench.measure(|| bench.consume("bench", case.extent.records))
}

/// A running broker, and the tools for it.
struct Bench<'a> {
    case: &'a Case<'a>,
    kafka: &'a KafkaInstall,
    broker: Running,
}

impl<'a> Bench<'a> {
    fn start(case: &'a Case<'a>) -> Result<Self> {
        let kafka = case.environment.kafka.as_ref().context("Kafka's tools were not set up")?;
        let broker = Running::start_ready(case.environment, case.launch())?;
        Ok(Self { case, kafka, broker })
    }

    fn create_topic(&self, name: &str) -> Result<()> {
        let mut connection = Connection::open(self.broker.endpoint())?;
        create_serving_topic(&mut connection, name, PARTITIONS, topic_configs(self.case.durability))?;
        Ok(())
    }

    /// Runs and measures `run`, which returns messages per second by the tool's own clock.
    fn measure(&self, run: impl FnOnce() -> Result<f64>) -> Result<Measured> {
        let pid = self.broker.pid();
        let sampler = Sampler::start(pid, Arc::default());
        let (begin, before) = (Instant::now(), CpuTimes::sample(pid)?);
        let rate = run()?;
        let cpu = CpuTimes::sample(pid)?.since(&before);
        let seconds = begin.elapsed().as_secs_f64();
        let memory = process::memory(pid)?;
        let mut measured = Measured::of([
            ("messages_per_s", rate),
            ("broker_cpu_s", cpu.broker_s()),
            ("mib_per_s", rate * RECORD_BYTES as f64 / MIB),
            ("vm_hwm_mib", memory.peak as f64 / MIB),
            ("vm_rss_mib", memory.resident as f64 / MIB),
            ("produced", self.case.extent.records as f64),
            ("window_s", seconds),
        ]);
        cpu.add_figures(&mut measured, self.case.extent.records as f64, seconds);
        measured.samples = sampler.finish();
        // The samples count no messages while the tools run.
        measured.samples.messages.clear();
        Ok(measured)
    }

    /// Returns messages per second as the tool reports them.
    fn produce(&self, topic: &str, records: u64, acks: Acks) -> Result<f64> {
        let mut tool = self.kafka.tool("org.apache.kafka.tools.ProducerPerformance");
        tool.args(["--topic", topic, "--throughput", "-1"]);
        tool.args(["--num-records", &records.to_string(), "--record-size", &RECORD_BYTES.to_string()]);
        tool.arg("--bootstrap-server").arg(self.broker.address.to_string());
        if let Some(properties) = self.broker.client_properties() {
            tool.arg("--command-config").arg(properties);
        }
        tool.arg("--command-property");
        tool.args([format!("acks={}", acks.setting()), format!("batch.size={BATCH_BYTES}")]);
        let output = run_tool(tool)?;
        let (sent, rate) = producer_totals(&output)
            .with_context(|| format!("kafka-producer-perf-test printed no totals:\n{output}"))?;
        ensure!(sent == records, "kafka-producer-perf-test sent {sent} of {records} records:\n{output}");
        Ok(rate)
    }

    /// Returns messages per second as the tool reports them, without the time to join the group.
    fn consume(&self, group: &str, records: u64) -> Result<f64> {
        let mut tool = self.kafka.tool("org.apache.kafka.tools.ConsumerPerformance");
        tool.args(["--topic", TOPIC, "--group", group, "--hide-header"]);
        tool.args(["--num-records", &records.to_string()]);
        tool.arg("--bootstrap-server").arg(self.broker.address.to_string());
        if let Some(properties) = self.broker.client_properties() {
            tool.arg("--command-config").arg(properties);
        }
        let output = run_tool(tool)?;
        let (consumed, rate) = consumer_totals(&output)
            .with_context(|| format!("kafka-consumer-perf-test printed no totals:\n{output}"))?;
        ensure!(consumed >= records, "kafka-consumer-perf-test consumed {consumed} of {records}:\n{output}");
        Ok(rate)
    }

    fn require_records(&self, topic: &str, records: u64) -> Result<()> {
        let mut connection = Connection::open(self.broker.endpoint())?;
        let stored = admin::count_records(&mut connection, topic, PARTITIONS)?;
        ensure!(stored == records, "{stored} records are stored where {records} were acknowledged");
        Ok(())
    }
}

/// Returns what the tool printed.
fn run_tool(mut tool: Command) -> Result<String> {
    let output = tool.stdin(Stdio::null()).output().context("starting one of Kafka's tools")?;
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "one of Kafka's tools ended with {}:\n{printed}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(printed)
}

/// (records, records per second) of the last line that has both: "2000000 records sent, 84000.1 records/sec (...".
fn producer_totals(output: &str) -> Option<(u64, f64)> {
    let line = output.lines().rev().find(|line| line.contains(" records sent, "))?;
    let (records, rest) = line.split_once(" records sent, ")?;
    let rate = rest.split_once(" records/sec")?.0;
    Some((records.trim().parse().ok()?, rate.trim().parse().ok()?))
}

/// (records, records per second of fetching) of the line of totals: begin, end, MB, MB/s, records, records/s, ms of the
/// rebalance, ms of fetching, MB/s and records/s of fetching.
fn consumer_totals(output: &str) -> Option<(u64, f64)> {
    let fields = output.lines().rev().map(|line| line.split(", ").collect::<Vec<_>>());
    let fields = fields.into_iter().find(|fields| fields.len() == 10)?;
    Some((fields[4].trim().parse().ok()?, fields[9].trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_of_the_tools_are_read() {
        let producer = "\
420000 records sent, 83999.9 records/sec (82.03 MB/sec), 12.3 ms avg latency, 300.0 ms max latency.
2000000 records sent, 84170.7 records/sec (82.20 MB/sec), 9.93 ms avg latency, 261.00 ms max latency, 3 ms 50th, 49 ms \
95th, 94 ms 99th, 130 ms 99.9th.
";
        assert_eq!(producer_totals(producer), Some((2_000_000, 84_170.7)));
        assert_eq!(producer_totals("nothing"), None);
        let consumer = "2026-11-22 06:00:00:000, 2026-11-22 06:00:05:000, 1953.1250, 390.6250, 2000000, 400000.0000, 3200, \
                        1800, 1085.0694, 1111111.1111\n";
        assert_eq!(consumer_totals(consumer), Some((2_000_000, 1_111_111.111_1)));
        assert_eq!(consumer_totals(""), None);
    }
}
