//! The end of a move of replicas. The leader of a partition's group reports that the group has exactly the wanted members, and then the
//! metadata name no others. A node deletes its replica when the metadata do not name it any more.

use std::collections::HashSet;

use mainstem_records::LeaderEpoch;
use mainstem_wire::Uuid;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::create_topics::NO_LEADER;
use super::image::{GroupImage, PartitionImage};
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

/// The report of a partition's leader that the group has exactly the wanted members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettledNote {
    /// The partition's topic.
    pub topic_id: Uuid,
    /// Its number.
    pub partition: i32,
    /// The node that leads it.
    pub leader: i32,
    /// The epoch of its election.
    pub leader_epoch: LeaderEpoch,
    /// The version of what is wanted, as the leader has read it ([`PartitionImage::wanted_version`]).
    pub version: u32,
}

impl MetadataStateMachine {
    /// Ends moves. Reports about what is not wanted any more, of earlier leaders, of nodes that are not wanted, or about deleted partitions
    /// are left out.
    pub fn note_settled(&mut self, view: &NodeView, notes: &[SettledNote]) -> Decision<()> {
        let mut changed = HashSet::new();
        let mut records = Vec::new();
        for note in notes {
            let partition = (note.topic_id, note.partition);
            // A second report of one partition would be judged by what was there before the first.
            if let Some(record) = self.settled(view, note).filter(|_| changed.insert(partition)) {
                records.push(record);
            }
        }
        self.decide(records, ())
    }

    fn settled(&self, view: &NodeView, note: &SettledNote) -> Option<MetadataRecord<'static>> {
        let partition = self.ahead().partition_of(note.topic_id, note.partition)?;
        let group = partition.group.as_ref()?;
        let leader_epoch = note.leader_epoch.get();
        let is_stale = note.version != group.version
            || leader_epoch < partition.leader_epoch
            || leader_epoch < group.settled_epoch;
        if is_stale || !view.replicas_elect(partition) || !partition.target().contains(&note.leader) {
            return None;
        }
        let ends = partition.is_moving() || !partition.removing.is_empty();
        if !ends && leader_epoch == group.settled_epoch {
            return None;
        }
        let settled = if ends { at_its_end(partition, note.leader) } else { partition.clone() };
        let group = settled.group.map(|group| GroupImage { settled_epoch: leader_epoch, ..group });
        let settled = PartitionImage { group, ..settled };
        if settled.leader == NO_LEADER || settled.replicas.contains(&settled.leader) {
            return Some(partition.change_to(&settled, note.topic_id, note.partition));
        }
        // A record of a change would raise the leader epoch by one, whatever the epoch of the election.
        let led = PartitionImage {
            leader: note.leader,
            leader_epoch,
            partition_epoch: partition.partition_epoch.checked_add(1)?,
            ..settled
        };
        Some(led.record(note.topic_id, note.partition))
    }
}

/// The partition with the replicas that are wanted and no others.
fn at_its_end(partition: &PartitionImage, leader: i32) -> PartitionImage {
    let target = partition.target();
    let staying = |nodes: &[i32]| nodes.iter().copied().filter(|node| target.contains(node)).collect();
    let is_in_sync = |node: &i32| *node == leader || partition.isr.contains(node);
    let isr = target.iter().copied().filter(is_in_sync).collect();
    let (eligible_leader_replicas, last_known_elr) =
        (staying(&partition.eligible_leader_replicas), staying(&partition.last_known_elr));
    let ended = partition.with_replicas(target);
    PartitionImage {
        isr,
        adding: Vec::new(),
        removing: Vec::new(),
        eligible_leader_replicas,
        last_known_elr,
        group: ended.group.map(|group| GroupImage { original: Vec::new(), ..group }),
        ..ended
    }
}
