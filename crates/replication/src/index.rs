//! Which entry of a group is where in its log.
//!
//! An entry is a record batch, or an internal one, which takes no offset. Its index is its rank among both. Nothing in
//! Kafka's files says it, so it is counted: from the last mark in the journal when a replica opens, and one by one from
//! then on. In memory are the internal entries, the marks, and where the last entries are; what is older is found by
//! a walk over one segment.
//!
//! The term of an entry needs no batch: a leader's first entry is a no-op, so no-ops are where terms begin.

use crate::error::ReplicaError;
use crate::journal::{EntryKind, GroupState, InternalEntry, Mark, Promised, Start};
use mainstem_log::Log;
use mainstem_log::dir::LastStop;
use mainstem_records::LeaderEpoch;
use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;

/// The last entries that are remembered, committed or not: 32 bytes each.
pub const RECENT_MIN: usize = 64;
/// Entries that are not committed are remembered, up to so many: 128 KiB of a group without a majority.
pub const RECENT_MAX: usize = 4096;

/// The size for which a batch counts whose size is not remembered: 64 of them fill a message.
pub(crate) const SIZE_UNKNOWN: u64 = 4 << 10;

/// The place of an entry. An internal entry has no bytes and no offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Offset of its first record, or of the batch that follows it.
    pub offset: i64,
    /// The offset behind it.
    pub next_offset: i64,
    /// Bytes in the log.
    pub size: u32,
}

/// The term whose leader appended under an epoch.
pub(crate) fn term_of(epoch: LeaderEpoch) -> u64 {
    u64::from(epoch.get().max(0).cast_unsigned())
}

/// Returns true if a term can be a leader epoch, which has 31 bits. A replica that took another one for its own could never append
/// again.
pub(crate) fn has_epoch(term: u64) -> bool {
    i32::try_from(term).is_ok()
}

/// The entries of a group.
#[derive(Debug, Clone)]
pub struct EntryIndex {
    start: Start,
    internal: Vec<InternalEntry>,
    marks: Vec<Mark>,
    /// The last of the marks, which the journal does not have: entries were counted past the segments that they are of.
    unnoted: Vec<Mark>,
    /// The places of the last entries up to `last`, without a gap.
    recent: VecDeque<Position>,
    last: u64,
    end_offset: i64,
}

/// Returns true if what an empty log has lost may not have been durable.
fn is_explained_by_power_cut(log: &Log) -> bool {
    let noted = log.dir().checkpoints().recovery_point.get(log.partition());
    log.dir().last_stop() == LastStop::UncleanOtherBoot && noted.unwrap_or(0) < log.ends().log_end
}

impl EntryIndex {
    /// Counts the entries of a log that was just recovered. What the journal has of entries behind the log end goes, and
    /// so do batches of a term whose beginning it does not have: their index is not known, and nobody was promised them.
    /// `promised` is what its replica had, if that is known: less is then noticed, and no reason not to count. Blocks on the disk.
    pub fn open(
        state: &GroupState,
        promised: Option<Promised>,
        log: &mut Log,
        mono_ms: u64,
    ) -> Result<EntryIndex, ReplicaError> {
        let mut index = EntryIndex {
            start: state.start,
            internal: state.entries.clone(),
            marks: state.marks.clone(),
            unnoted: Vec::new(),
            recent: VecDeque::new(),
            last: state.start.index,
            end_offset: state.start.offset,
        };
        let (end, start) = (log.ends().log_end, index.start.offset);
        let has_others = state.has_others();
        let may_begin = has_others && promised.is_some();
        if end < start && may_begin && log.config().compact {
            // It may have been compacted by the others, and not deleted.
            return Err(ReplicaError::LacksCompacted { end, start });
        } else if end < start && may_begin {
            // What precedes the start was deleted, and what follows is known to be lacking.
            let partition = log.partition();
            tracing::warn!(%partition, end, start, "the log ends before its entries begin: it begins with them");
            log.truncate_fully_and_start_at(start, mono_ms)?;
        } else if end < start {
            return Err(ReplicaError::Damaged(format!("the log ends at {end}, before its start {start}")));
        }
        index.forget_behind(log.ends().log_end);
        if let Some(offset) = index.first_without_term(log) {
            log.truncate_suffix(offset, mono_ms)?;
            index.forget_behind(log.ends().log_end);
        }
        // What is deleted and still there may be what another replica lacks.
        index.follow_log_start(log.first_base_offset());
        if has_others {
            index.end_where_entries_do(promised, log, mono_ms)?;
        }
        index.count(log)?;
        Ok(index)
    }

