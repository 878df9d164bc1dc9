//! `.mainstem-segments`: the segments of each partition and their lengths, as an orderly stop left them.
//!
//! ```text
//! 0                                  version
//! 2                                  number of lines that follow
//! closed orders 0 0:5000 4711:120    topic, partition, base offset and bytes of each segment
//! refused orders 1 0:5000 80:512
//! ```
//!
//! A segment that is removed or cut while the broker is stopped leaves no trace in the files that stay. So a
//! start compares names and lengths with this record. Lines with `closed` count once, with the clean-shutdown marker that
//! has the checksum of this file. Lines with `refused` are of partitions that a start found incomplete: they count until
//! the files are there again, or the loss is accepted by a file of the name [`ACCEPT_LOSS`] in the partition's directory.

use crate::files::{FileKind, FileState, SegmentFileName};
use crate::marker::CleanShutdown;
use crate::partition_dir::TopicPartition;
use crate::storage::{DirEntry, Storage, read_small_file, replace_file_unsynced};
use crc32c::crc32c;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use std::path::Path;

/// Name of the record in the log directory.
pub(crate) const SEGMENT_RECORD: &str = ".mainstem-segments";

/// Name of the file in a partition's directory by which an operator accepts that segments are missing or shorter.
pub const ACCEPT_LOSS: &str = "accept-loss";

/// The largest record that is read: enough for 4 million segments.
const LEN_MAX: usize = 128 << 20;

/// Base offset and length in bytes of each segment of a partition.
pub type SegmentLengths = Vec<(i64, u64)>;

/// The contents of a record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SegmentRecord {
    /// Partitions that were closed in order.
    pub closed: BTreeMap<TopicPartition, SegmentLengths>,
    /// Partitions that a start found incomplete.
    pub refused: BTreeMap<TopicPartition, SegmentLengths>,
}

impl SegmentRecord {
    /// Reads the valid part of a directory's record: all of it if the marker fits it, otherwise the refused partitions alone.
    /// A malformed record counts as empty.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn read(storage: &dyn Storage, dir: &Path) -> io::Result<SegmentRecord> {
        let path = dir.join(SEGMENT_RECORD);
        let bytes = match read_small_file(storage, &path, LEN_MAX) {
            Ok(bytes) => bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData) => {
                return Ok(SegmentRecord::default());
            }
            Err(error) => return Err(error),
        };
        let Some(mut record) = parse(&bytes) else {
            tracing::warn!(path = %path.display(), "the record of closed segments is ignored: it is malformed");
            return Ok(SegmentRecord::default());
        };
        let marker = CleanShutdown::read(storage, dir)?;
        if marker.and_then(|marker| marker.segments_crc) != Some(crc32c(&bytes)) {
            record.closed.clear();
        }
        Ok(record)
    }

    /// Writes the record, durable once the directory is synced; returns its checksum, for the marker.
    pub(crate) fn write(&self, storage: &dyn Storage, dir: &Path) -> io::Result<u32> {
        let text = self.format();
        replace_file_unsynced(storage, &dir.join(SEGMENT_RECORD), text.as_bytes())?;
        Ok(crc32c(text.as_bytes()))
    }

    /// The segments that a partition has to have; `None` where nothing is known.
    pub fn expected(&self, partition: &TopicPartition) -> Option<&SegmentLengths> {
        self.refused.get(partition).or_else(|| self.closed.get(partition))
    }

    /// Partitions of which segments are gone or shorter, and which, in words. `dir` is the record's directory.
    ///
    /// # Errors
    /// When a directory cannot be listed.
    pub fn losses(&self, storage: &dyn Storage, dir: &Path) -> io::Result<Vec<(TopicPartition, String)>> {
        let mut losses = Vec::new();
        for (partition, expected) in self.refused.iter().chain(&self.closed) {
            let found = segments_in(storage, &dir.join(partition.to_string()))?;
            losses.extend(missing(expected, &found).map(|what| (partition.clone(), what)));
        }
        Ok(losses)
    }

    fn format(&self) -> String {
        let mut text = format!("0\n{}\n", self.closed.len() + self.refused.len());
        for (word, partitions) in [("closed", &self.closed), ("refused", &self.refused)] {
            for (TopicPartition { topic, partition }, segments) in partitions {
                write!(text, "{word} {topic} {partition}").expect("writing to a string cannot fail");
                for (base_offset, len) in segments {
                    write!(text, " {base_offset}:{len}").expect("writing to a string cannot fail");
                }
                text.push('\n');
            }
        }
        text
    }
}

