//! Reading the letters of a topic.

use std::time::Duration;

use anyhow::{Result, bail};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Args;
use mainstem_client::{
    Admin, ClientConfig, Consumer, ConsumerConfig, Isolation, OwnedRecord, Position, Topic, TopicPartition,
};
use mainstem_flow::letter;
use serde_json::{Map, Value, json};

use crate::offsets::{self, Offsets};
use crate::topic;

/// The interval of the check whether the end is reached. Markers of transactions move the position and are no records.
const TICK: Duration = Duration::from_millis(100);
/// The time without a batch after which the reading of a topic fails.
const SILENCE: Duration = Duration::from_secs(30);

/// Arguments that choose letters of a topic.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Name of the topic, such as dlq.GROUP.TOPIC.
    pub(crate) topic: String,
    /// Only letters of this partition of it.
    #[arg(long, short, value_name = "N")]
    pub(crate) partition: Option<i32>,
    /// Only the letter at this offset of --partition.
    #[arg(long, value_name = "OFFSET", requires = "partition")]
    pub(crate) offset: Option<i64>,
}

/// A record with its source, as far as its headers say it.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) record: OwnedRecord,
}

impl Letter {
    /// A header as text.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        letter::text(&self.record.headers, name)
    }

    /// The offsets that a note names; none for a letter.
    pub(crate) fn noted(&self) -> Option<Vec<i64>> {
        let has_content = self.record.key.is_some() || self.record.value.is_some();
        letter::noted(&self.record.headers).filter(|_| !has_content)
    }

    /// The source: topic, partition and offset.
    pub(crate) fn source(&self) -> Option<(&str, i32, i64)> {
        let partition = self.text(letter::PARTITION)?.parse().ok()?;
        Some((self.text(letter::TOPIC)?, partition, self.text(letter::OFFSET)?.parse().ok()?))
    }

    /// The source as text for people.
    pub(crate) fn shown_source(&self) -> String {
        match self.source() {
            Some((topic, partition, offset)) => format!("{topic}-{partition}@{offset}"),
            None => "unknown".to_owned(),
        }
    }

    /// The record and its headers, by short names.
    pub(crate) fn to_json(&self) -> Value {
        let mut out = Map::new();
        let record = &self.record;
        out.insert("partition".into(), record.partition.partition.into());
        out.insert("offset".into(), record.offset.into());
        out.insert("timestamp".into(), record.timestamp_ms.into());
        for (field, name) in [("group", letter::GROUP), ("topic", letter::TOPIC)] {
            out.insert(format!("source_{field}"), json!(self.text(name)));
        }
        let number = |name| self.text(name).and_then(|text| text.parse::<i64>().ok());
        for (field, name) in [
            ("source_partition", letter::PARTITION),
            ("source_offset", letter::OFFSET),
            ("source_timestamp", letter::TIMESTAMP),
            ("deliveries", letter::DELIVERY_COUNT),
            ("first_failed_ms", letter::FIRST_MS),
            ("rounds", letter::ROUNDS),
        ] {
            out.insert(field.into(), json!(number(name)));
        }
        for (field, name) in [
            ("stage", letter::STAGE),
            ("class", letter::CLASS),
            ("message", letter::MESSAGE),
            ("cause", letter::CAUSE),
            ("left_out", letter::LEFT_OUT),
        ] {
            out.insert(field.into(), json!(self.text(name)));
        }
        put(&mut out, "key", record.key.as_deref());
        put(&mut out, "value", record.value.as_deref());
        let own = |(name, _): &&(String, _)| {
            !name.starts_with("__dlq.errors.") && !name.starts_with("__mainstem.errors.")
        };
        let header = |(name, value): &(String, Option<bytes::Bytes>)| {
            let mut header = Map::from_iter([("key".to_owned(), json!(name))]);
            put(&mut header, "value", value.as_deref());
            Value::Object(header)
        };
        out.insert("headers".into(), record.headers.iter().filter(own).map(header).collect());
        Value::Object(out)
    }
}

fn put(out: &mut Map<String, Value>, field: &str, bytes: Option<&[u8]>) {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => out.insert(field.into(), Value::Null),
        Some((_, Ok(text))) => out.insert(field.into(), json!(text)),
        Some((bytes, Err(_))) => out.insert(format!("{field}_base64"), BASE64_STANDARD.encode(bytes).into()),
    };
}

/// Calls `each` for the letters that exist at the start, in the order of each partition, until it returns false.
/// Returns the end of each partition. Letters of aborted and of open transactions are left out.
pub(crate) async fn read(
    admin: &Admin,
    config: ClientConfig,
    chosen: &Chosen,
    each: impl FnMut(Letter) -> Result<bool>,
) -> Result<Offsets> {
    let reading = Reading { chosen, before: None, isolation: Isolation::ReadCommitted };
    read_as(admin, config, reading, each).await
}

