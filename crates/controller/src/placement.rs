//! Placement of the replicas of new partitions, as in Kafka's `StripedReplicaPlacer`. Leaders take turns, and replicas are in different
//! racks as far as there are racks. A topic can be created while a node is fenced: such a node leads no partition, but gets replicas if the
//! others are too few or in the same racks. Unlike Kafka, a majority of the replicas is placed on nodes that are not fenced, whatever their
//! racks: fewer elect no leader.

use super::image::BrokerImage;

/// A node that takes partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeInRack {
    id: i32,
    rack: Option<String>,
    fenced: bool,
}

impl NodeInRack {
    pub(super) fn of(broker: &BrokerImage) -> NodeInRack {
        NodeInRack { id: broker.id, rack: broker.rack.clone(), fenced: broker.fenced }
    }

    /// Returns true if it may be the first replica of new partitions.
    pub(super) fn can_lead(&self) -> bool {
        !self.fenced
    }
}

/// Nodes in an order in which neighbours are in different racks, as far as that is possible.
pub(super) struct Placement<'a> {
    /// Those that may lead.
    order: Vec<&'a NodeInRack>,
    fenced: Vec<&'a NodeInRack>,
}

impl<'a> Placement<'a> {
    /// An order of these nodes, which are sorted by id: one of each rack in turn. At least one of them is not fenced.
    pub(super) fn new(nodes: &'a [NodeInRack]) -> Self {
        let (fenced, unfenced) = nodes.iter().partition(|node| node.fenced);
        Placement { order: racks_in_turn(unfenced), fenced: racks_in_turn(fenced) }
    }

    /// Returns the position of a node in the order; `None` for a fenced one.
    pub(super) fn rank(&self, id: i32) -> Option<usize> {
        self.order.iter().position(|node| node.id == id)
    }

    /// The replicas of a partition, the preferred leader first. There are at least `factor` nodes, of which a [`majority`] of that is not
    /// fenced. With each round over the nodes the followers move on by one, so that all others share the work of a lost leader.
    pub(super) fn replicas(&self, start: usize, partition: usize, factor: usize) -> Vec<i32> {
        let count = self.order.len();
        let first = start.wrapping_add(partition) % count;
        let shift = partition / count;
        let others =
            (0..count - 1).map(|step| self.order[(first + 1 + (step + shift) % (count - 1)) % count]);
        let mut others: Vec<_> = if count > 1 { others.collect() } else { Vec::new() };
        others.extend(&self.fenced);
        let mut chosen = vec![self.order[first]];
        let mut fenced_left = factor - majority(factor);
        // First nodes in racks without a replica, then any others.
        for any_rack in [false, true] {
            for node in &others {
                let is_apart = |other: &&NodeInRack| other.rack.is_none() || other.rack != node.rack;
                let fits = if any_rack { !chosen.contains(node) } else { chosen.iter().all(is_apart) };
                if chosen.len() < factor && fits && (node.can_lead() || fenced_left > 0) {
                    fenced_left -= usize::from(node.fenced);
                    chosen.push(node);
                }
            }
        }
        chosen.iter().map(|node| node.id).collect()
    }
}

/// Returns the number of replicas that elect a leader.
pub(super) fn majority(factor: usize) -> usize {
    factor / 2 + 1
}

