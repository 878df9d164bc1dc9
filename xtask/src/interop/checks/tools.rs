//! Kafka's own command line tools, as an operator calls them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::super::install;
use super::super::report::Report;
use super::super::runner::Finished;
use super::super::world::World;
use super::{api_versions, consumer_groups, log_dirs};
use crate::process::{Process, wait_until};

/// Timeout for a change of metadata to be visible to the next tool.
const PROPAGATION: Duration = Duration::from_secs(90);
pub(super) const PROCESS_DEADLINE: Duration = Duration::from_secs(150);

pub(super) const TOPICS: &str = "kafka-topics";
const CONFIGS: &str = "kafka-configs";
pub(super) const GROUPS: &str = "kafka-consumer-groups";
const GET_OFFSETS: &str = "kafka-get-offsets";
const DELETE_RECORDS: &str = "kafka-delete-records";
const CONSOLE_PRODUCER: &str = "kafka-console-producer";
const CONSOLE_CONSUMER: &str = "kafka-console-consumer";

/// The body of a check.
pub(super) type Check = fn(&Tools<'_>) -> Result<()>;

/// Each check by its tool; a check may use a topic that one above it filled.
const CHECKS: &[(&str, &str, Check)] = &[
    ("kafka-broker-api-versions", "APIs and their versions", |tools| tools.api_versions()),
    (TOPICS, "create, list, describe, alter, delete", |tools| tools.topics()),
    (CONFIGS, "topic: add, describe, delete", |tools| tools.topic_configs()),
    (CONFIGS, "broker: describe", |tools| tools.broker_configs()),
    (CONSOLE_PRODUCER, "keys and headers from standard input", |tools| tools.console_producer()),
    (CONSOLE_CONSUMER, "keys and headers, in a group", |tools| tools.console_consumer()),
    (CONSOLE_CONSUMER, "from an offset of a partition", |tools| tools.console_consumer_at_offset()),
    (GROUPS, "list, describe, state, reset offsets", |tools| tools.groups()),
    ("kafka-producer-perf-test", "20,000 records", |tools| tools.producer_perf()),
    ("kafka-consumer-perf-test", "20,000 records", |tools| tools.consumer_perf()),
    (GET_OFFSETS, "earliest, latest, by timestamp", |tools| tools.get_offsets()),
    (DELETE_RECORDS, "up to an offset", |tools| tools.delete_records()),
    ("kafka-verifiable-producer", "1,000 records acknowledged", |tools| tools.verifiable_producer()),
    ("kafka-verifiable-consumer", "1,000 records in a group", |tools| tools.verifiable_consumer()),
    (GROUPS, "members of a group that is at work", |tools| tools.active_group()),
    (CONSOLE_PRODUCER, "as a process of its own, then kafka-topics --list", |tools| tools.own_processes()),
];

/// Runs all of them.
pub(crate) fn run(world: &World, report: &Report) {
    let tools = Tools::new(world);
    for (tool, check, body) in CHECKS.iter().chain(consumer_groups::CHECKS).chain(log_dirs::CHECKS) {
        report.check(tool, check, || body(&tools));
    }
}

/// The tools against one broker.
pub(super) struct Tools<'a> {
    world: &'a World,
    bootstrap: String,
}

/// Splits options as they are typed; none here holds a space.
pub(super) fn words(options: &str) -> Vec<&str> {
    options.split_whitespace().collect()
}

/// Fails unless the output holds the texts.
pub(super) fn expect(output: &str, wanted: &[&str]) -> Result<()> {
    for text in wanted {
        ensure!(output.contains(text), "no {text:?} in:\n{output}");
    }
    Ok(())
}

