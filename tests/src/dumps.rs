//! Outputs of Kafka's DumpLogSegments for the segments of replicas: as far as all have the same records, the outputs must be equal.
//!
//! Replicas of the coordinators' topics compact their logs each by itself. The outputs for them must be equal from the first offset on that
//! no replica may have compacted; before it they must have the same last value of each key.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::cluster::last_values::LastValues;

/// The topics that are compacted. The tool prints keys and values of their records.
const COMPACTED: [&str; 2] = ["__consumer_offsets", "__transaction_state"];

/// A line of a dump that is about a batch or a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Line<'a> {
    /// The offset of the record, or of the first record of the batch.
    offset: i64,
    /// The offset of the last record of a batch.
    last_offset: Option<i64>,
    /// The rest of the line, without the position in the file: replicas may begin their segments at different offsets.
    text: (&'a str, &'a str),
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Line<'a>> {
        let number = |name: &str| word(line, name)?.parse().ok();
        if line.starts_with("| offset: ") {
            return Some(Line { offset: number("| offset: ")?, last_offset: None, text: (line, "") });
        }
        let offset = line.starts_with("baseOffset: ").then(|| number("baseOffset: ")).flatten()?;
        let (before, position) = line.split_once(" position: ").unwrap_or((line, ""));
        let behind = position.split_once(' ').map_or("", |(_, behind)| behind);
        Some(Line { offset, last_offset: number("lastOffset: "), text: (before, behind) })
    }

    /// The end of the transaction that this record ends: true if it is committed.
    fn transaction_end(&self) -> Option<bool> {
        Some(word(self.text.0, " endTxnMarker: ")? == "COMMIT")
    }

    /// The producer id of a transactional batch.
    fn transaction(&self) -> Option<i64> {
        word(self.text.0, " producerId: ")?
            .parse()
            .ok()
            .filter(|_| self.text.0.contains(" isTransactional: true"))
    }

    /// Key and value of a record; no value is a tombstone.
    fn change(&self) -> Option<(&'a str, Option<&'a str>)> {
        let (before, behind) = self.text.0.split_once(" key: ")?;
        let (key, value) = behind.split_once(" payload: ").unwrap_or((behind, ""));
        let is_tombstone = word(before, " valueSize: ")? == "-1";
        Some((key, (!is_tombstone).then_some(value)))
    }
}

/// The word behind a name in a line.
fn word<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split_once(name)?.1.split(' ').next()
}

/// The lines about segments by partition and node, in the order of offsets.
type Dumped<'a> = BTreeMap<(&'a str, usize), BTreeMap<&'a Path, Vec<Line<'a>>>>;

fn parse<'a>(dumps: &'a [String], nodes: &[Vec<PathBuf>]) -> Dumped<'a> {
    let mut dumped = Dumped::new();
    for dump in dumps {
        let mut of_segment = None;
        for line in dump.lines() {
            if let Some(file) = line.strip_prefix("Dumping ") {
                of_segment = place(Path::new(file), nodes)
                    .map(|place| dumped.entry(place).or_default().entry(Path::new(file)).or_default());
            } else if let (Some(lines), Some(line)) = (&mut of_segment, Line::parse(line)) {
                lines.push(line);
            }
        }
    }
    dumped
}

/// The partition of a segment, and its node as an index of `nodes`.
fn place<'a>(file: &'a Path, nodes: &[Vec<PathBuf>]) -> Option<(&'a str, usize)> {
    let partition = file.parent()?.file_name()?.to_str()?;
    let node = nodes.iter().position(|dirs| dirs.iter().any(|dir| file.starts_with(dir)))?;
    file.extension().is_some_and(|extension| extension == "log").then_some((partition, node))
}

/// The last committed record of each key: its offset, and its value; no value is a tombstone.
type Last<'a> = BTreeMap<&'a str, (i64, Option<&'a str>)>;

/// The dump of a replica.
struct Replica<'a> {
    lines: Vec<Line<'a>>,
    /// First offset of its last segment.
    active_base: i64,
}

