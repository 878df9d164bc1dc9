//! The leader epochs of a partition with their start offsets (KIP-101, KIP-320), and the checkpoint that keeps them.
//!
//! `leader-epoch-checkpoint` is text, as in Kafka: a line `0` (version), a line with the count, then a line
//! `epoch start_offset` for each epoch.

use mainstem_records::LeaderEpoch;
use std::fmt::Write as _;

/// Name of the checkpoint in the partition's directory.
pub(crate) const LEADER_EPOCH_CHECKPOINT: &str = "leader-epoch-checkpoint";
/// The most bytes of a checkpoint: about 40,000 epochs.
pub(crate) const CHECKPOINT_BYTES_MAX: usize = 1 << 20;

/// An epoch and the offset of its first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEntry {
    /// The leader epoch.
    pub epoch: LeaderEpoch,
    /// Offset of the first record that was appended under it.
    pub start_offset: i64,
}

/// The answer to "where does this epoch end?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochEnd {
    /// The largest epoch known that is not above the one asked for; [`LeaderEpoch::NONE`]: unknown.
    pub epoch: LeaderEpoch,
    /// The end offset of that epoch; -1: unknown.
    pub end_offset: i64,
}

impl EpochEnd {
    /// Nothing is known of the epoch.
    pub const UNKNOWN: EpochEnd = EpochEnd { epoch: LeaderEpoch::NONE, end_offset: -1 };
}

/// The epochs of a partition: both numbers ascend strictly.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct LeaderEpochs {
    entries: Vec<EpochEntry>,
}

impl LeaderEpochs {
    /// Returns all epochs, oldest first.
    pub fn entries(&self) -> &[EpochEntry] {
        &self.entries
    }

    /// The newest epoch under which a record was appended.
    pub fn latest(&self) -> Option<LeaderEpoch> {
        self.entries.last().map(|entry| entry.epoch)
    }

    /// The epoch of the record at an offset.
    pub fn epoch_of(&self, offset: i64) -> Option<LeaderEpoch> {
        let count = self.entries.partition_point(|entry| entry.start_offset <= offset);
        count.checked_sub(1).map(|last| self.entries[last].epoch)
    }

    /// Notes that `epoch` begins at `start_offset`; entries that contradict it go. `false`: it was known.
    pub fn assign(&mut self, epoch: LeaderEpoch, start_offset: i64) -> bool {
        let known = |last: &EpochEntry| last.epoch == epoch && start_offset >= last.start_offset;
        if !epoch.is_known() || self.entries.last().is_some_and(known) {
            return false;
        }
        while self.entries.last().is_some_and(|e| e.epoch >= epoch || e.start_offset >= start_offset) {
            self.entries.pop();
        }
        self.entries.push(EpochEntry { epoch, start_offset });
        true
    }

    /// The end offset of an epoch, as OffsetForLeaderEpoch answers it: the start of the first larger epoch, or the log end for
    /// the latest one.
    pub(crate) fn end_offset_for(&self, epoch: LeaderEpoch, log_end: i64) -> EpochEnd {
        if !epoch.is_known() {
            return EpochEnd::UNKNOWN;
        }
        if self.latest() == Some(epoch) {
            return EpochEnd { epoch, end_offset: log_end };
        }
        let higher = self.entries.partition_point(|entry| entry.epoch <= epoch);
        match (higher.checked_sub(1), self.entries.get(higher)) {
            (_, None) => EpochEnd::UNKNOWN,
            // Records of this epoch are gone: the start of what follows is the best that is known.
            (None, Some(next)) => EpochEnd { epoch, end_offset: next.start_offset },
            (Some(floor), Some(next)) => {
                EpochEnd { epoch: self.entries[floor].epoch, end_offset: next.start_offset }
            }
        }
    }

    /// Forgets epochs that begin at or behind the log end. `true`: something changed.
    pub(crate) fn truncate_from_end(&mut self, log_end: i64) -> bool {
        let keep = self.entries.partition_point(|entry| entry.start_offset < log_end);
        let changed = keep < self.entries.len();
        self.entries.truncate(keep);
        changed
    }

