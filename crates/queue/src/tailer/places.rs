//! Places of the records of one batch, so that it can be read backwards: records have no pointer to the one before.
//!
//! A walk over the batch notes the place of each [`CHUNK`]-th record, and the places in between in a window of at most two chunks. The
//! window moves by a chunk, which is walked over once more for that. So each record of a batch that is read backwards is decoded at
//! most twice, and there is a chunk left to read before the window moves the other way.

use std::collections::VecDeque;

use mainstem_records::RecordCursor;

use super::message::OpenBatch;
use crate::map::Map;

/// Records in a step of the walk. The note of a chunk has 16 bytes for so many records of at least 7 bytes each: a 400th of the
/// batch at most.
pub(super) const CHUNK: usize = 1024;
/// The size of the window in records of 32 bytes: 64 KiB at most.
const WINDOW: usize = 2 * CHUNK;

/// The place of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) offset: i64,
    pub(super) timestamp: i64,
    /// The cursor at this record.
    pub(super) cursor: RecordCursor,
}

/// The batch that places are of: the base offset of its segment, and its position there.
pub(super) type BatchAt = (i64, usize);

/// Places of the records of one batch.
#[derive(Debug, Default)]
pub(super) struct Places {
    of: Option<BatchAt>,
    /// The beginnings of chunks, as far as the batch was walked.
    chunks: Vec<RecordCursor>,
    /// Places of records in a row, from the first one of a chunk on.
    window: VecDeque<Place>,
    /// Behind the last record of the window.
    end: RecordCursor,
}

impl Places {
    /// Forgets all places. The memory is kept.
    pub(super) fn clear(&mut self) {
        self.of = None;
        self.chunks.clear();
        self.window.clear();
        self.end = RecordCursor::default();
    }

    /// Returns the place of the last record at or before an offset; `None` if the batch has none.
    ///
    /// # Errors
    /// If the bytes are no records, or their offsets do not rise.
    pub(super) fn last_until(
        &mut self,
        offset: i64,
        at: BatchAt,
        batch: &mut OpenBatch,
        map: &Map,
    ) -> Result<Option<Place>, String> {
        if self.of != Some(at) {
            self.clear();
            self.of = Some(at);
        }
        while self.window.front().is_some_and(|first| first.offset > offset && first.cursor.index() > 0) {
            self.go_back(batch, map)?;
        }
        while self.window.back().is_none_or(|last| last.offset <= offset) && self.go_on(batch, map)? {}
        let behind = self.window.partition_point(|place| place.offset <= offset);
        Ok(behind.checked_sub(1).map(|at| self.window[at]))
    }

    /// Moves the record behind the window into it; false if there is none.
    fn go_on(&mut self, batch: &mut OpenBatch, map: &Map) -> Result<bool, String> {
        batch.cursor = self.end;
        if !batch.has_more() {
            return Ok(false);
        }
        let place = place(batch, map)?;
        if let Some(last) = self.window.back()
            && last.offset >= place.offset
        {
            return Err(format!("offset {} comes behind {} in it", place.offset, last.offset));
        }
        if self.window.len() == WINDOW {
            self.window.drain(..CHUNK);
        }
        if self.end.index() as usize == self.chunks.len() * CHUNK {
            self.chunks.push(self.end);
        }
        self.window.push_back(place);
        self.end = batch.cursor;
        Ok(true)
    }

    /// Moves the chunk before the window into it.
    fn go_back(&mut self, batch: &mut OpenBatch, map: &Map) -> Result<(), String> {
        let first = self.window.front().map_or(0, |place| place.cursor.index() as usize);
        batch.cursor = self.chunks[first / CHUNK - 1];
        let chunk: Vec<Place> = (0..CHUNK).map(|_| place(batch, map)).collect::<Result<_, _>>()?;
        chunk.into_iter().rev().for_each(|place| self.window.push_front(place));
        if let Some(beyond) = self.window.get(WINDOW) {
            self.end = beyond.cursor;
            self.window.truncate(WINDOW);
        }
        Ok(())
    }
}

/// Returns the place of the record at the cursor, and moves the cursor behind it.
fn place(batch: &mut OpenBatch, map: &Map) -> Result<Place, String> {
    let cursor = batch.cursor;
    let record = batch.take(map)?;
    Ok(Place { offset: record.offset, timestamp: record.timestamp, cursor })
}
