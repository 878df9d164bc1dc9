//! The choice of a partition for a record: the same as the Java client's, so that both agree for equal keys.

use crate::cluster::Topic;
use crate::error::Error;

/// The partition of a topic that records without a key go to at present (KIP-794). It changes between two batches, when it
/// has got a batch's worth, so that batches are full; and when it has got twice as much, if other records keep its batches
/// open.
#[derive(Debug, Default)]
pub(crate) struct Sticky {
    partition: Option<i32>,
    bytes: usize,
}

impl Sticky {
    /// The partition for a record of so many bytes, unless it is time for the next one. `begins`: whether the record would
    /// begin a new batch of a partition.
    pub(crate) fn stay(
        &mut self,
        topic: &Topic,
        bytes: usize,
        batch_bytes: usize,
        begins: impl FnOnce(i32) -> bool,
    ) -> Option<i32> {
        let has_leader = |index: &i32| topic.partition(*index).is_ok_and(|one| one.leader.is_some());
        let partition = self.partition.filter(has_leader)?;
        let has_enough = self.bytes + bytes > batch_bytes && begins(partition);
        if has_enough || self.bytes >= batch_bytes.saturating_mul(2) {
            return None;
        }
        self.bytes += bytes;
        Some(partition)
    }

    /// Records go to another partition, which gets one of so many bytes.
    pub(crate) fn go(&mut self, partition: i32, bytes: usize) -> i32 {
        *self = Sticky { partition: Some(partition), bytes };
        partition
    }
}

/// The next partition for records without a key: of those that have a leader, by chance, the likelier the fewer batches
/// wait for it (KIP-794). Where none has a leader, any.
pub(crate) fn next_partition(
    topic: &Topic,
    waiting: impl Fn(i32) -> usize,
    chance: u32,
) -> Result<i32, Error> {
    let served = topic.partitions.iter().filter(|one| one.leader.is_some());
    let mut choice: Vec<(i32, usize)> = served.map(|one| (one.index, waiting(one.index))).collect();
    if choice.is_empty() {
        choice = topic.partitions.iter().map(|one| (one.index, 0)).collect();
    }
    weighted(&choice, chance).ok_or_else(|| Error::Unknown(format!("topic {} has no partition", topic.name)))
}

/// One of several partitions, each with the number of its batches that wait. Its share is what its number falls short of
/// the largest one, and 1: of numbers 0, 3 and 1 the shares are 4, 1 and 3 of 8.
fn weighted(choice: &[(i32, usize)], chance: u32) -> Option<i32> {
    let most = choice.iter().map(|(_, waiting)| *waiting).max()?;
    let share = |waiting: usize| (most - waiting) as u64 + 1;
    let all: u64 = choice.iter().map(|(_, waiting)| share(*waiting)).sum();
    let mut left = u64::from(chance) % all;
    for (partition, waiting) in choice {
        if left < share(*waiting) {
            return Some(*partition);
        }
        left -= share(*waiting);
    }
    unreachable!("it is less than all shares together")
}

/// The partition of a key, from 0: 32-bit murmur2 without its sign, modulo the number of partitions (Kafka's
/// `Utils.murmur2`), as every Java client chooses.
///
/// # Panics
/// Without any partition.
///
/// ```
/// assert_eq!(mainstem_client::partition_of_key(b"abc", 16), 11);
/// ```
pub fn partition_of_key(key: &[u8], partitions: usize) -> usize {
    (murmur2(key) & 0x7fff_ffff) as usize % partitions
}

/// Murmur2 with Kafka's seed.
fn murmur2(bytes: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    let mut hash = SEED ^ bytes.len() as u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes(word.try_into().expect("four bytes")).wrapping_mul(M);
        k ^= k >> 24;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (at, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * at);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use mainstem_wire::Uuid;

    use super::*;
    use crate::cluster::Partition;

    /// The values that Kafka's own UtilsTest expects.
    #[test]
    fn hashes_are_those_of_the_java_client() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
    }

    fn topic(leaders: &[Option<i32>]) -> Topic {
        let partition = |(index, leader): (usize, &Option<i32>)| Partition {
            index: index as i32,
            leader: *leader,
            leader_epoch: 0,
            replicas: vec![],
            isr: vec![],
        };
        let partitions = leaders.iter().enumerate().map(partition).collect();
        Topic { name: "t".into(), id: Uuid::default(), is_internal: false, partitions }
    }

    #[test]
    fn the_fewer_batches_wait_for_a_partition_the_likelier_it_is() {
        let all = [Some(1); 3];
        for (leaders, waiting, expected) in [
            (all, [0, 0, 0], vec![0, 1, 2, 0]),
            (all, [5, 5, 5], vec![0, 1, 2, 0]),
            (all, [0, 3, 1], vec![0, 0, 0, 0, 1, 2, 2, 2, 0]),
            (all, [2, 0, 0], vec![0, 1, 1, 1, 2, 2, 2, 0]),
            ([Some(1), None, Some(1)], [0, 9, 1], vec![0, 0, 2, 0]),
            ([None, None, None], [0, 9, 1], vec![0, 1, 2, 0]),
        ] {
            let topic = topic(&leaders);
            let choose = |chance: usize| {
                next_partition(&topic, |partition| waiting[partition as usize], chance as u32).unwrap()
            };
            let chosen: Vec<i32> = (0..expected.len()).map(choose).collect();
            assert_eq!(chosen, expected, "{waiting:?} of {leaders:?}");
        }
        assert!(matches!(next_partition(&topic(&[]), |_| 0, 3), Err(Error::Unknown(_))));
    }

    #[test]
    fn records_without_a_key_stay_until_a_batch_is_full() {
        let topic = topic(&[Some(1), None, Some(1)]);
        let mut sticky = Sticky::default();
        assert_eq!(sticky.stay(&topic, 50, 100, |_| true), None, "there is none yet");
        assert_eq!(sticky.go(2, 50), 2);
        assert_eq!(sticky.stay(&topic, 50, 100, |_| true), Some(2), "it has room for one more");
        assert_eq!(sticky.stay(&topic, 50, 100, |_| true), None, "this one would begin the next batch");
        for _ in 0..2 {
            assert_eq!(sticky.stay(&topic, 50, 100, |_| false), Some(2), "its batch is not full");
        }
        assert_eq!(sticky.stay(&topic, 50, 100, |_| false), None, "two batches' worth are enough");
        sticky.go(1, 50);
        assert_eq!(sticky.stay(&topic, 1, 100, |_| false), None, "it has no leader");
    }

    #[test]
    fn partitions_stay_in_range() {
        for partitions in 1..50 {
            for key in 0..200u32 {
                assert!(partition_of_key(&key.to_be_bytes(), partitions) < partitions);
            }
        }
    }
}
