//! Decides whether and where a subscription can resume, by comparing what the consumer has read with the present
//! journal.
//!
//! ```text
//! epochs of the journal     0 ├───────────┤ 1 ├─────────┤ 2 ├──────▶ end
//! epochs of the journal     0 ├───────────┤ 1 ├─────────┤ 2 ├──────▶ end
//! the consumer says         (journal id, epoch, offset behind the last event received)
//!
//! another id                           JournalReplaced
//! more than both have of a run         Diverged { at: the end of what both have } (KIP-320)
//! offset below the journal's start     OutOfRange
//! ```
//!
//! The number of an epoch does not identify a history: two copies of one directory may raise it to the same number, and an orderly
//! start does not raise it. So each start of a publisher begins a run with a random id, and the list of runs is the history. Two
//! journals have the same events up to the end of the last run that both know.

use std::fmt;
use std::sync::Arc;

use crate::error::Refused;
use crate::proto;

/// The most runs with events that are stored and named. Older ones are only known to be older.
pub(crate) const RUNS_MAX: usize = 1_000;

/// An id that no other journal has.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct JournalId(pub [u8; 16]);

impl fmt::Display for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |part: &[u8]| part.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let id = &self.0;
        let parts = [hex(&id[..4]), hex(&id[4..6]), hex(&id[6..8]), hex(&id[8..10]), hex(&id[10..])];
        f.write_str(&parts.join("-"))
    }
}

impl fmt::Debug for JournalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A run: the events that a publisher appended from one start to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// The number of the epoch; the first is 0, and an unclean start raises it.
    pub epoch: i32,
    /// The first offset.
    pub start: i64,
    /// An id that no other run has, of this journal or of a copy of it; 0 for events of versions without such ids.
    pub run: u64,
}

impl Epoch {
    pub(crate) fn of_proto(epoch: &proto::Epoch) -> Epoch {
        Epoch { epoch: epoch.epoch, start: epoch.start, run: epoch.run }
    }

    pub(crate) fn to_proto(self) -> proto::Epoch {
        proto::Epoch { epoch: self.epoch, start: self.start, run: self.run }
    }
}

/// A journal as a consumer sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalView {
    /// Its id.
    pub id: JournalId,
    /// Its runs, ascending; at least one.
    pub epochs: Arc<[Epoch]>,
    /// The first offset of the journal.
    pub start: i64,
    /// The offset behind the last visible event.
    pub end: i64,
}

/// The history that a consumer has received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The journal's id.
    pub journal: JournalId,
    /// The epoch of the last event.
    pub epoch: i32,
    /// The offset behind it.
    pub offset: i64,
    /// The runs of the events before it, ascending; empty if it does not know them.
    pub runs: Vec<Epoch>,
}

impl JournalView {
    /// The epoch of the event before an offset; the first epoch if there is none.
    pub fn epoch_before(&self, offset: i64) -> i32 {
        self.runs_before(offset).last().or(self.epochs.first()).map_or(0, |epoch| epoch.epoch)
    }

    /// The runs of the events before an offset.
    pub fn runs_before(&self, offset: i64) -> &[Epoch] {
        &self.epochs[..self.epochs.partition_point(|run| run.start < offset)]
    }

    /// The offset behind the last event of an epoch, or of the last epoch before it that the journal has.
    fn end_of(&self, epoch: i32) -> i64 {
        let next = self.epochs.iter().find(|later| later.epoch > epoch);
        next.map_or(self.end, |next| next.start.min(self.end))
    }

    /// Refuses a consumer if the journal does not have what it has received.
    ///
    /// # Errors
    /// See the module.
    pub fn check_received(&self, received: &Received) -> Result<(), Refused> {
        if received.journal != self.id {
            return Err(Refused::JournalReplaced { was: received.journal, now: self.id });
        }
        let knows_runs = received.runs.iter().any(|run| run.run != 0);
        let common_end = match knows_runs {
            true => self.common_end(&received.runs, received.offset),
            false => self.end_of(received.epoch),
        };
        if received.offset > common_end {
            // At an offset that retention has removed no consumer can continue.
            return Err(Refused::Diverged { at: common_end.max(self.start) });
        }
        Ok(())
    }

    /// Returns the offset before which this journal has the events of another history, which ends at `offset`.
    fn common_end(&self, runs: &[Epoch], offset: i64) -> i64 {
        for (index, run) in runs.iter().enumerate().rev() {
            if let Some(own) = self.epochs.iter().position(|own| own == run) {
                let left_at =
                    |runs: &[Epoch], index: usize, end| runs.get(index + 1).map_or(end, |next| next.start);
                return left_at(runs, index, offset).min(left_at(&self.epochs, own, self.end)).min(self.end);
            }
        }
        runs.first().map_or(0, |first| first.start.min(self.end))
    }

