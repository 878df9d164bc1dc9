//! Standard input, read ahead by a thread and cut into lines.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::thread;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use tokio::sync::mpsc::{Receiver, Sender, channel};

const READ_BYTES: usize = 64 << 10;
/// The most reads that wait to be sent.
const READS_AHEAD: usize = 16;
/// A line must fit the largest batch that any broker takes.
pub(crate) const LINE_BYTES_MAX: usize = 256 << 20;

/// Standard input.
#[derive(Debug)]
pub(crate) struct Input {
    reads: Receiver<io::Result<Vec<u8>>>,
    cutter: Cutter,
    bytes: u64,
}

impl Input {
    /// Starts to read.
    pub(crate) fn start() -> Result<Self> {
        let (sender, reads) = channel(READS_AHEAD);
        // A read of a terminal cannot be cancelled, so the thread ends with the process.
        thread::Builder::new().name("input".into()).spawn(move || read_all(io::stdin(), &sender))?;
        Ok(Input { reads, cutter: Cutter::default(), bytes: 0 })
    }

    /// The number of bytes read.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next lines; none at the end. It is cancel-safe: a future that is dropped takes nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Lines>> {
        loop {
            let lines = match self.reads.recv().await {
                Some(read) => {
                    let read = read.context("standard input cannot be read")?;
                    self.bytes += read.len() as u64;
                    self.cutter.push(&read)?
                }
                None => return Ok(self.cutter.finish()),
            };
            if lines.is_some() {
                return Ok(lines);
            }
        }
    }
}

/// The size of standard input, if it is a file.
pub(crate) fn stdin_file_bytes() -> Option<u64> {
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned().ok()?);
    stdin.metadata().ok().filter(|metadata| metadata.is_file()).map(|metadata| metadata.len())
}

fn read_all(mut from: impl Read, to: &Sender<io::Result<Vec<u8>>>) {
    loop {
        let mut bytes = vec![0; READ_BYTES];
        let read = match from.read(&mut bytes) {
            Ok(0) => return,
            Ok(count) => {
                bytes.truncate(count);
                Ok(bytes)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = read.is_err();
        if to.blocking_send(read).is_err() || failed {
            return;
        }
    }
}

/// Complete lines with their ends. Only the last one may lack it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lines(Bytes);

impl Lines {
    /// The lines without their ends; `\r\n` is an end too.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Bytes> {
        self.0.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            self.0.slice_ref(line.strip_suffix(b"\r").unwrap_or(line))
        })
    }
}

/// Cuts a stream after line ends and keeps the beginning of the next line.
#[derive(Debug, Default)]
struct Cutter {
    rest: Vec<u8>,
}

impl Cutter {
    /// All lines whose ends were read by now.
    fn push(&mut self, bytes: &[u8]) -> Result<Option<Lines>> {
        let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n') else {
            self.rest.extend_from_slice(bytes);
            if self.rest.len() > LINE_BYTES_MAX {
                bail!("a line of the input is longer than {} MiB", LINE_BYTES_MAX >> 20);
            }
            return Ok(None);
        };
        let (whole, rest) = bytes.split_at(last + 1);
        let mut lines = std::mem::replace(&mut self.rest, rest.to_vec());
        lines.extend_from_slice(whole);
        Ok(Some(Lines(lines.into())))
    }

    /// The rest after the last end of line, when the input has ended.
    fn finish(&mut self) -> Option<Lines> {
        let rest = std::mem::take(&mut self.rest);
        (!rest.is_empty()).then_some(Lines(rest.into()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut<'a>(reads: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        let mut cutter = Cutter::default();
        let mut lines = Vec::new();
        let mut take =
            |found: Option<Lines>| lines.extend(found.iter().flat_map(Lines::iter).map(|line| line.to_vec()));
        for read in reads {
            take(cutter.push(read).unwrap());
        }
        take(cutter.finish());
        lines
    }

    #[test]
    fn lines_across_reads() {
        let lines = cut([b"a\nb".as_slice(), b"c", b"\r\n\n", b"end"]);
        assert_eq!(lines, [b"a".as_slice(), b"bc", b"", b"end"]);
        assert!(cut([]).is_empty());
        assert_eq!(cut([b"\n".as_slice()]), [b""]);
    }

    proptest! {
        #[test]
        fn reads_make_no_difference(text in "[ab\n]{0,60}", size in 1usize..10) {
            let lines = cut(text.as_bytes().chunks(size));
            let expected: Vec<&[u8]> = text.lines().map(str::as_bytes).collect();
            prop_assert_eq!(lines, expected);
        }
    }
}
