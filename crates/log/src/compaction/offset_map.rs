//! From a key to the last offset at which it was written, for as many keys as the memory allows.
//!
//! Open addressing, 24 bytes a key: sixteen of its hash, eight of its offset. The memory is asked for at once, and zeroed
//! by the system page by page as it is used, so that a map costs what its keys need.

use super::key_hash::{KeyHash, KeyHasher};

/// Bytes that one key takes.
pub(crate) const SLOT_BYTES: usize = 24;

/// The last offsets of keys.
#[derive(Debug)]
pub(crate) struct OffsetMap {
    /// Both words of the hash, then the offset and one more: 0 is a free slot.
    slots: Vec<[u64; 3]>,
    keys: usize,
    keys_max: usize,
    hasher: KeyHasher,
    latest_offset: i64,
}

/// The size of an offset map.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MapSize {
    /// Bytes that it may take.
    pub(crate) bytes_max: usize,
    /// The share of them that may fill: the fuller, the longer the searches.
    pub(crate) load_factor: f64,
    /// There cannot be more keys than this.
    pub(crate) keys_possible: u64,
}

impl MapSize {
    /// Slots, and how many of them may be used: at least one may, and at least one may not.
    fn slots(self) -> (usize, usize) {
        let load_factor = self.load_factor.clamp(0.01, 0.95);
        let possible = usize::try_from(self.keys_possible).unwrap_or(usize::MAX / SLOT_BYTES);
        let wanted = (possible as f64 / load_factor).ceil() as usize;
        let slots = (self.bytes_max / SLOT_BYTES).min(wanted.saturating_add(1)).max(2);
        (slots, ((slots as f64 * load_factor) as usize).clamp(1, slots - 1))
    }
}

impl OffsetMap {
    /// An empty map.
    pub(crate) fn new(size: MapSize, hasher: KeyHasher) -> OffsetMap {
        let (slots, keys_max) = size.slots();
        OffsetMap { slots: vec![[0; 3]; slots], keys: 0, keys_max, hasher, latest_offset: -1 }
    }

    /// Notes that a key was written at an offset, which is not before any noted for it. `false`: it is a new key and there
    /// is no free slot.
    pub(crate) fn put(&mut self, key: &[u8], offset: i64) -> bool {
        let hash = self.hasher.hash(key);
        let at = self.find(hash);
        if self.slots[at][2] == 0 {
            if self.keys == self.keys_max {
                return false;
            }
            self.keys += 1;
        }
        self.slots[at] = [hash[0], hash[1], offset as u64 + 1];
        true
    }

    /// The last offset of a key; `None`: it was not noted.
    pub(crate) fn get(&self, key: &[u8]) -> Option<i64> {
        let noted = self.slots[self.find(self.hasher.hash(key))][2];
        noted.checked_sub(1).map(|offset| offset as i64)
    }

    /// The slot that holds a hash, or the free one where it belongs.
    fn find(&self, [low, high]: KeyHash) -> usize {
        let count = self.slots.len();
        let mut at = ((u128::from(low) * count as u128) >> 64) as usize;
        loop {
            let slot = &self.slots[at];
            if slot[2] == 0 || (slot[0] == low && slot[1] == high) {
                return at;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
    }

    /// Every record up to this offset was noted; -1: none.
    pub(crate) fn latest_offset(&self) -> i64 {
        self.latest_offset
    }

    /// Raises the offset up to which every record was noted.
    pub(crate) fn raise_latest_offset(&mut self, offset: i64) {
        self.latest_offset = self.latest_offset.max(offset);
    }

    /// The share of its slots that is used, from 0 to 1.
    pub(crate) fn utilization(&self) -> f64 {
        self.keys as f64 / self.slots.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn map(keys: usize) -> OffsetMap {
        let size = MapSize { bytes_max: (keys + 1) * SLOT_BYTES, load_factor: 0.95, keys_possible: u64::MAX };
        OffsetMap::new(size, KeyHasher::new([3; 16]))
    }

    #[test]
    fn sizes_follow_memory_load_and_need() {
        let check = |bytes_max, load_factor, keys_possible, expected| {
            assert_eq!(MapSize { bytes_max, load_factor, keys_possible }.slots(), expected);
        };
        check(24 << 20, 0.9, u64::MAX, (1 << 20, 943_718));
        check(24 << 20, 0.9, 9, (11, 9));
        check(24 << 20, 0.9, 0, (2, 1));
        check(0, 0.9, 100, (2, 1));
        check(240, 7.0, u64::MAX, (10, 9));
        check(240, 0.0, u64::MAX, (10, 1));
    }

    #[test]
    fn a_full_map_takes_known_keys_only() {
        let mut map = map(4);
        let taken = (0..10u8).filter(|key| map.put(&[*key], i64::from(*key))).count();
        assert_eq!((taken, map.keys), (4, 4));
        assert!(map.put(&[0], 77) && !map.put(&[9], 78));
        assert_eq!((map.get(&[0]), map.get(&[9])), (Some(77), None));
    }

    proptest! {
        #[test]
        fn it_is_a_map(keys in proptest::collection::vec(0..60u16, 1..200), capacity in 1..80usize) {
            let (mut map, mut model) = (map(capacity), HashMap::new());
            for (offset, key) in (0..).zip(&keys) {
                let known = model.contains_key(key);
                let put = map.put(&key.to_be_bytes(), offset);
                prop_assert_eq!(put, known || model.len() < map.keys_max);
                if put {
                    model.insert(*key, offset);
                }
            }
            for key in 0..60u16 {
                prop_assert_eq!(map.get(&key.to_be_bytes()), model.get(&key).copied());
            }
            prop_assert_eq!(map.keys, model.len());
        }
    }
}