    /// Lets the epoch that holds `log_start` begin there, and forgets those before. `true`: something changed.
    pub(crate) fn truncate_from_start(&mut self, log_start: i64) -> bool {
        let count = self.entries.partition_point(|entry| entry.start_offset <= log_start);
        let Some(first) = count.checked_sub(1) else { return false };
        let changed = first > 0 || self.entries[first].start_offset != log_start;
        self.entries.drain(..first);
        self.entries[0].start_offset = log_start;
        changed
    }

    /// The checkpoint's text.
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("0\n{}\n", self.entries.len());
        for entry in &self.entries {
            writeln!(text, "{} {}", entry.epoch, entry.start_offset)
                .expect("a string takes all that is written");
        }
        text
    }

    /// Parses a checkpoint; the error says what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<LeaderEpochs, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "not text")?;
        let mut lines = text.lines();
        if lines.next() != Some("0") {
            return Err("a version other than 0");
        }
        let count: usize = lines.next().and_then(|line| line.parse().ok()).ok_or("no count")?;
        let mut epochs = LeaderEpochs::default();
        for line in lines.by_ref() {
            let (epoch, start) = line.split_once(' ').ok_or("a line that is not two numbers")?;
            let epoch = epoch.parse().map(LeaderEpoch::new).map_err(|_| "an epoch that is no number")?;
            let start = start.parse().map_err(|_| "an offset that is no number")?;
            epochs.assign(epoch, start);
        }
        if epochs.entries.len() != count {
            return Err("a count that is not that of the lines");
        }
        Ok(epochs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epochs(entries: &[(i32, i64)]) -> LeaderEpochs {
        let mut epochs = LeaderEpochs::default();
        for &(epoch, start) in entries {
            epochs.assign(LeaderEpoch::new(epoch), start);
        }
        epochs
    }

    #[test]
    fn end_offsets_are_kafkas() {
        let epochs = epochs(&[(2, 10), (4, 20), (7, 30)]);
        let check = |asked, epoch, end_offset| {
            let epoch = LeaderEpoch::new(epoch);
            let end = epochs.end_offset_for(LeaderEpoch::new(asked), 42);
            assert_eq!(end, EpochEnd { epoch, end_offset }, "{asked}");
        };
        check(-1, -1, -1);
        check(1, 1, 10);
        check(2, 2, 20);
        check(3, 2, 20);
        check(4, 4, 30);
        check(6, 4, 30);
        check(7, 7, 42);
        check(8, -1, -1);
    }

    #[test]
    fn an_entry_that_contradicts_earlier_ones_replaces_them() {
        let mut epochs = epochs(&[(1, 10), (2, 20), (3, 30)]);
        assert!(!epochs.assign(LeaderEpoch::new(3), 35));
        assert!(epochs.assign(LeaderEpoch::new(4), 20));
        assert_eq!(epochs.entries(), self::epochs(&[(1, 10), (4, 20)]).entries());
        assert!(!epochs.assign(LeaderEpoch::NONE, 50));
    }

    #[test]
    fn truncation_from_both_ends() {
        let mut epochs = epochs(&[(1, 10), (2, 20), (3, 30)]);
        assert!(epochs.truncate_from_end(30));
        assert!(!epochs.truncate_from_end(21));
        assert!(epochs.truncate_from_start(25));
        assert_eq!(epochs.entries(), self::epochs(&[(2, 25)]).entries());
        assert!(!epochs.truncate_from_start(25));
        assert_eq!(epochs.epoch_of(24), None);
        assert_eq!(epochs.epoch_of(25), Some(LeaderEpoch::new(2)));
    }

    #[test]
    fn the_checkpoint_reads_back_and_damage_is_named() {
        let epochs = epochs(&[(1, 10), (2, 20)]);
        assert_eq!(epochs.encode(), "0\n2\n1 10\n2 20\n");
        assert_eq!(LeaderEpochs::decode(epochs.encode().as_bytes()), Ok(epochs));
        for damaged in ["", "1\n0\n", "0\nx\n", "0\n2\n1 10\n", "0\n1\n1\n", "0\n1\n1 x\n"] {
            assert!(LeaderEpochs::decode(damaged.as_bytes()).is_err(), "{damaged:?}");
        }
    }
}
