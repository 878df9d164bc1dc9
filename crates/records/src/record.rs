//! Borrowed records: what a batch holds, key, value and headers as slices of it.

use crate::batch::{Batch, Compression, TimestampType};
use crate::error::InvalidBatch;
use crate::scratch::Scratch;
use crate::varint::{read_varint, read_varlong, zigzag32};
use crate::walk::{SliceSource, Source, WalkError, read_header_count, read_length};

/// One record, borrowed from its batch or from the buffer that it was decompressed into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The record's own offset.
    pub offset: i64,
    /// Its timestamp in ms: the producer's, or the batch's append time.
    pub timestamp: i64,
    /// The key; `None` is Kafka's null, which is not the empty key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` deletes the key in a compacted topic.
    pub value: Option<&'a [u8]>,
    /// The headers in their order.
    pub headers: Headers<'a>,
}

/// One header of a record (KIP-82). Keys are UTF-8 by convention; that is not checked, as in Kafka's broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The key, which may come more than once.
    pub key: &'a [u8],
    /// The value, or null.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record, parsed as they are iterated over: every one in order, duplicate keys included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Headers<'a> {
    /// The value of the last header with this key, which is the one that counts where only one does (KIP-82).
    pub fn last_with_key(&self, key: &[u8]) -> Option<Header<'a>> {
        (*self).filter(|header| header.key == key).last()
    }

    /// The bytes of the headers that are left, and how many those are: what [`Headers::from_bytes`] takes.
    pub fn as_bytes(&self) -> (&'a [u8], usize) {
        (self.bytes, self.count)
    }

    /// Parses `count` headers; `None` if the bytes are something else.
    pub fn from_bytes(bytes: &'a [u8], count: usize) -> Option<Headers<'a>> {
        let mut source = SliceSource::new(bytes);
        for _ in 0..count {
            read_header(&mut source).ok()?;
        }
        (source.position() == bytes.len() as u64).then_some(Headers { bytes, count })
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        if self.count == 0 {
            return None;
        }
        let mut source = SliceSource::new(self.bytes);
        let header = read_header(&mut source).expect("headers were checked when the record was read");
        self.bytes = &self.bytes[source.position() as usize..];
        self.count -= 1;
        Some(header)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.count, Some(self.count))
    }
}

impl ExactSizeIterator for Headers<'_> {}

/// The place of a reader among the records of one batch, without a borrow of them: see [`Batch::record_at`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RecordCursor {
    position: usize,
    index: u32,
}

impl RecordCursor {
    /// The number of records before it.
    pub fn index(&self) -> u32 {
        self.index
    }
}

/// Iterates over the records of a batch; ends after the first error.
#[derive(Debug, Clone)]
pub struct RecordIter<'a> {
    records: &'a [u8],
    next_index: u32,
    count: u32,
    base_offset: i64,
    base_timestamp: i64,
    append_time: Option<i64>,
}

impl<'a> Batch<'a> {
    /// The records, borrowed: plain ones from the batch, compressed ones from `buffer`, which is cleared and
    /// receives at most `decompressed_bytes_max` bytes.
    ///
    /// The CRC is not checked here. A batch that never passed [`validate`](crate::validate()) is safe to iterate
    /// over; its errors come out one by one.
    ///
    /// # Errors
    /// When the records do not decompress, or to more than the bound.
    pub fn records<'b>(
        &self,
        buffer: &'b mut Vec<u8>,
        decompressed_bytes_max: usize,
        scratch: &mut Scratch,
    ) -> Result<RecordIter<'b>, InvalidBatch>
    where
        'a: 'b,
    {
        self.records_in(self.decompressed(buffer, decompressed_bytes_max, scratch)?)
    }

    /// The payload without compression: the batch's own bytes, or `buffer`, which is cleared and receives at most
    /// `decompressed_bytes_max` bytes.
    ///
    /// # Errors
    /// When the records do not decompress, or to more than the bound.
    pub fn decompressed<'b>(
        &self,
        buffer: &'b mut Vec<u8>,
        decompressed_bytes_max: usize,
        scratch: &mut Scratch,
    ) -> Result<&'b [u8], InvalidBatch>
    where
        'a: 'b,
    {
        let compression = self.attributes().compression().map_err(InvalidBatch::UnknownCompression)?;
        if compression == Compression::None {
            return Ok(self.payload());
        }
        buffer.clear();
        scratch.with_pieces(self, decompressed_bytes_max, |piece| {
            buffer.extend_from_slice(piece);
            Ok::<(), InvalidBatch>(())
        })?;
        Ok(buffer)
    }

    /// The records in what [`Batch::decompressed`] gave for this batch, without decompressing it again.
    ///
    /// # Errors
    /// When the batch's count of records is negative.
    pub fn records_in<'b>(&self, records: &'b [u8]) -> Result<RecordIter<'b>, InvalidBatch> {
        let count = u32::try_from(self.record_count())
            .map_err(|_| InvalidBatch::Header(format!("batch has {} records", self.record_count())))?;
        let append_time = match self.attributes().timestamp_type() {
            TimestampType::CreateTime => None,
            TimestampType::LogAppendTime => Some(self.max_timestamp()),
        };
        Ok(RecordIter {
            records,
            next_index: 0,
            count,
            base_offset: self.base_offset(),
            base_timestamp: self.base_timestamp(),
            append_time,
        })
    }
}

