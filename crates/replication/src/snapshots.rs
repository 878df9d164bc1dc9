//! Snapshots of what a replica has applied, as files beside its log (KIP-630): `<end offset>-<epoch>.checkpoint`.
//!
//! Their content is described in `snapshot_format` of the controller's crate. Here is how they come to be and go: written at once or
//! received in ranges, always under another name until the file is whole and on disk. The last two are kept, and the log back to the
//! older of them ([`log_kept_from`]): where the newer one cannot be read, a start has another one to begin with.
//!
//! A power cut leaves, at any point, the snapshots that there were, and perhaps one more. One that is ahead of the log was
//! received and not taken over: [`Snapshots::open`] leaves it out.

use crate::group::Configuration;
use crate::journal::Start;
use mainstem_log::storage::{
    OpenMode, Storage, StorageFile, read_exact_at, read_full_at, replace_file, write_all_at,
};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The end of the names of snapshots.
const SUFFIX: &str = ".checkpoint";
/// The end of the name of one that is not finished.
const UNFINISHED: &str = ".checkpoint.tmp";
/// The name of the one that is being received: one at a time.
const RECEIVED: &str = "received.checkpoint.tmp";
/// The number of snapshots that are kept.
const KEPT: usize = 2;
/// Bytes of a snapshot that go over a link at once.
pub const SNAPSHOT_RANGE_BYTES: u32 = 256 << 10;
/// The largest snapshot that is written, received or read: metadata of ten million partitions.
pub const SNAPSHOT_BYTES_MAX: u64 = 1 << 30;

/// A snapshot by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotFile {
    /// It holds what the log says below this offset.
    pub end_offset: i64,
    /// The leader epoch of the last entry that it holds.
    pub epoch: i32,
    /// Its path.
    pub path: PathBuf,
}

impl SnapshotFile {
    /// Names a snapshot.
    pub fn new(dir: &Path, end_offset: i64, epoch: i32) -> SnapshotFile {
        let path = dir.join(format!("{end_offset:020}-{epoch:010}{SUFFIX}"));
        SnapshotFile { end_offset, epoch, path }
    }

    /// Names the snapshot that ends at a position of a group.
    pub fn at(dir: &Path, start: Start) -> SnapshotFile {
        // Terms beyond are refused by the replica.
        SnapshotFile::new(dir, start.offset, i32::try_from(start.term).unwrap_or(i32::MAX))
    }

    fn parse(dir: &Path, name: &str) -> Option<SnapshotFile> {
        let (end_offset, epoch) = name.strip_suffix(SUFFIX)?.split_once('-')?;
        if end_offset.len() != 20 || epoch.len() != 10 {
            return None;
        }
        let (end_offset, epoch) = (end_offset.parse().ok()?, epoch.parse().ok()?);
        Some(SnapshotFile { end_offset, epoch, path: dir.join(name) })
    }

    /// The snapshots in a directory, the newest last.
    ///
    /// # Errors
    /// The storage's.
    pub fn list(storage: &dyn Storage, dir: &Path) -> io::Result<Vec<SnapshotFile>> {
        let names = storage.list(dir)?;
        let mut found: Vec<_> = names.iter().filter_map(|entry| Self::parse(dir, &entry.name)).collect();
        found.sort();
        Ok(found)
    }

    /// Writes it, durable with its name when this returns.
    ///
    /// # Errors
    /// The storage's.
    pub fn write(&self, storage: &dyn Storage, bytes: &[u8]) -> io::Result<()> {
        replace_file(storage, &self.path, bytes)
    }

    /// Removes all others, and what a crash left half written.
    ///
    /// # Errors
    /// The storage's.
    pub fn remove_others(&self, storage: &dyn Storage) -> io::Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("."));
        remove(storage, dir, |file| *file != *self)
    }
}

/// Removes the snapshots that are not wanted, and all that is not finished.
fn remove(storage: &dyn Storage, dir: &Path, is_old: impl Fn(&SnapshotFile) -> bool) -> io::Result<()> {
    for entry in storage.list(dir)? {
        let is_old = SnapshotFile::parse(dir, &entry.name).is_some_and(|file| is_old(&file));
        if is_old || entry.name.ends_with(UNFINISHED) {
            storage.remove_file(&dir.join(&entry.name))?;
        }
    }
    Ok(())
}

/// A snapshot that a leader has for a replica which needs entries that are not in its log any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotOffer {
    /// The last entry that it holds.
    pub start: Start,
    /// The members of the group then.
    pub configuration: Configuration,
    /// Bytes of the file.
    pub len: u64,
    /// CRC-32C of all of them.
    pub crc: u32,
}

