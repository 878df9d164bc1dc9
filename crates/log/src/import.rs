//! A copy of the beginning of another replica's log, on its way into a log directory.
//!
//! It grows in a directory `<topic>-<partition>.<id>-future`. A file [`INCOMING`] in it has the description of the copy, which only
//! its owner understands, and how many bytes are durable, so that a restart resumes. When all is there, [`Import::finish`] checks every
//! batch and opens the log; the log takes the place of the old one in steps, each of which may be the last:
//!
//! | step | directory of the partition | directory of the copy | a start |
//! |---|---|---|---|
//! | the owner has noted the id durably | the old log | whole | finishes ([`LogDir::finish_import`]) |
//! | set aside | `-delete` | whole | finishes |
//! | checkpoints written | `-delete` | whole | finishes |
//! | named | the new log | | finds the new log |
//!
//! ```text
//! mainstem.incoming
//! +----------+-------------+----------+------------+----------------+-----------------------+----------+-------------+
//! | magic: 8 | synced: u64 | crc: u32 | start: i64 | log start: i64 | compacted to: i64     | crc: u32 | description |
//! |          |             | of it    |            |                | (-1: never compacted) | of all   |             |
//! +----------+-------------+----------+------------+----------------+-----------------------+----------+-------------+
//! ```
//! Numbers are big-endian. The first checksum covers `synced`; the second one what is behind it, the description included.

use crate::append::create_segment_files;
use crate::config::LogConfig;
use crate::dir::{LastStop, LogDir};
use crate::error::LogError;
use crate::export::ExportedFile;
use crate::files::{FileState, PartitionFiles, SegmentFileName};
use crate::flusher::FlushWork;
use crate::leader_epochs::{EpochEntry, LEADER_EPOCH_CHECKPOINT, LeaderEpochs};
use crate::log::Log;
use crate::partition_dir::{SetAside, TopicPartition, future_name};
use crate::producer_snapshot;
use crate::read_mode::ReadMode;
use crate::recovery::Left;
use crate::recovery_watch::RecoveryWatch;
use crate::scan::{BatchScan, RECOVERY_CHUNK_BYTES, Scanned};
use crate::segment::blocking;
use crate::storage::{
    OpenMode, StorageFault, StorageFile, read_exact_at, read_small_file, replace_file, write_all_at,
};
use crate::uuid;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the file that says that a directory is a copy on its way, and of which log.
pub(crate) const INCOMING: &str = "mainstem.incoming";

const MAGIC: [u8; 8] = *b"msincom1";
const SYNCED_AT: u64 = 8;
const ENDS_AT: usize = 20;
const CRC_AT: usize = 44;
const DESCRIPTION_AT: usize = 48;
/// A description has at most so many bytes.
const DESCRIPTION_BYTES_MAX: usize = 8 << 20;

/// The id of a copy: a part of its directory's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportId(pub [u8; 16]);

impl ImportId {
    /// One that no other copy has.
    pub fn random() -> ImportId {
        ImportId(uuid::random())
    }
}

/// The offsets between which a copy has the records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportEnds {
    /// The log start.
    pub log_start: i64,
    /// The offset behind the copy: its log continues here.
    pub end: i64,
    /// The offset up to which it is compacted; `None`: it never was.
    pub compacted_to: Option<i64>,
}

/// The reason for which a copy is of no use, or not now.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The disk refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The bytes that came are not those of a log.
    #[error("the copy is damaged: {} at byte {position}: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The byte position in the file.
        position: u64,
        /// The defect.
        reason: &'static str,
    },
}

impl ImportError {
    /// The meaning of what the file system has said; `None`: it was not asked.
    pub fn fault(&self) -> Option<StorageFault> {
        match self {
            ImportError::Log(error) => error.fault(),
            ImportError::Damaged { .. } => None,
        }
    }
}

/// A copy that grows.
#[derive(Debug)]
pub struct Import {
    dir: Arc<LogDir>,
    files: PartitionFiles,
    partition: TopicPartition,
    id: ImportId,
    ends: ImportEnds,
    mark: Arc<dyn StorageFile>,
    /// The file that was written to last.
    writing: Option<(ExportedFile, Arc<dyn StorageFile>)>,
    unsynced: Vec<Arc<dyn StorageFile>>,
    has_new_names: bool,
}

