//! The progress of a reassignment, by its file.

use anyhow::{Result, ensure};
use mainstem_client::{Admin, Reassignment, TopicPartition};
use serde_json::{Value, json};

use super::{Assignment, Reassign, throttle};
use crate::output::{print, print_json, table};

/// Shows which partitions of a file are as it says, and takes the throttle away where all are.
pub(super) async fn run(reassign: &Reassign, admin: &Admin, wanted: &Assignment) -> Result<()> {
    let current = super::current(admin, wanted).await?;
    let running = admin.reassignments().await?;
    let states: Vec<_> =
        wanted.iter().map(|(key, replicas)| (key, State::of(key, replicas, &current, &running))).collect();
    let are_done = states.iter().all(|(_, state)| *state == State::Done);
    let partitions = wanted.keys().collect();
    let throttle = match are_done {
        true => throttle::removal(admin, &partitions, running.is_empty()).await?,
        false => Vec::new(),
    };
    let is_removed = reassign.execution.execute && !throttle.is_empty();
    let is_left = !reassign.execution.execute && !throttle.is_empty();
    if is_removed {
        throttle::remove(admin, throttle).await?;
    }
    let row = |(key, state): &(&TopicPartition, State)| {
        vec![key.topic.to_string(), key.partition.to_string(), state.word().to_owned()]
    };
    if reassign.json {
        let one = |(key, state): &(&TopicPartition, State)| json!({"topic": &*key.topic, "partition": key.partition, "state": state.word()});
        print_json(&json!({
            "partitions": states.iter().map(one).collect::<Value>(),
            "done": are_done,
            "throttle_removed": is_removed,
            "throttle_left": is_left,
        }))?;
    } else {
        let rows = table(&["TOPIC", ">PARTITION", "STATE"], states.iter().map(row).collect());
        let of_throttle = match (is_removed, is_left) {
            (true, _) => "\n\nthe throttle is removed",
            (_, true) => "\n\nthe throttle is still set: --execute removes it",
            _ => "",
        };
        print(&format!("{rows}{of_throttle}"))?;
    }
    let others = states.iter().filter(|(_, state)| *state == State::Other).count() as u64;
    ensure!(
        others == 0,
        "{} not where the file has them, and no reassignment of them is running; begin it with --execute",
        match others {
            1 => "the replicas of 1 partition are".to_owned(),
            _ => format!("the replicas of {others} partitions are"),
        }
    );
    Ok(())
}

/// The progress of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has the replicas of the file.
    Done,
    /// It gets them.
    Moving,
    /// It has others.
    Other,
}

impl State {
    fn of(key: &TopicPartition, wanted: &[i32], current: &Assignment, running: &[Reassignment]) -> State {
        match running.iter().any(|one| one.partition == *key) {
            true => State::Moving,
            false if current.get(key).is_some_and(|now| now == wanted) => State::Done,
            false => State::Other,
        }
    }

    fn word(self) -> &'static str {
        match self {
            State::Done => "done",
            State::Moving => "moving",
            State::Other => "other replicas",
        }
    }
}
