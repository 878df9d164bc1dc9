//! The new offset of each partition.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use mainstem_client::{Admin, Position, TopicPartition};

use crate::offsets::{self, Offsets};

/// The new position of a group, for all partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum To {
    /// The first existing record.
    Earliest,
    /// Behind the last record.
    Latest,
    /// The committed offset, or behind the last record where there is none.
    Current,
    /// This offset.
    Offset(i64),
    /// The committed offset plus so many records.
    ShiftBy(i64),
    /// The first record at or after this time, in ms.
    Time(i64),
    /// An offset for each partition.
    Each(Offsets),
}

/// One partition's offset, as it is and as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) partition: TopicPartition,
    /// None where the group has no offset.
    pub(super) current: Option<i64>,
    pub(super) new: i64,
    /// The reason why it is not the offset that was asked for.
    pub(super) note: Option<&'static str>,
}

/// The range of offsets of a partition, and the broker's answer to a time.
#[derive(Debug, Clone, Copy)]
struct Range {
    earliest: i64,
    latest: i64,
    /// None where all records are older.
    at_time: Option<i64>,
}

/// Finds the offset of every partition.
///
/// # Errors
/// When a topic or a partition is missing, or the group has no offset to shift.
pub(super) async fn plan(
    admin: &Admin,
    to: &To,
    partitions: &BTreeSet<TopicPartition>,
    committed: &Offsets,
) -> Result<Vec<Planned>> {
    let earliest = offsets::find(admin, partitions, Position::Beginning).await?;
    let latest = offsets::find(admin, partitions, Position::End).await?;
    let at_time = match to {
        To::Time(ms) => offsets::find(admin, partitions, Position::Time(*ms)).await?,
        _ => Offsets::new(),
    };
    let mut planned = Vec::new();
    for key in partitions {
        let end = |ends: &Offsets| ends.get(key).copied().unwrap_or(0);
        let range =
            Range { earliest: end(&earliest), latest: end(&latest), at_time: at_time.get(key).copied() };
        let current = committed.get(key).copied();
        let wanted = match to {
            To::Each(offsets) => offsets.get(key).copied(),
            _ => wanted(to, current, range),
        };
        let wanted = wanted.with_context(|| {
            format!(
                "the group has no offset in {key} that could be shifted; leave the partition out, or give it an \
                 offset first, such as by --to-earliest"
            )
        })?;
        let (new, note) = within(range, wanted);
        planned.push(Planned { partition: key.clone(), current, new, note });
    }
    Ok(planned)
}

/// The offset asked for; none where the group has no offset to shift.
fn wanted(to: &To, current: Option<i64>, range: Range) -> Option<i64> {
    Some(match to {
        To::Earliest => range.earliest,
        To::Latest => range.latest,
        To::Current => current.unwrap_or(range.latest),
        To::Offset(offset) => *offset,
        To::ShiftBy(count) => current?.saturating_add(*count),
        To::Time(_) => range.at_time.unwrap_or(range.latest),
        To::Each(_) => return None,
    })
}

/// The nearest offset that the partition has. With it, the end at which it was bounded, if it was.
fn within(range: Range, wanted: i64) -> (i64, Option<&'static str>) {
    if wanted < range.earliest {
        (range.earliest, Some("the partition begins here"))
    } else if wanted > range.latest {
        (range.latest, Some("the partition ends here"))
    } else {
        (wanted, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(to: To, current: Option<i64>, at_time: Option<i64>, expect: Option<(i64, bool)>) {
        let range = Range { earliest: 10, latest: 20, at_time };
        let found = wanted(&to, current, range).map(|offset| within(range, offset));
        assert_eq!(found.map(|(offset, note)| (offset, note.is_some())), expect, "{to:?} from {current:?}");
    }

    #[test]
    fn places() {
        check(To::Earliest, Some(15), None, Some((10, false)));
        check(To::Latest, None, None, Some((20, false)));
        check(To::Current, Some(15), None, Some((15, false)));
        check(To::Current, None, None, Some((20, false)));
        check(To::Current, Some(5), None, Some((10, true)));
        check(To::Offset(10), None, None, Some((10, false)));
        check(To::Offset(20), None, None, Some((20, false)));
        check(To::Offset(9), None, None, Some((10, true)));
        check(To::Offset(i64::MAX), None, None, Some((20, true)));
        check(To::ShiftBy(-3), Some(15), None, Some((12, false)));
        check(To::ShiftBy(i64::MIN), Some(15), None, Some((10, true)));
        check(To::ShiftBy(i64::MAX), Some(15), None, Some((20, true)));
        check(To::ShiftBy(1), None, None, None);
        check(To::Time(1), None, Some(12), Some((12, false)));
        check(To::Time(1), None, None, Some((20, false)));
    }
}
