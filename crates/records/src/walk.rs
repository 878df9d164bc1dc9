//! The structure of one record, read from a slice or from a stream of decompressed pieces alike.

use crate::error::InvalidBatch;
use crate::varint::{read_varint, read_varlong};

/// The reason why a walk over records stops.
#[derive(Debug)]
pub(crate) enum WalkError {
    /// The record's structure is wrong.
    Malformed(&'static str),
    /// The bytes of the records could not be read: decompression failed, or a bound was reached.
    Source(Box<InvalidBatch>),
}

impl WalkError {
    pub(crate) const CUT_OFF: WalkError = WalkError::Malformed("the batch ends within the record");

    /// The error of the batch, `index` being the record's.
    pub(crate) fn at(self, index: u32) -> InvalidBatch {
        match self {
            WalkError::Malformed(reason) => InvalidBatch::Malformed { index, reason },
            WalkError::Source(error) => *error,
        }
    }
}

/// Bytes to read records from, front to back.
pub(crate) trait Source {
    /// The next byte.
    fn byte(&mut self) -> Result<u8, WalkError>;
    /// Passes over `count` bytes.
    fn skip(&mut self, count: usize) -> Result<(), WalkError>;
    /// The number of bytes that were read or passed over.
    fn position(&self) -> u64;
    /// Returns true if no byte follows.
    fn at_end(&mut self) -> Result<bool, WalkError>;
    /// Returns false if a record body of `length` bytes cannot follow, as far as that is known.
    fn may_have(&self, length: usize) -> bool;
}

/// Records in one piece.
pub(crate) struct SliceSource<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> SliceSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        SliceSource { bytes, at: 0 }
    }

    /// The next `count` bytes, borrowed.
    #[inline]
    pub(crate) fn take(&mut self, count: usize) -> Result<&'a [u8], WalkError> {
        let taken = self.bytes[self.at..].get(..count).ok_or(WalkError::CUT_OFF)?;
        self.at += count;
        Ok(taken)
    }
}

impl Source for SliceSource<'_> {
    #[inline]
    fn byte(&mut self) -> Result<u8, WalkError> {
        let byte = *self.bytes.get(self.at).ok_or(WalkError::CUT_OFF)?;
        self.at += 1;
        Ok(byte)
    }

    #[inline]
    fn skip(&mut self, count: usize) -> Result<(), WalkError> {
        self.take(count).map(|_| ())
    }

    #[inline]
    fn position(&self) -> u64 {
        self.at as u64
    }

    #[inline]
    fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.at == self.bytes.len())
    }

    #[inline]
    fn may_have(&self, length: usize) -> bool {
        length <= self.bytes.len() - self.at
    }
}

/// The result of a walk over a record, without its key, value and headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordShape {
    /// Offset minus base offset.
    pub(crate) offset_delta: i32,
    /// Timestamp minus base timestamp.
    pub(crate) timestamp_delta: i64,
    /// True if there is a key (an empty one counts).
    pub(crate) has_key: bool,
}

/// Walks over one record: every length inside it must fit it, and all of them together must fill it.
#[inline]
pub(crate) fn walk_record<S: Source>(source: &mut S) -> Result<RecordShape, WalkError> {
    let length = read_length(source)?;
    let end = source.position() + length as u64;
    let _attributes = source.byte()?;
    let timestamp_delta = read_varlong(source)?;
    let offset_delta = read_varint(source)?;
    let has_key = skip_nullable(source, end)?;
    skip_nullable(source, end)?;
    walk_headers(source, end)?;
    if source.position() != end {
        return Err(WalkError::Malformed("its fields do not end where its length says"));
    }
    Ok(RecordShape { offset_delta, timestamp_delta, has_key })
}

/// The length in front of a record's body.
#[inline]
pub(crate) fn read_length<S: Source>(source: &mut S) -> Result<usize, WalkError> {
    let length =
        usize::try_from(read_varint(source)?).map_err(|_| WalkError::Malformed("its length is negative"))?;
    if !source.may_have(length) {
        return Err(WalkError::Malformed("its length is larger than what remains of the batch"));
    }
    Ok(length)
}

/// The number of headers; each takes at least two bytes of the record.
#[inline]
pub(crate) fn read_header_count<S: Source>(source: &mut S, end: u64) -> Result<usize, WalkError> {
    let count = read_varint(source)?;
    match usize::try_from(count) {
        Ok(count) if 2 * count as u64 <= end.saturating_sub(source.position()) => Ok(count),
        Ok(_) => Err(WalkError::Malformed("it cannot hold as many headers as it says")),
        Err(_) => Err(WalkError::Malformed("its number of headers is negative")),
    }
}

#[inline]
fn walk_headers<S: Source>(source: &mut S, end: u64) -> Result<(), WalkError> {
    for _ in 0..read_header_count(source, end)? {
        if !skip_nullable(source, end)? {
            return Err(WalkError::Malformed("a header has no key"));
        }
        skip_nullable(source, end)?;
    }
    Ok(())
}

/// Passes over a field with its length in front; false if it is null. Kafka reads every negative length as null.
#[inline]
fn skip_nullable<S: Source>(source: &mut S, end: u64) -> Result<bool, WalkError> {
    let Ok(length) = usize::try_from(read_varint(source)?) else { return Ok(false) };
    if length as u64 > end.saturating_sub(source.position()) {
        return Err(WalkError::Malformed("a field is longer than the record"));
    }
    source.skip(length)?;
    Ok(true)
}