/// A copy that a directory has from earlier.
#[derive(Debug)]
pub struct FoundImport {
    /// The copy.
    pub import: Import,
    /// Its description.
    pub description: Vec<u8>,
    /// Bytes of its files, in the order of the description, that are durable.
    pub synced: u64,
}

impl Import {
    /// Creates the directory of a copy. It is durable with the first [`sync`](Self::sync).
    ///
    /// # Errors
    /// The file system's.
    pub fn create(
        dir: &Arc<LogDir>,
        partition: &TopicPartition,
        topic_id: &[u8; 16],
        ends: ImportEnds,
        description: &[u8],
    ) -> Result<Import, LogError> {
        let id = ImportId::random();
        let path = dir.path().join(future_name(partition, &id.0));
        let storage = dir.storage();
        storage.create_dir(&path).map_err(LogError::io("create", &*path))?;
        // The mark first: a copy without one is taken for a move between log directories.
        let mark = write_mark(dir, &path, ends, description)?;
        let metadata = crate::partition_metadata::write_topic_id(&**storage, &path, topic_id);
        let metadata = metadata.map_err(LogError::io("write the topic id in", &*path))?;
        let unsynced = vec![metadata];
        let files = files_in(dir, path);
        let (dir, partition) = (dir.clone(), partition.clone());
        Ok(Import { dir, files, partition, id, ends, mark, writing: None, unsynced, has_new_names: true })
    }

    /// Finds the copy of a partition that a directory has, if it has a sound one; others are removed.
    ///
    /// # Errors
    /// The file system's.
    pub fn find(
        dir: &Arc<LogDir>,
        partition: &TopicPartition,
        topic_id: &[u8; 16],
    ) -> Result<Option<FoundImport>, LogError> {
        let io_error = |error| LogError::io("look for copies in", dir.path())(error);
        let mut kept = None;
        for found in dir.futures().map_err(io_error)? {
            let is_of = found.topic_id == Some(*topic_id) && found.partition == partition.partition;
            if !is_of || !found.is_import {
                continue;
            }
            match Import::open(dir, partition, &found.path)? {
                Some(import) if kept.is_none() => kept = Some(import),
                _ => dir.remove_future(&found.path).map_err(LogError::io("remove", found.path))?,
            }
        }
        Ok(kept)
    }

    fn open(
        dir: &Arc<LogDir>,
        partition: &TopicPartition,
        path: &Path,
    ) -> Result<Option<FoundImport>, LogError> {
        let Some(id) = id_of(path, partition) else { return Ok(None) };
        let Some(Mark { synced, ends, description }) = read_mark(dir, path)? else { return Ok(None) };
        let mark_path = path.join(INCOMING);
        let mark = dir.storage().open(&mark_path, OpenMode::ReadWrite);
        let mark = mark.map_err(LogError::io("open", mark_path))?;
        let files = files_in(dir, path.to_owned());
        let (dir, partition) = (dir.clone(), partition.clone());
        let (writing, unsynced, has_new_names) = (None, Vec::new(), true);
        let import = Import { dir, files, partition, id, ends, mark, writing, unsynced, has_new_names };
        Ok(Some(FoundImport { import, description, synced }))
    }

