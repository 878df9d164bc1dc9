//! Segments: files of Kafka's names and layout. The open one has its full size from the beginning; closing cuts it.

#![allow(unsafe_code, reason = "a call that std does not have")]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{QueueError, Result};

/// An entry of the offset index comes after this many bytes of batches, as in Kafka (`index.interval.bytes`).
pub(crate) const INDEX_INTERVAL: usize = 4096;
/// Relative offset and position, 4 bytes each.
pub(crate) const INDEX_ENTRY: usize = 8;
/// Timestamp in 8 bytes and relative offset in 4.
pub(crate) const TIME_ENTRY: usize = 12;

/// A segment's file, by its base offset and Kafka's extension.
pub(crate) fn path(directory: &Path, base: i64, extension: &str) -> PathBuf {
    directory.join(format!("{base:020}.{extension}"))
}

/// Base offsets of the segments in a directory, ascending.
///
/// # Errors
/// If the directory cannot be read, or a file of a segment is a pipe, a device or the like, which could hang or have no end.
pub(crate) fn list(directory: &Path) -> Result<Vec<i64>> {
    let failed = |error| QueueError::io("reading", directory, error);
    let mut bases = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some((base, extension)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let is_of_segment = base.len() == 20 && matches!(extension, "log" | "index" | "timeindex");
        let Some(base) = base.parse::<i64>().ok().filter(|base| is_of_segment && *base >= 0) else {
            continue;
        };
        check_regular(&entry)?;
        if extension == "log" {
            bases.push(base);
        }
    }
    bases.sort_unstable();
    Ok(bases)
}

fn check_regular(entry: &fs::DirEntry) -> Result<()> {
    let path = entry.path();
    let kind = entry.file_type().and_then(|kind| match kind.is_symlink() {
        true => fs::metadata(&path).map(|behind| behind.file_type()),
        false => Ok(kind),
    });
    match kind {
        Ok(kind) if !kind.is_file() => {
            let why = io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file; move it away");
            Err(QueueError::io("reading", &path, why))
        }
        // An open of the file reports what is wrong, or that it is gone.
        _ => Ok(()),
    }
}

/// Returns true if a segment begins with no batch: it was begun, and nothing was published in it.
pub(crate) fn is_empty(directory: &Path, base: i64) -> Result<bool> {
    let path = path(directory, base, "log");
    let mut head = [0; 64];
    let read = File::open(&path).and_then(|file| file.read_at(&mut head, 0));
    let read = read.map_err(|error| QueueError::io("reading", &path, error))?;
    Ok(mainstem_records::Batch::size_of_first(&head[..read]).is_err())
}

