//! A log directory: where partitions are, whose it is, how it was stopped, and what all its partitions share.
//!
//! Start ([`LogDir::open`]): lock, identity, how it was stopped; the clean-shutdown marker is removed and the
//! directory synced; only then is anything written. When all logs are recovered, [`LogDir::recovered`]. Stop: every
//! log flushes (its names too) and is closed, then [`LogDir::stop_clean`]. The file formats and the orders of syncs
//! are in `docs/format.md`.

mod futures;
mod open;
mod segments;
mod space;
mod strays;

pub use futures::FoundFuture;
pub use open::{LogDirOptions, NodeIdentity, OpenDirError};

use self::segments::ClosedSegments;
use self::space::Space;
use self::strays::{StrayCount, bytes_in};
use crate::boot::BootRecord;
use crate::checkpoint::{OffsetCheckpoint, OnDurable};
use crate::descriptors::DescriptorCache;
use crate::error::LogError;
use crate::flusher::{FlushWork, Flusher, FlusherStop, OnFailure};
use crate::marker::CleanShutdown;
use crate::meta_properties::{FIRST_FORMAT_VERSION, LEVEL_2_FORMAT_VERSION, MetaProperties};
use crate::partition_dir::{DirName, SetAside, TopicPartition, set_aside_name};
use crate::partition_metadata::write_topic_id;
use crate::producer_budget::ProducerBudget;
use crate::recovery_watch::RecoveryWatch;
use crate::storage::{OpenMode, Storage, StorageFault, StorageLock, write_all_at};
use crate::uuid;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Name of the file that is written and removed to measure an `fdatasync`.
const PROBE: &str = ".fdatasync-probe";
const PROBES: usize = 7;
/// One more sync may follow: together under 2 ms on a disk that is worth measuring.
const PROBE_TIME: Duration = Duration::from_micros(1_200);

/// The topic of the metadata, whose records hold what proves passwords.
const CLUSTER_METADATA: &str = "__cluster_metadata";

/// The way in which the last process left a directory. It decides what has to be checked before the directory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastStop {
    /// It is new, or was never written to.
    New,
    /// In order: everything is on disk, nothing has to be checked.
    Clean,
    /// Not in order, but the machine kept running: all writes are in the page cache or on disk. Only the last batches can be torn.
    UncleanSameBoot,
    /// Not in order, and under another boot: everything since the last sync (the recovery point) may be lost in part.
    /// Also after a failed sync, and if the boot is not known. The page cache may then differ from the disk. It has to be
    /// dropped ([`crate::storage::Advice::DontNeed`]) before the range is read.
    UncleanOtherBoot,
}

/// The reason for which a directory went offline.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("log directory {} is offline: {reason}", path.display())]
pub struct DirFailure {
    /// The directory.
    pub path: PathBuf,
    /// The first error, in words.
    pub reason: String,
}

/// A partition's directory, as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPartition {
    /// The partition, from the name.
    pub partition: TopicPartition,
    /// The directory.
    pub path: PathBuf,
}

/// The checkpoint files of a directory.
#[derive(Debug)]
pub struct Checkpoints {
    /// Offsets up to which everything is known to be on disk. May lag, never lead: lower it durably
    /// ([`OffsetCheckpoint::commit`]) before a log that was truncated below it takes new records.
    pub recovery_point: Arc<OffsetCheckpoint>,
    /// Log start offsets that are not the first segment's.
    pub log_start: Arc<OffsetCheckpoint>,
    /// High watermarks.
    pub replication: Arc<OffsetCheckpoint>,
    /// Offsets up to which logs are compacted.
    pub cleaner: Arc<OffsetCheckpoint>,
}

impl Checkpoints {
    fn all(&self) -> [&OffsetCheckpoint; 4] {
        [&self.recovery_point, &self.log_start, &self.replication, &self.cleaner]
    }

    /// Forgets the partitions that are not wanted, durably: a new partition of the same name must not inherit an
    /// offset.
    fn retain(&self, keep: impl Fn(&TopicPartition) -> bool) -> io::Result<()> {
        for checkpoint in self.all() {
            if checkpoint.retain(&keep) {
                checkpoint.commit()?;
            }
        }
        Ok(())
    }
}

