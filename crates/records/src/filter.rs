//! Leaving records of a batch out, as compaction does: offsets and sequence numbers of what stays are as before.
//!
//! Two steps, so that a batch which stays whole is never copied: [`RecordFilter::select`] walks the records once and
//! asks for each, [`RecordFilter::write`] makes the batch of those that stay. A record keeps its bytes unless the
//! batch gets a delete horizon (KIP-534), which takes the place of the base timestamp.

use crate::batch::{Attributes, Batch, BatchHeader, Compression, HEADER_BYTES, NO_TIMESTAMP, TimestampType};
use crate::codec::Compressor;
use crate::error::InvalidBatch;
use crate::rewrite::{RecompressError, seal};
use crate::scratch::Scratch;
use crate::varint::{read_varint, read_varlong, varlong_bytes, write_varlong};
use crate::walk::{SliceSource, Source, WalkError, read_length};
use std::fmt;
use std::ops::Range;

/// The view of a record that a filter decides by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyedRecord<'a> {
    /// The record's offset.
    pub offset: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// `false`: a tombstone.
    pub has_value: bool,
}

/// The records of a batch that a filter keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Selection {
    /// Records that the batch has.
    pub count: u32,
    /// Records that stay.
    pub kept: u32,
    /// A record without a value stays.
    pub has_tombstone: bool,
    /// The largest timestamp that stays, in ms; [`NO_TIMESTAMP`] without any.
    max_timestamp: i64,
}

impl Selection {
    /// Returns true if all records are kept.
    pub fn is_whole(&self) -> bool {
        self.kept == self.count
    }
}

/// Reusable working memory; idle it holds at most [`RecordFilter::KEPT_BYTES_MAX`].
pub struct RecordFilter {
    decompressed_bytes_max: usize,
    decompressed: Vec<u8>,
    /// The ranges of the kept records, neighbours joined.
    kept: Vec<Range<usize>>,
    scratch: Scratch,
}

impl RecordFilter {
    /// The most bytes that are kept from one batch to the next.
    pub const KEPT_BYTES_MAX: usize = Scratch::KEPT_BYTES_MAX + (1 << 20) + (256 << 10);

    const DECOMPRESSED_KEPT_MAX: usize = 1 << 20;
    const RANGES_KEPT_MAX: usize = (256 << 10) / size_of::<Range<usize>>();

    /// A filter for batches that decompress to at most so many bytes.
    pub fn new(decompressed_bytes_max: usize) -> RecordFilter {
        RecordFilter {
            decompressed_bytes_max,
            decompressed: Vec::new(),
            kept: Vec::new(),
            scratch: Scratch::new(),
        }
    }

