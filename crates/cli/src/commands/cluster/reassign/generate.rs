//! A proposal of replicas: even over nodes and racks, with as few moves as that takes.
//!
//! A replica on a node that may have it stays there. Then replicas that lack a place get the node with the fewest; then nodes with
//! more than their share give replicas to those with less; then the first replicas, which are to lead, are evened out without a move.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use mainstem_client::TopicPartition;

use super::Assignment;

/// The nodes that may have replicas, each with its rack.
pub(super) type Nodes = BTreeMap<i32, Option<String>>;

/// Proposes replicas for the partitions `chosen` of all that there are. Only what changes is returned. `factor` is the number of replicas
/// that each is to have; without one it stays.
///
/// # Errors
/// If there are fewer nodes than replicas.
pub(super) fn propose(
    all: &Assignment,
    chosen: &BTreeSet<TopicPartition>,
    nodes: &Nodes,
    factor: Option<usize>,
) -> Result<Assignment> {
    let mut proposal = Proposal::new(all, chosen, nodes);
    for key in chosen {
        let Some(before) = all.get(key) else { continue };
        let count = factor.unwrap_or(before.len());
        ensure!(
            count <= nodes.len(),
            "{key} is to have {count} replicas, and there are {} nodes for them; name more with --nodes, or set \
             --replication-factor",
            nodes.len()
        );
        proposal.keep(key, before, count);
    }
    for key in chosen {
        let count = factor.or_else(|| all.get(key).map(Vec::len)).unwrap_or(0);
        proposal.fill(key, count);
    }
    proposal.even_replicas();
    proposal.even_leaders();
    Ok(proposal.replicas.into_iter().filter(|(key, replicas)| all.get(key) != Some(replicas)).collect())
}

struct Proposal<'a> {
    all: &'a Assignment,
    /// Each node that may have replicas by the number of its rack.
    racks: BTreeMap<i32, usize>,
    /// The number of replicas of all partitions on each of these nodes.
    loads: BTreeMap<i32, usize>,
    /// The number of partitions whose first replica each of them is.
    leads: BTreeMap<i32, usize>,
    replicas: Assignment,
}

