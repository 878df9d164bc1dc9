//! Small files that are replaced as a whole, again and again, and survive a kill at any instruction.
//!
//! Two slots are written by turns, each with a number and a CRC; the one with the greater number that is whole counts.
//!
//! ```text
//! slot 0 at byte 0, slot 1 at byte 65,536, all integers little-endian
//!   0  magic "MSDIRECT"   8  number u64   16  length u32   20  CRC-32C u32 of bytes 8..20 and the body   24  body
//! ```

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::error::{DirectError, Result};

const MAGIC: [u8; 8] = *b"MSDIRECT";
const SLOT_BYTES: u64 = 64 << 10;
const HEAD_BYTES: usize = 24;
/// The most that fits.
pub(crate) const BODY_BYTES_MAX: usize = SLOT_BYTES as usize - HEAD_BYTES;

/// An open file.
#[derive(Debug)]
pub(crate) struct KeptFile {
    path: PathBuf,
    file: File,
    /// Of what is kept now; 0 without anything.
    number: u64,
}

impl KeptFile {
    /// Opens a file, made if need be; returns what it keeps.
    ///
    /// # Errors
    /// If it cannot be opened, or has something and no slot of it is whole.
    pub(crate) fn open(path: &Path) -> Result<(KeptFile, Option<Vec<u8>>)> {
        let opened = File::options().create(true).truncate(false).read(true).write(true).open(path);
        let file = opened.map_err(|error| DirectError::io("opening", path, error))?;
        let len = file.metadata().map_err(|error| DirectError::io("reading", path, error))?.len();
        let slots = [0, SLOT_BYTES].map(|at| read_slot(&file, at));
        let newest = slots.into_iter().flatten().max_by_key(|(number, _)| *number);
        if newest.is_none() && len > 0 && has_been_written(&file, len) {
            let reason = "neither of its copies is whole; restore it, or delete it and begin anew".to_owned();
            return Err(DirectError::Damaged { path: path.to_owned(), reason });
        }
        let number = newest.as_ref().map_or(0, |(number, _)| *number);
        Ok((KeptFile { path: path.to_owned(), file, number }, newest.map(|(_, body)| body)))
    }

    /// Keeps something else; `is_synced` if a power cut may not take it back.
    ///
    /// # Errors
    /// If it cannot be written; what was kept before is then there still.
    pub(crate) fn write(&mut self, body: &[u8], is_synced: bool) -> Result<()> {
        assert!(
            body.len() <= BODY_BYTES_MAX,
            "{} bytes are to be kept in {}",
            body.len(),
            self.path.display()
        );
        let number = self.number + 1;
        let mut slot = Vec::with_capacity(HEAD_BYTES + body.len());
        slot.extend_from_slice(&MAGIC);
        slot.extend_from_slice(&number.to_le_bytes());
        slot.extend_from_slice(&(body.len() as u32).to_le_bytes());
        slot.extend_from_slice(&checksum(&slot[8..20], body).to_le_bytes());
        slot.extend_from_slice(body);
        let written = self.file.write_all_at(&slot, (number % 2) * SLOT_BYTES);
        written.map_err(|error| DirectError::io("writing", &self.path, error))?;
        if is_synced {
            self.file.sync_data().map_err(|error| DirectError::io("syncing", &self.path, error))?;
        }
        self.number = number;
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), body)
}

/// A file whose first write was cut off has never kept anything.
fn has_been_written(file: &File, len: u64) -> bool {
    let mut number = [0; 8];
    len > SLOT_BYTES || file.read_exact_at(&mut number, 8).is_ok_and(|()| u64::from_le_bytes(number) > 2)
}

fn read_slot(file: &File, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    file.read_exact_at(&mut head, at).ok()?;
    let len = u32::from_le_bytes(head[16..20].try_into().ok()?) as usize;
    if head[..8] != MAGIC || len > BODY_BYTES_MAX {
        return None;
    }
    let mut body = vec![0; len];
    file.read_exact_at(&mut body, at + HEAD_BYTES as u64).ok()?;
    let is_whole = checksum(&head[8..20], &body) == u32::from_le_bytes(head[20..].try_into().ok()?);
    is_whole.then(|| (u64::from_le_bytes(head[8..16].try_into().expect("it has 8 bytes")), body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_write_that_was_cut_off_the_one_before_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        let (mut file, kept) = KeptFile::open(&path).unwrap();
        assert_eq!(kept, None);
        file.write(b"one", true).unwrap();
        file.write(b"two", false).unwrap();
        file.write(b"three", false).unwrap();
        let read = || KeptFile::open(&path).map(|(_, kept)| kept);
        assert_eq!(read().unwrap().as_deref(), Some(&b"three"[..]));
        // The third is in the slot of the first.
        let raw = File::options().write(true).open(&path).unwrap();
        raw.write_all_at(b"XX", SLOT_BYTES + 25).unwrap();
        assert_eq!(read().unwrap().as_deref(), Some(&b"two"[..]));
        raw.write_all_at(b"XX", 25).unwrap();
        assert!(read().unwrap_err().to_string().contains("neither of its copies"));
    }
}
