//! `mainstem consume`: reads records of a topic and prints them.

mod printer;
mod reader;
mod source;
mod start;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use mainstem_client::{
    Admin, Consumer, ConsumerConfig, GroupConfig, GroupConsumer, OutOfRange, Position, Topic, TopicPartition,
};

use crate::interrupt::Interrupt;
use crate::offsets::{self, Offsets};
use crate::target::Target;
use crate::topic;

pub(crate) use printer::{Format, Printer};
use reader::Plan;
use source::Source;
pub(crate) use start::Start;

/// What a broker sends at once, and as much again may wait to be printed.
const FETCH_BYTES_MAX: i32 = 8 << 20;
const PARTITION_BYTES_MAX: i32 = 2 << 20;
/// What the records of one batch may decompress to.
const DECOMPRESSED_BYTES_MAX: usize = 512 << 20;
/// Who does not read its output for so long makes the others of the group wait no longer.
const REBALANCE_TIMEOUT: Duration = Duration::from_secs(60);

/// What `consume` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --follow the command ends at the records that were there when it started. With --group the group's committed
offsets come before --from; what was printed is committed every few seconds and at the end. Ctrl-C ends it in order.
Members of a group share partitions by the assignor cooperative-sticky.")]
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
pub(crate) async fn run(consume: &Consume) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let admin = consume.target.connect().await?;
    let topic = topic::find(&admin, &consume.topic).await?;
    let format = match (consume.json, consume.with_key) {
        (true, _) => Format::Json,
        (false, true) => Format::KeyAndValue,
        (false, false) => Format::Value,
    };
    let printer = Printer::new(format, consume.max);
    let partitions = partitions(&topic, &consume.partition)?;
    let ends = match consume.follow {
        true => None,
        false => Some(offsets::find(&admin, &partitions, Position::End).await?),
    };
    let source = match &consume.group {
        Some(group) => Source::Group(Box::new(join(consume, &admin, group, &partitions).await?)),
        None => Source::Partitions(assign(consume, &admin, &partitions, ends.as_ref()).await?),
    };
    let limit = consume.target.limit();
    let plan = Plan { admin, topic: consume.topic.clone(), group: consume.group.clone(), limit, ends };
    reader::read(plan, source, printer, &interrupt).await
}

/// The partitions that were chosen, all if none is named.
fn partitions(topic: &Topic, chosen: &[i32]) -> Result<Vec<TopicPartition>> {
    reader::check(topic, chosen)?;
    let all = topic.partitions.iter().map(|partition| partition.index);
    let indexes: Vec<i32> = if chosen.is_empty() { all.collect() } else { chosen.to_vec() };
    Ok(indexes.into_iter().map(|index| TopicPartition::new(topic.name.clone(), index)).collect())
}

fn config(consume: &Consume) -> Result<ConsumerConfig> {
    Ok(ConsumerConfig {
        out_of_range: OutOfRange::Fail,
        fetch_bytes_max: FETCH_BYTES_MAX,
        partition_bytes_max: PARTITION_BYTES_MAX,
        prefetch_bytes: FETCH_BYTES_MAX as usize,
        decompressed_bytes_max: DECOMPRESSED_BYTES_MAX,
        ..ConsumerConfig::new(consume.target.config()?)
    })
}

/// A consumer of partitions, as far as there is something to read before the ends.
async fn assign(
    consume: &Consume,
    admin: &Admin,
    partitions: &[TopicPartition],
    ends: Option<&Offsets>,
) -> Result<Consumer> {
    let starts = start::resolve(admin, partitions, consume.from).await?;
    let mut consumer = Consumer::new(config(consume)?)?;
    let is_open =
        |key: &TopicPartition, at: i64| ends.and_then(|ends| ends.get(key)).is_none_or(|end| at < *end);
    let open = starts.into_iter().filter(|(key, at)| is_open(key, *at));
    consumer.assign(open.map(|(key, at)| (key, Position::Offset(at))));
    Ok(consumer)
}

/// A member of a group, which goes on where the group has committed.
async fn join(
    consume: &Consume,
    admin: &Admin,
    group: &str,
    partitions: &[TopicPartition],
) -> Result<GroupConsumer> {
    let committed = admin.group_offsets(group).await?;
    let fresh: Vec<_> = partitions.iter().filter(|key| !committed.contains_key(*key)).cloned().collect();
    let starts = start::resolve(admin, &fresh, consume.from).await?;
    let group = GroupConfig {
        // Of partitions that come later.
        start: Position::Beginning,
        starts: starts.into_iter().map(|(key, at)| (key, Position::Offset(at))).collect(),
        max_poll_interval: REBALANCE_TIMEOUT,
        ..GroupConfig::new(group, [consume.topic.as_str()], config(consume)?)
    };
    Ok(GroupConsumer::new(group)?)
}
