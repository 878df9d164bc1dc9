//! kcat behind the commands of [`Client`](super::client::Client): it is one program with options for everything.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::broker::PARTITIONS;
use super::client::{COMMAND_DEADLINE, Group, Rebalance};
use super::text::{self, Record};
use super::world::World;
use crate::process::Process;

fn kcat(world: &World, mode: &str) -> Command {
    let mut command = Command::new("kcat");
    command.args(["-b", &world.bootstrap(), "-X", "reconnect.backoff.max.ms=200", mode]);
    command
}

fn run(world: &World, what: &str, topic: &str, command: &mut Command) -> Result<()> {
    Process::start(&format!("kcat-{what}-{topic}"), command, &world.logs)?.wait(COMMAND_DEADLINE)
}

/// Asks for a topic's metadata as a producer does, which creates it.
pub(crate) fn create(world: &World, topic: &str) -> Result<()> {
    run(world, "create", topic, kcat(world, "-L").args(["-t", topic]))
}

/// Writes the records of a file, one run per partition: `-K` splits key from value, `-Z` makes empty ones null.
pub(crate) fn produce(world: &World, input: &Path, codec: &str, topic: &str) -> Result<()> {
    let records = text::read_records(input)?;
    for partition in 0..PARTITIONS {
        let lines = world.run.join(format!("kcat-{topic}-{partition}.txt"));
        fs::write(&lines, key_value_lines(&records, partition))?;
        let mut command = kcat(world, "-P");
        command.args(["-t", topic, "-p", &partition.to_string(), "-K", "\t", "-Z", "-X"]);
        command.arg(format!("compression.codec={codec}"));
        for (name, value) in text::kcat_headers() {
            command.arg("-H").arg(value.map_or(name.clone(), |value| format!("{name}={value}")));
        }
        run(world, "produce", topic, command.arg("-l").arg(&lines))?;
    }
    Ok(())
}

fn key_value_lines(records: &[Record], partition: i32) -> String {
    let mut lines = String::new();
    for record in records.iter().filter(|record| record.partition == partition) {
        let key = record.key.as_deref().unwrap_or_default();
        lines += &format!("{key}\t{}\n", record.value.as_deref().unwrap_or_default());
    }
    lines
}

/// A line of kcat's `-J` output.
#[derive(Deserialize)]
struct Line {
    partition: i32,
    offset: i64,
    key: Option<String>,
    payload: Option<String>,
    #[serde(default)]
    headers: Vec<Option<String>>,
}

impl Line {
    fn into_record(self) -> Result<Record> {
        let mut headers = Vec::new();
        let mut names_and_values = self.headers.into_iter();
        while let Some(name) = names_and_values.next() {
            headers.push((
                name.context("a header's name")?,
                names_and_values.next().context("a header's value")?,
            ));
        }
        Ok(Record {
            partition: self.partition,
            offset: self.offset,
            key: self.key,
            value: self.payload,
            headers,
        })
    }
}

/// Reads a topic from its beginning to its end.
pub(crate) fn consume(world: &World, topic: &str, out: &Path) -> Result<()> {
    let json = out.with_extension("kcat");
    let mut command = kcat(world, "-C");
    command.args(["-t", topic, "-o", "beginning", "-e", "-q", "-J"]);
    Process::start_to_file(&format!("kcat-consume-{topic}"), &mut command, &world.logs, &json)?
        .wait(COMMAND_DEADLINE)?;
    let mut records = Vec::new();
    for line in BufReader::new(fs::File::open(&json)?).lines() {
        let line = line?;
        let parsed: Line = serde_json::from_str(&line).with_context(|| format!("kcat printed {line}"))?;
        records.push(parsed.into_record()?);
    }
    text::write_records(out, &records)
}

/// An idempotent producer of the lines of its input; `-E` keeps it alive while the broker is down.
pub(crate) fn feed(world: &World, topic: &str) -> Command {
    let mut command = kcat(world, "-P");
    command.args(["-t", topic, "-K", "\t", "-E", "-X", "enable.idempotence=true", "-X", "acks=all"]);
    command.args(["-X", "compression.codec=lz4", "-X", "linger.ms=5"]);
    command
}

/// A member of a group. It commits what it printed, by itself every half second and when it leaves.
pub(crate) fn member(world: &World, group: &Group) -> Command {
    let mut command = kcat(world, "-G");
    command.args([&group.id, "-u", "-q", "-f", "r %p %o %s\n"]);
    command.args([
        "-X",
        &format!("session.timeout.ms={}", group.session_ms),
        "-X",
        "heartbeat.interval.ms=500",
    ]);
    command.args(["-X", "auto.offset.reset=earliest", "-X", "auto.commit.interval.ms=500"]);
    let assignor = match group.rebalance {
        Rebalance::Eager => "range",
        Rebalance::Cooperative => "cooperative-sticky",
        Rebalance::Consumer => unreachable!("the librdkafka of kcat has no consumer protocol"),
    };
    command.args(["-X", &format!("partition.assignment.strategy={assignor}"), &group.topic]);
    command
}