    /// The entries of a group whose log begins again, with nothing in it.
    pub fn begin(start: Start) -> EntryIndex {
        EntryIndex {
            start,
            internal: Vec::new(),
            marks: Vec::new(),
            unnoted: Vec::new(),
            recent: VecDeque::new(),
            last: start.index,
            end_offset: start.offset,
        }
    }

    fn forget_behind(&mut self, log_end: i64) {
        let keep = self.internal.partition_point(|entry| entry.offset <= log_end);
        self.internal.truncate(keep);
        self.marks.retain(|mark| mark.offset <= log_end);
    }

    /// The offset of the first batch whose term has no beginning.
    fn first_without_term(&self, log: &Log) -> Option<i64> {
        let epochs = log.leader_epochs().entries().iter();
        let mut behind = epochs.filter(|entry| entry.start_offset >= self.start.offset);
        let begins = |epoch: LeaderEpoch, offset: i64| {
            let term = term_of(epoch);
            let noop = |entry: &InternalEntry| {
                entry.kind == EntryKind::NoOp && entry.term == term && entry.offset <= offset
            };
            term == self.start.term || self.internal.iter().any(noop)
        };
        behind.find(|entry| !begins(entry.epoch, entry.start_offset)).map(|entry| entry.start_offset)
    }

    /// An empty log that begins behind the last entry which is known goes back there: its end was lost in a power cut, and with
    /// it the entries up to the log start, which was noted all the same. The others have them. Where records were known to be durable
    /// up to the log end, it is another log that has gone: that is believed only where what the replica had promised says so.
    fn end_where_entries_do(
        &self,
        promised: Option<Promised>,
        log: &mut Log,
        mono_ms: u64,
    ) -> Result<(), ReplicaError> {
        let (ends, anchor) = (log.ends(), self.anchor(u64::MAX));
        let (last, offset) = (anchor.next_index - 1, anchor.offset);
        let is_known_loss =
            promised.is_some_and(|promised| !promised.is_kept_by(self.term(last).unwrap_or(0), last));
        if log.size() == 0 && offset < ends.log_end && (is_explained_by_power_cut(log) || is_known_loss) {
            let (partition, log_start) = (log.partition(), ends.log_start);
            tracing::warn!(%partition, log_start, offset, "the log is empty and begins behind its entries: it begins with them");
            log.truncate_fully_and_start_at(offset, mono_ms)?;
        }
        Ok(())
    }

    /// Counts on from the last mark or internal entry. Segments behind it have no marks where a power cut or a full disk took those.
    fn count(&mut self, log: &Log) -> Result<(), ReplicaError> {
        let mut counted = self.anchor(u64::MAX);
        let bases: BTreeSet<_> = log.segment_bases().filter(|base| *base > counted.offset).collect();
        let (mut recent, mut wrong, mut unmarked) = (VecDeque::new(), None, Vec::new());
        log.walk_batches(counted.offset, |batch| {
            counted.skip_internal(&self.internal, batch.base_offset, |position| {
                push_bounded(&mut recent, position, RECENT_MIN);
            });
            let term = term_of(batch.leader_epoch);
            if self.term(counted.next_index) != Some(term) || batch.base_offset != counted.offset {
                wrong = Some(batch.base_offset);
                return ControlFlow::Break(());
            }
            if bases.contains(&batch.base_offset) {
                unmarked.push(Mark { index: counted.next_index, offset: batch.base_offset });
            }
            let next_offset = batch.last_offset + 1;
            let position = Position { offset: batch.base_offset, next_offset, size: batch.size };
            push_bounded(&mut recent, position, RECENT_MIN);
            (counted.next_index, counted.offset) = (counted.next_index + 1, next_offset);
            ControlFlow::Continue(())
        })?;
        if let Some(offset) = wrong {
            return Err(ReplicaError::Damaged(format!("the batch at {offset} has no place in the group")));
        }
        counted.skip_internal(&self.internal, i64::MAX, |position| {
            push_bounded(&mut recent, position, RECENT_MIN);
        });
        if counted.offset != log.ends().log_end {
            let (counted, end) = (counted.offset, log.ends().log_end);
            return Err(ReplicaError::Damaged(format!("entries end at {counted}, the log at {end}")));
        }
        (self.last, self.end_offset, self.recent) = (counted.next_index - 1, counted.offset, recent);
        self.unnoted = unmarked.into_iter().filter_map(|mark| self.mark(mark)).collect();
        Ok(())
    }