impl<'a> Replica<'a> {
    fn new(segments: &BTreeMap<&'a Path, Vec<Line<'a>>>) -> Replica<'a> {
        let base = |file: &Path| file.file_stem()?.to_str()?.parse().ok();
        let active_base = segments.keys().filter_map(|file| base(file)).max().unwrap_or(0);
        Replica { lines: segments.values().flatten().copied().collect(), active_base }
    }

    /// The offset behind the last batch that begins before `end`.
    fn end_before(&self, end: i64) -> i64 {
        let last = self.lines.iter().rev().filter(|line| line.offset < end).find_map(|line| line.last_offset);
        last.map_or(0, |last| last + 1)
    }

    fn end(&self) -> i64 {
        self.end_before(i64::MAX).max(self.active_base)
    }

    fn lines_within(&self, offsets: std::ops::Range<i64>) -> Vec<&Line<'a>> {
        self.lines.iter().filter(|line| offsets.contains(&line.offset)).collect()
    }

    /// The last committed record of each key.
    fn last_values(&self) -> Last<'a> {
        let (mut last, mut producer_id) = (LastValues::default(), None);
        for line in &self.lines {
            if line.last_offset.is_some() {
                producer_id = line.transaction();
            } else if let Some(is_committed) = line.transaction_end() {
                producer_id.iter().for_each(|id| last.end_transaction(*id, is_committed));
            } else if let Some((key, value)) = line.change() {
                last.note(producer_id, key, line.offset, value);
            }
        }
        last.into_last()
    }
}

/// Asserts that the dumps of all nodes have each partition up to its end, and are equal. `ends` is by the name of a
/// partition's directory.
///
/// # Panics
/// When they lack records, or differ.
pub(crate) fn assert_equal(dumps: &[String], nodes: &[Vec<PathBuf>], ends: &BTreeMap<String, i64>) {
    let dumped = parse(dumps, nodes);
    let none = BTreeMap::new();
    for (partition, end) in ends {
        let replica = |node| Replica::new(dumped.get(&(partition.as_str(), node)).unwrap_or(&none));
        let replicas: Vec<_> = (0..nodes.len()).map(replica).collect();
        let is_compacted =
            COMPACTED.iter().any(|topic| partition.rsplit_once('-').map(|(one, _)| one) == Some(*topic));
        // A segment that is written to is not compacted.
        let active = replicas.iter().map(|replica| replica.active_base).max().unwrap_or(0);
        assert_equal_lines(partition, &replicas, nodes, if is_compacted { active..*end } else { 0..*end });
        if is_compacted {
            assert_equal_values(partition, &replicas, nodes, *end);
        }
    }
}

