//! `mainstem consume`: reads records of topics and prints them.

mod printer;
mod reader;
mod source;
mod start;
mod template;
mod topics;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use mainstem_client::{
    Admin, Consumer, ConsumerConfig, GroupConfig, GroupConsumer, Isolation, OutOfRange, Position,
    TopicPartition,
};

use crate::interrupt::Interrupt;
use crate::offsets::{self, Offsets};
use crate::output;
use crate::target::Target;
use crate::topic;

pub(crate) use printer::{Format, Printer};
use reader::Plan;
use source::Source;
pub(crate) use start::Start;
use template::Template;
use topics::Topics;

/// The most bytes of one fetch. As many again may wait to be printed.
const FETCH_BYTES_MAX: i32 = 8 << 20;
const PARTITION_BYTES_MAX: i32 = 2 << 20;
/// The most bytes to which one batch may decompress.
const DECOMPRESSED_BYTES_MAX: usize = 512 << 20;
/// The time that a rebalance of the group waits for this member while its output is not read.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(60);

/// Arguments of `consume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --follow the command ends at the last record that existed at its start. With --group the group's committed offsets
come before --from, and printed records are committed every few seconds and at the end. Ctrl-C ends the command in order.
Members of a group use the assignor cooperative-sticky.

Records of aborted transactions and all records behind an open one are left out; --isolation read_uncommitted shows them.

Placeholders of --format, as in kcat and rpk; nothing else is printed, not even an end of line:
  %t topic        %k key    %K length of the key      %h headers as NAME=VALUE,...
  %p partition    %v value  %V length of the value    %H number of headers
  %o offset       %s is %v  %S is %V                  %T or %d timestamp in ms since 1970
  %% a percent sign; \\n \\r \\t \\\\ \\0 and \\xNN are the characters that they are in kcat
A null is the word null, and its length is -1.")]
pub(crate) struct Consume {
    #[command(flatten)]
    topics: Topics,
    /// The first record: beginning, end, an offset, -N for N records before the end, a time as 2026-11-21T22:00:00Z,
    /// or @MS for milliseconds since 1970.
    #[arg(long, short, default_value = "beginning", value_name = "WHERE", allow_hyphen_values = true)]
    from: Start,
    /// Only this partition of each topic; may be given several times.
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
    /// The isolation level, as in isolation.level of Kafka's consumers.
    #[arg(long, value_enum, default_value_t = Level::ReadCommitted, value_name = "LEVEL")]
    isolation: Level,
    /// Print the key and a tab before each value.
    #[arg(long, short = 'k', conflicts_with_all = ["json", "format"])]
    with_key: bool,
    /// Print each record by this format string, such as '%t %p %o %k %v\n'; its placeholders are below.
    #[arg(long, value_name = "FORMAT", conflicts_with = "json")]
    format: Option<Template>,
    /// Print each record as a line of JSON with topic, partition, offset, timestamp, key, value and headers. Bytes that
    /// are not UTF-8 go in key_base64 and value_base64.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// An isolation level, as Kafka spells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Level {
    /// Only records outside of transactions and of committed ones.
    ReadCommitted,
    /// All records, those of open and aborted transactions included.
    ReadUncommitted,
}

impl From<Level> for Isolation {
    fn from(level: Level) -> Isolation {
        match level {
            Level::ReadCommitted => Isolation::ReadCommitted,
            Level::ReadUncommitted => Isolation::ReadUncommitted,
        }
    }
}

/// Prints the records.
pub(crate) async fn run(consume: &Consume) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let admin = consume.target.connect().await?;
    let topics = consume.topics.find(&admin).await?;
    let printer = Printer::new(format(consume), consume.max);
    let partitions = topic::partitions(&topics, &consume.partition)?;
    let ends = match consume.follow {
        true => None,
        false => Some(ends(&admin, &partitions, consume.isolation.into()).await?),
    };
    let source = match &consume.group {
        Some(group) => Source::Group(Box::new(join(consume, &admin, group, &partitions).await?)),
        None => Source::Partitions(assign(consume, &admin, &partitions, ends.as_ref()).await?),
    };
    let plan = Plan {
        admin,
        topics: topics.iter().map(|topic| topic.name.to_string()).collect(),
        group: consume.group.clone(),
        limit: consume.target.limit(),
        ends,
    };
    reader::read(plan, source, printer, &interrupt).await
}

fn format(consume: &Consume) -> Format {
    match (consume.json, consume.with_key, &consume.format) {
        (true, _, _) => Format::Json,
        (false, true, _) => Format::KeyAndValue,
        (false, false, Some(template)) => Format::Template(template.clone()),
        (false, false, None) => Format::Value,
    }
}

/// The end of each partition as far as it can be read. A note on stderr names partitions that an open transaction ends earlier.
async fn ends(admin: &Admin, partitions: &[TopicPartition], isolation: Isolation) -> Result<Offsets> {
    let latest = offsets::find(admin, partitions, Position::End).await?;
    let ends = offsets::find_as(admin, partitions, Position::End, isolation).await?;
    for (key, end) in &ends {
        let hidden = latest.get(key).map_or(0, |latest| latest - end);
        // The end of all records is asked for first. So records that are written between the two requests do not count as hidden.
        if hidden > 0 {
            output::print_error(&format!(
                "mainstem: a transaction is open in {} at offset {end}: nothing from there on is shown; wait for its \
                 end, or use --isolation read_uncommitted",
                output::shown(&key.to_string())
            ));
        }
    }
    Ok(ends)
}

fn config(consume: &Consume) -> Result<ConsumerConfig> {
    Ok(ConsumerConfig {
        out_of_range: OutOfRange::Fail,
        isolation: consume.isolation.into(),
        fetch_bytes_max: FETCH_BYTES_MAX,
        partition_bytes_max: PARTITION_BYTES_MAX,
        prefetch_bytes: FETCH_BYTES_MAX as usize,
        decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
        ..ConsumerConfig::new(consume.target.config()?)
    })
}

/// A consumer of the partitions that have records before the ends.
async fn assign(
    consume: &Consume,
    admin: &Admin,
    partitions: &[TopicPartition],
    ends: Option<&Offsets>,
) -> Result<Consumer> {
    let starts = start::resolve(admin, partitions, consume.from, consume.isolation.into()).await?;
    let mut consumer = Consumer::new(config(consume)?)?;
    let is_open =
        |key: &TopicPartition, at: i64| ends.and_then(|ends| ends.get(key)).is_none_or(|end| at < *end);
    let open = starts.into_iter().filter(|(key, at)| is_open(key, *at));
    consumer.assign(open.map(|(key, at)| (key, Position::Offset(at))));
    Ok(consumer)
}

/// A member of a group, which resumes at the group's committed offsets.
async fn join(
    consume: &Consume,
    admin: &Admin,
    group: &str,
    partitions: &[TopicPartition],
) -> Result<GroupConsumer> {
    let committed = admin.group_offsets(group).await?;
    let fresh: Vec<_> = partitions.iter().filter(|key| !committed.contains_key(*key)).cloned().collect();
    let starts = start::resolve(admin, &fresh, consume.from, consume.isolation.into()).await?;
    let group = GroupConfig {
        // Also for partitions that are created later.
        start: Position::Beginning,
        starts: starts.into_iter().map(|(key, at)| (key, Position::Offset(at))).collect(),
        max_poll_interval: REBALANCE_TIMEOUT,
        subscription: consume.topics.subscription(),
        ..GroupConfig::new(group, [""; 0], config(consume)?)
    };
    Ok(GroupConsumer::new(group)?)
}
