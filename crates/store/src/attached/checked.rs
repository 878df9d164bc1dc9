//! Ranges of segment files that other processes write: a range is given to a client when its batches were walked over, their
//! lengths, offsets and checksums. Nothing that is found there sizes a buffer.

use std::io;

use mainstem_log::storage::StorageFile;
use mainstem_records::{BatchCrc, BatchHeader, HEADER_BYTES};

/// Bytes that are read at once.
const CHUNK_BYTES: usize = 256 << 10;

/// A part of a segment, and what is known of it from elsewhere.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// File position at which a batch begins.
    pub(super) position: u64,
    /// Its first offset, where that is known.
    pub(super) first_offset: Option<i64>,
    /// File position at which the readable bytes end, which is the end of a batch.
    pub(super) end: u64,
    /// The offset with which the next segment begins, if this one is closed.
    pub(super) next_segment: Option<i64>,
}

/// Range that a reader wants of a segment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) offset: i64,
    pub(super) bytes_max: usize,
    /// The first batch, however large it is.
    pub(super) at_least_one: bool,
}

/// Whole batches that are what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) position: u64,
    pub(super) len: usize,
    /// The offset behind them.
    pub(super) next_offset: i64,
}

/// Finds the batches from the one that holds the wanted offset on. `None`: the first of them has more bytes than are wanted.
///
/// # Errors
/// Failures to read, and what is wrong with the bytes.
pub(super) fn find(file: &dyn StorageFile, part: &Part, wanted: &Wanted) -> io::Result<Option<Checked>> {
    let mut walk = Walk::new(file, part);
    let mut found: Option<Checked> = None;
    while let Some(header) = walk.peek()? {
        if header.next_offset() <= wanted.offset {
            walk.pass(&header);
            continue;
        }
        let taken = found.map_or(0, |found| found.len);
        let fits = taken + header.size <= wanted.bytes_max;
        if !(fits || (taken == 0 && wanted.at_least_one)) {
            return Ok(found);
        }
        let position = found.map_or(walk.at, |found| found.position);
        walk.check(&header)?;
        found = Some(Checked { position, len: taken + header.size, next_offset: header.next_offset() });
    }
    match found {
        Some(found) => Ok(Some(found)),
        None => Err(walk.damaged(&format!("no batch has offset {}", wanted.offset))),
    }
}

/// Shows the header of each batch of a part to `each`.
///
/// # Errors
/// As of [`find`].
pub(super) fn headers(
    file: &dyn StorageFile,
    part: &Part,
    mut each: impl FnMut(&BatchHeader),
) -> io::Result<()> {
    let mut walk = Walk::new(file, part);
    while let Some(header) = walk.peek()? {
        each(&header);
        walk.pass(&header);
    }
    Ok(())
}

/// From one batch to the next.
struct Walk<'f> {
    file: &'f dyn StorageFile,
    part: Part,
    at: u64,
    expected: Option<i64>,
    buffer: Vec<u8>,
    /// File position of the buffer's first byte.
    buffered_at: u64,
}

impl<'f> Walk<'f> {
    fn new(file: &'f dyn StorageFile, part: &Part) -> Self {
        Walk {
            file,
            part: *part,
            at: part.position,
            expected: part.first_offset,
            buffer: Vec::new(),
            buffered_at: part.position,
        }
    }

    /// The header of the next batch; `None` at the end.
    fn peek(&mut self) -> io::Result<Option<BatchHeader>> {
        if self.at == self.part.end {
            return match (self.part.next_segment, self.expected) {
                (Some(next), Some(expected)) if next != expected => Err(self.damaged(&format!(
                    "the segment ends before offset {expected}, and the next one begins with {next}"
                ))),
                _ => Ok(None),
            };
        }
        let header = self.bytes(HEADER_BYTES)?;
        let header = BatchHeader::read(header).map_err(|error| self.damaged(&error.to_string()))?;
        if self.part.end - self.at < header.size as u64 {
            return Err(self.damaged("a batch is longer than what is published"));
        }
        if self.expected.is_some_and(|expected| expected != header.base_offset) {
            return Err(self.damaged(&format!("a batch of offset {} is there", header.base_offset)));
        }
        if header.last_offset_delta < 0 || header.next_offset() <= header.base_offset {
            return Err(self.damaged(&format!("its last offset delta is {}", header.last_offset_delta)));
        }
        Ok(Some(header))
    }

    /// Goes over a batch.
    fn pass(&mut self, header: &BatchHeader) {
        self.at += header.size as u64;
        self.expected = Some(header.next_offset());
    }

    /// Goes over a batch, and checks its bytes.
    fn check(&mut self, header: &BatchHeader) -> io::Result<()> {
        let (begin, mut crc, mut left) = (self.at, BatchCrc::new(header), header.size);
        while left > 0 {
            let bytes = self.bytes(left.min(CHUNK_BYTES))?;
            crc.update(bytes);
            left -= bytes.len();
            self.at += bytes.len() as u64;
        }
        if !crc.is_right() {
            self.at = begin;
            return Err(self.damaged("its CRC is not that of its bytes"));
        }
        self.expected = Some(header.next_offset());
        Ok(())
    }

