//! Opening a log directory.

use super::segments::ClosedSegments;
use super::space::Space;
use super::strays::StrayCount;
use super::{Checkpoints, Doomed, Health, LastStop, LogDir, OnOffline, on_failure};
use crate::boot::BootRecord;
use crate::checkpoint::{
    CLEANER_CHECKPOINT, LOG_START_CHECKPOINT, OffsetCheckpoint, RECOVERY_POINT_CHECKPOINT,
    REPLICATION_CHECKPOINT,
};
use crate::descriptors::DescriptorCache;
use crate::flusher::{FlushOptions, Flusher, FlusherParts};
use crate::marker::{BROKER_EPOCH_UNKNOWN, CleanShutdown};
use crate::meta_properties::{FIRST_FORMAT_VERSION, META_PROPERTIES, MetaProperties, MetaPropertiesError};
use crate::partition_dir::{DirName, SetAside, TopicPartition, stray_of};
use crate::producer_budget::ProducerBudget;
use crate::recovery_watch::RecoveryWatch;
use crate::segment_record::SegmentRecord;
use crate::storage::{OpenMode, Storage, StorageFault, StorageLock, parent_of};
use crate::uuid;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::{Arc, OnceLock};

/// Name of the lock file; Kafka's.
const LOCK: &str = ".lock";

/// Handles of cold files that a directory keeps open when it is given no cache.
const DESCRIPTORS_DEFAULT: usize = 256;

/// The cluster and the node that open a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeIdentity {
    /// The cluster's id; `None` takes the directory's, and makes a random one for a new directory.
    pub cluster_id: Option<String>,
    /// `node.id`.
    pub node_id: i32,
}

/// Options for the opening of a directory.
#[derive(Clone, Default)]
pub struct LogDirOptions {
    /// The flusher's thresholds.
    pub flush: FlushOptions,
    /// Handles shared with other directories; a small cache of its own where there is none.
    pub descriptors: Option<Arc<DescriptorCache>>,
    /// The time from which directories of deleted partitions may be removed that the opening finds: monotonic ms, as of
    /// [`LogDir::remove_doomed`].
    pub doomed_due_mono_ms: u64,
    /// Called when the directory goes offline.
    pub on_offline: Option<OnOffline>,
    /// Watches the recoveries of the logs in it.
    pub recovery_watch: Arc<RecoveryWatch>,
    /// Keeps a reserve of free space for stops and starts on a full disk. Appends of clients are refused while it is full.
    pub keep_reserve: bool,
    /// Shared by the logs of all directories.
    pub producer_budget: Arc<ProducerBudget>,
}

/// The reason for which a log directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenDirError {
    /// Another process has it.
    #[error(
        "log directory {} is in use by another process, which holds the lock on {}; stop that process, or choose \
         another directory (log.dirs)",
        path.display(), path.join(LOCK).display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It is of a newer release, or its `meta.properties` is damaged.
    #[error(
        "log directory {} cannot be used, because of its {META_PROPERTIES}: {source}; start the release that wrote \
         it, or choose another directory (log.dirs)",
        path.display()
    )]
    MetaProperties {
        /// The directory.
        path: PathBuf,
        /// The defect of the file.
        source: MetaPropertiesError,
    },
    /// It is another cluster's or another node's.
    #[error(
        "log directory {} belongs to {key}={found}, and this node has {key}={expected}; correct the configuration, \
         or choose another directory (log.dirs)",
        path.display()
    )]
    Foreign {
        /// The directory.
        path: PathBuf,
        /// `cluster.id` or `node.id`.
        key: &'static str,
        /// The directory's.
        found: String,
        /// This node's.
        expected: String,
    },
    /// The file system refused something.
    #[error("log directory {}: {what} failed: {source}; repair it, or choose another directory (log.dirs)", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The action that failed.
        what: &'static str,
        /// The file system's answer.
        source: io::Error,
    },
}