    /// Makes it a copy of something else, of which it may have files: those of `wanted` stay as far as they are here, all others go.
    /// Returns the bytes of each of `wanted` that are here; they have to be compared.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin_again(
        &mut self,
        ends: ImportEnds,
        description: &[u8],
        wanted: &[ExportedFile],
    ) -> Result<Vec<u64>, LogError> {
        self.writing = None;
        self.unsynced.clear();
        // Nothing is known of what is here, durably, before anything changes.
        self.mark = write_mark(&self.dir, &self.files.dir, ends, description)?;
        self.ends = ends;
        let path = &*self.files.dir;
        let names = self.files.storage.list(path).map_err(LogError::io("list", path))?;
        let mut found = vec![0; wanted.len()];
        for entry in names {
            let Some(name) = SegmentFileName::parse(&entry.name) else { continue };
            let is_same =
                |file: &ExportedFile| (file.base_offset, file.kind()) == (name.base_offset, name.kind);
            match wanted.iter().position(is_same).filter(|_| name.state == FileState::Live) {
                Some(at) if entry.len <= wanted[at].len => found[at] = entry.len,
                _ => self.files.remove_path(&path.join(&entry.name))?,
            }
        }
        Ok(found)
    }

    /// Writes bytes of a file.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&mut self, file: &ExportedFile, position: u64, bytes: &[u8]) -> Result<(), LogError> {
        let open = self.writing.as_ref().filter(|(open, _)| open == file).map(|(_, open)| open.clone());
        let handle = match open {
            Some(handle) => handle,
            None => {
                let handle = self.files.open(file.base_offset, file.kind())?;
                self.has_new_names = true;
                self.unsynced.push(handle.clone());
                self.writing = Some((*file, handle.clone()));
                handle
            }
        };
        let path = || self.files.path(file.base_offset, file.kind());
        write_all_at(&*handle, bytes, position).map_err(|error| LogError::io("write", path())(error))
    }

    /// The CRC-32C of a range that is here; `None`: it is not here.
    ///
    /// # Errors
    /// The file system's.
    pub fn crc_of(&self, file: &ExportedFile, position: u64, len: u32) -> Result<Option<u32>, LogError> {
        let path = self.files.path(file.base_offset, file.kind());
        let mut bytes = vec![0; len as usize];
        let opened = self.files.storage.open(&path, OpenMode::Read);
        match opened.and_then(|file| read_exact_at(&*file, &mut bytes, position)) {
            Ok(()) => Ok(Some(crc32c::crc32c(&bytes))),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof) => {
                Ok(None)
            }
            Err(error) => Err(LogError::io("read", path)(error)),
        }
    }

    /// Has a file synced with the others of which a range was compared, and not written.
    ///
    /// # Errors
    /// The file system's.
    pub fn note_kept(&mut self, file: &ExportedFile) -> Result<(), LogError> {
        if !self.writing.as_ref().is_some_and(|(open, _)| open == file) {
            self.write(file, 0, &[])?;
        }
        Ok(())
    }

    /// Makes durable what was written, and then that `received` bytes are. Blocks on the disk.
    ///
    /// # Errors
    /// The file system's. The copy is to be opened again then, or removed: what was written may be lost.
    pub fn sync(&mut self, received: u64) -> Result<(), LogError> {
        let path = self.files.dir.clone();
        let failed = |error| LogError::io("sync", &*path)(error);
        for file in self.unsynced.drain(..) {
            file.sync_data().map_err(failed)?;
        }
        if let Some((_, open)) = &self.writing {
            self.unsynced.push(open.clone());
        }
        if std::mem::take(&mut self.has_new_names) {
            let storage = &self.files.storage;
            storage.sync_dir(&path).and_then(|()| storage.sync_dir(self.dir.path())).map_err(failed)?;
        }
        write_all_at(&*self.mark, &encode_synced(received), SYNCED_AT)
            .and_then(|()| self.mark.sync_data())
            .map_err(failed)
    }

    /// Bytes of its files.
    ///
    /// # Errors
    /// The file system's.
    pub fn bytes(&self) -> Result<u64, LogError> {
        let path = &*self.files.dir;
        let names = self.files.storage.list(path).map_err(LogError::io("list", path))?;
        let files = names.iter().filter(|entry| SegmentFileName::parse(&entry.name).is_some());
        Ok(files.map(|entry| entry.len).sum())
    }

    /// Files that were written to and not synced. They are open.
    pub fn unsynced_files(&self) -> usize {
        self.unsynced.len()
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.files.dir
    }

    /// The log directory that it is in.
    pub fn dir(&self) -> &Arc<LogDir> {
        &self.dir
    }

    /// Removes the copy.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(self) -> io::Result<()> {
        self.dir.remove_future(&self.files.dir)
    }

    /// Checks each batch of a copy that is whole, derives the indexes, and opens its log, in which all is durable. Reads all of it, unless
    /// `watch` breaks that off.
    ///
    /// # Errors
    /// [`ImportError::Damaged`]: the copy is of no use.
    pub fn finish(
        mut self,
        files: &[ExportedFile],
        epochs: &[EpochEntry],
        (config, mono_ms): (Arc<LogConfig>, u64),
        watch: &Arc<RecoveryWatch>,
    ) -> Result<ImportedLog, ImportError> {
        self.writing = None;
        self.unsynced.clear();
        self.remove_derived(files)?;
        self.check_files(files, watch)?;
        self.write_epochs(epochs)?;
        create_segment_files(&self.files, self.ends.end)?;
        let left = Left {
            last_stop: LastStop::Clean,
            recovery_point: self.ends.end,
            noted_start: self.ends.log_start,
            keeps_deleted: true,
            keeps_noted: true,
            watch: Some(watch.clone()),
            names: FlushWork::default(),
        };
        let Import { dir, files, partition, id, ends, .. } = self;
        let (log, _) = Log::open_in(&dir, files.dir.to_path_buf(), partition, config, left, mono_ms)?;
        if log.log_end != ends.end || log.log_start != ends.log_start {
            let reason = "the log does not have the ends that were said";
            return Err(ImportError::Damaged { path: files.dir.to_path_buf(), position: 0, reason });
        }
        sync_all(&files)?;
        Ok(ImportedLog { log, id, ends })
    }

    /// Removes what an earlier attempt has derived, and may not have finished.
    fn remove_derived(&self, wanted: &[ExportedFile]) -> Result<(), LogError> {
        let path = &*self.files.dir;
        for entry in self.files.storage.list(path).map_err(LogError::io("list", path))? {
            let Some(name) = SegmentFileName::parse(&entry.name) else { continue };
            let is_wanted = wanted.iter().any(|file| {
                (file.base_offset, file.kind(), FileState::Live) == (name.base_offset, name.kind, name.state)
            });
            if !is_wanted {
                self.files.remove_path(&path.join(&entry.name))?;
            }
        }
        Ok(())
    }

    fn check_files(&self, files: &[ExportedFile], watch: &RecoveryWatch) -> Result<(), ImportError> {
        let mut end = 0;
        for file in files {
            match file.is_snapshot {
                true => self.check_snapshot(file)?,
                false => end = self.check_batches(file, end, watch)?,
            }
        }
        Ok(())
    }

    fn damaged(&self, file: &ExportedFile, position: u64, reason: &'static str) -> ImportError {
        let path = self.files.path(file.base_offset, file.kind());
        ImportError::Damaged { path, position, reason }
    }

    fn check_snapshot(&self, file: &ExportedFile) -> Result<(), ImportError> {
        let path = self.files.path(file.base_offset, file.kind());
        let len_max = producer_snapshot::SNAPSHOT_BYTES_MAX;
        let read = read_small_file(&*self.files.storage, &path, len_max);
        let bytes = read.map_err(LogError::io("read", path))?;
        match producer_snapshot::decode(&bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.damaged(file, 0, "it is no snapshot of producers")),
        }
    }

    /// Reads and checks every batch of a segment; returns the offset behind it.
    fn check_batches(
        &self,
        file: &ExportedFile,
        begin: i64,
        watch: &RecoveryWatch,
    ) -> Result<i64, ImportError> {
        let path = self.files.path(file.base_offset, file.kind());
        let failed = |action| LogError::io(action, &*path);
        let opened = self.files.storage.open(&path, OpenMode::ReadWrite).map_err(failed("open"))?;
        if opened.len().map_err(failed("measure"))? != file.len || file.base_offset < begin {
            return Err(self.damaged(
                file,
                0,
                "it has another length, or begins before the end of the one before",
            ));
        }
        let first = file.base_offset;
        let mut batches =
            BatchScan::new(&*opened, ReadMode::Blocking, 0..file.len, first, RECOVERY_CHUNK_BYTES);
        loop {
            match blocking(batches.next(true)).map_err(failed("read"))? {
                Scanned::Batch(batch) if batch.last_offset >= self.ends.end => {
                    return Err(self.damaged(file, batch.position, "a batch behind the end of the copy"));
                }
                Scanned::Batch(batch) => watch.walked(batch.size)?,
                Scanned::End => return Ok(batches.next_offset()),
                Scanned::Torn { position, reason } => return Err(self.damaged(file, position, reason)),
            }
        }
    }

    fn write_epochs(&self, entries: &[EpochEntry]) -> Result<(), LogError> {
        let mut epochs = LeaderEpochs::default();
        entries.iter().for_each(|entry| _ = epochs.assign(entry.epoch, entry.start_offset));
        let path = self.files.dir.join(LEADER_EPOCH_CHECKPOINT);
        replace_file(&*self.files.storage, &path, epochs.encode().as_bytes())
            .map_err(LogError::io("replace", path))
    }
}

