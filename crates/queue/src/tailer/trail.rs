//! Places before the position of a tailer, as walks have passed them: entries of an index, batches, records of a batch.

use super::places::Places;

/// Places before the position of a tailer.
#[derive(Debug, Default)]
pub(super) struct Back {
    pub(super) entries: Entries,
    pub(super) trail: Trail,
    pub(super) places: Places,
    /// Pages of the segment from here on are not kept resident.
    pub(super) forgotten_from: usize,
}

impl Back {
    /// Forgets all places: the tailer has moved.
    pub(super) fn clear(&mut self) {
        self.entries = Entries::default();
        self.trail.batches.clear();
        self.places.clear();
        self.left_segment();
    }

    /// Notes that another segment is mapped, of which nothing is resident.
    pub(super) fn left_segment(&mut self) {
        self.forgotten_from = 0;
    }
}

/// Consecutive entries of a segment's index.
#[derive(Debug, Default)]
pub(super) struct Entries {
    pub(super) segment: i64,
    /// Offset and position, ascending.
    pub(super) entries: Vec<(i64, usize)>,
    /// All entries up to this offset are here, except those before the first one.
    pub(super) until: i64,
}

impl Entries {
    /// Returns the position of the last entry at or before an offset; `None` if these entries do not cover it. Forgets later
    /// ones.
    pub(super) fn find(&mut self, segment: i64, offset: i64) -> Option<usize> {
        if self.segment != segment || offset > self.until {
            return None;
        }
        while let Some(&(of, position)) = self.entries.last() {
            if of <= offset {
                return Some(position);
            }
            self.until = of - 1;
            self.entries.pop();
        }
        None
    }
}

/// Consecutive batches of a segment.
#[derive(Debug, Default)]
pub(super) struct Trail {
    pub(super) segment: i64,
    /// First offset and position, ascending.
    pub(super) batches: Vec<(i64, usize)>,
    /// The offset behind the last of them.
    pub(super) end: i64,
}

impl Trail {
    /// Returns the position of the batch with an offset; `None` if it is none of these. Forgets later ones.
    pub(super) fn find(&mut self, segment: i64, offset: i64) -> Option<usize> {
        if self.segment != segment || offset >= self.end {
            return None;
        }
        while let Some(&(base, position)) = self.batches.last() {
            if base <= offset {
                return Some(position);
            }
            self.end = base;
            self.batches.pop();
        }
        None
    }
}