impl LogDirOptions {
    /// Opens a directory, and creates it if it does not exist. It stays locked until the [`LogDir`] is dropped.
    ///
    /// `boot_id` is the running boot's ([`crate::boot::boot_id`]).
    pub fn open(
        self,
        storage: Arc<dyn Storage>,
        path: &Path,
        identity: &NodeIdentity,
        boot_id: &str,
    ) -> Result<Arc<LogDir>, OpenDirError> {
        let opening = Opening { storage, path, identity, boot_id };
        opening.create()?;
        let lock = opening.lock()?;
        let space = self.keep_reserve.then(|| Space::open(&opening.storage, path)).transpose();
        let space = opening.failed("looking for free space", space)?;
        let scan = opening.scan()?;
        let before = opening.read_meta_properties()?;
        let last_stop = opening.last_stop(before.is_some(), &scan)?;
        let read = SegmentRecord::read(&*opening.storage, path);
        let segments = opening.failed("reading the record of its segments", read)?;
        // From here on the directory is written to. Until the marker is gone for good nothing may change that the
        // marker stands for; the identity is none of that.
        let meta = opening.take_possession(before)?;
        let checkpoints = opening.checkpoints(&scan)?;
        opening.finish(
            self,
            Found {
                lock,
                deleted: scan.deleted,
                strays: scan.strays,
                last_stop,
                meta,
                checkpoints,
                segments,
                space,
            },
        )
    }
}

/// The contents of a directory that this process has locked.
struct Found {
    lock: Box<dyn StorageLock>,
    deleted: Vec<PathBuf>,
    strays: Vec<PathBuf>,
    last_stop: LastStop,
    meta: MetaProperties,
    checkpoints: Checkpoints,
    segments: SegmentRecord,
    space: Option<Space>,
}

struct Opening<'a> {
    storage: Arc<dyn Storage>,
    path: &'a Path,
    identity: &'a NodeIdentity,
    boot_id: &'a str,
}

/// The names in a directory, by kind.
#[derive(Default)]
struct Scan {
    partitions: BTreeSet<TopicPartition>,
    /// Partitions that are being copied into this directory. Their topics may be cut short.
    futures: Vec<TopicPartition>,
    deleted: Vec<PathBuf>,
    strays: Vec<PathBuf>,
}

impl Scan {
    /// Returns true if checkpoints may have entries of a partition. A copy may have been about to get the partition's name.
    fn knows(&self, partition: &TopicPartition) -> bool {
        let is_of = |future: &TopicPartition| {
            future.partition == partition.partition && partition.topic.starts_with(&*future.topic)
        };
        self.partitions.contains(partition) || self.futures.iter().any(is_of)
    }
}

