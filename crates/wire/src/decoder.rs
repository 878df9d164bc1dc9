//! Reads primitive values from the bytes of a message.

use std::borrow::Cow;

use crate::varint::{self, VarintError};
use crate::{DecodeError, Malformed, Records, UnknownTaggedField, Uuid};

/// The longest string, in bytes: what a classic length of 16 bits can say. Kafka holds compact strings to it too.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// Memory that any message may take, however short: small arrays of small things stay below it.
const BUDGET_BASE: usize = 64 * 1024;
/// Memory per byte for the first of the message. An empty string takes 24 times its byte, a list of short
/// configuration entries 13 times, lists of partitions four times.
const BUDGET_PER_BYTE: usize = 32;
/// The number of bytes with the higher rate. Longer messages are lists of partitions, or records, which take no memory.
const BUDGET_FULL_RATE_BYTES: usize = 1024 * 1024;
/// Memory per byte for the rest of the message.
const BUDGET_PER_FURTHER_BYTE: usize = 8;

/// The memory that a message of `len` bytes may take when decoded, in bytes, if nothing else is said.
pub const fn memory_budget(len: usize) -> usize {
    let first = if len < BUDGET_FULL_RATE_BYTES { len } else { BUDGET_FULL_RATE_BYTES };
    BUDGET_BASE + first * BUDGET_PER_BYTE + (len - first).saturating_mul(BUDGET_PER_FURTHER_BYTE)
}

/// The least memory, in bytes, that an element of a vector counts for. So a budget bounds the number of elements too.
const ELEMENT_BYTES_MIN: usize = 24;

/// The memory that at most `count` elements may take when decoded, in bytes. Elements of several fields take more than one of a
/// number or a name, and fewer of them fit.
pub const fn elements_budget(count: usize) -> usize {
    count * ELEMENT_BYTES_MIN
}

/// The bytes of a request that count for its budget. 200,000 partitions fit, or as many names; records take no memory. A
/// client that wants more sends several requests.
const REQUEST_COUNTED_BYTES_MAX: usize = 512 * 1024;

/// The memory that a request of `len` bytes may take when decoded, in bytes: what [`memory_budget`] gives, but however long
/// it is, at most 16 MiB and 64 KiB. Anybody may send one, and many at the same time.
pub const fn request_memory_budget(len: usize) -> usize {
    memory_budget(if len < REQUEST_COUNTED_BYTES_MAX { len } else { REQUEST_COUNTED_BYTES_MAX })
}

/// Reads values from the front of a slice, borrowing from it.
///
/// A count sizes an allocation only after it was checked against the bytes that remain. All vectors of a message together have
/// a budget of memory, and so of elements. An error names the `field` of the method.
#[derive(Debug, Clone)]
pub struct Decoder<'a> {
    rest: &'a [u8],
    /// Bytes of the input at the start; `position` counts from there.
    total: usize,
    budget: usize,
}

/// The head of a tagged field: its value comes next.
#[derive(Debug)]
pub(crate) struct TaggedField {
    pub(crate) tag: u32,
    size: usize,
    /// Bytes of the input that were left before the value.
    before: usize,
}

