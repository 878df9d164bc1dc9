//! `range`: each topic is cut into as many ranges as it has subscribers. Members are ordered by their instance ids, then by their ids, so
//! equal partitions of equally large topics go to one member.

use std::collections::BTreeMap;

use mainstem_wire::Uuid;

use super::super::partitions::{Assignment, Partition};
use super::spec::{GroupSpec, MemberSpec};

/// The ranges of a topic that are not assigned yet.
struct Ranges {
    next: i32,
    least: i32,
    /// Ranges that are one longer than `least`.
    longer: i32,
}

impl Ranges {
    fn of(count: i32, subscribers: i32) -> Self {
        Self { next: 0, least: count / subscribers, longer: count % subscribers }
    }

    fn take(&mut self) -> std::ops::Range<i32> {
        let from = self.next;
        self.next += self.least + i32::from(self.longer > 0);
        self.longer = (self.longer - 1).max(0);
        from..self.next
    }
}

/// Assigns all partitions of the topics.
pub(super) fn assign(group: &GroupSpec<'_>) -> Vec<Assignment> {
    let mut subscribers: BTreeMap<Uuid, i32> = BTreeMap::new();
    for topic in group.members.iter().flat_map(|member| member.topics.iter()) {
        *subscribers.entry(*topic).or_insert(0) += 1;
    }
    let ranges = |(topic, count): (&Uuid, &i32)| {
        subscribers.get(topic).map(|subscribers| (*topic, Ranges::of(*count, *subscribers)))
    };
    let mut topics: BTreeMap<Uuid, Ranges> = group.topics.iter().filter_map(ranges).collect();
    let mut order: Vec<usize> = (0..group.members.len()).collect();
    order.sort_by_key(|index| place(&group.members[*index]));
    let mut assignments = vec![Assignment::default(); group.members.len()];
    for index in order {
        let mut partitions: Vec<Partition> = Vec::new();
        for topic in group.members[index].topics.iter() {
            if let Some(ranges) = topics.get_mut(topic) {
                partitions.extend(ranges.take().map(|partition| (*topic, partition)));
            }
        }
        assignments[index] = partitions.into_iter().collect();
    }
    assignments
}

/// Static members come first: their instance ids outlive restarts, so their ranges do too.
fn place<'m>(member: &'m MemberSpec<'_>) -> (bool, &'m str) {
    (member.instance_id.is_none(), member.instance_id.unwrap_or(member.id))
}
