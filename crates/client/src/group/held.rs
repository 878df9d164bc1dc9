//! The partitions that a member holds, and since when. A commit is allowed only while they are held.
//!
//! Pure. A commit is tried, and tried again, while its partitions are held without a break. After a revocation another member
//! may have committed later offsets, in a later generation of the same group, and this commit would take them back. Kafka's
//! own consumer commits partitions that it does not have, if its generation is that of the group.

use std::collections::BTreeMap;

use crate::topic_partition::TopicPartition;

/// The partitions of a member.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// For each partition the number of its term: of the time for which it is held. No number is used twice.
    terms: BTreeMap<TopicPartition, u64>,
    last: u64,
}

/// The terms of some partitions at a moment; none for those that were not held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms(Vec<(TopicPartition, Option<u64>)>);

impl Held {
    /// Holds partitions that were assigned. Those that are held already keep their term.
    pub(crate) fn take(&mut self, partitions: impl IntoIterator<Item = TopicPartition>) {
        self.last += 1;
        for partition in partitions {
            self.terms.entry(partition).or_insert(self.last);
        }
    }

    /// Releases all other partitions.
    pub(crate) fn keep_only(&mut self, is_kept: impl Fn(&TopicPartition) -> bool) {
        self.terms.retain(|partition, _| is_kept(partition));
    }

    /// The present terms of some partitions.
    pub(crate) fn terms<'a>(&self, partitions: impl IntoIterator<Item = &'a TopicPartition>) -> Terms {
        let term = |key: &TopicPartition| (key.clone(), self.terms.get(key).copied());
        Terms(partitions.into_iter().map(term).collect())
    }

    /// A partition that was not held, or was revoked since.
    pub(crate) fn revoked_since<'a>(&self, since: &'a Terms) -> Option<&'a TopicPartition> {
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
        assert_eq!(held.revoked_since(&both), None, "it was held already");
        held.keep_only(|key| *key == a);
        assert_eq!(held.revoked_since(&both), Some(&b));
        held.take([b.clone()]);
        assert_eq!(held.revoked_since(&both), Some(&b));
        assert_eq!(held.revoked_since(&held.terms([&a, &b])), None);
    }

    #[test]
    fn what_was_not_held_is_not_held_by_coming_later() {
        let (a, b) = (TopicPartition::new("t", 0), TopicPartition::new("t", 1));
        let mut held = Held::default();
        held.take([a.clone()]);
        let both = held.terms([&a, &b]);
        assert_eq!(held.revoked_since(&both), Some(&b));
        held.take([b.clone()]);
        assert_eq!(held.revoked_since(&both), Some(&b));
    }
}
