//! Small files that are replaced as a whole, again and again, and survive a kill at any instruction.
//!
//! A file has three slots, each with a number and a CRC. The whole slot with the greatest number counts. A write goes to a slot that is
//! neither the latest one nor the latest one on disk. So a kill during the write leaves the first, and a power cut the second.
//!
//! A file stays open between a write and its sync, so that the sync reports a write that failed. At most [`OPEN_MAX`] files are open at
//! a time. Further ones are opened for each write and again for the sync. The kernel then reports a failed write if no other sync has
//! reported it.
//!
//! ```text
//! slots at bytes 0, 65,536 and 131,072, all integers little-endian
//!   0  magic "MSDIRECT"   8  number u64   16  length u32   20  CRC-32C u32 of bytes 8..20 and the body   24  body
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{DirectError, Result};

const MAGIC: [u8; 8] = *b"MSDIRECT";
const SLOT_BYTES: u64 = 64 << 10;
const SLOTS: usize = 3;
const HEAD_BYTES: usize = 24;
/// The largest body of a slot.
pub(crate) const BODY_BYTES_MAX: usize = SLOT_BYTES as usize - HEAD_BYTES;

/// The most files of this process that are open between a write and their sync.
pub(crate) const OPEN_MAX: usize = 64;
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// A file of three slots.
#[derive(Debug)]
pub(crate) struct SlotFile {
    path: PathBuf,
    /// Open from the first write that is not synced until the sync.
    file: Option<Arc<OpenFile>>,
    /// The number of what each slot has; 0 if it has nothing.
    numbers: [u64; SLOTS],
    /// The slot of the last write.
    latest: Option<usize>,
    /// The latest slot that is on disk.
    on_disk: Option<usize>,
    /// A sync of the latest one has failed. The kernel may take its pages for written now, so that another would report success.
    has_failed: bool,
}

/// An open file, which counts among [`OPEN_MAX`].
#[derive(Debug)]
struct OpenFile(File);

impl OpenFile {
    /// Counts a file as open; `None` if [`OPEN_MAX`] are.
    fn keep(file: File) -> Option<OpenFile> {
        let take = |open: usize| (open < OPEN_MAX).then_some(open + 1);
        OPEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).ok().map(|_| OpenFile(file))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A sync under way, without a borrow of the [`SlotFile`].
#[derive(Debug)]
pub(crate) struct Syncing {
    path: PathBuf,
    file: Option<Arc<OpenFile>>,
    number: u64,
}

impl Syncing {
    /// A sync that fails.
    #[cfg(test)]
    pub(crate) fn that_fails(number: u64) -> Syncing {
        // A device that cannot be synced.
        Syncing { path: "/dev/null".into(), file: None, number }
    }

    /// The number that [`SlotFile::synced`] takes after a sync, or [`SlotFile::sync_failed`].
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Waits for the disk.
    pub(crate) fn sync(self) -> std::io::Result<()> {
        match &self.file {
            Some(file) => file.0.sync_data(),
            None => match File::open(&self.path) {
                // The file was deleted meanwhile, and needs no sync.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                opened => opened.and_then(|file| file.sync_data()),
            },
        }
    }
}

impl SlotFile {
    /// Opens a file, or makes it; returns its latest body.
    ///
    /// # Errors
    /// If the file cannot be opened, read or synced, or was written and has no whole slot.
    pub(crate) fn open(path: &Path) -> Result<(SlotFile, Option<Vec<u8>>)> {
        let file = open(path)?;
        let failed = |error| DirectError::io("reading", path, error);
        let len = file.metadata().map_err(failed)?.len();
        // A slot that cannot be read now may be the latest, so the error is not passed over.
        let mut slots: [_; SLOTS] = [const { None }; SLOTS];
        for (slot, read) in slots.iter_mut().enumerate() {
            *read = read_slot(&file, slot_at(slot)).map_err(failed)?;
        }
        let numbers = std::array::from_fn(|slot| slots[slot].as_ref().map_or(0, |(number, _)| *number));
        let latest = (0..SLOTS).filter(|slot| slots[*slot].is_some()).max_by_key(|slot| numbers[*slot]);
        if latest.is_none() && len > 0 && has_been_written(&file, len).map_err(failed)? {
            let reason =
                "none of its copies is whole; restore it, or delete it to begin with none".to_owned();
            return Err(DirectError::Damaged { path: path.to_owned(), reason });
        }
        let kept = latest.and_then(|latest| Some((latest, slots.into_iter().nth(latest)??)));
        if let Some((slot, (number, body))) = &kept {
            // An earlier sync may have failed. Another one then succeeds without writing anything. To write the same bytes again harms
            // nothing.
            let written = file.write_all_at(&encode(*number, body), slot_at(*slot));
            written.map_err(|error| DirectError::io("writing", path, error))?;
            file.sync_data().map_err(|error| DirectError::io("syncing", path, error))?;
        }
        let body = kept.map(|(_, (_, body))| body);
        Ok((
            SlotFile {
                path: path.to_owned(),
                file: None,
                numbers,
                latest,
                on_disk: latest,
                has_failed: false,
            },
            body,
        ))
    }

