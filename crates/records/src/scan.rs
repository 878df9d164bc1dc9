//! Offsets and timestamps of a batch's records, without their contents: for a search by timestamp.

use crate::batch::{Batch, Compression, TimestampType};
use crate::error::InvalidBatch;
use crate::scratch::Scratch;
use crate::walk::{SliceSource, Source, walk_record};
use std::ops::ControlFlow;

/// The result of a scan for one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordStamp {
    /// The record's offset.
    pub offset: i64,
    /// Its timestamp in ms: the producer's, or the batch's append time.
    pub timestamp: i64,
}

impl Batch<'_> {
    /// Shows `visit` one record after another until it breaks. Compressed records stream through the window of
    /// `scratch`; the rest of the batch behind the break is not decompressed.
    ///
    /// # Errors
    /// When a record up to there does not parse or decompress, or the bound is exceeded.
    pub fn scan(
        &self,
        decompressed_bytes_max: usize,
        scratch: &mut Scratch,
        mut visit: impl FnMut(RecordStamp) -> ControlFlow<()>,
    ) -> Result<(), InvalidBatch> {
        match self.attributes().compression() {
            Ok(Compression::None) => scan_source(self, &mut SliceSource::new(self.payload()), &mut visit),
            _ => scratch
                .with_stream(self, decompressed_bytes_max, |source| scan_source(self, source, &mut visit)),
        }
    }

    /// The first record at or after `offset_min` whose timestamp is `timestamp_min` or later.
    ///
    /// # Errors
    /// As [`Batch::scan`].
    pub fn find_by_timestamp(
        &self,
        timestamp_min: i64,
        offset_min: i64,
        decompressed_bytes_max: usize,
        scratch: &mut Scratch,
    ) -> Result<Option<RecordStamp>, InvalidBatch> {
        let mut found = None;
        self.scan(decompressed_bytes_max, scratch, |record| {
            if record.offset >= offset_min && record.timestamp >= timestamp_min {
                found = Some(record);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

fn scan_source<S: Source>(
    batch: &Batch<'_>,
    source: &mut S,
    visit: &mut impl FnMut(RecordStamp) -> ControlFlow<()>,
) -> Result<(), InvalidBatch> {
    let appended = batch.attributes().timestamp_type() == TimestampType::LogAppendTime;
    for index in 0..batch.record_count().max(0) as u32 {
        let shape = walk_record(source).map_err(|error| error.at(index))?;
        let timestamp = match appended {
            true => batch.max_timestamp(),
            false => batch.base_timestamp().wrapping_add(shape.timestamp_delta),
        };
        let offset = batch.base_offset().wrapping_add(i64::from(shape.offset_delta));
        if visit(RecordStamp { offset, timestamp }).is_break() {
            return Ok(());
        }
    }
    Ok(())
}
