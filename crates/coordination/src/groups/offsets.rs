//! The durable offsets of one group, and the pool of topic names that all groups share.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use super::committed_offset::CommittedOffset;
use super::memory;
use super::shared_map::SharedMap;

/// While it is held, a reader may have names in copies of offsets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reading(Arc<()>);

impl PartialEq for Reading {
    /// All are equal: they have no state.
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// The names of topics, each held once however many groups commit to it.
#[derive(Debug, Default)]
pub(crate) struct TopicNames {
    names: HashSet<Arc<str>>,
    /// Accounted bytes of the names, see [`memory`].
    bytes: usize,
    /// Names that were released while there were readers: first those of earlier readers, then those of later ones. Two sets, so that names
    /// are freed although there are always readers.
    late: [Late; 2],
}

/// Readers, and the names of which a use was released while they may have held them. After the readers have ended it is known whether that
/// was the last use.
#[derive(Debug, Default)]
struct Late {
    reading: Reading,
    names: BTreeSet<Arc<str>>,
}

impl Late {
    /// Returns true if a reader is left. Until then a name may have more uses than groups have.
    fn is_read(&mut self) -> bool {
        // Unlike a look at the count, this sees all that a reader did before it ended.
        Arc::get_mut(&mut self.reading.0).is_none()
    }
}

/// The number of names released under readers that are looked at whenever the coordinator does something.
const LATE_AT_ONCE: usize = 4;

impl TopicNames {
    /// The shared copy of `name`.
    pub(crate) fn intern(&mut self, name: &str) -> Arc<str> {
        self.release_late();
        if let Some(name) = self.names.get(name) {
            return name.clone();
        }
        let name: Arc<str> = name.into();
        self.bytes += memory::name(&name);
        self.names.insert(name.clone());
        name
    }

    /// Releases one use of a name; the last one (beside the pool's own) frees it.
    pub(crate) fn release(&mut self, name: Arc<str>) {
        if self.late.iter_mut().any(Late::is_read) {
            self.late[1].names.insert(name);
        } else {
            self.free_if_last(name);
        }
        // This use is over, so that of a name that was released late may be the last one now.
        self.release_late();
    }

    /// Takes a use of a name, and frees the name if that was the last one beside the pool's own.
    fn free_if_last(&mut self, name: Arc<str>) {
        if Arc::strong_count(&name) <= 2 && self.names.remove(&name) {
            self.bytes -= memory::name(&name);
        }
    }

    /// Returns a reader, to be held beside a copy of offsets, and to be dropped after it.
    pub(crate) fn reading(&self) -> Reading {
        self.late[1].reading.clone()
    }

    /// Frees names that were released under readers that have ended, a few at a time. Returns true if any progress was made.
    pub(crate) fn release_late(&mut self) -> bool {
        if self.late.iter().all(|late| late.names.is_empty()) || self.late[0].is_read() {
            return false;
        }
        for _ in 0..LATE_AT_ONCE {
            let Some(name) = self.late[0].names.pop_first() else {
                self.late.swap(0, 1);
                break;
            };
            self.free_if_last(name);
        }
        true
    }

    /// Frees all names that were released under readers that have ended.
    pub(crate) fn release_all_late(&mut self) {
        while self.release_late() {}
    }

    /// Returns the accounted bytes of all names, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if `name` is the copy that is held here.
    pub(crate) fn holds(&self, name: &Arc<str>) -> bool {
        self.names.get(name).is_some_and(|held| Arc::ptr_eq(held, name))
    }

    /// Asserts that the accounted bytes are those of the names.
    ///
    /// # Panics
    /// If it is not.
    pub(crate) fn check(&self) {
        let held: usize = self.names.iter().map(|name| memory::name(name)).sum();
        assert_eq!(self.bytes, held, "bytes of topic names, as counted and as held");
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

/// The offsets of one group, by topic and partition. A clone shares all that is not changed afterwards, so that the offsets are read as
/// they were at one moment while others are committed. The holder of a clone holds a [`Reading`] for as long.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Offsets {
    topics: SharedMap<Arc<str>, SharedMap<i32, CommittedOffset>>,
}

impl Offsets {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Number of offsets.
    pub(crate) fn len(&self) -> usize {
        self.topics.values().map(SharedMap::len).sum()
    }

    pub(crate) fn get(&self, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        self.topics.get(topic)?.get(&partition)
    }

    /// Returns the accounted bytes of all offsets, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        self.topics.values().flat_map(SharedMap::values).map(memory::offset).sum()
    }

    /// Adds an offset; returns the one that it replaces.
    pub(crate) fn insert(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        offset: CommittedOffset,
    ) -> Option<CommittedOffset> {
        self.topics.get_or_default(topic).insert(partition, offset)
    }