/// Which bytes are a snapshot: its length, and the CRC-32C of all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotContent {
    /// The last entry that it holds.
    pub start: Start,
    /// Bytes of the file.
    pub len: u64,
    /// CRC-32C of all of them.
    pub crc: u32,
}

impl SnapshotContent {
    /// That of these bytes.
    pub fn of(start: Start, bytes: &[u8]) -> SnapshotContent {
        SnapshotContent { start, len: bytes.len() as u64, crc: crc32c::crc32c(bytes) }
    }
}

/// From where on the log is kept, now that there are snapshots; `None`: all of it.
///
/// `snapshots` is where the snapshots end, in ascending order: the log is kept back to the last but one. A leader keeps it
/// back to the end of the slowest voter too (`slowest`), as long as the log has no more than `log_bytes_max` bytes: what
/// is further behind gets a snapshot.
pub fn log_kept_from(
    snapshots: &[i64],
    slowest: Option<i64>,
    log_bytes: u64,
    log_bytes_max: u64,
) -> Option<i64> {
    let kept = *snapshots.get(snapshots.len().checked_sub(KEPT)?)?;
    match slowest {
        Some(slowest) if log_bytes <= log_bytes_max => Some(slowest.min(kept)),
        _ => Some(kept),
    }
}

/// The snapshots of one replica.
#[derive(Debug)]
pub struct Snapshots {
    storage: Arc<dyn Storage>,
    dir: PathBuf,
    /// The newest last.
    files: Vec<SnapshotFile>,
}

impl Snapshots {
    /// Those in the directory of a log that ends at `log_end`, without what the log has not reached: it was to take the
    /// log's place, and did not. What is not finished is removed.
    ///
    /// # Errors
    /// The storage's.
    pub fn open(storage: Arc<dyn Storage>, dir: &Path, log_end: i64) -> io::Result<Snapshots> {
        remove(&*storage, dir, |_| false)?;
        let mut files = SnapshotFile::list(&*storage, dir)?;
        files.retain(|file| file.end_offset <= log_end);
        Ok(Snapshots { storage, dir: dir.to_owned(), files })
    }

    /// All, the newest last.
    pub fn files(&self) -> &[SnapshotFile] {
        &self.files
    }

    /// Their ends, in ascending order.
    pub fn ends(&self) -> Vec<i64> {
        self.files.iter().map(|file| file.end_offset).collect()
    }

