//! Segments: files of Kafka's names and layout. The open one has its full size from the beginning; closing cuts it.

#![allow(unsafe_code, reason = "a call that std does not have")]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::ahead::{self, Present};
use crate::control::{Control, End};
use crate::error::{QueueError, Result};
use crate::map::Map;

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

/// The three files of a segment, mapped for writing.
#[derive(Debug)]
pub(crate) struct OpenSegment {
    pub(crate) base: i64,
    pub(crate) roll: u32,
    pub(crate) log: Map,
    pub(crate) index: Map,
    pub(crate) times: Map,
    /// Pages before this position were made present in this mapping.
    pub(crate) populated: Arc<AtomicUsize>,
    /// An append before this position need not look at `populated`.
    pub(crate) ready_to: usize,
    /// Pages before this are not kept resident.
    pub(crate) forgotten_to: Arc<AtomicUsize>,
}

impl OpenSegment {
    /// Makes the files with all the space that they may need. After a failure, none of them is left.
    pub(crate) fn create(directory: &Path, base: i64, segment_bytes: u64) -> Result<()> {
        let created = sizes(segment_bytes).into_iter().try_for_each(|(extension, bytes)| {
            let path = path(directory, base, extension);
            let file = File::options().create(true).truncate(true).read(true).write(true).open(&path);
            let allocated = file.and_then(|file| allocate(&file, bytes));
            allocated.map_err(|error| QueueError::io("allocating", &path, error))
        });
        if created.is_err() {
            let _ = remove(directory, base);
        }
        created
    }

    /// Makes a segment, of prepared files if there are any, and maps it. After a failure, none of its files is left.
    pub(crate) fn begin(directory: &Path, base: i64, roll: u32, segment_bytes: u64) -> Result<OpenSegment> {
        if !ahead::take_spare(directory, base, segment_bytes) {
            OpenSegment::create(directory, base, segment_bytes)?;
        }
        OpenSegment::map(directory, base, roll, segment_bytes).inspect_err(|_| drop(remove(directory, base)))
    }

    /// Its pages, for the thread that works ahead.
    pub(crate) fn present(&self) -> Present {
        Present {
            roll: self.roll,
            pages: self.log.pages(),
            to: Arc::clone(&self.populated),
            forgotten_to: Arc::clone(&self.forgotten_to),
        }
    }

    /// Maps the files of the open segment.
    pub(crate) fn map(directory: &Path, base: i64, roll: u32, segment_bytes: u64) -> Result<OpenSegment> {
        let [log, index, times] = sizes(segment_bytes).map(|(extension, bytes)| {
            let path = path(directory, base, extension);
            let mapped = File::options().read(true).write(true).open(&path).and_then(|file| {
                let len = file.metadata()?.len();
                if len != bytes {
                    return Err(io::Error::other(format!("it has {len} bytes instead of {bytes}")));
                }
                Map::new(&file, bytes as usize, true)
            });
            mapped.map_err(|error| QueueError::io("mapping", &path, error))
        });
        Ok(OpenSegment {
            base,
            roll,
            log: log?,
            index: index?,
            times: times?,
            populated: Arc::default(),
            ready_to: 0,
            forgotten_to: Arc::default(),
        })
    }

    /// Returns false if the words about the indexes cannot be right.
    pub(crate) fn has_sound_counts(&self, control: &Control, end: End) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        let fits = |entries: u32, bytes: usize, map: &Map| entries as usize * bytes <= map.len();
        let relative = control.max_timestamp_offset().load(Relaxed).checked_sub(self.base);
        let has_timestamp = control.max_timestamp().load(Relaxed) >= 0;
        fits(control.index_entries().load(Relaxed), INDEX_ENTRY, &self.index)
            && fits(control.time_entries().load(Relaxed), TIME_ENTRY, &self.times)
            && control.indexed_to().load(Relaxed) <= end.bytes
            && (!has_timestamp
                || relative.is_some_and(|relative| (0..=i64::from(i32::MAX)).contains(&relative)))
    }

    /// Removes all entries of the indexes.
    pub(crate) fn clear_indexes(&mut self) {
        for map in [&mut self.index, &mut self.times] {
            let len = map.len();
            map.unpublished(0..len).fill(0);
        }
    }

    /// Adds entries for the batch at `position`, which was published, if one is due.
    pub(crate) fn add_to_index(&mut self, control: &Control, position: usize, last_offset: i64) {
        use std::sync::atomic::Ordering::{Relaxed, Release};
        let indexed_to = control.indexed_to().load(Relaxed) as usize;
        if position < indexed_to + INDEX_INTERVAL {
            return;
        }
        let entries = control.index_entries().load(Relaxed);
        let at = entries as usize * INDEX_ENTRY;
        if at + INDEX_ENTRY > self.index.len() {
            return;
        }
        let entry = self.index.unpublished(at..at + INDEX_ENTRY);
        entry[..4].copy_from_slice(&((last_offset - self.base) as i32).to_be_bytes());
        entry[4..].copy_from_slice(&(position as i32).to_be_bytes());
        control.index_entries().store(entries + 1, Release);
        control.indexed_to().store(position as u32, Relaxed);
        self.add_time(control);
    }

    /// Adds the greatest timestamp so far to the time index, if it is not there yet.
    pub(crate) fn add_time(&mut self, control: &Control) {
        use std::sync::atomic::Ordering::{Relaxed, Release};
        let timestamp = control.max_timestamp().load(Relaxed);
        let entries = control.time_entries().load(Relaxed);
        let at = entries as usize * TIME_ENTRY;
        let newest = entries.checked_sub(1).map(|last| {
            let at = last as usize * TIME_ENTRY;
            i64::from_be_bytes(first_bytes(self.times.published(at..at + 8)))
        });
        if at + TIME_ENTRY > self.times.len()
            || timestamp < 0
            || newest.is_some_and(|newest| newest >= timestamp)
        {
            return;
        }
        let offset = control.max_timestamp_offset().load(Relaxed);
        let entry = self.times.unpublished(at..at + TIME_ENTRY);
        entry[..8].copy_from_slice(&timestamp.to_be_bytes());
        entry[8..].copy_from_slice(&((offset - self.base) as i32).to_be_bytes());
        control.time_entries().store(entries + 1, Release);
    }
}