fn racks_in_turn(mut left: Vec<&NodeInRack>) -> Vec<&NodeInRack> {
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let mut seen = Vec::new();
        left.retain(|node| {
            let is_next = node.rack.is_none() || !seen.contains(&&node.rack);
            if is_next {
                seen.push(&node.rack);
                order.push(*node);
            }
            !is_next
        });
    }
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn nodes(racks: &[Option<&str>]) -> Vec<NodeInRack> {
        let node = |(id, rack): (i32, &Option<&str>)| NodeInRack {
            id,
            rack: rack.map(str::to_string),
            fenced: false,
        };
        (1..).zip(racks).map(node).collect()
    }

    #[test]
    fn leaders_take_turns_and_followers_move_on() {
        let nodes = nodes(&[None; 3]);
        let placement = Placement::new(&nodes);
        let placed: Vec<_> = (0..6).map(|partition| placement.replicas(0, partition, 3)).collect();
        assert_eq!(
            placed,
            [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [2, 1, 3], [3, 2, 1]]
                .map(|replicas| replicas.to_vec())
        );
        assert_eq!(placement.replicas(1, 0, 1), [2], "another topic begins with another node");
        assert_eq!(placement.rank(3), Some(2));
    }

    #[test]
    fn replicas_are_in_different_racks() {
        let nodes = nodes(&[Some("a"), Some("a"), Some("b"), Some("b"), Some("c"), Some("c")]);
        let placement = Placement::new(&nodes);
        for partition in 0..24 {
            for factor in 1..=6 {
                let replicas = placement.replicas(5, partition, factor);
                let distinct: BTreeSet<_> = replicas.iter().collect();
                assert_eq!((replicas.len(), distinct.len()), (factor, factor), "each node once");
                let racks: BTreeSet<_> = replicas.iter().map(|id| (id - 1) / 2).collect();
                assert_eq!(racks.len(), factor.min(3), "{replicas:?}");
            }
        }
    }

    #[test]
    fn nodes_that_are_fenced_lead_nothing_and_come_last_of_their_rack() {
        let mut without_racks = nodes(&[None; 4]);
        without_racks[1].fenced = true;
        let placement = Placement::new(&without_racks);
        for partition in 0..12 {
            let replicas = placement.replicas(3, partition, 3);
            assert!(!replicas.contains(&2), "{replicas:?}: the others are enough");
            let all = placement.replicas(3, partition, 4);
            assert_eq!((all[0] != 2, all[3]), (true, 2), "{all:?}");
        }
        assert_eq!(placement.rank(2), None, "it cannot lead");

        let mut in_racks = nodes(&[Some("a"), Some("a"), Some("b"), Some("b"), Some("c")]);
        in_racks[4].fenced = true;
        in_racks[3].fenced = true;
        let placement = Placement::new(&in_racks);
        for partition in 0..12 {
            let replicas = placement.replicas(0, partition, 3);
            assert!(replicas[0] <= 3 && replicas.contains(&5), "{replicas:?}: a rack counts for more");
            assert!(replicas.contains(&3) && !replicas.contains(&4), "{replicas:?}: node 3 has its rack");
        }
    }

    #[test]
    fn a_majority_of_the_replicas_is_not_fenced_whatever_the_racks() {
        let fenced_of = |racks: &[Option<&str>], away: &[i32], factor: usize| -> Vec<usize> {
            let mut nodes = nodes(racks);
            nodes.iter_mut().for_each(|node| node.fenced = away.contains(&node.id));
            let placement = Placement::new(&nodes);
            let count = |replicas: Vec<i32>| replicas.iter().filter(|id| away.contains(id)).count();
            (0..12).map(|partition| count(placement.replicas(0, partition, factor))).collect()
        };
        let (a, b, c) = (Some("a"), Some("b"), Some("c"));
        assert_eq!(fenced_of(&[a, a, a, b, b], &[4, 5], 2), [0; 12]);
        assert_eq!(fenced_of(&[a, a, a, b, b], &[4, 5], 3), [1; 12], "the other rack has one of three");
        assert_eq!(fenced_of(&[a, a, a, b, c], &[4, 5], 3), [1; 12], "and not both of the others");
        assert_eq!(fenced_of(&[a, a, b], &[3], 2), [0; 12]);
        assert_eq!(fenced_of(&[a, a, a, b, c], &[4, 5], 5), [2; 12]);
    }

    #[test]
    fn one_node_has_everything() {
        let nodes = nodes(&[Some("a")]);
        assert_eq!(Placement::new(&nodes).replicas(7, 3, 1), [1]);
    }
}