impl Opening<'_> {
    fn failed<T>(&self, what: &'static str, result: io::Result<T>) -> Result<T, OpenDirError> {
        result.map_err(|source| OpenDirError::Io { path: self.path.to_owned(), what, source })
    }

    /// Creates the directory and makes its name durable, and those of the parents that it needed.
    fn create(&self) -> Result<(), OpenDirError> {
        let mut new_names = Vec::new();
        for ancestor in self.path.ancestors() {
            if ancestor.as_os_str().is_empty()
                || self.failed("looking for it", self.storage.exists(ancestor))?
            {
                break;
            }
            new_names.push(ancestor);
        }
        if new_names.is_empty() {
            return self.sync_own_name();
        }
        self.failed("creating it", self.storage.create_dir(self.path))?;
        for name in new_names {
            self.failed("syncing its parent", self.storage.sync_dir(parent_of(name)))?;
        }
        Ok(())
    }

    /// An earlier start may have made the directory and not have synced its name. A parent that this user may not open was made by
    /// another.
    fn sync_own_name(&self) -> Result<(), OpenDirError> {
        if self
            .failed("looking for meta.properties", self.storage.exists(&self.path.join(META_PROPERTIES)))?
        {
            return Ok(());
        }
        let synced = self.storage.sync_dir(parent_of(self.path));
        self.failed(
            "syncing its parent",
            synced.or_else(|error| match StorageFault::of(&error) {
                StorageFault::File => Ok(()),
                _ => Err(error),
            }),
        )
    }

    fn lock(&self) -> Result<Box<dyn StorageLock>, OpenDirError> {
        match self.storage.lock_exclusive(&self.path.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(OpenDirError::Locked { path: self.path.to_owned() })
            }
            other => self.failed("locking it", other),
        }
    }

    fn scan(&self) -> Result<Scan, OpenDirError> {
        let mut scan = Scan::default();
        for entry in self.failed("listing it", self.storage.list(self.path))? {
            if !entry.is_dir {
                continue;
            }
            let path = self.path.join(&entry.name);
            match DirName::parse(&entry.name) {
                DirName::Partition(partition) => {
                    scan.partitions.insert(partition);
                }
                DirName::SetAside(SetAside::Delete) => scan.deleted.push(path),
                DirName::SetAside(SetAside::Stray) if stray_of(&entry.name).is_some() => {
                    scan.strays.push(path)
                }
                DirName::Future(partition) => scan.futures.push(partition),
                DirName::Unknown if entry.name == "lost+found" => {}
                DirName::SetAside(SetAside::Stray) | DirName::Unknown => {
                    tracing::warn!(path = %path.display(), "this directory is no partition; it is left alone");
                }
            }
        }
        Ok(scan)
    }

    /// The directory's identity, if it has one, after it was compared with the node's.
    fn read_meta_properties(&self) -> Result<Option<MetaProperties>, OpenDirError> {
        let read = self.failed("reading meta.properties", MetaProperties::read(&*self.storage, self.path))?;
        let meta = read
            .transpose()
            .map_err(|source| OpenDirError::MetaProperties { path: self.path.to_owned(), source })?;
        if let Some(meta) = &meta {
            let expected = self.identity.cluster_id.as_ref().unwrap_or(&meta.cluster_id);
            self.compare("cluster.id", &meta.cluster_id, expected)?;
            self.compare("node.id", &meta.node_id.to_string(), &self.identity.node_id.to_string())?;
        }
        Ok(meta)
    }

    fn compare(&self, key: &'static str, found: &str, expected: &str) -> Result<(), OpenDirError> {
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (found.to_owned(), expected.to_owned());
        Err(OpenDirError::Foreign { path: self.path.to_owned(), key, found, expected })
    }

    fn last_stop(&self, has_identity: bool, scan: &Scan) -> Result<LastStop, OpenDirError> {
        let marker = self.failed("reading its marker", CleanShutdown::read(&*self.storage, self.path))?;
        let empty = scan.partitions.is_empty() && scan.futures.is_empty() && scan.deleted.is_empty();
        Ok(match marker {
            Some(_) => LastStop::Clean,
            None if empty && !has_identity => LastStop::New,
            None if self.boot_record().read().as_deref() == Some(self.boot_id) => LastStop::UncleanSameBoot,
            None => LastStop::UncleanOtherBoot,
        })
    }

    fn boot_record(&self) -> BootRecord {
        BootRecord::new(self.storage.clone(), self.path)
    }

    /// Writes the identity where it is not complete and removes the marker; both are durable on return. So are all names
    /// that a process left which was killed: what is read under them is built upon from here on.
    fn take_possession(&self, before: Option<MetaProperties>) -> Result<MetaProperties, OpenDirError> {
        let meta = self.complete(before.as_ref());
        if before.as_ref() != Some(&meta) {
            self.failed("writing meta.properties", meta.write(&*self.storage, self.path))?;
        }
        self.failed("removing its marker", CleanShutdown::remove(&*self.storage, self.path))?;
        self.failed("syncing it", self.storage.sync_dir(self.path))?;
        Ok(meta)
    }

    /// A directory of Kafka's keeps its file, unless the file has no directory id.
    fn complete(&self, before: Option<&MetaProperties>) -> MetaProperties {
        let random = || uuid::to_base64url(&uuid::random());
        let new = || MetaProperties {
            cluster_id: self.identity.cluster_id.clone().unwrap_or_else(random),
            node_id: self.identity.node_id,
            directory_id: None,
            format_version: Some(FIRST_FORMAT_VERSION),
            release: None,
        };
        let mut meta = before.cloned().unwrap_or_else(new);
        meta.directory_id.get_or_insert_with(uuid::random);
        meta
    }

    /// Entries of partitions that are gone are dropped for good, before a partition of the same name can come.
    fn checkpoints(&self, scan: &Scan) -> Result<Checkpoints, OpenDirError> {
        let load = |name| {
            let loaded = OffsetCheckpoint::load(self.storage.clone(), self.path, name);
            self.failed("reading its checkpoints", loaded).map(Arc::new)
        };
        let checkpoints = Checkpoints {
            recovery_point: load(RECOVERY_POINT_CHECKPOINT)?,
            log_start: load(LOG_START_CHECKPOINT)?,
            replication: load(REPLICATION_CHECKPOINT)?,
            cleaner: load(CLEANER_CHECKPOINT)?,
        };
        let retained = checkpoints.retain(|partition| scan.knows(partition));
        self.failed("writing its checkpoints", retained)?;
        Ok(checkpoints)
    }

    fn finish(self, options: LogDirOptions, found: Found) -> Result<Arc<LogDir>, OpenDirError> {
        let Found { lock, deleted, strays, last_stop, meta, checkpoints, segments, space } = found;
        let health = Arc::new(Health {
            path: self.path.to_owned(),
            boot_record: self.boot_record(),
            failure: OnceLock::new(),
            on_offline: options.on_offline.clone(),
            sync_failed: AtomicBool::new(false),
        });
        if matches!(last_stop, LastStop::New | LastStop::Clean) {
            // Nothing to recover. A record of another boot would only make the next start slower.
            self.failed("writing its boot record", health.boot_record.write(self.boot_id))?;
        }
        #[cfg(any(test, feature = "sim"))]
        if options.flush.by_hand {
            checkpoints.all().iter().for_each(|checkpoint| checkpoint.set_by_hand());
        }
        let flusher = self.start_flusher(options.flush, &health)?;
        let due_mono_ms = options.doomed_due_mono_ms;
        let doomed = deleted.into_iter().map(|path| Doomed { path, due_mono_ms }).collect();
        let new_cache = || DescriptorCache::new(self.storage.clone(), DESCRIPTORS_DEFAULT);
        Ok(Arc::new(LogDir {
            path: self.path.to_owned(),
            cluster_id: meta.cluster_id,
            directory_id: meta.directory_id.expect("an incomplete identity was completed"),
            boot_id: self.boot_id.to_owned(),
            broker_epoch: AtomicI64::new(BROKER_EPOCH_UNKNOWN),
            last_stop,
            recovery_watch: options.recovery_watch,
            producer_budget: options.producer_budget,
            health,
            checkpoints,
            descriptors: options.descriptors.unwrap_or_else(new_cache),
            doomed: Mutex::new(doomed),
            strays: StrayCount::of(&*self.storage, &strays),
            unopened: Mutex::default(),
            space,
            segments: Mutex::new(ClosedSegments::new(segments)),
            flusher,
            storage: self.storage,
            lock: Mutex::new(Some(lock)),
        }))
    }

    fn start_flusher(&self, options: FlushOptions, health: &Arc<Health>) -> Result<Flusher, OpenDirError> {
        let anchor = self.storage.open(&self.path.join(META_PROPERTIES), OpenMode::Read);
        let name = self.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let parts = FlusherParts {
            storage: self.storage.clone(),
            anchor: self.failed("opening meta.properties", anchor)?,
            name: name.unwrap_or_default(),
            options,
            on_failure: on_failure(&self.storage, health),
        };
        self.failed("starting its flusher", Flusher::start(parts))
    }
}
