//! `.snapshot`: the state of idempotent producers before an offset.
//!
//! Version (i16, 1), CRC-32C of what follows it (u32), count (i32), then entries of 46 bytes.

const VERSION: i16 = 1;
const CRC_AT: usize = 2;
const COVERED_AT: usize = 6;
const ENTRIES_AT: usize = 10;
const ENTRY_BYTES: usize = 46;

/// Checks a snapshot and returns its number of entries; the error names the fault.
pub(crate) fn check_snapshot(bytes: &[u8]) -> Result<usize, String> {
    let Some((header, entries)) = bytes.split_at_checked(ENTRIES_AT) else {
        return Err(format!("it has {} bytes, less than its header", bytes.len()));
    };
    let version = i16::from_be_bytes(header[..CRC_AT].try_into().expect("two bytes"));
    if version != VERSION {
        return Err(format!("its version is {version} and not {VERSION}"));
    }
    let stored = u32::from_be_bytes(header[CRC_AT..COVERED_AT].try_into().expect("four bytes"));
    let computed = crc32c::crc32c(&bytes[COVERED_AT..]);
    if stored != computed {
        return Err(format!("its checksum is wrong (stored {stored}, computed {computed})"));
    }
    let count = i32::from_be_bytes(header[COVERED_AT..].try_into().expect("four bytes"));
    match usize::try_from(count) {
        Ok(count) if count.checked_mul(ENTRY_BYTES) == Some(entries.len()) => Ok(count),
        _ => Err(format!("it says {count} entries and has {} bytes of them", entries.len())),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A snapshot of so many entries of zeros.
    pub(crate) fn snapshot(count: usize) -> Vec<u8> {
        let mut bytes = vec![0; ENTRIES_AT + count * ENTRY_BYTES];
        bytes[1] = VERSION as u8;
        bytes[COVERED_AT..ENTRIES_AT].copy_from_slice(&(count as i32).to_be_bytes());
        let crc = crc32c::crc32c(&bytes[COVERED_AT..]);
        bytes[CRC_AT..COVERED_AT].copy_from_slice(&crc.to_be_bytes());
        bytes
    }

    #[test]
    fn counts_and_faults() {
        assert_eq!(check_snapshot(&snapshot(0)), Ok(0));
        assert_eq!(check_snapshot(&snapshot(3)), Ok(3));
        let mut flipped = snapshot(1);
        flipped[20] ^= 1;
        assert!(check_snapshot(&flipped).unwrap_err().contains("checksum"));
        flipped[1] = 9;
        assert!(check_snapshot(&flipped).unwrap_err().contains("version is 9"));
        assert!(check_snapshot(&snapshot(1)[..9]).unwrap_err().contains("less than its header"));
    }
}