    /// The next bytes, at most a chunk.
    fn bytes(&mut self, count: usize) -> io::Result<&[u8]> {
        let from = (self.at - self.buffered_at) as usize;
        if from + count > self.buffer.len() {
            let left = usize::try_from(self.part.end - self.at).unwrap_or(usize::MAX);
            self.buffer.resize(left.min(CHUNK_BYTES), 0);
            self.buffered_at = self.at;
            let mut read = 0;
            while read < self.buffer.len() {
                match self.file.read_at(&mut self.buffer[read..], self.at + read as u64)? {
                    0 => break,
                    some => read += some,
                }
            }
            self.buffer.truncate(read);
            if read < count {
                return Err(self.damaged("the file ends"));
            }
            return Ok(&self.buffer[..count]);
        }
        Ok(&self.buffer[from..from + count])
    }

    fn damaged(&self, why: &str) -> io::Error {
        let expected = self.expected.map_or(String::new(), |offset| format!(", offset {offset}"));
        io::Error::new(io::ErrorKind::InvalidData, format!("damaged at byte {}{expected}: {why}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mainstem_log::storage::{OpenMode, RealStorage, Storage};
    use mainstem_records::{BatchBuilder, BatchOptions};

    use super::*;

    fn batch(base_offset: i64, value: &[u8]) -> Vec<u8> {
        let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..BatchOptions::default() });
        builder.append(5, None, Some(value), &[]).expect("it fits");
        builder.append(6, None, Some(value), &[]).expect("it fits");
        builder.build().expect("it has records")
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, Arc<dyn StorageFile>) {
        let dir = tempfile::tempdir().expect("a directory can be made");
        let path = dir.path().join("00000000000000000010.log");
        std::fs::write(&path, bytes).expect("it can be written");
        let file = RealStorage.open(&path, OpenMode::Read).expect("it can be read");
        (dir, file)
    }

    fn look(bytes: &[u8], next_segment: Option<i64>, wanted: Wanted) -> Result<Option<Checked>, String> {
        let (_dir, file) = file(bytes);
        let end = bytes.len() as u64;
        let part = Part { position: 0, first_offset: Some(10), end, next_segment };
        find(&*file, &part, &wanted).map_err(|error| error.to_string())
    }

    #[test]
    fn whole_batches_are_found_up_to_what_is_wanted() {
        let (one, two, large) = (batch(10, b"a"), batch(12, b"b"), batch(14, &[7; 600_000]));
        let bytes = [one.as_slice(), &two, &large].concat();
        let wanted = |offset, bytes_max, at_least_one| Wanted { offset, bytes_max, at_least_one };
        let found = |position: usize, len: usize, next_offset| {
            Ok(Some(Checked { position: position as u64, len, next_offset }))
        };
        let small = one.len() + two.len();
        assert_eq!(look(&bytes, None, wanted(10, 1000, false)), found(0, small, 14));
        assert_eq!(look(&bytes, Some(16), wanted(11, usize::MAX, false)), found(0, bytes.len(), 16));
        assert_eq!(look(&bytes, None, wanted(12, two.len(), false)), found(one.len(), two.len(), 14));
        assert_eq!(look(&bytes, None, wanted(15, 1000, false)), Ok(None));
        assert_eq!(look(&bytes, None, wanted(15, 1000, true)), found(small, large.len(), 16));
    }

    #[test]
    fn nothing_that_is_damaged_is_given() {
        let wanted = Wanted { offset: 10, bytes_max: 10_000, at_least_one: true };
        let bytes = [batch(10, b"a"), batch(12, b"b")].concat();
        let size = bytes.len() / 2;
        let flip = |at: usize| {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            bytes
        };
        for (bytes, next, why) in [
            (flip(size - 1), None, "damaged at byte 0, offset 10: its CRC"),
            (flip(size + 61), None, "offset 12: its CRC"),
            (flip(7), None, "a batch of offset 11 is there"),
            (flip(size + 7), None, "a batch of offset 13 is there"),
            (flip(10), None, "longer than what is published"),
            (bytes[..size + 70].to_vec(), None, "longer than what is published"),
            (bytes[..size + 30].to_vec(), None, "the file ends"),
            (bytes.clone(), Some(15), "the segment ends before offset 14, and the next one begins with 15"),
        ] {
            let found = look(&bytes, next, wanted);
            assert!(found.as_ref().is_err_and(|error| error.contains(why)), "{found:?} instead of {why}");
        }
        let absent = look(&bytes, None, Wanted { offset: 14, ..wanted });
        assert!(absent.is_err_and(|error| error.contains("no batch has offset 14")));
    }
}