    /// The marks that the journal does not have, to be written to it.
    pub fn take_unnoted(&mut self) -> Vec<Mark> {
        std::mem::take(&mut self.unnoted)
    }

    /// The last place at or before `index` from which entries can be counted.
    fn anchor(&self, index: u64) -> Counted {
        let mut counted = Counted { next_index: self.start.index + 1, offset: self.start.offset };
        for (next_index, offset) in self.places() {
            if next_index <= index && next_index > counted.next_index {
                counted = Counted { next_index, offset };
            }
        }
        counted
    }

    /// Moves the start behind what retention has removed, up to the log start; returns the new one. It is known at marks,
    /// which segments begin with and snapshots end with, and at internal entries.
    ///
    /// Begins at the log start, since what precedes that is committed. It is not known of internal entries
    /// at that very offset: they stay.
    pub fn follow_log_start(&mut self, log_start: i64) -> Option<Start> {
        let start = self.start_behind(log_start)?;
        self.begin_at(start);
        Some(start)
    }

    /// The last place at or before an offset where entries can begin; `None`: they begin there.
    pub(crate) fn start_behind(&self, offset: i64) -> Option<Start> {
        Some(self.last_known_at(offset)).filter(|start| *start != self.start)
    }

    /// Begins at a place of [`Self::start_behind`].
    pub(crate) fn begin_at(&mut self, start: Start) {
        self.start = start;
        self.internal.retain(|entry| entry.index > start.index);
        self.marks.retain(|mark| mark.offset > start.offset);
    }

    /// The last entry that is known to end at or before an offset. It is committed if the offset is.
    pub fn last_known_at(&self, offset: i64) -> Start {
        let is_behind = |&(_, place): &(u64, i64)| place <= offset && place > self.start.offset;
        let last = self.places().filter(is_behind).max_by_key(|(_, place)| *place);
        last.and_then(|(_, place)| self.known_at(place)).unwrap_or(self.start)
    }

    /// The indexes and offsets that are remembered beside the start, each that of an entry and the offset where it begins.
    fn places(&self) -> impl Iterator<Item = (u64, i64)> {
        let marks = self.marks.iter().map(|mark| (mark.index, mark.offset));
        marks.chain(self.internal.iter().map(|entry| (entry.index, entry.offset)))
    }

    /// The last entry that precedes an offset, where the journal remembers it: at the start, at marks and at internal entries.
    pub fn known_at(&self, offset: i64) -> Option<Start> {
        if offset == self.start.offset {
            return Some(self.start);
        }
        // Of several entries that begin there, all but one are internal: the first of them follows what precedes it.
        let (next_index, _) = self.places().filter(|place| place.1 == offset).min()?;
        let index = next_index - 1;
        Some(Start { index, term: self.term(index)?, offset })
    }

    /// The same, also of the last entries, which the journal does not remember.
    pub fn entry_before(&self, offset: i64) -> Option<Start> {
        let first = self.last + 1 - self.recent.len() as u64;
        let among_recent = || {
            let at = self.recent.iter().position(|one| one.next_offset == offset)?;
            // What precedes the first one is not known to end elsewhere.
            (self.recent[at].offset < offset).then_some(first + at as u64)
        };
        if let Some(known) = self.known_at(offset) {
            return Some(known);
        }
        let index = among_recent()?;
        Some(Start { index, term: self.term(index)?, offset })
    }

    /// An offset at or before the one behind an entry, without a look at the log; `None`: the entry is not here.
    pub fn offset_before(&self, index: u64) -> Option<i64> {
        let is_here = (self.start.index..=self.last).contains(&index);
        is_here.then(|| self.recent(index).map_or_else(|| self.anchor(index).offset, |one| one.next_offset))
    }

