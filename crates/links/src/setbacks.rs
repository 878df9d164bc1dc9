//! Setbacks of replicas, gathered for the log: one event has them befall all that a node leads, and is one line.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_replication::Setback;
use parking_lot::Mutex;

/// Time for which setbacks of one event are gathered: leaders check once a second whether a majority is reachable.
const GATHERED_MS: u64 = 2_000;

/// Two lines about the same are at least so far apart: where a disk stays full, replicas try again and again.
const APART_MS: u64 = 10_000;

/// Partitions that a line names.
const NAMED_MAX: usize = 3;

/// Setbacks of replicas of this node that were not said yet. Times are monotonic milliseconds.
#[derive(Debug, Default)]
pub(super) struct Setbacks(Mutex<BTreeMap<Setback, Gathered>>);

#[derive(Debug, Default)]
struct Gathered {
    /// Topics and numbers.
    partitions: BTreeSet<(Arc<str>, i32)>,
    /// When it is to be said.
    due_ms: u64,
    said_ms: Option<u64>,
}

impl Setbacks {
    /// It has befallen a partition's replica.
    pub(super) fn note(&self, setback: Setback, partition: (Arc<str>, i32), now_ms: u64) {
        let mut all = self.0.lock();
        let gathered = all.entry(setback).or_default();
        if gathered.partitions.is_empty() {
            let apart_ms = gathered.said_ms.map_or(0, |said_ms| said_ms + APART_MS);
            gathered.due_ms = apart_ms.max(now_ms + GATHERED_MS);
        }
        gathered.partitions.insert(partition);
    }

    /// The lines that are to be written now.
    pub(super) fn due(&self, now_ms: u64) -> Vec<String> {
        self.take(|gathered| gathered.due_ms <= now_ms, now_ms)
    }

    /// The lines of all that was not said.
    pub(super) fn rest(&self, now_ms: u64) -> Vec<String> {
        self.take(|_| true, now_ms)
    }

    fn take(&self, is_due: impl Fn(&Gathered) -> bool, now_ms: u64) -> Vec<String> {
        let mut all = self.0.lock();
        let due = all.iter_mut().filter(|(_, gathered)| !gathered.partitions.is_empty() && is_due(gathered));
        let said = due.map(|(setback, gathered)| {
            gathered.said_ms = Some(now_ms);
            line(*setback, &std::mem::take(&mut gathered.partitions))
        });
        said.collect()
    }
}

fn line(setback: Setback, partitions: &BTreeSet<(Arc<str>, i32)>) -> String {
    let named = partitions.iter().take(NAMED_MAX).map(|(topic, index)| format!("{topic}-{index}"));
    let named = named.collect::<Vec<_>>().join(", ");
    let (what, which) = match partitions.len() {
        1 => (format!("partition {named}"), String::new()),
        count if count <= NAMED_MAX => (format!("{count} partitions"), format!(": {named}")),
        count => (format!("{count} partitions"), format!("; first: {named}")),
    };
    match setback {
        Setback::LostMajority => {
            format!(
                "leadership of {what} is lost: nothing was received from a majority of the replicas{which}"
            )
        }
        Setback::HandedOffLeadership => format!(
            "leadership of {what} is given away: this node has no space, descriptors or memory for an append{which}"
        ),
        Setback::WaitsForSpace => {
            format!("the replicas of {what} wait for space, descriptors or memory{which}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(index: i32) -> (Arc<str>, i32) {
        ("t".into(), index)
    }

    #[test]
    fn one_event_is_one_line_and_names_the_first() {
        let setbacks = Setbacks::default();
        for index in (0..1_998).rev() {
            setbacks.note(Setback::LostMajority, partition(index), 1_000);
            setbacks.note(Setback::LostMajority, partition(index), 1_500);
        }
        setbacks.note(Setback::HandedOffLeadership, partition(7), 2_000);
        assert_eq!(setbacks.due(2_999), [""; 0]);
        let lost = "leadership of 1998 partitions is lost: nothing was received from a majority of the replicas; first: t-0, t-1, \
                    t-2";
        assert_eq!(setbacks.due(3_000), [lost]);
        let handed_off = "leadership of partition t-7 is given away: this node has no space, descriptors or memory for an append";
        assert_eq!(setbacks.due(4_000), [handed_off]);
        assert_eq!(setbacks.due(100_000), [""; 0], "it is said once");
    }

    #[test]
    fn a_lasting_setback_is_logged_now_and_then_and_the_rest_at_the_end() {
        let setbacks = Setbacks::default();
        let mut said = 0;
        for now_ms in (0..60_000).step_by(500) {
            setbacks.note(Setback::WaitsForSpace, partition(0), now_ms);
            setbacks.note(Setback::WaitsForSpace, partition(1), now_ms);
            said += setbacks.due(now_ms).len();
        }
        assert_eq!(said, 6, "at 2, 12, 22 ... seconds");
        let line = "the replicas of 2 partitions wait for space, descriptors or memory: t-0, t-1";
        assert_eq!(setbacks.rest(60_000), [line]);
        assert_eq!(setbacks.rest(60_000), [""; 0]);
    }
}
