//! The finished ranges behind a committed offset, as the text that Kafka keeps beside it.
//!
//! A commit has the offset of the first unfinished message. Messages that are finished behind it would run again after a crash. So their
//! ranges go into the commit's metadata, which every broker keeps as it is (up to `offset.metadata.max.bytes`, 4,096 by default).
//!
//! ```text
//! "mainstem-flow/2 " + base64 of
//!   varint  the committed offset: a tool that resets the offset alone makes the rest void
//!   varint  the leader epoch of the last finished record
//!   then, for each range: varint unfinished offsets before it, varint offsets in it
//!   u32 LE  the low half of XXH3-64 of all bytes before
//! ```
//!
//! If the epoch is not known there is none, and the text begins with "mainstem-flow/1 ". The epoch shows that a log was cut behind the
//! committed offset: records that are written there afterwards have a later epoch, as epochs only grow with offsets. They are not finished,
//! whatever the ranges say.

use std::ops::Range;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use twox_hash::XxHash3_64;

/// A commit's metadata has at most this many bytes: a quarter of Kafka's bound is left to others.
pub const METADATA_BYTES_MAX: usize = 3 << 10;
/// No range ends further behind the offset: [`Limits::ahead`](crate::window::Limits::ahead) of the window, twice.
const SPAN_MAX: i64 = 2 * crate::window::AHEAD_MAX;
const PREFIX: &str = "mainstem-flow/2 ";
/// The prefix of texts without an epoch.
const PREFIX_WITHOUT_EPOCH: &str = "mainstem-flow/1 ";
const CHECKSUM_BYTES: usize = size_of::<u32>();
/// The bound on the bytes that are then encoded as base64.
const BODY_BYTES_MAX: usize = (METADATA_BYTES_MAX - PREFIX.len()) / 4 * 3 - CHECKSUM_BYTES;

/// The reason why the metadata of a commit is ignored. Reading resumes at the committed offset then, and messages that were finished behind
/// it run again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Ignored {
    /// It is not this crate's.
    #[error("it was written by something else than these handlers, or by a later version of them")]
    Foreign,
    /// It does not fit its checksum or its format.
    #[error("it is damaged")]
    Damaged,
    /// It belongs to a commit of another offset.
    #[error("it is about offset {0}: the offset was set by something that kept the metadata")]
    OtherOffset(i64),
}

/// The finished messages behind a committed offset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// The leader epoch of the last of these records; none where it is not known. A record of a later epoch is another one.
    pub leader_epoch: Option<i32>,
    /// The offsets, ascending and apart.
    pub ranges: Vec<Range<i64>>,
}

/// The metadata for a commit of `offset` with finished `ranges` behind it, ascending and apart; empty if there are none.
/// `leader_epoch` is that of the last finished record, where it is known.
///
/// If not all fit, the longest do: what is left out only runs again after a crash.
pub fn encode(
    offset: i64,
    leader_epoch: Option<i32>,
    ranges: impl IntoIterator<Item = Range<i64>>,
) -> String {
    let leader_epoch = leader_epoch.filter(|epoch| *epoch >= 0);
    let mut ranges: Vec<Range<i64>> = ranges.into_iter().filter(|range| range.start < range.end).collect();
    if ranges.is_empty() {
        return String::new();
    }
    let mut body = body(offset, leader_epoch, &ranges);
    while body.len() > BODY_BYTES_MAX {
        leave_out(&mut ranges, body.len());
        body = self::body(offset, leader_epoch, &ranges);
    }
    if ranges.is_empty() {
        return String::new();
    }
    let checksum = XxHash3_64::oneshot(&body) as u32;
    body.extend_from_slice(&checksum.to_le_bytes());
    let prefix = if leader_epoch.is_some() { PREFIX } else { PREFIX_WITHOUT_EPOCH };
    let text = format!("{prefix}{}", STANDARD_NO_PAD.encode(&body));
    assert!(text.len() <= METADATA_BYTES_MAX, "the metadata of a commit has {} bytes", text.len());
    text
}

/// Leaves out the shortest ranges, about as many as are too much.
fn leave_out(ranges: &mut Vec<Range<i64>>, bytes: usize) {
    let kept = (ranges.len() * BODY_BYTES_MAX / bytes).min(ranges.len() - 1);
    let mut lengths: Vec<i64> = ranges.iter().map(|range| range.end - range.start).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let shortest_kept = lengths.get(kept).copied().unwrap_or(0);
    // Of those that are equally short, the later ones go.
    let mut ties = kept - lengths.iter().filter(|length| **length > shortest_kept).count();
    ranges.retain(|range| {
        let length = range.end - range.start;
        let is_kept = length > shortest_kept || (length == shortest_kept && ties > 0);
        ties -= usize::from(is_kept && length == shortest_kept);
        is_kept
    });
}