/// The log of a whole copy, which has not the partition's name yet.
#[derive(Debug)]
pub struct ImportedLog {
    log: Log,
    id: ImportId,
    ends: ImportEnds,
}

impl ImportedLog {
    /// The id of the copy: [`LogDir::finish_import`] finds it by that.
    pub fn id(&self) -> ImportId {
        self.id
    }

    /// The offsets that it has.
    pub fn ends(&self) -> ImportEnds {
        self.ends
    }

    /// Takes the place of a log, whose directory is named `-delete` and is removed from `due_mono_ms` on. All is durable on return.
    /// Blocks on the disk.
    ///
    /// # Errors
    /// The file system's. The log is to be closed then: [`LogDir::finish_import`] does the rest at the next start.
    pub fn take_place(self, original: &mut Log, due_mono_ms: u64) -> Result<(), LogError> {
        let ImportedLog { log, ends, .. } = self;
        let config = original.config.clone();
        // The old one is closed before its name is given away: nothing of it is written under that name any more.
        drop(std::mem::replace(original, log));
        let log = original;
        log.config = config;
        let dir = log.dir.clone();
        let done = dir.replace_by_import(&log.partition, log.path(), ends, due_mono_ms);
        let path = done.inspect_err(|error| dir.note_failure(error))?;
        log.note_renamed(path);
        Ok(())
    }

