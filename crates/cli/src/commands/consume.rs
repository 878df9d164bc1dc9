//! `mainstem consume`: reads records of a topic and prints them.

mod fetcher;
mod printer;
mod reader;
mod start;

use anyhow::Result;
use clap::Args;

use crate::interrupt::Interrupt;
use crate::target::Target;

use printer::{Format, Printer};
use reader::Reader;
use start::Start;

/// What `consume` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --follow the command ends at the records that were there when it started. With --group the group's committed
offsets come before --from; what was printed is committed every few seconds and at the end. Ctrl-C ends it in order.")]
pub(crate) struct Consume {
    /// Name of the topic.
    topic: String,
    /// Where to start: beginning, end, an offset, -N for N records before the end, a time as 2026-11-21T22:00:00Z, or
    /// @MS for milliseconds since 1970.
    #[arg(long, short, default_value = "beginning", value_name = "WHERE", allow_hyphen_values = true)]
    from: Start,
    /// Only this partition; may be given several times.
    #[arg(long, short, value_name = "N", conflicts_with = "group")]
    partition: Vec<i32>,
    /// Read as a member of this consumer group, and commit.
    #[arg(long, short, value_name = "GROUP")]
    group: Option<String>,
    /// Wait for further records.
    #[arg(long, short = 'F')]
    follow: bool,
    /// End after so many records.
    #[arg(long, short = 'n', value_name = "N")]
    max: Option<u64>,
    /// Print the key and a tab before each value.
    #[arg(long, short = 'k', conflicts_with = "json")]
    with_key: bool,
    /// Print each record as a line of JSON with partition, offset, timestamp, key, value and headers. What is not
    /// UTF-8 goes in key_base64 and value_base64.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Prints the records.
pub(crate) fn run(consume: &Consume) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let mut cluster = consume.target.connect_blocking()?;
    let topic = cluster.topic(&consume.topic)?;
    let format = match (consume.json, consume.with_key) {
        (true, _) => Format::Json,
        (false, true) => Format::KeyAndValue,
        (false, false) => Format::Value,
    };
    let printer = Printer::new(format, consume.max);
    let mut reader = Reader::new(cluster, &topic, printer, consume.follow, interrupt);
    match &consume.group {
        Some(group) => reader.read_as_member(group, consume.from),
        None => reader.read_partitions(&consume.partition, consume.from),
    }
}
