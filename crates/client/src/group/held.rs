//! Which partitions a member holds, and since when: what a commit may still be about.
//!
//! Pure. A commit is tried, and tried again, while its partitions are held without a break. Once one was given up, another
//! member may have committed further, under a later generation of the same group, and this one's offset would take it
//! back. Kafka's own consumer commits what it does not have, if its generation is that of the group.

use std::collections::BTreeMap;

use crate::topic_partition::TopicPartition;

/// The partitions of a member.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// The number of the time for which each is held, different from all before.
    terms: BTreeMap<TopicPartition, u64>,
    last: u64,
}

/// The times for which some partitions were held at a moment; none for those that were not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms(Vec<(TopicPartition, Option<u64>)>);

impl Held {
    /// Partitions were given to the member. Those that it has go on to be held.
    pub(crate) fn take(&mut self, partitions: impl IntoIterator<Item = TopicPartition>) {
        self.last += 1;
        for partition in partitions {
            self.terms.entry(partition).or_insert(self.last);
        }
    }

    /// All others are given up.
    pub(crate) fn keep_only(&mut self, is_kept: impl Fn(&TopicPartition) -> bool) {
        self.terms.retain(|partition, _| is_kept(partition));
    }

    /// Those of some partitions now.
    pub(crate) fn terms<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> Terms {
        let term = |key: &TopicPartition| (key.clone(), self.terms.get(key).copied());
        Terms(partitions.into_iter().map(term).collect())
    }

    /// A partition that was not held, or was given up since.
    pub(crate) fn given_up<'a>(&self, since: &'a Terms) -> Option<&'a TopicPartition> {
        let is_held = |(key, term): &(TopicPartition, Option<u64>)| {
            term.is_some_and(|term| self.terms.get(key) == Some(&term))
        };
        since.0.iter().find(|one| !is_held(one)).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_not_what_was_held_before() {
        let (a, b) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
        let mut held = Held::default();
        held.take([a.clone(), b.clone()]);
        let both = held.terms([&a, &b]);
        held.take([a.clone()]);
        assert_eq!(held.given_up(&both), None, "it was held already");
        held.keep_only(|key| *key == a);
        assert_eq!(held.given_up(&both), Some(&b));
        held.take([b.clone()]);
        assert_eq!(held.given_up(&both), Some(&b));
        assert_eq!(held.given_up(&held.terms([&a, &b])), None);
    }

    #[test]
    fn what_was_not_held_is_not_held_by_coming_later() {
        let (a, b) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
        let mut held = Held::default();
        held.take([a.clone()]);
        let both = held.terms([&a, &b]);
        assert_eq!(held.given_up(&both), Some(&b));
        held.take([b.clone()]);
        assert_eq!(held.given_up(&both), Some(&b));
    }
}