fn body(offset: i64, leader_epoch: Option<i32>, ranges: &[Range<i64>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut before = offset;
    put_varint(&mut out, offset);
    if let Some(epoch) = leader_epoch {
        put_varint(&mut out, epoch.into());
    }
    for range in ranges {
        assert!(range.start >= before, "finished ranges are apart and behind offset {offset}: {ranges:?}");
        put_varint(&mut out, range.start - before);
        put_varint(&mut out, range.end - range.start);
        before = range.end;
    }
    out
}

/// Reads the metadata of a commit.
///
/// # Errors
/// The reason why it is ignored. An empty text is no error: nothing is finished behind the offset.
pub fn decode(offset: i64, metadata: &str) -> Result<Finished, Ignored> {
    if metadata.is_empty() {
        return Ok(Finished::default());
    }
    let without_epoch = metadata.strip_prefix(PREFIX_WITHOUT_EPOCH);
    let text = without_epoch.or_else(|| metadata.strip_prefix(PREFIX)).ok_or(Ignored::Foreign)?;
    if metadata.len() > METADATA_BYTES_MAX {
        return Err(Ignored::Damaged);
    }
    let bytes = STANDARD_NO_PAD.decode(text).map_err(|_| Ignored::Damaged)?;
    let (body, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>().ok_or(Ignored::Damaged)?;
    if XxHash3_64::oneshot(body) as u32 != u32::from_le_bytes(*checksum) {
        return Err(Ignored::Damaged);
    }
    read_body(offset, without_epoch.is_none(), body)
}

fn read_body(offset: i64, has_epoch: bool, mut body: &[u8]) -> Result<Finished, Ignored> {
    let committed = take_varint(&mut body).ok_or(Ignored::Damaged)?;
    if committed != offset {
        return Err(Ignored::OtherOffset(committed));
    }
    let mut leader_epoch = None;
    if has_epoch {
        let epoch = take_varint(&mut body).and_then(|epoch| i32::try_from(epoch).ok());
        leader_epoch = Some(epoch.ok_or(Ignored::Damaged)?);
    }
    let (mut ranges, mut before) = (Vec::new(), offset);
    while !body.is_empty() {
        let mut take = || take_varint(&mut body).ok_or(Ignored::Damaged);
        let (gap, length) = (take()?, take()?);
        let start = before.checked_add(gap).ok_or(Ignored::Damaged)?;
        let end = start.checked_add(length).ok_or(Ignored::Damaged)?;
        if length == 0 || end - offset > SPAN_MAX {
            return Err(Ignored::Damaged);
        }
        ranges.push(start..end);
        before = end;
    }
    Ok(Finished { leader_epoch, ranges })
}

/// LEB128 of a number that is not negative.
fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut value = u64::try_from(value).expect("offsets and their distances are not negative");
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<i64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return i64::try_from(value).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A text of today is read by later versions.
    #[test]
    fn the_text_is_fixed() {
        let ranges = vec![301..304, 310..311];
        for (leader_epoch, expected) in [
            (None, expect_test::expect!["mainstem-flow/1 rAIBAwYBL0daUg"]),
            (Some(7), expect_test::expect!["mainstem-flow/2 rAIHAQMGAfG063s"]),
        ] {
            let text = encode(300, leader_epoch, ranges.clone());
            expected.assert_eq(&text);
            assert_eq!(decode(300, &text), Ok(Finished { leader_epoch, ranges: ranges.clone() }));
        }
        assert_eq!(encode(300, Some(7), []), "");
        assert_eq!(decode(300, ""), Ok(Finished::default()));
        assert_eq!(decode(300, &encode(300, Some(-1), ranges)).unwrap().leader_epoch, None);
    }

    #[test]
    fn what_is_not_ours_says_nothing() {
        let ours = encode(300, Some(7), std::iter::once(301..304));
        assert_eq!(decode(300, "host-7 wrote this"), Err(Ignored::Foreign));
        assert_eq!(decode(300, "mainstem-flow/3 rAIBAw"), Err(Ignored::Foreign));
        assert_eq!(decode(300, "mainstem-flow/1 ???"), Err(Ignored::Damaged));
        assert_eq!(decode(300, &ours[..ours.len() - 1]), Err(Ignored::Damaged));
        assert_eq!(decode(299, &ours), Err(Ignored::OtherOffset(300)));
        assert_eq!(decode(300, &format!("{ours}{}", "A".repeat(4_000))), Err(Ignored::Damaged));
    }

    #[test]
    fn the_longest_ranges_are_kept_where_not_all_fit() {
        // Every second offset, two bytes a range, and a long one at the end.
        let short = (0..1_500).map(|index| 2 * index + 1..2 * index + 2);
        let text = encode(0, Some(0), short.chain(std::iter::once(100_000..200_000)));
        assert!(
            text.len() <= METADATA_BYTES_MAX && text.len() > METADATA_BYTES_MAX * 9 / 10,
            "{}",
            text.len()
        );
        let Finished { ranges, .. } = decode(0, &text).unwrap();
        assert_eq!((ranges.first(), ranges.last()), (Some(&(1..2)), Some(&(100_000..200_000))));
    }

    proptest! {
        #[test]
        fn any_ranges_come_back(offset in 0..i64::MAX / 2, leader_epoch in prop::option::of(0..i32::MAX), steps in prop::collection::vec((1..9i64, 1..300i64), 0..60)) {
            let mut before = offset;
            let ranges: Vec<_> = steps.iter().map(|(gap, length)| {
                let start = before + gap;
                before = start + length;
                start..before
            }).collect();
            let leader_epoch = leader_epoch.filter(|_| !ranges.is_empty());
            let text = encode(offset, leader_epoch, ranges.clone());
            prop_assert_eq!(decode(offset, &text), Ok(Finished { leader_epoch, ranges }));
        }

        #[test]
        fn no_text_panics(offset in any::<i64>(), bytes in prop::collection::vec(any::<u8>(), 0..64), has_checksum: bool, has_epoch: bool) {
            let mut body = bytes;
            if has_checksum {
                let checksum = XxHash3_64::oneshot(&body) as u32;
                body.extend_from_slice(&checksum.to_le_bytes());
            }
            let prefix = if has_epoch { PREFIX } else { PREFIX_WITHOUT_EPOCH };
            let text = format!("{prefix}{}", STANDARD_NO_PAD.encode(&body));
            if let Ok(finished) = decode(offset, &text) {
                prop_assert!(finished.ranges.iter().all(|range| range.start >= offset && range.start < range.end));
            }
        }
    }
}
