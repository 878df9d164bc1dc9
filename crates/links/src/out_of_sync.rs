//! Replicas that cannot be in sync, whatever they had last.
//!
//! A leader sees that a replica keeps up, and by `replica.lag.time.max.ms` that it does not. Two things are known sooner: the cluster
//! has fenced a node, or knows none of this id any more (KIP-841); and a node knows of its own replicas which take no part, and tells
//! the others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use mainstem_replication::GroupId;
use parking_lot::RwLock;

/// Knowledge of all nodes.
#[derive(Debug, Default)]
pub struct OutOfSync {
    /// Something is: what is asked for each request looks at nothing else otherwise.
    is_any: AtomicBool,
    known: RwLock<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// Nodes that are fenced, or not registered.
    nodes: BTreeSet<i32>,
    /// The last statements of nodes about their own replicas.
    replicas: BTreeMap<i32, HashSet<GroupId>>,
}

impl OutOfSync {
    /// Notes the nodes that are fenced or not registered.
    pub fn set_nodes(&self, nodes: BTreeSet<i32>) {
        if self.known.read().nodes != nodes {
            self.change(|known| known.nodes = nodes);
        }
    }

    /// Takes note of a node's report on its own replicas, which replaces its report before.
    pub fn set_replicas(&self, node: i32, replicas: HashSet<GroupId>) {
        self.change(|known| {
            known.replicas.remove(&node);
            if !replicas.is_empty() {
                known.replicas.insert(node, replicas);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        let mut known = self.known.write();
        change(&mut known);
        self.is_any.store(!known.nodes.is_empty() || !known.replicas.is_empty(), Ordering::Release);
    }

    /// Returns true if there is any.
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Returns true if a node is fenced, or not registered.
    pub fn has_node(&self, node: i32) -> bool {
        self.is_any() && self.known.read().nodes.contains(&node)
    }

    /// Returns true if a node's replica of a group cannot be in sync.
    pub fn has(&self, group: GroupId, node: i32) -> bool {
        if !self.is_any() {
            return false;
        }
        let known = self.known.read();
        known.nodes.contains(&node)
            || known.replicas.get(&node).is_some_and(|replicas| replicas.contains(&group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_last_and_what_the_cluster_knows_both_count() {
        let group = |partition| GroupId { topic_id: [7; 16], partition };
        let out = OutOfSync::default();
        assert!(!out.is_any() && !out.has(group(0), 1));
        out.set_replicas(1, HashSet::from([group(0), group(1)]));
        out.set_replicas(1, HashSet::from([group(1)]));
        assert_eq!([0, 1].map(|number| out.has(group(number), 1)), [false, true]);
        assert!(!out.has(group(1), 2) && !out.has_node(1));
        out.set_nodes(BTreeSet::from([2]));
        assert!(out.has(group(0), 2) && out.has_node(2));
        out.set_nodes(BTreeSet::new());
        out.set_replicas(1, HashSet::new());
        assert!(!out.is_any());
    }
}
