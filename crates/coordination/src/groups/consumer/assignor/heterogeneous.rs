//! `uniform` if members subscribe to different topics. Members keep their partitions, and free ones go to the members with fewest. Then
//! partitions move from members with most, topic by topic, until no move helps.

use std::collections::BTreeMap;

use mainstem_wire::Uuid;

use super::super::partitions::{Assignment, Partition};
use super::spec::GroupSpec;

/// Rounds over all topics at most. Members with overlapping subscriptions may need many for the last bit of balance;
/// each halves the imbalance or so.
const ROUNDS_MAX: usize = 16;

/// Assigns all partitions of the topics.
pub(super) fn assign(group: &GroupSpec<'_>) -> Vec<Assignment> {
    let mut board = Board::new(group);
    board.hand_out();
    board.balance();
    board.assignments()
}

/// The assignment while it is being computed. Members are known by their index in the group.
struct Board<'g> {
    group: &'g GroupSpec<'g>,
    /// In the order of [`Topic::rank`].
    topics: Vec<Topic>,
    /// Partitions of each member.
    loads: Vec<usize>,
}

struct Topic {
    id: Uuid,
    /// Ascending.
    subscribers: Vec<usize>,
    /// The member that owns each partition; none if it is free.
    owners: Vec<Option<usize>>,
}

impl<'g> Board<'g> {
    /// Each member keeps the partitions that it has and still subscribes to.
    fn new(group: &'g GroupSpec<'g>) -> Self {
        let mut topics: BTreeMap<Uuid, Topic> = BTreeMap::new();
        let mut loads = vec![0; group.members.len()];
        for (index, member) in group.members.iter().enumerate() {
            for id in member.topics.iter() {
                let Some(count) = group.topics.get(id) else { continue };
                let owners = || vec![None; usize::try_from(*count).unwrap_or(0)];
                let topic = || Topic { id: *id, subscribers: Vec::new(), owners: owners() };
                topics.entry(*id).or_insert_with(topic).subscribers.push(index);
            }
            for (id, partition) in member.assigned.iter().filter(|(id, _)| member.is_subscribed_to(id)) {
                let owner = topics.get_mut(id).and_then(|topic| owner(topic, *partition));
                if let Some(owner) = owner {
                    *owner = Some(index);
                    loads[index] += 1;
                }
            }
        }
        let mut topics: Vec<Topic> = topics.into_values().collect();
        topics.sort_by(Topic::rank);
        Self { group, topics, loads }
    }

    /// Gives each free partition to the subscriber with fewest.
    fn hand_out(&mut self) {
        for topic in &mut self.topics {
            let mut balancer = Balancer::new(&topic.subscribers, &self.loads);
            for owner in topic.owners.iter_mut().filter(|owner| owner.is_none()) {
                let to = balancer.least_loaded(&self.loads);
                *owner = Some(to);
                self.loads[to] += 1;
            }
        }
    }

    /// Balances topic by topic until a whole round has moved nothing.
    fn balance(&mut self) {
        let shared: Vec<usize> =
            (0..self.topics.len()).filter(|index| self.topics[*index].subscribers.len() > 1).collect();
        let mut last = None;
        for _ in 0..ROUNDS_MAX {
            for index in &shared {
                if last == Some(*index) {
                    return;
                }
                let moved = balance_topic(&mut self.topics[*index], &mut self.loads);
                if moved > 0 || last.is_none() {
                    last = Some(*index);
                }
            }
        }
    }

    fn assignments(self) -> Vec<Assignment> {
        let mut partitions: Vec<Vec<Partition>> = vec![Vec::new(); self.group.members.len()];
        for topic in &self.topics {
            for (index, owner) in (0..).zip(&topic.owners) {
                partitions[owner.expect("every partition was handed out")].push((topic.id, index));
            }
        }
        partitions.into_iter().map(Assignment::from_iter).collect()
    }
}

impl Topic {
    /// Topics with most partitions for each subscriber come first, then those with fewer subscribers: they are the
    /// hardest to place. Last by id, as two signed halves, so that the order is Kafka's.
    fn rank(a: &Topic, b: &Topic) -> std::cmp::Ordering {
        let load = |topic: &Topic| topic.owners.len() as f64 / topic.subscribers.len() as f64;
        let halves = |topic: &Topic| {
            let bits = topic.id.to_u128();
            ((bits >> 64) as i64, bits as i64)
        };
        (load(b).total_cmp(&load(a)))
            .then(a.subscribers.len().cmp(&b.subscribers.len()))
            .then(halves(a).cmp(&halves(b)))
    }
}

