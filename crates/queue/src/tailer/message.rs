//! A message, and the batch that it is read from.

use std::ops::Range;
use std::sync::Arc;

use mainstem_records::{Batch, Headers, Record, RecordCursor};

#[cfg(test)]
use super::work;
use crate::map::Map;

/// The batch that is being read.
#[derive(Debug, Clone)]
pub(super) struct OpenBatch {
    pub(super) range: Range<usize>,
    pub(super) records: Option<Arc<Vec<u8>>>,
    pub(super) cursor: RecordCursor,
    /// The number of records, by the header of the batch.
    pub(super) count: i32,
}

impl OpenBatch {
    pub(super) fn has_more(&self) -> bool {
        i64::from(self.cursor.index()) < i64::from(self.count)
    }

    /// The record at the cursor, which moves behind it.
    pub(super) fn take<'a>(&'a mut self, map: &'a Map) -> Result<Record<'a>, String> {
        let OpenBatch { range, records, cursor, .. } = self;
        let (batch, _) =
            Batch::split_first(map.published(range.clone())).map_err(|error| error.to_string())?;
        let records = records.as_ref().map_or_else(|| batch.payload(), |records| records.as_slice());
        #[cfg(test)]
        work::count_decoded();
        let record = batch.record_at(records, cursor).map_err(|error| error.to_string())?;
        record.ok_or_else(|| "it has fewer records than its header says".to_owned())
    }

    /// Passes over the records before an offset.
    pub(super) fn skip_to(&mut self, map: &Map, offset: i64) -> Result<(), String> {
        while self.has_more() {
            let before = self.cursor;
            if self.take(map)?.offset >= offset {
                self.cursor = before;
                break;
            }
        }
        Ok(())
    }
}

/// A message, which stays readable for as long as this lives: its bytes are those of the mapped file.
#[derive(Debug, Clone)]
pub struct Message {
    pub(super) map: Arc<Map>,
    pub(super) batch: OpenBatch,
    pub(super) offset: i64,
    pub(super) timestamp: i64,
}

impl Message {
    /// Its offset.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// Its timestamp, in ms since 1970.
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }

    /// Its key.
    pub fn key(&self) -> Option<&[u8]> {
        self.record().key
    }

    /// Its value; empty if it has none (a tombstone of a broker's client).
    pub fn value(&self) -> &[u8] {
        self.record().value.unwrap_or_default()
    }

    /// Its headers.
    pub fn headers(&self) -> Headers<'_> {
        self.record().headers
    }

    /// The whole record, borrowed.
    pub fn record(&self) -> Record<'_> {
        let record = record(&self.map, &self.batch).ok().flatten();
        record.expect("it was read when the message was made, and published bytes do not change")
    }
}

fn record<'a>(map: &'a Map, open: &'a OpenBatch) -> Result<Option<Record<'a>>, String> {
    let (batch, _) =
        Batch::split_first(map.published(open.range.clone())).map_err(|error| error.to_string())?;
    let records = open.records.as_ref().map_or_else(|| batch.payload(), |records| records.as_slice());
    let mut cursor = open.cursor;
    batch.record_at(records, &mut cursor).map_err(|error| error.to_string())
}
