//! The transaction index of a segment: the aborted transactions whose markers are in it (KIP-98).
//!
//! ```text
//! +--------------+------------------+-------------------+------------------+-------------------------+
//! | version: i16 | producer_id: i64 | first_offset: i64 | last_offset: i64 | last_stable_offset: i64 |   34 bytes
//! +--------------+------------------+-------------------+------------------+-------------------------+
//! ```
//! Entries are in the order of their markers. There is no file where nothing was aborted.

use crate::read_mode::{ReadMode, ReadStop};
use crate::storage::StorageFile;
use mainstem_records::ProducerId;
use std::io;

/// Bytes of one entry.
pub(crate) const ENTRY_BYTES: usize = 34;

/// The only version.
const VERSION: i16 = 0;

/// Entries that a search reads at once: a page of them.
const ENTRIES_AT_ONCE: u32 = 120;

/// A transaction that was aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortedTransaction {
    /// The producer.
    pub producer_id: ProducerId,
    /// Offset of its first record.
    pub first_offset: i64,
    /// Offset of its marker.
    pub last_offset: i64,
    /// The last stable offset that the marker brought about, whatever the high watermark was: every transaction that
    /// begins before it was decided by then.
    pub last_stable_offset: i64,
}

impl AbortedTransaction {
    /// Appends the entry's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&VERSION.to_be_bytes());
        for field in [self.producer_id.get(), self.first_offset, self.last_offset, self.last_stable_offset] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<AbortedTransaction> {
        let field = |at: usize| i64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        (bytes[..2] == VERSION.to_be_bytes()).then(|| AbortedTransaction {
            producer_id: ProducerId::new(field(2)),
            first_offset: field(10),
            last_offset: field(18),
            last_stable_offset: field(26),
        })
    }

    /// Returns true if the entry can belong to a segment that begins at `base_offset` and ends before `end`. An entry of zeros
    /// cannot: a marker comes behind the records of its transaction.
    fn is_of(&self, base_offset: i64, end: i64) -> bool {
        let in_order = 0 <= self.first_offset && self.first_offset < self.last_offset;
        in_order
            && self.last_stable_offset <= self.last_offset.saturating_add(1)
            && (base_offset..end).contains(&self.last_offset)
    }
}

/// Reads a whole index; `None` when it is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<Vec<AbortedTransaction>> {
    let (entries, rest) = bytes.as_chunks::<ENTRY_BYTES>();
    rest.is_empty().then(|| entries.iter().map(AbortedTransaction::decode).collect())?
}

/// The position of entry `number` in a file.
pub(crate) fn position_of(number: u32) -> u64 {
    u64::from(number) * ENTRY_BYTES as u64
}

/// The number of entries that a file of this size has begun. The last one may not be whole.
pub(crate) fn entries_in(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(ENTRY_BYTES as u64)).unwrap_or(u32::MAX)
}

/// A search in transaction indexes, with its results so far.
#[derive(Debug)]
pub(crate) struct Search {
    /// Transactions with a marker before this offset are left out.
    from: i64,
    /// Transactions that begin at or behind this offset are left out.
    upper: i64,
    found: Vec<AbortedTransaction>,
}

impl Search {
    /// A search for the transactions that may have records in `from..upper`.
    pub(crate) fn new(from: i64, upper: i64) -> Search {
        Search { from, upper, found: Vec::new() }
    }

    /// Takes the next entry. `true`: no later one can matter, since the marker of every transaction that begins before
    /// the upper bound is at or before this entry's.
    pub(crate) fn take(&mut self, entry: &AbortedTransaction) -> bool {
        if entry.last_offset >= self.from && entry.first_offset < self.upper {
            self.found.push(*entry);
        }
        entry.last_stable_offset >= self.upper
    }

    /// The transactions that were found, in the order of the markers.
    pub(crate) fn found(self) -> Vec<AbortedTransaction> {
        self.found
    }

    /// Looks through the first `count` entries of a file. `true`: no later index can matter.
    pub(crate) fn run(
        &mut self,
        file: &dyn StorageFile,
        count: u32,
        read_mode: ReadMode,
    ) -> Result<bool, ReadStop> {
        let mut number = count_before(file, count, self.from, read_mode)?;
        let mut bytes = Vec::new();
        while number < count {
            let entries = ENTRIES_AT_ONCE.min(count - number);
            bytes.resize(entries as usize * ENTRY_BYTES, 0);
            read_mode.read_exact(file, &mut bytes, position_of(number))?;
            for entry in bytes.as_chunks::<ENTRY_BYTES>().0 {
                if self.take(&AbortedTransaction::decode(entry).ok_or_else(damaged)?) {
                    return Ok(true);
                }
            }
            number += entries;
        }
        Ok(false)
    }
}

