//! The manifest of a copy: how far the copy goes, and its files.
//!
//! It comes from another node, so that decoding believes nothing. A manifest that was decoded has sound members, epochs and files in
//! order, and the producers' snapshot at its end.

use crate::encoding::{Fields, put_configuration, put_u64};
use crate::group::{Configuration, GroupId};
use crate::index::{has_epoch, term_of};
use crate::journal::Start;
use crate::snapshots::SnapshotContent;
use mainstem_log::EpochEntry;
use mainstem_records::LeaderEpoch;

/// The longest manifest in bytes: 240,000 segments.
pub const MANIFEST_BYTES_MAX: usize = 4 << 20;
const MAGIC: &[u8; 8] = b"mspsnap1";
const CHECKSUM_BYTES: usize = 4;
/// Epoch, start offset.
const EPOCH_BYTES: usize = 12;
/// Base offset, kind, length.
const FILE_BYTES: usize = 17;
/// The longest segment: positions in its index have 31 bits.
const LOG_BYTES_MAX: u64 = i32::MAX as u64;
/// The longest producers' snapshot, which is read as a whole.
const PRODUCERS_BYTES_MAX: u64 = 512 << 20;
/// Stands for "not compacted".
const NOT_COMPACTED: i64 = -1;

const FILES_MAX: u64 = (MANIFEST_BYTES_MAX / FILE_BYTES) as u64;
// The sum of the lengths never overflows.
const _: () = assert!(FILES_MAX.checked_mul(LOG_BYTES_MAX).is_some() && PRODUCERS_BYTES_MAX < LOG_BYTES_MAX);

/// The kind of a file. Offset, time and transaction indexes (1 to 3) are never copied: the target builds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFileKind {
    /// Record batches (`.log`).
    Log,
    /// The producers and open transactions at the start (`.snapshot`).
    Snapshot,
}

impl CopyFileKind {
    /// Its number on the wire.
    fn number(self) -> u8 {
        match self {
            CopyFileKind::Log => 0,
            CopyFileKind::Snapshot => 4,
        }
    }

    fn of_number(number: u8) -> Option<CopyFileKind> {
        match number {
            0 => Some(CopyFileKind::Log),
            4 => Some(CopyFileKind::Snapshot),
            _ => None,
        }
    }
}

/// A file of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyFile {
    /// The offset in its name: a segment's base offset, or that of the start for the snapshot.
    pub base_offset: i64,
    /// Its kind.
    pub kind: CopyFileKind,
    /// Its bytes: 1 to 2^31 - 1, for a snapshot at most 512 MiB.
    pub len: u64,
}

/// A copy: everything but the bytes of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The group whose partition is copied.
    pub group: GroupId,
    /// The end of the copy: the last entry in it, and the offset behind that.
    pub start: Start,
    /// The partition's first offset: 0 to the start's.
    pub log_start: i64,
    /// Offset up to which the files are compacted, by the leader's checkpoint, at most the start's; `None`: not compacted.
    pub compacted_to: Option<i64>,
    /// The members of the group at the start.
    pub configuration: Configuration,
    /// Leader epochs of records before the start, both numbers ascending.
    pub epochs: Vec<EpochEntry>,
    /// Segments by ascending base offset, then the snapshot at the start. There are no segments where the log starts at the start.
    pub files: Vec<CopyFile>,
}

/// Why bytes are no manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// They begin with something else, or are too few.
    #[error("no manifest of a copy")]
    NotAManifest,
    /// Some are not as they were.
    #[error("the manifest of a copy with a wrong checksum")]
    Checksum,
    /// The content makes no sense.
    #[error("the manifest of a copy that makes no sense: {0}")]
    Malformed(&'static str),
}

impl From<&'static str> for ManifestError {
    fn from(what: &'static str) -> ManifestError {
        ManifestError::Malformed(what)
    }
}