/// The files of the open segment, opened to be cut to their contents, as Kafka leaves closed ones. All are opened before one is
/// cut: if an open failed after a cut, processes that have the cut file mapped would write behind its end.
#[derive(Debug)]
pub(crate) struct Sealing([(PathBuf, File); 3]);

impl Sealing {
    /// Opens the files. Nothing is changed.
    pub(crate) fn open(directory: &Path, base: i64) -> Result<Sealing> {
        // The log last: once it is cut, the segment is closed, and its indexes have to be right.
        let [index, times, log] = ["index", "timeindex", "log"].map(|extension| {
            let path = path(directory, base, extension);
            match File::options().write(true).open(&path) {
                Ok(file) => Ok((path, file)),
                Err(error) => Err(QueueError::io("opening", &path, error)),
            }
        });
        Ok(Sealing([index?, times?, log?]))
    }

    /// Cuts them. After a failure, those that were cut get their size again.
    pub(crate) fn cut(
        self,
        bytes: u64,
        index_entries: u32,
        time_entries: u32,
        segment_bytes: u64,
    ) -> Result<()> {
        let lengths = [
            u64::from(index_entries) * INDEX_ENTRY as u64,
            u64::from(time_entries) * TIME_ENTRY as u64,
            bytes,
        ];
        let [log, index, times] = sizes(segment_bytes).map(|(_, bytes)| bytes);
        for (at, ((path, file), len)) in self.0.iter().zip(lengths).enumerate() {
            if let Err(error) = file.set_len(len) {
                let cut = self.0.iter().zip([index, times, log]).take(at);
                // Without space it stays at least as large as it was.
                cut.for_each(|((_, file), bytes)| {
                    drop(allocate(file, bytes).or_else(|_| file.set_len(bytes)))
                });
                return Err(QueueError::io("cutting", path, error));
            }
        }
        Ok(())
    }
}

/// Gives the indexes of the open segment their full size.
pub(crate) fn extend_indexes(directory: &Path, base: i64, segment_bytes: u64) -> Result<()> {
    sizes(segment_bytes).into_iter().filter(|(extension, _)| *extension != "log").try_for_each(
        |(extension, bytes)| {
            let path = path(directory, base, extension);
            let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
            let extended = file.and_then(|file| match file.metadata()?.len() {
                len if len < bytes => allocate(&file, bytes),
                _ => Ok(()),
            });
            extended.map_err(|error| QueueError::io("allocating", &path, error))
        },
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_log_cannot_be_cut_its_indexes_stay_as_they_are_mapped() {
        const BYTES: u64 = 64 << 10;
        let dir = tempfile::tempdir().unwrap();
        let lengths =
            || sizes(BYTES).map(|(extension, _)| fs::metadata(path(dir.path(), 0, extension)).unwrap().len());
        OpenSegment::create(dir.path(), 0, BYTES).unwrap();
        let before = lengths();
        let mut sealing = Sealing::open(dir.path(), 0).unwrap();
        // A file that was opened for reading cannot be cut.
        sealing.0[2].1 = File::open(&sealing.0[2].0).unwrap();
        assert!(matches!(sealing.cut(1_000, 2, 1, BYTES), Err(QueueError::Io { what: "cutting", .. })));
        assert_eq!(lengths(), before);
        Sealing::open(dir.path(), 0).unwrap().cut(1_000, 2, 1, BYTES).unwrap();
        assert_eq!(lengths(), [1_000, 2 * INDEX_ENTRY as u64, TIME_ENTRY as u64]);
    }
}
