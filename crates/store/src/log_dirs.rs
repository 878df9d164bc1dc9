//! The log directories of this node: opened at start, and what is reported of those that fail.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstem_config::BrokerConfig;
use mainstem_controller::names;
use mainstem_log::descriptors::{
    DescriptorCache, descriptor_budget, partitions_within, synced_together, unsynced_within,
};
use mainstem_log::dir::{DirFailure, LogDir, LogDirOptions, NodeIdentity, OnOffline, OpenDirError};
use mainstem_log::flusher::FlushOptions;
use mainstem_log::meta_properties::MetaProperties;
use mainstem_log::partition_dir::TopicPartition;
use mainstem_log::placement::DirectoryId;
use mainstem_log::storage::{RealStorage, Storage};
use mainstem_log::{ProducerBudget, RecoveryWatch};
use mainstem_queue::Directory;
#[cfg(feature = "sim")]
use mainstem_runtime::sync;

use crate::machine::Machine;
use crate::mounts::{self, NotMounted, mount_points};

/// Why the log directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogDirsError {
    /// One cannot be used, and the broker does not start without it.
    #[error(transparent)]
    Open(#[from] OpenDirError),
    /// A path has no absolute form.
    #[error("log directory {path:?}: {source}; name a directory (log.dirs)")]
    Path {
        /// As configured.
        path: String,
        /// The system's answer.
        source: io::Error,
    },
    /// One is something else, which others write.
    #[error("{} {reason}", path.display())]
    OfAnotherKind {
        /// The directory.
        path: PathBuf,
        /// Its kind, and what to do.
        reason: String,
    },
    /// None can be opened.
    #[error(
        "none of the log directories can be opened ({0}); repair one of them, or choose others (log.dirs)"
    )]
    None(String),
    /// One is a copy of the other.
    #[error(
        "log directories {} and {} have the same directory.id in meta.properties: one is a copy of the other; take the \
         copy out of log.dirs, or remove its meta.properties",
        one.display(), other.display()
    )]
    Same {
        /// The first of them.
        one: PathBuf,
        /// The other one.
        other: PathBuf,
    },
    /// They are not those of the cluster that was expected.
    #[error(
        "cluster {expected} was expected, and {}; mount its disks, correct log.dirs or the data directory, or do not \
         expect it (--expect-cluster)",
        found.as_ref().map_or("no log directory has a cluster: this would begin a new one".to_owned(), |found| {
            format!("the log directories are those of cluster {found}")
        })
    )]
    OtherCluster {
        /// The id that was expected.
        expected: String,
        /// The id that was found.
        found: Option<String>,
    },
    /// A start with an empty metadata log would set aside the partitions of all topics.
    #[error(
        "metadata.log.dir is {}, but the metadata log is in {}; set it to that directory",
        named.display(), found.display()
    )]
    MetadataElsewhere {
        /// The configured directory.
        named: PathBuf,
        /// The directory in which it was found.
        found: PathBuf,
    },
    /// It cannot be known which metadata counts.
    #[error(
        "the metadata log is in {} and in {}; set metadata.log.dir to the directory that counts",
        one.display(), other.display()
    )]
    MetadataTwice {
        /// One of the directories.
        one: PathBuf,
        /// Another one.
        other: PathBuf,
    },
    /// The disk of one is not mounted: the directory would be taken for an empty one.
    #[error(
        "log directories of this node were on a disk that was mounted at {}, and nothing is mounted there now, as \
         this process sees it; mount it, then start again. Where it is gone for good, remove its line from {}: what was on it is copied from other nodes",
        .0.mount_point.display(), .0.file.display()
    )]
    NotMounted(NotMounted),
    /// There are partitions, and no metadata says of which topics.
    #[error(
        "log directory {} has partitions, and none of the log directories has the metadata log, \
         __cluster_metadata-0; mount the disk that has it, or add its directory to log.dirs",
        path.display()
    )]
    MetadataMissing {
        /// One with partitions.
        path: PathBuf,
    },
}

/// Options of opening log directories beside the configuration.
#[derive(Clone)]
pub struct LogDirsOptions {
    /// The limit of open descriptors.
    pub descriptors: u64,
    /// The time now, in monotonic milliseconds: files of deleted topics are due for removal from then on.
    pub mono_ms: u64,
    /// Called when a directory goes offline.
    pub on_offline: OnOffline,
    /// Watches the recovery of logs.
    pub recovery: Arc<RecoveryWatch>,
    /// The id of the cluster that has to be there.
    pub expect_cluster: Option<String>,
    /// Another machine than this one.
    pub machine: Option<Machine>,
}