fn owner(topic: &mut Topic, partition: i32) -> Option<&mut Option<usize>> {
    topic.owners.get_mut(usize::try_from(partition).ok()?)
}

/// Moves partitions of one topic from subscribers with most to those with fewest; returns how many moved.
fn balance_topic(topic: &mut Topic, loads: &mut [usize]) -> usize {
    let mut balancer = Balancer::new(&topic.subscribers, loads);
    if balancer.imbalance(loads) <= 1 {
        return 0;
    }
    // Partitions by owner; each owner loses its last one first.
    let mut owned: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (partition, owner) in topic.owners.iter().enumerate() {
        owned.entry(owner.expect("every partition was handed out")).or_default().push(partition);
    }
    let mut moved = 0;
    while let Some(partition) = balancer.take_next(loads, &mut owned) {
        let to = balancer.least_loaded(loads);
        if balancer.is_balanced() {
            break;
        }
        let from = topic.owners[partition].replace(to).expect("it was in `owned`");
        loads[from] -= 1;
        loads[to] += 1;
        moved += 1;
    }
    moved
}

/// Subscribers by load, with the range of those with fewest partitions and the range of those with most. The first grows to the right as
/// its members are filled up to the next ones' load, the second to the left as its members lose partitions. Between two steps of a range
/// all its members have the same load, so no step looks at all of them.
struct Balancer {
    members: Vec<usize>,
    /// `members[..least_end]` have fewest.
    least_end: usize,
    least_load: i64,
    next_least: usize,
    /// `members[most_start..most_end]` have most; those behind own no partition of the topic.
    most_start: usize,
    most_end: usize,
    most_load: i64,
    /// One above the index of the next member that loses a partition.
    next_most: usize,
}

impl Balancer {
    /// # Panics
    /// If there are no subscribers.
    fn new(subscribers: &[usize], loads: &[usize]) -> Self {
        let mut members = subscribers.to_vec();
        members.sort_by_key(|member| (loads[*member], *member));
        let count = members.len();
        Self {
            least_end: 0,
            least_load: load(loads, members[0]) - 1,
            next_least: 0,
            most_start: count,
            most_end: count,
            most_load: load(loads, members[count - 1]) + 1,
            next_most: count,
            members,
        }
    }

    /// The difference of load between most and fewest at the beginning.
    fn imbalance(&self, loads: &[usize]) -> i64 {
        load(loads, self.members[self.members.len() - 1]) - load(loads, self.members[0])
    }

    /// The member that gets the next partition.
    fn least_loaded(&mut self, loads: &[usize]) -> usize {
        if self.next_least >= self.least_end {
            self.least_load += 1;
            while self.least_end < self.members.len()
                && load(loads, self.members[self.least_end]) == self.least_load
            {
                self.least_end += 1;
            }
            self.next_least = 0;
        }
        self.next_least += 1;
        self.members[self.next_least - 1]
    }

    /// The next partition to move: of a member that has most, and owns one of the topic.
    fn take_next(&mut self, loads: &[usize], owned: &mut BTreeMap<usize, Vec<usize>>) -> Option<usize> {
        loop {
            let member = self.most_loaded(loads)?;
            match owned.get_mut(&member).and_then(Vec::pop) {
                Some(partition) => return Some(partition),
                None => self.exclude(),
            }
        }
    }

    fn most_loaded(&mut self, loads: &[usize]) -> Option<usize> {
        if self.next_most <= self.most_start {
            if self.most_end <= self.most_start && self.most_start > 0 {
                // All of the range were excluded; the next level may be far below.
                self.most_load = load(loads, self.members[self.most_start - 1]);
            } else {
                self.most_load -= 1;
            }
            while self.most_start > 0 && load(loads, self.members[self.most_start - 1]) == self.most_load {
                self.most_start -= 1;
            }
            self.next_most = self.most_end;
        }
        self.next_most = self.next_most.checked_sub(1)?;
        Some(self.members[self.next_most])
    }

    /// The member that [`most_loaded`](Self::most_loaded) returned owns no partition of the topic.
    fn exclude(&mut self) {
        self.most_end -= 1;
        self.members.swap(self.next_most, self.most_end);
    }

    fn is_balanced(&self) -> bool {
        self.most_load - self.least_load <= 1
    }
}

fn load(loads: &[usize], member: usize) -> i64 {
    i64::try_from(loads[member]).unwrap_or(i64::MAX)
}
