//! Which replicas keep up with their leader, as Kafka judges it: a replica is in sync if at some time within the last
//! `replica.lag.time.max.ms` it had all that the leader had then. One that says nothing has not caught up with anything,
//! even where nothing is appended. Time in which the leader itself stood still does not count: answers may wait to be read.

use crate::store::Store;
use raft::{Raft, StateRole};
use std::collections::BTreeMap;

/// A leader takes note every 500 ms at least. Time beyond this between two notes is time in which it stood still.
const NOTES_APART_MAX_MS: u64 = 1_000;

/// The place that a replica has to reach to have caught up with a moment.
#[derive(Debug, Clone, Copy)]
struct Target {
    index: u64,
    at_ms: u64,
    /// The last moment with which it had caught up.
    caught_up_ms: u64,
}

/// The lag of a leader's followers, as far as it knows.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    term: u64,
    noted_ms: u64,
    targets: BTreeMap<u64, Target>,
}

impl Lag {
    /// Takes note of the leader's own view. All count as in sync when a leader begins.
    pub(crate) fn note(&mut self, now_ms: u64, raft: &Raft<Store>) {
        if raft.state != StateRole::Leader {
            self.targets.clear();
            return;
        }
        if self.term != raft.term {
            self.targets.clear();
            self.term = raft.term;
        }
        self.leave_out_standstill(now_ms);
        let last = raft.raft_log.last_index();
        for (id, progress) in raft.prs().iter() {
            let begin = Target { index: last, at_ms: now_ms, caught_up_ms: now_ms };
            let target = self.targets.entry(*id).or_insert(begin);
            // The leader forgets this at each election time-out, and learns it again from the next answer.
            if !progress.recent_active {
                continue;
            }
            if progress.matched >= target.index {
                *target = Target { index: last, at_ms: now_ms, caught_up_ms: target.at_ms };
            }
            if progress.matched >= last {
                target.caught_up_ms = now_ms;
            }
        }
        self.targets.retain(|id, _| raft.prs().get(*id).is_some());
    }

    fn leave_out_standstill(&mut self, now_ms: u64) {
        let missed_ms = self.standstill_ms(now_ms);
        self.noted_ms = now_ms;
        let later = |ms: u64| ms.saturating_add(missed_ms).min(now_ms);
        self.targets.values_mut().for_each(|target| {
            (target.at_ms, target.caught_up_ms) = (later(target.at_ms), later(target.caught_up_ms));
        });
    }

    /// For how long the leader has stood still since the last note.
    fn standstill_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.noted_ms).saturating_sub(NOTES_APART_MAX_MS)
    }

    pub(crate) fn is_in_sync(&self, id: u64, now_ms: u64, lag_max_ms: u64) -> bool {
        let heard_until_ms = now_ms.saturating_sub(self.standstill_ms(now_ms));
        let target = self.targets.get(&id);
        target.is_some_and(|target| heard_until_ms.saturating_sub(target.caught_up_ms) <= lag_max_ms)
    }
}