    /// Shows `visit` every record of a batch until it returns `false`. Returns true if all were shown.
    ///
    /// # Errors
    /// When the records do not parse or decompress.
    pub fn visit(
        &mut self,
        batch: &Batch<'_>,
        mut visit: impl FnMut(KeyedRecord<'_>) -> bool,
    ) -> Result<bool, InvalidBatch> {
        self.load(batch)?;
        let records = records(batch, &self.decompressed);
        let mut complete = true;
        walk(batch, records, |found| {
            complete = visit(found.record);
            complete
        })?;
        Ok(complete)
    }

    /// Asks `keep` of every record of a batch.
    ///
    /// # Errors
    /// When the records do not parse or decompress.
    pub fn select(
        &mut self,
        batch: &Batch<'_>,
        mut keep: impl FnMut(KeyedRecord<'_>) -> bool,
    ) -> Result<Selection, InvalidBatch> {
        self.load(batch)?;
        let (kept, base) = (&mut self.kept, batch.base_timestamp());
        let mut selection =
            Selection { count: 0, kept: 0, has_tombstone: false, max_timestamp: NO_TIMESTAMP };
        walk(batch, records(batch, &self.decompressed), |found| {
            selection.count += 1;
            if keep(found.record) {
                selection.kept += 1;
                selection.has_tombstone |= !found.record.has_value;
                let timestamp = base.wrapping_add(found.timestamp_delta);
                selection.max_timestamp = selection.max_timestamp.max(timestamp);
                match kept.last_mut() {
                    Some(last) if last.end == found.range.start => last.end = found.range.end,
                    _ => kept.push(found.range),
                }
            }
            true
        })?;
        Ok(selection)
    }

    /// Appends to `out` the batch of those records that the last [`Self::select`] has kept, at least one, under the codec
    /// of `batch` at its default level. Base and last offset, sequence numbers, producer, epochs and kind are those of
    /// `batch`. With `delete_horizon_ms` tombstones in it may go from then on.
    ///
    /// # Errors
    /// [`RecompressError`]; `out` is then as before.
    pub fn write(
        &self,
        batch: &Batch<'_>,
        selection: &Selection,
        delete_horizon_ms: Option<i64>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecompressError> {
        assert!(selection.kept > 0, "a batch without records is `empty_batch`");
        let start = out.len();
        let result = self.write_at(start, batch, selection, delete_horizon_ms, out);
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    fn write_at(
        &self,
        start: usize,
        batch: &Batch<'_>,
        selection: &Selection,
        delete_horizon_ms: Option<i64>,
        out: &mut Vec<u8>,
    ) -> Result<(), RecompressError> {
        let codec = batch.attributes().compression().map_err(InvalidBatch::UnknownCompression)?;
        out.extend_from_slice(&[0; HEADER_BYTES]);
        let records = records(batch, &self.decompressed);
        let size = self.kept.iter().map(|range| range.len()).sum();
        let known = delete_horizon_ms.is_none().then_some(size);
        let mut compressor = Compressor::start(codec, None, known, out)?;
        for range in &self.kept {
            match delete_horizon_ms {
                None => compressor.write(&records[range.clone()], out)?,
                Some(horizon) => {
                    let shift = batch.base_timestamp().wrapping_sub(horizon);
                    write_shifted(&records[range.clone()], shift, &mut compressor, out)?;
                }
            }
        }
        compressor.finish(out)?;
        let header = header_of(batch, selection, delete_horizon_ms);
        Ok(seal(start, |payload| header.encode(payload), out)?)
    }

    /// Loads the decompressed records of a batch.
    fn load(&mut self, batch: &Batch<'_>) -> Result<(), InvalidBatch> {
        self.kept.clear();
        self.kept.shrink_to(Self::RANGES_KEPT_MAX);
        self.decompressed.clear();
        self.decompressed.shrink_to(Self::DECOMPRESSED_KEPT_MAX);
        if batch.attributes().compression().map_err(InvalidBatch::UnknownCompression)? == Compression::None {
            return Ok(());
        }
        let decompressed = &mut self.decompressed;
        self.scratch.with_pieces(batch, self.decompressed_bytes_max, |piece| {
            decompressed.extend_from_slice(piece);
            Ok::<(), InvalidBatch>(())
        })
    }
}

impl fmt::Debug for RecordFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RecordFilter").finish_non_exhaustive()
    }
}

/// Makes the batch that replaces one of which no record is kept: a header alone. It keeps the last offset, and the
/// producer's id, epoch and sequence. The layout is that of Kafka's empty batches.
pub fn empty_batch(batch: &Batch<'_>) -> [u8; HEADER_BYTES] {
    let before = batch.attributes();
    let attributes = Attributes::default()
        .with_timestamp_type(before.timestamp_type())
        .with_transactional(before.is_transactional())
        .with_control(before.is_control());
    BatchHeader { attributes, base_timestamp: NO_TIMESTAMP, record_count: 0, ..batch.header() }.encode(&[])
}

fn header_of(batch: &Batch<'_>, selection: &Selection, delete_horizon_ms: Option<i64>) -> BatchHeader {
    let mut header = batch.header();
    header.record_count = selection.kept as i32;
    if header.attributes.timestamp_type() == TimestampType::CreateTime {
        header.max_timestamp = selection.max_timestamp;
    }
    if let Some(horizon) = delete_horizon_ms {
        header.attributes = header.attributes.with_delete_horizon(true);
        header.base_timestamp = horizon;
    }
    header
}

/// A record and where it is.
struct Found<'a> {
    record: KeyedRecord<'a>,
    /// Its bytes, its length in front included.
    range: Range<usize>,
    timestamp_delta: i64,
}

fn records<'a>(batch: &Batch<'a>, decompressed: &'a [u8]) -> &'a [u8] {
    if batch.attributes().is_compressed() { decompressed } else { batch.payload() }
}

/// Shows every record until `visit` returns `false`.
fn walk<'a>(
    batch: &Batch<'_>,
    records: &'a [u8],
    mut visit: impl FnMut(Found<'a>) -> bool,
) -> Result<(), InvalidBatch> {
    let count = u32::try_from(batch.record_count())
        .map_err(|_| InvalidBatch::Header(format!("batch has {} records", batch.record_count())))?;
    let mut source = SliceSource::new(records);
    for index in 0..count {
        let found = read_record(batch, &mut source).map_err(|error| error.at(index))?;
        if !visit(found) {
            return Ok(());
        }
    }
    match source.position() == records.len() as u64 {
        true => Ok(()),
        false => Err(WalkError::Malformed("bytes follow the last record").at(count.saturating_sub(1))),
    }
}

#[inline]
fn read_record<'a>(batch: &Batch<'_>, source: &mut SliceSource<'a>) -> Result<Found<'a>, WalkError> {
    let start = source.position() as usize;
    let length = read_length(source)?;
    let mut body = SliceSource::new(source.take(length)?);
    let _attributes = body.byte()?;
    let timestamp_delta = read_varlong(&mut body)?;
    let offset_delta = read_varint(&mut body)?;
    let key = match usize::try_from(read_varint(&mut body)?) {
        Ok(length) => Some(body.take(length)?),
        Err(_) => None,
    };
    let has_value = read_varint(&mut body)? >= 0;
    let offset = batch.base_offset().wrapping_add(i64::from(offset_delta));
    let record = KeyedRecord { offset, key, has_value };
    Ok(Found { record, range: start..source.position() as usize, timestamp_delta })
}

/// Writes records with `shift` added to their timestamp deltas; `select` has read them before.
fn write_shifted(
    records: &[u8],
    shift: i64,
    compressor: &mut Compressor,
    out: &mut Vec<u8>,
) -> Result<(), RecompressError> {
    const READ: &str = "the records were read before";
    let mut source = SliceSource::new(records);
    let mut head = Vec::with_capacity(24);
    while source.position() < records.len() as u64 {
        let length = read_length(&mut source).expect(READ);
        let body = source.take(length).expect(READ);
        let mut fields = SliceSource::new(body);
        let attributes = fields.byte().expect(READ);
        let delta = read_varlong(&mut fields).expect(READ).wrapping_add(shift);
        let rest = &body[fields.position() as usize..];
        head.clear();
        write_varlong(&mut head, (1 + varlong_bytes(delta) + rest.len()) as i64);
        head.push(attributes);
        write_varlong(&mut head, delta);
        compressor.write(&head, out)?;
        compressor.write(rest, out)?;
    }
    Ok(())
}