impl<'a> Tools<'a> {
    /// The tools against the broker of this run.
    pub(super) fn new(world: &'a World) -> Tools<'a> {
        Tools { world, bootstrap: world.bootstrap() }
    }

    /// The tools against another broker than that of this run.
    pub(super) fn at(world: &'a World, bootstrap: String) -> Tools<'a> {
        Tools { world, bootstrap }
    }

    pub(super) fn world(&self) -> &World {
        self.world
    }

    /// HOST:PORT of the broker.
    pub(super) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// Runs a tool with `--bootstrap-server` and these options.
    pub(super) fn call(&self, tool: &str, options: &str, input: &str) -> Result<Finished> {
        let arguments = [&["--bootstrap-server", &self.bootstrap][..], &words(options)].concat();
        self.world.tool(tool, &arguments, input)
    }

    /// The same for a tool that wants its subcommand first.
    pub(super) fn subcommand(&self, tool: &str, command: &str, options: &str) -> Result<Finished> {
        let arguments = [&[command, "--bootstrap-server", &self.bootstrap][..], &words(options)].concat();
        self.world.tool(tool, &arguments, "")
    }

    /// The output of a tool that ends well.
    pub(super) fn output(&self, tool: &str, options: &str) -> Result<String> {
        self.call(tool, options, "")?.success()
    }

    /// Calls a tool until its output holds the texts.
    pub(super) fn await_output(&self, tool: &str, options: &str, wanted: &[&str]) -> Result<()> {
        let mut output = String::new();
        let result = wait_until(
            || format!("{tool} {options} prints {wanted:?}"),
            PROPAGATION,
            || {
                output = self.output(tool, options)?;
                Ok(wanted.iter().all(|text| output.contains(text)))
            },
        );
        result.with_context(|| format!("it printed:\n{output}"))
    }

    /// Calls a tool until its output does not hold the text any more.
    pub(super) fn await_gone(&self, tool: &str, options: &str, text: &str) -> Result<()> {
        wait_until(
            || format!("{tool} {options} does not print {text:?} any more"),
            PROPAGATION,
            || Ok(!self.output(tool, options)?.contains(text)),
        )
    }

    /// A tool that must refuse, with this text among what it prints.
    pub(super) fn refused(&self, tool: &str, options: &str, wanted: &str) -> Result<()> {
        let finished = self.call(tool, options, "")?;
        ensure!(finished.exit != 0, "{tool} {options} ended well:\n{}", finished.out);
        expect(&(finished.out + &finished.err), &[wanted])
    }

    /// Each API has the versions that Kafka has, but for those of `api_versions::NOT_AS_KAFKA`.
    fn api_versions(&self) -> Result<()> {
        api_versions::compare(&self.output("kafka-broker-api-versions", "")?)
    }

    fn topics(&self) -> Result<()> {
        let create = "--create --topic tool-topics --partitions 3 --replication-factor 1 --config retention.ms=3600000";
        expect(&self.output(TOPICS, create)?, &["Created topic tool-topics."])?;
        self.refused(TOPICS, create, "already exists")?;
        self.await_output(TOPICS, "--list", &["tool-topics"])?;
        let described = [
            "PartitionCount: 3",
            "ReplicationFactor: 1",
            "retention.ms=3600000",
            "Partition: 2",
            "TopicId: ",
        ];
        self.await_output(TOPICS, "--describe --topic tool-topics", &described)?;
        self.output(TOPICS, "--alter --topic tool-topics --partitions 5")?;
        self.await_output(TOPICS, "--describe --topic tool-topics", &["PartitionCount: 5", "Partition: 4"])?;
        self.refused(TOPICS, "--alter --topic tool-topics --partitions 2", "partition")?;
        self.refused(TOPICS, "--create --topic bad/name --partitions 1", "invalid")?;
        self.refused(
            TOPICS,
            "--create --topic tool-factor --partitions 1 --replication-factor 3",
            "replication factor",
        )?;
        self.output(TOPICS, "--delete --topic tool-topics")?;
        self.await_gone(TOPICS, "--list", "tool-topics")?;
        self.refused(TOPICS, "--describe --topic tool-topics", "does not exist")
    }

    fn topic_configs(&self) -> Result<()> {
        self.output(TOPICS, "--create --topic tool-configs --partitions 1")?;
        let topic = "--entity-type topics --entity-name tool-configs";
        let alter = format!("--alter {topic} --add-config max.message.bytes=2000000,cleanup.policy=[delete]");
        expect(&self.output(CONFIGS, &alter)?, &["Completed updating config"])?;
        let describe = format!("--describe {topic}");
        let dynamic = ["max.message.bytes=2000000", "DYNAMIC_TOPIC_CONFIG:max.message.bytes=2000000"];
        self.await_output(CONFIGS, &describe, &dynamic)?;
        let all = ["segment.bytes=1073741824", "retention.ms=604800000", "compression.type=producer"];
        self.await_output(CONFIGS, &format!("--describe --all {topic}"), &all)?;
        self.refused(CONFIGS, &format!("--alter {topic} --add-config retention.ms=soon"), "retention.ms")?;
        self.refused(CONFIGS, &format!("--alter {topic} --add-config no.such.key=1"), "no.such.key")?;
        self.output(CONFIGS, &format!("--alter {topic} --delete-config max.message.bytes"))?;
        self.await_gone(CONFIGS, &describe, "max.message.bytes=2000000")
    }

    fn broker_configs(&self) -> Result<()> {
        let versions = self.output("kafka-broker-api-versions", "")?;
        let (_, id) = versions.split_once("(id: ").context("the broker's id")?;
        let (id, _) = id.split_once(' ').context("the end of the broker's id")?;
        let options = format!("--describe --all --entity-type brokers --entity-name {id}");
        expect(&self.output(CONFIGS, &options)?, &["num.partitions=6", "group.initial.rebalance.delay.ms=0"])
    }

    fn console_producer(&self) -> Result<()> {
        self.output(TOPICS, "--create --topic tool-console --partitions 1")?;
        let input = "color:red,color:blue\tkey 1\tvalue 1\n-\tkey 2\tvalue 2\ncolor:red\t-\tvalue 3\n";
        let options = "--topic tool-console --reader-property parse.headers=true --reader-property parse.key=true \
                       --reader-property null.marker=-";
        self.call(CONSOLE_PRODUCER, options, input)?.success()?;
        Ok(())
    }

    fn console_consumer(&self) -> Result<()> {
        let options = "--topic tool-console --group tool-console-group --from-beginning --max-messages 3 \
                       --timeout-ms 30000 --formatter-property print.key=true --formatter-property print.headers=true \
                       --formatter-property print.offset=true";
        let output = self.output(CONSOLE_CONSUMER, options)?;
        let lines = [
            "Offset:0\tcolor:red,color:blue\tkey 1\tvalue 1",
            "Offset:1\tNO_HEADERS\tkey 2\tvalue 2",
            "Offset:2\tcolor:red\tnull\tvalue 3",
        ];
        ensure!(output.lines().eq(lines), "it printed:\n{output}");
        Ok(())
    }

    fn console_consumer_at_offset(&self) -> Result<()> {
        let options = "--topic tool-console --partition 0 --offset 2 --max-messages 1 --timeout-ms 30000";
        let output = self.output(CONSOLE_CONSUMER, options)?;
        ensure!(output.trim_end() == "value 3", "it printed:\n{output}");
        Ok(())
    }

    fn groups(&self) -> Result<()> {
        let group = "--group tool-console-group";
        expect(&self.output(GROUPS, "--list")?, &["tool-console-group"])?;
        expect(&self.output(GROUPS, "--list --state")?, &["tool-console-group", "Empty"])?;
        let output = self.output(GROUPS, &format!("--describe {group}"))?;
        let line = output.lines().find(|line| line.starts_with("tool-console-group"));
        let fields = words(line.with_context(|| format!("the group in:\n{output}"))?);
        ensure!(
            fields[1..6] == ["tool-console", "0", "3", "3", "0"],
            "partition, offsets and lag: {fields:?}"
        );
        expect(&self.output(GROUPS, &format!("--describe --state {group}"))?, &["Empty"])?;
        let reset = format!("--reset-offsets {group} --topic tool-console --to-offset 1 --execute");
        expect(&self.output(GROUPS, &reset)?, &["tool-console-group", "tool-console"])?;
        let output = self.output(GROUPS, &format!("--describe {group}"))?;
        let is_reset =
            |line: &str| line.starts_with("tool-console-group") && words(line)[2..6] == ["0", "1", "3", "2"];
        ensure!(output.lines().any(is_reset), "no offset 1 and lag 2 in:\n{output}");
        // The tool ends well although it reports this.
        expect(&self.output(GROUPS, "--describe --group no-such-group")?, &["no-such-group not found"])
    }

    fn producer_perf(&self) -> Result<()> {
        self.output(TOPICS, "--create --topic tool-perf --partitions 1")?;
        let options = "--topic tool-perf --num-records 20000 --record-size 200 --throughput -1 --command-property acks=all";
        expect(&self.output("kafka-producer-perf-test", options)?, &["20000 records sent"])
    }

    fn consumer_perf(&self) -> Result<()> {
        let options = "--topic tool-perf --num-records 20000 --timeout 30000 --hide-header";
        let output = self.output("kafka-consumer-perf-test", options)?;
        let records = output.lines().last().and_then(|line| line.split(", ").nth(4));
        ensure!(records == Some("20000"), "records consumed: {records:?} in:\n{output}");
        Ok(())
    }

    fn get_offsets(&self) -> Result<()> {
        let cases = [("earliest", "0"), ("-2", "0"), ("latest", "20000"), ("-1", "20000"), ("1000", "0")];
        for (time, offset) in cases {
            let output = self.output(GET_OFFSETS, &format!("--topic tool-perf --time {time}"))?;
            ensure!(output.trim_end() == format!("tool-perf:0:{offset}"), "--time {time} printed:\n{output}");
        }
        let output = self.output(GET_OFFSETS, "--topic tool-perf --time max-timestamp")?;
        let offset: i64 = output.trim_end().rsplit(':').next().context("an offset")?.parse()?;
        ensure!((0..20_000).contains(&offset), "--time max-timestamp printed:\n{output}");
        Ok(())
    }

    fn delete_records(&self) -> Result<()> {
        let file = self.world.run.join("delete-records.json");
        let partitions =
            r#"{"partitions": [{"topic": "tool-perf", "partition": 0, "offset": 12345}], "version": 1}"#;
        fs::write(&file, partitions)?;
        let output = self.output(DELETE_RECORDS, &format!("--offset-json-file {}", file.display()))?;
        expect(&output, &["low_watermark: 12345"])?;
        let output = self.output(GET_OFFSETS, "--topic tool-perf --time earliest")?;
        ensure!(output.trim_end() == "tool-perf:0:12345", "earliest after deletion: {output}");
        Ok(())
    }

    fn verifiable_producer(&self) -> Result<()> {
        self.output(TOPICS, "--create --topic tool-verifiable --partitions 2")?;
        // Its last lines come from a hook that runs at the end of a process.
        let printed = self.world.run.join("verifiable-producer.txt");
        let options =
            format!("--topic tool-verifiable --max-messages 1000 --acks -1 > {}", printed.display());
        self.own_process("kafka-verifiable-producer", &options)?;
        let output = fs::read_to_string(printed)?;
        let acknowledged = output.lines().filter(|line| line.contains("producer_send_success")).count();
        ensure!(acknowledged == 1_000, "{acknowledged} records acknowledged:\n{output}");
        expect(&output, &[r#""acked":1000"#])
    }

    fn verifiable_consumer(&self) -> Result<()> {
        let options = "--topic tool-verifiable --group-id tool-verifiable-group --max-messages 1000 \
                       --reset-policy earliest --verbose";
        let output = self.output("kafka-verifiable-consumer", options)?;
        let read = output.lines().filter(|line| line.contains("\"record_data\"")).count();
        ensure!(read == 1_000, "{read} records read");
        expect(&output, &["offsets_committed", "partitions_assigned"])
    }

    fn active_group(&self) -> Result<()> {
        let member = self.active_member("tool-verifiable", "tool-active-group")?;
        let describe = "--describe --group tool-active-group";
        self.await_output(GROUPS, &format!("{describe} --state"), &["Stable", "range", "1"])?;
        let members = ["CONSUMER-ID", "tool-verifiable:0,1"];
        self.await_output(GROUPS, &format!("{describe} --members --verbose"), &members)?;
        // It has no offset to describe before it commits, which it does after it has read.
        self.await_output(GROUPS, describe, &["tool-active-group", "tool-verifiable", "LAG"])?;
        drop(member);
        Ok(())
    }

    /// A member of a group as a process of its own; it ends when it is dropped.
    pub(super) fn active_member(&self, topic: &str, group: &str) -> Result<Process> {
        let options = format!("--topic {topic} --group-id {group} --reset-policy earliest");
        self.start_process("kafka-verifiable-consumer", &options)
    }

    /// Returns a path for a file of a check.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.world.run.join(name)
    }

    /// Starts a tool by its script, with a redirection as in a shell.
    pub(super) fn start_process(&self, tool: &str, options: &str) -> Result<Process> {
        let script = install::kafka_bin().join(format!("{tool}.sh"));
        let line = format!("{} --bootstrap-server {} {options}", script.display(), self.bootstrap);
        Process::start_group(tool, Command::new("sh").args(["-c", &line]), &self.world.logs)
    }

    /// Runs a tool by its script to its end.
    fn own_process(&self, tool: &str, options: &str) -> Result<()> {
        self.start_process(tool, options)?.wait(PROCESS_DEADLINE)
    }

    fn own_processes(&self) -> Result<()> {
        let lines = self.world.run.join("own-process.txt");
        fs::write(&lines, "one\ntwo\n")?;
        self.own_process(CONSOLE_PRODUCER, &format!("--topic tool-own-process < {}", lines.display()))?;
        let listed = self.world.run.join("own-process-topics.txt");
        self.own_process(TOPICS, &format!("--list > {}", listed.display()))?;
        expect(&fs::read_to_string(listed)?, &["tool-own-process"])?;
        let options = "--topic tool-own-process --from-beginning --max-messages 2 --timeout-ms 30000";
        let output = self.output(CONSOLE_CONSUMER, options)?;
        // The producer may have spread its two records over partitions.
        expect(&output, &["one", "two"])
    }
}
