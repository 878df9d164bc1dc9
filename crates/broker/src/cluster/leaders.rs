//! Who leads which partition, as far as this node was told: by its own replicas, and by the leaders themselves.

use foldhash::HashMap;
use mainstem_controller::LeaderNote;
use mainstem_records::LeaderEpoch;
use mainstem_wire::Uuid;
use parking_lot::RwLock;

/// A partition by its topic's id and its number.
pub(crate) type PartitionKey = (Uuid, i32);

/// Who leads a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    /// The node whose replica leads.
    pub(crate) node: i32,
    /// Since which election.
    pub(crate) epoch: LeaderEpoch,
    /// The nodes in sync, as the leader sees it.
    pub(crate) isr: Vec<i32>,
}

/// The last known leader of each partition with several replicas.
#[derive(Default)]
pub(crate) struct LeaderTable(RwLock<HashMap<PartitionKey, Leader>>);

impl LeaderTable {
    /// The last known leader of a partition.
    pub(crate) fn get(&self, key: PartitionKey) -> Option<Leader> {
        self.0.read().get(&key).cloned()
    }

    /// Takes what a leader says of itself, unless a later one is known. Returns true if anything is new.
    pub(crate) fn note(&self, note: &LeaderNote) -> bool {
        let mut table = self.0.write();
        let key = (note.topic_id, note.partition);
        let leader = Leader { node: note.leader, epoch: note.leader_epoch, isr: note.isr.clone() };
        match table.get(&key) {
            Some(known) if known.epoch > leader.epoch || *known == leader => false,
            _ => {
                table.insert(key, leader);
                true
            }
        }
    }

    /// Forgets the partitions of topics that are not there.
    pub(crate) fn retain(&self, exists: impl Fn(&Uuid) -> bool) {
        self.0.write().retain(|(topic, _), _| exists(topic));
    }

    /// Everything that is known.
    pub(crate) fn notes(&self) -> Vec<LeaderNote> {
        let table = self.0.read();
        let note = |((topic_id, partition), leader): (&PartitionKey, &Leader)| LeaderNote {
            topic_id: *topic_id,
            partition: *partition,
            leader: leader.node,
            leader_epoch: leader.epoch,
            isr: leader.isr.clone(),
        };
        table.iter().map(note).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_leaders_count_and_older_ones_do_not() {
        let table = LeaderTable::default();
        let topic_id = Uuid::from_u128(7);
        let note = |leader, leader_epoch, isr: &[i32]| LeaderNote {
            topic_id,
            partition: 0,
            leader,
            leader_epoch: LeaderEpoch::new(leader_epoch),
            isr: isr.to_vec(),
        };
        assert!(table.note(&note(1, 5, &[1, 2])));
        assert!(!table.note(&note(1, 5, &[1, 2])), "known");
        assert!(!table.note(&note(2, 4, &[2])), "older");
        assert!(table.note(&note(1, 5, &[1])) && table.note(&note(2, 6, &[2, 1])));
        let expected = Leader { node: 2, epoch: LeaderEpoch::new(6), isr: vec![2, 1] };
        assert_eq!(table.get((topic_id, 0)), Some(expected));
        assert_eq!(table.notes().len(), 1);
        table.retain(|_| false);
        assert_eq!(table.get((topic_id, 0)), None);
    }
}
