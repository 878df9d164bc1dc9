//! Records written by one client come back identical and in order: by itself, by the Java client, by kcat.

use anyhow::{Context, Result};

use super::super::client::{Client, read_file};
use super::super::report::Report;
use super::super::text::{self, CODEC_RECORDS, Record};
use super::super::world::World;

/// Kafka's codecs; every client here has all of them.
pub(crate) const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

fn topic(client: Client, codec: &str) -> String {
    format!("codec-{}-{codec}", client.key())
}

fn records(world: &World, client: Client, count: usize) -> Vec<Record> {
    world.text.records(count, client.facts().limits)
}

/// With each codec: writes records with keys, headers and nulls, and reads them back.
pub(crate) fn codecs(world: &World, report: &Report, client: Client) {
    let records = records(world, client, CODEC_RECORDS);
    let input = world.run.join(format!("codecs-{}.jsonl", client.key()));
    for codec in CODECS {
        report.check(client.key(), codec, || {
            let topic = topic(client, codec);
            client.create(world, std::slice::from_ref(&topic))?;
            text::write_records(&input, &records)?;
            client.produce(world, &input, &[(codec, topic.clone())])?;
            read_back(world, client, &topic, &records)
        });
    }
}

/// Writes and reads back much real text.
pub(crate) fn much_text(world: &World, report: &Report, client: Client) {
    report.check(client.key(), "real text", || {
        let records = world.text.all_records(client.facts().limits);
        let topic = format!("text-{}", client.key());
        let input = world.run.join(format!("{topic}.jsonl"));
        text::write_records(&input, &records)?;
        client.create(world, std::slice::from_ref(&topic))?;
        client.produce(world, &input, &[("lz4", topic.clone())])?;
        read_back(world, client, &topic, &records)
    });
}

fn read_back(world: &World, client: Client, topic: &str, records: &[Record]) -> Result<()> {
    let out = world.run.join(format!("read-by-{}", client.key()));
    client.consume(world, &[topic.to_string()], &out)?;
    text::check_identical(records, &text::read_records(&read_file(&out, topic))?)
}

/// `reader` reads what `writer` wrote with each codec.
pub(crate) fn cross_read(world: &World, report: &Report, reader: Client, writer: Client) {
    let check = if reader == Client::Java { "read by Java" } else { "read by kcat" };
    let out = world.run.join(format!("cross-read-by-{}", reader.key()));
    report.check(writer.key(), check, || {
        let topics = CODECS.map(|codec| topic(writer, codec));
        reader.consume(world, &topics, &out)?;
        let written = records(world, writer, CODEC_RECORDS);
        for topic in topics {
            let read = text::read_records(&read_file(&out, &topic))?;
            text::check_identical(&written, &read).with_context(|| topic.clone())?;
        }
        Ok(())
    });
}
