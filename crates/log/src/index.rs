//! An index file: entries of fixed size in ascending order, of which the newest may still be in memory.
//!
//! Nothing is mapped: mapped pages would count as the broker's memory, and a fault on one would stall a loop. The
//! active segment collects entries and writes them in bulk. Recovery rebuilds entries that a crash took.

use crate::read_mode::{ReadMode, ReadStop};
use crate::storage::{StorageFile, write_all_at};
use std::io;

/// An entry of fixed size.
pub(crate) trait Entry: Copy {
    /// Size in the file.
    const BYTES: usize;

    /// Appends the bytes of the entry.
    fn encode(&self, to: &mut Vec<u8>);

    /// Reads an entry from exactly [`Self::BYTES`] bytes.
    fn decode(bytes: &[u8]) -> Self;
}

/// Largest entry, so that one fits a buffer on the stack.
const ENTRY_BYTES_MAX: usize = 12;

/// Entries that are kept in memory before they are written in bulk. At the default interval this is one write per
/// MiB of records, and at most 3 KiB per partition. Entries of large batches are written as often per MiB: see
/// [`Index::enters_next_part`].
pub(crate) const PENDING_MAX: usize = 256;

/// The entries of one index file.
#[derive(Debug, Clone)]
pub(crate) struct Index<E> {
    on_disk: u32,
    pending: Vec<E>,
}

impl<E: Entry> Index<E> {
    /// An index of which the file holds `on_disk` entries.
    pub(crate) fn new(on_disk: u32) -> Index<E> {
        const { assert!(E::BYTES <= ENTRY_BYTES_MAX) }
        Index { on_disk, pending: Vec::new() }
    }

    /// Entries in the file and in memory.
    pub(crate) fn len(&self) -> u32 {
        self.on_disk + self.pending.len() as u32
    }

    /// Entries in the file.
    pub(crate) fn on_disk(&self) -> u32 {
        self.on_disk
    }

    /// The newest entries, which are not in the file.
    pub(crate) fn pending(&self) -> &[E] {
        &self.pending
    }

    /// Returns true if so many entries are in memory that they should be written.
    pub(crate) fn wants_write(&self) -> bool {
        self.pending.len() >= PENDING_MAX && self.pending.len().is_multiple_of(PENDING_MAX)
    }

    pub(crate) fn push(&mut self, entry: E) {
        self.pending.push(entry);
    }

    /// The last entry for which `holds` is true, where `holds` is true for a first part of the entries and false
    /// for the rest. `open` gives the file, and is asked only when the answer is there.
    pub(crate) fn floor(
        &self,
        open: impl FnOnce() -> io::Result<std::sync::Arc<dyn StorageFile>>,
        read_mode: ReadMode,
        holds: impl Fn(&E) -> bool,
    ) -> Result<Option<E>, ReadStop> {
        let count = self.pending.partition_point(&holds);
        if count > 0 {
            return Ok(Some(self.pending[count - 1]));
        }
        if self.on_disk == 0 {
            return Ok(None);
        }
        floor_in_file(&*open()?, self.on_disk, read_mode, holds)
    }

    /// The first entry for which `holds` is false, as [`Self::floor`] understands it.
    pub(crate) fn ceiling(
        &self,
        open: impl FnOnce() -> io::Result<std::sync::Arc<dyn StorageFile>>,
        read_mode: ReadMode,
        holds: impl Fn(&E) -> bool,
    ) -> Result<Option<E>, ReadStop> {
        let count = self.pending.partition_point(&holds);
        if count == 0 && self.on_disk > 0 {
            let file = open()?;
            let number = partition_in_file(&*file, self.on_disk, read_mode, holds)?;
            if number < self.on_disk {
                return entry_in_file(&*file, number, read_mode).map(Some);
            }
        }
        Ok(self.pending.get(count).copied())
    }

    /// Writes the entries that are in memory to the file and forgets them here.
    pub(crate) fn write_pending(&mut self, file: &dyn StorageFile) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(self.pending.len() * E::BYTES);
        for entry in &self.pending {
            entry.encode(&mut bytes);
        }
        write_all_at(file, &bytes, u64::from(self.on_disk) * E::BYTES as u64)?;
        self.on_disk += self.pending.len() as u32;
        self.pending.clear();
        Ok(())
    }

    /// Gives back the memory of an index that is written to no more, or not for a while.
    pub(crate) fn shrink(&mut self) {
        self.pending.shrink_to_fit();
    }

    /// Drops all entries for which `holds` is false, as [`Self::floor`] understands it, in the file too.
    pub(crate) fn truncate(
        &mut self,
        file: &dyn StorageFile,
        holds: impl Fn(&E) -> bool,
    ) -> Result<(), io::Error> {
        let keep = self.pending.partition_point(&holds);
        let was = self.pending.len();
        self.pending.truncate(keep);
        if keep > 0 || was == keep && self.on_disk == 0 {
            return Ok(());
        }
        self.on_disk = match partition_in_file(file, self.on_disk, ReadMode::Blocking, holds) {
            Ok(count) => count,
            Err(ReadStop::Failed(error)) => return Err(error),
            Err(ReadStop::WouldBlock) => unreachable!("a blocking read does not stop"),
        };
        file.set_len(u64::from(self.on_disk) * E::BYTES as u64)
    }
}

/// Entry `number` of a file.
fn entry_in_file<E: Entry>(file: &dyn StorageFile, number: u32, read_mode: ReadMode) -> Result<E, ReadStop> {
    let mut bytes = [0; ENTRY_BYTES_MAX];
    let bytes = &mut bytes[..E::BYTES];
    read_mode.read_exact(file, bytes, u64::from(number) * E::BYTES as u64)?;
    Ok(E::decode(bytes))
}

/// Counts the entries for which `holds` is true, among the first `count` entries of a file.
fn partition_in_file<E: Entry>(
    file: &dyn StorageFile,
    count: u32,
    read_mode: ReadMode,
    holds: impl Fn(&E) -> bool,
) -> Result<u32, ReadStop> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match holds(&entry_in_file(file, middle, read_mode)?) {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low)
}

/// The last of the first `count` entries of a file for which `holds` is true.
pub(crate) fn floor_in_file<E: Entry>(
    file: &dyn StorageFile,
    count: u32,
    read_mode: ReadMode,
    holds: impl Fn(&E) -> bool,
) -> Result<Option<E>, ReadStop> {
    match partition_in_file(file, count, read_mode, holds)? {
        0 => Ok(None),
        count => entry_in_file(file, count - 1, read_mode).map(Some),
    }
}
