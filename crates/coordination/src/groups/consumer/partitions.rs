//! Sets of partitions by topic id: target assignments, and current assignments with the epoch at which the member got each partition.
//!
//! Both are sorted lists: a group of a few partitions is one small allocation, and set operations are walks. Their clones share them.

use std::sync::Arc;

use mainstem_wire::Uuid;

/// A partition of a topic by the topic's id.
pub(crate) type Partition = (Uuid, i32);

/// A set of partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Assignment(Arc<[Partition]>);

impl Assignment {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, partition: &Partition) -> bool {
        self.0.binary_search(partition).is_ok()
    }

    /// All partitions in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Partition> {
        self.0.iter()
    }

    /// The partitions topic by topic.
    pub(crate) fn by_topic(&self) -> impl Iterator<Item = (Uuid, Vec<i32>)> {
        self.topics().map(|(topic, partitions)| (topic, partitions.iter().map(|at| at.1).collect()))
    }

    /// The same without a list for each topic.
    pub(crate) fn topics(&self) -> impl Iterator<Item = (Uuid, &[Partition])> {
        self.0.chunk_by(|a, b| a.0 == b.0).map(|topic| (topic[0].0, topic))
    }

    /// Splits the set after its first `count` partitions.
    pub(crate) fn split_at(&self, count: usize) -> (&[Partition], &[Partition]) {
        self.0.split_at(count.min(self.0.len()))
    }

    /// The set with further partitions.
    pub(crate) fn with(&self, more: impl Iterator<Item = Partition>) -> Self {
        self.0.iter().copied().chain(more).collect()
    }
}

impl FromIterator<Partition> for Assignment {
    fn from_iter<I: IntoIterator<Item = Partition>>(partitions: I) -> Self {
        let mut partitions: Vec<Partition> = partitions.into_iter().collect();
        partitions.sort_unstable();
        partitions.dedup();
        Self(partitions.into())
    }
}

/// A set of partitions, each with the group's epoch at which the member got it (KIP-1251).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Owned(Arc<[(Partition, i32)]>);

impl Owned {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn contains(&self, partition: &Partition) -> bool {
        self.epoch(partition).is_some()
    }

    /// The epoch at which the member got a partition; None if it is not in the set.
    pub(crate) fn epoch(&self, partition: &Partition) -> Option<i32> {
        let at = self.0.binary_search_by_key(partition, |(at, _)| *at).ok()?;
        Some(self.0[at].1)
    }

    /// All partitions in order.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = &Partition> {
        self.0.iter().map(|(partition, _)| partition)
    }

    /// All partitions in order with their epochs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(Partition, i32)> {
        self.0.iter()
    }

    /// Partitions and epochs topic by topic.
    pub(crate) fn by_topic(&self) -> impl Iterator<Item = (Uuid, Vec<i32>, Vec<i32>)> {
        self.0.chunk_by(|a, b| a.0.0 == b.0.0).map(|topic| {
            let partitions = topic.iter().map(|((_, index), _)| *index).collect();
            (topic[0].0.0, partitions, topic.iter().map(|(_, epoch)| *epoch).collect())
        })
    }

    /// Returns true if both hold the same partitions, whatever their epochs.
    pub(crate) fn same_partitions(&self, other: &Self) -> bool {
        self.partitions().eq(other.partitions())
    }
}

impl FromIterator<(Partition, i32)> for Owned {
    /// If a partition occurs twice, its first epoch is kept.
    fn from_iter<I: IntoIterator<Item = (Partition, i32)>>(partitions: I) -> Self {
        let mut partitions: Vec<(Partition, i32)> = partitions.into_iter().collect();
        partitions.sort_by_key(|(partition, _)| *partition);
        partitions.dedup_by_key(|(partition, _)| *partition);
        Self(partitions.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Uuid = Uuid([1; 16]);
    const U: Uuid = Uuid([2; 16]);

    #[test]
    fn sets_are_sorted_whatever_order_they_come_in() {
        let set: Assignment = [(U, 0), (T, 2), (T, 1), (T, 2)].into_iter().collect();
        assert_eq!(set.by_topic().collect::<Vec<_>>(), [(T, vec![1, 2]), (U, vec![0])]);
        assert_eq!((set.len(), set.contains(&(T, 2)), set.contains(&(U, 1))), (3, true, false));
        let owned: Owned = [((U, 0), 7), ((T, 1), 3), ((U, 0), 9)].into_iter().collect();
        assert_eq!(owned.by_topic().collect::<Vec<_>>(), [(T, vec![1], vec![3]), (U, vec![0], vec![7])]);
        assert_eq!((owned.epoch(&(U, 0)), owned.epoch(&(U, 1))), (Some(7), None));
    }
}