/// One of the directories in `log.dirs`, opened and locked by this process.
#[derive(Debug)]
pub struct LogDir {
    path: PathBuf,
    storage: Arc<dyn Storage>,
    cluster_id: String,
    directory_id: [u8; 16],
    boot_id: String,
    /// Epoch of the broker's registration, for the marker of a clean stop (KIP-966).
    broker_epoch: AtomicI64,
    last_stop: LastStop,
    health: Arc<Health>,
    checkpoints: Checkpoints,
    descriptors: Arc<DescriptorCache>,
    doomed: Mutex<Vec<Doomed>>,
    strays: StrayCount,
    /// Partitions whose logs could not be opened: what was to be checked of them still is.
    unopened: Mutex<BTreeSet<TopicPartition>>,
    segments: Mutex<ClosedSegments>,
    /// None if no reserve is kept.
    space: Option<Space>,
    recovery_watch: Arc<RecoveryWatch>,
    producer_budget: Arc<ProducerBudget>,
    flusher: Flusher,
    /// Released last.
    lock: Mutex<Option<Box<dyn StorageLock>>>,
}

/// A directory that was set aside and is removed when its time has come.
#[derive(Debug)]
struct Doomed {
    path: PathBuf,
    due_mono_ms: u64,
}

/// Known defects of a directory. Kept apart from it, so that the flusher can report them.
struct Health {
    path: PathBuf,
    boot_record: BootRecord,
    failure: OnceLock<DirFailure>,
    on_offline: Option<OnOffline>,
    /// A sync failed: what is in the page cache is not what will be on disk, whatever the boot.
    sync_failed: AtomicBool,
}

/// Called once when a directory goes offline, wherever that was noticed, also under a partition's lock. It must not wait.
pub type OnOffline = Arc<dyn Fn(&DirFailure) + Send + Sync>;

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("failure", &self.failure).finish_non_exhaustive()
    }
}

impl Health {
    fn fail(&self, error: &io::Error) {
        let failure = DirFailure { path: self.path.clone(), reason: error.to_string() };
        if self.failure.set(failure).is_ok() {
            let dir = self.path.display();
            tracing::error!(
                %dir,
                "the log directory goes offline: {error}; its partitions are not served until its disk is repaired and the \
                 broker started again"
            );
            self.distrust_page_cache();
            if let (Some(on_offline), Some(failure)) = (&self.on_offline, self.failure.get()) {
                on_offline(failure);
            }
        }
    }

    fn note_failed_sync(&self, error: &io::Error) {
        if !self.sync_failed.swap(true, Ordering::AcqRel) {
            tracing::error!(dir = %self.path.display(), %error, "a sync failed; its partitions stop");
            self.distrust_page_cache();
        }
    }

    /// The next start, even under this boot, has to check everything since the last sync.
    fn distrust_page_cache(&self) {
        if let Err(error) = self.boot_record.remove() {
            let dir = self.path.display();
            tracing::error!(%dir, %error, "the record of the boot cannot be removed; restart after a reboot only");
        }
    }
}

