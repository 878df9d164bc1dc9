//! Offsets of open transactions (KIP-98): durable, and not readable until a marker commits them.
//!
//! Of two commits for a partition the one with the later record counts, whenever its transaction ends: it is the one that compaction keeps.
//! Everything takes effect in the order of the log here. So it is enough to number the offsets of open transactions as they come, and to
//! mark each when a later commit has taken effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_records::ProducerId;

use super::api::TransactionEnd;
use super::appends::PendingOffset;
use super::group::{Group, Groups};
use super::io::Io;
use super::offset_commit::{group_of, put};
use super::offsets::{CommittedOffset, TopicPartition};
use super::shared_map::SharedMap;
use super::{memory, removal};

/// An offset of an open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OpenOffset {
    pub(crate) producer_id: ProducerId,
    /// Ascends with the place in the log.
    number: u64,
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
    fn iter(&self) -> impl Iterator<Item = &OpenOffset> {
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

    /// Adds an offset; returns the one that the same producer wrote earlier.
    fn put(&mut self, at: &TopicPartition, open: OpenOffset) -> Option<OpenOffset> {
        let of_partition = self.topics.get_or_default(&at.topic).get_or_default(&at.partition);
        let known = of_partition.iter().position(|known| known.producer_id == open.producer_id);
        let replaced = known.map(|known| of_partition.remove(known));
        of_partition.reserve_exact(1);
        of_partition.push(open);
        replaced
    }

    /// Removes the offset of one producer. The caller releases its use of the topic's name, with its own.
    fn take(&mut self, at: &TopicPartition, producer_id: ProducerId) -> Option<OpenOffset> {
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
    fn take_all(&mut self, topic: &str, partition: i32) -> Option<(Arc<str>, Vec<OpenOffset>)> {
        let topic = self.topics.get_key_value(topic)?.0.clone();
        let partitions = self.topics.get_mut(&*topic)?;
        let taken = partitions.remove(&partition)?;
        if partitions.is_empty() {
            self.topics.remove(&*topic);
        }
        Some((topic, taken))
    }
}

/// The open transactions of one partition of `__consumer_offsets`: where each producer has offsets.
#[derive(Debug, Default)]
pub(crate) struct OpenTransactions {
    producers: BTreeMap<ProducerId, BTreeSet<Place>>,
    /// The number of the last offset that was added.
    number: u64,
}

/// The place of an offset of an open transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    group: Arc<str>,
    at: TopicPartition,
}

impl OpenTransactions {
    /// Removes a place at which a producer has no offset any more.
    fn leave(&mut self, producer_id: ProducerId, place: &Place) {
        let Some(places) = self.producers.get_mut(&producer_id) else { return };
        places.remove(place);
        if places.is_empty() {
            self.producers.remove(&producer_id);
        }
    }

    /// Asserts that each producer's places are those where it has offsets. An offset without a place would stay open for ever, and with it
    /// its group and the answer to stable reads. The offsets of a partition are in the order of the log, which decides which of two commits
    /// counts.
    ///
    /// # Panics
    /// If something does not hold.
    pub(crate) fn check(&self, groups: &Groups) {
        let mut there: BTreeMap<ProducerId, BTreeSet<Place>> = BTreeMap::new();
        for (id, group) in groups {
            for (topic, partition) in group.open_offsets.partitions() {
                let open = group.open_offsets.of(topic, partition);
                let is_in_order = open.is_sorted_by(|one, next| one.number < next.number);
                assert!(is_in_order, "{id} has offsets of {topic}-{partition} out of order: {open:?}");
                for open in open {
                    let at = TopicPartition { topic: topic.clone(), partition };
                    let place = Place { group: id.clone(), at };
                    let is_first = there.entry(open.producer_id).or_default().insert(place);
                    assert!(is_first, "a producer has two offsets of {topic}-{partition} in {id}");
                }
            }
        }
        assert_eq!(self.producers, there, "places of offsets of open transactions, and the offsets");
        let open = groups.values().flat_map(|group| group.open_offsets.iter());
        let last = open.map(|open| open.number).max();
        assert!(last.is_none_or(|last| last <= self.number), "{last:?} is above {}", self.number);
    }
}

/// Adds durable offsets of a producer, which wait for the end of its transaction.
pub(crate) fn add(
    groups: &mut Groups,
    io: &mut Io<'_>,
    group: &Arc<str>,
    producer_id: ProducerId,
    offsets: Vec<PendingOffset>,
) {
    for pending in offsets {
        add_one(group_of(groups, io, group), io, producer_id, pending);
    }
}

/// Adds one durable offset of a producer, which waits for the end of its transaction.
pub(crate) fn add_one(group: &mut Group, io: &mut Io<'_>, producer_id: ProducerId, pending: PendingOffset) {
    let PendingOffset { at, offset } = pending;
    io.transactions.number += 1;
    io.usage.bytes += memory::open_offset(&offset);
    let open = OpenOffset { producer_id, number: io.transactions.number, overtaken: false, offset };
    if let Some(replaced) = group.open_offsets.put(&at, open) {
        io.usage.bytes -= memory::open_offset(&replaced.offset);
        io.topics.release(at.topic);
    } else {
        io.usage.pending_offsets += 1;
        let place = Place { group: group.id().clone(), at };
        io.transactions.producers.entry(producer_id).or_default().insert(place);
    }
}

/// Handles a durable marker: the offsets of its producer become readable unless a later commit has replaced them, or are dropped.
pub(crate) fn end(groups: &mut Groups, io: &mut Io<'_>, how: TransactionEnd) {
    let producer_id = how.producer.id;
    for Place { group: id, at } in io.transactions.producers.remove(&producer_id).unwrap_or_default() {
        let group = groups.get_mut(&id).expect("a group stays for as long as it has offsets");
        let open = group.open_offsets.take(&at, producer_id).expect("each place has its offset");
        io.usage.pending_offsets -= 1;
        io.usage.bytes -= memory::open_offset(&open.offset);
        if how.committed && !open.overtaken {
            group.open_offsets.overtake(&at, open.number);
            put(group, io, at, open.offset);
        } else {
            io.topics.release(at.topic);
        }
        removal::drop_if_nothing(groups, io, &id);
    }
}

/// Handles a durable tombstone, which also removes the offsets of open transactions.
pub(crate) fn forget(group: &mut Group, io: &mut Io<'_>, topic: &str, partition: i32) {
    let Some((topic, all)) = group.open_offsets.take_all(topic, partition) else { return };
    let place = Place { group: group.id().clone(), at: TopicPartition { topic, partition } };
    for open in all {
        io.usage.pending_offsets -= 1;
        io.usage.bytes -= memory::open_offset(&open.offset);
        io.transactions.leave(open.producer_id, &place);
    }
    io.topics.release(place.at.topic);
}

/// Drops the places of all offsets when the partition is unloaded with its groups.
pub(crate) fn clear(io: &mut Io<'_>) {
    for place in std::mem::take(io.transactions).producers.into_values().flatten() {
        io.usage.pending_offsets -= 1;
        io.topics.release(place.at.topic);
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;
    use crate::groups::offsets::TopicNames;

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