/// The directories, in the order of `log.dirs`.
pub struct LogDirs {
    /// For partitions.
    data: Vec<Arc<LogDir>>,
    /// For partitions, if they could have been opened.
    unopened: Vec<DirFailure>,
    /// With the metadata log; one of those for partitions unless `metadata.log.dir` names another one.
    metadata: Arc<LogDir>,
    /// As `log.dirs` names them, by what they are.
    names: Vec<(String, PathBuf)>,
    /// None of them had a cluster's id.
    is_new_cluster: bool,
    /// The limit of open descriptors.
    descriptors: u64,
    /// The directories are those of this machine.
    has_mounts: bool,
}

impl LogDirs {
    /// Directory of the metadata log, existing or not, and the cluster's id if a directory has one. Opens nothing.
    ///
    /// # Errors
    /// See [`LogDirsError`].
    pub fn look(config: &BrokerConfig) -> Result<(PathBuf, Option<String>), LogDirsError> {
        let paths = config.log_dirs.iter().map(|path| absolute(path)).collect::<Result<Vec<_>, _>>()?;
        let named = config.metadata_log_dir.as_deref().map(absolute).transpose()?;
        let metadata = metadata_dir(&RealStorage, &paths, named)?;
        let cluster_id = paths.iter().chain([&metadata]).find_map(|path| cluster_id(&RealStorage, path));
        Ok((metadata, cluster_id))
    }

    /// Opens them. Those that cannot be opened are left out with a message, except for the one with the metadata log. With
    /// other nodes the cluster's id is `founded`.
    ///
    /// # Errors
    /// See [`LogDirsError`].
    pub fn open(
        config: &BrokerConfig,
        options: &LogDirsOptions,
        founded: Option<&str>,
    ) -> Result<Self, LogDirsError> {
        let paths = config.log_dirs.iter().map(|path| absolute(path)).collect::<Result<Vec<_>, _>>()?;
        let names = config.log_dirs.iter().cloned().zip(paths.clone()).collect();
        let named = config.metadata_log_dir.as_deref().map(absolute).transpose()?;
        let has_mounts = options.machine.is_none();
        if has_mounts {
            paths.iter().chain(&named).try_for_each(|path| check_kind(path))?;
        }
        let descriptors = options.descriptors;
        let Machine { storage, boot_id: boot } = options.machine.clone().unwrap_or_default();
        let metadata = metadata_dir(&*storage, &paths, named)?;
        check_mounts(has_mounts, &*storage, (&metadata, &paths))?;
        // Connections and the segments that are written have the first claim on descriptors.
        let cache =
            DescriptorCache::new(storage.clone(), descriptor_budget(descriptors, descriptors / 4 * 3));
        let mut identity = NodeIdentity { cluster_id: None, node_id: config.node_id };
        // A new directory belongs to the cluster of the others, at any position in the list.
        identity.cluster_id = paths.iter().chain([&metadata]).find_map(|path| cluster_id(&*storage, path));
        check_cluster(options.expect_cluster.as_deref(), identity.cluster_id.as_deref())?;
        let is_new_cluster = identity.cluster_id.is_none();
        if identity.cluster_id.is_none() {
            identity.cluster_id = founded.map(str::to_owned);
        }
        let producer_budget = Arc::new(ProducerBudget::new(config.logs.producer_ids_max));
        let open = |path: &Path, identity: &NodeIdentity| {
            let options = LogDirOptions {
                flush: flush_options(),
                descriptors: Some(cache.clone()),
                doomed_due_mono_ms: options.mono_ms,
                on_offline: Some(options.on_offline.clone()),
                recovery_watch: options.recovery.clone(),
                keep_reserve: true,
                producer_budget: producer_budget.clone(),
            };
            options.open(storage.clone(), path, identity, &boot)
        };
        let metadata = open(&metadata, &identity)?;
        identity.cluster_id = Some(metadata.cluster_id().to_owned());
        let mut dirs = LogDirs {
            data: Vec::new(),
            unopened: Vec::new(),
            metadata,
            names,
            is_new_cluster,
            descriptors,
            has_mounts,
        };
        for path in paths {
            if dirs.data.iter().any(|dir| dir.path() == path) {
                continue;
            }
            if dirs.metadata.path() == path {
                dirs.data.push(dirs.metadata.clone());
                continue;
            }
            match open(&path, &identity) {
                Ok(dir) => dirs.data.push(dir),
                Err(OpenDirError::Io { path, what, source }) => {
                    dirs.unopened.push(unopened(path, what, &source))
                }
                Err(error) => return Err(error.into()),
            }
        }
        dirs.check()?;
        Ok(dirs)
    }

