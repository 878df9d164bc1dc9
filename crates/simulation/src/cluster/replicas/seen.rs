//! Replicas and members of groups, as a run has seen them, and the rules that they obey at any time.
//!
//! Majorities of successive members intersect: each change enters a joint configuration or leaves one. A replica that was replaced does
//! not vote again. A node has one replica of a partition in service, and never an earlier one than before.

use super::{Cluster, find};
use mainstem_controller::{MetadataImage, PartitionImage};
use mainstem_replication::{Configuration, ReplicaId};
use mainstem_store::partition::Partition;
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// Turns between two looks at the replicas of a node.
const LOOK_TURNS: u64 = 4;

/// All that was seen.
pub(super) struct Seen {
    /// The newest metadata.
    image: Option<Arc<MetadataImage>>,
    groups: Vec<Group>,
    /// By node, the replicas by partition.
    owns: Vec<Vec<Own>>,
}

/// The members of a partition's group.
#[derive(Default)]
struct Group {
    /// The term of the last leader that was looked at.
    term: u64,
    /// The members that it had.
    configuration: Configuration,
    /// Replicas that the metadata do not name any more, and that vote.
    replaced: BTreeSet<ReplicaId>,
    /// Those that have ceased to vote.
    gone: BTreeSet<ReplicaId>,
    /// Replicas in place of others on the same nodes, that do not vote yet.
    replacements: BTreeSet<ReplicaId>,
}

/// The replicas of a partition that a node has had.
#[derive(Default)]
struct Own {
    /// Number of the node's start.
    start: Option<u64>,
    partition: Weak<Partition>,
    /// Partitions that another one has taken the place of since that start, while somebody has them.
    former: Vec<Weak<Partition>>,
    /// The last replica, whatever the start.
    last: Option<ReplicaId>,
}

/// These members, in ascending order.
pub(super) fn replicas(members: &[(i32, u32)]) -> Vec<ReplicaId> {
    let ids: Vec<_> = members.iter().map(|(node, incarnation)| ReplicaId::new(*node, *incarnation)).collect();
    sorted(&ids)
}

/// The same in ascending order.
pub(super) fn sorted(ids: &[ReplicaId]) -> Vec<ReplicaId> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    ids
}

/// All replicas that the metadata name, those included that are to go.
fn named(partition: &PartitionImage) -> BTreeSet<ReplicaId> {
    let of_node = |node: &i32| Some(ReplicaId::new(*node, partition.incarnation(*node)?));
    partition.replicas.iter().filter_map(of_node).collect()
}

impl Seen {
    pub(super) fn new(nodes: usize, partitions: usize) -> Seen {
        Seen {
            image: None,
            groups: (0..partitions).map(|_| Group::default()).collect(),
            owns: (0..nodes).map(|_| (0..partitions).map(|_| Own::default()).collect()).collect(),
        }
    }

    /// The newest metadata that any node has had.
    pub(super) fn image(&self) -> Option<&MetadataImage> {
        self.image.as_deref()
    }
}

