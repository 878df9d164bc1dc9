//! A batch of one uncompressed record, built where it will lie: in a mapped file, without a copy of the value.

use std::ops::Range;

use crate::batch::{
    Attributes, BatchHeader, HEADER_BYTES, HeaderTemplate, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE,
};
use crate::builder::{BATCH_BYTES_MAX, BuildError};
use crate::record::Header;
use crate::varint::varlong_bytes;

/// Attributes, timestamp delta and offset delta of a record that is alone in its batch: a byte each, all zero.
const RECORD_FIELDS_BYTES: usize = 3;

/// The layout of a batch whose one record has a value of a known length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SingleRecord {
    body_bytes: usize,
    value: Range<usize>,
    size: usize,
}

impl SingleRecord {
    /// The layout for a value of `value_bytes` bytes.
    ///
    /// # Errors
    /// [`BuildError::TooLarge`] if the batch's length field cannot say so much.
    #[inline]
    pub fn new(
        key: Option<&[u8]>,
        value_bytes: usize,
        headers: &[Header<'_>],
    ) -> Result<SingleRecord, BuildError> {
        let before = RECORD_FIELDS_BYTES + nullable_bytes(key) + varlong_bytes(value_bytes as i64);
        let after: usize = varlong_bytes(headers.len() as i64)
            + headers
                .iter()
                .map(|header| nullable_bytes(Some(header.key)) + nullable_bytes(header.value))
                .sum::<usize>();
        let body_bytes = before.saturating_add(value_bytes).saturating_add(after);
        let size = body_bytes.saturating_add(HEADER_BYTES + varlong_bytes(body_bytes as i64));
        if size > BATCH_BYTES_MAX {
            return Err(BuildError::TooLarge(size));
        }
        let start = HEADER_BYTES + varlong_bytes(body_bytes as i64) + before;
        Ok(SingleRecord { body_bytes, value: start..start + value_bytes, size })
    }

    /// The size of the batch in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        self.size
    }

    /// The range of the value in the batch.
    #[inline]
    pub fn value(&self) -> Range<usize> {
        self.value.clone()
    }

    /// Writes what surrounds the value: lengths, key and headers, the same as given to [`SingleRecord::new`].
    ///
    /// # Panics
    /// If `out` is not of [`SingleRecord::size`] bytes, or key and headers are others.
    #[inline]
    pub fn begin(&self, key: Option<&[u8]>, headers: &[Header<'_>], out: &mut [u8]) {
        let mut cursor = Cursor { out, at: HEADER_BYTES };
        cursor.varlong(self.body_bytes as i64);
        cursor.bytes(&[0; RECORD_FIELDS_BYTES]);
        cursor.nullable(key);
        cursor.varlong(self.value.len() as i64);
        assert_eq!(cursor.at, self.value.start, "key and headers are those of the layout");
        cursor.at = self.value.end;
        cursor.varlong(headers.len() as i64);
        for header in headers {
            cursor.nullable(Some(header.key));
            cursor.nullable(header.value);
        }
        assert_eq!(cursor.at, self.size, "key and headers are those of the layout");
    }

    /// Writes the header with the CRC of the bytes behind it, which completes the batch.
    ///
    /// # Panics
    /// If `out` is not of [`SingleRecord::size`] bytes.
    #[inline]
    pub fn finish(
        &self,
        header: &SingleRecordHeader,
        base_offset: i64,
        partition_leader_epoch: i32,
        out: &mut [u8],
    ) {
        assert_eq!(out.len(), self.size, "the batch has the size of the layout");
        let (head, records) = out.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header.template.complete(base_offset, partition_leader_epoch, records));
    }
}

/// The header of batches of one record and one timestamp, to be used again until the clock moves.
#[derive(Debug, Clone)]
pub struct SingleRecordHeader {
    timestamp: i64,
    template: HeaderTemplate,
}

impl SingleRecordHeader {
    /// Makes the header for a timestamp in ms.
    pub fn new(timestamp: i64) -> SingleRecordHeader {
        let header = BatchHeader {
            // Fields that are zero here differ between batches.
            base_offset: 0,
            size: 0,
            partition_leader_epoch: 0,
            crc: 0,
            attributes: Attributes::default(),
            last_offset_delta: 0,
            base_timestamp: timestamp,
            max_timestamp: timestamp,
            producer_id: NO_PRODUCER_ID,
            producer_epoch: NO_PRODUCER_EPOCH,
            base_sequence: NO_SEQUENCE,
            record_count: 1,
        };
        SingleRecordHeader { timestamp, template: header.template() }
    }

    /// Its timestamp.
    #[inline]
    pub fn timestamp(&self) -> i64 {
        self.timestamp
    }
}

#[inline]
fn nullable_bytes(field: Option<&[u8]>) -> usize {
    field.map_or(varlong_bytes(-1), |bytes| varlong_bytes(bytes.len() as i64) + bytes.len())
}

struct Cursor<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Cursor<'_> {
    #[inline]
    fn bytes(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    #[inline]
    fn varlong(&mut self, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)) as u64;
        while rest >= 0x80 {
            self.out[self.at] = (rest as u8) | 0x80;
            self.at += 1;
            rest >>= 7;
        }
        self.out[self.at] = rest as u8;
        self.at += 1;
    }

    #[inline]
    fn nullable(&mut self, field: Option<&[u8]>) {
        match field {
            Some(bytes) => {
                self.varlong(bytes.len() as i64);
                self.bytes(bytes);
            }
            None => self.varlong(-1),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::builder::{BatchBuilder, BatchOptions};

    proptest! {
        #[test]
        fn the_bytes_are_those_of_the_builder(
            key in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..200)),
            value in proptest::collection::vec(any::<u8>(), 0..9000),
            headers in proptest::collection::vec(
                (proptest::collection::vec(any::<u8>(), 0..70),
                 proptest::option::of(proptest::collection::vec(any::<u8>(), 0..70))),
                0..4,
            ),
            base_offset in 0..i64::MAX,
            timestamp in 0..i64::MAX,
        ) {
            let headers: Vec<Header<'_>> =
                headers.iter().map(|(key, value)| Header { key, value: value.as_deref() }).collect();
            let layout = SingleRecord::new(key.as_deref(), value.len(), &headers).unwrap();
            let mut built = vec![0xee; layout.size()];
            layout.begin(key.as_deref(), &headers, &mut built);
            built[layout.value()].copy_from_slice(&value);
            layout.finish(&SingleRecordHeader::new(timestamp), base_offset, 7, &mut built);
            let options =
                BatchOptions { base_offset, partition_leader_epoch: 7, ..BatchOptions::default() };
            let mut builder = BatchBuilder::new(options);
            builder.append(timestamp, key.as_deref(), Some(&value), &headers).unwrap();
            prop_assert_eq!(built, builder.build().unwrap());
        }
    }

    #[test]
    fn what_no_length_field_can_say_is_refused() {
        assert!(matches!(SingleRecord::new(None, usize::MAX, &[]), Err(BuildError::TooLarge(_))));
        assert!(matches!(SingleRecord::new(None, BATCH_BYTES_MAX, &[]), Err(BuildError::TooLarge(_))));
    }
}