    /// The start of the entries.
    pub fn start(&self) -> Start {
        self.start
    }

    /// Index of the first entry that is here.
    pub fn first(&self) -> u64 {
        self.start.index + 1
    }

    /// Index of the last entry.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The offset behind the last entry.
    pub fn end_offset(&self) -> i64 {
        self.end_offset
    }

    /// The term of an entry, or of the one before the first; `None`: it is not here.
    pub fn term(&self, index: u64) -> Option<u64> {
        if index < self.start.index {
            return None;
        }
        let before = self.internal.partition_point(|entry| entry.index <= index);
        Some(before.checked_sub(1).map_or(self.start.term, |last| self.internal[last].term))
    }

    /// The internal entries, by index.
    pub fn internal_entries(&self) -> &[InternalEntry] {
        &self.internal
    }

    /// The internal entry of this index.
    pub fn internal(&self, index: u64) -> Option<&InternalEntry> {
        let at = self.internal.binary_search_by_key(&index, |entry| entry.index).ok()?;
        Some(&self.internal[at])
    }

    /// The place of an entry, if it is one of the last ones.
    pub fn recent(&self, index: u64) -> Option<Position> {
        let back = self.last.checked_sub(index)?;
        let at = self.recent.len().checked_sub(usize::try_from(back).ok()? + 1)?;
        self.recent.get(at).copied()
    }

    /// The bytes of an entry's batch, or of one of middling size where it is not remembered.
    pub fn size_of(&self, index: u64) -> u64 {
        self.recent(index).map_or(SIZE_UNKNOWN, |position| u64::from(position.size))
    }

    /// Notes the batch that was appended behind the last entry; returns its index.
    pub fn push_batch(&mut self, position: Position) -> u64 {
        assert_eq!(position.offset, self.end_offset, "a batch follows the last entry");
        self.last += 1;
        self.end_offset = position.next_offset;
        self.recent.push_back(position);
        self.last
    }

    /// Notes an internal entry behind the last entry.
    pub fn push_internal(&mut self, entry: InternalEntry) {
        assert_eq!(
            (entry.index, entry.offset),
            (self.last + 1, self.end_offset),
            "it follows the last entry"
        );
        self.last += 1;
        self.recent.push_back(Position { offset: entry.offset, next_offset: entry.offset, size: 0 });
        self.marks.retain(|mark| mark.index < entry.index);
        self.internal.push(entry);
    }

    /// Notes that the next entry is the batch at the log end, where a segment begins or the log is closed. Returns the
    /// mark; `None`: there is one.
    pub fn mark(&mut self, mark: Mark) -> Option<Mark> {
        let known =
            self.marks.last().is_some_and(|last| last.index >= mark.index || last.offset >= mark.offset);
        if known || mark.offset <= self.start.offset {
            return None;
        }
        self.marks.push(mark);
        Some(mark)
    }

    /// The mark could not be written.
    pub fn forget_mark(&mut self, mark: Mark) {
        self.marks.retain(|known| *known != mark);
    }

    /// The marks that say in a journal which entry precedes an offset, in their order: also where marks behind it are known,
    /// which are said again. None: it is known already.
    pub fn marks_for(&self, at: Start) -> Vec<Mark> {
        if self.known_at(at.offset).is_some() || at.offset < self.start.offset {
            return Vec::new();
        }
        let behind = self.marks.iter().filter(|mark| mark.offset > at.offset).copied();
        [Mark { index: at.index + 1, offset: at.offset }].into_iter().chain(behind).collect()
    }

    /// Notes marks ([`EntryIndex::marks_for`]) that were written.
    pub fn add_marks(&mut self, marks: &[Mark]) {
        if let Some(first) = marks.first() {
            self.marks.retain(|mark| mark.offset < first.offset);
            self.marks.extend(marks);
        }
    }

