//! Options of opening a queue.

use std::time::Duration;

use crate::map::PIECE_BYTES;
use crate::present::RESIDENT_BYTES;
use crate::rules::{Rules, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

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
    /// The options of [`Queue::open`](crate::Queue::open): made if it does not exist, segments of 64 MiB, rolled after a week, kept for
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