    /// Writes one, durable with its name when this returns.
    ///
    /// # Errors
    /// The storage's. There is the snapshot then, or there is not.
    pub fn write(&mut self, start: Start, bytes: &[u8]) -> io::Result<SnapshotContent> {
        if bytes.len() as u64 > SNAPSHOT_BYTES_MAX {
            let what = format!("a snapshot of {} bytes, more than {SNAPSHOT_BYTES_MAX}", bytes.len());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        let file = SnapshotFile::at(&self.dir, start);
        file.write(&*self.storage, bytes)?;
        self.note(file);
        Ok(SnapshotContent::of(start, bytes))
    }

    fn note(&mut self, file: SnapshotFile) {
        self.files.retain(|other| *other != file);
        self.files.push(file);
        self.files.sort();
    }

    /// Removes one that was received and not taken over: the log has gone on without it, or will.
    ///
    /// # Errors
    /// The storage's; it is removed with the next one that is written then.
    pub fn remove(&mut self, file: &SnapshotFile) -> io::Result<()> {
        self.distrust(file);
        self.storage.remove_file(&file.path)
    }

    /// Notes that one cannot be used. It is removed with the next one that is written, or by a person.
    pub fn distrust(&mut self, file: &SnapshotFile) {
        self.files.retain(|other| other != file);
    }

    /// Removes all but those that are kept, and those from which the log does not go on. A torn one goes, too.
    ///
    /// # Errors
    /// The storage's; what is left is removed the next time.
    pub fn remove_old(&mut self, log_start: i64) -> io::Result<()> {
        let first = self.files.len().saturating_sub(KEPT);
        self.files.drain(..first);
        self.files.retain(|file| file.end_offset >= log_start);
        let (storage, kept) = (&*self.storage, &self.files);
        let is_old = |file: &SnapshotFile| !kept.contains(file);
        for file in SnapshotFile::list(storage, &self.dir)?.into_iter().filter(is_old) {
            storage.remove_file(&file.path)?;
        }
        Ok(())
    }

    /// Begins to receive a snapshot, in the place of what was received before.
    ///
    /// # Errors
    /// The storage's, or the offer's that is larger than any snapshot.
    pub fn receive(&self, offer: SnapshotOffer) -> Result<Receiving, ReceiveError> {
        if offer.len == 0 || offer.len > SNAPSHOT_BYTES_MAX {
            return Err(ReceiveError::Length(offer.len));
        }
        let path = self.dir.join(RECEIVED);
        let file = self.storage.open(&path, OpenMode::Create)?;
        file.set_len(0)?;
        Ok(Receiving { offer, path, file, position: 0, crc: 0 })
    }

    /// Gives a snapshot its name that was received whole. Durable when this returns.
    ///
    /// # Errors
    /// The storage's.
    pub fn finish(&mut self, received: &Received) -> io::Result<SnapshotFile> {
        let file = SnapshotFile::at(&self.dir, received.offer.start);
        self.storage.rename(&received.path, &file.path)?;
        self.storage.sync_dir(&self.dir)?;
        self.note(file.clone());
        Ok(file)
    }
}

/// Reads a range of a snapshot, for another replica. At most [`SNAPSHOT_RANGE_BYTES`], and fewer at the end.
///
/// # Errors
/// The storage's; `NotFound` where the snapshot is gone.
pub fn read_range(
    storage: &dyn Storage,
    file: &SnapshotFile,
    position: u64,
    len: u32,
) -> io::Result<Vec<u8>> {
    let file = storage.open(&file.path, OpenMode::Read)?;
    let mut bytes = vec![0; len.min(SNAPSHOT_RANGE_BYTES) as usize];
    let read = read_full_at(&*file, &mut bytes, position)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Why a snapshot was not received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The disk refused.
    #[error("cannot write what was received of a snapshot: {0}")]
    Io(#[from] io::Error),
    /// No snapshot is so long.
    #[error("a snapshot of {0} bytes was offered, and none has so many")]
    Length(u64),
    /// A range came that was not asked for.
    #[error("{len} bytes came of a snapshot at {position}, which were not asked for")]
    Range {
        /// Their position, as it was said.
        position: u64,
        /// Their number.
        len: usize,
    },
    /// The bytes are not those that were offered.
    #[error("a snapshot arrived with the checksum {found:#010x}, and was offered with {offered:#010x}")]
    Checksum {
        /// The checksum of what arrived.
        found: u32,
        /// The checksum of the offer.
        offered: u32,
    },
}

/// A snapshot that is being received, in order. In memory is one range at a time.
#[derive(Debug)]
pub struct Receiving {
    offer: SnapshotOffer,
    path: PathBuf,
    file: Arc<dyn StorageFile>,
    position: u64,
    crc: u32,
}

impl Receiving {
    /// The offer.
    pub fn offer(&self) -> &SnapshotOffer {
        &self.offer
    }

    /// The range to ask for next, as position and length; `None`: all is here.
    pub fn next_range(&self) -> Option<(u64, u32)> {
        let left = self.offer.len - self.position;
        (left > 0).then(|| (self.position, u32::try_from(left).unwrap_or(u32::MAX).min(SNAPSHOT_RANGE_BYTES)))
    }

    /// Writes a range that has come. One that came before, as the answer to a question that was asked twice, is of no
    /// consequence.
    ///
    /// # Errors
    /// See [`ReceiveError`]. What was received is not to be used any more.
    pub fn take(&mut self, position: u64, bytes: &[u8]) -> Result<(), ReceiveError> {
        if position < self.position {
            return Ok(());
        }
        let asked = self.next_range();
        let fits = asked.is_some_and(|(at, len)| at == position && bytes.len() <= len as usize);
        if !fits || bytes.is_empty() {
            return Err(ReceiveError::Range { position, len: bytes.len() });
        }
        write_all_at(&*self.file, bytes, position)?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// Checks and syncs what has come, when all has ([`Receiving::next_range`]). It gets its name by [`Snapshots::finish`].
    ///
    /// # Errors
    /// See [`ReceiveError`].
    pub fn check(self) -> Result<Received, ReceiveError> {
        let (found, offered) = (self.crc, self.offer.crc);
        if self.position != self.offer.len || found != offered {
            return Err(ReceiveError::Checksum { found, offered });
        }
        self.file.sync_data()?;
        Ok(Received { offer: self.offer, path: self.path, file: self.file })
    }
}

/// A snapshot that was received whole, and has no name yet.
#[derive(Debug)]
pub struct Received {
    offer: SnapshotOffer,
    path: PathBuf,
    file: Arc<dyn StorageFile>,
}

impl Received {
    /// The offer.
    pub fn offer(&self) -> &SnapshotOffer {
        &self.offer
    }

    /// All of its bytes.
    ///
    /// # Errors
    /// The storage's.
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.offer.len as usize];
        read_exact_at(&*self.file, &mut bytes, 0)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests;
