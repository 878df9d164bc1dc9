//! Replicas that a start finds on its disks and that the metadata do not know any more, or not as they are: those of a lost disk that is
//! back, and those that have moved away while the node was down.

use std::sync::Arc;

use mainstem_controller::{MetadataImage, TopicImage};
use mainstem_log::dir::{FoundPartition, LogDir};
use mainstem_log::partition_dir::{SetAside, TopicPartition};
use mainstem_log::partition_metadata::read_topic_id;
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
        set_unnoted_aside(store, dir, image);
    }
}

/// Sets directories of replicas aside that were never noted in the journal, and are not wanted any more: a kill came before that.
fn set_unnoted_aside(store: &Store, dir: &Arc<LogDir>, image: &MetadataImage) {
    // One that cannot be listed goes offline when partitions are looked for.
    for found in dir.partitions().unwrap_or_default() {
        if let Some(topic) = image.topic(&found.partition.topic)
            && is_unwanted(store.node, topic, dir, &found)
            && !is_noted(store, dir, topic.id, found.partition.partition)
        {
            set_one_aside(dir, &found);
        }
    }
}

/// Returns true if this is a directory of a partition whose members have changed, and the node has no replica of it.
fn is_unwanted(node: i32, topic: &TopicImage, dir: &LogDir, found: &FoundPartition) -> bool {
    let index = usize::try_from(found.partition.partition).ok();
    let partition = index.and_then(|index| topic.partitions.get(index));
    let has_moved = partition.is_some_and(|of| of.group.is_some() && of.incarnation(node).is_none());
    // A directory whose id cannot be read stays.
    has_moved
        && read_topic_id(&**dir.storage(), &found.path).is_ok_and(|id| id.is_none_or(|id| id == topic.id.0))
}

fn is_noted(store: &Store, dir: &Arc<LogDir>, topic_id: Uuid, partition: i32) -> bool {
    let journal = store.peers.as_ref().and_then(|peers| peers.journals.known(dir));
    journal.is_some_and(|journal| journal.lock().group(GroupId { topic_id: topic_id.0, partition }).is_some())
}

fn set_one_aside(dir: &LogDir, FoundPartition { partition, path }: &FoundPartition) {
    let files = dir.storage().list(path);
    let is_empty =
        files.is_ok_and(|files| files.iter().all(|file| !file.name.ends_with(".log") || file.len == 0));
    let why = if is_empty { SetAside::Delete } else { SetAside::Stray };
    match (dir.set_aside(std::slice::from_ref(partition), why, 0), why) {
        (Ok(()), SetAside::Delete) => {
            tracing::info!(
                "{partition}: the directory of a replica that never was one is removed, since the partition has moved"
            );
        }
        (Ok(()), SetAside::Stray) => tracing::warn!(
            "{partition}: the journal in {} does not know this replica, and the partition has moved; its files are set aside as stray",
            dir.path().display()
        ),
        (Err(error), _) => tracing::error!("{partition}: its directory cannot be set aside: {error}"),
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

#[cfg(test)]
mod tests {
    use mainstem_controller::{GroupImage, PartitionImage};
    use mainstem_log::storage::write_all_at;

    use super::*;
    use crate::testing;

    fn topic(name: &str, replicas: &[i32], has_moved: bool) -> TopicImage {
        let partition = PartitionImage {
            leader: 2,
            leader_epoch: 7,
            partition_epoch: 3,
            replicas: replicas.to_vec(),
            isr: replicas.to_vec(),
            adding: Vec::new(),
            removing: Vec::new(),
            directories: Vec::new(),
            eligible_leader_replicas: Vec::new(),
            last_known_elr: Vec::new(),
            group: has_moved.then(|| GroupImage {
                incarnations: vec![1; replicas.len()],
                last_incarnation: 1,
                version: 1,
                settled_epoch: 7,
                original: Vec::new(),
            }),
        };
        TopicImage { name: name.into(), id: Uuid::from_u128(7), partitions: vec![partition] }
    }

    #[test]
    fn directories_are_set_aside_that_a_kill_left_of_a_replica_that_is_not_wanted() {
        let home = tempfile::tempdir().expect("a directory");
        let store = testing::store(home.path());
        let dir = store.dirs.online().next().expect("one").clone();
        let names = || {
            let mut names: Vec<_> =
                dir.storage().list(dir.path()).expect("it is there").into_iter().collect();
            names.retain(|entry| entry.is_dir);
            names.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };
        let try_with = |topic: &TopicImage, bytes: &[u8]| {
            let path = dir.path().join(format!("{}-0", topic.name));
            dir.storage().create_dir(&path).expect("it is new");
            let log = path.join("00000000000000000000.log");
            let log = dir.storage().open(&log, mainstem_log::storage::OpenMode::Create).expect("it is new");
            write_all_at(&*log, bytes, 0).expect("a write");
            let found = dir.partitions().expect("it is there");
            let found = found.iter().find(|found| *found.partition.topic == topic.name).expect("it is there");
            if is_unwanted(store.node, topic, &dir, found) {
                set_one_aside(&dir, found);
            }
            names().into_iter().find(|name| name.starts_with(&topic.name)).expect("it is under some name")
        };
        let node = store.node;
        assert!(try_with(&topic("a", &[node + 1], true), b"").ends_with("-delete"));
        assert!(try_with(&topic("b", &[node + 1], true), b"x").ends_with("-stray"), "somebody may want them");
        assert_eq!(try_with(&topic("c", &[node + 1], false), b""), "c-0", "no replica was ever elsewhere");
        assert_eq!(try_with(&topic("d", &[node], true), b""), "d-0", "it is wanted");
        assert!(!is_noted(&store, &dir, Uuid::from_u128(7), 0));
        drop(dir);
    }
}
