//! Entries of offset indexes and time indexes.

/// Which index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexKind {
    /// `.index`: relative offset (i32), position (i32).
    Offset,
    /// `.timeindex`: timestamp in ms (i64), relative offset (i32).
    Time,
}

impl IndexKind {
    /// Bytes of an entry.
    pub(crate) fn entry_bytes(self) -> usize {
        match self {
            IndexKind::Offset => 8,
            IndexKind::Time => 12,
        }
    }
}

/// An entry of either index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    /// The offset: the last one of a batch.
    pub(crate) offset: i64,
    /// In an offset index where that batch starts, in a time index the largest timestamp up to there.
    pub(crate) value: i64,
}

/// The entries of an index file, and how many bytes at its end make no whole entry. Zeros at the end are space that was
/// allocated ahead.
pub(crate) fn index_entries(kind: IndexKind, bytes: &[u8], base_offset: i64) -> (Vec<IndexEntry>, usize) {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let size = kind.entry_bytes();
    let count = used.div_ceil(size).min(bytes.len() / size);
    let entries = bytes[..count * size].chunks_exact(size).map(|entry| decode(kind, entry, base_offset));
    (entries.collect(), bytes.len() % size)
}

fn decode(kind: IndexKind, entry: &[u8], base_offset: i64) -> IndexEntry {
    let i32_at = |at: usize| i32::from_be_bytes(entry[at..at + 4].try_into().expect("four bytes"));
    let (relative, value) = match kind {
        IndexKind::Offset => (i32_at(0), i64::from(i32_at(4))),
        IndexKind::Time => (i32_at(8), i64::from_be_bytes(entry[..8].try_into().expect("eight bytes"))),
    };
    IndexEntry { offset: base_offset.wrapping_add(relative.into()), value }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zeros_at_the_end_are_no_entries() {
        let mut bytes = Vec::new();
        for (relative, position) in [(5i32, 0i32), (9, 256)] {
            bytes.extend_from_slice(&relative.to_be_bytes());
            bytes.extend_from_slice(&position.to_be_bytes());
        }
        let expected = vec![IndexEntry { offset: 105, value: 0 }, IndexEntry { offset: 109, value: 256 }];
        assert_eq!(index_entries(IndexKind::Offset, &bytes, 100), (expected.clone(), 0));
        bytes.extend_from_slice(&[0; 80]);
        assert_eq!(index_entries(IndexKind::Offset, &bytes, 100), (expected.clone(), 0));
        bytes.extend_from_slice(&[0; 3]);
        assert_eq!(index_entries(IndexKind::Offset, &bytes, 100), (expected, 3));
        assert_eq!(index_entries(IndexKind::Time, &[], 0), (Vec::new(), 0));
    }

    #[test]
    fn time_entries() {
        let mut bytes = 1_700_000_000_000i64.to_be_bytes().to_vec();
        bytes.extend_from_slice(&7i32.to_be_bytes());
        let expected = IndexEntry { offset: 10, value: 1_700_000_000_000 };
        assert_eq!(index_entries(IndexKind::Time, &bytes, 3), (vec![expected], 0));
        assert_eq!(index_entries(IndexKind::Time, &bytes[..11], 3), (vec![], 11));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, base_offset: i64) {
            for kind in [IndexKind::Offset, IndexKind::Time] {
                let (entries, odd) = index_entries(kind, &bytes, base_offset);
                prop_assert!(entries.len() * kind.entry_bytes() + odd <= bytes.len());
            }
        }
    }
}
