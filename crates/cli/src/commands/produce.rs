//! `mainstem produce`: writes lines of standard input to a topic.

mod input;
mod line;
mod partitions;
mod report;
mod sender;
mod whole;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use mainstem_client::{Admin, Compression, Producer, ProducerConfig, Record, Topic};

use crate::interrupt::Interrupt;
use crate::target::Target;
use crate::{timestamp, topic};

use input::{Input, Lines};
pub(crate) use line::{HeaderArgument, LineFormat};
use partitions::Partitions;
use report::Progress;
use sender::Sender;

/// The longest wait for further input before a batch is sent.
const LINGER: Duration = Duration::from_millis(5);

/// Arguments of `produce`.
#[derive(Debug, Args)]
#[command(after_help = "\
Each line of standard input is the value of a record; with --file each file is one. The exit code is 1 if a record was not
acknowledged. With --json a line is {\"key\":..,\"value\":..,\"headers\":[{\"key\":..,\"value\":..}],\"partition\":..,\"timestamp\":..}, all of it
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
    /// Write the whole of a file as the value of one record; - is standard input. May be given several times. No lines are read.
    #[arg(long = "file", short = 'f', value_name = "FILE", conflicts_with = "key_separator")]
    files: Vec<PathBuf>,
    /// A header of every record; may be given several times, also with the same key.
    #[arg(long = "header", short = 'H', value_name = "KEY=VALUE", value_parser = HeaderArgument::parse)]
    headers: Vec<HeaderArgument>,
    /// The codec of batches.
    #[arg(long, short = 'z', value_enum, default_value = "none", value_name = "CODEC")]
    compression: Codec,
    /// The acknowledgements to wait for: all in-sync replicas, the leader (1), or none (0).
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
    None,
}

impl From<Acks> for mainstem_client::Acks {
    fn from(acks: Acks) -> mainstem_client::Acks {
        match acks {
            Acks::All => mainstem_client::Acks::All,
            Acks::Leader => mainstem_client::Acks::Leader,
            Acks::None => mainstem_client::Acks::None,
        }
    }
}

/// Writes the records.
pub(crate) async fn run(produce: &Produce) -> Result<()> {
    let started = Instant::now();
    let interrupt = Interrupt::listen()?;
    let admin = produce.target.connect().await?;
    let topic = find_topic(produce, &admin).await?;
    let partitions = Partitions::new(&topic, produce.partition, produce.batch_bytes as usize)?;
    let mut sender = Sender::new(produce).await?;
    let mut progress = Progress::start();
    let mut pump = Pump {
        format: LineFormat::new(produce, topic.name.clone()),
        partitions,
        sender: &mut sender,
        progress: &progress,
        number: 0,
    };
    let read = match produce.files.is_empty() {
        true => pump.run(&interrupt).await,
        false => pump.run_files(&produce.files, &interrupt).await,
    };
    let finished = sender.finish().await;
    progress.finish();
    report::report(&produce.topic, sender.totals(), started.elapsed(), produce.json)?;
    read.and(finished)?;
    sender.totals().require_all()
}

async fn find_topic(produce: &Produce, admin: &Admin) -> Result<Arc<Topic>> {
    if !produce.auto_create {
        return topic::find(admin, &produce.topic).await;
    }
    let config =
        ProducerConfig { max_block: produce.target.limit(), ..ProducerConfig::new(produce.target.config()?) };
    Ok(Producer::new(config)?.topic(&produce.topic).await?)
}

/// Moves records from the input to the brokers.
struct Pump<'p> {
    format: LineFormat,
    partitions: Partitions,
    sender: &'p mut Sender,
    progress: &'p Progress,
    /// The number of the last line.
    number: u64,
}

impl Pump<'_> {
    /// Sends all lines of the input.
    async fn run(&mut self, interrupt: &Interrupt) -> Result<()> {
        let mut input = Input::start()?;
        loop {
            let next = tokio::select! {
                biased;
                () = interrupt.raised() => break,
                next = tokio::time::timeout(LINGER, input.next()) => next,
            };
            match next {
                Ok(next) => match next? {
                    Some(lines) => self.take(&lines).await?,
                    None => return Ok(()),
                },
                Err(_) => self.partitions.pause(),
            }
            self.sender.take_note()?;
            self.progress.show(self.sender.totals(), input.bytes());
        }
        if !io::stdin().is_terminal() {
            bail!("interrupted before the end of the input: {} lines were read", self.number);
        }
        Ok(())
    }

    /// Sends a record for each file.
    async fn run_files(&mut self, files: &[PathBuf], interrupt: &Interrupt) -> Result<()> {
        for file in files {
            if interrupt.is_raised() {
                bail!("interrupted: {} of {} files were read", self.number, files.len());
            }
            self.number += 1;
            let record = self.format.record_of(whole::read(file)?);
            self.send(record, timestamp::now_ms()).await.with_context(|| file.display().to_string())?;
            self.sender.take_note()?;
        }
        Ok(())
    }

    async fn take(&mut self, lines: &Lines) -> Result<()> {
        // The files are given together, so their records get one timestamp.
        let timestamp_ms = timestamp::now_ms();
        for line in lines.iter() {
            self.number += 1;
            let record = self.format.parse(line, self.number)?;
            let sent = self.send(record, timestamp_ms).await;
            sent.with_context(|| format!("line {} of the input", self.number))?;
        }
        Ok(())
    }

    async fn send(&mut self, mut record: Record, timestamp_ms: i64) -> Result<()> {
        record.timestamp_ms = record.timestamp_ms.or(Some(timestamp_ms));
        self.partitions.choose(&mut record)?;
        self.sender.send(record).await
    }
}