impl Manifest {
    /// Writes it. With more than 240,000 files it becomes longer than [`MANIFEST_BYTES_MAX`], and no replica takes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&self.group.topic_id);
        out.extend_from_slice(&self.group.partition.to_be_bytes());
        put_u64(&mut out, &[self.start.index, self.start.term, self.start.offset.cast_unsigned()]);
        let compacted_to = self.compacted_to.unwrap_or(NOT_COMPACTED);
        put_u64(&mut out, &[self.log_start.cast_unsigned(), compacted_to.cast_unsigned()]);
        put_configuration(&mut out, &self.configuration);
        out.extend_from_slice(&(self.epochs.len() as u32).to_be_bytes());
        for entry in &self.epochs {
            out.extend_from_slice(&entry.epoch.get().to_be_bytes());
            out.extend_from_slice(&entry.start_offset.to_be_bytes());
        }
        out.extend_from_slice(&(self.files.len() as u32).to_be_bytes());
        for file in &self.files {
            out.extend_from_slice(&file.base_offset.to_be_bytes());
            out.push(file.kind.number());
            put_u64(&mut out, &[file.len]);
        }
        put_checksum(&mut out);
        out
    }

    /// Reads one that another node sent, and verifies all that can be verified without the files.
    ///
    /// # Errors
    /// See [`ManifestError`].
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(ManifestError::Malformed("longer than any manifest"));
        }
        let mut fields = Fields(verified(bytes)?);
        let manifest = decode_fields(&mut fields)?;
        if !fields.0.is_empty() {
            return Err(ManifestError::Malformed("bytes behind its end"));
        }
        manifest.verify_offsets()?;
        manifest.verify_epochs()?;
        manifest.verify_files()?;
        Ok(manifest)
    }

    /// Bytes of all files together.
    #[expect(clippy::len_without_is_empty, reason = "a copy has at least its snapshot")]
    pub fn len(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }

    /// The manifest as the content of an offer: the length and the CRC-32C of the encoded bytes.
    pub fn content(&self) -> SnapshotContent {
        SnapshotContent::of(self.start, &self.encode())
    }

    fn verify_offsets(&self) -> Result<(), &'static str> {
        let Start { index, term, offset } = self.start;
        if index == 0 {
            return Err("a start without an entry");
        }
        if term == 0 || !has_epoch(term) {
            return Err("a start in a term that is no leader epoch");
        }
        if self.log_start > offset {
            return Err("a log start behind the start");
        }
        match self.compacted_to.is_some_and(|compacted_to| compacted_to > offset) {
            true => Err("compacted behind the start"),
            false => Ok(()),
        }
    }

    fn verify_epochs(&self) -> Result<(), &'static str> {
        let ascends = |a: &EpochEntry, b: &EpochEntry| a.epoch < b.epoch && a.start_offset < b.start_offset;
        if !self.epochs.is_sorted_by(ascends) {
            return Err("epochs that do not ascend");
        }
        // The last one is the highest.
        let Some(last) = self.epochs.last() else { return Ok(()) };
        if term_of(last.epoch) > self.start.term {
            return Err("an epoch after the start's term");
        }
        match last.start_offset < self.start.offset {
            true => Ok(()),
            false => Err("an epoch behind the start"),
        }
    }

    fn verify_files(&self) -> Result<(), &'static str> {
        let Some((snapshot, logs)) = self.files.split_last() else { return Err("no files") };
        if snapshot.kind != CopyFileKind::Snapshot || snapshot.base_offset != self.start.offset {
            return Err("no snapshot of the start as the last file");
        }
        if !(1..=PRODUCERS_BYTES_MAX).contains(&snapshot.len) {
            return Err("a snapshot of a length that none has");
        }
        self.verify_logs(logs)
    }

    fn verify_logs(&self, logs: &[CopyFile]) -> Result<(), &'static str> {
        if logs.iter().any(|file| file.kind != CopyFileKind::Log) {
            return Err("a snapshot before the last file");
        }
        if logs.iter().any(|file| !(1..=LOG_BYTES_MAX).contains(&file.len)) {
            return Err("a segment of a length that none has");
        }
        if !logs.is_sorted_by(|a, b| a.base_offset < b.base_offset) {
            return Err("segments that do not ascend");
        }
        if logs.last().is_some_and(|last| last.base_offset >= self.start.offset) {
            return Err("a segment behind the start");
        }
        let is_empty = self.log_start == self.start.offset;
        match logs.first() {
            Some(_) if is_empty => Err("segments of a log that starts at the start"),
            None if !is_empty => Err("no segments of a log that starts before the start"),
            Some(first) if first.base_offset > self.log_start => Err("a first segment behind the log start"),
            _ => Ok(()),
        }
    }
}

