//! Which replicas keep up with their leader, as Kafka judges it: a replica is in sync if at some time within the last
//! `replica.lag.time.max.ms` it had all that the leader had then. One that says nothing has not caught up with anything,
//! even where nothing is appended.

use crate::store::Store;
use raft::{RawNode, StateRole};
use std::collections::BTreeMap;

/// How far a replica has to get to have caught up with a moment.
#[derive(Debug, Clone, Copy)]
struct Target {
    index: u64,
    at_ms: u64,
    /// The last moment with which it had caught up.
    caught_up_ms: u64,
}

/// What a leader knows of its followers' lag.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    term: u64,
    targets: BTreeMap<u64, Target>,
}

impl Lag {
    /// Takes note of the leader's own view. All count as in sync when a leader begins.
    pub(crate) fn note(&mut self, now_ms: u64, node: &RawNode<Store>) {
        if node.raft.state != StateRole::Leader {
            self.targets.clear();
            return;
        }
        if self.term != node.raft.term {
            self.targets.clear();
            self.term = node.raft.term;
        }
        let last = node.raft.raft_log.last_index();
        for (id, progress) in node.raft.prs().iter() {
            let begin = Target { index: last, at_ms: now_ms, caught_up_ms: now_ms };
            let target = self.targets.entry(*id).or_insert(begin);
            // The leader forgets this at each election time-out, and learns it anew from the next answer.
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
        self.targets.retain(|id, _| node.raft.prs().get(*id).is_some());
    }

    pub(crate) fn is_in_sync(&self, id: u64, now_ms: u64, lag_max_ms: u64) -> bool {
        let target = self.targets.get(&id);
        target.is_some_and(|target| now_ms.saturating_sub(target.caught_up_ms) <= lag_max_ms)
    }
}