/// Counts those of the first `count` entries of a file whose marker is before an offset.
pub(crate) fn count_before(
    file: &dyn StorageFile,
    count: u32,
    offset: i64,
    read_mode: ReadMode,
) -> Result<u32, ReadStop> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        match entry(file, middle, read_mode)?.last_offset < offset {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low)
}

/// As [`count_before`], for a file with anything behind the sound entries: a power cut may have kept parts of later
/// writes. May wait for the disk.
pub(crate) fn count_sound_before(
    file: &dyn StorageFile,
    count: u32,
    base_offset: i64,
    offset: i64,
) -> io::Result<u32> {
    let is_sound = |number| match entry(file, number, ReadMode::Blocking) {
        Ok(entry) => Ok(entry.is_of(base_offset, offset)),
        Err(ReadStop::Failed(error)) if !is_damage(&error) => Err(error),
        Err(_) => Ok(false),
    };
    match count_before(file, count, offset, ReadMode::Blocking) {
        // The sound entries are the first ones, so one of them with none behind it is the last.
        Ok(0) => return Ok(0),
        Ok(found) if is_sound(found - 1)? => return Ok(found),
        Err(ReadStop::Failed(error)) if !is_damage(&error) => return Err(error),
        _ => {}
    }
    let mut sound = 0;
    while sound < count && is_sound(sound)? {
        sound += 1;
    }
    Ok(sound)
}

/// Returns true if a file of this size can be the index of a segment that begins at `base_offset` and ends before `end`:
/// its entries are whole, and the first and the last one make sense. May wait for the disk.
pub(crate) fn makes_sense(
    file: &dyn StorageFile,
    bytes: u64,
    base_offset: i64,
    end: i64,
) -> io::Result<bool> {
    let count = entries_in(bytes);
    if bytes != position_of(count) || count == u32::MAX {
        return Ok(false);
    }
    for number in [Some(0), count.checked_sub(1)].into_iter().flatten().filter(|number| *number < count) {
        match entry(file, number, ReadMode::Blocking) {
            Ok(entry) if entry.is_of(base_offset, end) => {}
            Err(ReadStop::Failed(error)) if !is_damage(&error) => return Err(error),
            _ => return Ok(false),
        }
    }
    Ok(true)
}

fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

fn entry(file: &dyn StorageFile, number: u32, read_mode: ReadMode) -> Result<AbortedTransaction, ReadStop> {
    let mut bytes = [0; ENTRY_BYTES];
    read_mode.read_exact(file, &mut bytes, position_of(number))?;
    AbortedTransaction::decode(&bytes).ok_or_else(damaged)
}