    /// Removes the copy, which is not needed any more.
    ///
    /// # Errors
    /// The file system's.
    pub fn remove(self) -> io::Result<()> {
        let (dir, path) = (self.log.dir.clone(), self.log.files.dir.clone());
        drop(self.log);
        dir.remove_future(&path)
    }
}

impl LogDir {
    /// Finishes what a stop has interrupted: the copy of this id, which ends at `end`, takes the partition's name, before its log is
    /// opened. Nothing happens where it has the name. Returns false where neither is there: the copy is lost.
    ///
    /// # Errors
    /// The file system's.
    pub fn finish_import(
        &self,
        partition: &TopicPartition,
        (id, end): (ImportId, i64),
        due_mono_ms: u64,
    ) -> Result<bool, LogError> {
        let path = self.path().join(future_name(partition, &id.0));
        let exists = self.storage().exists(&path).map_err(LogError::io("look for", &*path))?;
        // The mark stays in the directory until the owner has noted that all is done.
        let named = self.partition_path(partition);
        let mark = read_mark(self, if exists { &path } else { &named })?;
        // One of another end is left from an earlier copy.
        let Some(Mark { ends, .. }) = mark.filter(|mark| mark.ends.end == end) else { return Ok(false) };
        match exists {
            true => self.replace_by_import(partition, &path, ends, due_mono_ms).map(drop)?,
            false => self.note_import(partition, ends)?,
        }
        Ok(true)
    }

    /// Forgets that a partition's log was a copy: the owner has noted durably that it is in its place.
    ///
    /// # Errors
    /// The file system's.
    pub fn forget_import(&self, partition: &TopicPartition) -> Result<(), LogError> {
        let path = self.partition_path(partition).join(INCOMING);
        match self.storage().remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(LogError::io("remove", path)(error)),
            _ => Ok(()),
        }
    }

    /// Gives a whole copy the partition's name, and sets aside what has it. All is durable on return.
    fn replace_by_import(
        &self,
        partition: &TopicPartition,
        path: &Path,
        ends: ImportEnds,
        due_mono_ms: u64,
    ) -> Result<PathBuf, LogError> {
        let failed = |error| LogError::io("rename", path)(error);
        match self.rename_aside(partition, SetAside::Delete, due_mono_ms) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => self.storage().sync_dir(self.path()).map_err(failed)?,
        }
        self.note_import(partition, ends)?;
        self.promote_future(path, partition).map_err(failed)
    }

    /// Notes the ends of a copy where the next start looks for them, durably.
    fn note_import(&self, partition: &TopicPartition, ends: ImportEnds) -> Result<(), LogError> {
        self.forget_left_segments(partition);
        let checkpoints = self.checkpoints();
        checkpoints.recovery_point.set(partition, ends.end);
        checkpoints.replication.set(partition, ends.end);
        checkpoints.log_start.set(partition, ends.log_start);
        match ends.compacted_to {
            Some(end) => checkpoints.cleaner.set(partition, end),
            None => _ = checkpoints.cleaner.retain(|other| other != partition),
        }
        let all = [
            &checkpoints.log_start,
            &checkpoints.cleaner,
            &checkpoints.replication,
            &checkpoints.recovery_point,
        ];
        let written = all.into_iter().try_for_each(|checkpoint| checkpoint.write());
        written.map_err(LogError::io("write the checkpoints in", self.path()))
    }
}

