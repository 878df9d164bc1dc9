//! Walks over the batches of a segment file by their headers, from any batch's start.

use crate::read_mode::{ReadMode, ReadStop};
use crate::storage::StorageFile;
use mainstem_records::{
    Attributes, Batch, EndTransactionMarker, HEADER_BYTES, LOG_OVERHEAD_BYTES, LeaderEpoch, ProducerEpoch,
    ProducerId, STAMP_BYTES,
};

/// Bytes read at once by a lookup: an index interval, mostly.
pub(crate) const LOOKUP_CHUNK_BYTES: usize = 8 << 10;
/// Bytes read at once by a recovery.
pub(crate) const RECOVERY_CHUNK_BYTES: usize = 256 << 10;
/// A longer batch is no marker, of which ours has 78 bytes.
const MARKER_BATCH_BYTES_MAX: u64 = 4 << 10;

/// Fields of a batch's header in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ScannedBatch {
    pub(crate) position: u64,
    pub(crate) size: u64,
    pub(crate) base_offset: i64,
    pub(crate) last_offset: i64,
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) max_timestamp: i64,
    pub(crate) attributes: Attributes,
    pub(crate) producer_id: ProducerId,
    pub(crate) producer_epoch: ProducerEpoch,
    pub(crate) base_sequence: i32,
    pub(crate) last_sequence: i32,
    /// 0 for what stands in for a batch that a compaction has emptied.
    pub(crate) record_count: i32,
}

impl ScannedBatch {
    fn new(batch: &Batch<'_>, position: u64, size: u64) -> ScannedBatch {
        ScannedBatch {
            position,
            size,
            base_offset: batch.base_offset(),
            last_offset: batch.last_offset(),
            leader_epoch: LeaderEpoch::new(batch.partition_leader_epoch()),
            max_timestamp: batch.max_timestamp(),
            attributes: batch.attributes(),
            producer_id: ProducerId::new(batch.producer_id()),
            producer_epoch: ProducerEpoch::new(batch.producer_epoch()),
            base_sequence: batch.base_sequence(),
            last_sequence: batch.last_sequence(),
            record_count: batch.record_count(),
        }
    }
}

/// The next item in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scanned {
    /// A batch.
    Batch(ScannedBatch),
    /// The end, right behind a batch.
    End,
    /// Bytes that are not a batch, from here on.
    Torn { position: u64, reason: &'static str },
}

/// A walk over the batches of a file.
pub(crate) struct BatchScan<'f> {
    file: &'f dyn StorageFile,
    read_mode: ReadMode,
    position: u64,
    end: u64,
    next_offset: i64,
    chunk: Vec<u8>,
    chunk_at: u64,
    chunk_bytes: usize,
    /// Size of the last batch that was given, 0 before the first.
    last_size: u64,
}