impl LogDir {
    /// Opens a directory: see [`LogDirOptions::open`], with the default options.
    pub fn open(
        storage: Arc<dyn Storage>,
        path: &Path,
        identity: &NodeIdentity,
        boot_id: &str,
    ) -> Result<Arc<LogDir>, OpenDirError> {
        LogDirOptions::default().open(storage, path, identity, boot_id)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its file system.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The cluster's id, as in `meta.properties`.
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The directory's own id (KIP-858), which never changes.
    pub fn directory_id(&self) -> [u8; 16] {
        self.directory_id
    }

    /// Makes `meta.properties` name at least this version of the format, durably. To be called before the first file is written
    /// that older releases do not know. Blocks on the disk.
    ///
    /// # Errors
    /// When the file cannot be read or replaced.
    pub fn raise_format(&self, version: u32) -> io::Result<()> {
        let meta = MetaProperties::read(&*self.storage, &self.path)?.ok_or(io::ErrorKind::NotFound)?;
        let mut meta = meta.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        if meta.format_version.unwrap_or(FIRST_FORMAT_VERSION) >= version {
            return Ok(());
        }
        meta.format_version = Some(version);
        if version >= LEVEL_2_FORMAT_VERSION {
            meta.release = Some(env!("CARGO_PKG_VERSION").to_owned());
        }
        meta.write(&*self.storage, &self.path)?;
        self.storage.sync_dir(&self.path)
    }

    /// The way in which the last process left the directory.
    pub fn last_stop(&self) -> LastStop {
        self.last_stop
    }

    /// Makes its partitions durable.
    pub fn flusher(&self) -> &Flusher {
        &self.flusher
    }

    /// The limit on producers that the logs of all directories remember.
    pub fn producer_budget(&self) -> &Arc<ProducerBudget> {
        &self.producer_budget
    }

    /// The open handles of cold files.
    pub fn descriptors(&self) -> &Arc<DescriptorCache> {
        &self.descriptors
    }

    /// The checkpoint files.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// The directory of a partition, existing or not.
    pub(crate) fn partition_path(&self, partition: &TopicPartition) -> PathBuf {
        self.path.join(partition.to_string())
    }

    /// The directories of partitions that exist now, in the order of their names. Those that were set aside are not
    /// among them; unknown names are left alone.
    pub fn partitions(&self) -> io::Result<Vec<FoundPartition>> {
        let entries = self.storage.list(&self.path)?;
        let mut found: Vec<_> = entries
            .into_iter()
            .filter(|entry| entry.is_dir)
            .filter_map(|entry| match DirName::parse(&entry.name) {
                DirName::Partition(partition) => {
                    Some(FoundPartition { partition, path: self.path.join(entry.name) })
                }
                _ => None,
            })
            .collect();
        found.sort_by(|one, other| one.partition.cmp(&other.partition));
        Ok(found)
    }

    /// Creates the directory of a new partition and writes its topic id. The returned work has to be part of the first
    /// [`FlushWork`] of the partition. With many new partitions in a round the log directory itself is synced once, and all
    /// of them by one `syncfs`.
    pub(crate) fn create_partition(
        &self,
        partition: &TopicPartition,
        topic_id: &[u8; 16],
    ) -> io::Result<(PathBuf, FlushWork)> {
        self.checkpoints.retain(|known| known != partition)?;
        let path = self.partition_path(partition);
        match &*partition.topic == CLUSTER_METADATA {
            true => self.storage.create_private_dir(&path)?,
            false => self.storage.create_dir(&path)?,
        }
        let metadata = write_topic_id(&*self.storage, &path, topic_id)?;
        let directories = vec![Arc::from(path.as_path()), Arc::from(self.path.as_path())];
        Ok((path, FlushWork { files: vec![metadata], directories, ..FlushWork::default() }))
    }

    /// Releases the directory before this is dropped: nothing is written to it any more. For a stop in a process that continues,
    /// in which something may still refer to the directory.
    pub fn unlock(&self) {
        self.lock.lock().take();
    }

    /// Requests that a checkpoint becomes durable in its present state, without blocking. One replacement of the file, on a helper
    /// thread, serves all callers meanwhile. After [`Self::stop_clean`] it is done on this thread.
    pub fn commit(&self, checkpoint: &Arc<OffsetCheckpoint>, on_durable: OnDurable) {
        let health = self.health.clone();
        let on_durable: OnDurable = Box::new(move |result| {
            if let Err(error) = &result
                && StorageFault::of(error) == StorageFault::Medium
            {
                health.fail(error);
            }
            on_durable(result);
        });
        if checkpoint.enqueue(on_durable) {
            let checkpoint = checkpoint.clone();
            if let Err(job) = self.flusher.run(Box::new(move || checkpoint.write_for_waiting())) {
                job();
            }
        }
    }

    /// Takes partitions out of service whose logs are closed: their directories are renamed and the checkpoints
    /// forget them, durably, so that a new partition of the same name starts afresh. What is set aside as
    /// [`SetAside::Delete`] is removed by [`Self::remove_doomed`] from `due_mono_ms` on.
    pub fn set_aside(
        &self,
        partitions: &[TopicPartition],
        why: SetAside,
        due_mono_ms: u64,
    ) -> io::Result<()> {
        let done = self.rename_all_aside(partitions, why, due_mono_ms);
        done.inspect_err(|error| self.note_error(error))
    }

    fn rename_all_aside(
        &self,
        partitions: &[TopicPartition],
        why: SetAside,
        due_mono_ms: u64,
    ) -> io::Result<()> {
        for partition in partitions {
            match self.rename_aside(partition, why, due_mono_ms) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        self.storage.sync_dir(&self.path)?;
        self.forget(partitions)
    }

    /// Gives a partition's directory the name of one that is out of service; durable after a sync of this directory.
    pub(crate) fn rename_aside(
        &self,
        partition: &TopicPartition,
        why: SetAside,
        due_mono_ms: u64,
    ) -> io::Result<()> {
        let path = self.path.join(set_aside_name(partition, why, &uuid::random()));
        let before = self.partition_path(partition);
        let bytes = (why == SetAside::Stray).then(|| bytes_in(&*self.storage, &before));
        self.storage.rename(&before, &path)?;
        match why {
            SetAside::Delete => self.doomed.lock().push(Doomed { path, due_mono_ms }),
            SetAside::Stray => {
                self.strays.add(bytes.unwrap_or_default());
                tracing::debug!(%partition, path = %path.display(), "a stray partition is set aside");
            }
        }
        Ok(())
    }

    /// Removes partitions that are not in this directory any more from the checkpoints, durably.
    pub fn forget(&self, partitions: &[TopicPartition]) -> io::Result<()> {
        let gone: BTreeSet<_> = partitions.iter().collect();
        self.unopened.lock().retain(|partition| !gone.contains(partition));
        self.forget_segments(partitions)?;
        self.checkpoints.retain(|partition| !gone.contains(partition))
    }

    /// Removes the directories whose time has come, on a helper thread. Returns their number.
    pub fn remove_doomed(&self, mono_ms: u64) -> usize {
        let due: Vec<_> = self.doomed.lock().extract_if(.., |doomed| doomed.due_mono_ms <= mono_ms).collect();
        let count = due.len();
        if count > 0 {
            let storage = self.storage.clone();
            let job = Box::new(move || due.iter().for_each(|doomed| remove(&*storage, &doomed.path)));
            // After the stop they wait for the next start, as any name of this kind does.
            let _ = self.flusher.run(job);
        }
        count
    }

    /// Watches the recoveries of its logs.
    pub fn recovery_watch(&self) -> &RecoveryWatch {
        &self.recovery_watch
    }

    /// Notes that a panic interrupted a change of a partition's log, so that its state cannot be trusted. The directory
    /// then does not count as left in order at its next stop, so that the next start checks it.
    pub fn distrust(&self, partition: &TopicPartition) {
        self.note_opened(partition, false);
    }

    /// Notes whether a partition's log could be opened.
    pub(crate) fn note_opened(&self, partition: &TopicPartition, opened: bool) {
        let mut unopened = self.unopened.lock();
        if opened {
            unopened.remove(partition);
        } else {
            unopened.insert(partition.clone());
        }
    }

    /// Notes that all logs were recovered. After a kill under this boot all writes are in the page cache from here on. If a log
    /// could not be opened, the next start has to check no less than this one.
    pub fn recovered(&self) -> io::Result<()> {
        if self.health.sync_failed.load(Ordering::Acquire) || !self.unopened.lock().is_empty() {
            return Ok(());
        }
        self.health.boot_record.write(&self.boot_id).inspect_err(|error| self.note_error(error))
    }

    /// Takes the directory offline. The first reason stays; partitions ask [`Self::failure`].
    pub fn fail(&self, error: &io::Error) {
        self.health.fail(error);
    }

    /// Takes the directory offline if an error is the medium's, and not that of one file; notes a full disk.
    pub fn note_error(&self, error: &io::Error) {
        match StorageFault::of(error) {
            StorageFault::NoSpace => self.note_full(),
            StorageFault::Medium => self.fail(error),
            StorageFault::NoHandles | StorageFault::File => {}
        }
    }

    /// As [`Self::note_error`], of what a log reports.
    pub(crate) fn note_failure(&self, error: &LogError) {
        if let LogError::Io { source, .. } = error {
            self.note_error(source);
        }
    }

    /// Notes a failed sync that the flusher does not know of. The page cache may differ from the disk, so that the next start
    /// checks everything since the last sync.
    pub fn note_failed_sync(&self, error: &io::Error) {
        self.health.note_failed_sync(error);
    }

    /// The reason for which the directory is offline; `None` while it is online.
    pub fn failure(&self) -> Option<&DirFailure> {
        self.health.failure.get()
    }

    /// Returns true if a sync has failed since the start. The partitions of that sync are stopped.
    pub fn has_failed_sync(&self) -> bool {
        self.health.sync_failed.load(Ordering::Acquire)
    }

    /// Notes the epoch of the broker's registration. From it Kafka sees whether the broker stopped in order.
    pub fn set_broker_epoch(&self, epoch: i64) {
        self.broker_epoch.store(epoch, Ordering::Release);
    }

    /// Stops in order, after every log was flushed with all its names, and closed, and has noted its recovery
    /// point. What still waits for the flusher is synced. `false`: no marker was written, because a sync failed, the
    /// directory is offline, or a log in it could not be opened; the next start checks.
    pub fn stop_clean(&self) -> io::Result<bool> {
        self.flusher.stop(FlusherStop::Drain);
        if self.failure().is_some() || self.health.sync_failed.load(Ordering::Acquire) {
            return Ok(false);
        }
        for checkpoint in self.checkpoints.all() {
            checkpoint.commit()?;
        }
        // Names for which no caller had to wait, such as those of deleted segments' directories.
        let segments_crc = self.write_segments()?;
        self.storage.sync_dir(&self.path)?;
        if !self.unopened.lock().is_empty() {
            return Ok(false);
        }
        let broker_epoch = self.broker_epoch.load(Ordering::Acquire);
        let marker = CleanShutdown::new(&self.boot_id, broker_epoch, segments_crc);
        marker.write(&*self.storage, &self.path)?;
        Ok(true)
    }
}

/// Measures an `fdatasync` after an append of 4 KiB in a directory: the median of at least one, in about 2 ms. For the ready
/// line.
pub fn measure_fdatasync(storage: &dyn Storage, dir: &Path) -> io::Result<Duration> {
    let path = dir.join(PROBE);
    let measured = measure_appends(storage, &path, PROBE_TIME);
    let removed = storage.remove_file(&path);
    let median = measured?;
    removed.map(|()| median)
}

fn measure_appends(storage: &dyn Storage, path: &Path, time: Duration) -> io::Result<Duration> {
    let file = storage.open(path, OpenMode::Create)?;
    let start = Instant::now();
    let mut costs = Vec::new();
    // The first is done even if this thread had to wait for a CPU for all of the time.
    while costs.is_empty() || (costs.len() < PROBES && start.elapsed() < time) {
        write_all_at(&*file, &[0x5a; 4096], costs.len() as u64 * 4096)?;
        let before = Instant::now();
        file.sync_data()?;
        costs.push(before.elapsed());
    }
    costs.sort_unstable();
    Ok(costs[costs.len() / 2])
}

fn remove(storage: &dyn Storage, path: &Path) {
    if let Err(error) = storage.remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "a deleted partition could not be removed");
    }
}

/// Returns the function that the flusher calls after a failed sync.
fn on_failure(storage: &Arc<dyn Storage>, health: &Arc<Health>) -> OnFailure {
    let (storage, health) = (storage.clone(), health.clone());
    Arc::new(move |error| {
        // No sync was tried: a partition's directory was set aside after the flusher had asked for its work. The flusher
        // notifies the targets that still use the partition.
        if error.kind() == io::ErrorKind::NotFound && storage.sync_dir(&health.path).is_ok() {
            return;
        }
        health.note_failed_sync(error);
        if !StorageFault::of(error).is_temporary() {
            health.fail(error);
        }
    })
}

#[cfg(test)]
mod tests;
