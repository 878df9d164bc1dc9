//! Log directories of a node that partitions moved to, and those that failed while it runs (KIP-858).

use mainstem_wire::Uuid;
use mainstem_wire::messages::broker_registration_change_record::BrokerRegistrationChangeRecord;
use mainstem_wire::messages::partition_change_record::PartitionChangeRecord;
use mainstem_wire::metadata_frame::MetadataRecord;

use super::state_machine::{Decision, MetadataStateMachine};

/// A partition on a node, and the log directory that it is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryAssignment {
    /// The partition's topic.
    pub topic_id: Uuid,
    /// Its number.
    pub partition: i32,
    /// The directory's id.
    pub directory: Uuid,
}

impl MetadataStateMachine {
    /// Records the log directories of partitions on a node. Partitions that were deleted, that the node does not hold, or whose directory
    /// is known already are left out.
    pub fn assign_directories(&mut self, node: i32, assignments: &[DirectoryAssignment]) -> Decision<()> {
        let records =
            assignments.iter().filter_map(|assignment| self.reassignment(node, assignment)).collect();
        self.decide(records, ())
    }

    fn reassignment(&self, node: i32, assignment: &DirectoryAssignment) -> Option<MetadataRecord<'static>> {
        let topic = self.ahead().topic_by_id(assignment.topic_id)?;
        let partition = topic.partitions.get(usize::try_from(assignment.partition).ok()?)?;
        let own = partition.replicas.iter().position(|replica| *replica == node)?;
        let mut directories = partition.directories.clone();
        directories.resize(partition.replicas.len(), Uuid::ZERO);
        if std::mem::replace(&mut directories[own], assignment.directory) == assignment.directory {
            return None;
        }
        Some(MetadataRecord::PartitionChangeRecord(Box::new(PartitionChangeRecord {
            partition_id: assignment.partition,
            topic_id: topic.id,
            directories: Some(directories),
            ..PartitionChangeRecord::default()
        })))
    }

    /// Records that only these of the node's log directories are online: only they get new partitions. At least one is.
    pub fn directories_online(&mut self, node: i32, online: &[Uuid]) -> Decision<()> {
        assert!(!online.is_empty(), "a node without a directory stops");
        let broker = self.ahead().broker(node).filter(|broker| broker.log_dirs != online);
        let change = broker.map(|broker| BrokerRegistrationChangeRecord {
            broker_id: broker.id,
            broker_epoch: broker.epoch,
            log_dirs: online.to_vec(),
            ..BrokerRegistrationChangeRecord::default()
        });
        self.change_registration(change)
    }

    /// Records the node's log directories that take no new partitions (KIP-1066).
    pub fn directories_cordoned(&mut self, node: i32, cordoned: &[Uuid]) -> Decision<()> {
        let broker = self.ahead().broker(node).filter(|broker| broker.cordoned_log_dirs != cordoned);
        let change = broker.map(|broker| BrokerRegistrationChangeRecord {
            broker_id: broker.id,
            broker_epoch: broker.epoch,
            cordoned_log_dirs: Some(cordoned.to_vec()),
            ..BrokerRegistrationChangeRecord::default()
        });
        self.change_registration(change)
    }

    pub(super) fn change_registration(
        &mut self,
        change: Option<BrokerRegistrationChangeRecord<'static>>,
    ) -> Decision<()> {
        let change = change.map(|record| MetadataRecord::BrokerRegistrationChangeRecord(Box::new(record)));
        self.decide(change.into_iter().collect(), ())
    }
}
