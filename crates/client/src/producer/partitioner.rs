//! Which partition a record goes to: as the Java client chooses, so that equal keys of both meet.

use crate::cluster::Topic;
use crate::error::Error;

/// The partition of a topic that records without a key go to at present (KIP-794): the next one is chosen by chance when
/// it has got a batch's worth, so that all get the same share in batches that are full.
#[derive(Debug, Default)]
pub(crate) struct Sticky {
    partition: Option<i32>,
    bytes: usize,
}

impl Sticky {
    /// The partition for a record of so many bytes; one that has a leader if any has.
    pub(crate) fn choose(
        &mut self,
        topic: &Topic,
        bytes: usize,
        batch_bytes: usize,
        chance: u32,
    ) -> Result<i32, Error> {
        let served = |index: &i32| topic.partition(*index).is_ok_and(|partition| partition.leader.is_some());
        let stays = self.partition.filter(|index| self.bytes < batch_bytes && served(index));
        let partition = match stays {
            Some(partition) => partition,
            None => {
                self.bytes = 0;
                any_partition(topic, chance)?
            }
        };
        self.bytes += bytes;
        self.partition = Some(partition);
        Ok(partition)
    }
}

fn any_partition(topic: &Topic, chance: u32) -> Result<i32, Error> {
    let mut choice: Vec<i32> =
        topic.partitions.iter().filter(|one| one.leader.is_some()).map(|one| one.index).collect();
    if choice.is_empty() {
        choice = topic.partitions.iter().map(|one| one.index).collect();
    }
    let at = chance as usize % choice.len().max(1);
    choice.get(at).copied().ok_or_else(|| Error::Unknown(format!("topic {} has no partition", topic.name)))
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
    fn records_without_a_key_stay_until_a_batch_is_full() {
        let topic = topic(&[Some(1), None, Some(1)]);
        let mut sticky = Sticky::default();
        let chosen: Vec<i32> = (0..6).map(|chance| sticky.choose(&topic, 50, 100, chance).unwrap()).collect();
        assert_eq!(chosen, [0, 0, 0, 0, 0, 0], "even chances are partition 0");
        let mut sticky = Sticky::default();
        let chances = [0, 1, 1, 0, 0, 1];
        let chosen = chances.map(|chance| sticky.choose(&topic, 50, 100, chance).unwrap());
        assert_eq!(chosen, [0, 0, 2, 2, 0, 0], "and never the one without a leader");
    }

    #[test]
    fn without_any_leader_the_records_wait_somewhere() {
        assert_eq!(Sticky::default().choose(&topic(&[None, None]), 1, 1, 3), Ok(1));
        assert!(matches!(Sticky::default().choose(&topic(&[]), 1, 1, 3), Err(Error::Unknown(_))));
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