/// The content of [`INCOMING`].
struct Mark {
    synced: u64,
    ends: ImportEnds,
    description: Vec<u8>,
}

fn files_in(dir: &LogDir, path: PathBuf) -> PartitionFiles {
    let (storage, descriptors) = (dir.storage().clone(), dir.descriptors().clone());
    PartitionFiles { storage, descriptors, dir: Arc::from(path) }
}

/// The id in the name of a copy's directory, if it is one of the partition.
fn id_of(path: &Path, partition: &TopicPartition) -> Option<ImportId> {
    let name = path.file_name()?.to_str()?;
    let (_, id) = name.strip_suffix("-future")?.rsplit_once('.')?;
    let id = ImportId(uuid::from_hex(id)?);
    (future_name(partition, &id.0) == name).then_some(id)
}

fn encode_synced(synced: u64) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&synced.to_be_bytes());
    let crc = crc32c::crc32c(&bytes[..8]);
    bytes[8..].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// Writes the mark of a copy of which nothing is here, durably but for its name.
fn write_mark(
    dir: &LogDir,
    path: &Path,
    ends: ImportEnds,
    description: &[u8],
) -> Result<Arc<dyn StorageFile>, LogError> {
    assert!(description.len() <= DESCRIPTION_BYTES_MAX, "{}", description.len());
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&encode_synced(0));
    for number in [ends.end, ends.log_start, ends.compacted_to.unwrap_or(-1)] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[ENDS_AT..]), description);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes.extend_from_slice(description);
    let mark = path.join(INCOMING);
    let storage = &**dir.storage();
    replace_file(storage, &mark, &bytes).map_err(LogError::io("write", &*mark))?;
    storage.open(&mark, OpenMode::ReadWrite).map_err(LogError::io("open", mark))
}

/// Reads the mark in a directory; `None`: there is none, or it makes no sense.
fn read_mark(dir: &LogDir, path: &Path) -> Result<Option<Mark>, LogError> {
    let mark = path.join(INCOMING);
    match read_small_file(&**dir.storage(), &mark, DESCRIPTION_AT + DESCRIPTION_BYTES_MAX) {
        Ok(bytes) => Ok(decode_mark(&bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
            Ok(None)
        }
        Err(error) => Err(LogError::io("read", mark)(error)),
    }
}

fn decode_mark(bytes: &[u8]) -> Option<Mark> {
    let (head, description) = bytes.split_at_checked(DESCRIPTION_AT)?;
    let number = |at: usize| head.get(at..at + 8)?.try_into().ok().map(i64::from_be_bytes);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[ENDS_AT..CRC_AT]), description);
    if !head.starts_with(&MAGIC) || head[CRC_AT..] != crc.to_be_bytes() {
        return None;
    }
    // A power cut in the midst of a write leaves another number: then all is received again.
    let synced = number(8)?.cast_unsigned();
    let is_whole = head[8..ENDS_AT] == encode_synced(synced);
    let (end, log_start, compacted_to) = (number(20)?, number(28)?, number(36)?);
    let ends = ImportEnds { log_start, end, compacted_to: (compacted_to >= 0).then_some(compacted_to) };
    let is_sound = (0..=end).contains(&log_start);
    let synced = if is_whole { synced } else { 0 };
    is_sound.then(|| Mark { synced, ends, description: description.to_vec() })
}

/// Syncs every file of a copy, and its names.
fn sync_all(files: &PartitionFiles) -> Result<(), LogError> {
    let path = &*files.dir;
    let failed = |error| LogError::io("sync", path)(error);
    for entry in files.storage.list(path).map_err(LogError::io("list", path))? {
        if !entry.is_dir {
            let file = files.storage.open(&path.join(&entry.name), OpenMode::ReadWrite);
            file.and_then(|file| file.sync_data()).map_err(failed)?;
        }
    }
    files.sync_dir()
}

#[cfg(test)]
pub(crate) mod tests;