    /// Refuses to read at an offset that the journal does not have.
    ///
    /// # Errors
    /// [`Refused::OutOfRange`].
    pub fn check_offset(&self, offset: i64) -> Result<(), Refused> {
        match (self.start..=self.end).contains(&offset) {
            true => Ok(()),
            false => Err(Refused::OutOfRange { offset, start: self.start, end: self.end }),
        }
    }
}

/// Begins a run of a journal whose events end at `end`. It was closed in order at `closed_at`, or not if `None`.
pub(crate) fn reopen(epochs: &mut Vec<Epoch>, closed_at: Option<i64>, end: i64, run: u64) {
    // Events that other processes appended after an orderly close belong to this run: a copy of the directory may have other
    // ones. A journal that has lost events since was not closed in order.
    let closed_at = closed_at.filter(|closed_at| *closed_at <= end);
    begin_run(epochs, closed_at.unwrap_or(end), closed_at.is_some(), run);
}

/// Adds a run that begins at `start`, in the next epoch if the start is no orderly one.
fn begin_run(epochs: &mut Vec<Epoch>, start: i64, is_clean: bool, run: u64) {
    let last = epochs.iter().map(|one| one.epoch).max();
    let epoch = last.map_or(0, |last| if is_clean { last } else { last.saturating_add(1) });
    // Runs that began at `start` or later have no events.
    epochs.retain(|one| one.start < start);
    epochs.push(Epoch { epoch, start, run });
    let too_many = epochs.len().saturating_sub(RUNS_MAX);
    epochs.drain(..too_many);
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use proptest::prelude::*;

    fn id(name: &str) -> JournalId {
        let mut id = [0; 16];
        id[..name.len()].copy_from_slice(name.as_bytes());
        JournalId(id)
    }

    fn view(start: i64, end: i64, epochs: &[(i32, i64)]) -> JournalView {
        let epochs = epochs.iter().map(|&(epoch, start)| Epoch { epoch, start, run: 0 }).collect();
        JournalView { id: id("A"), epochs, start, end }
    }

    fn check(journal: &JournalView, received: &[(&str, i32, i64)], expect: Expect) {
        let line = |&(name, epoch, offset): &(&str, i32, i64)| {
            let received = Received { journal: id(name), epoch, offset, runs: Vec::new() };
            let outcome =
                journal.check_received(&received).and_then(|()| journal.check_offset(offset)).map_or_else(
                    |refused| format!("{refused:?}"),
                    |()| format!("resumes, last epoch {}", journal.epoch_before(offset)),
                );
            format!("({name}, {epoch}, {offset}): {outcome}\n")
        };
        expect.assert_eq(&received.iter().map(line).collect::<String>());
    }

    #[test]
    fn a_consumer_resumes_where_the_journal_still_has_what_it_received() {
        let journal = view(10, 100, &[(0, 0), (1, 40), (3, 70)]);
        let received = [
            ("A", 0, 10),
            ("A", 0, 40),
            ("A", 0, 41),
            ("A", 1, 70),
            ("A", 2, 71),
            ("A", 3, 100),
            ("A", 3, 101),
            ("A", 4, 101),
            ("A", 0, 9),
            ("B", 0, 10),
        ];
        check(
            &journal,
            &received,
            expect![[r#"
                (A, 0, 10): resumes, last epoch 0
                (A, 0, 40): resumes, last epoch 0
                (A, 0, 41): Diverged { at: 40 }
                (A, 1, 70): resumes, last epoch 1
                (A, 2, 71): Diverged { at: 70 }
                (A, 3, 100): resumes, last epoch 3
                (A, 3, 101): Diverged { at: 100 }
                (A, 4, 101): Diverged { at: 100 }
                (A, 0, 9): OutOfRange { offset: 9, start: 10, end: 100 }
                (B, 0, 10): JournalReplaced { was: 42000000-0000-0000-0000-000000000000, now: 41000000-0000-0000-0000-000000000000 }
            "#]],
        );
    }

    /// Compares histories of a consumer with a journal of 100 events whose runs are `own`.
    fn check_runs(own: &[(u64, i64)], cases: &[(&[(u64, i64)], i64)], expect: Expect) {
        let runs = |runs: &[(u64, i64)]| -> Vec<Epoch> {
            runs.iter().map(|&(run, start)| Epoch { epoch: 0, start, run }).collect()
        };
        let journal = JournalView { id: id("A"), epochs: runs(own).into(), start: 0, end: 100 };
        let line = |&(read, offset): &(&[(u64, i64)], i64)| {
            let received = Received { journal: id("A"), epoch: 0, offset, runs: runs(read) };
            format!("{read:?} to {offset}: {:?}\n", journal.check_received(&received))
        };
        expect.assert_eq(&cases.iter().map(line).collect::<String>());
    }

    #[test]
    fn a_history_is_known_by_its_runs() {
        check_runs(
            &[(7, 0), (8, 40), (9, 70)],
            &[
                (&[(7, 0)], 40),
                (&[(7, 0), (8, 40)], 70),
                (&[(7, 0), (8, 40), (9, 70)], 100),
                // It has more of a run than the journal.
                (&[(7, 0)], 41),
                (&[(7, 0), (8, 40), (9, 70)], 101),
                // It has a run that the journal does not have: a copy continued from 40, one from 30, and one differs from
                // the beginning.
                (&[(7, 0), (6, 40)], 50),
                (&[(7, 0), (6, 30)], 50),
                (&[(5, 0)], 50),
                // It names a run of versions without ids.
                (&[(0, 0)], 100),
                (&[(0, 0), (8, 40)], 50),
            ],
            expect![[r#"
                [(7, 0)] to 40: Ok(())
                [(7, 0), (8, 40)] to 70: Ok(())
                [(7, 0), (8, 40), (9, 70)] to 100: Ok(())
                [(7, 0)] to 41: Err(Diverged { at: 40 })
                [(7, 0), (8, 40), (9, 70)] to 101: Err(Diverged { at: 100 })
                [(7, 0), (6, 40)] to 50: Err(Diverged { at: 40 })
                [(7, 0), (6, 30)] to 50: Err(Diverged { at: 30 })
                [(5, 0)] to 50: Err(Diverged { at: 0 })
                [(0, 0)] to 100: Ok(())
                [(0, 0), (8, 40)] to 50: Ok(())
            "#]],
        );
    }

    /// A journal's directory, which is copied, restored, or loses its end at a power cut.
    #[derive(Debug, Clone)]
    struct Copy {
        /// Unique numbers, one for each event.
        events: Vec<u32>,
        epochs: Vec<Epoch>,
    }

    impl Copy {
        fn view(&self) -> JournalView {
            JournalView {
                id: id("A"),
                epochs: self.epochs.clone().into(),
                start: 0,
                end: self.events.len() as i64,
            }
        }
    }

    proptest! {
        /// Copies of a journal are made at any time, continue independently, lose their ends, and are opened after an orderly
        /// close or without one. A consumer that has received events of one copy resumes at another only if that has all of them.
        #[test]
        fn nothing_that_is_of_another_history_goes_unnoticed(
            steps in prop::collection::vec((any::<prop::sample::Index>(), 0i64..8, 0usize..6, any::<bool>()), 1..12),
        ) {
            let mut copies = vec![Copy { events: Vec::new(), epochs: Vec::new() }];
            let mut seen: Vec<(Received, Vec<u32>)> = Vec::new();
            let (mut number, mut run) = (0, 0);
            for (from, appended, lost, is_clean) in steps {
                let mut copy = from.get(&copies).clone();
                if !is_clean {
                    copy.events.truncate(copy.events.len().saturating_sub(lost));
                }
                run += 1;
                begin_run(&mut copy.epochs, copy.events.len() as i64, is_clean, run);
                for _ in 0..appended {
                    copy.events.push(number);
                    number += 1;
                    let (view, offset) = (copy.view(), copy.events.len() as i64);
                    let (epoch, runs) = (view.epoch_before(offset), view.runs_before(offset).to_vec());
                    seen.push((Received { journal: id("A"), epoch, offset, runs }, copy.events.clone()));
                    // A copy may be made while it is open.
                    copies.push(copy.clone());
                }
                copies.push(copy);
            }
            for copy in &copies {
                for (received, had) in &seen {
                    let common = copy.events.iter().zip(had).take_while(|(one, other)| one == other).count();
                    let wanted = if common == had.len() { Ok(()) } else { Err(Refused::Diverged { at: common as i64 }) };
                    prop_assert_eq!(copy.view().check_received(received), wanted, "{:?} in {:?}", received, copy);
                }
            }
        }
    }
}
