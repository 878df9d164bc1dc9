//! `mainstem dead-letters replay`: writes letters back to their topics.

mod plan;

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result, bail};
use clap::Args;
use mainstem_client::{Error, ErrorCode, Producer, ProducerConfig, Record, TopicPartition};
use mainstem_flow::letter;
use serde_json::{Value, json};

use super::filter::Filter;
use super::letters::{Chosen, Letter, read, read_behind};
use super::targets::Targets;
use crate::execution::Execution;
use crate::failure;
use crate::output::{counted, print, print_json};
use crate::target::Target;
use plan::{Directed, Plan};

/// Arguments of `dead-letters replay`.
#[derive(Debug, Args)]
#[command(after_help = "\
A letter is written back to its own topic and partition, with its key, value and headers. Further headers count its replays and
have the time of its first write. Its timestamp is that of the replay, so that it does not expire as an old record;
--keep-time keeps the old timestamp.
A letter's headers name its topic. It is written there only if its group reads that topic: the group has committed offsets in it,
or members that read it. The group is the one in the name of the topic of letters, dlq.GROUP.TOPIC, or that of --group. With --to
letters are written to any topic. Letters without a destination, or that cannot be written, are reported and stay; the others
are written, and the exit code is 1.
Replayed letters are deleted if all letters of the topic, or of --partition, were replayed. Otherwise they stay, and a record
behind them names them, so that the next replay leaves them out. A letter chosen by --offset is replayed again. If the command
is interrupted, the next replay writes its letters again. The new records come behind all existing records of their keys.")]
pub(crate) struct Replay {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    filter: Filter,
    /// Write to this topic instead.
    #[arg(long, value_name = "TOPIC")]
    to: Option<String>,
    /// Take the letters of this group, whatever the name of the topic they are in.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
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

/// Shows where the letters would go, and writes them if that is asked for.
pub(crate) async fn run(replay: &Replay) -> Result<()> {
    let admin = replay.target.connect().await?;
    let mut targets = Targets::new(&admin, &replay.chosen.topic, replay.group.as_deref());
    if let Some(to) = &replay.to {
        targets.width(to).await.map_err(anyhow::Error::msg)?;
    }
    let mut plan = Plan::default();
    let ends = read(&admin, replay.target.config()?, &replay.chosen, |letter| {
        plan.take(letter, replay);
        Ok(true)
    })
    .await?;
    if replay.chosen.offset.is_none() {
        // A note may be behind a transaction that is open, where committed letters end.
        read_behind(&admin, replay.target.config()?, &replay.chosen, &ends, |letter| plan.take_note(letter))
            .await?;
    }
    plan.leave_out_noted();
    plan.direct(&mut targets, replay.to.as_deref()).await;
    let whole_plan =
        async { Ok(crate::execution::Plan { text: plan.text(replay), json: plan.json(replay) }) };
    if !replay.execution.begin(replay.json, whole_plan).await? {
        return Ok(());
    }
    if !replay.json && !plan.directed.is_empty() {
        print(&format!("{}\n", plan.targets_text()))?;
    }
    let producer = producer(replay)?;
    write(replay, &producer, &mut plan).await;
    let mut deleted = 0;
    if replay.chosen.offset.is_none() && plan.leaves_nothing() {
        admin.delete_records(&ends).await.context("the letters were replayed, and cannot be deleted")?;
        deleted = plan.directed.len() + usize::try_from(plan.done).unwrap_or(0);
    } else {
        note(&producer, &plan).await.context(
            "the letters were replayed, and that cannot be noted beside them: the next replay writes them again",
        )?;
    }
    report(replay, &plan, deleted)
}

fn producer(replay: &Replay) -> Result<Producer> {
    // A letter that could be written is as large as its message, which goes back now.
    let usual = ProducerConfig::new(replay.target.config()?);
    Ok(Producer::new(ProducerConfig { request_bytes_max: usual.buffer_bytes, ..usual })?)
}

/// Names the letters that were written in the partitions where they are.
async fn note(producer: &Producer, plan: &Plan) -> Result<()> {
    let mut replayed: BTreeMap<&TopicPartition, Vec<i64>> = BTreeMap::new();
    for directed in &plan.directed {
        let record = &directed.letter.record;
        replayed.entry(&record.partition).or_default().push(record.offset);
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

/// Writes the letters. One that cannot be written becomes a failure of the plan; the others are still written.
async fn write(replay: &Replay, producer: &Producer, plan: &mut Plan) {
    let mut sent = VecDeque::new();
    for directed in std::mem::take(&mut plan.directed) {
        let delivery = producer.send(record_of(replay, &directed.letter, &directed.to)).await;
        sent.push_back((directed, delivery));
    }
    while let Some((directed, delivery)) = sent.pop_front() {
        let mut outcome = match delivery {
            Ok(delivery) => delivery.outcome().await.map(drop),
            Err(error) => Err(error),
        };
        if outcome.as_ref().is_err_and(|error| error.code() == Some(ErrorCode::MESSAGE_TOO_LARGE)) {
            let key = &directed.letter.record.key;
            if sent.iter().any(|(later, _)| later.to.0 == directed.to.0 && later.letter.record.key == *key) {
                let reason = "it is too large with what a replay adds to it, and without that it would be behind later letters of \
                              its key: replay it by --offset before them";
                plan.fail(&directed.letter, reason.to_owned());
                continue;
            }
            // Its message was written there without what a replay adds.
            outcome = write_bare(replay, producer, &directed).await;
        }
        match outcome {
            Ok(()) => plan.directed.push(directed),
            Err(error) => plan.fail(&directed.letter, failure::text(&error.into())),
        }
    }
}

/// Writes a letter without the headers that a replay adds, but for the number that ends loops of replays.
async fn write_bare(replay: &Replay, producer: &Producer, directed: &Directed) -> Result<(), Error> {
    let mut record = record_of(replay, &directed.letter, &directed.to);
    record.headers.retain(|(name, _)| name != letter::TIMESTAMP);
    producer.send(record).await?.outcome().await.map(drop)
}

fn record_of(replay: &Replay, letter: &Letter, (topic, partition): &(String, Option<i32>)) -> Record {
    Record {
        topic: topic.as_str().into(),
        partition: *partition,
        key: letter.record.key.clone(),
        value: letter.record.value.clone(),
        headers: letter::replayed(&letter.record.headers),
        timestamp_ms: letter::first_timestamp_ms(&letter.record.headers).filter(|_| replay.keep_time),
    }
}

fn report(replay: &Replay, plan: &Plan, deleted: usize) -> Result<()> {
    if replay.json {
        let mut json = plan.json(replay);
        json["executed"] = Value::Bool(true);
        json["deleted"] = json!(deleted);
        print_json(&json)?;
    } else {
        let letters = counted(plan.directed.len() as u64, "letter");
        let topic = &replay.chosen.topic;
        let done = match deleted {
            0 => format!("replayed {letters} of {topic}; they stay there"),
            _ => format!("replayed {letters} of {topic}, and deleted them there"),
        };
        print(&(done + &plan.left_text(replay)))?;
    }
    match plan.failures.len() {
        0 => Ok(()),
        count => bail!(
            "{} of {} were not replayed, and stay there",
            counted(count as u64, "letter"),
            replay.chosen.topic
        ),
    }
}