    /// Replaces the body. If `is_synced`, or if nothing is on disk yet, it survives a power cut.
    ///
    /// # Errors
    /// If the body cannot be written; the one before is still there then. If it cannot be synced; the next start may find either. In
    /// both cases no later sync makes it durable: it has to be written again.
    pub(crate) fn write(&mut self, body: &[u8], is_synced: bool) -> Result<()> {
        assert!(
            body.len() <= BODY_BYTES_MAX,
            "{} bytes are to be kept in {}",
            body.len(),
            self.path.display()
        );
        let is_free = |slot: &usize| self.latest != Some(*slot) && self.on_disk != Some(*slot);
        let slot = (0..SLOTS).find(is_free).expect("two of three slots are in use at most");
        let number = self.latest.map_or(0, |latest| self.numbers[latest]) + 1;
        let bytes = encode(number, body);
        let is_synced = is_synced || self.on_disk.is_none();
        let Some(kept) = &self.file else {
            let file = open(&self.path)?;
            self.write_to(&file, slot, &bytes, number, is_synced)?;
            self.file = Some(file).filter(|_| !is_synced).and_then(OpenFile::keep).map(Arc::new);
            return Ok(());
        };
        let kept = Arc::clone(kept);
        self.write_to(&kept.0, slot, &bytes, number, is_synced)?;
        self.close_if_synced();
        Ok(())
    }

    fn write_to(
        &mut self,
        file: &File,
        slot: usize,
        bytes: &[u8],
        number: u64,
        is_synced: bool,
    ) -> Result<()> {
        self.numbers[slot] = 0;
        let written = file.write_all_at(bytes, slot_at(slot));
        written.map_err(|error| DirectError::io("writing", &self.path, error))?;
        (self.numbers[slot], self.latest) = (number, Some(slot));
        self.has_failed = false;
        if is_synced {
            let synced = file.sync_data().inspect_err(|_| self.has_failed = true);
            synced.map_err(|error| DirectError::io("syncing", &self.path, error))?;
            self.on_disk = Some(slot);
        }
        Ok(())
    }

    fn close_if_synced(&mut self) {
        if self.on_disk == self.latest {
            self.file = None;
        }
    }

    /// Returns the sync of the latest write; `None` if it is on disk, or if its sync has failed.
    pub(crate) fn to_sync(&self) -> Option<Syncing> {
        let latest = self.latest.filter(|latest| self.on_disk != Some(*latest) && !self.has_failed)?;
        Some(Syncing { path: self.path.clone(), file: self.file.clone(), number: self.numbers[latest] })
    }

    /// Notes that the write of this number is on disk.
    pub(crate) fn synced(&mut self, number: u64) {
        // A later write may have taken its slot, and is not known to be on disk.
        if let Some(slot) = self.numbers.iter().position(|one| *one == number) {
            self.on_disk = Some(slot);
        }
        self.close_if_synced();
    }