    /// Removes the entries from an index on, where the log was cut to `end_offset`.
    pub fn cut(&mut self, index: u64, end_offset: i64) {
        assert!(index > self.start.index, "what precedes the start is committed");
        let gone = usize::try_from(self.last + 1 - index).unwrap_or(usize::MAX);
        self.recent.truncate(self.recent.len().saturating_sub(gone));
        self.internal.retain(|entry| entry.index < index);
        self.marks.retain(|mark| mark.index < index);
        (self.last, self.end_offset) = (index - 1, end_offset);
    }

    /// Forgets where old entries are: those that are committed, and not among the last ones.
    pub fn forget_committed(&mut self, committed: u64) {
        let uncommitted = usize::try_from(self.last.saturating_sub(committed)).unwrap_or(usize::MAX);
        let keep = uncommitted.clamp(RECENT_MIN, RECENT_MAX);
        let excess = self.recent.len().saturating_sub(keep);
        self.recent.drain(..excess);
    }

    /// The offset behind an entry. Of an old one the log is walked, which blocks on the disk. `None`: it is not here.
    pub fn offset_behind(&self, index: u64, log: &Log) -> Result<Option<i64>, ReplicaError> {
        if index == self.start.index {
            return Ok(Some(self.start.offset));
        }
        if index < self.start.index || index > self.last {
            return Ok(None);
        }
        if index == self.last {
            return Ok(Some(self.end_offset));
        }
        match self.recent(index).or_else(|| self.internal_position(index)) {
            Some(position) => Ok(Some(position.next_offset)),
            None => self.walk_to(index, log),
        }
    }

    /// The offset behind an entry, without a look at the log: of an old one about where it is, by the marks around it.
    pub fn offset_about(&self, index: u64) -> i64 {
        if index >= self.last {
            return self.end_offset;
        }
        if let Some(position) = self.recent(index).or_else(|| self.internal_position(index)) {
            return position.next_offset;
        }
        // Places as the index of the next entry and its offset: an internal entry takes none.
        let marks = self.marks.iter().map(|mark| (mark.index, mark.offset));
        let entries = self.internal.iter();
        let entries =
            entries.flat_map(|entry| [(entry.index, entry.offset), (entry.index + 1, entry.offset)]);
        let recent =
            self.recent.front().map(|first| (self.last + 1 - self.recent.len() as u64, first.offset));
        let mut before = (self.start.index + 1, self.start.offset);
        let mut behind = (self.last + 1, self.end_offset);
        for place in marks.chain(entries).chain(recent) {
            match place.0 <= index + 1 {
                true => before = before.max(place),
                false => behind = behind.min(place),
            }
        }
        let (counted, all) = ((index + 1).saturating_sub(before.0), (behind.0 - before.0).max(1));
        let share = i128::from(behind.1 - before.1) * i128::from(counted) / i128::from(all);
        before.1 + i64::try_from(share).expect("it is a part of a span of offsets")
    }

    fn internal_position(&self, index: u64) -> Option<Position> {
        let offset = self.internal(index)?.offset;
        Some(Position { offset, next_offset: offset, size: 0 })
    }

