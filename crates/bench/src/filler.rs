//! Memory that is full before a run, as a server's is.
//!
//! On a machine that has run for a while, files fill the memory that no process needs, and newly written pages replace the oldest ones.
//! After a benchmark has removed its files there is free memory instead. A virtual machine may have given it back to its host, and gets it
//! again page by page. That can cost more than all that a broker does with the page. Without the filler it would be chance which run pays
//! for that.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::machine;

/// Free memory that is left: the kernel begins to take pages back soon below.
const FREE_BYTES: u64 = 512 << 20;

const PIECE_BYTES: usize = 1 << 20;

/// Pieces that are written before they are synced; only pages that are on the disk can be taken back at once.
const PIECES_PER_SYNC: u64 = 256;

/// A file whose pages fill the memory. It has no name, so that it ends with the process however that ends.
#[derive(Debug)]
pub(crate) struct Filler {
    path: PathBuf,
    file: File,
    pieces_max: u64,
    /// The piece that is written next: the one whose pages are the oldest.
    next: u64,
}

impl Filler {
    /// A filler for all memory of the machine, on the disk of a folder.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        Self::of_size(folder, machine::memory_bytes("MemTotal")?)
    }

    fn of_size(folder: &Path, bytes: u64) -> Result<Self> {
        let path = folder.join(format!("filler-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.with_context(|| context(&path))?;
        fs::remove_file(&path)?;
        Ok(Self { path, file, pieces_max: bytes.div_ceil(PIECE_BYTES as u64).max(1), next: 0 })
    }

    /// Writes until little memory is free.
    pub(crate) fn fill(&mut self) -> Result<()> {
        self.fill_while(|| Ok(machine::memory_bytes("MemFree")? > FREE_BYTES))
    }

    /// Writes each piece once at most: then the memory is as full as it gets.
    fn fill_while(&mut self, mut has_free_memory: impl FnMut() -> Result<bool>) -> Result<()> {
        // Not zeros, which a host may store as nothing.
        let piece: Vec<u8> = (0..PIECE_BYTES).map(|index| (index % 251) as u8).collect();
        for written in 1..=self.pieces_max {
            if !has_free_memory()? {
                break;
            }
            let wrote = self.file.write_all_at(&piece, self.next * PIECE_BYTES as u64);
            wrote.with_context(|| context(&self.path))?;
            self.next = (self.next + 1) % self.pieces_max;
            if written.is_multiple_of(PIECES_PER_SYNC) {
                self.file.sync_data()?;
            }
        }
        self.file.sync_data().with_context(|| context(&self.path))
    }
}

fn context(path: &Path) -> String {
    format!(
        "{} cannot be written; --fill-memory needs a file as large as the memory: choose another folder by --data-root, \
         or leave it out",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_pieces_are_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let mut filler = Filler::of_size(folder.path(), 3 * PIECE_BYTES as u64).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "it has no name");
        let length = |filler: &Filler| filler.file.metadata().unwrap().len() / PIECE_BYTES as u64;
        let mut fill = |pieces: usize| {
            let mut left = pieces;
            let mut has_free_memory = || {
                left = left.saturating_sub(1);
                Ok(left > 0)
            };
            filler.fill_while(&mut has_free_memory).unwrap();
            (length(&filler), filler.next)
        };
        assert_eq!(fill(3), (2, 2));
        assert_eq!(fill(1), (2, 2), "no free memory, nothing written");
        assert_eq!(fill(3), (3, 1), "the third, and the first again");
        assert_eq!(fill(100), (3, 1), "never more than all at once");
    }
}
