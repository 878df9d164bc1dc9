//! The assignor `cooperative-sticky` (KIP-429): it assigns the partitions of topics to the members of a group.
//!
//! Pure. Members keep their partitions as far as that is balanced. A partition that moves is first revoked from its owner.
//! The other member gets it in the next rebalance, which the owner asks for when it has released the partition.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::topic_partition::TopicPartition;

/// A member's subscription with the partitions that it claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemberSubscription {
    pub(crate) topics: BTreeSet<Arc<str>>,
    /// The partitions that it reads at present.
    pub(crate) owned: BTreeSet<TopicPartition>,
    /// The generation in which it got them.
    pub(crate) generation: i32,
}

/// The partitions of each member.
pub(crate) type Assignments = BTreeMap<String, BTreeSet<TopicPartition>>;

/// The next assignment. `partitions`: the number of partitions of each topic; topics that are not in it have none.
pub(crate) fn assign(
    members: &BTreeMap<String, MemberSubscription>,
    partitions: &HashMap<Arc<str>, i32>,
) -> Assignments {
    let owners = owners(members, partitions);
    let mut plan = Plan::new(members, partitions);
    let (kept, free): (Vec<_>, Vec<_>) =
        all(members, partitions).into_iter().partition(|key| owners.contains_key(key));
    for key in kept {
        let owner = owners[&key];
        plan.give(key, owner);
    }
    for key in free {
        if let Some(member) = plan.least_loaded(&key.topic) {
            plan.give(key, member);
        }
    }
    plan.balance();
    let mut assignments: Assignments =
        members.keys().map(|member| (member.clone(), BTreeSet::new())).collect();
    for (key, member) in plan.owner_of {
        // Another member has it: that member releases it first.
        if owners.get(&key).is_none_or(|owner| *owner == member) {
            assignments.get_mut(member).expect("all members are in it").insert(key);
        }
    }
    assignments
}

/// The owner of each partition that may keep it. Of two members that claim one, the later generation counts; if both claim it
/// in the same generation, none owns it.
fn owners<'m>(
    members: &'m BTreeMap<String, MemberSubscription>,
    partitions: &HashMap<Arc<str>, i32>,
) -> HashMap<TopicPartition, &'m str> {
    let mut claims: HashMap<&TopicPartition, (i32, Option<&'m str>)> = HashMap::new();
    for (member, subscription) in members {
        let exists = |key: &&TopicPartition| {
            let count = partitions.get(&key.topic).copied().unwrap_or(0);
            subscription.topics.contains(&key.topic) && (0..count).contains(&key.partition)
        };
        for key in subscription.owned.iter().filter(exists) {
            let generation = subscription.generation;
            let claim = claims.entry(key).or_insert((generation, Some(member)));
            if claim.1 == Some(member) {
                continue;
            }
            if generation > claim.0 {
                *claim = (generation, Some(member));
            } else if generation == claim.0 {
                claim.1 = None;
            }
        }
    }
    claims.into_iter().filter_map(|(key, (_, member))| Some((key.clone(), member?))).collect()
}

/// All partitions that any member wants.
fn all(
    members: &BTreeMap<String, MemberSubscription>,
    partitions: &HashMap<Arc<str>, i32>,
) -> Vec<TopicPartition> {
    let topics: BTreeSet<&Arc<str>> = members.values().flat_map(|one| &one.topics).collect();
    let of_topic = |topic: &Arc<str>| {
        let count = partitions.get(topic).copied().unwrap_or(0);
        let topic = topic.clone();
        (0..count).map(move |partition| TopicPartition { topic: topic.clone(), partition })
    };
    topics.into_iter().flat_map(of_topic).collect()
}

/// An assignment in the making.
struct Plan<'m> {
    /// The members that subscribe to each topic.
    readers: HashMap<Arc<str>, Vec<&'m str>>,
    loads: HashMap<&'m str, usize>,
    owner_of: BTreeMap<TopicPartition, &'m str>,
}

