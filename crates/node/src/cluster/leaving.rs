//! The end of a node in its cluster: other nodes lead what it leads, before it stops.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_store::partition::Partition;

use super::Cluster;
use super::calls::Ask;

/// Time in which a node that stops tries to hand over the partitions that it leads.
const HAND_OVER_TIME: Duration = Duration::from_secs(5);
/// Partitions that are handed over at the same time.
const HANDED_OVER_MAX: usize = 25;
/// Interval of the checks whether they are handed over.
const HAND_OVER_EVERY: Duration = Duration::from_millis(10);

impl Cluster {
    /// Has other nodes lead what this one leads, and says that it leaves: before it stops, so that clients wait for no
    /// election (`controlled.shutdown.enable`).
    pub fn hand_over(&self) {
        let clock = &self.local.clock;
        let deadline = clock.instant() + HAND_OVER_TIME;
        let mut partitions = self.local.store.partitions();
        partitions.retain(|partition| partition.is_replicated());
        self.hand_over_all(partitions, deadline);
        // It sends no more heartbeats: with one, the next leader would take this node for one that has returned.
        let registered = self.registered.lock().take();
        if let Some(((broker_epoch, _), leader)) = registered.zip(self.controller.leader()) {
            let ask = Ask::Leaving { node: self.own, broker_epoch };
            match leader == self.own {
                true => self.ask(leader, &ask),
                false => self.ask_while(leader, &ask, || clock.instant() < deadline),
            };
        }
        self.hand_over_all(vec![self.controller.log().clone()], deadline);
    }

    fn hand_over_all(&self, mut partitions: Vec<Arc<Partition>>, deadline: Instant) {
        partitions.retain(|partition| partition.leadership().is_leader);
        while !partitions.is_empty() && self.local.clock.instant() < deadline {
            let connected = self.links.connected();
            for partition in partitions.iter().take(HANDED_OVER_MAX) {
                let heirs = partition.in_sync();
                if let Some(heir) = heirs.iter().find(|node| connected.contains(node)) {
                    partition.transfer(*heir);
                }
            }
            mainstem_runtime::sync::sleep(HAND_OVER_EVERY);
            partitions.retain(|partition| partition.leadership().is_leader);
        }
        if !partitions.is_empty() {
            tracing::warn!(
                partitions = partitions.len(),
                "not handed over: no other replica is in sync in time"
            );
        }
    }

    /// Checks whether this node may stop: the metadata and each partition with other replicas must be able to work without it.
    ///
    /// # Errors
    /// Why not, for a person.
    pub fn may_stop(&self) -> Result<(), String> {
        if self.controller.leader().is_none() {
            return Err(self.missing_majority());
        }
        let is_there =
            |node: i32| node != self.own && self.is_reachable(node) && !self.links.out_of_sync.has_node(node);
        let voters = self.voters();
        let others = voters.iter().filter(|id| is_there(**id)).count();
        if voters.contains(&self.own) && !suffice(others, voters.len(), 1) {
            return Err(format!("the metadata have only {others} other nodes that can be reached"));
        }
        let image = self.controller.image();
        for topic in self.local.store.topics.all() {
            let known = image.topic_by_id(topic.id).map_or(&[][..], |known| &known.partitions);
            // Also where this node's own replica is not in use: of those that are, most have to stay.
            let own = topic.partitions.iter().zip(known);
            let own = own.filter(|(_, known)| known.has_group() && known.replicas.contains(&self.own));
            for (partition, known) in own {
                let (name, key) =
                    (format!("{}-{}", topic.name, partition.index), (topic.id, partition.index));
                let Some(leader) = self.leader_of(key, Some(partition)) else {
                    return Err(format!("partition {name} has no leader"));
                };
                let is_in_sync = |node: &&i32| is_there(**node) && self.may_be_in_sync(key, **node);
                let others = leader.isr.iter().filter(is_in_sync).count();
                let wanted = usize::try_from(partition.settings().min_insync_replicas).unwrap_or(1);
                let replicas = known.replicas.len() - known.adding.len();
                if !suffice(others, replicas, wanted) {
                    return Err(format!("partition {name} has only {others} other replicas in sync"));
                }
            }
        }
        Ok(())
    }
}

/// Returns true if `live` of the replicas of a partition can elect and commit without the others: they must be a majority,
/// and acks=all may need more (`min.insync.replicas`).
fn suffice(live: usize, replicas: usize, min_insync: usize) -> bool {
    live > replicas / 2 && live >= min_insync
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_majority_suffices_if_acks_all_needs_no_more() {
        for (live, replicas, min_insync, expected) in [
            (2, 3, 1, true),
            (2, 3, 2, true),
            (2, 3, 3, false),
            (1, 3, 1, false),
            (1, 2, 1, false),
            (2, 4, 1, false),
            (3, 5, 2, true),
            (2, 5, 1, false),
        ] {
            assert_eq!(suffice(live, replicas, min_insync), expected, "{live} of {replicas}, {min_insync}");
        }
    }
}
