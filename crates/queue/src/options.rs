//! How a queue is opened, and the rules that are kept in its directory.

use std::path::Path;
use std::time::Duration;

use crate::error::Result;
use crate::map::PIECE_BYTES;
use crate::queue::Queue;

/// The rules that all processes of a queue follow; fixed when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rules {
    /// The size of a segment, in bytes.
    pub(crate) segment_bytes: u64,
    /// A segment is closed when it is older, in ms; `u64::MAX` is never.
    pub(crate) roll_ms: u64,
    /// Closed segments whose newest message is older go, in ms; `u64::MAX` is never.
    pub(crate) retention_ms: u64,
    /// The oldest closed segments go while all of them have more bytes; `u64::MAX` is never.
    pub(crate) retention_bytes: u64,
    /// What a named tailer has not read stays.
    pub(crate) keep_for_tailers: bool,
}

/// The smallest segment: a page of messages and its index.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// Positions in Kafka's index are 31 bits.
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

impl Rules {
    pub(crate) fn encode(&self) -> [u8; 40] {
        let words = [
            self.segment_bytes,
            self.roll_ms,
            self.retention_ms,
            self.retention_bytes,
            u64::from(self.keep_for_tailers),
        ];
        let mut bytes = [0; 40];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// `None` if no version of this crate wrote such rules.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Rules> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let &[segment_bytes, roll_ms, retention_ms, retention_bytes, keep] = words else { return None };
        let segment_bytes = u64::from_le_bytes(segment_bytes);
        (SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes).then(|| Rules {
            segment_bytes,
            roll_ms: u64::from_le_bytes(roll_ms),
            retention_ms: u64::from_le_bytes(retention_ms),
            retention_bytes: u64::from_le_bytes(retention_bytes),
            keep_for_tailers: u64::from_le_bytes(keep) != 0,
        })
    }
}

/// How to open a queue. Everything about segments and retention counts when the queue is made; a queue that is there keeps
/// its own rules.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) rules: Rules,
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) writer_patience: Option<Duration>,
    pub(crate) resident_bytes: usize,
}

/// What is kept resident unless [`Options::resident_bytes`] says otherwise.
pub(crate) const RESIDENT_BYTES: usize = 4 << 20;

impl Default for Options {
    fn default() -> Options {
        Options {
            rules: Rules {
                segment_bytes: 64 << 20,
                roll_ms: 7 * 24 * 3_600_000,
                retention_ms: u64::MAX,
                retention_bytes: u64::MAX,
                keep_for_tailers: false,
            },
            read_only: false,
            create: true,
            writer_patience: None,
            resident_bytes: RESIDENT_BYTES,
        }
    }
}

impl Options {
    /// What [`Queue::open`] takes: made if it is not there, 64 MiB a segment, rolled after a week, kept for ever.
    pub fn new() -> Options {
        Options::default()
    }

    /// The size of a segment in bytes, allocated when it is begun: 64 KiB to 1 GiB, others become the next of these.
    #[must_use]
    pub fn segment_bytes(mut self, bytes: u64) -> Options {
        self.rules.segment_bytes = bytes.clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX).next_multiple_of(4096);
        self
    }

    /// Closes a segment that is older when the next message comes, whatever it holds.
    #[must_use]
    pub fn roll_after(mut self, age: Duration) -> Options {
        self.rules.roll_ms = millis(age);
        self
    }

    /// Lets closed segments go whose newest message is older.
    #[must_use]
    pub fn retention(mut self, age: Duration) -> Options {
        self.rules.retention_ms = millis(age);
        self
    }

    /// Lets the oldest closed segments go while all segments have more bytes than this.
    #[must_use]
    pub fn retention_bytes(mut self, bytes: u64) -> Options {
        self.rules.retention_bytes = bytes;
        self
    }

    /// Keeps what a named tailer has not read, however old it is and however much.
    #[must_use]
    pub fn keep_for_tailers(mut self, keep: bool) -> Options {
        self.rules.keep_for_tailers = keep;
        self
    }

    /// Opens for reading alone, which needs no write permission. Named tailers are not possible, and readers that wait look
    /// again each millisecond, since it cannot be seen that they sleep.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Options {
        self.read_only = read_only;
        self
    }

    /// Whether a queue is made where none is (the default).
    #[must_use]
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// How long an append waits for another process that holds the writer lock, is alive, and does not go on
    /// ([`WriterBlocked`](crate::QueueError::WriterBlocked)). Without it, for ever.
    #[must_use]
    pub fn writer_patience(mut self, patience: Option<Duration>) -> Options {
        self.writer_patience = patience;
        self
    }

    /// What a tailer of this process has read, and an appender written, longer ago than so many bytes does not stay resident in its
    /// mapping: 4 MiB by default, 64 KiB at least. Of a tailer twice as much is resident at most, of an appender a quarter more, and
    /// what is made ready ahead of it. The pages are the page cache's before and after; who reads them again finds them there. Less
    /// memory is more calls of the kernel.
    #[must_use]
    pub fn resident_bytes(mut self, bytes: usize) -> Options {
        self.resident_bytes = bytes.max(PIECE_BYTES);
        self
    }

    /// Opens the queue in a directory.
    ///
    /// # Errors
    /// See [`QueueError`](crate::QueueError).
    pub fn open(&self, directory: impl AsRef<Path>) -> Result<Queue> {
        Queue::open_with(directory.as_ref(), self)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_were_written_and_nonsense_is_none() {
        let rules = Options::new().segment_bytes(100_000).keep_for_tailers(true).rules;
        assert_eq!(rules.segment_bytes, 102_400);
        assert_eq!(Rules::decode(&rules.encode()), Some(rules));
        assert_eq!(Rules::decode(&[0; 40]), None);
        assert_eq!(Rules::decode(&[0xff; 40]), None);
        assert_eq!(Rules::decode(&[1; 39]), None);
    }
}
