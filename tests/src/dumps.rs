//! Outputs of Kafka's DumpLogSegments for the segments of replicas: as far as all have the same records, the outputs must be equal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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
        let number = |name: &str| {
            let (_, behind) = line.split_once(name)?;
            behind.split(' ').next()?.parse().ok()
        };
        if line.starts_with("| offset: ") {
            return Some(Line { offset: number("| offset: ")?, last_offset: None, text: (line, "") });
        }
        let offset = line.starts_with("baseOffset: ").then(|| number("baseOffset: ")).flatten()?;
        let (before, position) = line.split_once(" position: ").unwrap_or((line, ""));
        let behind = position.split_once(' ').map_or("", |(_, behind)| behind);
        Some(Line { offset, last_offset: number("lastOffset: "), text: (before, behind) })
    }
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

/// Asserts that the dumps of all nodes have each partition up to its end, and are equal. `ends` is by the name of a
/// partition's directory.
///
/// When they lack records, or differ.
pub(crate) fn assert_equal(dumps: &[String], nodes: &[Vec<PathBuf>], ends: &BTreeMap<String, i64>) {
    let dumped = parse(dumps, nodes);
    for (partition, end) in ends {
        let of_node = |node: usize| {
            let segments = dumped.get(&(partition.as_str(), node)).into_iter().flatten();
            let lines = segments.flat_map(|(_, lines)| lines.iter().filter(|line| line.offset < *end));
            lines.collect::<Vec<_>>()
        };
        let first = of_node(0);
        for node in 0..nodes.len() {
            let lines = of_node(node);
            let last = lines.iter().rev().find_map(|line| line.last_offset);
            assert_eq!(last.map_or(0, |last| last + 1), *end, "{partition} in {:?}", nodes[node]);
            let differing = lines.iter().zip(&first).find(|(line, other)| line != other);
            assert!(
                differing.is_none(),
                "{partition} in {:?} and {:?}: {differing:?}",
                nodes[node],
                nodes[0]
            );
            let (count, wanted) = (lines.len(), first.len());
            assert_eq!(count, wanted, "lines about {partition} in {:?} and {:?}", nodes[node], nodes[0]);
        }
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
}