fn put_checksum(out: &mut Vec<u8>) {
    let crc = crc32c::crc32c(out);
    out.extend_from_slice(&crc.to_be_bytes());
}

/// The fields of a manifest, between its magic and its checksum.
fn verified(bytes: &[u8]) -> Result<&[u8], ManifestError> {
    let (content, crc) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(ManifestError::NotAManifest)?;
    let fields = content.strip_prefix(MAGIC).ok_or(ManifestError::NotAManifest)?;
    match crc32c::crc32c(content) == u32::from_be_bytes(*crc) {
        true => Ok(fields),
        false => Err(ManifestError::Checksum),
    }
}

fn decode_fields(fields: &mut Fields<'_>) -> Result<Manifest, &'static str> {
    let group = decode_group(fields).ok_or("no group")?;
    let start = decode_start(fields).ok_or("no start")?;
    let log_start = fields.offset().ok_or("no log start")?;
    let compacted_to = match fields.array().map(i64::from_be_bytes) {
        Some(NOT_COMPACTED) => None,
        Some(offset @ 0..) => Some(offset),
        _ => return Err("no offset of compaction"),
    };
    let configuration = fields.configuration().ok_or("no members")?;
    if !configuration.is_sound() {
        return Err("members that no group has");
    }
    let epochs = decode_list(fields, EPOCH_BYTES, decode_epoch).ok_or("no epochs")?;
    let files = decode_list(fields, FILE_BYTES, decode_file).ok_or("no list of files")?;
    Ok(Manifest { group, start, log_start, compacted_to, configuration, epochs, files })
}

/// A list with its count, of items that have so many bytes each. Nothing is allocated for items that do not follow.
fn decode_list<T>(
    fields: &mut Fields<'_>,
    item_bytes: usize,
    decode: impl Fn(&mut Fields<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::try_from(fields.u32()?).ok()?;
    if count.checked_mul(item_bytes)? > fields.0.len() {
        return None;
    }
    (0..count).map(|_| decode(fields)).collect()
}

pub(super) fn decode_group(fields: &mut Fields<'_>) -> Option<GroupId> {
    let topic_id = fields.array()?;
    Some(GroupId { topic_id, partition: fields.u32()?.cast_signed() })
}

fn decode_start(fields: &mut Fields<'_>) -> Option<Start> {
    Some(Start { index: fields.u64()?, term: fields.u64()?, offset: fields.offset()? })
}

fn decode_epoch(fields: &mut Fields<'_>) -> Option<EpochEntry> {
    let epoch = LeaderEpoch::new(fields.u32()?.cast_signed());
    let start_offset = fields.offset()?;
    epoch.is_known().then_some(EpochEntry { epoch, start_offset })
}

fn decode_file(fields: &mut Fields<'_>) -> Option<CopyFile> {
    let base_offset = fields.offset()?;
    let kind = CopyFileKind::of_number(fields.u8()?)?;
    Some(CopyFile { base_offset, kind, len: fields.u64()? })
}

/// Fields with the magic before them and the checksum behind them.
pub(crate) fn sealed_for_fuzz(fields: &[u8]) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(fields);
    put_checksum(&mut out);
    out
}

#[cfg(test)]
mod tests;
