//! The transfer of a copy, at its target: which range is next, and what becomes of its answer.
//!
//! Ranges go through the files in their order, and none crosses the end of a file. Bytes of a file that are on this disk under an earlier
//! manifest are compared by checksum before they are kept. From the first range on that differs, the file is fetched. A range ends where
//! the found bytes do, so that the ranges of a file are the same in each attempt that begins with it.

use super::manifest::Manifest;
use super::question::{Answer, Part, Question, RANGE_BYTES_MAX};
use std::sync::Arc;

/// A copy that is on its way to this node.
#[derive(Debug, Clone)]
pub struct Transfer {
    manifest: Arc<Manifest>,
    /// CRC-32C of the encoded manifest.
    crc: u32,
    /// Bytes of each file that are here under an earlier manifest.
    found: Vec<u64>,
    /// The place of the file that is on its way; the number of files when all are here.
    file: usize,
    /// Bytes of that file that are right here.
    position: u64,
    /// Bytes of the files before it.
    before: u64,
    /// A found range of that file differed: the rest of it is fetched.
    differs: bool,
}

/// The next range: a part of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    file: usize,
    position: u64,
    len: u32,
    is_comparison: bool,
}

/// The consequence of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken<'a> {
    /// To be written at this place before the next question.
    Write {
        /// The file's place in the manifest.
        file: usize,
        /// The place of the first byte in it.
        position: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The bytes that are here are right.
    Matches {
        /// The file's place in the manifest.
        file: usize,
        /// The place of the first byte in it.
        position: u64,
        /// Their number.
        len: u32,
    },
    /// The bytes that are here are others: they are asked for next.
    Differs,
    /// To be asked again later.
    Later,
    /// The copy is not offered any more.
    Gone,
}

/// Why a transfer cannot begin, or an answer cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// More was noted as synced than the copy has.
    #[error("{synced} bytes of a copy are noted as synced, and it has {len}")]
    Synced {
        /// Bytes that were noted.
        synced: u64,
        /// Bytes of all files.
        len: u64,
    },
    /// The found bytes are those of another number of files.
    #[error("bytes of {found} files of a copy were found, and it has {files}")]
    Found {
        /// Files with a number of found bytes.
        found: usize,
        /// Files of the manifest.
        files: usize,
    },
    /// Another number of bytes came than was asked for; a comparison asks for none.
    #[error("{received} bytes of a copy came where {asked} were asked for")]
    Length {
        /// Bytes of the answer.
        received: usize,
        /// Bytes that were asked for.
        asked: usize,
    },
    /// An answer came when all was here.
    #[error("an answer came of a copy that is here already")]
    NotAsked,
}

impl Transfer {
    /// Begins a transfer, or resumes one.
    ///
    /// `synced`: so many bytes of all files, in their order, are known to be durable and right under this very manifest; 0 for a new one.
    /// `found`: for each file of the manifest, bytes of it that are here from an earlier manifest; 0: none. More than the file has count
    /// as all of it.
    ///
    /// # Errors
    /// If `synced` is more than all files have, or `found` is not of as many files.
    pub fn new(manifest: Arc<Manifest>, synced: u64, mut found: Vec<u64>) -> Result<Transfer, TransferError> {
        let (len, files) = (manifest.len(), manifest.files.len());
        if synced > len {
            return Err(TransferError::Synced { synced, len });
        }
        if found.len() != files {
            return Err(TransferError::Found { found: found.len(), files });
        }
        for (found, file) in found.iter_mut().zip(&manifest.files) {
            *found = file.len.min(*found);
        }
        let crc = manifest.content().crc;
        let mut transfer =
            Transfer { manifest, crc, found, file: 0, position: synced, before: 0, differs: false };
        transfer.leave_whole_files();
        Ok(transfer)
    }