fn parse(bytes: &[u8]) -> Option<SegmentRecord> {
    let mut lines = std::str::from_utf8(bytes).ok()?.lines();
    if lines.next()? != "0" {
        return None;
    }
    let count: usize = lines.next()?.parse().ok()?;
    let (mut record, mut found) = (SegmentRecord::default(), 0);
    for line in lines {
        let mut words = line.split(' ');
        let partitions = match words.next()? {
            "closed" => &mut record.closed,
            "refused" => &mut record.refused,
            _ => return None,
        };
        let (topic, partition) = (words.next()?, words.next()?.parse().ok()?);
        let segments: Option<SegmentLengths> = words.map(parse_segment).collect();
        partitions.insert(TopicPartition::new(topic, partition), segments?);
        found += 1;
    }
    (found == count).then_some(record)
}

fn parse_segment(word: &str) -> Option<(i64, u64)> {
    let (base_offset, len) = word.split_once(':')?;
    Some((base_offset.parse().ok()?, len.parse().ok()?))
}

/// Base offset and length of each segment in a partition's directory, which may not be there.
pub(crate) fn segments_in(storage: &dyn Storage, path: &Path) -> io::Result<SegmentLengths> {
    if !storage.exists(path)? {
        return Ok(Vec::new());
    }
    let segment = |entry: DirEntry| {
        let name = SegmentFileName::parse(&entry.name)?;
        let is_log = name.kind == FileKind::Log && name.state == FileState::Live;
        is_log.then_some((name.base_offset, entry.len))
    };
    Ok(storage.list(path)?.into_iter().filter_map(segment).collect())
}

/// Describes segments of `expected` that are missing or shorter; `None`: nothing is. Segments may be longer, or more.
pub(crate) fn missing(expected: &[(i64, u64)], found: &[(i64, u64)]) -> Option<String> {
    let found: BTreeMap<_, _> = found.iter().copied().collect();
    let mut faults = expected.iter().filter_map(|(base_offset, len)| match found.get(base_offset) {
        None if *len > 0 => Some(format!("{base_offset:020}.log with {len} bytes is gone")),
        Some(now) if now < len => Some(format!("{base_offset:020}.log has {now} of {len} bytes")),
        _ => None,
    });
    let mut text = faults.next()?;
    for fault in faults.by_ref().take(9) {
        text.push_str(", ");
        text.push_str(&fault);
    }
    match faults.count() {
        0 => {}
        more => write!(text, ", and {more} more").expect("writing to a string cannot fail"),
    }
    Some(text)
}

/// Fuzz body: what is read is read again from what would be written.
pub(crate) fn fuzz(data: &[u8]) {
    if let Some(record) = parse(data) {
        assert_eq!(parse(record.format().as_bytes()), Some(record));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn partition(number: i32) -> TopicPartition {
        TopicPartition::new("orders", number)
    }

    #[test]
    fn a_record_survives_its_file() {
        let record = SegmentRecord {
            closed: BTreeMap::from([(partition(0), vec![(0, 5000), (4711, 0)]), (partition(2), vec![])]),
            refused: BTreeMap::from([(partition(1), vec![(80, 512)])]),
        };
        let text = "0\n3\nclosed orders 0 0:5000 4711:0\nclosed orders 2\nrefused orders 1 80:512\n";
        assert_eq!((record.format().as_str(), parse(text.as_bytes())), (text, Some(record)));
        // A torn tail is noticed where it takes a line; the checksum in the marker notices the rest.
        assert_eq!(parse(&text.as_bytes()[..text.len() - 25]), None);
        for malformed in
            ["", "1\n0\n", "0\n1\n", "0\n1\nopen t 0\n", "0\n1\nclosed t x\n", "0\n1\nclosed t 0 5\n"]
        {
            assert_eq!(parse(malformed.as_bytes()), None, "{malformed:?}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let check = |expected: &[(i64, u64)], found: &[(i64, u64)], text: Option<&str>| {
            assert_eq!(missing(expected, found).as_deref(), text, "{expected:?} {found:?}");
        };
        check(&[(0, 10), (5, 0)], &[(0, 10)], None);
        check(&[(0, 10)], &[(0, 11), (7, 3)], None);
        check(&[(0, 10), (5, 3)], &[(0, 10)], Some("00000000000000000005.log with 3 bytes is gone"));
        check(
            &[(0, 10), (5, 3)],
            &[(0, 0), (5, 2)],
            Some("00000000000000000000.log has 0 of 10 bytes, 00000000000000000005.log has 2 of 3 bytes"),
        );
        let many: Vec<_> = (0..15).map(|base_offset| (base_offset, 1)).collect();
        assert!(missing(&many, &[]).is_some_and(|text| text.ends_with(", and 5 more")));
    }

    proptest! {
        #[test]
        fn any_text_upholds_the_properties(lines in proptest::collection::vec("(closed|refused) [a-z]{1,3} [0-9]{1,3}( [0-9]{1,4}:[0-9]{1,4}){0,3}", 0..5)) {
            fuzz(format!("0\n{}\n{}\n", lines.len(), lines.join("\n")).as_bytes());
        }
    }
}
