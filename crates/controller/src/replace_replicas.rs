//! Replicas of a lost disk. A replica that has lost its log is another member of its group: as the one that it was, it would vote without
//! knowing what it has acknowledged.

use std::collections::HashSet;

use mainstem_wire::Uuid;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::create_topics::DirectorySizes;
use super::image::{GroupImage, PartitionImage};
use super::node_view::NodeView;
use super::reassignments::MOVES_FROM_LEVEL;
use super::state_machine::{Decision, MetadataStateMachine};

/// A replica of a node that is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostReplica {
    /// The partition's topic.
    pub topic_id: Uuid,
    /// Its number.
    pub partition: i32,
    /// The incarnation that is lost. Of another one nothing changes: the report is late.
    pub incarnation: u32,
}

impl MetadataStateMachine {
    /// Gives a node's replicas of these partitions the next incarnation, which the leaders then make members in place of the lost ones, and
    /// another log directory where theirs is gone. A move under way stays as it is. Partitions that were deleted, that the node does not hold, that
    /// have no group or whose group cannot decide without the replica are left out; all
    /// are at a level of `mainstem.version` at which members do not change.
    pub fn replace_replicas(&mut self, view: &NodeView, node: i32, lost: &[LostReplica]) -> Decision<()> {
        let may_change = self.ahead().mainstem_version() >= MOVES_FROM_LEVEL;
        let mut named = HashSet::new();
        let once = lost.iter().filter(|one| may_change && named.insert((one.topic_id, one.partition)));
        let mut directories = self.directory_sizes();
        let records = once.filter_map(|one| self.replacement(view, node, one, &mut directories)).collect();
        self.decide(records, ())
    }

    /// Returns true if the others of a group can make a change of members: one of them leads, and those in sync are a majority. Otherwise
    /// the replica may be needed as it is, should its disk come back.
    fn can_decide_without(&self, partition: &PartitionImage, node: i32) -> bool {
        let is_up = |id: i32| self.ahead().broker(id).is_some_and(|broker| !broker.fenced);
        let others = partition.isr.iter().filter(|id| **id != node && is_up(**id)).count();
        let members = partition.target().len().max(partition.original().len());
        let is_led = partition.leader >= 0 && partition.leader != node && is_up(partition.leader);
        is_led && others > members / 2
    }

    fn replacement(
        &self,
        view: &NodeView,
        node: i32,
        lost: &LostReplica,
        sizes: &mut DirectorySizes,
    ) -> Option<MetadataRecord<'static>> {
        let (topic_id, number) = (lost.topic_id, lost.partition);
        let partition = self.ahead().partition_of(topic_id, number)?;
        if partition.incarnation(node) != Some(lost.incarnation) {
            return None;
        }
        let at = partition.position(node).filter(|_| view.replicas_elect(partition))?;
        if !self.can_decide_without(partition, node) {
            return None;
        }
        let mut group =
            partition.group.clone().unwrap_or_else(|| GroupImage::first(partition.replicas.len()));
        group.raise_version()?;
        let next = group.next_incarnation()?;
        *group.incarnations.get_mut(at)? = next;
        let mut directories = partition.directories.clone();
        // Its disk may be gone.
        if let (Some(directory), Some(broker)) = (directories.get_mut(at), self.ahead().broker(node))
            && !broker.log_dirs.contains(directory)
        {
            *directory = sizes.take_emptiest(node);
        }
        let after = PartitionImage { group: Some(group), directories, ..partition.clone() };
        Some(partition.change_to(&after, topic_id, number))
    }
}
