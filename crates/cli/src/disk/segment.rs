//! A walk over the batches of a segment file. Only the batch at hand is in memory.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use mainstem_records::{Batch, BatchError, HEADER_BYTES};

/// The bound of a batch's length, which the file's length bounds too: a length without a checksum is not trusted.
const BATCH_BYTES_MAX: usize = 1 << 30;
const READ_AHEAD_BYTES: usize = 1 << 20;

/// The amount of zeros in the rest of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ZeroTail {
    /// All of it: space that was allocated ahead, or that a power cut left.
    All,
    /// Not all of it.
    No,
}

/// The next part of a segment.
#[derive(Debug)]
pub(crate) enum Step {
    /// A batch, at a position.
    Batch {
        /// Bytes before it in the file.
        position: u64,
        /// Its bytes, which [`Batch::split_first`] takes.
        bytes: Vec<u8>,
    },
    /// Bytes that are no batch: nothing can be read behind them.
    Broken {
        /// Bytes before them in the file.
        position: u64,
        /// Bytes from there to the end.
        rest: u64,
        /// The fault.
        error: BatchError,
        /// The rest of the file, as far as it is zeros.
        zeros: ZeroTail,
    },
    /// The end of the file.
    End,
}

/// Reads a segment file front to back.
#[derive(Debug)]
pub(crate) struct Walk {
    file: BufReader<File>,
    position: u64,
    length: u64,
}

impl Walk {
    /// Opens the file. What is appended later is not read.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(Walk { file: BufReader::with_capacity(READ_AHEAD_BYTES, file), position: 0, length })
    }

    /// The length of the file, in bytes.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The position of the next step, in bytes.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next batch, the end, or the fault. Only a batch has a step after it.
    pub(crate) fn step(&mut self) -> io::Result<Step> {
        let rest = self.length - self.position;
        if rest == 0 {
            return Ok(Step::End);
        }
        let mut bytes = vec![0; HEADER_BYTES.min(rest as usize)];
        self.file.read_exact(&mut bytes)?;
        let size = match Batch::size_of_first(&bytes) {
            Ok(size) if size as u64 <= rest && size <= BATCH_BYTES_MAX => size,
            Ok(size) => {
                let error = BatchError::Truncated { needed: size, available: rest as usize };
                return self.broken(rest, error, &bytes);
            }
            Err(error) => return self.broken(rest, error, &bytes),
        };
        let header = bytes.len();
        bytes.resize(size, 0);
        self.file.read_exact(&mut bytes[header..])?;
        let position = self.position;
        self.position += size as u64;
        Ok(Step::Batch { position, bytes })
    }

    fn broken(&mut self, rest: u64, error: BatchError, start: &[u8]) -> io::Result<Step> {
        let zeros = if is_zero(start) && self.rest_is_zero()? { ZeroTail::All } else { ZeroTail::No };
        Ok(Step::Broken { position: self.position, rest, error, zeros })
    }

    fn rest_is_zero(&mut self) -> io::Result<bool> {
        let mut piece = vec![0; READ_AHEAD_BYTES];
        loop {
            match self.file.read(&mut piece)? {
                0 => return Ok(true),
                count if !is_zero(&piece[..count]) => return Ok(false),
                _ => {}
            }
        }
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