impl<'f> BatchScan<'f> {
    /// A walk from `position`, where a batch starts, to `end`. Offsets below `next_offset` are torn.
    pub(crate) fn new(
        file: &'f dyn StorageFile,
        read_mode: ReadMode,
        range: std::ops::Range<u64>,
        next_offset: i64,
        chunk_bytes: usize,
    ) -> BatchScan<'f> {
        let (position, end) = (range.start, range.end);
        BatchScan {
            file,
            read_mode,
            position,
            end,
            next_offset,
            chunk: Vec::new(),
            chunk_at: position,
            chunk_bytes: chunk_bytes.max(HEADER_BYTES),
            last_size: 0,
        }
    }

    /// The next batch by its header; with `check_crc` its bytes are read and checked.
    pub(crate) fn next(&mut self, check_crc: bool) -> Result<Scanned, ReadStop> {
        let remaining = self.end.saturating_sub(self.position);
        if remaining == 0 {
            return Ok(Scanned::End);
        }
        if remaining < HEADER_BYTES as u64 {
            return Ok(self.torn("fewer bytes than a batch header has"));
        }
        self.fill(HEADER_BYTES)?;
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(self.at_position(HEADER_BYTES));
        let Ok(size) = Batch::size_of_first(&header) else {
            return Ok(self.torn("length or magic of no batch"));
        };
        if size as u64 > remaining {
            return Ok(self.torn("a batch that is cut off"));
        }
        let batch = ScannedBatch::new(&header_view(&mut header), self.position, size as u64);
        if batch.base_offset < self.next_offset || batch.last_offset < batch.base_offset {
            return Ok(self.torn("offsets that do not ascend"));
        }
        let Some(next_offset) = batch.last_offset.checked_add(1) else {
            return Ok(self.torn("an offset behind which none can follow"));
        };
        if check_crc && !self.crc_is_right(size)? {
            return Ok(self.torn("a checksum that does not match"));
        }
        self.position += batch.size;
        self.last_size = batch.size;
        self.next_offset = next_offset;
        Ok(Scanned::Batch(batch))
    }

    /// The marker in the batch that was just given; `None`: it has none.
    pub(crate) fn marker(&mut self, batch: &ScannedBatch) -> Result<Option<EndTransactionMarker>, ReadStop> {
        let may_be = batch.attributes.is_control() && batch.producer_id != ProducerId::NONE;
        if !may_be || batch.size > MARKER_BATCH_BYTES_MAX {
            return Ok(None);
        }
        let mut bytes = vec![0; batch.size as usize];
        let start = (batch.position - self.chunk_at) as usize;
        match self.chunk.get(start..start + bytes.len()) {
            Some(read) => bytes.copy_from_slice(read),
            None => self.read_mode.read_exact(self.file, &mut bytes, batch.position)?,
        }
        let batch = Batch::split_first(&bytes).ok();
        Ok(batch.and_then(|(batch, _)| EndTransactionMarker::of_batch(&batch)))
    }

    /// The offset behind the last batch that was given.
    pub(crate) fn next_offset(&self) -> i64 {
        self.next_offset
    }

    /// The position of the next batch.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    fn torn(&self, reason: &'static str) -> Scanned {
        Scanned::Torn { position: self.position, reason }
    }

    fn crc_is_right(&mut self, size: usize) -> Result<bool, ReadStop> {
        self.fill(size)?;
        let bytes = self.at_position(size);
        Ok(Batch::split_first(bytes).is_ok_and(|(batch, _)| batch.verify_crc()))
    }

    /// Makes sure that `needed` bytes from the position on are in the chunk; they are within the end.
    fn fill(&mut self, needed: usize) -> Result<(), ReadStop> {
        let chunk_end = self.chunk_at + self.chunk.len() as u64;
        if self.position >= self.chunk_at && self.position + needed as u64 <= chunk_end {
            return Ok(());
        }
        // Batches are mostly as large as the one before: of large ones only the header is wanted here.
        let ahead = match self.last_size > self.chunk_bytes as u64 {
            true => self.chunk_bytes.min(LOOKUP_CHUNK_BYTES),
            false => self.chunk_bytes,
        };
        let want = needed.max(ahead).min((self.end - self.position) as usize);
        self.chunk.resize(want, 0);
        self.chunk_at = self.position;
        let result = self.read_mode.read_exact(self.file, &mut self.chunk, self.position);
        if result.is_err() {
            self.chunk.clear();
        }
        result
    }

    fn at_position(&self, len: usize) -> &[u8] {
        let start = (self.position - self.chunk_at) as usize;
        &self.chunk[start..start + len]
    }
}

/// Returns a view of a batch from its header alone. Its length is set to that of a header, so that the records crate reads
/// only the fields. `size_of_first` has accepted it before.
fn header_view(header: &mut [u8; HEADER_BYTES]) -> Batch<'_> {
    const LENGTH: std::ops::Range<usize> = LOG_OVERHEAD_BYTES - 4..LOG_OVERHEAD_BYTES;
    const _: () = assert!(LENGTH.end + 4 == STAMP_BYTES);
    header[LENGTH].copy_from_slice(&((HEADER_BYTES - LOG_OVERHEAD_BYTES) as i32).to_be_bytes());
    let (batch, _) = Batch::split_first(header).expect("magic was checked and the length fits");
    batch
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimStorage;
    use crate::storage::{OpenMode, Storage, write_all_at};

    /// Known fault: the offset behind such a batch does not exist, and was computed all the same.
    #[test]
    fn offsets_at_the_end_of_their_range_are_damage() {
        let mut header = [0; HEADER_BYTES];
        header[8..12].copy_from_slice(&((HEADER_BYTES - LOG_OVERHEAD_BYTES) as i32).to_be_bytes());
        header[16] = 2;
        let mut check = |base_offset: i64, last_offset_delta: i32, torn: bool| {
            header[..8].copy_from_slice(&base_offset.to_be_bytes());
            header[23..27].copy_from_slice(&last_offset_delta.to_be_bytes());
            let file = SimStorage::new().open("/log".as_ref(), OpenMode::Create).unwrap();
            write_all_at(&*file, &header, 0).unwrap();
            let range = 0..HEADER_BYTES as u64;
            let mut scan = BatchScan::new(&*file, ReadMode::Blocking, range, 0, LOOKUP_CHUNK_BYTES);
            let scanned = scan.next(false).unwrap();
            assert_eq!(matches!(scanned, Scanned::Torn { .. }), torn, "{base_offset} {last_offset_delta}");
        };
        check(0, 0, false);
        check(i64::MAX - 1, 0, false);
        check(i64::MAX, 0, true);
        check(i64::MAX - 1, 1, true);
        check(i64::MAX - 1, 2, true);
        check(5, -1, true);
    }
}
