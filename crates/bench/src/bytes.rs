//! The primitive types of the Kafka protocol: a writer into one reused buffer and a reader over a frame.

use anyhow::{Context, Result, ensure};

/// Appends primitive values, big-endian, to a buffer that keeps its allocation between requests.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Replaces the bytes at `at`, which were written before their value was known.
    pub(crate) fn patch(&mut self, at: usize, value: &[u8]) {
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Puts the length of all that follows into the first four bytes, as a frame begins.
    pub(crate) fn patch_frame_length(&mut self) {
        let length = u32::try_from(self.len() - 4).expect("the driver and the probe send frames below 4 GiB");
        self.patch(0, &length.to_be_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn i8(&mut self, value: i8) {
        self.raw(&value.to_be_bytes());
    }

    pub(crate) fn i16(&mut self, value: i16) {
        self.raw(&value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.raw(&value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.raw(&value.to_be_bytes());
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.i8(i8::from(value));
    }

    pub(crate) fn uvarint(&mut self, mut value: u32) {
        while value >= 0x80 {
            self.bytes.push((value & 0x7f) as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A zigzag varint, as record fields use them.
    pub(crate) fn varint(&mut self, value: i32) {
        self.uvarint(zigzag(value));
    }

    /// The count of a compact array, or the length of compact bytes: one more than the value.
    pub(crate) fn compact_len(&mut self, len: usize) {
        self.uvarint(u32::try_from(len).expect("the driver sends small requests") + 1);
    }

    pub(crate) fn compact_string(&mut self, value: &str) {
        self.compact_bytes(value.as_bytes());
    }

    pub(crate) fn compact_bytes(&mut self, value: &[u8]) {
        self.compact_len(value.len());
        self.raw(value);
    }

    pub(crate) fn compact_null(&mut self) {
        self.uvarint(0);
    }

    /// A string of the non-flexible kind, with a 16-bit length.
    pub(crate) fn string(&mut self, value: &str) {
        self.i16(i16::try_from(value.len()).expect("the driver's names are short"));
        self.raw(value.as_bytes());
    }

    /// An empty section of tagged fields.
    pub(crate) fn no_tags(&mut self) {
        self.uvarint(0);
    }
}

pub(crate) fn zigzag(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

/// The number of bytes of `value` as an unsigned varint.
pub(crate) fn uvarint_len(value: u32) -> usize {
    (32 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Reads primitive values from the front of a slice; every read is checked against what remains.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Self { rest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn raw(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .with_context(|| format!("{len} bytes wanted, {} remain", self.rest.len()))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.raw(N)?.try_into().expect("raw returns the length it was asked for"))
    }

    pub(crate) fn i8(&mut self) -> Result<i8> {
        Ok(i8::from_be_bytes(self.array()?))
    }

    pub(crate) fn i16(&mut self) -> Result<i16> {
        Ok(i16::from_be_bytes(self.array()?))
    }

    pub(crate) fn i32(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(crate) fn uuid(&mut self) -> Result<[u8; 16]> {
        self.array()
    }

    pub(crate) fn uvarint(&mut self) -> Result<u32> {
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.raw(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return u32::try_from(value).context("a varint beyond 32 bits");
            }
        }
        anyhow::bail!("a varint longer than five bytes")
    }

    pub(crate) fn varint(&mut self) -> Result<i32> {
        let value = self.uvarint()?;
        Ok((value >> 1) as i32 ^ -((value & 1) as i32))
    }

    /// The count of a compact array; null counts as empty.
    pub(crate) fn compact_len(&mut self) -> Result<usize> {
        Ok((self.uvarint()? as usize).saturating_sub(1))
    }

    /// Compact bytes; null reads as empty.
    pub(crate) fn compact_bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.compact_len()?;
        self.raw(len)
    }

    /// A compact string; null reads as empty.
    pub(crate) fn compact_string(&mut self) -> Result<&'a str> {
        Ok(std::str::from_utf8(self.compact_bytes()?)?)
    }

    /// A string of the non-flexible kind; null reads as empty.
    pub(crate) fn string(&mut self) -> Result<&'a str> {
        let len = self.i16()?;
        ensure!(len >= -1, "a string of length {len}");
        Ok(std::str::from_utf8(self.raw(len.max(0) as usize)?)?)
    }

    pub(crate) fn skip_tags(&mut self) -> Result<()> {
        for _ in 0..self.uvarint()? {
            self.uvarint()?;
            let len = self.uvarint()? as usize;
            self.raw(len)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_have_the_length_that_is_reported() {
        for value in [0, 1, 63, 64, 127, 128, 16_383, 16_384, u32::MAX >> 4, u32::MAX] {
            let mut writer = Writer::default();
            writer.uvarint(value);
            assert_eq!(writer.len(), uvarint_len(value), "{value}");
            assert_eq!(Reader::new(writer.as_bytes()).uvarint().unwrap(), value);
        }
        for value in [0, -1, 1, -64, 64, i32::MIN, i32::MAX] {
            let mut writer = Writer::default();
            writer.varint(value);
            assert_eq!(Reader::new(writer.as_bytes()).varint().unwrap(), value);
        }
    }

    #[test]
    fn known_encodings() {
        let mut writer = Writer::default();
        writer.compact_string("ab");
        writer.compact_null();
        writer.string("c");
        writer.varint(-1);
        writer.i32(-2);
        assert_eq!(writer.as_bytes(), [3, b'a', b'b', 0, 0, 1, b'c', 1, 0xff, 0xff, 0xff, 0xfe]);
        let mut reader = Reader::new(writer.as_bytes());
        assert_eq!(reader.compact_string().unwrap(), "ab");
        assert_eq!(reader.compact_string().unwrap(), "");
        assert_eq!(reader.string().unwrap(), "c");
        assert_eq!(reader.varint().unwrap(), -1);
        assert_eq!(reader.i32().unwrap(), -2);
        assert!(reader.is_empty());
    }

    #[test]
    fn what_is_missing_or_too_long_is_an_error() {
        assert!(Reader::new(&[0, 0, 0]).i32().is_err());
        assert!(Reader::new(&[9, b'a']).compact_bytes().is_err());
        assert!(Reader::new(&[0x80; 6]).uvarint().is_err());
        assert!(Reader::new(&[1, 0, 200]).skip_tags().is_err());
    }

    #[test]
    fn tagged_fields_are_skipped() {
        let mut reader = Reader::new(&[2, 0, 1, 7, 1, 2, 8, 9, 42]);
        reader.skip_tags().unwrap();
        assert_eq!(reader.i8().unwrap(), 42);
    }
}