/// The same up to an offset of the chosen partition, with records of open and aborted transactions too: for `purge`, which deletes them
/// all.
pub(crate) async fn read_before(
    admin: &Admin,
    config: ClientConfig,
    chosen: &Chosen,
    before: Option<i64>,
    each: impl FnMut(Letter) -> Result<bool>,
) -> Result<Offsets> {
    let reading = Reading { chosen, before, isolation: Isolation::ReadUncommitted };
    read_as(admin, config, reading, each).await
}

/// Calls `each` for all records, where partitions have some behind the last stable offsets `ends`. These come from open transactions.
pub(crate) async fn read_behind(
    admin: &Admin,
    config: ClientConfig,
    chosen: &Chosen,
    ends: &Offsets,
    mut each: impl FnMut(Letter),
) -> Result<()> {
    let whole = offsets::find(admin, ends.keys(), Position::End).await?;
    if whole.iter().all(|(key, end)| ends.get(key).is_some_and(|known| known >= end)) {
        return Ok(());
    }
    let reading = Reading { chosen, before: None, isolation: Isolation::ReadUncommitted };
    read_as(admin, config, reading, |letter| {
        each(letter);
        Ok(true)
    })
    .await
    .map(drop)
}

/// The selection of records of a topic to read.
struct Reading<'c> {
    chosen: &'c Chosen,
    /// The end in the chosen partition, exclusive.
    before: Option<i64>,
    isolation: Isolation,
}

async fn read_as(
    admin: &Admin,
    config: ClientConfig,
    reading: Reading<'_>,
    mut each: impl FnMut(Letter) -> Result<bool>,
) -> Result<Offsets> {
    let Reading { chosen, before, isolation } = reading;
    let topic = topic::find(admin, &chosen.topic).await?;
    let partitions = partitions(&topic, chosen.partition)?;
    let begins = offsets::find(admin, &partitions, Position::Beginning).await?;
    let mut ends = offsets::find_as(admin, &partitions, Position::End, isolation).await?;
    let mut starts = begins.clone();
    if let (Some(before), Some((key, end))) = (before, ends.iter_mut().next()) {
        if before > *end {
            bail!("{key} ends at offset {end}, which is not as far as {before}; name an offset up to there");
        }
        *end = before;
    }
    if let (Some(offset), Some(key)) = (chosen.offset, partitions.first()) {
        let (begin, end) = (begins.get(key).copied().unwrap_or(0), ends.get(key).copied().unwrap_or(0));
        if !(begin..end).contains(&offset) {
            bail!(
                "{key} has no letter at offset {offset}: it has those from {begin} up to {end}, without that one"
            );
        }
        starts.insert(key.clone(), offset);
        ends.insert(key.clone(), offset + 1);
    }
    let open = |key: &TopicPartition| starts.get(key) < ends.get(key);
    let mut consumer = Consumer::new(ConsumerConfig { isolation, ..ConsumerConfig::new(config) })?;
    let at = |key: &TopicPartition| (key.clone(), Position::Offset(starts.get(key).copied().unwrap_or(0)));
    consumer.assign(partitions.iter().filter(|key| open(key)).map(at).collect::<Vec<_>>());
    let positions = consumer.positions();
    let is_open = || positions.known().iter().any(|(key, at)| ends.get(key).is_some_and(|end| at < end));
    let mut silence = Duration::ZERO;
    while is_open() {
        let Ok(batch) = tokio::time::timeout(TICK, consumer.next()).await else {
            silence += TICK;
            if silence > SILENCE {
                bail!("nothing of {} was heard for {} s", chosen.topic, SILENCE.as_secs());
            }
            continue;
        };
        silence = Duration::ZERO;
        for record in batch?.owned_records() {
            let record = record?;
            if ends.get(&record.partition).is_some_and(|end| record.offset < *end)
                && !each(Letter { record })?
            {
                return Ok(ends);
            }
        }
    }
    Ok(ends)
}

/// The partitions of a topic, or the one that was chosen.
pub(crate) fn partitions(topic: &Topic, chosen: Option<i32>) -> Result<Vec<TopicPartition>> {
    let all: Vec<i32> = topic.partitions.iter().map(|one| one.index).collect();
    if let Some(one) = chosen.filter(|one| !all.contains(one)) {
        bail!("topic {} has no partition {one}: it has {} partitions", topic.name, all.len());
    }
    let kept = all.into_iter().filter(|one| chosen.is_none_or(|chosen| chosen == *one));
    Ok(kept.map(|one| TopicPartition::new(topic.name.clone(), one)).collect())
}
