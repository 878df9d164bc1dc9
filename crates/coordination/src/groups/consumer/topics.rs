//! The topics of the cluster as groups need them: names, ids, numbers of partitions, and a hash that changes with them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use mainstem_wire::Uuid;
use twox_hash::XxHash3_64;

use super::super::shared_map::SharedMap;

/// The version of the way in which a topic is hashed (KIP-1101).
const HASH_VERSION: u8 = 0;

/// A topic, as far as assignments depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Topic {
    pub(crate) id: Uuid,
    pub(crate) partitions: i32,
    /// See [`hash`].
    hash: i64,
}

/// All topics.
#[derive(Debug, Default)]
pub(crate) struct ClusterTopics {
    by_name: BTreeMap<Arc<str>, Topic>,
    names: SharedMap<Uuid, Arc<str>>,
    /// Rises with every topic that is created: then patterns are matched again.
    created: u64,
    /// See [`all_names`](Self::all_names); made when it is asked for.
    all_names: OnceLock<Arc<[Arc<str>]>>,
    /// Bytes of all names.
    name_bytes: usize,
}

impl ClusterTopics {
    /// Adds a topic, or changes its number of partitions. Returns false if nothing changed.
    pub(crate) fn put(&mut self, name: &str, id: Uuid, partitions: i32) -> bool {
        let known = self.by_name.get(name).copied();
        if known.is_some_and(|known| (known.id, known.partitions) == (id, partitions)) {
            return false;
        }
        if known.is_none_or(|known| known.id != id) {
            self.created += 1;
        }
        if let Some(known) = known {
            self.names.remove(&known.id);
        }
        let hash = hash(name, id, partitions);
        let name: Arc<str> = name.into();
        self.names.insert(id, name.clone());
        if self.by_name.insert(name.clone(), Topic { id, partitions, hash }).is_none() {
            self.all_names.take();
            self.name_bytes += name.len();
        }
        true
    }

    /// Removes a topic. Returns false if it was unknown.
    pub(crate) fn remove(&mut self, name: &str) -> bool {
        let Some(topic) = self.by_name.remove(name) else { return false };
        self.names.remove(&topic.id);
        self.all_names.take();
        self.name_bytes -= name.len();
        true
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Topic> {
        self.by_name.get(name)
    }

    /// The name of an id.
    pub(crate) fn name(&self, id: &Uuid) -> Option<&Arc<str>> {
        self.names.get(id)
    }

    /// The names of all ids.
    pub(crate) fn names(&self) -> &SharedMap<Uuid, Arc<str>> {
        &self.names
    }

    /// All names in order, to be kept while topics come and go.
    pub(crate) fn all_names(&self) -> Arc<[Arc<str>]> {
        self.all_names.get_or_init(|| self.by_name.keys().cloned().collect()).clone()
    }

    /// Bytes of all names.
    pub(crate) fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    /// The number of topics that have been created, as far as this coordinator has seen.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    /// The metadata hash that a group's epoch was computed from: 0 if none of its topics exists. `names` come in order, each once.
    pub(crate) fn group_hash<'n>(&self, names: impl Iterator<Item = &'n str>) -> i64 {
        let hashes = names.filter_map(|name| self.get(name)).flat_map(|topic| topic.hash.to_le_bytes());
        let hashes: Vec<u8> = hashes.collect();
        if hashes.is_empty() { 0 } else { XxHash3_64::oneshot(&hashes).cast_signed() }
    }
}

/// Kafka's hash of a topic: version, id as two little-endian longs, name in UTF-16 with its length, number of
/// partitions, each partition. Racks, which Kafka adds to each partition, are left out: they have no part in
/// any assignment.
fn hash(name: &str, id: Uuid, partitions: i32) -> i64 {
    let mut bytes = vec![HASH_VERSION];
    let bits = id.to_u128();
    bytes.extend(((bits >> 64) as u64).to_le_bytes());
    bytes.extend((bits as u64).to_le_bytes());
    let units: Vec<u16> = name.encode_utf16().collect();
    bytes.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    bytes.extend(u32::try_from(units.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(partitions.to_le_bytes());
    bytes.extend((0..partitions).flat_map(i32::to_le_bytes));
    XxHash3_64::oneshot(&bytes).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by a JVM with Kafka 4.3.0's jars.
    #[test]
    fn hashes_are_kafkas() {
        let t = Uuid::from_u128(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10);
        let u = Uuid::from_u128((1 << 64) | u128::from((-2_i64).cast_unsigned()));
        assert_eq!(hash("t", t, 3), -6_728_349_258_408_289_236);
        assert_eq!(hash("gr\u{fc}n", u, 0), 2_763_071_403_206_922_367);
        let mut topics = ClusterTopics::default();
        assert!(topics.put("t", t, 3) && topics.put("gr\u{fc}n", u, 0) && !topics.put("t", t, 3));
        assert_eq!(topics.group_hash(["t"].into_iter()), 8_179_300_238_714_719_308);
        assert_eq!(topics.group_hash(["gr\u{fc}n", "gone", "t"].into_iter()), -8_250_764_785_409_651_509);
        assert_eq!(topics.group_hash(["gone"].into_iter()), 0);
    }

    #[test]
    fn a_topic_that_is_created_again_is_another_one() {
        let (mut topics, [old, new]) = (ClusterTopics::default(), [1, 2].map(Uuid::from_u128));
        topics.put("t", old, 1);
        assert!(topics.remove("t") && !topics.remove("t"));
        topics.put("t", new, 1);
        assert_eq!((topics.name(&old), topics.name(&new).map(|name| &**name)), (None, Some("t")));
        assert_eq!(topics.created(), 2);
    }

    #[test]
    fn names_that_were_taken_before_stay_as_they_were() {
        let mut topics = ClusterTopics::default();
        topics.put("b", Uuid::from_u128(1), 1);
        let before = topics.all_names();
        topics.put("a", Uuid::from_u128(2), 1);
        topics.put("b", Uuid::from_u128(1), 2);
        assert_eq!((&*before, &*topics.all_names()), (&["b".into()][..], &["a".into(), "b".into()][..]));
        topics.remove("b");
        assert_eq!((&*topics.all_names(), topics.name_bytes()), (&["a".into()][..], 1));
    }
}
