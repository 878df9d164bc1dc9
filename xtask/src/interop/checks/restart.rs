//! The broker is killed in the middle of producers' runs, twice, and started again.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::super::broker::{Broker, PARTITIONS};
use super::super::client::{Client, read_file};
use super::super::feeder::{Feeder, fed_value};
use super::super::report::Report;
use super::super::text::{self, Record};
use super::super::world::World;
use crate::process::wait_until;

/// Records that each producer writes in all, at each turn, and after each kill before the broker is started again.
const RECORDS: usize = 20_000;
const TURN_RECORDS: usize = 100;
const RECORDS_WHILE_DOWN: usize = 1_000;
const TURN: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_secs(120);

/// Kills and starts the broker under all clients at once. No record is lost, written twice or out of its order.
pub(crate) fn run(world: &World, report: &Report, clients: &[Client], broker: &mut Broker) {
    let begin = Instant::now();
    let mut feeders: Vec<(Client, Result<Feeder>)> =
        clients.iter().map(|client| (*client, start(world, *client))).collect();
    let killed = kill_twice(world, &mut feeders, broker);
    for (client, feeder) in feeders {
        let result = match &killed {
            Ok(()) => feeder.and_then(|feeder| finish(world, client, feeder)),
            Err(error) => Err(anyhow::anyhow!("{error:#}")),
        };
        report.outcome(client.key(), "broker killed", begin.elapsed(), result);
    }
}

fn topic(client: Client) -> String {
    format!("restart-{}", client.key())
}

fn start(world: &World, client: Client) -> Result<Feeder> {
    client.create(world, &[topic(client)])?;
    client.feed(world, &topic(client), 0)
}

fn kill_twice(world: &World, feeders: &mut [(Client, Result<Feeder>)], broker: &mut Broker) -> Result<()> {
    for until in [RECORDS / 3, 2 * RECORDS / 3] {
        feed_until(world, feeders, until)?;
        broker.kill();
        feed_until(world, feeders, until + RECORDS_WHILE_DOWN)?;
        broker.restart().context("start the broker again")?;
    }
    feed_until(world, feeders, RECORDS)
}

/// Feeds all producers at a pace until they have been fed so many records; a producer that fails is out.
fn feed_until(world: &World, feeders: &mut [(Client, Result<Feeder>)], records: usize) -> Result<()> {
    let mut fed =
        feeders.iter().filter_map(|(_, feeder)| feeder.as_ref().ok().map(Feeder::fed)).max().unwrap_or(0);
    let mut next = Instant::now();
    wait_until(
        || format!("{records} records are fed"),
        DEADLINE,
        || {
            if fed < records && Instant::now() >= next {
                let count = TURN_RECORDS.min(records - fed);
                feeders.iter_mut().for_each(|(_, feeder)| feed(world, feeder, count));
                fed += count;
                next += TURN;
            }
            Ok(fed >= records)
        },
    )
}

fn feed(world: &World, feeder: &mut Result<Feeder>, count: usize) {
    if let Ok(running) = feeder
        && let Err(error) = running.feed(&world.text, count)
    {
        *feeder = Err(error);
    }
}

/// Returns a note for the report: for a producer that is not idempotent, the number of records that exist twice.
fn finish(world: &World, client: Client, mut feeder: Feeder) -> Result<Option<String>> {
    feeder.finish(DEADLINE)?;
    let out = world.run.join("after-restart");
    client.consume(world, &[topic(client)], &out)?;
    let again = check_complete(world, &text::read_records(&read_file(&out, &topic(client)))?)?;
    if client.facts().is_idempotent {
        ensure!(again.is_empty(), "{} records are there again: {:?} ...", again.len(), again[0]);
        return Ok(None);
    }
    Ok(Some(format!("{} of {RECORDS} twice", again.len())))
}

/// A record that occurs a second time.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
struct Again {
    number: usize,
    partition: i32,
    offset: i64,
}

/// Checks that every record exists, first in the order of writing within its partition. Returns those that occur again.
fn check_complete(world: &World, records: &[Record]) -> Result<Vec<Again>> {
    let mut seen = vec![false; RECORDS];
    let mut last = vec![None; PARTITIONS as usize];
    let mut again = Vec::new();
    for record in records {
        let value = record.value.as_deref().context("a value")?;
        let n: usize = value.split(' ').next().context("a number")?.parse()?;
        ensure!(value == fed_value(&world.text, n), "another value: {value}");
        if std::mem::replace(seen.get_mut(n).context("a number that was written")?, true) {
            again.push(Again { number: n, partition: record.partition, offset: record.offset });
            continue;
        }
        let before = last[usize::try_from(record.partition)?].replace(n);
        ensure!(before < Some(n), "partition {}: record {n} after {before:?}", record.partition);
    }
    let lost = seen.iter().filter(|seen| !**seen).count();
    ensure!(lost == 0, "{lost} of {RECORDS} records are lost");
    Ok(again)
}
