//! The producers with open transactions, and the places of their offsets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mainstem_records::ProducerId;

use super::committed_offset::TopicPartition;
use super::group::Groups;
use super::offsets::TopicNames;

/// The open transactions of one partition of `__consumer_offsets`: where each producer has offsets.
#[derive(Debug, Default)]
pub(crate) struct OpenTransactions {
    pub(super) producers: BTreeMap<ProducerId, BTreeSet<Place>>,
    /// The number of the last offset that was added.
    pub(super) number: u64,
}

/// The place of an offset of an open transaction.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) group: Arc<str>,
    pub(super) at: TopicPartition,
}

impl OpenTransactions {
    /// Removes a place at which a producer has no offset any more.
    pub(super) fn leave(&mut self, producer_id: ProducerId, place: &Place) {
        let Some(places) = self.producers.get_mut(&producer_id) else { return };
        places.remove(place);
        if places.is_empty() {
            self.producers.remove(&producer_id);
        }
    }

    /// Replaces the names of topics by those of another pool.
    pub(super) fn take_names(&mut self, names: &mut TopicNames) {
        for places in self.producers.values_mut() {
            let renamed = std::mem::take(places).into_iter().map(|Place { group, at }| {
                let at = TopicPartition { topic: names.intern(&at.topic), partition: at.partition };
                Place { group, at }
            });
            *places = renamed.collect();
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
