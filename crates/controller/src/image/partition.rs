//! A partition of the image, the group of its replicas, and the records that make and change both.

use std::borrow::Cow;

use mainstem_wire::messages::partition_change_record::PartitionChangeRecord;
use mainstem_wire::messages::partition_record::PartitionRecord;
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{UnknownTaggedField, Uuid};

use super::{group_field, tagged_field};
use crate::error::Inconsistency;

/// The incarnation of the replicas with which a partition is created.
pub(super) const FIRST_INCARNATION: u32 = 1;

/// A partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionImage {
    /// The node that leads it; -1 is none.
    pub leader: i32,
    /// Rises with each election, and with each start after an unclean stop.
    pub leader_epoch: i32,
    /// Rises with each change.
    pub partition_epoch: i32,
    /// The nodes that hold it, the preferred leader first. While replicas move: those that are wanted, in the order that is wanted, and
    /// then those of `removing`.
    pub replicas: Vec<i32>,
    /// The nodes that are in sync.
    pub isr: Vec<i32>,
    /// The nodes of `replicas` that a move adds (KIP-455).
    pub adding: Vec<i32>,
    /// The nodes of `replicas` that a move removes (KIP-455).
    pub removing: Vec<i32>,
    /// The log directory on each of `replicas`.
    pub directories: Vec<Uuid>,
    /// The nodes that are not in sync but have every committed record: they may lead (KIP-966).
    pub eligible_leader_replicas: Vec<i32>,
    /// The nodes that were in sync or eligible last, when none is any more (KIP-966).
    pub last_known_elr: Vec<i32>,
    /// The members of its group. `None` for as long as they have never changed: then each replica has incarnation 1, and the version is 0.
    pub group: Option<GroupImage>,
}

/// The group of a partition's replicas. The metadata say which members are wanted, and the group's leader makes it so and reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupImage {
    /// The incarnation of each of the partition's replicas, in their order.
    pub incarnations: Vec<u32>,
    /// The highest incarnation that was ever given in this partition. None is given twice.
    pub last_incarnation: u32,
    /// Rises by one with each change of what is wanted.
    pub version: u32,
    /// The leader epoch of the last leader that reported that the group has exactly the wanted members.
    pub settled_epoch: i32,
    /// The replicas before the move under way, in their order; empty if none is under way.
    pub original: Vec<i32>,
}

impl GroupImage {
    /// The group of so many replicas before the first change of its members.
    pub(crate) fn first(replicas: usize) -> GroupImage {
        GroupImage {
            incarnations: vec![FIRST_INCARNATION; replicas],
            last_incarnation: FIRST_INCARNATION,
            version: 0,
            settled_epoch: 0,
            original: Vec::new(),
        }
    }

    /// Gives an incarnation that no replica of the partition has had; `None` if there is none left.
    pub(crate) fn next_incarnation(&mut self) -> Option<u32> {
        self.last_incarnation = self.last_incarnation.checked_add(1)?;
        Some(self.last_incarnation)
    }

    /// Notes that other members are wanted; `None` if the version cannot rise.
    pub(crate) fn raise_version(&mut self) -> Option<()> {
        self.version = self.version.checked_add(1)?;
        Some(())
    }
}

/// Reading.
impl PartitionImage {
    /// Returns true if the replicas are a group, which elects its leader in a cluster. A group stays one when it has one replica left.
    pub fn has_group(&self) -> bool {
        self.replicas.len() > 1 || self.group.is_some()
    }

    /// The incarnation of the replica of a node; `None` if it has none.
    pub fn incarnation(&self, node: i32) -> Option<u32> {
        let at = self.position(node)?;
        match &self.group {
            Some(group) => group.incarnations.get(at).copied(),
            None => Some(FIRST_INCARNATION),
        }
    }

    /// The members that the group is to have: nodes and incarnations of the replicas that stay, in their order.
    pub fn wanted(&self) -> Vec<(i32, u32)> {
        let member = |node: i32| Some((node, self.incarnation(node)?));
        self.target().into_iter().filter_map(member).collect()
    }

    /// The version of what is wanted.
    pub fn wanted_version(&self) -> u32 {
        self.group.as_ref().map_or(0, |group| group.version)
    }

    /// The leader epoch of the last leader that reported that the group has exactly the wanted members.
    pub fn settled_epoch(&self) -> i32 {
        self.group.as_ref().map_or(0, |group| group.settled_epoch)
    }

    /// Returns true while a move of replicas is under way.
    pub fn is_moving(&self) -> bool {
        !self.original().is_empty()
    }

    /// The number of replicas that can be counted on: while replicas move, those before or those after, whichever are fewer.
    pub fn replication_factor(&self) -> usize {
        let after = self.replicas.len() - self.removing.len();
        match self.original().len() {
            0 => after,
            before => after.min(before),
        }
    }

