//! Aborted transactions with records in a range of offsets. An answer to a consumer with `read_committed` names them, so that
//! the consumer leaves their records out.
//!
//! The last of them are kept in memory, so that a consumer that keeps up costs no file operation. A log without aborted
//! transactions never costs one. For the others the transaction indexes are searched, from the segment of the read on. The
//! search ends at an entry after which no transaction before the end of the read was open.

use crate::error::ReadError;
use crate::files::PartitionFiles;
use crate::log::Log;
use crate::read::FileRange;
use crate::read_mode::{ReadMode, ReadStop};
use crate::segment::{Segment, blocking};
use crate::transaction_index::{AbortedTransaction, Search};
use std::collections::VecDeque;

/// Aborted transactions that are remembered: at most 4 KiB in a partition.
const RECENT_MAX: usize = 128;

/// The last aborted transactions of a log, in the order of their markers.
#[derive(Debug)]
pub(crate) struct RecentAborted {
    entries: VecDeque<AbortedTransaction>,
    /// `entries` has all transactions with markers at or behind this offset.
    complete_from: i64,
}

impl Default for RecentAborted {
    /// Returns the recent aborted transactions of a log that has none.
    fn default() -> RecentAborted {
        RecentAborted { entries: VecDeque::new(), complete_from: i64::MIN }
    }
}

impl RecentAborted {
    /// Returns an empty list for a log whose indexes alone have the aborted transactions with markers before `offset`.
    pub(crate) fn known_from(offset: i64) -> RecentAborted {
        RecentAborted { complete_from: offset, ..RecentAborted::default() }
    }

    pub(crate) fn push(&mut self, aborted: AbortedTransaction) {
        if self.entries.len() == RECENT_MAX
            && let Some(oldest) = self.entries.pop_front()
        {
            self.complete_from = oldest.last_offset + 1;
        }
        self.entries.push_back(aborted);
    }

    /// Forgets transactions with markers before an offset, so that they are looked up: compaction may have changed them.
    pub(crate) fn forget_before(&mut self, offset: i64) {
        if self.complete_from < offset && !self.entries.is_empty() {
            let count = self.entries.partition_point(|entry| entry.last_offset < offset);
            self.entries.drain(..count);
            self.complete_from = offset;
        }
    }

    /// The answer for a range of offsets; `None`: not all of it is remembered.
    fn find(&self, from: i64, upper: i64) -> Option<Vec<AbortedTransaction>> {
        if from < self.complete_from {
            return None;
        }
        let mut search = Search::new(from, upper);
        let first = self.entries.partition_point(|entry| entry.last_offset < from);
        let _ = self.entries.range(first..).any(|entry| search.take(entry));
        Some(search.found())
    }
}

/// The aborted transactions of a read, or the way to find them.
#[derive(Debug)]
pub(crate) enum AbortedPlan {
    /// They are known already.
    Known(Vec<AbortedTransaction>),
    /// A search through the indexes, once it is known where the read ends.
    Search(Box<AbortedSearch>),
}

/// A search through transaction indexes. It holds the log as it was when the read began, and locks nothing.
#[derive(Debug)]
pub(crate) struct AbortedSearch {
    files: PartitionFiles,
    from: i64,
    /// No record of the read has it or exceeds it.
    upper: i64,
    /// The segment that is read.
    segment: Segment,
    /// That and the ones behind it, as far as they have an index.
    indexed: Vec<Segment>,
}

impl AbortedPlan {
    /// The transactions that may have records in a range.
    pub(crate) fn run(
        self,
        range: &FileRange,
        read_mode: ReadMode,
    ) -> Result<Vec<AbortedTransaction>, ReadStop> {
        match self {
            AbortedPlan::Known(aborted) => Ok(aborted),
            AbortedPlan::Search(search) => search.run(range.position + range.len as u64, read_mode),
        }
    }
}

impl AbortedSearch {
    /// The transactions that may have records between the beginning of the read and a position.
    pub(crate) fn run(&self, end: u64, read_mode: ReadMode) -> Result<Vec<AbortedTransaction>, ReadStop> {
        let bound = self.segment.offset_bound(&self.files, end, read_mode)?;
        let upper = bound.map_or(self.upper, |bound| bound.min(self.upper));
        search(&self.files, self.indexed.iter(), Search::new(self.from, upper), read_mode)
    }
}

