//! Replicas that a start finds on its disks and that the metadata do not know any more, or not as they are: those of a lost disk that is
//! back, and those that have moved away while the node was down.

use std::sync::Arc;

use mainstem_controller::MetadataImage;
use mainstem_log::dir::LogDir;
use mainstem_log::partition_dir::{SetAside, TopicPartition};
use mainstem_replication::GroupId;
use mainstem_wire::Uuid;

use super::following::{Task, set_aside, task};
use crate::partition::OwnReplica;
use crate::store::Store;

/// Sets the files of such replicas aside, before partitions are looked for. Those stay that a later leader than the metadata know of may
/// count on. Blocks on the disk.
pub fn set_aside_at_start(store: &Store, image: &MetadataImage) {
    for dir in store.dirs.online() {
        for (group, own) in known_replicas(store, dir) {
            let topic = image.topic_by_id(Uuid(group.topic_id));
            let partition = topic.zip(usize::try_from(group.partition).ok());
            let Some((topic, partition)) =
                partition.and_then(|(topic, at)| Some((topic, topic.partitions.get(at)?)))
            else {
                continue;
            };
            let name = TopicPartition::new(topic.name.as_str(), group.partition);
            let why = match task(partition, store.node, Some(own.id), false) {
                Task::Replace => SetAside::Stray,
                Task::Remove { term_max } if !own.is_member || own.term <= term_max => SetAside::Delete,
                _ => continue,
            };
            let (id, path) = (own.id, dir.path().display());
            match (set_aside(store, dir, (&name, group), (why, 0)), why) {
                (Ok(()), SetAside::Delete) => {
                    tracing::info!("{name}: replica {id} is removed, since the partition has moved");
                }
                (Ok(()), SetAside::Stray) => tracing::warn!(
                    "{name}: replica {id} was replaced while it was away; its files in {path} are set aside as stray"
                ),
                (Err(error), _) => tracing::error!("{error}"),
            }
        }
    }
}

/// The replicas that the journal of a directory knows.
fn known_replicas(store: &Store, dir: &Arc<LogDir>) -> Vec<(GroupId, OwnReplica)> {
    let Some(journal) = store.peers.as_ref().and_then(|peers| peers.journals.known(dir)) else {
        return Vec::new();
    };
    let journal = journal.lock();
    let of = |(group, state): (GroupId, &mainstem_replication::journal::GroupState)| {
        let id = state.own?;
        let is_member = state.configuration.replicas().any(|replica| replica == id);
        Some((group, OwnReplica { id, term: state.vote.term, is_member }))
    };
    journal.groups().filter_map(of).collect()
}

/// The log directory with a replica that the metadata do not want, and that stays.
pub(crate) fn held_in(store: &Store, group: GroupId) -> Option<&Arc<LogDir>> {
    let journals = &store.peers.as_ref()?.journals;
    store.dirs.online().find(|dir| {
        let journal = journals.known(dir);
        journal.is_some_and(|journal| journal.lock().group(group).is_some_and(|state| state.own.is_some()))
    })
}
