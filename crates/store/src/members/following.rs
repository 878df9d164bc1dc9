//! Replicas of this node that come and go as the metadata say.

use std::sync::Arc;

use mainstem_controller::{PartitionImage, TopicImage};
use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::{SetAside, TopicPartition};
use mainstem_records::LeaderEpoch;
use mainstem_replication::{GroupId, ReplicaId, WantedMembers};

use crate::error::StoreError;
use crate::opening::open_one;
use crate::partition::Partition;
use crate::settings::TopicSettings;
use crate::store::Store;
use crate::topics::Topic;

/// The difference between what this node has of a partition and what the metadata say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Nothing,
    /// The members that the group is to have are known.
    Want,
    /// A replica comes to this node.
    Open,
    /// The replica is another one from now on: what is here is of a lost disk that has come back, or of an earlier time.
    Replace,
    /// The replica is not wanted any more. It goes if it has heard of no later term than this, or knows that it has left.
    Remove {
        term_max: u64,
    },
}

/// The task for a partition, of which this node has a replica, or not. `can_open`: it has none, and could.
pub(super) fn task(image: &PartitionImage, node: i32, own: Option<ReplicaId>, can_open: bool) -> Task {
    let Some(group) = &image.group else { return Task::Nothing };
    match (image.incarnation(node), own) {
        (Some(wanted), Some(own)) if own.incarnation() == wanted => Task::Want,
        (Some(wanted), Some(own)) if own.incarnation() < wanted => Task::Replace,
        (Some(_), None) if can_open => Task::Open,
        // These metadata do not know a later incarnation yet.
        (None, Some(own)) if own.incarnation() <= group.last_incarnation => {
            Task::Remove { term_max: u64::try_from(group.settled_epoch).unwrap_or(0) }
        }
        _ => Task::Nothing,
    }
}

/// The replicas that a partition is to have.
pub(crate) fn wanted(image: &PartitionImage) -> Vec<ReplicaId> {
    image.wanted().into_iter().map(|(node, incarnation)| ReplicaId::new(node, incarnation)).collect()
}

/// The result of an attempt to follow the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// Nothing has to be tried again.
    pub is_done: bool,
    /// Replicas have come or gone.
    pub has_changed: bool,
}

/// Brings the replicas of a topic on this node to what the metadata say. Blocks on the disk.
pub fn follow(store: &Arc<Store>, image: &TopicImage, settings: &Arc<TopicSettings>) -> Following {
    let Some(topic) = store.topics.by_id(&image.id).filter(|_| store.peers.is_some()) else {
        return Following { is_done: true, has_changed: false };
    };
    let mut is_done = true;
    let mut partitions = topic.partitions.clone();
    for (partition, of) in partitions.iter_mut().zip(&image.partitions) {
        match follow_one(store, (image, of), partition, settings) {
            Ok(Followed::As) => {}
            Ok(Followed::By(other)) => *partition = other,
            Ok(Followed::NotYet) => is_done = false,
            Err(error) => {
                if store.members.may_say((image.id, partition.index), store.clock.instant()) {
                    tracing::error!("{error}; it is tried again");
                }
                is_done = false;
            }
        }
    }
    let has_changed = partitions.iter().zip(&topic.partitions).any(|(new, old)| !Arc::ptr_eq(new, old));
    if has_changed {
        store.topics.put(Arc::new(Topic { name: topic.name.clone(), id: topic.id, partitions }));
    }
    Following { is_done, has_changed }
}

/// The result for one partition.
enum Followed {
    /// It stays as it is.
    As,
    /// Another one takes its place.
    By(Arc<Partition>),
    /// Its replica cannot go yet: a later leader than the metadata know of may count on it.
    NotYet,
}

/// Brings the replica of one partition to what the metadata say.
fn follow_one(
    store: &Arc<Store>,
    (topic, image): (&TopicImage, &PartitionImage),
    partition: &Arc<Partition>,
    settings: &Arc<TopicSettings>,
) -> Result<Followed, StoreError> {
    // Without the partition's lock, which may be held while a disk is waited for.
    let own = partition.replica_id().filter(|_| !partition.is_offline());
    let key = (topic.id, partition.index);
    let is_replaced =
        || image.incarnation(store.node).is_some_and(|own| store.members.losses.may_open(key, own));
    let is_offline = partition.is_offline() && is_replaced();
    let can_open = is_offline || (own.is_none() && partition.is_elsewhere());
    let name = TopicPartition::new(partition.topic.clone(), partition.index);
    match task(image, store.node, own, can_open) {
        Task::Nothing => Ok(Followed::As),
        Task::Want => {
            partition.want_members(WantedMembers::of_voters(&wanted(image)), image.wanted_version());
            store.members.look_after(store, partition);
            Ok(Followed::As)
        }
        Task::Open => {
            if is_offline {
                set_leftovers_aside(
                    store,
                    &name,
                    GroupId { topic_id: topic.id.0, partition: partition.index },
                )?;
            }
            let opened = open_one(store, topic, partition.index, settings)?;
            store.members.losses.forget(key);
            Ok(Followed::By(opened))
        }
        Task::Replace => {
            remove(store, partition, &name, (None, SetAside::Stray))?;
            open_one(store, topic, partition.index, settings).map(Followed::By)
        }
        Task::Remove { term_max } => {
            if !remove(store, partition, &name, (Some(term_max), SetAside::Delete))? {
                // Where it leads, it hands over to one of those that are wanted.
                partition.want_members(WantedMembers::of_voters(&wanted(image)), image.wanted_version());
                store.members.look_after(store, partition);
                return Ok(Followed::NotYet);
            }
            let epoch = LeaderEpoch::new(image.leader_epoch);
            let elsewhere =
                Partition::elsewhere(partition.topic.clone(), partition.index, settings.clone(), epoch);
            Ok(Followed::By(elsewhere))
        }
    }
}