impl Group {
    /// Takes note of other metadata. Returns names of what has happened.
    fn note_metadata(&mut self, before: &PartitionImage, now: &PartitionImage) -> Option<&'static str> {
        let (named_before, named_now) = (named(before), named(now));
        self.replaced.extend(named_before.difference(&named_now));
        let is_next = |id: &&ReplicaId| before.incarnation(id.node()).is_some();
        self.replacements.extend(named_now.difference(&named_before).filter(is_next));
        match (before.is_moving(), now.is_moving()) {
            (false, true) => Some("move begun"),
            (true, false) => Some("move ended"),
            _ => None,
        }
    }

    /// Takes note of the members that a leader has, of this term or a later one. Returns names of what has happened.
    ///
    /// # Panics
    /// If these members cannot follow those before.
    fn note_members(&mut self, partition: usize, term: u64, now: Configuration) -> Vec<&'static str> {
        let before = std::mem::replace(&mut self.configuration, now);
        let now = &self.configuration;
        let is_first = self.term == 0;
        self.term = term;
        let votes = |id: &ReplicaId| now.all_voters().any(|voter| voter == *id);
        let again = self.gone.iter().find(|id| votes(id));
        assert_eq!(again, None, "partition {partition}, term {term}: a replaced replica votes: {now:?}");
        if is_first {
            return Vec::new();
        }
        assert!(follows(&before, now), "partition {partition}, term {term}: {now:?} after {before:?}");
        let mut events = Vec::new();
        match (before.voters_outgoing.is_empty(), now.voters_outgoing.is_empty()) {
            (true, false) => events.push("joint members entered"),
            (false, true) => events.push("joint members left"),
            _ => {}
        }
        let was_learner = |id: &&ReplicaId| before.learners.contains(id);
        let removed = before.learners.iter().filter(|id| !now.replicas().any(|one| one == **id));
        events.extend(removed.map(|_| "learner removed"));
        events.extend(now.learners.iter().filter(|id| !was_learner(id)).map(|_| "learner added"));
        let is_done = now.voters_outgoing.is_empty();
        let done = self.replacements.extract_if(.., |id| is_done && now.voters.contains(id));
        events.extend(done.map(|_| "replica replaced"));
        events
    }

    /// Takes note of replicas that have ceased to vote.
    fn note_gone(&mut self) {
        let configuration = &self.configuration;
        let gone = self.replaced.extract_if(.., |id| !configuration.all_voters().any(|voter| voter == *id));
        self.gone.extend(gone);
    }
}

/// Returns true if members follow others by one change: the voters stay, or a joint configuration with both is entered or left.
fn follows(before: &Configuration, now: &Configuration) -> bool {
    let is_same = |some: &[ReplicaId], others: &[ReplicaId]| sorted(some) == sorted(others);
    match (before.voters_outgoing.is_empty(), now.voters_outgoing.is_empty()) {
        (true, true) | (false, true) => is_same(&now.voters, &before.voters),
        (true, false) => is_same(&now.voters_outgoing, &before.voters),
        (false, false) => {
            is_same(&now.voters, &before.voters) && is_same(&now.voters_outgoing, &before.voters_outgoing)
        }
    }
}

impl Own {
    /// Takes note of what a node has now.
    ///
    /// # Panics
    /// If it has two replicas in service, or an earlier one than before.
    fn note(&mut self, start: Option<u64>, partition: &Arc<Partition>) {
        let now = Arc::downgrade(partition);
        if self.start != start {
            (self.start, self.partition) = (start, now.clone());
            self.former.clear();
        }
        if !Weak::ptr_eq(&self.partition, &now) {
            self.former.push(std::mem::replace(&mut self.partition, now));
        }
        let own = |partition: &Partition| partition.with_replica_by_hand(|replica| replica.own());
        self.former.retain(|former| {
            let former = former.upgrade();
            let other = former.as_deref().and_then(own);
            assert_eq!(other, None, "{} is in service beside {:?}", partition.topic, own(partition));
            former.is_some()
        });
        if let Some(now) = own(partition) {
            assert!(self.last <= Some(now), "{}: {now} after {:?}", partition.topic, self.last);
            self.last = Some(now);
        }
    }
}

impl Cluster {
    /// Looks at the metadata, at the members that leaders have, and at the replicas of nodes.
    pub(super) fn look_at_replicas(&mut self) {
        self.look_at_newest_metadata();
        for partition in 0..self.replicas.partitions.len() {
            if self.may_have_changed(partition) {
                self.look_at_members(partition);
            }
        }
        for node in 0..self.world.nodes.len() {
            if self.world.is_turn_of(node, LOOK_TURNS) {
                self.look_at_owns(node);
            }
        }
    }

