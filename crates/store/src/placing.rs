//! Placement of partitions at a start. Each is found by its directory's name and its topic's id, in any log directory. Leftovers of
//! interrupted moves are repaired.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use mainstem_controller::{DirectoryAssignment, MetadataImage, PartitionImage, TopicImage, names};
use mainstem_log::LogError;
use mainstem_log::dir::{FoundFuture, FoundPartition, LogDir};
use mainstem_log::partition_dir::{SetAside, TopicPartition};
use mainstem_log::partition_metadata::read_topic_id;
use mainstem_log::placement::{Directories, DirectoryId, Placement, Sightings, place};
use mainstem_wire::Uuid;

use crate::error::StoreError;
use crate::log_dirs::LogDirs;
use crate::members::is_lost;

/// Ids below it are no directories: unassigned, lost, migrating (KIP-858).
const RESERVED_IDS: u128 = 100;

/// A partition by its topic's id and its number.
pub type PartitionKey = (Uuid, i32);

/// Moves between log directories that the last stop cut short: the partitions, and where they were to go.
pub type InterruptedMoves = Vec<(PartitionKey, Arc<LogDir>)>;

/// Result of the search.
#[derive(Default)]
pub struct Placed {
    /// Directories of partitions.
    pub assignments: Vec<DirectoryAssignment>,
    /// Partitions that cannot be served; why was reported.
    pub refused: HashSet<PartitionKey>,
    /// Those of the refused that are replicas of groups and lost: their log directory is not there any more.
    pub lost: Vec<PartitionKey>,
    /// Moves that were cut short: the partition, and where it was to go.
    pub moves: InterruptedMoves,
}

/// Looks through all directories. One that cannot be listed goes offline. The log says which have stray partitions.
pub fn place_all(dirs: &LogDirs, image: &MetadataImage, node: i32) -> Placed {
    let mut placing = Placing { dirs, image, node, found: HashMap::new(), placed: Placed::default() };
    for dir in dirs.data() {
        let (partitions, futures) = (dir.partitions(), dir.futures());
        match partitions.and_then(|partitions| Ok((partitions, futures?))) {
            Ok((partitions, futures)) => placing.note(dir, partitions, futures),
            Err(error) => dir.fail(&error),
        }
    }
    placing.place_topics();
    dirs.all().for_each(|dir| dir.report_strays());
    placing.placed
}

struct Placing<'a> {
    dirs: &'a LogDirs,
    image: &'a MetadataImage,
    node: i32,
    found: HashMap<PartitionKey, Found>,
    placed: Placed,
}

#[derive(Default)]
struct Found {
    sightings: Sightings,
    /// Paths of the copies, in the same order.
    copies: Vec<PathBuf>,
    /// Directories with copies of other replicas' logs.
    imports: Vec<DirectoryId>,
}

