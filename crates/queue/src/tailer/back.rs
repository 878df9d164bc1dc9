//! Reads backwards. Neither batches nor records say where the one before begins, so the places that a walk has passed
//! are remembered.

use std::sync::atomic::Ordering::Acquire;

use super::Tailer;
use super::message::Message;
use super::places::Place;
use super::trail::Entries;
use crate::error::Result;
use crate::map::PIECE_BYTES;
use crate::segment;

/// Entries of an index in one read: 2 MiB of batches.
const ENTRIES: usize = 512;

impl Tailer {
    /// Returns the message before the position, and moves there; `None` at the first message of the queue. A position beyond the
    /// readable end counts as that end.
    ///
    /// It costs about as much as [`Tailer::read_message`]. A change of direction within a large batch walks over the batch once.
    ///
    /// # Errors
    /// As [`Tailer::read`]; the position stays.
    pub fn read_back(&mut self) -> Result<Option<Message>> {
        let target = self.next.min(self.readable_end()).saturating_sub(1);
        if target < self.log_start() {
            return Ok(None);
        }
        let before = self.next;
        let found = self.find_last_until(target);
        let Ok(Some(place)) = found else {
            self.go_to(before);
            return found.map(|_| None);
        };
        self.next = place.offset;
        let (Some(segment), Some(open)) = (self.segment.as_ref(), self.batch.as_mut()) else {
            return Ok(None);
        };
        open.cursor = place.cursor;
        self.position = open.range.end;
        let message = Message {
            map: segment.map.clone(),
            batch: open.clone(),
            offset: place.offset,
            timestamp: place.timestamp,
        };
        self.commit();
        Ok(Some(message))
    }

    fn log_start(&self) -> i64 {
        self.control().log_start().load(Acquire)
    }

    /// Opens the batch with the last message at or before an offset. Batches without one are passed over: those of control records,
    /// and those that begin with a gap.
    fn find_last_until(&mut self, mut target: i64) -> Result<Option<Place>> {
        while target >= self.log_start() {
            if self.batch.is_none() || !self.covered.contains(&target) {
                self.open_batch_of(target)?;
            }
            if let Some(place) = self.place_until(target)? {
                return Ok(Some(place).filter(|place| place.offset >= self.log_start()));
            }
            target = self.covered.start - 1;
        }
        Ok(None)
    }

    fn place_until(&mut self, target: i64) -> Result<Option<Place>> {
        let Tailer { segment, batch, back, .. } = self;
        let (Some(segment), Some(open)) = (segment.as_ref(), batch.as_mut()) else { return Ok(None) };
        let at = (segment.base, open.range.start);
        back.places.last_until(target, at, open, &segment.map).map_err(|reason| self.damaged(reason))
    }

    /// Opens the batch that covers an offset; none if it is one of control records.
    fn open_batch_of(&mut self, target: i64) -> Result<()> {
        self.batch = None;
        self.next = target;
        if self.segment.as_ref().is_none_or(|segment| segment.base > target) {
            self.enter_segment(target)?;
        }
        self.position = self.find_on_trail(target)?;
        let Some((base, next, range)) = self.peek_batch()? else {
            let reason = format!("messages up to offset {target} are published, and it ends before");
            return Err(self.damaged(reason));
        };
        if next <= target {
            return Err(self.damaged(format!("offset {target} is in no batch of it")));
        }
        self.batch = self.open_at(range.clone())?;
        self.covered = base..next;
        self.give_back_behind(range.start, range.end);
        Ok(())
    }

    /// Returns the position of the batch with an offset, in the segment that is open here.
    fn find_on_trail(&mut self, target: i64) -> Result<usize> {
        let base = self.segment.as_ref().map_or(0, |segment| segment.base);
        match self.back.trail.find(base, target) {
            Some(position) => Ok(position),
            None => self.collect_trail(target),
        }
    }

    /// Walks from the index entry before `target` to the batch that has it, or to the end; returns its position.
    fn collect_trail(&mut self, target: i64) -> Result<usize> {
        self.back.trail.batches.clear();
        let Some(base) = self.segment.as_ref().map(|segment| segment.base) else { return Ok(0) };
        self.back.trail.segment = base;
        self.position = self.position_before(base, target)?;
        while let Some((base, next, range)) = self.peek_batch()? {
            self.back.trail.batches.push((base, range.start));
            self.back.trail.end = next;
            if next > target {
                return Ok(range.start);
            }
            self.position = range.end;
        }
        Ok(self.position)
    }

    /// The position of the index entry before an offset of a segment.
    fn position_before(&mut self, base: i64, target: i64) -> Result<usize> {
        if let Some(position) = self.back.entries.find(base, target) {
            return Ok(position);
        }
        let control = self.control();
        let count = (control.open_segment().0 == base).then(|| control.index_entries().load(Acquire));
        let entries = segment::entries_until(&self.inner.directory, base, count, target, ENTRIES)?;
        let position = entries.last().map_or(0, |(_, position)| *position);
        self.back.entries = Entries { segment: base, entries, until: target };
        Ok(position)
    }

    /// Gives back pages that were read long ago: those far behind the present place.
    fn give_back_behind(&mut self, start: usize, end: usize) {
        let resident = self.inner.options.resident_bytes;
        if start < self.forgotten_to {
            self.keep_resident_from(start / PIECE_BYTES * PIECE_BYTES);
        }
        let from = end.saturating_add(resident).next_multiple_of(PIECE_BYTES);
        self.back.forgotten_from = self.back.forgotten_from.max(end);
        if self.back.forgotten_from.saturating_sub(from) > resident {
            if let Some(segment) = &self.segment {
                segment.map.forget(from..self.back.forgotten_from);
            }
            self.back.forgotten_from = from;
        }
    }
}
