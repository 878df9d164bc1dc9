//! `mainstem dead-letters replay`: back to where letters come from.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_client::{Admin, Producer, ProducerConfig, Record, TopicPartition};
use mainstem_flow::letter;
use serde_json::json;

use super::letters::{Chosen, Letter, read};
use crate::execution::Execution;
use crate::output::{counted, print, print_json};
use crate::target::Target;
use crate::topic;

/// What `dead-letters replay` takes.
#[derive(Debug, Args)]
#[command(after_help = "\
A letter goes back to its own topic and partition with its key, value and headers, and headers that count its rounds and say
when it was first written. Its time is that of the replay, so that neither retention nor a route that lets messages expire
takes it for an old one; --keep-time writes it with its old time.
Letters that were replayed are deleted if all of the topic were, or all of --partition. Otherwise they stay, and a record behind
them names them, so that the next replay leaves them out; one that is named by --offset is replayed again. If the command is
ended in between, the next replay writes them again. The new records come behind all that is there of their keys.")]
pub(crate) struct Replay {
    #[command(flatten)]
    chosen: Chosen,
    /// Write to this topic instead.
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// Leave letters out that were replayed so often already.
    #[arg(long, default_value_t = 3, value_name = "N")]
    max_rounds: u32,
    /// Write them with the time at which their messages were first written, instead of now.
    #[arg(long)]
    keep_time: bool,
    #[command(flatten)]
    execution: Execution,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// What there is to do.
#[derive(Default)]
struct Plan {
    letters: Vec<Letter>,
    /// Replayed too often.
    worn: u64,
    /// They do not say where they come from.
    unknown: u64,
    /// Offsets that notes name, by partition.
    noted: BTreeMap<TopicPartition, BTreeSet<i64>>,
    /// Letters that are left out because a note names them.
    done: u64,
}

/// Replays the letters.
pub(crate) async fn run(replay: &Replay) -> Result<()> {
    let admin = replay.target.connect().await?;
    let mut plan = Plan::default();
    let ends = read(&admin, replay.target.config()?, &replay.chosen, |letter| {
        plan.take(letter, replay);
        Ok(true)
    })
    .await?;
    plan.leave_out_noted();
    let mut deleted = 0;
    if replay.execution.execute {
        let producer = producer(replay)?;
        write(replay, &admin, &producer, &plan).await?;
        if replay.chosen.offset.is_none() && plan.leaves_nothing() {
            admin.delete_records(&ends).await.context("the letters were replayed, and cannot be deleted")?;
            deleted = plan.letters.len() + usize::try_from(plan.done).unwrap_or(0);
        } else {
            note(&producer, &plan).await.context(
                "the letters were replayed, and that cannot be noted beside them: the next replay writes them again",
            )?;
        }
    }
    report(replay, &plan, deleted)
}

impl Plan {
    fn take(&mut self, letter: Letter, replay: &Replay) {
        if let Some(offsets) = letter.noted() {
            self.noted.entry(letter.record.partition).or_default().extend(offsets);
        } else if letter::rounds(&letter.record.headers) >= replay.max_rounds {
            self.worn += 1;
        } else if replay.to.is_none() && letter.source().is_none() {
            self.unknown += 1;
        } else {
            self.letters.push(letter);
        }
    }

    /// Leaves out the letters that an earlier replay has written: notes come behind what they name.
    fn leave_out_noted(&mut self) {
        let Plan { letters, noted, done, .. } = self;
        letters.retain(|letter| {
            let record = &letter.record;
            let is_done =
                noted.get(&record.partition).is_some_and(|offsets| offsets.contains(&record.offset));
            *done += u64::from(is_done);
            !is_done
        });
    }

