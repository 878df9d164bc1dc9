//! A loop that reads, writes and commits its positions in transactions, every third of which is aborted first. The output has the records
//! of the input, each once.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::super::broker::PARTITIONS;
use super::super::client::{Client, read_file};
use super::super::protocol::{committed_offsets, record_count};
use super::super::report::Report;
use super::super::text::{self, Record};
use super::super::world::World;
use super::tools::expect;

/// Records that are passed on.
const RECORDS: usize = 5_000;

const TRANSACTIONS: &str = "kafka-transactions";

/// Runs the loop, and asks Kafka's tool about what the Java client's has left.
pub(crate) fn run(world: &World, report: &Report, client: Client) {
    let passed = report.check(client.key(), "transactions", || pass_on(world, client));
    if client == Client::Java && passed {
        report.check(TRANSACTIONS, "list, describe, find-hanging", || ask_the_tool(world));
    }
}

fn id(client: Client) -> String {
    format!("transactions-{}", client.key())
}

fn pass_on(world: &World, client: Client) -> Result<()> {
    let records = world.text.records(RECORDS, client.facts().limits);
    let (input, output, group) =
        (format!("in-{}", client.key()), format!("out-{}", client.key()), format!("group-{}", client.key()));
    let file = world.run.join(format!("{input}.jsonl"));
    text::write_records(&file, &records)?;
    client.create(world, &[input.clone(), output.clone()])?;
    client.produce(world, &file, &[("none", input.clone())])?;
    client.transact(world, &input, &output, &group, &id(client))?;
    let out = world.run.join(format!("committed-of-{}", client.key()));
    Client::Java.consume_committed(world, &output, &out)?;
    let read = text::read_records(&read_file(&out, &output))?;
    let (written, read) = (by_partition(&records), by_partition(&read));
    for partition in 0..PARTITIONS {
        let (written, read) = (written.get(&partition), read.get(&partition));
        ensure!(
            written == read,
            "partition {partition}: {:?} records came out of {:?}, or others",
            read.map(Vec::len),
            written.map(Vec::len)
        );
    }
    let committed = committed_offsets(world.address(), &group, &input, PARTITIONS)?;
    let total: i64 = committed.iter().sum();
    let count = record_count(world.address(), &input, PARTITIONS)?;
    ensure!(total == count, "the group is at {committed:?}, {total} of {count}");
    Ok(())
}

/// Key and value of a record.
type Pair<'a> = (&'a Option<String>, &'a Option<String>);

/// Keys and values in the order of their offsets.
fn by_partition(records: &[Record]) -> BTreeMap<i32, Vec<Pair<'_>>> {
    let mut partitions: BTreeMap<i32, Vec<_>> = BTreeMap::new();
    for record in records {
        partitions.entry(record.partition).or_default().push((&record.key, &record.value));
    }
    partitions
}

fn ask_the_tool(world: &World) -> Result<()> {
    let bootstrap = world.bootstrap();
    let ask = |command: &[&str]| {
        let arguments = [&["--bootstrap-server", bootstrap.as_str()], command].concat();
        world.tool(TRANSACTIONS, &arguments, "")?.success()
    };
    let id = id(Client::Java);
    expect(&ask(&["list"])?, &[&id, "CompleteCommit"])?;
    let described = ask(&["describe", "--transactional-id", &id])?;
    expect(&described, &["CompleteCommit", "ProducerEpoch"])?;
    let hanging = ask(&["find-hanging", "--broker-id", "1"])?;
    let rows = hanging.lines().filter(|line| line.starts_with("out-")).count();
    ensure!(rows == 0, "transactions hang:\n{hanging}");
    Ok(())
}
