//! Replicas that cannot be in sync, as far as this node knows, and its statements about its own ones.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use mainstem_replication::GroupId;
use mainstem_wire::Uuid;
use parking_lot::Mutex;

use super::calls::{Ask, encode};
use super::leaders::PartitionKey;
use super::{ASK, Cluster};

/// The statement about this node's own replicas.
#[derive(Default)]
pub(crate) struct Said {
    /// Those that cannot be in sync.
    out: BTreeSet<PartitionKey>,
    /// The number of its changes.
    changes: u64,
    /// The nodes that have got the report, and as of which change.
    notified: Arc<Mutex<BTreeMap<i32, u64>>>,
}

impl Said {
    /// Has the report sent to all nodes again, since reports may have arrived in another order than they were sent.
    pub(crate) fn say_again(&self) {
        self.notified.lock().clear();
    }
}

impl Cluster {
    /// Looks at what the cluster knows of the other nodes.
    pub(crate) fn look_at_nodes(&self) {
        let image = self.controller.image();
        let is_out = |node: &i32| image.broker(*node).is_none_or(|known| known.fenced);
        self.links.out_of_sync.set_nodes(self.node_ids().into_iter().filter(is_out).collect());
    }

    /// Another node says which of its replicas cannot be in sync.
    pub(crate) fn note_out_of_sync(&self, node: i32, partitions: &[([u8; 16], i32)]) {
        let group =
            |(topic_id, partition): &([u8; 16], i32)| GroupId { topic_id: *topic_id, partition: *partition };
        self.links.out_of_sync.set_replicas(node, partitions.iter().map(group).collect::<HashSet<_>>());
    }

    /// Looks at this node's own replicas, and tells the other nodes of those that cannot be in sync, when that has changed or they do
    /// not know it yet.
    pub(crate) fn tell_out_of_sync(&self, said: &mut Said) {
        let out = self.own_out_of_sync(&said.out);
        if out != said.out {
            (said.out, said.changes) = (out, said.changes + 1);
        }
        let connected = self.links.connected();
        said.notified.lock().retain(|node, _| connected.contains(node));
        for node in connected {
            if said.notified.lock().insert(node, said.changes) == Some(said.changes) {
                continue;
            }
            let partitions = said.out.iter().map(|(topic, index)| (topic.0, *index)).collect();
            let ask = Ask::OutOfSync { node: self.own, partitions };
            let notified = said.notified.clone();
            // One that has just started may not listen yet.
            let on_answer = move |answer: Result<Vec<u8>, _>| {
                if answer.is_err() {
                    notified.lock().remove(&node);
                }
            };
            self.links.call_then(node, ASK, encode(&ask), Box::new(on_answer));
        }
    }

    /// Those of this node's replicas that cannot be in sync; of a partition that another thread has, what was so before.
    fn own_out_of_sync(&self, before: &BTreeSet<PartitionKey>) -> BTreeSet<PartitionKey> {
        let image = self.controller.image();
        let is_own_of_several = |key: &PartitionKey| {
            let (topic, index) = (image.topic_by_id(key.0), usize::try_from(key.1).ok());
            let partition = topic.zip(index).and_then(|(topic, index)| topic.partitions.get(index));
            partition.is_some_and(|known| known.has_group() && known.replicas.contains(&self.own))
        };
        let mut out = BTreeSet::new();
        for topic in self.local.store.topics.all() {
            for partition in &topic.partitions {
                let key = (topic.id, partition.index);
                let is_out = partition.is_out_of_sync().unwrap_or_else(|| before.contains(&key));
                out.extend((is_out && is_own_of_several(&key)).then_some(key));
            }
        }
        out
    }

    /// Returns true if a node's replica of a partition can be in sync, as far as this node knows.
    pub(crate) fn may_be_in_sync(&self, (topic, partition): (Uuid, i32), node: i32) -> bool {
        !self.links.out_of_sync.has(GroupId { topic_id: topic.0, partition }, node)
    }
}
