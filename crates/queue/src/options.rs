//! Options of opening a queue, and the rules that are stored in its directory.

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
    /// The age at which a segment is closed, in ms; `u64::MAX` is never.
    pub(crate) roll_ms: u64,
    /// The age of its newest message at which a closed segment is deleted, in ms; `u64::MAX` is never.
    pub(crate) retention_ms: u64,
    /// The total size above which the oldest closed segments are deleted; `u64::MAX` is never.
    pub(crate) retention_bytes: u64,
    /// True if messages that a named tailer has not read are kept.
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

    /// Returns `None` if no version of this crate wrote such rules.
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

/// Options of opening a queue. Those about segments and retention count when the queue is made; an existing queue keeps
/// its own rules.
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) rules: Rules,
    pub(crate) read_only: bool,
    pub(crate) create: bool,
    pub(crate) lock_timeout: Option<Duration>,
    pub(crate) resident_bytes: usize,
}

/// The default of [`Options::resident_bytes`].
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
            lock_timeout: None,
            resident_bytes: RESIDENT_BYTES,
        }
    }
}

impl Options {
    /// The options of [`Queue::open`]: made if it does not exist, segments of 64 MiB, rolled after a week, kept for
    /// ever.
    pub fn new() -> Options {
        Options::default()
    }

    /// The size of a segment in bytes, allocated when it is begun: 64 KiB to 1 GiB; other values are clamped.
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

    /// Deletes closed segments whose newest message is older.
    #[must_use]
    pub fn retention(mut self, age: Duration) -> Options {
        self.rules.retention_ms = millis(age);
        self
    }

    /// Deletes the oldest closed segments while all segments have more bytes than this.
    #[must_use]
    pub fn retention_bytes(mut self, bytes: u64) -> Options {
        self.rules.retention_bytes = bytes;
        self
    }

    /// Keeps messages that a named tailer has not read, whatever their age and size.
    #[must_use]
    pub fn keep_for_tailers(mut self, keep: bool) -> Options {
        self.rules.keep_for_tailers = keep;
        self
    }

    /// Opens read-only, which needs no write permission. Named tailers are not possible. Waiting readers look every
    /// millisecond, since appenders cannot see that they sleep.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Options {
        self.read_only = read_only;
        self
    }

    /// Makes a queue if there is none (the default).
    #[must_use]
    pub fn create(mut self, create: bool) -> Options {
        self.create = create;
        self
    }

    /// The longest wait of an append for a living process that holds the writer lock and makes no progress
    /// ([`WriterBlocked`](crate::QueueError::WriterBlocked)). `None`, the default, waits for ever.
    #[must_use]
    pub fn lock_timeout(mut self, timeout: Option<Duration>) -> Options {
        self.lock_timeout = timeout;
        self
    }

    /// The bytes that stay resident of what a tailer of this process has read last, and of what an appender has written last: 4 MiB
    /// by default, at least 64 KiB. A tailer has at most twice as much resident; an appender a quarter more, and the pages that are
    /// made present ahead of it. All pages stay in the page cache, where later reads find them. Less memory means more system calls.
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
