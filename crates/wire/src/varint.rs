//! Variable-length integers: seven bits per byte, the lowest first, the top bit set on all bytes but the last.
//! Signed ones are zigzag coded.

/// A number that does not end within its width, or within the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VarintError {
    /// The input ends within the number.
    Truncated,
    /// The number has more bits than its type.
    TooLong,
}

/// Reads an unsigned 32-bit number; gives it and how many bytes it took.
#[inline]
pub fn read_u32(bytes: &[u8]) -> Result<(u32, usize), VarintError> {
    match bytes.first() {
        Some(&first) if first < 0x80 => Ok((u32::from(first), 1)),
        _ => read_long(bytes, 5, 0x0f).map(|(value, used)| (value as u32, used)),
    }
}

/// Reads an unsigned 64-bit number; gives it and how many bytes it took.
#[inline]
pub fn read_u64(bytes: &[u8]) -> Result<(u64, usize), VarintError> {
    match bytes.first() {
        Some(&first) if first < 0x80 => Ok((u64::from(first), 1)),
        _ => read_long(bytes, 10, 0x01),
    }
}

/// Reads a signed, zigzag coded 32-bit number.
#[inline]
pub fn read_i32(bytes: &[u8]) -> Result<(i32, usize), VarintError> {
    read_u32(bytes).map(|(value, used)| ((value >> 1) as i32 ^ -((value & 1) as i32), used))
}

/// Reads a signed, zigzag coded 64-bit number.
#[inline]
pub fn read_i64(bytes: &[u8]) -> Result<(i64, usize), VarintError> {
    read_u64(bytes).map(|(value, used)| ((value >> 1) as i64 ^ -((value & 1) as i64), used))
}

/// At most `length_max` bytes, of which the last possible one is at most `last_max`.
fn read_long(bytes: &[u8], length_max: usize, last_max: u8) -> Result<(u64, usize), VarintError> {
    let mut value = 0u64;
    for (at, &byte) in bytes.iter().take(length_max).enumerate() {
        if at + 1 == length_max && byte > last_max {
            return Err(VarintError::TooLong);
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(VarintError::Truncated)
}

/// Appends an unsigned number.
#[inline]
pub fn write_u64(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    buffer.push(value as u8);
}

/// Appends an unsigned 32-bit number.
#[inline]
pub fn write_u32(buffer: &mut Vec<u8>, value: u32) {
    write_u64(buffer, u64::from(value));
}

/// Appends a signed number, zigzag coded.
#[inline]
pub fn write_i32(buffer: &mut Vec<u8>, value: i32) {
    write_u32(buffer, (value << 1) as u32 ^ (value >> 31) as u32);
}

/// Appends a signed 64-bit number, zigzag coded.
#[inline]
pub fn write_i64(buffer: &mut Vec<u8>, value: i64) {
    write_u64(buffer, (value << 1) as u64 ^ (value >> 63) as u64);
}

/// The number of bytes that an unsigned number takes.
#[inline]
pub const fn len_u64(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}
