//! `mainstem produce`: writes lines of standard input to a topic.

mod batches;
mod input;
mod line;
mod report;
mod sender;

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use mainstem_records::Compression;

use crate::interrupt::Interrupt;
use crate::target::Target;

use batches::Batches;
use input::{Input, Next};
use line::{HeaderArgument, LineFormat};
use report::Progress;
use sender::Sender;

/// How long to wait for further input before what is there goes out.
const LINGER: Duration = Duration::from_millis(5);

/// What `produce` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line of standard input is the value of a record. Exit code 1 if any record was not acknowledged.
With --json a line is {\"key\":..,\"value\":..,\"headers\":[{\"key\":..,\"value\":..}],\"partition\":..,\"timestamp\":..}, all of it
optional; key_base64 and value_base64 carry bytes. `mainstem consume --json` writes such lines.")]
pub(crate) struct Produce {
    /// Name of the topic.
    topic: String,
    /// Split each line into key and value at the first of these.
    #[arg(long, short = 's', value_name = "TEXT", conflicts_with_all = ["key", "json"])]
    key_separator: Option<String>,
    /// The key of every record.
    #[arg(long, short, value_name = "KEY", conflicts_with = "json")]
    key: Option<String>,
    /// A header of every record; may be given several times, also with the same key.
    #[arg(long = "header", short = 'H', value_name = "KEY=VALUE", value_parser = HeaderArgument::parse)]
    headers: Vec<HeaderArgument>,
    /// How batches are compressed.
    #[arg(long, short = 'z', value_enum, default_value = "none", value_name = "CODEC")]
    compression: Codec,
    /// Who must have a record before it counts: all in-sync replicas, the leader (1), nobody (0).
    #[arg(long, short, value_enum, default_value = "all")]
    acks: Acks,
    /// The partition of every record that does not name its own. [default: by key; without keys in turn]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// A batch goes out when it has so many bytes before compression.
    #[arg(long, default_value_t = 512 << 10, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..1 << 30))]
    batch_bytes: u32,
    /// Let the broker create the topic by its defaults if it does not exist.
    #[arg(long)]
    auto_create: bool,
    /// Read lines of JSON, and print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// The codecs by Kafka's names.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl From<Codec> for Compression {
    fn from(codec: Codec) -> Compression {
        match codec {
            Codec::None => Compression::None,
            Codec::Gzip => Compression::Gzip,
            Codec::Snappy => Compression::Snappy,
            Codec::Lz4 => Compression::Lz4,
            Codec::Zstd => Compression::Zstd,
        }
    }
}

/// `acks` of a produce request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Acks {
    #[value(alias = "-1")]
    All,
    #[value(name = "1")]
    Leader,
    #[value(name = "0")]
    Nobody,
}

impl Acks {
    fn code(self) -> i16 {
        match self {
            Acks::All => -1,
            Acks::Leader => 1,
            Acks::Nobody => 0,
        }
    }
}

/// Writes the records.
pub(crate) fn run(produce: &Produce) -> Result<()> {
    let started = Instant::now();
    let interrupt = Interrupt::listen()?;
    let mut cluster = produce.target.connect_blocking()?;
    let topic = match produce.auto_create {
        true => cluster.find_or_create_topic(&produce.topic)?,
        false => cluster.topic(&produce.topic)?,
    };
    let batches = Batches::new(&topic, produce.compression.into(), produce.batch_bytes, produce.partition)?;
    let mut sender = Sender::new(cluster, topic, produce.acks.code())?;
    let mut progress = Progress::start();
    let read = pump(produce, &interrupt, batches, &mut sender, &mut progress);
    progress.finish();
    report::report(&produce.topic, sender.totals(), started.elapsed(), produce.json)?;
    read?;
    sender.totals().require_all()
}

/// Moves records from the input to the brokers until the input ends.
fn pump(
    produce: &Produce,
    interrupt: &Interrupt,
    mut batches: Batches,
    sender: &mut Sender,
    progress: &mut Progress,
) -> Result<()> {
    let format = LineFormat::new(produce);
    let mut input = Input::start()?;
    let mut number = 0;
    while !interrupt.is_raised() {
        let taken = match input.next(LINGER)? {
            Next::Lines(lines) => {
                lines.iter().try_for_each(|line| take_line(line, &mut number, &format, &mut batches, sender))
            }
            Next::Nothing => batches.send_all(sender),
            Next::End => break,
        };
        progress.show(sender.totals(), input.bytes());
        if let Err(error) = taken {
            // What came before a faulty line is written all the same.
            batches.send_all(sender)?;
            return Err(error);
        }
    }
    batches.send_all(sender)?;
    if interrupt.is_raised() && !io::stdin().is_terminal() {
        bail!("interrupted before the end of the input: {number} lines were read");
    }
    Ok(())
}

/// Adds the record of a line to its batch; full batches go out.
fn take_line(
    line: &[u8],
    number: &mut u64,
    format: &LineFormat,
    batches: &mut Batches,
    sender: &mut Sender,
) -> Result<()> {
    *number += 1;
    batches.add(&format.parse(line, *number)?, *number)?;
    if batches.is_full() { batches.send_all(sender) } else { Ok(()) }
}
