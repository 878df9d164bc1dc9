//! The segment that is appended to: its mapped files, the entries of its indexes, and its end as a closed segment.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::control::Control;
use crate::error::{QueueError, Result};
use crate::map::Map;
use crate::present::Present;
use crate::segment::{INDEX_ENTRY, INDEX_INTERVAL, TIME_ENTRY, allocate, first_bytes, path, remove, sizes};
use crate::spare;
use crate::words::End;

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
        if !spare::take_spare(directory, base, segment_bytes) {
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

#[cfg(test)]
mod tests {
    use std::fs;

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