    /// Notes the mount points of the directories for the next start, which is refused without one of them.
    pub fn note_mounts(&self) {
        // A disk that could not be used now may be one that is not mounted next time.
        if !self.has_mounts || !self.unopened.is_empty() {
            return;
        }
        let dirs: Vec<_> = self.all().map(|dir| resolved(dir.path())).collect();
        let noted = mount_points().and_then(|mounted| {
            mounts::note(&**self.metadata.storage(), self.metadata.path(), &dirs, &mounted)
        });
        if let Err(error) = noted {
            tracing::warn!(
                "the mount points of the log directories are not noted: {error}; a disk that is not mounted at the next start is not noticed"
            );
        }
    }

    fn check(&self) -> Result<(), LogDirsError> {
        if self.data.is_empty() {
            let failures: Vec<_> = self.unopened.iter().map(ToString::to_string).collect();
            return Err(LogDirsError::None(failures.join("; ")));
        }
        let mut known = HashMap::new();
        for dir in self.all() {
            if let Some(one) = known.insert(dir.directory_id(), dir.path()) {
                return Err(LogDirsError::Same { one: one.to_owned(), other: dir.path().to_owned() });
            }
        }
        if has_metadata(&**self.metadata.storage(), self.metadata.path()) {
            return Ok(());
        }
        let has_partitions = |dir: &&Arc<LogDir>| dir.partitions().is_ok_and(|found| !found.is_empty());
        match self.data.iter().find(has_partitions) {
            Some(dir) => Err(LogDirsError::MetadataMissing { path: dir.path().to_owned() }),
            None => Ok(()),
        }
    }

    /// Number of partitions that a start can open under the limit of descriptors.
    pub fn partitions_max(&self) -> usize {
        partitions_within(self.descriptors)
    }

    /// Number of these partitions that may wait for their first or last sync at the same time: all, or as many as the limit of descriptors
    /// allows.
    pub fn synced_together(&self, partitions: usize) -> usize {
        match partitions <= unsynced_within(self.descriptors) {
            true => partitions,
            false => synced_together(self.descriptors),
        }
    }

    /// Returns true if the cluster was created by this start.
    pub fn is_new_cluster(&self) -> bool {
        self.is_new_cluster
    }

    /// Those for partitions that could be opened; they may have failed since.
    pub fn data(&self) -> &[Arc<LogDir>] {
        &self.data
    }

    /// Those for partitions that could not be opened at start.
    pub fn unopened(&self) -> &[DirFailure] {
        &self.unopened
    }

    /// The one with the metadata log.
    pub fn metadata(&self) -> &Arc<LogDir> {
        &self.metadata
    }

    /// All that could be opened.
    pub fn all(&self) -> impl Iterator<Item = &Arc<LogDir>> {
        let apart = self.data.iter().all(|dir| !Arc::ptr_eq(dir, &self.metadata));
        self.data.iter().chain(apart.then_some(&self.metadata))
    }

    /// Those for partitions that are online.
    pub fn online(&self) -> impl Iterator<Item = &Arc<LogDir>> {
        self.data.iter().filter(|dir| dir.failure().is_none())
    }

    /// Returns true if a directory takes no new partitions (`cordoned.log.dirs`).
    pub fn is_cordoned(&self, config: &BrokerConfig, dir: &LogDir) -> bool {
        self.names.iter().any(|(name, path)| path == dir.path() && config.is_cordoned(name))
    }

    /// The online log directory with an id.
    pub fn by_id(&self, id: DirectoryId) -> Option<&Arc<LogDir>> {
        self.data.iter().find(|dir| dir.directory_id() == id)
    }

    /// Those that are offline, and why.
    pub fn failures(&self) -> impl Iterator<Item = &DirFailure> {
        self.unopened.iter().chain(self.all().filter_map(|dir| dir.failure()))
    }