    /// The replica that is to lead: the first that no move adds or removes. A move that replaces all has none.
    pub fn preferred_leader(&self) -> Option<i32> {
        let moves = |node: &i32| self.adding.contains(node) || self.removing.contains(node);
        self.replicas.iter().copied().find(|node| !moves(node))
    }

    /// The replicas that stay, in the order that is wanted.
    pub(crate) fn target(&self) -> Vec<i32> {
        self.replicas.iter().copied().filter(|node| !self.removing.contains(node)).collect()
    }

    /// The replicas before the move under way; none if none is.
    pub(crate) fn original(&self) -> &[i32] {
        self.group.as_ref().map_or(&[], |group| &group.original)
    }

    /// The place of a node among the replicas.
    pub(crate) fn position(&self, node: i32) -> Option<usize> {
        self.replicas.iter().position(|known| *known == node)
    }

    /// The log directory of a node's replica; zero if it is not known.
    pub(crate) fn directory(&self, node: i32) -> Uuid {
        let at = self.position(node);
        at.and_then(|at| self.directories.get(at)).copied().unwrap_or_default()
    }

    /// The partition with these of its replicas, in this order. Each keeps its directory and incarnation.
    pub(crate) fn with_replicas(&self, replicas: Vec<i32>) -> PartitionImage {
        let group = self.group.as_ref().map(|group| GroupImage {
            incarnations: replicas.iter().filter_map(|node| self.incarnation(*node)).collect(),
            ..group.clone()
        });
        let directories = replicas.iter().map(|node| self.directory(*node)).collect();
        PartitionImage { replicas, directories, group, ..self.clone() }
    }
}

/// Records.
impl PartitionImage {
    /// The partition that a record makes.
    ///
    /// # Errors
    /// The defect of its group.
    pub(super) fn of_record(record: &PartitionRecord<'_>) -> Result<PartitionImage, Inconsistency> {
        let refusal = group_refusal(record.topic_id, record.partition_id);
        let image = PartitionImage {
            leader: record.leader,
            leader_epoch: record.leader_epoch,
            partition_epoch: record.partition_epoch,
            replicas: record.replicas.clone(),
            isr: record.isr.clone(),
            adding: record.adding_replicas.clone(),
            removing: record.removing_replicas.clone(),
            directories: record.directories.clone(),
            eligible_leader_replicas: record.eligible_leader_replicas.clone().unwrap_or_default(),
            last_known_elr: record.last_known_elr.clone().unwrap_or_default(),
            group: group_field::find(&record.unknown_tagged_fields).map_err(refusal)?,
        };
        image.check_incarnations().map_err(refusal)?;
        Ok(image)
    }

