//! The durable offsets of one group, and the pool of topic names that all groups share.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_wire::Uuid;

use super::memory;

/// One committed offset as `__consumer_offsets` has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CommittedOffset {
    /// The next offset that the group reads.
    pub(crate) offset: i64,
    /// When it was committed, wall clock milliseconds.
    pub(crate) commit_timestamp_ms: i64,
    /// The leader epoch of the last consumed record, -1 if not given.
    pub(crate) leader_epoch: i32,
    /// The topic's id at the commit, zero if not given.
    pub(crate) topic_id: Uuid,
    /// What few offsets have.
    extra: Option<Box<Extra>>,
}

/// The rare part of an offset, kept out of line so that the common one stays small.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Extra {
    metadata: Box<str>,
    expire_timestamp_ms: Option<i64>,
}

impl CommittedOffset {
    /// An offset with no metadata and no expiry of its own.
    pub(crate) fn new(offset: i64, leader_epoch: i32, commit_timestamp_ms: i64, topic_id: Uuid) -> Self {
        Self { offset, commit_timestamp_ms, leader_epoch, topic_id, extra: None }
    }

    /// The same with what the client wants to keep beside it, and its own time to expire (OffsetCommit v2-4).
    pub(crate) fn with(mut self, metadata: &str, expire_timestamp_ms: Option<i64>) -> Self {
        self.extra = (!metadata.is_empty() || expire_timestamp_ms.is_some())
            .then(|| Box::new(Extra { metadata: metadata.into(), expire_timestamp_ms }));
        self
    }

    pub(crate) fn metadata(&self) -> &str {
        self.extra.as_ref().map_or("", |extra| &extra.metadata)
    }

    pub(crate) fn expire_timestamp_ms(&self) -> Option<i64> {
        self.extra.as_ref().and_then(|extra| extra.expire_timestamp_ms)
    }
}

/// A partition of a topic by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TopicPartition {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
}

/// The names of topics, each held once however many groups commit to it.
#[derive(Debug, Default)]
pub(crate) struct TopicNames {
    names: HashSet<Arc<str>>,
    /// What they count for, see [`memory`].
    bytes: usize,
}

impl TopicNames {
    /// The shared copy of `name`.
    pub(crate) fn intern(&mut self, name: &str) -> Arc<str> {
        if let Some(name) = self.names.get(name) {
            return name.clone();
        }
        let name: Arc<str> = name.into();
        self.bytes += memory::name(&name);
        self.names.insert(name.clone());
        name
    }

    /// Gives up one use of a name; the last one (beside the pool's own) frees it.
    pub(crate) fn release(&mut self, name: Arc<str>) {
        if Arc::strong_count(&name) <= 2 && self.names.remove(&name) {
            self.bytes -= memory::name(&name);
        }
    }

    /// What all names count for, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if `name` is the copy that is held here.
    pub(crate) fn holds(&self, name: &Arc<str>) -> bool {
        self.names.get(name).is_some_and(|held| Arc::ptr_eq(held, name))
    }

    /// Asserts that what is counted is what is held.
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

/// The offsets of one group: two sorted levels, so that a group of a few partitions is a few small allocations and a
/// look-up is a binary search.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Offsets {
    topics: Vec<TopicOffsets>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct TopicOffsets {
    topic: Arc<str>,
    partitions: Vec<(i32, CommittedOffset)>,
}

impl Offsets {
    pub(crate) fn is_empty(&self) -> bool {
        self.topics.is_empty()
    }

    /// Number of offsets.
    pub(crate) fn len(&self) -> usize {
        self.topics.iter().map(|topic| topic.partitions.len()).sum()
    }

    pub(crate) fn get(&self, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        let topic = &self.topics[self.find(topic).ok()?];
        let at = topic.partitions.binary_search_by_key(&partition, |(index, _)| *index).ok()?;
        Some(&topic.partitions[at].1)
    }

    /// What all offsets count for, see [`memory`].
    pub(crate) fn bytes(&self) -> usize {
        let all = self.topics.iter().flat_map(|topic| &topic.partitions);
        all.map(|(_, offset)| memory::offset(offset)).sum()
    }

    /// Puts an offset in; the one that it replaces comes back.
    pub(crate) fn insert(
        &mut self,
        topic: &Arc<str>,
        partition: i32,
        offset: CommittedOffset,
    ) -> Option<CommittedOffset> {
        let at = self.find(topic).unwrap_or_else(|at| {
            self.topics.insert(at, TopicOffsets { topic: topic.clone(), partitions: Vec::with_capacity(1) });
            at
        });
        let partitions = &mut self.topics[at].partitions;
        match partitions.binary_search_by_key(&partition, |(index, _)| *index) {
            Ok(at) => Some(std::mem::replace(&mut partitions[at].1, offset)),
            Err(at) => {
                partitions.insert(at, (partition, offset));
                None
            }
        }
    }

    /// Takes an offset out, if it is there.
    pub(crate) fn remove(
        &mut self,
        topic: &str,
        partition: i32,
        names: &mut TopicNames,
    ) -> Option<CommittedOffset> {
        let at = self.find(topic).ok()?;
        let partitions = &mut self.topics[at].partitions;
        let index = partitions.binary_search_by_key(&partition, |(index, _)| *index).ok()?;
        let (_, removed) = partitions.remove(index);
        if partitions.is_empty() {
            names.release(self.topics.remove(at).topic);
        }
        Some(removed)
    }

    /// Gives up the names of all topics; the offsets are gone afterwards.
    pub(crate) fn clear(&mut self, names: &mut TopicNames) {
        for topic in self.topics.drain(..) {
            names.release(topic.topic);
        }
    }

    /// Every topic with its partitions, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &[(i32, CommittedOffset)])> {
        self.topics.iter().map(|topic| (&topic.topic, topic.partitions.as_slice()))
    }

    fn find(&self, topic: &str) -> Result<usize, usize> {
        self.topics.binary_search_by(|entry| (*entry.topic).cmp(topic))
    }
}

#[cfg(test)]
mod tests {
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
}