/// Takes a replica out of service and sets its files aside. Returns false where it stays.
fn remove(
    store: &Store,
    partition: &Partition,
    name: &TopicPartition,
    (term_max, why): (Option<u64>, SetAside),
) -> Result<bool, StoreError> {
    let id = partition.replica_id();
    let delay_ms = partition.settings().log.file_delete_delay_ms;
    let Some((dir, group)) = partition.leave_for_good(term_max) else { return Ok(false) };
    set_aside(store, &dir, (name, group), (why, store.clock.mono_ms().saturating_add(delay_ms)))?;
    let replica = id.map(|id| id.to_string()).unwrap_or_default();
    match why {
        SetAside::Delete => {
            tracing::info!("{name}: replica {replica} is removed, since the partition has moved")
        }
        SetAside::Stray => tracing::warn!(
            "{name}: replica {replica} was replaced; its files in {} are set aside as stray",
            dir.path().display()
        ),
    }
    Ok(true)
}

/// Sets aside what is left of a lost replica, wherever it is. Blocks on the disk.
fn set_leftovers_aside(store: &Store, name: &TopicPartition, group: GroupId) -> Result<(), StoreError> {
    store.dirs.online().try_for_each(|dir| set_aside(store, dir, (name, group), (SetAside::Stray, 0)))
}

/// Sets the files of a replica aside, and has the journal forget its group. Blocks on the disk.
pub(crate) fn set_aside(
    store: &Store,
    dir: &Arc<LogDir>,
    (name, group): (&TopicPartition, GroupId),
    (why, due_ms): (SetAside, u64),
) -> Result<(), StoreError> {
    let failed = |source| StoreError::SetAside { partition: name.clone(), source };
    // The files first: without its journal a log would be refused.
    dir.set_aside(std::slice::from_ref(name), why, due_ms).map_err(failed)?;
    match &store.peers {
        Some(peers) if peers.journals.known(dir).is_some() => peers.journals.forget_group(dir, group),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use mainstem_controller::GroupImage;

    use super::*;

    fn image(replicas: &[i32], incarnations: &[u32], last_incarnation: u32) -> PartitionImage {
        let group = GroupImage {
            incarnations: incarnations.to_vec(),
            last_incarnation,
            version: 1,
            settled_epoch: 7,
            original: Vec::new(),
        };
        PartitionImage {
            leader: 1,
            leader_epoch: 7,
            partition_epoch: 3,
            replicas: replicas.to_vec(),
            isr: Vec::new(),
            adding: Vec::new(),
            removing: Vec::new(),
            directories: Vec::new(),
            eligible_leader_replicas: Vec::new(),
            last_known_elr: Vec::new(),
            group: Some(group),
        }
    }

    #[test]
    fn a_node_does_what_the_metadata_say_and_nothing_that_they_do_not_know() {
        let own = |incarnation| Some(ReplicaId::new(4, incarnation));
        let here = image(&[1, 2, 4], &[1, 1, 2], 2);
        assert_eq!(task(&here, 4, own(2), false), Task::Want);
        assert_eq!(task(&here, 4, own(1), false), Task::Replace);
        assert_eq!(task(&here, 4, own(3), false), Task::Nothing, "these metadata are old");
        assert_eq!(task(&here, 4, None, true), Task::Open);
        assert_eq!(task(&here, 4, None, false), Task::Nothing, "its directory has failed");
        let gone = image(&[1, 2, 3], &[1, 1, 1], 2);
        assert_eq!(task(&gone, 4, own(2), false), Task::Remove { term_max: 7 });
        assert_eq!(task(&gone, 4, own(3), false), Task::Nothing, "these metadata are old");
        assert_eq!(task(&gone, 4, None, true), Task::Nothing);
        let never_moved = PartitionImage { group: None, ..gone };
        assert_eq!(task(&never_moved, 4, own(1), false), Task::Nothing, "it was never anywhere else");
    }
}