impl Batch<'_> {
    /// The record at `cursor`, which moves behind it, in what [`Batch::decompressed`] gave for this batch. `None` after the
    /// last one.
    ///
    /// # Errors
    /// When the record is malformed; the cursor stays.
    pub fn record_at<'b>(
        &self,
        records: &'b [u8],
        cursor: &mut RecordCursor,
    ) -> Result<Option<Record<'b>>, InvalidBatch> {
        let mut rest = self.records_in(records)?;
        rest.records = records.get(cursor.position..).unwrap_or_default();
        rest.next_index = cursor.index;
        let Some(record) = rest.next().transpose()? else { return Ok(None) };
        *cursor = RecordCursor { position: records.len() - rest.records.len(), index: rest.next_index };
        Ok(Some(record))
    }
}

impl<'a> RecordIter<'a> {
    /// Returns the next record if it is a common one: no length of more than three bytes, and no fault. Otherwise nothing is read,
    /// and [`read`](Self::read) finds out. It takes a third of the instructions.
    #[inline]
    fn read_usual(&mut self) -> Option<Record<'a>> {
        let mut rest = self.records;
        let length = usize::try_from(usual_varint(&mut rest)?).ok()?;
        let (body, rest) = rest.split_at_checked(length)?;
        let is_last = self.next_index + 1 == self.count;
        if is_last && !rest.is_empty() {
            return None;
        }
        // The attributes of a record mean nothing.
        let mut body = body.get(1..)?;
        let timestamp_delta = usual_varint(&mut body)?;
        let offset_delta = usual_varint(&mut body)?;
        let key = usual_nullable(&mut body)?;
        let value = usual_nullable(&mut body)?;
        let record = Record {
            offset: self.base_offset.wrapping_add(i64::from(offset_delta)),
            timestamp: self
                .append_time
                .unwrap_or(self.base_timestamp.wrapping_add(i64::from(timestamp_delta))),
            key,
            value,
            headers: usual_headers(body)?,
        };
        self.records = rest;
        self.next_index += 1;
        Some(record)
    }

    #[cold]
    fn read_unusual(&mut self) -> Result<Record<'a>, InvalidBatch> {
        let index = self.next_index;
        self.read().map_err(|error| {
            self.count = 0;
            error.at(index)
        })
    }

    fn read(&mut self) -> Result<Record<'a>, WalkError> {
        let mut source = SliceSource::new(self.records);
        let length = read_length(&mut source)?;
        let body = source.take(length)?;
        let record = self.read_body(body)?;
        self.records = &self.records[source.position() as usize..];
        self.next_index += 1;
        if self.next_index == self.count && !self.records.is_empty() {
            return Err(WalkError::Malformed("bytes follow the last record"));
        }
        Ok(record)
    }

    fn read_body(&self, body: &'a [u8]) -> Result<Record<'a>, WalkError> {
        let mut source = SliceSource::new(body);
        let _attributes = source.byte()?;
        let timestamp_delta = read_varlong(&mut source)?;
        let offset_delta = read_varint(&mut source)?;
        let key = read_nullable(&mut source)?;
        let value = read_nullable(&mut source)?;
        let headers = read_headers(body, &mut source)?;
        if source.position() != body.len() as u64 {
            return Err(WalkError::Malformed("its fields do not end where its length says"));
        }
        Ok(Record {
            offset: self.base_offset.wrapping_add(i64::from(offset_delta)),
            timestamp: self.append_time.unwrap_or(self.base_timestamp.wrapping_add(timestamp_delta)),
            key,
            value,
            headers,
        })
    }
}

impl<'a> Iterator for RecordIter<'a> {
    type Item = Result<Record<'a>, InvalidBatch>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if self.next_index >= self.count {
            return None;
        }
        match self.read_usual() {
            Some(record) => Some(Ok(record)),
            None => Some(self.read_unusual()),
        }
    }
}

