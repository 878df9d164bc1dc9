//! The plan of a replay: the destination of each letter, or the reason why it stays.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_client::TopicPartition;
use mainstem_flow::letter;
use serde_json::{Value, json};

use super::super::letters::Letter;
use super::super::targets::Targets;
use super::Replay;
use crate::output::{counted, shown, table};

/// The most failed letters in text for people; JSON has them all.
const FAILURES_SHOWN: usize = 20;

/// Letters that were read, and the decision about each.
#[derive(Default)]
pub(super) struct Plan {
    letters: Vec<Letter>,
    /// Those with a destination.
    pub(super) directed: Vec<Directed>,
    /// Those without.
    pub(super) failures: Vec<Failure>,
    /// Letters that were replayed too often.
    worn: u64,
    /// Letters that the filters leave out.
    left_out: u64,
    /// Offsets that notes name, by partition.
    noted: BTreeMap<TopicPartition, BTreeSet<i64>>,
    /// Letters that are left out because a note names them.
    pub(super) done: u64,
}

/// A letter with its destination: topic and partition. Without a partition its key chooses one.
pub(super) struct Directed {
    pub(super) letter: Letter,
    pub(super) to: (String, Option<i32>),
}

/// A letter that is not replayed.
pub(super) struct Failure {
    partition: TopicPartition,
    offset: i64,
    reason: String,
}

/// The reason for a letter that lacks a part of its message.
fn lacking(letter: &Letter) -> String {
    format!(
        "it lacks a part of its message ({}), which was too large for it; the message is {}, if its topic still has it",
        letter.text(letter::LEFT_OUT).unwrap_or_default(),
        letter.shown_source()
    )
}

impl Plan {
    /// Takes a record of the topic of letters.
    pub(super) fn take(&mut self, letter: Letter, replay: &Replay) {
        if let Some(offsets) = letter.noted() {
            self.noted.entry(letter.record.partition).or_default().extend(offsets);
        } else if !replay.filter.passes(&letter) {
            self.left_out += 1;
        } else if letter::rounds(&letter.record.headers) >= replay.max_rounds {
            self.worn += 1;
        } else {
            self.letters.push(letter);
        }
    }

    /// Takes a note of an earlier replay, and ignores other records.
    pub(super) fn take_note(&mut self, letter: Letter) {
        if let Some(offsets) = letter.noted() {
            self.noted.entry(letter.record.partition).or_default().extend(offsets);
        }
    }

    /// Leaves out the letters that an earlier replay has written: notes come behind what they name.
    pub(super) fn leave_out_noted(&mut self) {
        let Plan { letters, noted, done, .. } = self;
        letters.retain(|letter| {
            let record = &letter.record;
            let is_done =
                noted.get(&record.partition).is_some_and(|offsets| offsets.contains(&record.offset));
            *done += u64::from(is_done);
            !is_done
        });
    }

    /// Finds the destination of each letter: one topic, or its source.
    pub(super) async fn direct(&mut self, targets: &mut Targets<'_>, to: Option<&str>) {
        for letter in std::mem::take(&mut self.letters) {
            let to = match to {
                _ if letter.text(letter::LEFT_OUT).is_some() => Err(lacking(&letter)),
                Some(_) if letter.source().is_none() => {
                    Err("it does not say where its message came from, so that it is no letter".to_owned())
                }
                Some(to) => {
                    let own =
                        letter.source().filter(|(topic, ..)| *topic == to).map(|(_, partition, _)| partition);
                    targets
                        .width(to)
                        .await
                        .map(|width| (to.to_owned(), own.filter(|partition| (0..width).contains(partition))))
                }
                None => targets.back(&letter).await,
            };
            match to {
                Ok(to) => self.directed.push(Directed { letter, to }),
                Err(reason) => self.fail(&letter, reason),
            }
        }
    }

    /// Notes that a letter is not replayed.
    pub(super) fn fail(&mut self, letter: &Letter, reason: String) {
        let record = &letter.record;
        self.failures.push(Failure { partition: record.partition.clone(), offset: record.offset, reason });
    }

    /// Returns true if all letters that were read are written when those of the plan are.
    pub(super) fn leaves_nothing(&self) -> bool {
        let stays = self.worn + self.left_out + self.failures.len() as u64;
        stays == 0 && (!self.directed.is_empty() || self.done > 0)
    }

    /// Counts of letters by destination.
    fn targets(&self) -> BTreeMap<&(String, Option<i32>), u64> {
        let mut targets = BTreeMap::new();
        for directed in &self.directed {
            *targets.entry(&directed.to).or_default() += 1;
        }
        targets
    }

    /// The same as a table.
    pub(super) fn targets_text(&self) -> String {
        let row = |((topic, partition), count): (&(String, Option<i32>), u64)| {
            let partition = partition.map_or("by key".to_owned(), |partition| partition.to_string());
            vec![topic.clone(), partition, count.to_string()]
        };
        table(&["TO", ">PARTITION", ">LETTERS"], self.targets().into_iter().map(row).collect())
    }

    /// The plan for people.
    pub(super) fn text(&self, replay: &Replay) -> String {
        let (letters, topic) = (counted(self.directed.len() as u64, "letter"), &replay.chosen.topic);
        let targets = match self.directed.is_empty() {
            true => String::new(),
            false => format!(":\n\n{}\n", self.targets_text()),
        };
        format!("{letters} of {topic} would be replayed{targets}{}", self.left_text(replay))
    }

    /// Lines about letters that are not replayed, each with an end of line before it.
    pub(super) fn left_text(&self, replay: &Replay) -> String {
        let mut text = String::new();
        let mut say = |count: u64, words: &str| {
            if count > 0 {
                text += &format!("\n{} {words}", counted(count, "letter"));
            }
        };
        say(self.done, "written by an earlier replay: left out (--offset names one)");
        say(self.worn, &format!("replayed {} times already: left out (--max-rounds)", replay.max_rounds));
        say(self.left_out, "of another kind than what is asked for: left out");
        say(self.failures.len() as u64, "not replayed:");
        for Failure { partition, offset, reason } in self.failures.iter().take(FAILURES_SHOWN) {
            text += &format!("\n  {partition}@{offset}: {}", shown(reason));
        }
        if self.failures.len() > FAILURES_SHOWN {
            text += &format!("\n  and {} more (--json names them)", self.failures.len() - FAILURES_SHOWN);
        }
        text
    }

    /// The plan for programs.
    pub(super) fn json(&self, replay: &Replay) -> Value {
        let target = |((topic, partition), count): (&(String, Option<i32>), u64)| json!({"topic": topic, "partition": partition, "letters": count});
        let failure = |one: &Failure| json!({"partition": one.partition.partition, "offset": one.offset, "reason": one.reason});
        json!({
            "topic": replay.chosen.topic,
            "replayed": self.directed.len(),
            "deleted": 0,
            "targets": self.targets().into_iter().map(target).collect::<Value>(),
            "replayed_before": self.done,
            "replayed_too_often": self.worn,
            "left_out": self.left_out,
            "failed": self.failures.len(),
            "failures": self.failures.iter().map(failure).collect::<Value>(),
        })
    }
}