    /// The manifest of the copy.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The question to ask next; `None`: all is here.
    pub fn next(&self) -> Option<Question> {
        let Range { file, position, len, is_comparison } = self.next_range()?;
        let part = Part::File(u32::try_from(file).expect("a manifest counts its files with 32 bits"));
        let (group, manifest) = (self.manifest.group, self.crc);
        Some(Question { group, manifest, part, position, len, is_comparison })
    }

    /// The file's place, position and length of the bytes to read here before [`Transfer::take`]; `None`: the next question is no
    /// comparison.
    pub fn range(&self) -> Option<(usize, u64, u32)> {
        let range = self.next_range().filter(|range| range.is_comparison)?;
        Some((range.file, range.position, range.len))
    }

    /// Takes an answer to the question that [`Transfer::next`] returned, as it was decoded: its bytes are those of its checksum.
    ///
    /// `own_crc`: the CRC-32C of the local bytes, for a comparison; `None`: they cannot be read, and count as others. It is of no
    /// consequence for a question that is no comparison.
    ///
    /// # Errors
    /// If the answer is not one to that question. The transfer is as before then.
    pub fn take<'a>(
        &mut self,
        answer: &Answer<'a>,
        own_crc: Option<u32>,
    ) -> Result<Taken<'a>, TransferError> {
        let range = self.next_range().ok_or(TransferError::NotAsked)?;
        let (crc, bytes) = match *answer {
            Answer::Gone => return Ok(Taken::Gone),
            Answer::Later => return Ok(Taken::Later),
            Answer::Range { crc, bytes } => (crc, bytes),
        };
        let asked = if range.is_comparison { 0 } else { range.len as usize };
        if bytes.len() != asked {
            return Err(TransferError::Length { received: bytes.len(), asked });
        }
        let Range { file, position, len, is_comparison } = range;
        if is_comparison && own_crc != Some(crc) {
            self.differs = true;
            return Ok(Taken::Differs);
        }
        self.position += u64::from(len);
        self.leave_whole_files();
        Ok(match is_comparison {
            true => Taken::Matches { file, position, len },
            false => Taken::Write { file, position, bytes },
        })
    }

    /// Bytes of all files, in their order, that are right here: written, not necessarily synced.
    pub fn received(&self) -> u64 {
        self.before + self.position
    }

    /// Returns true if all files are here.
    pub fn is_done(&self) -> bool {
        self.file == self.manifest.files.len()
    }

    /// Checks what always holds.
    ///
    /// # Panics
    /// If it does not.
    pub fn check(&self) {
        let files = &self.manifest.files;
        let before: u64 = files[..self.file].iter().map(|file| file.len).sum();
        assert_eq!(self.before, before, "bytes of the files before: {self:?}");
        match files.get(self.file) {
            Some(file) => assert!(self.position < file.len, "the position is in the file: {self:?}"),
            None => assert_eq!(self.position, 0, "there is no file behind the last one: {self:?}"),
        }
        assert_eq!(self.found.len(), files.len(), "found bytes of each file: {self:?}");
        let is_clamped = self.found.iter().zip(files).all(|(found, file)| *found <= file.len);
        assert!(is_clamped, "found bytes are bytes of the file: {self:?}");
        assert_eq!(self.is_done(), self.next_range().is_none(), "what lacks is asked for: {self:?}");
    }

    fn next_range(&self) -> Option<Range> {
        let file = self.manifest.files.get(self.file)?;
        let (found, position) = (self.found[self.file], self.position);
        let is_found = position < found;
        let left = if is_found { found - position } else { file.len - position };
        let len = u32::try_from(left).unwrap_or(u32::MAX).min(RANGE_BYTES_MAX);
        Some(Range { file: self.file, position, len, is_comparison: is_found && !self.differs })
    }

    /// Moves the position to the file that it is in.
    fn leave_whole_files(&mut self) {
        while let Some(file) = self.manifest.files.get(self.file).filter(|file| self.position >= file.len) {
            self.position -= file.len;
            self.before += file.len;
            self.file += 1;
            self.differs = false;
        }
    }
}

#[cfg(test)]
mod tests;