    fn walk_to(&self, index: u64, log: &Log) -> Result<Option<i64>, ReplicaError> {
        let mut counted = self.anchor(index);
        let mut found = None;
        log.walk_batches(counted.offset, |batch| {
            counted.skip_internal(&self.internal, batch.base_offset, |_| {});
            if counted.next_index == index {
                found = Some(batch.last_offset + 1);
                return ControlFlow::Break(());
            }
            (counted.next_index, counted.offset) = (counted.next_index + 1, batch.last_offset + 1);
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }

    /// Asserts what holds at all times.
    pub fn check(&self, log: &Log) {
        assert!(self.last >= self.start.index && self.end_offset >= self.start.offset, "{self:?}");
        assert!(
            self.internal.is_sorted_by(|a, b| a.index < b.index && a.term <= b.term && a.offset <= b.offset)
        );
        assert!(self.marks.is_sorted_by(|a, b| a.index < b.index && a.offset < b.offset), "{:?}", self.marks);
        let joined = self.recent.iter().zip(self.recent.iter().skip(1));
        joined.for_each(|(one, next)| assert_eq!(one.next_offset, next.offset, "a gap in {:?}", self.recent));
        assert!(self.recent.back().is_none_or(|last| last.next_offset == self.end_offset));
        assert!(self.end_offset <= log.ends().log_end, "{} > {}", self.end_offset, log.ends().log_end);
    }
}

/// A count of entries under way.
#[derive(Debug, Clone, Copy)]
struct Counted {
    next_index: u64,
    offset: i64,
}

impl Counted {
    /// Counts the internal entries that precede the batch at `offset`.
    fn skip_internal(&mut self, internal: &[InternalEntry], offset: i64, mut visit: impl FnMut(Position)) {
        let first = internal.partition_point(|entry| entry.index < self.next_index);
        for entry in &internal[first..] {
            if entry.index != self.next_index || entry.offset > offset {
                break;
            }
            visit(Position { offset: entry.offset, next_offset: entry.offset, size: 0 });
            self.next_index += 1;
        }
    }
}

fn push_bounded(recent: &mut VecDeque<Position>, position: Position, max: usize) {
    if recent.len() == max {
        recent.pop_front();
    }
    recent.push_back(position);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noop(index: u64, term: u64, offset: i64) -> InternalEntry {
        InternalEntry { index, term, offset, kind: EntryKind::NoOp, data: Vec::new() }
    }

    /// It is not known whether internal entries at an offset are committed when the offset is: a start behind
    /// them would take them for that.
    #[test]
    fn what_precedes_an_offset_is_what_ends_there() {
        let mut index = EntryIndex::begin(Start { index: 4, term: 2, offset: 40 });
        index.push_internal(noop(5, 3, 40));
        for offset in [40, 50] {
            index.push_batch(Position { offset, next_offset: offset + 10, size: 100 });
        }
        index.push_internal(noop(8, 4, 60));
        index.push_internal(noop(9, 5, 60));
        index.mark(Mark { index: 10, offset: 60 });
        index.push_batch(Position { offset: 60, next_offset: 70, size: 100 });
        let at = |index: u64, term, offset| Some(Start { index, term, offset });
        assert_eq!(index.known_at(40), at(4, 2, 40));
        assert_eq!(index.known_at(60), at(7, 3, 60), "not behind the no-ops");
        assert_eq!((index.known_at(50), index.entry_before(50)), (None, at(6, 3, 50)));
        assert_eq!((index.known_at(70), index.entry_before(70)), (None, at(10, 5, 70)));
        assert_eq!((index.entry_before(45), index.entry_before(80)), (None, None));
        // A mark before others is written with them, since each replaces those behind it.
        let remembered = index.entry_before(50).expect("it is one of the last");
        let marks = index.marks_for(remembered);
        assert_eq!(marks, [Mark { index: 7, offset: 50 }, Mark { index: 10, offset: 60 }]);
        index.add_marks(&marks);
        assert_eq!((index.known_at(50), index.marks_for(remembered)), (Some(remembered), Vec::new()));
    }

    #[test]
    fn where_an_old_entry_is_lies_between_the_marks_around_it() {
        let start = Start { index: 0, term: 1, offset: 0 };
        let mut index = EntryIndex {
            start,
            internal: Vec::new(),
            marks: Vec::new(),
            unnoted: Vec::new(),
            recent: VecDeque::new(),
            last: 0,
            end_offset: 0,
        };
        let batch = |offset: i64| Position { offset, next_offset: offset + 10, size: 100 };
        index.push_internal(InternalEntry {
            index: 1,
            term: 1,
            offset: 0,
            kind: EntryKind::NoOp,
            data: Vec::new(),
        });
        for entry in 2..=1_001 {
            if entry == 402 {
                index.mark(Mark { index: entry, offset: index.end_offset() });
            }
            index.push_batch(batch(index.end_offset()));
        }
        assert_eq!((index.last(), index.end_offset()), (1_001, 10_000));
        index.forget_committed(index.last());
        assert_eq!((index.recent(900), index.recent(1_000).map(|one| one.next_offset)), (None, Some(9_990)));
        let exact = |entry: u64| (entry as i64 - 1) * 10;
        for entry in [0, 1, 2, 17, 400, 401, 402, 403, 700, 937, 938, 1_000, 1_001, 5_000] {
            let expected = exact(entry.clamp(1, 1_001));
            assert_eq!(index.offset_about(entry), expected, "entry {entry}");
        }
    }
}