impl<'m> Plan<'m> {
    fn new(
        members: &'m BTreeMap<String, MemberSubscription>,
        partitions: &HashMap<Arc<str>, i32>,
    ) -> Plan<'m> {
        let mut readers: HashMap<Arc<str>, Vec<&'m str>> = HashMap::new();
        for (member, subscription) in members {
            for topic in subscription.topics.iter().filter(|topic| partitions.contains_key(*topic)) {
                readers.entry(topic.clone()).or_default().push(member);
            }
        }
        let loads = members.keys().map(|member| (member.as_str(), 0)).collect();
        Plan { readers, loads, owner_of: BTreeMap::new() }
    }

    /// The subscriber of a topic with the fewest partitions.
    fn least_loaded(&self, topic: &str) -> Option<&'m str> {
        self.readers.get(topic)?.iter().copied().min_by_key(|member| self.loads[member])
    }

    fn give(&mut self, key: TopicPartition, member: &'m str) {
        *self.loads.get_mut(member).expect("all members are in it") += 1;
        if let Some(before) = self.owner_of.insert(key, member) {
            *self.loads.get_mut(before).expect("all members are in it") -= 1;
        }
    }

    /// Moves partitions from members that have at least two more than another reader of the topic. Each move makes the
    /// sum of the squares of the loads smaller, so that this ends.
    fn balance(&mut self) {
        let keys: Vec<TopicPartition> = self.owner_of.keys().cloned().collect();
        loop {
            let mut moved = false;
            for key in &keys {
                let (owner, Some(least)) = (self.owner_of[key], self.least_loaded(&key.topic)) else {
                    continue;
                };
                if self.loads[owner] > self.loads[least] + 1 {
                    self.give(key.clone(), least);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn member(topics: &[&str], owned: &[(&str, i32)], generation: i32) -> MemberSubscription {
        MemberSubscription {
            topics: topics.iter().map(|topic| Arc::from(*topic)).collect(),
            owned: owned.iter().map(|(topic, partition)| TopicPartition::new(*topic, *partition)).collect(),
            generation,
        }
    }

    /// The assignment in a line.
    fn assigned(members: &[(&str, MemberSubscription)], partitions: &[(&str, i32)]) -> String {
        let members = members.iter().map(|(name, member)| ((*name).to_owned(), member.clone())).collect();
        let partitions = partitions.iter().map(|(topic, count)| (Arc::from(*topic), *count)).collect();
        let line = |(member, keys): (String, BTreeSet<TopicPartition>)| {
            let keys: Vec<String> = keys.iter().map(ToString::to_string).collect();
            format!("{member}: {}", keys.join(" "))
        };
        assign(&members, &partitions).into_iter().map(line).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn members_without_anything_share_equally() {
        let new = || member(&["t"], &[], -1);
        assert_eq!(assigned(&[("a", new()), ("b", new())], &[("t", 3)]), "a: t-0 t-2; b: t-1");
        assert_eq!(assigned(&[("a", new()), ("b", new())], &[]), "a: ; b: ");
    }

    #[test]
    fn what_moves_is_let_go_first() {
        let a = member(&["t"], &[("t", 0), ("t", 1), ("t", 2), ("t", 3)], 1);
        let first = assigned(&[("a", a), ("b", member(&["t"], &[], -1))], &[("t", 4)]);
        assert_eq!(first, "a: t-2 t-3; b: ");
        let a = member(&["t"], &[("t", 2), ("t", 3)], 2);
        let second = assigned(&[("a", a), ("b", member(&["t"], &[], 2))], &[("t", 4)]);
        assert_eq!(second, "a: t-2 t-3; b: t-0 t-1");
    }

    #[test]
    fn of_two_claims_the_later_generation_counts() {
        let partitions = [("t", 2)];
        let old = member(&["t"], &[("t", 0), ("t", 1)], 3);
        let new = member(&["t"], &[("t", 0)], 4);
        assert_eq!(assigned(&[("a", old.clone()), ("b", new)], &partitions), "a: t-1; b: t-0");
        let same = member(&["t"], &[("t", 0)], 3);
        assert_eq!(assigned(&[("a", old), ("b", same)], &partitions), "a: t-1; b: t-0");
    }

    #[test]
    fn partitions_go_only_to_those_who_want_them() {
        let members = [("a", member(&["t", "u"], &[], -1)), ("b", member(&["u"], &[("t", 0), ("u", 9)], 1))];
        assert_eq!(assigned(&members, &[("t", 2), ("u", 2)]), "a: t-0 t-1; b: u-0 u-1");
    }

    /// A member: which of three topics it wants, as bits, what it claims, and in which generation.
    type Member = (u8, Vec<(u8, i32)>, i32);

    /// Members, and the number of partitions of each topic.
    fn groups() -> impl Strategy<Value = (Vec<Member>, [i32; 3])> {
        let claims = prop::collection::vec((0u8..3, 0i32..8), 0..8);
        (prop::collection::vec((1u8..8, claims, 0i32..3), 1..6), [0i32..8, 0i32..8, 0i32..8])
    }

    fn name(topic: u8) -> Arc<str> {
        ["t", "u", "v"][usize::from(topic)].into()
    }

    fn subscription((at, (topics, owned, generation)): (usize, &Member)) -> (String, MemberSubscription) {
        let topics = (0..3).filter(|topic| topics & (1 << topic) != 0).map(name).collect();
        let key = |(topic, partition): &(u8, i32)| TopicPartition::new(name(*topic), *partition);
        let owned = owned.iter().map(key).collect();
        (at.to_string(), MemberSubscription { topics, owned, generation: *generation })
    }

    proptest! {
        #[test]
        fn after_a_few_rounds_everything_is_read_by_one_and_balanced((group, counts) in groups()) {
            let partitions: HashMap<Arc<str>, i32> =
                (0..3u8).map(|topic| (name(topic), counts[usize::from(topic)])).collect();
            let mut members: BTreeMap<String, MemberSubscription> = group.iter().enumerate().map(subscription).collect();
            let mut last = Assignments::new();
            for round in 0..6 {
                let next = assign(&members, &partitions);
                for (member, keys) in &next {
                    for key in keys {
                        // The partitions of others are not assigned to it.
                        let others = members.iter().filter(|(other, _)| *other != member);
                        prop_assert!(round == 0 || others.clone().all(|(_, one)| !one.owned.contains(key)));
                    }
                    let subscription = members.get_mut(member).unwrap();
                    subscription.owned = keys.clone();
                    subscription.generation = 10 + round;
                }
                last = next;
            }
            let stable = assign(&members, &partitions);
            prop_assert_eq!(&stable, &last);
            let given: Vec<&TopicPartition> = last.values().flatten().collect();
            let wanted = all(&members, &partitions);
            prop_assert_eq!(given.len(), wanted.len());
            prop_assert_eq!(given.into_iter().collect::<BTreeSet<_>>(), wanted.iter().collect::<BTreeSet<_>>());
            for (member, keys) in &last {
                for other in last.keys() {
                    let movable = keys.iter().any(|key| members[other].topics.contains(&key.topic));
                    prop_assert!(!movable || keys.len() <= last[other].len() + 1, "{} and {}", member, other);
                }
            }
        }
    }
}