/// Asserts that all replicas have the same batches and records at these offsets, and all before their end.
fn assert_equal_lines(
    partition: &str,
    replicas: &[Replica<'_>],
    nodes: &[Vec<PathBuf>],
    offsets: std::ops::Range<i64>,
) {
    let first = replicas[0].lines_within(offsets.clone());
    for (replica, node) in replicas.iter().zip(nodes) {
        // Only where it may be compacted, the last batch before the end may have gone.
        match offsets.is_empty() {
            true => {
                assert!(replica.end() >= offsets.end, "{partition} in {node:?}: it ends at {}", replica.end())
            }
            false => assert_eq!(replica.end_before(offsets.end), offsets.end, "{partition} in {node:?}"),
        }
        let lines = replica.lines_within(offsets.clone());
        let differing = lines.iter().zip(&first).find(|(line, other)| line != other);
        assert!(differing.is_none(), "{partition} in {node:?} and {:?}: {differing:?}", nodes[0]);
        let (count, wanted) = (lines.len(), first.len());
        assert_eq!(count, wanted, "lines about {partition} in {node:?} and {:?}", nodes[0]);
    }
}

/// Asserts that all replicas have the same last value of each key that has no record from `end` on.
fn assert_equal_values(partition: &str, replicas: &[Replica<'_>], nodes: &[Vec<PathBuf>], end: i64) {
    let mut all: Vec<_> = replicas.iter().map(Replica::last_values).collect();
    let later = |last: &Last<'_>| -> Vec<String> {
        last.iter().filter(|(_, (offset, _))| *offset >= end).map(|(key, _)| (*key).to_owned()).collect()
    };
    let later: BTreeSet<String> = all.iter().flat_map(later).collect();
    for last in &mut all {
        // One replica may have removed a tombstone that another one has.
        last.retain(|key, (_, value)| value.is_some() && !later.contains(*key));
    }
    for (last, node) in all.iter().zip(nodes) {
        let mut keys = std::iter::chain(last.keys(), all[0].keys());
        let differing = keys.find(|key| last.get(*key) != all[0].get(*key));
        let shown = differing.map(|key| (key, last.get(key), all[0].get(key)));
        assert!(shown.is_none(), "last values of {partition} in {node:?} and {:?}: {shown:?}", nodes[0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two batches of a node, the second one at a position; the second batch's checksum.
    fn dump(node: &str, position: u64, crc: u64) -> String {
        format!(
            "Dumping /{node}/t-0/00000000000000000000.log\n\
             Log starting offset: 0\n\
             baseOffset: 0 lastOffset: 1 count: 2 partitionLeaderEpoch: 3 position: 0 size: 90 crc: 7 isvalid: true\n\
             | offset: 0 keySize: -1 valueSize: 9 sequence: 0 headerKeys: []\n\
             | offset: 1 keySize: -1 valueSize: 9 sequence: 1 headerKeys: []\n\
             Dumping /{node}/t-0/00000000000000000000.index\n\
             offset: 0 position: 0\n\
             Dumping /{node}/t-0/00000000000000000002.log\n\
             baseOffset: 2 lastOffset: 2 count: 1 partitionLeaderEpoch: 4 position: {position} size: 80 crc: {crc} isvalid: true\n\
             | offset: 2 keySize: -1 valueSize: 9 sequence: 2 headerKeys: []\n"
        )
    }

    #[track_caller]
    fn check(dumps: [String; 2], end: i64) {
        let nodes = ["/1", "/2"].map(|dir| vec![PathBuf::from("/elsewhere"), PathBuf::from(dir)]);
        assert_equal(&dumps, &nodes, &BTreeMap::from([("t-0".to_owned(), end)]));
    }

    #[test]
    fn replicas_may_have_their_batches_at_other_positions() {
        check([dump("1", 0, 5), dump("2", 90, 5)], 3);
    }

    #[test]
    fn what_is_behind_the_end_may_differ() {
        check([dump("1", 0, 5), dump("2", 0, 6)], 2);
    }

    #[test]
    #[should_panic(expected = "t-0")]
    fn a_batch_that_differs_is_found() {
        check([dump("1", 0, 5), dump("2", 0, 6)], 3);
    }

    #[test]
    #[should_panic(expected = "t-0")]
    fn a_replica_that_lacks_the_last_batch_is_found() {
        check(
            [
                dump("1", 0, 5),
                dump("2", 0, 5)
                    .split_inclusive("Dumping /2/t-0/00000000000000000002")
                    .next()
                    .unwrap()
                    .to_owned(),
            ],
            3,
        );
    }

    #[test]
    #[should_panic(expected = "t-0")]
    fn a_record_that_one_replica_lacks_is_found() {
        let lacks =
            dump("2", 0, 5).replace("| offset: 1 keySize: -1 valueSize: 9 sequence: 1 headerKeys: []\n", "");
        check([dump("1", 0, 5), lacks], 3);
    }

    #[test]
    #[should_panic(expected = "t-0")]
    fn a_replica_without_files_is_found() {
        check([dump("1", 0, 5), String::new()], 3);
    }

    /// A segment of the offsets topic on a node. Its lines are those of batches of one record each.
    fn segment(node: &str, base_offset: i64, batches: &[String]) -> String {
        format!(
            "Dumping /{node}/__consumer_offsets-0/{base_offset:020}.log\nLog starting offset: {base_offset}\n"
        ) + &batches.concat()
    }

    fn batch(offset: i64, producer_id: i64, record: &str) -> String {
        let is_transactional = producer_id >= 0;
        format!(
            "baseOffset: {offset} lastOffset: {offset} count: 1 baseSequence: -1 lastSequence: -1 producerId: {producer_id} \
             producerEpoch: 0 partitionLeaderEpoch: 2 isTransactional: {is_transactional} isControl: false \
             deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 9 size: 110 magic: 2 crc: 1 isvalid: true\n\
             | offset: {offset} CreateTime: 9 keySize: 21 {record}\n"
        )
    }

    fn commit(offset: i64, group: &str, committed: i64) -> String {
        batch(offset, -1, &change(group, committed))
    }

    fn change(group: &str, committed: i64) -> String {
        format!(
            "valueSize: 24 sequence: -1 headerKeys: [] key: {{\"group\":\"{group}\"}} payload: {{\"offset\":{committed}}}"
        )
    }

    fn tombstone(offset: i64, group: &str) -> String {
        let record = "valueSize: -1 sequence: -1 headerKeys: []";
        batch(offset, -1, &format!("{record} key: {{\"group\":\"{group}\"}} payload: <DELETE>"))
    }

    fn marker(offset: i64, producer_id: i64, kind: &str) -> String {
        let record = "valueSize: 6 sequence: -1 headerKeys: [] endTxnMarker:";
        batch(offset, producer_id, &format!("{record} {kind} coordinatorEpoch: 0"))
    }

    /// A replica that is not compacted, with the segments from 0 and from 4 on.
    fn not_compacted() -> String {
        let closed = [commit(0, "a", 10), commit(1, "b", 11), tombstone(2, "b"), commit(3, "a", 13)];
        segment("1", 0, &closed) + &segment("1", 4, &[commit(4, "c", 14), commit(5, "a", 15)])
    }

    #[track_caller]
    fn check_compacted(one: String, other: String, end: i64) {
        let nodes = ["/1", "/2"].map(|dir| vec![PathBuf::from(dir)]);
        assert_equal(&[one, other], &nodes, &BTreeMap::from([("__consumer_offsets-0".to_owned(), end)]));
    }

    #[test]
    fn a_replica_of_a_compacted_topic_may_be_compacted_further() {
        let active = [commit(4, "c", 14), commit(5, "a", 15)];
        let further = segment("2", 0, &[commit(3, "a", 13)]) + &segment("2", 4, &active);
        check_compacted(not_compacted(), further, 6);
        let even_further = segment("2", 0, &active) + &segment("2", 6, &[]);
        check_compacted(not_compacted(), even_further, 6);
    }

    #[test]
    #[should_panic(expected = "last values of __consumer_offsets-0")]
    fn a_last_value_that_differs_is_found() {
        let other = segment("2", 0, &[commit(4, "c", 13), commit(5, "a", 15)]) + &segment("2", 6, &[]);
        check_compacted(not_compacted(), other, 6);
    }

    #[test]
    #[should_panic(expected = "last values of __consumer_offsets-0")]
    fn a_key_that_comes_back_is_found() {
        let closed = [commit(1, "b", 11), commit(3, "a", 13)];
        let active = [commit(4, "c", 14), commit(5, "a", 15)];
        check_compacted(not_compacted(), segment("2", 0, &closed) + &segment("2", 4, &active), 6);
    }

    #[test]
    #[should_panic(expected = "__consumer_offsets-0 in")]
    fn a_batch_of_the_active_segment_that_differs_is_found() {
        let active = [commit(4, "c", 14), commit(5, "a", 15).replace("crc: 1", "crc: 2")];
        check_compacted(not_compacted(), segment("2", 4, &active), 6);
    }

    #[test]
    #[should_panic(expected = "__consumer_offsets-0 in")]
    fn a_batch_that_the_active_segment_lacks_is_found() {
        check_compacted(not_compacted(), segment("2", 4, &[commit(5, "a", 15)]), 6);
    }

    #[test]
    #[should_panic(expected = "it ends at 5")]
    fn a_compacted_replica_that_ends_earlier_is_found() {
        let behind = segment("2", 0, &[commit(3, "a", 13), commit(4, "c", 14)]);
        check_compacted(not_compacted() + &segment("1", 6, &[]), behind, 6);
    }

    #[test]
    fn keys_that_change_behind_the_end_are_left_alone() {
        let later = not_compacted() + &segment("1", 6, &[commit(6, "c", 16)]);
        let compacted = segment("2", 0, &[commit(5, "a", 15)]) + &segment("2", 6, &[commit(6, "c", 16)]);
        check_compacted(later, compacted, 6);
    }

    /// Compares a replica with aborted records, and one without them whose other transaction has this marker.
    #[track_caller]
    fn check_transactions(marker_of_other: &str) {
        let batches = |marker_of_other: &str| {
            [
                commit(0, "a", 10),
                batch(1, 7, &change("a", 99)),
                marker(2, 7, "ABORT"),
                batch(3, 7, &change("c", 13)),
                marker(4, 7, marker_of_other),
                commit(5, "b", 15),
            ]
        };
        let compacted: Vec<_> = [0, 3, 4, 5].map(|at| batches(marker_of_other)[at].clone()).into();
        let whole = segment("1", 0, &batches("COMMIT")) + &segment("1", 6, &[]);
        check_compacted(whole, segment("2", 0, &compacted) + &segment("2", 6, &[]), 6);
    }

    #[test]
    fn aborted_records_do_not_count() {
        check_transactions("COMMIT");
    }

    #[test]
    #[should_panic(expected = "last values of __consumer_offsets-0")]
    fn committed_records_count() {
        check_transactions("ABORT");
    }
}
