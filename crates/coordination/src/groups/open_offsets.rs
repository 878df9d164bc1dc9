//! The offsets that open transactions have written for one group.

use std::sync::Arc;

use mainstem_records::ProducerId;

use super::committed_offset::{CommittedOffset, TopicPartition};
use super::memory;
use super::offsets::TopicNames;
use super::shared_map::SharedMap;

/// An offset of an open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenOffset {
    pub(crate) producer_id: ProducerId,
    /// Ascends with the place in the log.
    pub(super) number: u64,
    /// A commit with a later record has taken effect: this one never will.
    pub(crate) overtaken: bool,
    pub(crate) offset: CommittedOffset,
}

/// The offsets of open transactions of one group, by topic and partition; at most one of each producer. Clones are as those of
/// [`Offsets`](super::offsets::Offsets).
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct OpenOffsets {
    topics: SharedMap<Arc<str>, SharedMap<i32, Vec<OpenOffset>>>,
}

impl OpenOffsets {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Returns true if an open transaction may change the offset of a partition.
    pub(crate) fn contains(&self, topic: &str, partition: i32) -> bool {
        !self.of(topic, partition).is_empty()
    }

    /// The offset that a producer has written for a partition.
    pub(crate) fn get(
        &self,
        topic: &str,
        partition: i32,
        producer_id: ProducerId,
    ) -> Option<&CommittedOffset> {
        let mut open = self.of(topic, partition).iter();
        open.find(|open| open.producer_id == producer_id).map(|open| &open.offset)
    }

    /// Every partition with an offset, once.
    pub(crate) fn partitions(&self) -> impl Iterator<Item = (&Arc<str>, i32)> {
        let topics = self.topics.iter();
        topics.flat_map(|(topic, partitions)| partitions.keys().map(move |partition| (topic, *partition)))
    }

    /// Every offset.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OpenOffset> {
        self.topics.values().flat_map(SharedMap::values).flatten()
    }

    /// Returns the accounted bytes of all of them, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        self.iter().map(|open| memory::open_offset(&open.offset)).sum()
    }

    /// Number of offsets.
    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Marks the offsets with a number below `number`: a later commit of the partition has taken effect.
    pub(crate) fn overtake(&mut self, at: &TopicPartition, number: u64) {
        let open = self.topics.get_mut(&*at.topic).and_then(|partitions| partitions.get_mut(&at.partition));
        for open in open.into_iter().flatten() {
            open.overtaken |= open.number < number;
        }
    }

    /// The offsets of a partition, in the order of the log.
    pub(crate) fn of(&self, topic: &str, partition: i32) -> &[OpenOffset] {
        let open = self.topics.get(topic).and_then(|partitions| partitions.get(&partition));
        open.map_or(&[], Vec::as_slice)
    }

    /// Replaces the names of topics by those of another pool.
    pub(crate) fn take_names(&mut self, names: &mut TopicNames) {
        self.topics = self.topics.with_keys(|topic| names.intern(topic));
    }

    /// Adds an offset; returns the one that the same producer wrote earlier.
    pub(super) fn put(&mut self, at: &TopicPartition, open: OpenOffset) -> Option<OpenOffset> {
        let of_partition = self.topics.get_or_default(&at.topic).get_or_default(&at.partition);
        let known = of_partition.iter().position(|known| known.producer_id == open.producer_id);
        let replaced = known.map(|known| of_partition.remove(known));
        of_partition.reserve_exact(1);
        of_partition.push(open);
        replaced
    }

    /// Removes the offset of one producer. The caller releases its use of the topic's name, with its own.
    pub(super) fn take(&mut self, at: &TopicPartition, producer_id: ProducerId) -> Option<OpenOffset> {
        let partitions = self.topics.get_mut(&*at.topic)?;
        let of_partition = partitions.get_mut(&at.partition)?;
        let known = of_partition.iter().position(|open| open.producer_id == producer_id)?;
        let taken = of_partition.remove(known);
        if of_partition.is_empty() {
            partitions.remove(&at.partition);
        }
        if partitions.is_empty() {
            self.topics.remove(&*at.topic);
        }
        Some(taken)
    }

    /// Removes all offsets of a partition, and returns them with a use of the topic's name to release.
    pub(super) fn take_all(&mut self, topic: &str, partition: i32) -> Option<(Arc<str>, Vec<OpenOffset>)> {
        let topic = self.topics.get_key_value(topic)?.0.clone();
        let partitions = self.topics.get_mut(&*topic)?;
        let taken = partitions.remove(&partition)?;
        if partitions.is_empty() {
            self.topics.remove(&*topic);
        }
        Some((topic, taken))
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;

    fn open(producer: i64, number: u64) -> OpenOffset {
        let producer_id = ProducerId::new(producer);
        let offset = CommittedOffset::new(i64::try_from(number).expect("small"), -1, 0, Uuid::ZERO);
        OpenOffset { producer_id, number, overtaken: false, offset }
    }

    #[test]
    fn a_producer_has_one_offset_of_a_partition_and_the_last_one_frees_the_name() {
        let mut names = TopicNames::default();
        let mut offsets = OpenOffsets::default();
        let at = |names: &mut TopicNames, partition| TopicPartition { topic: names.intern("t"), partition };
        let (zero, one) = (at(&mut names, 0), at(&mut names, 1));
        assert_eq!(offsets.put(&zero, open(7, 1)), None);
        assert_eq!(offsets.put(&zero, open(8, 2)), None);
        assert_eq!(offsets.put(&zero, open(7, 3)), Some(open(7, 1)));
        assert_eq!(offsets.put(&one, open(8, 4)), None);
        assert_eq!(offsets.of("t", 0), [open(8, 2), open(7, 3)]);
        assert_eq!((offsets.contains("t", 1), offsets.contains("t", 2)), (true, false));
        assert_eq!(offsets.partitions().map(|(_, partition)| partition).collect::<Vec<_>>(), [0, 1]);

        // What is committed behind the offset of producer 8, and before that of 7, leaves that of 7.
        offsets.overtake(&zero, 3);
        assert_eq!(offsets.of("t", 0).iter().map(|open| open.overtaken).collect::<Vec<_>>(), [true, false]);

        assert_eq!(
            (offsets.take(&zero, ProducerId::new(9)), offsets.take(&one, ProducerId::new(7))),
            (None, None)
        );
        assert_eq!(offsets.take(&zero, ProducerId::new(7)), Some(open(7, 3)));
        names.release(zero.topic);
        assert!(offsets.take_all("t", 2).is_none());
        let (topic, taken) = offsets.take_all("t", 0).expect("that of producer 8");
        assert_eq!(taken.len(), 1);
        names.release(topic);
        assert_eq!((offsets.len(), names.len()), (1, 1));
        assert_eq!(offsets.take(&one, ProducerId::new(8)), Some(open(8, 4)));
        names.release(one.topic);
        assert!(offsets.is_empty());
        assert_eq!(names.len(), 0);
    }
}
