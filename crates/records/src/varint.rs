//! Zigzag variable-length integers, as inside records: seven bits a byte, least significant group first.

use crate::walk::{Source, WalkError};

/// Reads a zigzag 32-bit integer.
///
/// Kafka refuses a fifth byte that has its continuation bit set; bits beyond the 32nd are dropped, as there.
#[inline]
pub(crate) fn read_varint<S: Source>(source: &mut S) -> Result<i32, WalkError> {
    let first = source.byte()?;
    if first < 0x80 {
        return Ok(zigzag32(u32::from(first)));
    }
    let mut value = u32::from(first & 0x7f);
    for shift in [7, 14, 21, 28] {
        let byte = source.byte()?;
        value |= u32::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(zigzag32(value));
        }
    }
    Err(WalkError::Malformed("a varint is longer than five bytes"))
}

/// Reads a zigzag 64-bit integer of at most ten bytes.
#[inline]
pub(crate) fn read_varlong<S: Source>(source: &mut S) -> Result<i64, WalkError> {
    let first = source.byte()?;
    if first < 0x80 {
        return Ok(zigzag64(u64::from(first)));
    }
    let mut value = u64::from(first & 0x7f);
    let mut shift = 7;
    while shift < 70 {
        let byte = source.byte()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(zigzag64(value));
        }
        shift += 7;
    }
    Err(WalkError::Malformed("a varlong is longer than ten bytes"))
}

/// Appends `value` as a zigzag integer. The 32-bit and 64-bit encodings of one value are the same bytes.
#[inline]
pub(crate) fn write_varlong(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push((rest as u8) | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// Returns the number of bytes that [`write_varlong`] appends for `value`.
#[inline]
pub(crate) fn varlong_bytes(value: i64) -> usize {
    let zigzag = ((value << 1) ^ (value >> 63)) as u64;
    let bits = 64 - (zigzag | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

#[inline]
pub(crate) fn zigzag32(value: u32) -> i32 {
    ((value >> 1) as i32) ^ -((value & 1) as i32)
}

#[inline]
fn zigzag64(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::SliceSource;
    use proptest::prelude::*;

    fn encoded(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        write_varlong(&mut out, value);
        out
    }

    #[test]
    fn known_encodings() {
        for (value, bytes) in [
            (0, &[0x00][..]),
            (-1, &[0x01]),
            (1, &[0x02]),
            (63, &[0x7e]),
            (-64, &[0x7f]),
            (64, &[0x80, 0x01]),
            (i64::from(i32::MAX), &[0xfe, 0xff, 0xff, 0xff, 0x0f]),
            (i64::from(i32::MIN), &[0xff, 0xff, 0xff, 0xff, 0x0f]),
            (i64::MIN, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
        ] {
            assert_eq!(encoded(value), bytes, "{value}");
            assert_eq!(varlong_bytes(value), bytes.len(), "{value}");
        }
    }

    #[test]
    fn endless_integers_are_refused() {
        assert!(read_varint(&mut SliceSource::new(&[0xff; 20])).is_err());
        assert!(read_varlong(&mut SliceSource::new(&[0xff; 20])).is_err());
        assert!(read_varint(&mut SliceSource::new(&[0x80; 3])).is_err());
    }

    proptest! {
        #[test]
        fn round_trip(long: i64, int: i32) {
            let bytes = encoded(long);
            prop_assert_eq!(varlong_bytes(long), bytes.len());
            prop_assert_eq!(read_varlong(&mut SliceSource::new(&bytes)).unwrap(), long);
            let bytes = encoded(i64::from(int));
            prop_assert!(bytes.len() <= 5);
            prop_assert_eq!(read_varint(&mut SliceSource::new(&bytes)).unwrap(), int);
        }
    }
}