fn damaged() -> ReadStop {
    ReadStop::Failed(io::Error::new(
        io::ErrorKind::InvalidData,
        "an entry of no known version in a transaction index",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimStorage;
    use crate::storage::{OpenMode, Storage, write_all_at};
    use std::sync::Arc;

    fn of(number: i64) -> AbortedTransaction {
        AbortedTransaction {
            producer_id: ProducerId::new(number),
            first_offset: number + 1,
            last_offset: number + 2,
            last_stable_offset: number + 3,
        }
    }

    fn encoded(entries: &[AbortedTransaction]) -> Vec<u8> {
        let mut bytes = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut bytes));
        bytes
    }

    fn file(bytes: &[u8]) -> Arc<dyn StorageFile> {
        let file = SimStorage::new().open("/index".as_ref(), OpenMode::Create).unwrap();
        write_all_at(&*file, bytes, 0).unwrap();
        file
    }

    #[test]
    fn entries_read_back_and_damage_is_noticed() {
        let mut bytes = encoded(&[of(1), of(500)]);
        assert_eq!(decode(&bytes), Some(vec![of(1), of(500)]));
        assert_eq!(decode(&bytes[..ENTRY_BYTES + 3]), None);
        bytes[1] = 1;
        assert_eq!(decode(&bytes), None);
        assert_eq!(decode(&[]), Some(Vec::new()));
    }

    #[test]
    fn what_cannot_be_an_index_of_the_segment_is_distinguished() {
        let check = |bytes: &[u8], base_offset, end, expected| {
            let sense = makes_sense(&*file(bytes), bytes.len() as u64, base_offset, end).unwrap();
            assert_eq!(sense, expected, "{bytes:?} {base_offset} {end}");
        };
        let two = encoded(&[of(10), of(20)]);
        check(&two, 0, 100, true);
        check(&two, 12, 23, true);
        check(&two, 13, 100, false);
        check(&two, 0, 22, false);
        check(&two[..40], 0, 100, false);
        check(&[0; ENTRY_BYTES], 0, 100, false);
        check(&[], 0, 100, true);
        let mut newer = two.clone();
        newer[ENTRY_BYTES + 1] = 1;
        check(&newer, 0, 100, false);
        check(&encoded(&[AbortedTransaction { last_stable_offset: 14, ..of(10) }]), 0, 100, false);
    }

    /// The files are as a power cut leaves them: sound entries, and zeros or later entries behind them.
    #[test]
    fn sound_entries_are_counted_whatever_follows() {
        let check = |entries: &[i64], zeros: &[usize], offset, expected| {
            let entries: Vec<_> = entries.iter().map(|number| of(*number)).collect();
            let mut bytes = encoded(&entries);
            for number in zeros {
                bytes[number * ENTRY_BYTES..][..ENTRY_BYTES].fill(0);
            }
            let count = entries.len() as u32;
            let sound = count_sound_before(&*file(&bytes), count, 0, offset).unwrap();
            assert_eq!(sound, expected, "{entries:?} {zeros:?} {offset}");
        };
        check(&[10, 20, 30, 40, 50], &[], 32, 2);
        check(&[10, 20, 30, 40, 50], &[], 33, 3);
        check(&[10, 20, 30, 40, 50], &[2], 23, 2);
        check(&[10, 20, 30, 40, 50], &[2, 3, 4], 23, 2);
        check(&[10, 20, 30, 40, 50], &[1, 4], 13, 1);
        check(&[10, 20, 30, 40, 50], &[0, 1, 2, 3, 4], 100, 0);
        check(&[10], &[], 12, 0);
        check(&[], &[], 12, 0);
    }

    /// Searches transactions, given by their first offset, marker and last stable offset. Expects the first offsets of the result,
    /// with `+` if the search would continue in the next index.
    fn check(entries: &[(i64, i64, i64)], from: i64, upper: i64, expect: &str) {
        let entries: Vec<_> = entries
            .iter()
            .map(|(first_offset, last_offset, last_stable_offset)| AbortedTransaction {
                producer_id: ProducerId::new(7),
                first_offset: *first_offset,
                last_offset: *last_offset,
                last_stable_offset: *last_stable_offset,
            })
            .collect();
        let mut search = Search::new(from, upper);
        let file = file(&encoded(&entries));
        let complete = search.run(&*file, entries.len() as u32, ReadMode::Blocking).unwrap();
        let mut words: Vec<_> = search.found().iter().map(|found| found.first_offset.to_string()).collect();
        words.extend((!complete).then(|| "+".into()));
        assert_eq!(words.join(" "), expect, "{entries:?} {from}..{upper}");
    }

    #[test]
    fn a_search_finds_what_overlaps_and_knows_when_it_is_complete() {
        let plain = [(0, 9, 10), (10, 19, 20), (20, 29, 30), (30, 39, 40)];
        check(&plain, 0, 5, "0");
        check(&plain, 9, 10, "0");
        check(&plain, 10, 11, "10");
        check(&plain, 15, 31, "10 20 30");
        check(&plain, 15, 40, "10 20 30");
        check(&plain, 15, 41, "10 20 30 +");
        check(&plain, 40, 50, "+");
        check(&[], 0, 1, "+");
        // The second one began before the first one ended, and is open when that is aborted.
        let crossed = [(0, 9, 5), (5, 19, 12), (12, 25, 26)];
        check(&crossed, 0, 6, "0 5");
        check(&crossed, 6, 12, "0 5");
        check(&crossed, 10, 13, "5 12");
    }

    #[test]
    fn a_search_reads_many_pages() {
        let entries: Vec<_> =
            (0..1000).map(|number| (number * 10, number * 10 + 9, number * 10 + 10)).collect();
        let all = |range: std::ops::Range<i64>| {
            range.map(|number| (number * 10).to_string()).collect::<Vec<_>>().join(" ")
        };
        check(&entries, 2000, 8000, &all(200..800));
        check(&entries, 0, 100_000, &format!("{} +", all(0..1000)));
    }
}