    /// Why the broker cannot go on without what has failed, if it cannot.
    pub fn fatal_failure(&self) -> Option<String> {
        if let Some(failure) = self.metadata.failure() {
            return Some(format!(
                "{failure}, and it has the metadata log, without which a broker can do nothing; repair its disk, then \
                 start again"
            ));
        }
        (self.online().next().is_none()).then(|| {
            let failures: Vec<_> = self.failures().map(ToString::to_string).collect();
            format!(
                "no log directory is left ({}); repair their disks, then start again",
                failures.join("; ")
            )
        })
    }
}

/// Options of the flushers: a simulation begins and ends their rounds.
fn flush_options() -> FlushOptions {
    #[cfg(feature = "sim")]
    return FlushOptions { by_hand: sync::is_simulated(), ..FlushOptions::default() };
    #[cfg(not(feature = "sim"))]
    FlushOptions::default()
}

fn absolute(path: &str) -> Result<PathBuf, LogDirsError> {
    let cleaned = std::path::absolute(path).map(|path| path.components().collect());
    cleaned.map_err(|source| LogDirsError::Path { path: path.to_owned(), source })
}

/// Checks that the directories are those of the cluster that was expected, if one was.
fn check_cluster(expected: Option<&str>, found: Option<&str>) -> Result<(), LogDirsError> {
    match expected.filter(|expected| found != Some(*expected)) {
        Some(expected) => {
            Err(LogDirsError::OtherCluster { expected: expected.to_owned(), found: found.map(str::to_owned) })
        }
        None => Ok(()),
    }
}

/// Checks that the disks are mounted that were when this node ran last.
fn check_mounts(
    has_mounts: bool,
    storage: &dyn Storage,
    (metadata, paths): (&Path, &[PathBuf]),
) -> Result<(), LogDirsError> {
    if !has_mounts {
        return Ok(());
    }
    match mount_points() {
        Ok(mounted) => {
            let dirs: Vec<_> = paths.iter().map(|path| resolved(path)).collect();
            mounts::check(storage, metadata, &dirs, &mounted).map_err(LogDirsError::NotMounted)
        }
        Err(error) => {
            tracing::warn!(
                "the mount points of this machine cannot be read: {error}; a disk that is not mounted is not noticed"
            );
            Ok(())
        }
    }
}

/// The directory behind symbolic links.
fn resolved(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Refuses a directory of which another owner writes the files: a queue, a journal, a partition.
fn check_kind(path: &Path) -> Result<(), LogDirsError> {
    match Directory::inspect(path).refusal_as_log_directory() {
        Some(reason) => Err(LogDirsError::OfAnotherKind { path: path.to_owned(), reason }),
        None => Ok(()),
    }
}

/// The directory that has the metadata log, whatever the order of `log.dirs`. At the first start the one that
/// `metadata.log.dir` names, or the first.
fn metadata_dir(
    storage: &dyn Storage,
    paths: &[PathBuf],
    named: Option<PathBuf>,
) -> Result<PathBuf, LogDirsError> {
    let having: Vec<_> = paths.iter().chain(&named).filter(|path| has_metadata(storage, path)).collect();
    match (named.clone(), having.as_slice()) {
        (Some(named), []) => Ok(named),
        (Some(named), having) if having.contains(&&named) => Ok(named),
        (Some(named), [found, ..]) => {
            Err(LogDirsError::MetadataElsewhere { named, found: found.to_path_buf() })
        }
        (None, []) => Ok(paths[0].clone()),
        (None, [found]) => Ok(found.to_path_buf()),
        (None, [one, other, ..]) => {
            Err(LogDirsError::MetadataTwice { one: one.to_path_buf(), other: other.to_path_buf() })
        }
    }
}

/// Returns true if the metadata log is in a directory. An error counts as false here, and is reported when the directory is opened.
fn has_metadata(storage: &dyn Storage, path: &Path) -> bool {
    let log = TopicPartition::new(names::CLUSTER_METADATA, 0);
    storage.exists(&path.join(log.to_string())).unwrap_or(false)
}

fn cluster_id(storage: &dyn Storage, path: &Path) -> Option<String> {
    // Whatever is wrong with the file is reported when the directory is opened.
    let meta = MetaProperties::read(storage, path).ok()??.ok()?;
    Some(meta.cluster_id)
}

fn unopened(path: PathBuf, what: &str, source: &io::Error) -> DirFailure {
    let dir = path.display();
    tracing::error!(
        %dir,
        "the log directory cannot be used ({what} failed: {source}); its partitions are offline until its disk is repaired \
         and the broker started again; the others are served"
    );
    DirFailure { path, reason: format!("{what} failed: {source}") }
}
