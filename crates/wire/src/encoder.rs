//! Appends primitive values to a buffer.

use crate::varint;
use crate::{EncodeError, Hole, Records, Unencodable, UnknownTaggedField, Uuid};

/// The longest string, in bytes; see the decoder.
const STRING_BYTES_MAX: usize = i16::MAX as usize;

/// Stands where an explanation is cut.
const CUT: &str = "...";
const LENGTH_MAX: usize = i32::MAX as usize;

/// Appends values to a buffer that the caller owns and reuses.
///
/// Records given as [`Records::Hole`] are not written: only their length is, and the place is noted. The buffer is
/// then shorter than the message by the holes.
#[derive(Debug)]
pub struct Encoder<'b> {
    buffer: &'b mut Vec<u8>,
    /// Bytes that were in the buffer at the start.
    start: usize,
    holes: Vec<Hole>,
}

/// The tagged fields of one structure while they are written, in the order of their tags.
#[derive(Debug)]
pub(crate) struct Tags<'t, 'a> {
    /// Fields that the schema does not know and that have not been written yet.
    unknown: &'t [UnknownTaggedField<'a>],
}

impl<'b> Encoder<'b> {
    /// Appends to what `buffer` holds.
    pub fn new(buffer: &'b mut Vec<u8>) -> Self {
        let start = buffer.len();
        Encoder { buffer, start, holes: Vec::new() }
    }

