//! Knowledge of commits, for runs with `write.caching`: losses of commits that no node remembers cannot be counted by a replica.
//!
//! A node knows its checkpointed high watermark, and while it runs the one that it has seen. When a node goes down, the world finds the
//! committed records whose commit no node knows any more. Once a leader has the rest of them, the world notes in the history which are
//! lost. The checker excuses these; all other losses must be counted by a replica.

use crate::clients::At;
use crate::world::World;
use mainstem_records::LeaderEpoch;
use mainstem_replication::history::{Operation, Outcome};
use std::collections::BTreeMap;

/// Process in the history for events of all nodes.
const ALL_NODES: i32 = 0;

/// Committed records of a partition whose commit no node knows any more.
#[derive(Debug, Default)]
pub(crate) struct Forgotten {
    /// Leader epoch of each record, by offset. Offset and epoch identify a record.
    epochs: BTreeMap<i64, Option<LeaderEpoch>>,
    /// A leader of this term, or of a later one, has all of them that survive.
    term: u64,
}

impl World {
    /// Highest end of a partition that any node knows to be committed.
    fn known_end(&self, partition: usize) -> i64 {
        self.nodes.iter().map(|node| node.known_end(partition)).max().unwrap_or(0)
    }

    /// Stops a node, and remembers the records whose commit no node knows any more.
    pub(crate) fn forget_with(&mut self, node: usize, stop: impl FnOnce(&mut World)) {
        let counts = !self.has_coordinators() && self.nodes[node].write_caching();
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

    /// Notes which of the forgotten records are lost, as soon as that is certain.
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