fn search<'s>(
    files: &PartitionFiles,
    indexed: impl Iterator<Item = &'s Segment>,
    mut search: Search,
    read_mode: ReadMode,
) -> Result<Vec<AbortedTransaction>, ReadStop> {
    for segment in indexed {
        let file = segment.transaction_index(files)?;
        if search.run(&*file, segment.aborted, read_mode)? {
            break;
        }
    }
    Ok(search.found())
}

impl Log {
    /// The transactions that were aborted and may have records at or behind `from` and before `upper`, in the order of
    /// their markers. As in Kafka there may be some that have none. May wait for the disk.
    ///
    /// # Errors
    /// When an index cannot be read.
    pub fn aborted_transactions(&self, from: i64, upper: i64) -> Result<Vec<AbortedTransaction>, ReadError> {
        if let Some(known) = self.aborted.find(from, upper) {
            return Ok(known);
        }
        let indexed = self.segments[self.segment_of(from)..].iter().filter(|segment| segment.aborted > 0);
        let found = blocking(search(&self.files, indexed, Search::new(from, upper), ReadMode::Blocking));
        found.map_err(ReadError::Storage).inspect_err(|error| {
            if let ReadError::Storage(error) = error {
                self.dir.note_error(error);
            }
        })
    }

    /// Returns the aborted transactions of a read that begins at `from` in segment `number` and ends before `bound`.
    pub(crate) fn aborted_plan(&self, number: usize, from: i64, bound: i64) -> AbortedPlan {
        let next = self.segments.get(number + 1).map_or(bound, |next| next.base_offset);
        let upper = bound.min(next);
        if let Some(known) = self.aborted.find(from, upper) {
            return AbortedPlan::Known(known);
        }
        let indexed = self.segments[number..].iter().filter(|segment| segment.aborted > 0);
        let indexed: Vec<_> = indexed.cloned().collect();
        if indexed.is_empty() {
            return AbortedPlan::Known(Vec::new());
        }
        let (files, segment) = (self.files.clone(), self.segments[number].clone());
        AbortedPlan::Search(Box::new(AbortedSearch { files, from, upper, segment, indexed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstem_records::ProducerId;

    fn aborted(number: i64) -> AbortedTransaction {
        AbortedTransaction {
            producer_id: ProducerId::new(1),
            first_offset: number * 10,
            last_offset: number * 10 + 9,
            last_stable_offset: number * 10 + 10,
        }
    }

    fn firsts(recent: &RecentAborted, from: i64, upper: i64) -> Option<Vec<i64>> {
        let found = recent.find(from, upper)?;
        Some(found.iter().map(|aborted| aborted.first_offset).collect())
    }

    #[test]
    fn what_is_remembered_is_found_and_what_is_not_is_said() {
        let mut recent = RecentAborted::default();
        assert_eq!(firsts(&recent, 0, 100), Some(vec![]));
        (0..RECENT_MAX as i64).for_each(|number| recent.push(aborted(number)));
        assert_eq!(firsts(&recent, 0, 15), Some(vec![0, 10]));
        assert_eq!(firsts(&recent, 9, 10), Some(vec![0]));
        assert_eq!(firsts(&recent, 10, 11), Some(vec![10]));
        recent.push(aborted(RECENT_MAX as i64));
        assert_eq!((firsts(&recent, 9, 15), firsts(&recent, 10, 15)), (None, Some(vec![10])));
        recent.forget_before(500);
        assert_eq!((firsts(&recent, 499, 510), firsts(&recent, 500, 510)), (None, Some(vec![500])));
        recent.forget_before(100);
        assert_eq!(firsts(&recent, 500, 510), Some(vec![500]));
    }

    #[test]
    fn where_nothing_was_aborted_nothing_has_to_be_looked_up() {
        let mut recent = RecentAborted::default();
        recent.forget_before(500);
        assert_eq!(firsts(&recent, 0, 1000), Some(vec![]));
        let mut recent = RecentAborted::known_from(50);
        assert_eq!((firsts(&recent, 49, 60), firsts(&recent, 50, 60)), (None, Some(vec![])));
        recent.push(aborted(7));
        assert_eq!(firsts(&recent, 50, 80), Some(vec![70]));
    }
}