impl<'a> Decoder<'a> {
    /// A decoder with the budget that [`memory_budget`] gives.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::with_budget(bytes, memory_budget(bytes.len()))
    }

    /// A decoder whose vectors may take `budget` bytes of memory in all.
    pub fn with_budget(bytes: &'a [u8], budget: usize) -> Self {
        Decoder { rest: bytes, total: bytes.len(), budget }
    }

    /// Limits the memory of the decoder's vectors to `budget` bytes.
    #[must_use]
    pub fn held_to(&self, budget: usize) -> Self {
        Decoder { budget: self.budget.min(budget), ..self.clone() }
    }

    /// Bytes that have been read.
    pub fn position(&self) -> usize {
        self.total - self.rest.len()
    }

    /// Bytes that have not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The number of bytes that have not been read.
    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// Fails if bytes remain, naming `message`.
    pub fn finish(&self, message: &'static str) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            trailing => Err(self.fault(message, Malformed::Trailing(trailing))),
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn fault(&self, field: &'static str, kind: Malformed) -> DecodeError {
        DecodeError { field, position: self.position(), kind }
    }

    #[cold]
    #[inline(never)]
    fn truncated(&self, field: &'static str, needed: usize) -> DecodeError {
        self.fault(field, Malformed::Truncated { needed, remaining: self.rest.len() })
    }

    /// The next `len` bytes.
    #[inline]
    pub fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.truncated(field, len));
        };
        self.rest = rest;
        Ok(taken)
    }

    #[inline]
    fn chunk<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        let Some((chunk, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.truncated(field, N));
        };
        self.rest = rest;
        Ok(*chunk)
    }

    /// A boolean: any byte but zero is true.
    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        Ok(self.chunk::<1>(field)? != [0])
    }

    /// An `int8`.
    #[inline]
    pub fn i8(&mut self, field: &'static str) -> Result<i8, DecodeError> {
        self.chunk(field).map(i8::from_be_bytes)
    }

    /// An `int16`.
    #[inline]
    pub fn i16(&mut self, field: &'static str) -> Result<i16, DecodeError> {
        self.chunk(field).map(i16::from_be_bytes)
    }

    /// A `uint16`.
    #[inline]
    pub fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        self.chunk(field).map(u16::from_be_bytes)
    }

    /// An `int32`.
    #[inline]
    pub fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.chunk(field).map(i32::from_be_bytes)
    }

    /// A `uint32`.
    #[inline]
    pub fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.chunk(field).map(u32::from_be_bytes)
    }

    /// An `int64`.
    #[inline]
    pub fn i64(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        self.chunk(field).map(i64::from_be_bytes)
    }

    /// A `float64`.
    #[inline]
    pub fn f64(&mut self, field: &'static str) -> Result<f64, DecodeError> {
        self.chunk(field).map(f64::from_be_bytes)
    }

    /// A `uuid`.
    #[inline]
    pub fn uuid(&mut self, field: &'static str) -> Result<Uuid, DecodeError> {
        self.chunk(field).map(Uuid)
    }

    /// An unsigned variable-length number of 32 bits.
    #[inline]
    pub fn unsigned_varint(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        match varint::read_u32(self.rest) {
            Ok((value, used)) => {
                self.rest = &self.rest[used..];
                Ok(value)
            }
            Err(VarintError::Truncated) => Err(self.truncated(field, self.rest.len() + 1)),
            Err(VarintError::TooLong) => Err(self.fault(field, Malformed::Varint)),
        }
    }

    /// A length of 32 bits, or a compact one; below zero is null.
    #[inline]
    fn length(&mut self, flexible: bool, field: &'static str) -> Result<Option<usize>, DecodeError> {
        if flexible {
            return Ok(self.unsigned_varint(field)?.checked_sub(1).map(|length| length as usize));
        }
        Ok(usize::try_from(self.i32(field)?).ok())
    }

    fn string_length(&mut self, flexible: bool, field: &'static str) -> Result<Option<usize>, DecodeError> {
        if !flexible {
            return Ok(usize::try_from(self.i16(field)?).ok());
        }
        match self.length(true, field)? {
            Some(length) if length > STRING_BYTES_MAX => {
                Err(self.fault(field, Malformed::Length(length as i64)))
            }
            length => Ok(length),
        }
    }

    fn str(&mut self, length: usize, field: &'static str) -> Result<Cow<'a, str>, DecodeError> {
        let bytes = self.take(length, field)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Cow::Borrowed(text)),
            Err(_) => self.repaired(bytes, field),
        }
    }

    /// A string with U+FFFD in the place of what is not UTF-8, as Java decodes it.
    #[cold]
    fn repaired(&mut self, bytes: &'a [u8], field: &'static str) -> Result<Cow<'a, str>, DecodeError> {
        let text = String::from_utf8_lossy(bytes);
        // Each byte may become three: the text must still be one that can be encoded.
        if text.len() > STRING_BYTES_MAX {
            return Err(self.fault(field, Malformed::Length(text.len() as i64)));
        }
        self.charge(text.len(), field)?;
        Ok(text)
    }

    /// A `string`.
    pub fn string(&mut self, flexible: bool, field: &'static str) -> Result<Cow<'a, str>, DecodeError> {
        match self.string_length(flexible, field)? {
            Some(length) => self.str(length, field),
            None => Err(self.fault(field, Malformed::Null)),
        }
    }

    /// A `string` that may be null if `nullable`.
    pub fn nullable_string(
        &mut self,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<Option<Cow<'a, str>>, DecodeError> {
        match self.string_length(flexible, field)? {
            Some(length) => self.str(length, field).map(Some),
            None if nullable => Ok(None),
            None => Err(self.fault(field, Malformed::Null)),
        }
    }

    /// `bytes`.
    pub fn bytes(&mut self, flexible: bool, field: &'static str) -> Result<Cow<'a, [u8]>, DecodeError> {
        match self.length(flexible, field)? {
            Some(length) => self.take(length, field).map(Cow::Borrowed),
            None => Err(self.fault(field, Malformed::Null)),
        }
    }

    /// `bytes` that may be null if `nullable`.
    pub fn nullable_bytes(
        &mut self,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<Option<Cow<'a, [u8]>>, DecodeError> {
        match self.length(flexible, field)? {
            Some(length) => self.take(length, field).map(|bytes| Some(Cow::Borrowed(bytes))),
            None if nullable => Ok(None),
            None => Err(self.fault(field, Malformed::Null)),
        }
    }

    /// `records`.
    pub fn records(&mut self, flexible: bool, field: &'static str) -> Result<Records<'a>, DecodeError> {
        self.bytes(flexible, field).map(Records::Bytes)
    }

    /// `records` that may be null if `nullable`.
    pub fn nullable_records(
        &mut self,
        flexible: bool,
        nullable: bool,
        field: &'static str,
    ) -> Result<Option<Records<'a>>, DecodeError> {
        Ok(self.nullable_bytes(flexible, nullable, field)?.map(Records::Bytes))
    }

    /// The byte before a structure that may be null: whether the structure follows, which takes `size` of memory.
    #[inline]
    pub(crate) fn presence(&mut self, size: usize, field: &'static str) -> Result<bool, DecodeError> {
        let present = self.i8(field)? >= 0;
        self.charge_if(present, size, field)
    }

    /// Reads the same within a tagged field, where Kafka writes a variable-length number: zero is null.
    pub(crate) fn tagged_presence(&mut self, size: usize, field: &'static str) -> Result<bool, DecodeError> {
        let present = self.unsigned_varint(field)? > 0;
        self.charge_if(present, size, field)
    }

    fn charge_if(&mut self, present: bool, size: usize, field: &'static str) -> Result<bool, DecodeError> {
        if present {
            self.charge(size, field)?;
        }
        Ok(present)
    }

    /// An array, each element read by `element`.
    #[inline]
    pub fn array<T>(
        &mut self,
        flexible: bool,
        field: &'static str,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        match self.length(flexible, field)? {
            Some(count) => self.elements(count, field, element),
            None => Err(self.fault(field, Malformed::Null)),
        }
    }

    /// An array that may be null if `nullable`.
    #[inline]
    pub fn nullable_array<T>(
        &mut self,
        flexible: bool,
        nullable: bool,
        field: &'static str,
        element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Option<Vec<T>>, DecodeError> {
        match self.length(flexible, field)? {
            Some(count) => self.elements(count, field, element).map(Some),
            None if nullable => Ok(None),
            None => Err(self.fault(field, Malformed::Null)),
        }
    }

    #[inline]
    fn elements<T>(
        &mut self,
        count: usize,
        field: &'static str,
        mut element: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        self.reserve(count, size_of::<T>().max(ELEMENT_BYTES_MIN), field)?;
        let mut elements = Vec::with_capacity(count);
        for _ in 0..count {
            elements.push(element(self)?);
        }
        Ok(elements)
    }

    /// Checks that `count` elements can be in the rest, of at least one byte each, and takes their memory from the
    /// budget.
    #[inline(never)]
    fn reserve(&mut self, count: usize, size: usize, field: &'static str) -> Result<(), DecodeError> {
        let remaining = self.rest.len();
        if count > remaining {
            return Err(self.fault(field, Malformed::Count { count, remaining }));
        }
        self.charge(count.saturating_mul(size), field)
    }

    /// Takes `needed` bytes of memory from the budget.
    fn charge(&mut self, needed: usize, field: &'static str) -> Result<(), DecodeError> {
        match self.budget.checked_sub(needed) {
            Some(left) => {
                self.budget = left;
                Ok(())
            }
            None => Err(self.fault(field, Malformed::Budget { needed, left: self.budget })),
        }
    }

    /// Reads the number of tagged fields that follow.
    #[inline]
    pub(crate) fn tagged_count(&mut self, flexible: bool, field: &'static str) -> Result<u32, DecodeError> {
        if flexible { self.unsigned_varint(field) } else { Ok(0) }
    }

    /// Tag and size of the next tagged field.
    pub(crate) fn tagged_field(&mut self, field: &'static str) -> Result<TaggedField, DecodeError> {
        let tag = self.unsigned_varint(field)?;
        let size = self.unsigned_varint(field)? as usize;
        if size > self.rest.len() {
            return Err(self.truncated(field, size));
        }
        Ok(TaggedField { tag, size, before: self.rest.len() })
    }

    /// Checks that the value of a known tagged field took the size that was given for it.
    pub(crate) fn end_tagged(&self, tagged: &TaggedField, field: &'static str) -> Result<(), DecodeError> {
        let used = tagged.before - self.rest.len();
        if used == tagged.size {
            return Ok(());
        }
        Err(self.fault(field, Malformed::TaggedSize { size: tagged.size, used }))
    }

    /// The value of a tagged field that the schema does not know.
    pub(crate) fn unknown_tagged_field(
        &mut self,
        tagged: &TaggedField,
        field: &'static str,
    ) -> Result<UnknownTaggedField<'a>, DecodeError> {
        // While a vector grows, its old and its new room together are up to three times what it needs.
        self.charge(3 * size_of::<UnknownTaggedField<'_>>(), field)?;
        let data = self.take(tagged.size, field)?;
        Ok(UnknownTaggedField { tag: tagged.tag, data: Cow::Borrowed(data) })
    }

    /// The tagged fields of a structure that knows none.
    #[inline]
    pub(crate) fn unknown_tagged_fields(
        &mut self,
        flexible: bool,
        field: &'static str,
    ) -> Result<Vec<UnknownTaggedField<'a>>, DecodeError> {
        match self.tagged_count(flexible, field)? {
            0 => Ok(Vec::new()),
            count => self.some_unknown_tagged_fields(count, field),
        }
    }

    #[cold]
    #[inline(never)]
    fn some_unknown_tagged_fields(
        &mut self,
        count: u32,
        field: &'static str,
    ) -> Result<Vec<UnknownTaggedField<'a>>, DecodeError> {
        let mut fields = Vec::new();
        for _ in 0..count {
            let tagged = self.tagged_field(field)?;
            fields.push(self.unknown_tagged_field(&tagged, field)?);
        }
        Ok(fields)
    }
}
