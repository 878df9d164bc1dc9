//! Leaders of the partitions that elect their leader themselves. The leaders report their leadership, and the metadata record it now and
//! then, for tools that read the log and for nodes that start.

use mainstem_records::LeaderEpoch;
use mainstem_wire::Uuid;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::image::PartitionImage;
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

/// The report of a partition's leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderNote {
    /// The partition's topic.
    pub topic_id: Uuid,
    /// Its number.
    pub partition: i32,
    /// The node that leads it.
    pub leader: i32,
    /// The epoch of its election.
    pub leader_epoch: LeaderEpoch,
    /// The nodes in sync, of the partition's replicas.
    pub isr: Vec<i32>,
}

impl MetadataStateMachine {
    /// Records leaders. Reports that are known already, older than the known ones, or about deleted partitions are left out.
    ///
    /// Each gets a full record: a record of a change can raise the leader epoch by one at most. A move of replicas stays as it is.
    pub fn note_leaders(&mut self, view: &NodeView, notes: &[LeaderNote]) -> Decision<()> {
        let records = notes.iter().filter_map(|note| self.noted(view, note)).collect();
        self.decide(records, ())
    }

    fn noted(&self, view: &NodeView, note: &LeaderNote) -> Option<MetadataRecord<'static>> {
        let partition = self.ahead().partition_of(note.topic_id, note.partition)?;
        if !view.replicas_elect(partition) || !partition.replicas.contains(&note.leader) {
            return None;
        }
        let isr: Vec<i32> =
            partition.replicas.iter().copied().filter(|node| note.isr.contains(node)).collect();
        let leader_epoch = note.leader_epoch.get();
        let is_older = leader_epoch < partition.leader_epoch;
        let is_known = (leader_epoch, note.leader) == (partition.leader_epoch, partition.leader);
        if is_older || (is_known && isr == partition.isr) {
            return None;
        }
        let after = PartitionImage {
            isr,
            leader: note.leader,
            leader_epoch,
            partition_epoch: partition.partition_epoch.checked_add(1)?,
            ..partition.clone()
        };
        Some(after.record(note.topic_id, note.partition))
    }
}