/// A varint of one to three bytes, in which a varlong is the same.
// Always, as what follows: whether the compiler does it by itself depends on what else the crate has that reads records. A call costs a
// tenth of a record.
#[inline(always)]
fn usual_varint(rest: &mut &[u8]) -> Option<i32> {
    let seven = |byte: u8| u32::from(byte & 0x7f);
    let (value, behind) = match *rest {
        [a, behind @ ..] if *a < 0x80 => (seven(*a), behind),
        [a, b, behind @ ..] if *b < 0x80 => (seven(*a) | (seven(*b) << 7), behind),
        [a, b, c, behind @ ..] if *c < 0x80 => (seven(*a) | (seven(*b) << 7) | (seven(*c) << 14), behind),
        _ => return None,
    };
    *rest = behind;
    Some(zigzag32(value))
}

/// Parses a field with its length in front, or null.
#[inline(always)]
fn usual_nullable<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let Ok(length) = usize::try_from(usual_varint(rest)?) else { return Some(None) };
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(Some(taken))
}

/// The headers in what is left of a record; most have none.
#[inline(always)]
fn usual_headers(body: &[u8]) -> Option<Headers<'_>> {
    if let [0] = body {
        return Some(Headers { bytes: &body[1..], count: 0 });
    }
    let mut source = SliceSource::new(body);
    let headers = read_headers(body, &mut source).ok()?;
    (source.position() == body.len() as u64).then_some(headers)
}

fn read_headers<'a>(body: &'a [u8], source: &mut SliceSource<'a>) -> Result<Headers<'a>, WalkError> {
    let count = read_header_count(source, body.len() as u64)?;
    let start = source.position() as usize;
    for _ in 0..count {
        read_header(source)?;
    }
    Ok(Headers { bytes: &body[start..source.position() as usize], count })
}

fn read_header<'a>(source: &mut SliceSource<'a>) -> Result<Header<'a>, WalkError> {
    let key = read_nullable(source)?.ok_or(WalkError::Malformed("a header has no key"))?;
    Ok(Header { key, value: read_nullable(source)? })
}

fn read_nullable<'a>(source: &mut SliceSource<'a>) -> Result<Option<&'a [u8]>, WalkError> {
    match usize::try_from(read_varint(source)?) {
        Ok(length) => source.take(length).map(Some),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::varint::write_varlong;

    fn iter(records: &[u8], count: u32) -> RecordIter<'_> {
        RecordIter { records, next_index: 0, count, base_offset: 7, base_timestamp: 1_000, append_time: None }
    }

    /// Checks that both ways of reading return the same records, and leave the same state.
    fn check(records: &[u8], count: u32) {
        let (mut usual, mut other) = (iter(records, count), iter(records, count));
        for _ in 0..count {
            let read = usual.read_usual();
            let expected = other.read();
            match (read, expected) {
                (Some(read), Ok(expected)) => {
                    assert_eq!(read, expected);
                    assert_eq!((usual.records, usual.next_index), (other.records, other.next_index));
                }
                (Some(read), Err(error)) => panic!("{read:?} was read, and is {error:?}"),
                (None, Ok(_)) => (usual.records, usual.next_index) = (other.records, other.next_index),
                (None, Err(_)) => return,
            }
        }
    }

    fn part() -> impl Strategy<Value = Option<Vec<u8>>> {
        let sizes = prop_oneof![0usize..3, 60usize..70, 8_190usize..8_200];
        proptest::option::of(sizes.prop_map(|size| vec![b'x'; size]))
    }

    proptest! {
        #[test]
        fn records_are_read_alike_in_both_ways(
            parts in prop::collection::vec((part(), part(), 0i64..3_000_000, prop::collection::vec(part(), 0..3)), 1..4),
            damage in proptest::option::of((any::<prop::sample::Index>(), any::<u8>())),
        ) {
            let mut records = Vec::new();
            for (index, (key, value, timestamp, headers)) in parts.iter().enumerate() {
                let mut body = vec![0];
                write_varlong(&mut body, *timestamp);
                write_varlong(&mut body, index as i64);
                let put = |part: &Option<Vec<u8>>, body: &mut Vec<u8>| {
                    write_varlong(body, part.as_ref().map_or(-1, |part| part.len() as i64));
                    body.extend(part.iter().flatten());
                };
                put(key, &mut body);
                put(value, &mut body);
                write_varlong(&mut body, headers.len() as i64);
                for header in headers {
                    put(&Some(b"name".to_vec()), &mut body);
                    put(header, &mut body);
                }
                write_varlong(&mut records, body.len() as i64);
                records.extend(body);
            }
            if let Some((at, byte)) = damage {
                let at = at.index(records.len());
                records[at] = byte;
            }
            check(&records, parts.len() as u32);
        }

        #[test]
        fn bytes_of_any_kind_are_read_alike_in_both_ways(bytes: Vec<u8>, count in 1u32..5) {
            check(&bytes, count);
        }
    }
}