    /// The whole buffer, with what stood there before.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer
    }

    /// The places of missing bytes, in ascending order.
    pub fn holes(&self) -> &[Hole] {
        &self.holes
    }

    /// Returns the holes, to be filled by the caller.
    pub fn into_holes(self) -> Vec<Hole> {
        self.holes
    }

    /// Bytes written by this encoder, the missing ones included.
    pub fn len_with_holes(&self) -> usize {
        self.buffer.len() - self.start + self.holes.iter().map(|hole| hole.len).sum::<usize>()
    }

    /// Raw bytes without a length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    #[inline]
    fn fixed<const N: usize>(&mut self, bytes: [u8; N]) -> Result<(), EncodeError> {
        self.buffer.extend_from_slice(&bytes);
        Ok(())
    }

    /// A boolean.
    #[inline]
    pub fn bool(&mut self, value: bool) -> Result<(), EncodeError> {
        self.fixed([u8::from(value)])
    }

    /// An `int8`.
    #[inline]
    pub fn i8(&mut self, value: i8) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// An `int16`.
    #[inline]
    pub fn i16(&mut self, value: i16) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// A `uint16`.
    #[inline]
    pub fn u16(&mut self, value: u16) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// An `int32`.
    #[inline]
    pub fn i32(&mut self, value: i32) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// A `uint32`.
    #[inline]
    pub fn u32(&mut self, value: u32) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// An `int64`.
    #[inline]
    pub fn i64(&mut self, value: i64) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// A `float64`.
    #[inline]
    pub fn f64(&mut self, value: f64) -> Result<(), EncodeError> {
        self.fixed(value.to_be_bytes())
    }

    /// A `uuid`.
    #[inline]
    pub fn uuid(&mut self, value: Uuid) -> Result<(), EncodeError> {
        self.fixed(value.0)
    }

    /// An unsigned variable-length number.
    #[inline]
    pub fn unsigned_varint(&mut self, value: u32) {
        varint::write_u32(self.buffer, value);
    }

    /// A length of 32 bits, or a compact one; none is null.
    #[inline]
    fn length(
        &mut self,
        flexible: bool,
        length: Option<usize>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        if let Some(length) = length.filter(|&length| length > LENGTH_MAX) {
            return Err(EncodeError::new(field, Unencodable::Length(length)));
        }
        if flexible {
            self.unsigned_varint(length.map_or(0, |length| length as u32 + 1));
            return Ok(());
        }
        self.i32(length.map_or(-1, |length| length as i32))
    }

    fn string_length(
        &mut self,
        flexible: bool,
        length: Option<usize>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        if let Some(length) = length.filter(|&length| length > STRING_BYTES_MAX) {
            return Err(EncodeError::new(field, Unencodable::Length(length)));
        }
        if flexible {
            return self.length(true, length, field);
        }
        self.i16(length.map_or(-1, |length| length as i16))
    }

    /// A `string`.
    pub fn string(&mut self, flexible: bool, value: &str, field: &'static str) -> Result<(), EncodeError> {
        self.string_length(flexible, Some(value.len()), field)?;
        self.raw(value.as_bytes());
        Ok(())
    }

    /// A `string` that may be null if `nullable`.
    pub fn nullable_string(
        &mut self,
        flexible: bool,
        nullable: bool,
        value: Option<&str>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.string(flexible, value, field),
            None if nullable => self.string_length(flexible, None, field),
            None => Err(EncodeError::new(field, Unencodable::Null)),
        }
    }

    /// An explanation for people that may be null if `nullable`. One that is longer than a `string` can be is cut: it may
    /// repeat names that are as long as that.
    pub fn nullable_message(
        &mut self,
        flexible: bool,
        nullable: bool,
        value: Option<&str>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(long) if long.len() > STRING_BYTES_MAX => {
                let end = long.floor_char_boundary(STRING_BYTES_MAX - CUT.len());
                self.string(flexible, &format!("{}{CUT}", &long[..end]), field)
            }
            value => self.nullable_string(flexible, nullable, value, field),
        }
    }

    /// `bytes`.
    pub fn bytes(&mut self, flexible: bool, value: &[u8], field: &'static str) -> Result<(), EncodeError> {
        self.length(flexible, Some(value.len()), field)?;
        self.raw(value);
        Ok(())
    }

    /// `bytes` that may be null if `nullable`.
    pub fn nullable_bytes(
        &mut self,
        flexible: bool,
        nullable: bool,
        value: Option<&[u8]>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.bytes(flexible, value, field),
            None if nullable => self.length(flexible, None, field),
            None => Err(EncodeError::new(field, Unencodable::Null)),
        }
    }

    /// `records`: the bytes, or their length and a hole.
    pub fn records(
        &mut self,
        flexible: bool,
        value: &Records<'_>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Records::Bytes(bytes) => self.bytes(flexible, bytes, field),
            Records::Hole(len) => {
                self.length(flexible, Some(*len), field)?;
                if *len > 0 {
                    self.holes.push(Hole { at: self.buffer.len(), len: *len });
                }
                Ok(())
            }
        }
    }

    /// `records` that may be null if `nullable`.
    pub fn nullable_records(
        &mut self,
        flexible: bool,
        nullable: bool,
        value: Option<&Records<'_>>,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        match value {
            Some(value) => self.records(flexible, value, field),
            None if nullable => self.length(flexible, None, field),
            None => Err(EncodeError::new(field, Unencodable::Null)),
        }
    }

    /// The byte before a structure that may be null.
    pub(crate) fn presence(&mut self, present: bool) {
        self.buffer.push(if present { 1 } else { 0xff });
    }

    /// Writes the same within a tagged field, where Kafka writes a variable-length number.
    pub(crate) fn tagged_presence(&mut self, present: bool) {
        self.buffer.push(u8::from(present));
    }

    /// The length of an array whose elements follow.
    pub(crate) fn array_length(
        &mut self,
        flexible: bool,
        length: usize,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        self.length(flexible, Some(length), field)
    }

    /// An array, each element written by `element`.
    #[inline]
    pub fn array<T>(
        &mut self,
        flexible: bool,
        items: &[T],
        field: &'static str,
        mut element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        self.length(flexible, Some(items.len()), field)?;
        items.iter().try_for_each(|item| element(self, item))
    }

    /// An array that may be null if `nullable`.
    #[inline]
    pub fn nullable_array<T>(
        &mut self,
        flexible: bool,
        nullable: bool,
        items: Option<&[T]>,
        field: &'static str,
        element: impl FnMut(&mut Self, &T) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        match items {
            Some(items) => self.array(flexible, items, field, element),
            None if nullable => self.length(flexible, None, field),
            None => Err(EncodeError::new(field, Unencodable::Null)),
        }
    }

    /// The tagged fields of a structure that knows none.
    #[inline]
    pub(crate) fn unknown_tagged_fields(
        &mut self,
        flexible: bool,
        unknown: &[UnknownTaggedField<'_>],
        version: i16,
        field: &'static str,
    ) -> Result<(), EncodeError> {
        if flexible && unknown.is_empty() {
            self.buffer.push(0);
            return Ok(());
        }
        let tags = self.begin_tags(flexible, 0, unknown, version, field)?;
        self.end_tags(flexible, tags);
        Ok(())
    }

    /// Writes how many tagged fields follow: `known` ones and the unknown. A version without tagged fields has no
    /// place for unknown ones.
    pub(crate) fn begin_tags<'t, 'a>(
        &mut self,
        flexible: bool,
        known: usize,
        unknown: &'t [UnknownTaggedField<'a>],
        version: i16,
        field: &'static str,
    ) -> Result<Tags<'t, 'a>, EncodeError> {
        if flexible {
            varint::write_u64(self.buffer, (known + unknown.len()) as u64);
        } else if !unknown.is_empty() {
            return Err(EncodeError::absent(field, version));
        }
        Ok(Tags { unknown })
    }

    /// Writes the unknown fields below `tag`, then the tag and one byte for the size of its value, whose place is
    /// given back for [`Encoder::end_tagged`].
    pub(crate) fn begin_tagged(&mut self, tags: &mut Tags<'_, '_>, tag: u32) -> usize {
        let below = tags.unknown.iter().take_while(|field| field.tag < tag).count();
        let (before, after) = tags.unknown.split_at(below);
        self.write_unknown(before);
        tags.unknown = after;
        self.unsigned_varint(tag);
        self.buffer.push(0);
        self.buffer.len()
    }

    /// Puts the size of the value that began at `at` before it. Values are short, so one byte is set aside and the
    /// value moves in the rare case that its size takes more.
    pub(crate) fn end_tagged(&mut self, at: usize) {
        let size = self.buffer.len() - at;
        let more = varint::len_u64(size as u64) - 1;
        let end = self.buffer.len();
        self.buffer.resize(end + more, 0);
        self.buffer.copy_within(at..end, at + more);
        let mut rest = size;
        for place in &mut self.buffer[at - 1..at + more] {
            *place = rest as u8 | 0x80;
            rest >>= 7;
        }
        self.buffer[at + more - 1] &= 0x7f;
    }

    /// Writes the unknown fields that remain.
    pub(crate) fn end_tags(&mut self, flexible: bool, tags: Tags<'_, '_>) {
        if flexible {
            self.write_unknown(tags.unknown);
        }
    }

    fn write_unknown(&mut self, fields: &[UnknownTaggedField<'_>]) {
        for field in fields {
            self.unsigned_varint(field.tag);
            varint::write_u64(self.buffer, field.data.len() as u64);
            self.raw(&field.data);
        }
    }
}
