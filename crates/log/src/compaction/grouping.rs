//! Grouping of segments that are compacted into one. A group has as many neighbours as fit into one segment, so that
//! segments do not become ever smaller.

use std::ops::Range;

/// A segment that is to be compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) base_offset: i64,
    /// Base offset of the segment behind it.
    pub(crate) next_offset: i64,
    pub(crate) bytes: u64,
    pub(crate) index_bytes: u64,
    pub(crate) time_index_bytes: u64,
}

/// Size limits of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// `segment.bytes`.
    pub(crate) bytes: u64,
    /// `segment.index.bytes`, of each index.
    pub(crate) index_bytes: u64,
}

/// Groups of neighbours, in order; each becomes one segment. A segment that is too large by itself is a group.
pub(crate) fn group(members: &[Member], limits: Limits) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    for number in 0..members.len() {
        match groups.last_mut() {
            Some(last) if fits(&members[last.clone()], &members[number], limits) => last.end = number + 1,
            _ => groups.push(number..number + 1),
        }
    }
    groups
}

fn fits(group: &[Member], next: &Member, limits: Limits) -> bool {
    let sum = |bytes: fn(&Member) -> u64| group.iter().map(bytes).sum::<u64>() + bytes(next);
    // An index has 31 bits for an offset behind the segment's base.
    let reach = next.next_offset - 1 - group[0].base_offset;
    sum(|member| member.bytes) <= limits.bytes
        && sum(|member| member.index_bytes) <= limits.index_bytes
        && sum(|member| member.time_index_bytes) <= limits.index_bytes
        && (next.bytes == 0 || reach <= i64::from(i32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Segments of so many bytes, each with an index of a tenth and 100 offsets.
    fn check(bytes: &[u64], expect: &str) {
        let members: Vec<_> = (0..).zip(bytes).map(|(number, bytes)| member(number * 100, *bytes)).collect();
        assert_eq!(text(&members), expect, "{bytes:?}");
    }

    fn member(base_offset: i64, bytes: u64) -> Member {
        let (index_bytes, time_index_bytes) = (bytes / 10, bytes / 20);
        Member { base_offset, next_offset: base_offset + 100, bytes, index_bytes, time_index_bytes }
    }

    fn text(members: &[Member]) -> String {
        let groups = group(members, Limits { bytes: 100, index_bytes: 9 });
        groups.iter().map(|group| format!("{}-{}", group.start, group.end)).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn neighbours_are_grouped_up_to_the_size_of_a_segment() {
        check(&[], "");
        check(&[10], "0-1");
        check(&[30, 30, 30, 30], "0-3 3-4");
        check(&[500, 10, 10], "0-1 1-3");
        check(&[99, 1, 1], "0-2 2-3");
        // The indexes are full before the bytes are.
        check(&[50, 50], "0-1 1-2");
        check(&[0, 0, 90, 0], "0-4");
    }

    #[test]
    fn a_segment_does_not_span_more_offsets_than_its_index_can_say() {
        let far = |base_offset, bytes, next_offset| Member { next_offset, ..member(base_offset, bytes) };
        let max = i64::from(i32::MAX);
        assert_eq!(text(&[member(0, 5), far(100, 5, max + 1)]), "0-2");
        assert_eq!(text(&[member(0, 5), far(100, 5, max + 2)]), "0-1 1-2");
        assert_eq!(text(&[member(0, 5), far(100, 0, max + 2)]), "0-2");
    }
}
