//! Checks an index against the batches of its segment, which are passed in order.

use mainstem_records::BatchHeader;

use crate::disk::{IndexEntry, IndexKind};

/// The entries of one index; those from `next` on wait for their batches. The check stops at the first fault, since
/// later ones would only follow from it.
#[derive(Debug)]
pub(crate) struct IndexCheck {
    kind: IndexKind,
    entries: Vec<IndexEntry>,
    next: usize,
    max_timestamp: i64,
    /// The first offset of the last batches, if they were damaged: entries for them are not checked.
    damaged_from: Option<i64>,
}

impl IndexCheck {
    /// Checks the entries among themselves.
    ///
    /// # Errors
    /// The number of the entry, and the fault.
    pub(crate) fn new(kind: IndexKind, entries: Vec<IndexEntry>) -> Result<Self, (usize, String)> {
        let ascends = |a: &IndexEntry, b: &IndexEntry| match kind {
            IndexKind::Offset => a.offset < b.offset && a.value < b.value,
            // Kafka keeps an offset when it closes a segment under a later timestamp.
            IndexKind::Time => a.offset <= b.offset && a.value < b.value,
        };
        match entries.windows(2).position(|pair| !ascends(&pair[0], &pair[1])) {
            Some(at) => Err((at + 1, format!("entry {} does not ascend", at + 1))),
            None => Ok(IndexCheck { kind, entries, next: 0, max_timestamp: i64::MIN, damaged_from: None }),
        }
    }

    /// Skips a damaged batch, of which only the base offset can be trusted.
    pub(crate) fn pass_damaged(&mut self, base_offset: i64) {
        self.damaged_from.get_or_insert(base_offset);
    }

    /// Skips the entries of damaged batches before `offset`.
    fn pass_entries_of_damaged(&mut self, offset: i64) {
        let Some(from) = self.damaged_from.take() else { return };
        let is_of_damaged = |entry: &&IndexEntry| (from..offset).contains(&entry.offset);
        self.next += self.entries[self.next..].iter().take_while(is_of_damaged).count();
    }

    /// Checks the next batch.
    ///
    /// # Errors
    /// The number of the entry, and the fault. Nothing is checked after that.
    pub(crate) fn take(&mut self, batch: &BatchHeader, position: u64) -> Result<(), (usize, String)> {
        self.pass_entries_of_damaged(batch.base_offset);
        self.max_timestamp = self.max_timestamp.max(batch.max_timestamp);
        while let Some(entry) = self.entries.get(self.next)
            && entry.offset <= batch.last_offset()
        {
            let at = self.next;
            self.next += 1;
            if let Err(what) = self.check(entry, batch, position) {
                self.next = self.entries.len();
                return Err((at, format!("entry {at} (offset {}) {what}", entry.offset)));
            }
        }
        Ok(())
    }

    fn check(&self, entry: &IndexEntry, batch: &BatchHeader, position: u64) -> Result<(), String> {
        match self.kind {
            IndexKind::Offset if entry.offset != batch.last_offset() => {
                Err("is not the last offset of a batch".to_owned())
            }
            IndexKind::Offset if u64::try_from(entry.value) != Ok(position) => {
                Err(format!("points to position {} where the batch is at {position}", entry.value))
            }
            IndexKind::Time if entry.offset < batch.base_offset => Err("lies in no batch".to_owned()),
            IndexKind::Time if entry.value != self.max_timestamp => Err(format!(
                "says timestamp {} where the largest up to there is {}",
                entry.value, self.max_timestamp
            )),
            _ => Ok(()),
        }
    }

    /// Ends the check after the last batch.
    ///
    /// # Errors
    /// As [`IndexCheck::take`].
    pub(crate) fn finish(mut self) -> Result<(), (usize, String)> {
        self.pass_entries_of_damaged(i64::MAX);
        match self.entries.get(self.next) {
            None => Ok(()),
            Some(entry) => Err((
                self.next,
                format!("entry {} (offset {}) is behind the last batch", self.next, entry.offset),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstem_records::{BatchBuilder, BatchOptions};

    use super::*;

    /// Three batches: offsets 0-1, 2-3, 4-5 with timestamps 10, 30, 20, all of one size.
    fn check(kind: IndexKind, entries: &[(i64, i64)]) -> Result<(), String> {
        let batches: Vec<(BatchHeader, u64)> = [(0, 10), (2, 30), (4, 20)]
            .into_iter()
            .enumerate()
            .map(|(at, (base_offset, timestamp))| {
                let mut builder = BatchBuilder::new(BatchOptions { base_offset, ..Default::default() });
                builder.append(timestamp, None, Some(b"x"), &[]).unwrap();
                builder.append(timestamp, None, Some(b"y"), &[]).unwrap();
                let bytes = builder.build().unwrap();
                (BatchHeader::read(&bytes).unwrap(), (at * 100) as u64)
            })
            .collect();
        let entries =
            entries.iter().map(|(offset, value)| IndexEntry { offset: *offset, value: *value }).collect();
        let run = || {
            let mut check = IndexCheck::new(kind, entries)?;
            batches.iter().try_for_each(|(batch, position)| check.take(batch, *position))?;
            check.finish()
        };
        run().map_err(|(_, what): (usize, String)| what)
    }

    #[test]
    fn entries_of_a_damaged_batch_are_not_judged() {
        let entries = |all: &[(i64, i64)]| {
            all.iter().map(|&(offset, value)| IndexEntry { offset, value }).collect::<Vec<_>>()
        };
        let mut builder = BatchBuilder::new(BatchOptions { base_offset: 4, ..Default::default() });
        builder.append(30, None, Some(b"x"), &[]).unwrap();
        let last = BatchHeader::read(&builder.build().unwrap()).unwrap();
        for (kind, all, is_right) in [
            (IndexKind::Offset, &[(1, 0), (3, 100), (4, 200)][..], true),
            (IndexKind::Offset, &[(3, 100), (4, 201)], false),
            (IndexKind::Time, &[(0, 10), (3, 20), (4, 30)], true),
            (IndexKind::Time, &[(0, 10), (4, 29)], false),
        ] {
            let mut check = IndexCheck::new(kind, entries(all)).unwrap();
            check.pass_damaged(0);
            check.pass_damaged(2);
            assert_eq!(check.take(&last, 200).is_ok(), is_right, "{all:?}");
        }
        let mut ends_damaged = IndexCheck::new(IndexKind::Time, entries(&[(1, 10)])).unwrap();
        ends_damaged.pass_damaged(0);
        assert_eq!(ends_damaged.finish(), Ok(()));
    }

    #[test]
    fn offset_indexes() {
        assert_eq!(check(IndexKind::Offset, &[(3, 100), (5, 200)]), Ok(()));
        assert_eq!(check(IndexKind::Offset, &[]), Ok(()));
        for (entries, why) in [
            (&[(3, 100), (3, 200)][..], "does not ascend"),
            (&[(2, 100)], "not the last offset"),
            (&[(3, 99)], "points to position 99 where the batch is at 100"),
            (&[(3, 100), (9, 200)], "behind the last batch"),
        ] {
            let error = check(IndexKind::Offset, entries).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn time_indexes() {
        assert_eq!(check(IndexKind::Time, &[(1, 10), (3, 30)]), Ok(()));
        for (entries, why) in [
            (&[(3, 30), (5, 30)][..], "does not ascend"),
            (&[(5, 20)], "says timestamp 20 where the largest up to there is 30"),
            (&[(6, 40)], "behind the last batch"),
        ] {
            let error = check(IndexKind::Time, entries).expect_err(why);
            assert!(error.contains(why), "{error}");
        }
    }
}