    /// Returns true if all that was read is written when the letters of the plan are.
    fn leaves_nothing(&self) -> bool {
        self.worn == 0 && self.unknown == 0 && (!self.letters.is_empty() || self.done > 0)
    }
}

fn producer(replay: &Replay) -> Result<Producer> {
    // A letter that could be written is as large as its message, which goes back now.
    let usual = ProducerConfig::new(replay.target.config()?);
    Ok(Producer::new(ProducerConfig { request_bytes_max: usual.buffer_bytes, ..usual })?)
}

/// Names the letters that were written in the partitions where they are.
async fn note(producer: &Producer, plan: &Plan) -> Result<()> {
    let mut replayed: BTreeMap<&TopicPartition, Vec<i64>> = BTreeMap::new();
    for letter in &plan.letters {
        replayed.entry(&letter.record.partition).or_default().push(letter.record.offset);
    }
    let mut deliveries = Vec::new();
    for (key, offsets) in replayed {
        for headers in letter::notes(&offsets) {
            let (topic, partition) = (key.topic.clone(), Some(key.partition));
            let record = Record { topic, partition, headers, key: None, value: None, timestamp_ms: None };
            deliveries.push(producer.send(record).await?);
        }
    }
    for delivery in deliveries {
        delivery.outcome().await?;
    }
    Ok(())
}

async fn write(replay: &Replay, admin: &Admin, producer: &Producer, plan: &Plan) -> Result<()> {
    let mut widths: BTreeMap<String, i32> = BTreeMap::new();
    let mut deliveries = Vec::new();
    for letter in &plan.letters {
        let source = letter.source();
        let Some(to) = replay.to.as_deref().or(source.map(|(topic, ..)| topic)) else { continue };
        if to == replay.chosen.topic {
            bail!("letters would go back to {to}, where they are; name another topic (--to)");
        }
        if !widths.contains_key(to) {
            let width = i32::try_from(topic::find(admin, to).await?.partitions.len()).unwrap_or(i32::MAX);
            widths.insert(to.to_owned(), width);
        }
        let width = widths.get(to).copied().unwrap_or(0);
        let own = source.filter(|(topic, partition, _)| *topic == to && *partition < width);
        let record = Record {
            topic: to.into(),
            // Its key may have come to another partition since, if there are more.
            partition: own.map(|(_, partition, _)| partition),
            key: letter.record.key.clone(),
            value: letter.record.value.clone(),
            headers: letter::replayed(&letter.record.headers),
            timestamp_ms: letter::first_timestamp_ms(&letter.record.headers).filter(|_| replay.keep_time),
        };
        deliveries.push(producer.send(record).await?);
    }
    for delivery in deliveries {
        delivery.outcome().await?;
    }
    Ok(())
}

fn report(replay: &Replay, plan: &Plan, deleted: usize) -> Result<()> {
    let count = plan.letters.len();
    if replay.json {
        return print_json(&json!({
            "topic": replay.chosen.topic,
            "executed": replay.execution.execute,
            "replayed": count,
            "deleted": deleted,
            "replayed_before": plan.done,
            "replayed_too_often": plan.worn,
            "without_source": plan.unknown,
        }));
    }
    let letters = counted(count as u64, "letter");
    let mut text = match (replay.execution.execute, deleted) {
        (false, _) => format!("{letters} of {} would be replayed; --execute does it", replay.chosen.topic),
        (true, 0) => format!("replayed {letters} of {}; they stay there", replay.chosen.topic),
        (true, _) => format!("replayed {letters} of {}, and deleted them there", replay.chosen.topic),
    };
    if plan.done > 0 {
        let done = counted(plan.done, "letter");
        text += &format!("\n{done} written by an earlier replay: left out (--offset names one)");
    }
    if plan.worn > 0 {
        let worn = counted(plan.worn, "letter");
        text += &format!("\n{worn} replayed {} times already: left out (--max-rounds)", replay.max_rounds);
    }
    if plan.unknown > 0 {
        let unknown = counted(plan.unknown, "record");
        text += &format!("\n{unknown} without a word of where it comes from: left out (--to names a topic)");
    }
    print(&text)
}