impl Placing<'_> {
    /// Notes what is in a directory; what belongs to no topic is put out of the way.
    fn note(&mut self, dir: &Arc<LogDir>, partitions: Vec<FoundPartition>, futures: Vec<FoundFuture>) {
        let mut strays = Vec::new();
        for FoundPartition { partition, path } in partitions {
            match self.key_of(dir, &partition, &path) {
                Some(key) => {
                    let found = self.found.entry(key).or_default();
                    found.sightings.originals.push(dir.directory_id());
                }
                None if &*partition.topic == names::CLUSTER_METADATA => {}
                None => strays.push(partition),
            }
        }
        if !strays.is_empty()
            && let Err(error) = dir.set_aside(&strays, SetAside::Stray, 0)
        {
            dir.fail(&error);
        }
        for FoundFuture { topic_id, partition, path, is_import } in futures {
            match topic_id.map(Uuid).filter(|id| self.is_known(*id, partition)) {
                // Of another replica's log, which takes the place of this one's: that may be out of the way already.
                Some(id) if is_import => {
                    let found = self.found.entry((id, partition)).or_default();
                    found.imports.push(dir.directory_id());
                }
                Some(id) => {
                    let found = self.found.entry((id, partition)).or_default();
                    found.sightings.copies.push(dir.directory_id());
                    found.copies.push(path);
                }
                None => remove_copy(dir, path),
            }
        }
    }

    fn is_known(&self, topic_id: Uuid, partition: i32) -> bool {
        let topic = self.image.topic_by_id(topic_id);
        let count = topic.map_or(0, |topic| topic.partitions.len());
        usize::try_from(partition).is_ok_and(|index| index < count)
    }

    /// The partition that a directory is of. Left by a deletion that a crash cut short, it may be of none: there may be
    /// a new topic of the same name and another id by now.
    fn key_of(
        &self,
        dir: &LogDir,
        partition: &TopicPartition,
        path: &std::path::Path,
    ) -> Option<PartitionKey> {
        let topic = self.image.topic(&partition.topic)?;
        let key = (topic.id, partition.partition);
        match read_topic_id(&**dir.storage(), path) {
            Ok(Some(id)) if id != topic.id.0 => None,
            // Without an id it was created right before a power cut. What cannot be read is reported when it is opened.
            _ => self.is_known(topic.id, partition.partition).then_some(key),
        }
    }

    fn place_topics(&mut self) {
        let mut offline = 0;
        for topic in self.image.topics().filter(|topic| !topic.is_attached()) {
            for (index, partition) in (0..).zip(&topic.partitions) {
                let Some(own) = partition.replicas.iter().position(|replica| *replica == self.node) else {
                    continue;
                };
                let assigned = assigned(partition, own);
                match self.place(topic, index, assigned) {
                    Ok(directory) => {
                        let directory = Uuid(directory);
                        let assignment =
                            DirectoryAssignment { topic_id: topic.id, partition: index, directory };
                        self.placed.assignments.push(assignment);
                    }
                    Err(error) => {
                        if partition.has_group() && is_lost(&error) {
                            self.placed.lost.push((topic.id, index));
                        }
                        // Thousands may be in one directory: a line is written for all of them.
                        match error {
                            StoreError::DirectoryOffline { .. } => offline += 1,
                            error => {
                                tracing::error!("{error}; until then it is offline, the others are served")
                            }
                        }
                        self.placed.refused.insert((topic.id, index));
                    }
                }
            }
        }
        if offline > 0 {
            tracing::error!(
                partitions = offline,
                "partitions that may be in a log directory that is offline are offline"
            );
        }
    }

    fn place(
        &mut self,
        topic: &TopicImage,
        index: i32,
        assigned: Option<DirectoryId>,
    ) -> Result<DirectoryId, StoreError> {
        let mut found = self.found.remove(&(topic.id, index)).unwrap_or_default();
        if found.sightings.originals.is_empty() && found.sightings.copies.is_empty() {
            let is_assigned = |import: &&DirectoryId| assigned == Some(**import);
            let import = found.imports.iter().find(is_assigned).or(found.imports.first());
            found.sightings.originals.extend(import);
        }
        let online: Vec<_> = self.dirs.online().map(|dir| dir.directory_id()).collect();
        let any_offline = self.dirs.failures().next().is_some();
        let partition = || TopicPartition::new(topic.name.as_str(), index);
        let directory = |id| Uuid(id);
        match place(assigned, &found.sightings, Directories { online: &online, any_offline }) {
            Placement::Here(id) => {
                self.resume(found, (topic.id, index), id);
                Ok(id)
            }
            Placement::Create(id) => Ok(id),
            Placement::Anywhere => Ok(self.emptiest()),
            Placement::Promote(id) => self.promote(&found, id, &partition()),
            Placement::Offline => Err(StoreError::DirectoryOffline { partition: partition() }),
            Placement::Missing => Err(StoreError::DirectoryMissing {
                partition: partition(),
                directory: assigned.map_or(Uuid::ZERO, directory),
            }),
            Placement::Twice(one, other) => {
                let path = |id| self.dirs.by_id(id).map(|dir| dir.path().to_owned()).unwrap_or_default();
                Err(StoreError::Twice { partition: partition(), one: path(one), other: path(other) })
            }
        }
    }

    /// Restarts a move that was cut short, which has left a copy beside the original.
    fn resume(&mut self, found: Found, key: PartitionKey, here: DirectoryId) {
        for (id, path) in found.sightings.copies.into_iter().zip(found.copies) {
            if let Some(dir) = self.dirs.by_id(id) {
                remove_copy(dir, path);
                if id != here {
                    self.placed.moves.push((key, dir.clone()));
                }
            }
        }
    }

    fn promote(
        &self,
        found: &Found,
        id: DirectoryId,
        partition: &TopicPartition,
    ) -> Result<DirectoryId, StoreError> {
        let dir = self.dirs.by_id(id).expect("it was found in one of them");
        let path = &found.copies[0];
        dir.promote_future(path, partition).map_err(|source| {
            dir.note_error(&source);
            let source = LogError::Io { action: "rename", path: path.clone(), source };
            StoreError::Open { partition: partition.clone(), source }
        })?;
        tracing::info!(%partition, dir = %dir.path().display(), "a move that a stop cut short at its end is done");
        Ok(id)
    }

    /// The online directory with the fewest partitions. At least the metadata's directory is online.
    fn emptiest(&self) -> DirectoryId {
        let count = |id: DirectoryId| {
            self.placed.assignments.iter().filter(|assignment| assignment.directory.0 == id).count()
        };
        let online = self.dirs.online().map(|dir| dir.directory_id());
        online.min_by_key(|id| count(*id)).unwrap_or_else(|| self.dirs.data()[0].directory_id())
    }
}

fn assigned(partition: &PartitionImage, own: usize) -> Option<DirectoryId> {
    let id = partition.directories.get(own)?.0;
    (u128::from_be_bytes(id) >= RESERVED_IDS).then_some(id)
}

fn remove_copy(dir: &LogDir, path: PathBuf) {
    if let Err(error) = dir.remove_future(&path) {
        tracing::warn!(path = %path.display(), "a copy that is not wanted could not be removed: {error}");
    }
}