    /// The record that makes the partition.
    pub(crate) fn record(&self, topic_id: Uuid, partition_id: i32) -> MetadataRecord<'static> {
        // A new field needs its place here.
        let PartitionImage {
            leader,
            leader_epoch,
            partition_epoch,
            replicas,
            isr,
            adding,
            removing,
            directories,
            eligible_leader_replicas,
            last_known_elr,
            group,
        } = self;
        // Kafka leaves out a list that is empty.
        let some_of = |replicas: &Vec<i32>| (!replicas.is_empty()).then(|| replicas.clone());
        MetadataRecord::PartitionRecord(Box::new(PartitionRecord {
            partition_id,
            topic_id,
            replicas: replicas.clone(),
            isr: isr.clone(),
            removing_replicas: removing.clone(),
            adding_replicas: adding.clone(),
            leader: *leader,
            leader_epoch: *leader_epoch,
            partition_epoch: *partition_epoch,
            directories: directories.clone(),
            eligible_leader_replicas: some_of(eligible_leader_replicas),
            last_known_elr: some_of(last_known_elr),
            unknown_tagged_fields: group.iter().map(tagged_field).collect(),
            ..PartitionRecord::default()
        }))
    }

    /// The partition that a record makes in place of this one: the leader of a cluster has reported, or a move has ended. Kafka's own writer
    /// has no such record for an existing partition. `None` if the record is not newer.
    ///
    /// # Errors
    /// The defect of its group.
    pub(super) fn replaced(
        &self,
        record: &PartitionRecord<'_>,
    ) -> Result<Option<PartitionImage>, Inconsistency> {
        let image = PartitionImage::of_record(record)?;
        let has_known_replicas = image.replicas == self.replicas || image.group.is_some();
        let is_newer = image.partition_epoch > self.partition_epoch
            && image.leader_epoch >= self.leader_epoch
            && has_known_replicas;
        if !is_newer {
            return Ok(None);
        }
        image.check_follows(self).map_err(group_refusal(record.topic_id, record.partition_id))?;
        Ok(Some(image))
    }

    /// The partition after a change.
    ///
    /// # Errors
    /// When an epoch cannot rise, or with what is wrong with the group.
    pub(super) fn changed(
        &self,
        record: &PartitionChangeRecord<'_>,
    ) -> Result<PartitionImage, Inconsistency> {
        /// The record leaves the leader, and so the leader epoch, as it is.
        const NO_LEADER_CHANGE: i32 = -2;
        let raised = |epoch: i32| epoch.checked_add(1).ok_or(Inconsistency::EpochOverflow);
        let refusal = group_refusal(record.topic_id, record.partition_id);
        let mut image = self.clone();
        image.partition_epoch = raised(self.partition_epoch)?;
        if record.leader != NO_LEADER_CHANGE {
            image.leader_epoch = raised(self.leader_epoch)?;
            image.leader = record.leader;
        }
        let lists = [
            (&mut image.isr, &record.isr),
            (&mut image.replicas, &record.replicas),
            (&mut image.adding, &record.adding_replicas),
            (&mut image.removing, &record.removing_replicas),
            (&mut image.eligible_leader_replicas, &record.eligible_leader_replicas),
            (&mut image.last_known_elr, &record.last_known_elr),
        ];
        for (field, new) in lists {
            if let Some(new) = new {
                field.clone_from(new);
            }
        }
        if let Some(directories) = &record.directories {
            image.directories.clone_from(directories);
        }
        let group = group_field::find(&record.unknown_tagged_fields).map_err(refusal)?;
        if group.is_none() && self.group.is_some() && image.replicas != self.replicas {
            return Err(refusal("the replicas change, and their incarnations are not named"));
        }
        image.group = group.or(image.group);
        image.check_incarnations().and_then(|()| image.check_follows(self)).map_err(refusal)?;
        Ok(image)
    }

    /// The record of the change to `after`, which has the same leader. It names what differs.
    pub(crate) fn change_to(
        &self,
        after: &PartitionImage,
        topic_id: Uuid,
        partition_id: i32,
    ) -> MetadataRecord<'static> {
        // A new field needs its place here.
        let PartitionImage {
            leader,
            leader_epoch,
            partition_epoch: _,
            replicas,
            isr,
            adding,
            removing,
            directories,
            eligible_leader_replicas,
            last_known_elr,
            group,
        } = after;
        assert_eq!((self.leader, self.leader_epoch), (*leader, *leader_epoch), "a change of the leader");
        let differing = |old: &Vec<i32>, new: &Vec<i32>| (old != new).then(|| new.clone());
        let names_group = self.group != *group || self.replicas != *replicas;
        MetadataRecord::PartitionChangeRecord(Box::new(PartitionChangeRecord {
            partition_id,
            topic_id,
            isr: differing(&self.isr, isr),
            replicas: differing(&self.replicas, replicas),
            removing_replicas: differing(&self.removing, removing),
            adding_replicas: differing(&self.adding, adding),
            directories: (self.directories != *directories).then(|| directories.clone()),
            eligible_leader_replicas: differing(&self.eligible_leader_replicas, eligible_leader_replicas),
            last_known_elr: differing(&self.last_known_elr, last_known_elr),
            unknown_tagged_fields: group.iter().filter(|_| names_group).map(tagged_field).collect(),
            ..PartitionChangeRecord::default()
        }))
    }

    /// Checks that each replica has one incarnation, and one that was given.
    ///
    /// # Errors
    /// The defect.
    fn check_incarnations(&self) -> Result<(), &'static str> {
        let Some(group) = &self.group else { return Ok(()) };
        if group.incarnations.len() != self.replicas.len() {
            return Err("it does not have one incarnation for each replica");
        }
        let given = FIRST_INCARNATION..=group.last_incarnation;
        match group.incarnations.iter().all(|incarnation| given.contains(incarnation)) {
            true => Ok(()),
            false => Err("it has an incarnation that was never given"),
        }
    }

    /// Checks that the group does not go back to an earlier state: an incarnation would be given twice, or a report would fit that is
    /// about something else.
    ///
    /// # Errors
    /// The defect.
    fn check_follows(&self, before: &PartitionImage) -> Result<(), &'static str> {
        let Some(before) = &before.group else { return Ok(()) };
        let rises = |group: &GroupImage| {
            group.last_incarnation >= before.last_incarnation
                && group.version >= before.version
                && group.settled_epoch >= before.settled_epoch
        };
        match &self.group {
            Some(group) if rises(group) => Ok(()),
            Some(_) => Err("it goes back"),
            None => Err("it is gone"),
        }
    }
}

/// The contradiction in the group of a partition.
fn group_refusal(id: Uuid, partition: i32) -> impl Fn(&'static str) -> Inconsistency + Copy {
    move |what| Inconsistency::Group { id, partition, what }
}

fn tagged_field(group: &GroupImage) -> UnknownTaggedField<'static> {
    UnknownTaggedField { tag: tagged_field::TAG, data: Cow::Owned(group_field::encode(group)) }
}