    /// Notes that the write of this number may never reach the disk, whatever a later sync reports. Returns true if it is the latest one,
    /// which has to be written again.
    pub(crate) fn sync_failed(&mut self, number: u64) -> bool {
        let is_latest = self.latest.is_some_and(|latest| self.numbers[latest] == number);
        self.has_failed |= is_latest;
        is_latest
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn open(path: &Path) -> Result<File> {
    let opened = File::options().create(true).truncate(false).read(true).write(true).open(path);
    opened.map_err(|error| DirectError::io("opening", path, error))
}

fn slot_at(slot: usize) -> u64 {
    slot as u64 * SLOT_BYTES
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

/// A slot as it is written.
fn encode(number: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(&bytes[8..20], body).to_le_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// A file whose first write was cut off has never kept anything.
fn has_been_written(file: &File, len: u64) -> io::Result<bool> {
    let mut number = [0; 8];
    Ok(len > SLOT_BYTES || read_whole(file, &mut number, 8)? && u64::from_le_bytes(number) > 2)
}

/// The content of a slot, with its number; `None` if it is not whole.
fn read_slot(file: &File, at: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
    let mut head = [0; HEAD_BYTES];
    if !read_whole(file, &mut head, at)? {
        return Ok(None);
    }
    let number = u64::from_le_bytes(*head[8..].first_chunk().expect("it has 24 bytes"));
    let len = u32::from_le_bytes(*head[16..].first_chunk().expect("it has 24 bytes")) as usize;
    if head[..8] != MAGIC || len > BODY_BYTES_MAX {
        return Ok(None);
    }
    let mut body = vec![0; len];
    let is_whole = read_whole(file, &mut body, at + HEAD_BYTES as u64)?
        && checksum(&head[8..20], &body).to_le_bytes() == head[20..];
    Ok(is_whole.then_some((number, body)))
}

/// Fills a buffer; false if the file ends before that.
fn read_whole(file: &File, buffer: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(path: &Path, slot: usize) {
        let raw = File::options().write(true).open(path).unwrap();
        raw.write_all_at(b"XX", slot_at(slot) + 25).unwrap();
    }

    fn read(path: &Path) -> Result<Option<Vec<u8>>> {
        SlotFile::open(path).map(|(_, kept)| kept)
    }

    /// A device that takes all writes, and cannot be synced.
    fn never_synced() -> SlotFile {
        let (mut file, kept) = SlotFile::open(Path::new("/dev/null")).unwrap();
        assert_eq!(kept, None);
        assert!(file.write(b"one", true).unwrap_err().to_string().contains("syncing"));
        file
    }

    #[test]
    fn what_failed_to_be_synced_is_not_synced_again_but_written_again() {
        let mut file = never_synced();
        assert!(file.to_sync().is_none(), "another sync might say that it is on the disk");
        // It is not known to be, so that this is to be as well.
        file.write(b"one", false).unwrap_err();

        let dir = tempfile::tempdir().unwrap();
        let (mut file, _) = SlotFile::open(&dir.path().join("kept")).unwrap();
        file.write(b"one", true).unwrap();
        file.write(b"two", false).unwrap();
        let two = file.to_sync().unwrap().number();
        file.write(b"three", false).unwrap();
        assert!(!file.sync_failed(two), "three is kept by now, and may be synced");
        let three = file.to_sync().unwrap();
        assert!(file.sync_failed(three.number()));
        assert!(file.to_sync().is_none());
        file.write(b"three", false).unwrap();
        let again = file.to_sync().unwrap();
        let number = again.number();
        assert!(number > three.number());
        again.sync().unwrap();
        file.synced(number);
        assert!(file.to_sync().is_none());
    }

    #[test]
    fn of_a_write_that_was_cut_off_the_one_before_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        let (mut file, kept) = SlotFile::open(&path).unwrap();
        assert_eq!(kept, None);
        file.write(b"one", true).unwrap();
        file.write(b"two", false).unwrap();
        file.write(b"three", false).unwrap();
        for (slot, next) in [(2, "two"), (1, "one")] {
            damage(&path, slot);
            assert_eq!(read(&path).unwrap().as_deref(), Some(next.as_bytes()));
        }
        damage(&path, 0);
        assert!(read(&path).unwrap_err().to_string().contains("none of its copies"));
    }

    /// A power cut may tear everything that was written since a sync.
    #[test]
    fn what_was_synced_is_not_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        let (mut file, _) = SlotFile::open(&path).unwrap();
        file.write(b"first", false).unwrap();
        let mut on_disk = "first".to_owned();
        for number in 1..200 {
            let syncing = file.to_sync();
            let body = format!("body {number}");
            file.write(body.as_bytes(), number % 7 == 0).unwrap();
            if number % 7 == 0 {
                on_disk = body;
            } else if number % 5 == 0 {
                // Another write came in the meantime.
                on_disk = syncing.map_or(on_disk, |syncing| {
                    let number = syncing.number();
                    syncing.sync().unwrap();
                    file.synced(number);
                    format!("body {}", number - 1)
                });
            }
            let slot = file.on_disk.unwrap();
            assert_eq!(
                read_slot(&open(&path).unwrap(), slot_at(slot)).unwrap().unwrap().1,
                on_disk.as_bytes(),
                "{number}"
            );
        }
        (0..SLOTS).filter(|slot| file.on_disk != Some(*slot)).for_each(|slot| damage(&path, slot));
        assert_eq!(read(&path).unwrap().as_deref(), Some(on_disk.as_bytes()));
    }
}