    fn look_at_newest_metadata(&mut self) {
        let seen = &mut self.replicas.seen;
        let known = seen.image.as_ref().map_or(-1, |image| image.next_offset());
        let images = self.world.nodes.iter().filter_map(|node| Some(node.in_service()?.0.controller.image()));
        let newest = images.max_by_key(|image| image.next_offset());
        let Some(newest) = newest.filter(|image| image.next_offset() > known) else { return };
        let before = seen.image.replace(newest.clone());
        for (group, of) in seen.groups.iter_mut().zip(&self.replicas.partitions) {
            let before = before.as_ref().and_then(|before| find(before, of));
            let (Some(before), Some(now)) = (before, find(&newest, of)) else { continue };
            group.note_metadata(before, now).into_iter().for_each(|name| self.done.add(name));
            group.note_gone();
        }
    }

    /// Returns true if members of a group may have changed since its partition was created. Each change takes two turns at least.
    fn may_have_changed(&self, partition: usize) -> bool {
        let seen = &self.replicas.seen;
        let image = seen.image().and_then(|image| find(image, &self.replicas.partitions[partition]));
        let has_moved = image.is_none_or(|image| image.group.is_some());
        has_moved || self.replicas.asked.is_some() || seen.groups[partition].term == 0
    }

    fn look_at_members(&mut self, partition: usize) {
        let Some(leader) = self.world.leader(partition).map(|leader| &self.world.nodes[leader]) else {
            return;
        };
        let Some(term) = leader.leads_settled(partition) else { return };
        let group = &mut self.replicas.seen.groups[partition];
        if term < group.term {
            return;
        }
        let looked = leader.partition(partition).and_then(|of| {
            of.with_replica_by_hand(|replica| {
                let is_new = *replica.configuration() != group.configuration;
                is_new.then(|| replica.configuration().clone())
            })
        });
        let Some(Some(configuration)) = looked else { return };
        let events = group.note_members(partition, term, configuration);
        group.note_gone();
        events.into_iter().for_each(|name| self.done.add(name));
    }

    fn look_at_owns(&mut self, node: usize) {
        let of_world = &self.world.nodes[node];
        if of_world.in_service().is_none() {
            return;
        }
        for (number, own) in self.replicas.seen.owns[node].iter_mut().enumerate() {
            if let Some(partition) = of_world.partition(number) {
                own.note(of_world.started(), &partition);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(voters: &[i32], outgoing: &[i32]) -> Configuration {
        let ids = |nodes: &[i32]| nodes.iter().map(|node| ReplicaId::new(*node, 1)).collect();
        Configuration { voters: ids(voters), voters_outgoing: ids(outgoing), ..Configuration::default() }
    }

    #[test]
    fn members_follow_others_through_joint_configurations() {
        let (three, joint, moved) = (of(&[1, 2, 3], &[]), of(&[1, 3, 4], &[1, 2, 3]), of(&[1, 3, 4], &[]));
        assert!(follows(&three, &joint) && follows(&joint, &moved));
        assert!([&three, &joint, &moved].iter().all(|one| follows(one, one)));
        assert!(!follows(&three, &moved), "majorities of both need not have a voter in common");
        assert!(!follows(&joint, &three) && !follows(&moved, &joint));
        assert!(!follows(&joint, &of(&[1, 3, 5], &[1, 2, 3])));
    }

    #[test]
    fn a_replica_that_was_replaced_does_not_vote_again() {
        let mut group = Group { term: 3, configuration: of(&[1, 2, 3], &[]), ..Group::default() };
        let two = ReplicaId::new(2, 1);
        group.replaced.insert(two);
        group.note_gone();
        assert!(group.gone.is_empty(), "it votes until its leader knows");
        group.note_members(0, 3, of(&[1, 3], &[1, 2, 3]));
        group.note_members(0, 3, of(&[1, 3], &[]));
        group.note_gone();
        assert!(group.gone.contains(&two));
        let again = std::panic::catch_unwind(move || {
            group.note_members(0, 3, of(&[1, 2, 3], &[1, 3]));
        });
        assert!(again.is_err());
    }
}
