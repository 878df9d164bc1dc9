//! Ranges of slices and of offsets.

use std::fmt;
use std::ops::Range;

use mainstem_records::SLICES;

use crate::proto;

/// A range of slices, never empty.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SliceRange {
    /// The first slice.
    pub from: u16,
    /// The slice behind the last one.
    pub to: u16,
}

impl SliceRange {
    /// All of them.
    pub const ALL: SliceRange = SliceRange { from: 0, to: SLICES as u16 };

    /// Returns `None` if the range is empty or goes beyond the last slice.
    pub fn new(from: u32, to: u32) -> Option<SliceRange> {
        let is_range = from < to && to <= SLICES as u32;
        is_range.then_some(SliceRange { from: from as u16, to: to as u16 })
    }

    pub(crate) fn of_proto(slices: &proto::Slices) -> Option<SliceRange> {
        SliceRange::new(slices.from, slices.to)
    }

    pub(crate) fn to_proto(self) -> proto::Slices {
        proto::Slices { from: self.from.into(), to: self.to.into() }
    }

    /// The number of slices.
    pub fn count(self) -> u16 {
        self.to - self.from
    }

    /// Returns true if a slice is among them.
    pub fn contains(self, slice: u16) -> bool {
        (self.from..self.to).contains(&slice)
    }

    /// Returns true if any slice is in both.
    pub fn overlaps(self, other: SliceRange) -> bool {
        self.from < other.to && other.from < self.to
    }
}

impl fmt::Display for SliceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.from, self.to)
    }
}

impl fmt::Debug for SliceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The progress of an instance in its assignment, as in [`proto::Done`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// The assignment.
    pub assignment: u64,
    /// Every event before it is done.
    pub offset: i64,
    /// Ranges of events behind `offset` that are done, ascending and apart.
    pub finished: Vec<Range<i64>>,
}

/// The most finished ranges that are kept of a part; of more, the first ones count.
pub const FINISHED_MAX: usize = 1_024;

impl Done {
    /// Takes what a peer has sent. Ranges that make no sense are left out: their events are only repeated.
    pub(crate) fn of_proto(done: &proto::Done) -> Done {
        let ranges = done.finished.iter().take(FINISHED_MAX).map(|range| range.from..range.to);
        Done { assignment: done.assignment, offset: done.offset, finished: normalized(done.offset, ranges) }
    }

    pub(crate) fn to_proto(&self) -> proto::Done {
        let finished = self.finished.iter().take(FINISHED_MAX);
        let finished = finished.map(|range| proto::Offsets { from: range.start, to: range.end }).collect();
        proto::Done { assignment: self.assignment, offset: self.offset, finished }
    }

    /// The offset behind all events that are done.
    pub fn end(&self) -> i64 {
        self.finished.last().map_or(self.offset, |last| last.end.max(self.offset))
    }
}

/// Puts ranges in order: behind an offset, ascending, apart, and at most [`FINISHED_MAX`].
pub(crate) fn normalized(offset: i64, ranges: impl Iterator<Item = Range<i64>>) -> Vec<Range<i64>> {
    let mut ranges: Vec<Range<i64>> = ranges
        .map(|range| range.start.max(offset)..range.end)
        .filter(|range| range.start < range.end)
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut apart: Vec<Range<i64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match apart.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => apart.push(range),
        }
    }
    apart.truncate(FINISHED_MAX);
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_a_peer_are_put_in_order() {
        let offsets = |from, to| proto::Offsets { from, to };
        let finished = vec![offsets(9, 12), offsets(3, 6), offsets(8, 9), offsets(20, 19), offsets(0, 2)];
        let done = Done::of_proto(&proto::Done { assignment: 1, offset: 5, finished });
        assert_eq!(done.finished, [5..6, 8..12]);
        assert_eq!(done.end(), 12);
    }

    #[test]
    fn ranges_of_slices_are_bounded() {
        assert_eq!(SliceRange::new(0, 1_024), Some(SliceRange::ALL));
        assert_eq!(SliceRange::new(0, 1_025), None);
        assert_eq!(SliceRange::new(7, 7), None);
        assert_eq!(SliceRange::new(u32::MAX, 0), None);
    }
}
