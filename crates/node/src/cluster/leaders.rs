//! Leaders of partitions as far as this node knows them: from its own replicas, and from reports of the leaders.

use std::collections::BTreeSet;

use foldhash::HashMap;
use mainstem_controller::LeaderNote;
use mainstem_records::LeaderEpoch;
use mainstem_wire::Uuid;
use parking_lot::{Mutex, RwLock};

/// A partition by its topic's id and its number.
pub(crate) type PartitionKey = (Uuid, i32);

/// Leader of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The node whose replica leads.
    pub node: i32,
    /// Since which election.
    pub epoch: LeaderEpoch,
    /// The nodes in sync, as the leader sees it.
    pub isr: Vec<i32>,
}

/// The last known leader of each partition with several replicas.
#[derive(Default)]
pub struct LeaderTable(RwLock<HashMap<PartitionKey, Leader>>);

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

/// Leaders that changed and are not noted in the metadata yet, of the node that decides on those; no other notes any, nor remembers
/// what it would have to.
#[derive(Default)]
pub(crate) struct Unnoted(Mutex<Option<BTreeSet<PartitionKey>>>);

impl Unnoted {
    /// This node has begun to decide. It does not know what its predecessor has written, so all known leaders are to be checked.
    pub(crate) fn begin(&self, leaders: &LeaderTable) {
        // What comes into the table later is inserted here, and waits for this.
        let mut unnoted = self.0.lock();
        *unnoted = Some(leaders.notes().into_iter().map(|note| (note.topic_id, note.partition)).collect());
    }

    /// Forgets everything if this node does not decide any more.
    pub(crate) fn end_unless(&self, decides: impl FnOnce() -> bool) {
        let mut unnoted = self.0.lock();
        if unnoted.is_some() && !decides() {
            *unnoted = None;
        }
    }

    /// A leader has changed, as the table has it already.
    pub(crate) fn insert(&self, key: PartitionKey) {
        self.put_back(&[key]);
    }

    /// Removes and returns up to `max` partitions whose leaders are to be written to the metadata.
    pub(crate) fn take(&self, max: usize) -> Vec<PartitionKey> {
        let mut unnoted = self.0.lock();
        let pop = || unnoted.as_mut().and_then(BTreeSet::pop_first);
        std::iter::from_fn(pop).take(max).collect()
    }

    /// They could not be noted.
    pub(crate) fn put_back(&self, keys: &[PartitionKey]) {
        if let Some(unnoted) = self.0.lock().as_mut() {
            unnoted.extend(keys);
        }
    }

    /// Forgets the partitions of topics that are not there.
    pub(crate) fn retain(&self, exists: impl Fn(&Uuid) -> bool) {
        if let Some(unnoted) = self.0.lock().as_mut() {
            unnoted.retain(|(topic, _)| exists(topic));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other nodes would gather a partition for each that there ever was, and a new metadata leader look at them all before it comes to
    /// those that there are.
    #[test]
    fn only_the_node_that_decides_remembers_what_is_to_be_noted() {
        let (table, unnoted) = (LeaderTable::default(), Unnoted::default());
        let key = |topic, partition| (Uuid::from_u128(topic), partition);
        let note = |topic, partition| {
            let (topic_id, partition) = key(topic, partition);
            let leader_epoch = LeaderEpoch::new(1);
            assert!(table.note(&LeaderNote { topic_id, partition, leader: 1, leader_epoch, isr: vec![1] }));
            unnoted.insert((topic_id, partition));
        };
        note(1, 0);
        note(1, 1);
        assert_eq!(unnoted.take(10), [], "it does not decide");
        table.retain(|topic| *topic == Uuid::from_u128(1));
        unnoted.begin(&table);
        note(2, 0);
        assert_eq!(unnoted.take(2), [key(1, 0), key(1, 1)], "what was known before is among it");
        unnoted.put_back(&[key(1, 0)]);
        unnoted.retain(|topic| *topic == Uuid::from_u128(1));
        unnoted.end_unless(|| true);
        assert_eq!(unnoted.take(10), [key(1, 0)], "without what was deleted");
        note(3, 0);
        unnoted.end_unless(|| false);
        note(3, 1);
        assert_eq!(unnoted.take(10), [], "it decides no more");
    }

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
