//! The transaction index of a segment: which transactions were aborted whose marker is in it.
//!
//! ```text
//! +--------------+------------------+-------------------+------------------+-------------------------+
//! | version: i16 | producer_id: i64 | first_offset: i64 | last_offset: i64 | last_stable_offset: i64 |   34 bytes
//! +--------------+------------------+-------------------+------------------+-------------------------+
//! ```

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 34;

/// The only version there is.
const VERSION: i16 = 0;

/// A transaction that was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AbortedTransaction {
    /// Whose it was.
    pub(crate) producer_id: i64,
    /// Offset of its first record.
    pub(crate) first_offset: i64,
    /// Offset of its marker.
    pub(crate) last_offset: i64,
    /// The last stable offset when the marker was written.
    pub(crate) last_stable_offset: i64,
}

impl AbortedTransaction {
    /// Appends the entry's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&VERSION.to_be_bytes());
        for field in [self.producer_id, self.first_offset, self.last_offset, self.last_stable_offset] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<AbortedTransaction> {
        let field = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (bytes[..2] == VERSION.to_be_bytes()).then(|| AbortedTransaction {
            producer_id: field(2),
            first_offset: field(10),
            last_offset: field(18),
            last_stable_offset: field(26),
        })
    }
}

/// Reads a whole index; `None` when it is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<AbortedTransaction>> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    rest.is_empty().then(|| entries.iter().map(AbortedTransaction::decode).collect())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_read_back_and_damage_is_noticed() {
        let of = |number| AbortedTransaction {
            producer_id: number,
            first_offset: number + 1,
            last_offset: number + 2,
            last_stable_offset: number + 3,
        };
        let mut bytes = Vec::new();
        [of(1), of(500)].iter().for_each(|entry| entry.encode(&mut bytes));
        assert_eq!(decode(&bytes), Some(vec![of(1), of(500)]));
        assert_eq!(decode(&bytes[..ENTRY_BYTES + 3]), None);
        bytes[1] = 1;
        assert_eq!(decode(&bytes), None);
        assert_eq!(decode(&[]), Some(Vec::new()));
    }
}
