//! The first record to read: as the command line says it, and as an offset of each partition.

use std::str::FromStr;

use anyhow::{Context, Result};
use mainstem_client::{Admin, Isolation, Position, TopicPartition};

use crate::offsets::{self, Offsets};
use crate::timestamp;

/// A place in every partition of a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// The first existing record.
    Beginning,
    /// After the last record.
    End,
    /// As many records before the end, or the first one if there are fewer.
    BeforeEnd(i64),
    /// This offset.
    Offset(i64),
    /// The first record at or after this time, in ms.
    Time(i64),
}

impl FromStr for Start {
    type Err = String;

    fn from_str(text: &str) -> Result<Start, String> {
        let number = |digits: &str| digits.parse::<i64>().ok().filter(|number| *number >= 0);
        let start = match text {
            "beginning" | "earliest" => Some(Start::Beginning),
            "end" | "latest" => Some(Start::End),
            _ => match text.split_at_checked(1) {
                Some(("@", ms)) => number(ms).map(Start::Time),
                Some(("-", count)) => number(count).map(Start::BeforeEnd),
                _ => number(text).map(Start::Offset).or_else(|| timestamp::parse(text).map(Start::Time)),
            },
        };
        start.ok_or_else(|| {
            "expected beginning, end, an offset such as 42, -N for N records before the end, a time such as \
             2026-11-21T22:00:00Z, or @MS"
                .to_owned()
        })
    }
}

/// The offset of each partition at which readers of an isolation level start.
///
/// # Errors
/// When an offset is outside of what a partition has.
pub(crate) async fn resolve(
    admin: &Admin,
    partitions: &[TopicPartition],
    start: Start,
    isolation: Isolation,
) -> Result<Offsets> {
    let at_time = match start {
        Start::Beginning => return offsets::find(admin, partitions, Position::Beginning).await,
        Start::End => return offsets::find_as(admin, partitions, Position::End, isolation).await,
        Start::Time(ms) => offsets::find(admin, partitions, Position::Time(ms)).await?,
        Start::Offset(_) | Start::BeforeEnd(_) => Offsets::new(),
    };
    let earliest = offsets::find(admin, partitions, Position::Beginning).await?;
    // Offsets behind an open transaction exist, so they are valid starts. A count back from the end counts readable records only.
    let isolation = if matches!(start, Start::BeforeEnd(_)) { isolation } else { Isolation::ReadUncommitted };
    let latest = offsets::find_as(admin, partitions, Position::End, isolation).await?;
    let offset = |key: &TopicPartition| {
        let end = |ends: &Offsets| ends.get(key).copied().unwrap_or(0);
        let range = (end(&earliest), end(&latest));
        let offset = place(start, range, at_time.get(key).copied()).with_context(|| {
            format!(
                "{key} does not have the offset of --from: it has {} to {}; use --from beginning, or --partition N for \
                 another partition",
                range.0, range.1
            )
        })?;
        Ok((key.clone(), offset))
    };
    partitions.iter().map(offset).collect()
}

/// The offset in a partition that has those from `earliest` to before `latest`. `at_time` is the answer of the broker
/// to the time, none where all records are older.
fn place(start: Start, (earliest, latest): (i64, i64), at_time: Option<i64>) -> Option<i64> {
    match start {
        Start::Beginning => Some(earliest),
        Start::End => Some(latest),
        Start::BeforeEnd(count) => Some(latest.saturating_sub(count).max(earliest)),
        Start::Offset(offset) => (earliest..=latest).contains(&offset).then_some(offset),
        Start::Time(_) => Some(at_time.unwrap_or(latest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling() {
        for (text, start) in [
            ("beginning", Start::Beginning),
            ("end", Start::End),
            ("0", Start::Offset(0)),
            ("42", Start::Offset(42)),
            ("-10", Start::BeforeEnd(10)),
            ("@1700000000000", Start::Time(1_700_000_000_000)),
            ("2026-11-21T22:00:00Z", Start::Time(1_795_298_400_000)),
            ("1970-01-02", Start::Time(86_400_000)),
        ] {
            assert_eq!(text.parse(), Ok(start), "{text}");
        }
        for wrong in ["", "start", "4 2", "@", "-", "--1", "@-5", "9999999999999999999", "é"] {
            assert!(wrong.parse::<Start>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn places() {
        let range = (10, 20);
        assert_eq!(place(Start::BeforeEnd(3), range, None), Some(17));
        assert_eq!(place(Start::BeforeEnd(30), range, None), Some(10));
        assert_eq!(place(Start::Offset(10), range, None), Some(10));
        assert_eq!(place(Start::Offset(20), range, None), Some(20));
        assert_eq!(place(Start::Offset(9), range, None), None);
        assert_eq!(place(Start::Offset(21), range, None), None);
        assert_eq!(place(Start::Time(5), range, Some(12)), Some(12));
        assert_eq!(place(Start::Time(5), range, None), Some(20));
    }
}