    /// Removes an offset, if it exists.
    pub(crate) fn remove(
        &mut self,
        topic: &str,
        partition: i32,
        names: &mut TopicNames,
    ) -> Option<CommittedOffset> {
        let partitions = self.topics.get_mut(topic)?;
        let removed = partitions.remove(&partition)?;
        if partitions.is_empty()
            && let Some((topic, _)) = self.topics.remove_entry(topic)
        {
            names.release(topic);
        }
        Some(removed)
    }

    /// Removes all offsets, and releases the names of their topics.
    pub(crate) fn clear(&mut self, names: &mut TopicNames) {
        let topics: Vec<Arc<str>> = self.topics.keys().cloned().collect();
        self.topics = SharedMap::default();
        topics.into_iter().for_each(|topic| names.release(topic));
    }

    /// Replaces the names of topics by those of another pool.
    pub(crate) fn take_names(&mut self, names: &mut TopicNames) {
        self.topics = self.topics.with_keys(|topic| names.intern(topic));
    }

    /// Every topic with its partitions, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &SharedMap<i32, CommittedOffset>)> {
        self.topics.iter()
    }
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;

    #[test]
    fn an_offset_is_small_and_a_name_is_held_once() {
        assert!(size_of::<(i32, CommittedOffset)>() <= 56);
        let mut names = TopicNames::default();
        let (mut a, mut b) = (Offsets::default(), Offsets::default());
        let offset = |at| CommittedOffset::new(at, -1, 0, Uuid::ZERO);
        let topic = names.intern("t");
        assert_eq!(a.insert(&topic, 1, offset(5)), None);
        assert_eq!(a.insert(&topic, 1, offset(6)), Some(offset(5)));
        assert_eq!(a.insert(&topic, 0, offset(7)), None);
        assert_eq!(b.insert(&topic, 0, offset(8)), None);
        names.release(topic);
        assert_eq!((a.len(), b.len(), names.len()), (2, 1, 1));
        assert_eq!(a.get("t", 1), Some(&offset(6)));
        assert_eq!((a.remove("t", 2, &mut names), a.remove("u", 0, &mut names)), (None, None));
        assert_eq!(a.remove("t", 1, &mut names), Some(offset(6)));
        assert_eq!(a.remove("t", 0, &mut names), Some(offset(7)));
        assert_eq!((a.is_empty(), names.len()), (true, 1));
        b.clear(&mut names);
        assert_eq!((names.len(), names.bytes()), (0, 0));
    }

    #[test]
    fn a_reader_sees_what_was_there_and_keeps_no_name_for_good() {
        let (mut names, mut offsets) = (TopicNames::default(), Offsets::default());
        let offset = |at| CommittedOffset::new(at, -1, 0, Uuid::ZERO);
        for name in ["t", "u", "v"] {
            let topic = names.intern(name);
            offsets.insert(&topic, 0, offset(5));
            names.release(topic);
        }
        let read = (offsets.clone(), names.reading());
        assert_eq!(offsets.remove("t", 0, &mut names), Some(offset(5)));
        let kept = names.intern("u");
        offsets.insert(&kept, 0, offset(6));
        names.release(kept);
        assert_eq!(read.0.get("t", 0), Some(&offset(5)));
        assert_eq!(read.0.get("u", 0), Some(&offset(5)));
        assert_eq!(names.len(), 3, "the reader has the name, and who comes now gets the same");
        drop(read);
        offsets.remove("v", 0, &mut names);
        names.release_all_late();
        assert_eq!(names.len(), 1);
        names.check();
        offsets.clear(&mut names);
        assert_eq!((names.len(), names.bytes()), (0, 0));
    }

    /// Uses end one after the other while the names that were released under a reader are looked at.
    #[test]
    fn the_last_use_of_a_name_frees_it_whoever_else_is_looked_at_then() {
        for released_under_reader in 1..3 {
            let mut names = TopicNames::default();
            let mut uses: Vec<_> = (0..4).map(|_| names.intern("t")).collect();
            let reading = names.reading();
            uses.drain(..released_under_reader).for_each(|used| names.release(used));
            drop(reading);
            uses.into_iter().for_each(|used| names.release(used));
            names.release_all_late();
            assert_eq!((names.len(), names.bytes()), (0, 0), "{released_under_reader} under a reader");
            names.check();
        }
    }

    #[test]
    fn names_are_freed_while_there_is_always_a_reader() {
        let (mut names, mut offsets) = (TopicNames::default(), Offsets::default());
        let mut reader = (offsets.clone(), names.reading());
        for number in 0..1_000 {
            let topic = names.intern(&format!("topic-{number}"));
            offsets.insert(&topic, 0, CommittedOffset::new(5, -1, 0, Uuid::ZERO));
            names.release(topic);
            // The next one comes before this one goes.
            reader = (offsets.clone(), names.reading());
            offsets.remove(&format!("topic-{number}"), 0, &mut names);
            assert!(names.len() <= 20, "{} names of {number} are held", names.len());
        }
        drop(reader);
        names.release_all_late();
        assert_eq!((names.len(), names.bytes()), (0, 0));
    }
}