/// Deletes a segment. Missing files are no failure.
pub(crate) fn remove(directory: &Path, base: i64) -> Result<()> {
    // The log goes first: an index without one is ignored, the reverse is not.
    for extension in ["log", "index", "timeindex"] {
        let path = path(directory, base, extension);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(QueueError::io("deleting", &path, error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Files of an open segment and their sizes.
pub(crate) fn sizes(segment_bytes: u64) -> [(&'static str, u64); 3] {
    let entries = segment_bytes / INDEX_INTERVAL as u64 + 2;
    [
        ("log", segment_bytes),
        ("index", entries * INDEX_ENTRY as u64),
        ("timeindex", entries * TIME_ENTRY as u64),
    ]
}

/// Reserves the space, so that no store into the mapping finds the disk full.
pub(crate) fn allocate(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            let zeros = vec![0; 1 << 20];
            let mut at = file.metadata()?.len();
            while at < bytes {
                let count = (bytes - at).min(zeros.len() as u64);
                file.write_all_at(&zeros[..count as usize], at)?;
                at += count;
            }
            Ok(())
        }
        done => done,
    }
}

/// By the C library, as in `std::fs`, so that a test can replace it.
fn fallocate(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the file is open, and no memory is touched.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The position from which a search for `offset` begins: that of the last entry of the index at or before it.
pub(crate) fn position_before(directory: &Path, base: i64, entries: Option<u32>, offset: i64) -> Result<u64> {
    let path = path(directory, base, "index");
    let found = floor(&path, INDEX_ENTRY, entries, |entry| {
        base.saturating_add(i64::from(i32::from_be_bytes(first_bytes(entry)))) <= offset
    });
    let found = found.map_err(|error| QueueError::io("reading", &path, error))?;
    Ok(found.map_or(0, |entry| i32::from_be_bytes(first_bytes(&entry[4..8])).max(0) as u64))
}

/// The last entries of the offset index at or before `offset`, `max` of them at most: offset and position, ascending.
pub(crate) fn entries_until(
    directory: &Path,
    base: i64,
    entries: Option<u32>,
    offset: i64,
    max: usize,
) -> Result<Vec<(i64, usize)>> {
    let path = path(directory, base, "index");
    let offset_of = |entry: &[u8]| base.saturating_add(i64::from(i32::from_be_bytes(first_bytes(entry))));
    let read = || -> io::Result<Vec<(i64, usize)>> {
        let Some(file) = open_index(&path)? else { return Ok(Vec::new()) };
        let holds = |entry: &[u8]| offset_of(entry) <= offset;
        let Some((last, _)) = search(&file, INDEX_ENTRY, entries, holds)? else { return Ok(Vec::new()) };
        let first = (last + 1).saturating_sub(max as u64);
        let mut bytes = vec![0; (last + 1 - first) as usize * INDEX_ENTRY];
        file.read_exact_at(&mut bytes, first * INDEX_ENTRY as u64)?;
        let position = |entry: &[u8]| i32::from_be_bytes(first_bytes(&entry[4..])).max(0) as usize;
        Ok(bytes.chunks_exact(INDEX_ENTRY).map(|entry| (offset_of(entry), position(entry))).collect())
    };
    read().map_err(|error| QueueError::io("reading", &path, error))
}

/// The offset from which a search for a timestamp begins: that of the last entry of the time index before it.
pub(crate) fn offset_before(
    directory: &Path,
    base: i64,
    entries: Option<u32>,
    timestamp: i64,
) -> Result<i64> {
    let path = path(directory, base, "timeindex");
    let found = floor(&path, TIME_ENTRY, entries, |entry| i64::from_be_bytes(first_bytes(entry)) < timestamp);
    let found = found.map_err(|error| QueueError::io("reading", &path, error))?;
    let relative = |entry: [u8; TIME_ENTRY]| i64::from(i32::from_be_bytes(first_bytes(&entry[8..12]))).max(0);
    Ok(found.map_or(base, |entry| base.saturating_add(relative(entry))))
}

/// The greatest timestamp of a closed segment, by the last entry of its time index; `None` if it has none.
pub(crate) fn newest_timestamp(directory: &Path, base: i64) -> Result<Option<i64>> {
    let path = path(directory, base, "timeindex");
    let found = floor(&path, TIME_ENTRY, None, |_| true);
    let found = found.map_err(|error| QueueError::io("reading", &path, error))?;
    Ok(found.map(|entry| i64::from_be_bytes(first_bytes(&entry))))
}

/// Returns the last entry for which `holds` is true. It has to be true for a prefix of the entries. A missing file has no
/// entries.
fn floor(
    path: &Path,
    entry_bytes: usize,
    entries: Option<u32>,
    holds: impl Fn(&[u8]) -> bool,
) -> io::Result<Option<[u8; TIME_ENTRY]>> {
    let Some(file) = open_index(path)? else { return Ok(None) };
    Ok(search(&file, entry_bytes, entries, holds)?.map(|(_, entry)| entry))
}

/// Opens an index; `None` if it is missing.
fn open_index(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// As [`floor`], with the number of the entry.
fn search(
    file: &File,
    entry_bytes: usize,
    entries: Option<u32>,
    holds: impl Fn(&[u8]) -> bool,
) -> io::Result<Option<(u64, [u8; TIME_ENTRY])>> {
    let in_file = file.metadata()?.len() / entry_bytes as u64;
    let (mut low, mut high) = (0, entries.map_or(in_file, u64::from).min(in_file));
    let mut found = None;
    while low < high {
        let middle = low + (high - low) / 2;
        let mut entry = [0; TIME_ENTRY];
        file.read_exact_at(&mut entry[..entry_bytes], middle * entry_bytes as u64)?;
        if holds(&entry[..entry_bytes]) {
            found = Some((middle, entry));
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(found)
}

/// Returns the first bytes of a slice, or zeros if it is shorter.
pub(crate) fn first_bytes<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.first_chunk().copied().unwrap_or([0; N])
}