impl<'a> Proposal<'a> {
    /// With the replicas of all partitions that are not chosen, which stay.
    fn new(all: &'a Assignment, chosen: &BTreeSet<TopicPartition>, nodes: &Nodes) -> Proposal<'a> {
        let zeros: BTreeMap<i32, usize> = nodes.keys().map(|node| (*node, 0)).collect();
        let mut proposal = Proposal {
            all,
            racks: racks(nodes),
            loads: zeros.clone(),
            leads: zeros,
            replicas: Assignment::new(),
        };
        for (_, replicas) in all.iter().filter(|(key, _)| !chosen.contains(key)) {
            replicas.iter().for_each(|node| add(&mut proposal.loads, *node));
            replicas.first().into_iter().for_each(|node| add(&mut proposal.leads, *node));
        }
        proposal
    }

    /// Keeps replicas where they are allowed: on nodes that may have them, as far as the racks allow.
    fn keep(&mut self, key: &TopicPartition, before: &[i32], count: usize) {
        let (of_rack_max, mut fuller) = self.share_of_racks(count);
        let mut kept: Vec<i32> = Vec::new();
        for node in before.iter().filter(|node| self.racks.contains_key(node)) {
            let of_rack = self.in_rack_of(*node, &kept) + 1;
            let is_fuller = of_rack == of_rack_max;
            if kept.len() == count || of_rack > of_rack_max || (is_fuller && fuller == 0) {
                continue;
            }
            fuller -= usize::from(is_fuller);
            kept.push(*node);
            add(&mut self.loads, *node);
        }
        self.replicas.insert(key.clone(), kept);
    }

    /// The most replicas of a partition that a rack has where they are spread evenly, and how many racks have so many.
    fn share_of_racks(&self, count: usize) -> (usize, usize) {
        let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
        self.racks.values().for_each(|rack| *sizes.entry(*rack).or_default() += 1);
        let within = |most: usize| sizes.values().map(|size| (*size).min(most)).sum::<usize>();
        let most = (1..=count).find(|most| within(*most) >= count).unwrap_or(count);
        (most, count.saturating_sub(within(most.saturating_sub(1))))
    }

    /// Adds replicas on the nodes that have the fewest.
    fn fill(&mut self, key: &TopicPartition, count: usize) {
        let Some(mut replicas) = self.replicas.remove(key) else { return };
        while replicas.len() < count {
            let free = self.racks.keys().filter(|node| !replicas.contains(node));
            let cost = |node: &&i32| (self.in_rack_of(**node, &replicas), self.loads[*node], **node);
            let Some(node) = free.min_by_key(cost).copied() else { break };
            replicas.push(node);
            add(&mut self.loads, node);
        }
        self.replicas.insert(key.clone(), replicas);
    }

    /// Moves replicas from nodes with more to nodes with less, while two differ by more than one and a move is possible.
    fn even_replicas(&mut self) {
        while let Some((key, from, to)) = self.next_move() {
            let replicas = self.replicas.get_mut(&key).expect("it is one of them");
            replicas.iter_mut().filter(|node| **node == from).for_each(|node| *node = to);
            subtract(&mut self.loads, from);
            add(&mut self.loads, to);
        }
    }

    fn next_move(&self) -> Option<(TopicPartition, i32, i32)> {
        pairs(&self.loads).find_map(|(from, to)| {
            let fits = |replicas: &Vec<i32>| {
                let others: Vec<i32> = replicas.iter().copied().filter(|node| *node != from).collect();
                others.len() < replicas.len()
                    && !others.contains(&to)
                    && self.in_rack_of(to, &others) <= self.in_rack_of(from, &others)
            };
            let mut fitting = self.replicas.iter().filter(|(_, replicas)| fits(replicas)).map(|(key, _)| key);
            let first = fitting.next()?;
            // One that moves anyway costs nothing more.
            let is_new = |key: &&TopicPartition| self.all.get(*key).is_none_or(|now| !now.contains(&from));
            let key = Some(first).into_iter().chain(fitting).find(is_new).unwrap_or(first);
            Some((key.clone(), from, to))
        })
    }

    /// Has other replicas be the first where a node is that more often than another one.
    fn even_leaders(&mut self) {
        for first in self.replicas.values().filter_map(|replicas| replicas.first()) {
            add(&mut self.leads, *first);
        }
        while let Some((key, from, to)) = self.next_leader() {
            let replicas = self.replicas.get_mut(&key).expect("it is one of them");
            let at = replicas.iter().position(|node| *node == to).expect("it has a replica");
            replicas[..=at].rotate_right(1);
            subtract(&mut self.leads, from);
            add(&mut self.leads, to);
        }
    }

    fn next_leader(&self) -> Option<(TopicPartition, i32, i32)> {
        pairs(&self.leads).find_map(|(from, to)| {
            let fits = |replicas: &Vec<i32>| replicas.first() == Some(&from) && replicas.contains(&to);
            let (key, _) = self.replicas.iter().find(|(_, replicas)| fits(replicas))?;
            Some((key.clone(), from, to))
        })
    }

    /// The number of these nodes that are in the rack of a node.
    fn in_rack_of(&self, node: i32, nodes: &[i32]) -> usize {
        let rack = self.racks.get(&node);
        nodes.iter().filter(|other| self.racks.get(other) == rack).count()
    }
}

/// The numbers of nodes' racks. If a node has no rack, each node counts as a rack of its own.
fn racks(nodes: &Nodes) -> BTreeMap<i32, usize> {
    let names: BTreeSet<_> = nodes.values().flatten().collect();
    let has_all = nodes.values().all(Option::is_some);
    let number = |(at, (node, rack)): (usize, (&i32, &Option<String>))| {
        let of_rack = rack.as_ref().and_then(|rack| names.iter().position(|name| *name == rack));
        (*node, of_rack.filter(|_| has_all).unwrap_or(at))
    };
    nodes.iter().enumerate().map(number).collect()
}

/// Pairs of a node that has more and one that has less, by more than one, the furthest apart first.
fn pairs(counts: &BTreeMap<i32, usize>) -> impl Iterator<Item = (i32, i32)> {
    let all = counts.iter().flat_map(|from| counts.iter().map(move |to| (from, to)));
    let apart = all.filter(|((_, more), (_, less))| **more > **less + 1);
    let mut pairs: Vec<_> =
        apart.map(|((from, more), (to, less))| (less.abs_diff(*more), *from, *to)).collect();
    pairs.sort_unstable_by_key(|(distance, from, to)| (std::cmp::Reverse(*distance), *from, *to));
    pairs.into_iter().map(|(_, from, to)| (from, to))
}

/// Counts a node, if it is one of them.
fn add(counts: &mut BTreeMap<i32, usize>, node: i32) {
    counts.entry(node).and_modify(|count| *count += 1);
}

fn subtract(counts: &mut BTreeMap<i32, usize>, node: i32) {
    counts.entry(node).and_modify(|count| *count -= 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(racks: &[(i32, &str)]) -> Nodes {
        racks.iter().map(|(node, rack)| (*node, (!rack.is_empty()).then(|| (*rack).to_owned()))).collect()
    }

    fn assignment(lists: &[&[i32]]) -> Assignment {
        (0..).zip(lists).map(|(index, list)| (TopicPartition::new("t", index), list.to_vec())).collect()
    }

    fn proposed(all: &Assignment, nodes: &Nodes, factor: Option<usize>) -> Assignment {
        propose(all, &all.keys().cloned().collect(), nodes, factor).unwrap()
    }

    /// All partitions as they would be.
    fn after(all: &Assignment, changes: &Assignment) -> Assignment {
        all.iter().map(|(key, now)| (key.clone(), changes.get(key).unwrap_or(now).clone())).collect()
    }

    #[test]
    fn what_is_even_stays() {
        let all = assignment(&[&[1, 2, 3], &[2, 3, 1], &[3, 1, 2]]);
        assert!(proposed(&all, &nodes(&[(1, ""), (2, ""), (3, "")]), None).is_empty());
    }

    #[test]
    fn a_new_node_gets_its_share_and_no_more_moves_than_that() {
        let all = assignment(&[&[1, 2], &[2, 1], &[1, 2], &[2, 1], &[1, 2], &[2, 1]]);
        let changes = proposed(&all, &nodes(&[(1, ""), (2, ""), (3, "")]), None);
        let after = after(&all, &changes);
        let moves: usize =
            after.iter().map(|(key, list)| list.iter().filter(|node| !all[key].contains(node)).count()).sum();
        assert_eq!(moves, 4, "a third of twelve replicas: {changes:?}");
    }

    #[test]
    fn a_node_that_is_left_out_has_nothing_in_the_end() {
        let all = assignment(&[&[1, 2], &[2, 3], &[3, 1]]);
        let changes = proposed(&all, &nodes(&[(1, ""), (2, ""), (4, "")]), None);
        let after = after(&all, &changes);
        assert_eq!(after[&TopicPartition::new("t", 0)], [1, 2]);
        assert!(after.values().flatten().all(|node| *node != 3), "{changes:?}");
    }

    #[test]
    fn no_two_replicas_share_a_rack_that_need_not() {
        let all = assignment(&[&[1, 2], &[3, 4], &[1, 3]]);
        let racks = nodes(&[(1, "a"), (2, "a"), (3, "b"), (4, "b")]);
        let after = after(&all, &proposed(&all, &racks, None));
        let name = |node: &i32| racks[node].clone();
        for list in after.values() {
            assert_eq!(list.iter().map(name).collect::<BTreeSet<_>>().len(), 2, "{after:?}");
        }
    }

    #[test]
    fn the_number_of_replicas_can_change_and_needs_nodes() {
        let all = assignment(&[&[1], &[2]]);
        let three = nodes(&[(1, ""), (2, ""), (3, "")]);
        let more = proposed(&all, &three, Some(3));
        assert!(more.values().all(|list| list.len() == 3));
        assert_eq!(
            [&more[&TopicPartition::new("t", 0)][0], &more[&TopicPartition::new("t", 1)][0]],
            [&1, &2]
        );
        let chosen = all.keys().cloned().collect();
        let refused = propose(&all, &chosen, &three, Some(4)).unwrap_err().to_string();
        assert!(
            refused.starts_with("t-0 is to have 4 replicas, and there are 3 nodes for them"),
            "{refused}"
        );
    }

    /// Partitions that are not chosen stay, and count.
    #[test]
    fn other_partitions_stay_and_count() {
        let all = assignment(&[&[1], &[1], &[2]]);
        let chosen = BTreeSet::from([TopicPartition::new("t", 2)]);
        let changes = propose(&all, &chosen, &nodes(&[(1, ""), (3, "")]), None).unwrap();
        assert_eq!(changes, Assignment::from([(TopicPartition::new("t", 2), vec![3])]));
    }

    /// With racks: no rack has two replicas more than another one that has a node left, and a second proposal has nothing to change.
    #[test]
    fn any_proposal_spreads_over_racks() {
        let mut below = random();
        for round in 0..300 {
            let node_count = 2 + below(6) as i32;
            let racks: Nodes = (0..node_count).map(|node| (node, Some(format!("r{}", below(3))))).collect();
            let all = any_assignment(&mut below, node_count);
            let result = after(&all, &proposed(&all, &racks, None));
            for list in result.values() {
                let of_rack = |name: &Option<String>| list.iter().filter(|node| racks[node] == *name).count();
                let has_free = |name: &Option<String>| {
                    racks.iter().any(|(node, rack)| rack == name && !list.contains(node))
                };
                let names: BTreeSet<_> = racks.values().collect();
                let most = names.iter().map(|name| of_rack(name)).max().unwrap_or(0);
                let least = names.iter().filter(|name| has_free(name)).map(|name| of_rack(name)).min();
                assert!(least.is_none_or(|least| most <= least + 1), "round {round}: {list:?} of {racks:?}");
            }
            assert!(proposed(&result, &racks, None).is_empty(), "round {round}: it would change again");
        }
    }

    fn random() -> impl FnMut(u64) -> u64 {
        let mut seed = 1_u64;
        move |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        }
    }

    /// Partitions with any replicas on so many nodes, and on two that may have none any more.
    fn any_assignment(below: &mut impl FnMut(u64) -> u64, node_count: i32) -> Assignment {
        let lists: Vec<Vec<i32>> = (0..1 + below(30))
            .map(|_| {
                let count = 1 + below(node_count as u64) as usize;
                let mut list: Vec<i32> = (0..node_count + 2).collect();
                for at in 0..list.len() {
                    let other = at + below((list.len() - at) as u64) as usize;
                    list.swap(at, other);
                }
                list.truncate(count);
                list
            })
            .collect();
        assignment(&lists.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Any partitions keep as many replicas as there were, each on another node that may have them, and no node with two more than
    /// another one where there are no racks; a second proposal has nothing to change.
    #[test]
    fn any_proposal_is_whole_and_even() {
        let mut below = random();
        for round in 0..300 {
            let node_count = 1 + below(7) as i32;
            let all = any_assignment(&mut below, node_count);
            let allowed: Nodes = (0..node_count).map(|node| (node, None)).collect();
            let result = after(&all, &proposed(&all, &allowed, None));
            let mut loads: BTreeMap<i32, usize> = allowed.keys().map(|node| (*node, 0)).collect();
            for (key, list) in &result {
                let distinct: BTreeSet<_> = list.iter().collect();
                assert_eq!((distinct.len(), list.len()), (all[key].len(), all[key].len()), "round {round}");
                list.iter().for_each(|node| *loads.get_mut(node).expect("it is allowed") += 1);
            }
            let (least, most) = (loads.values().min(), loads.values().max());
            assert!(
                most.zip(least).is_some_and(|(most, least)| most - least <= 1),
                "round {round}: {loads:?}"
            );
            assert!(proposed(&result, &allowed, None).is_empty(), "round {round}: it would change again");
        }
    }
}
