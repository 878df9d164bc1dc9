//! What is known of commits, and what no node knows any more (`write.caching`): such losses cannot be counted.
//!
//! A node knows what it has noted, and while it runs what it has seen. When one goes down, the world looks which records no node knows
//! any more to be committed. When there is a leader that has what is left of them, it says in the history which are gone. These are
//! excused; all others that are gone have to be counted by a replica.

use crate::clients::At;
use crate::world::{Added, World};
use mainstem_records::LeaderEpoch;
use mainstem_replication::history::{Operation, Outcome};
use std::collections::BTreeMap;

/// The process of what is said of all nodes.
const ALL_NODES: i32 = 0;

/// Committed records of a partition of which no node knows any more that they are.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    /// The leader epoch of each: there is one record with an offset and an epoch.
    epochs: BTreeMap<i64, Option<LeaderEpoch>>,
    /// A leader of this term, or of a later one, has what is left of them.
    term: u64,
}

impl World {
    /// Where a partition ends, as far as any node knows it to be committed.
    fn known_end(&self, partition: usize) -> i64 {
        self.nodes.iter().map(|node| node.known_end(partition)).max().unwrap_or(0)
    }

    /// Has a node go down, and remembers what is not known any more.
    pub(crate) fn forget_with(&mut self, node: usize, stop: impl FnOnce(&mut World)) {
        let counts = self.adds_up() == Added::Nothing && self.nodes[node].write_caching();
        let epochs = self.nodes[node].with_log(0, |log| log.leader_epochs().clone()).filter(|_| counts);
        let Some(epochs) = epochs else { return stop(self) };
        let term = self.nodes.iter().filter_map(|node| node.term(0)).max().unwrap_or(0);
        let before = self.known_end(0);
        stop(self);
        let forgotten = self.known_end(0)..before;
        if !forgotten.is_empty() {
            self.forgotten.term = term.max(self.forgotten.term);
            self.forgotten.epochs.extend(forgotten.map(|offset| (offset, epochs.epoch_of(offset))));
        }
    }

    /// Says what is gone of that which was forgotten, as soon as it is certain.
    pub(crate) fn find_uncounted(&mut self) {
        let Some((end, _)) = self.forgotten.epochs.last_key_value() else { return };
        let Some(leader) = self.leader(0).map(|leader| &self.nodes[leader]) else { return };
        let looked = leader.with_log(0, |log| (log.ends(), log.leader_epochs().clone()));
        let Some((ends, epochs)) = looked.filter(|_| leader.leads_settled(0) >= Some(self.forgotten.term))
        else {
            return;
        };
        let end = end + 1;
        let is_gone = |(offset, epoch): &(&i64, &Option<LeaderEpoch>)| {
            let is_here = **offset < ends.log_end && epochs.epoch_of(**offset) == **epoch;
            **offset >= ends.log_start && !is_here
        };
        let gone_from = self.forgotten.epochs.iter().find(is_gone).map(|(offset, _)| *offset);
        self.forgotten = Forgotten::default();
        if let Some(offset) = gone_from {
            let at = At::new(0, offset, (end - offset).unsigned_abs());
            self.note(ALL_NODES, Operation::Uncounted, Outcome::Ok, at);
        }
    }
}
