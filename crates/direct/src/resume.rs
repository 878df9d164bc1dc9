//! Where a subscription goes on: what the consumer has read, held against the journal as it is now.
//!
//! ```text
//! epochs of the journal     0 ├───────────┤ 1 ├─────────┤ 2 ├──────▶ end
//! what the consumer says    (journal id, epoch, offset behind the last event received)
//!
//! another id                           JournalReplaced
//! offset beyond the end of its epoch   Diverged { at: that end }     (KIP-320)
//! offset below the first that is there OutOfRange
//! ```

use std::fmt;

use crate::error::Refused;

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

/// An epoch of a journal: from one unclean start to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// Its number; the first is 0.
    pub epoch: i32,
    /// Its first offset.
    pub start: i64,
}

/// A journal as a consumer sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalView {
    /// Its id.
    pub id: JournalId,
    /// Its epochs, ascending; at least one.
    pub epochs: Vec<Epoch>,
    /// The first offset that is there.
    pub start: i64,
    /// The offset behind the last visible event.
    pub end: i64,
}

/// What a consumer has received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Of which journal.
    pub journal: JournalId,
    /// The epoch of the last event.
    pub epoch: i32,
    /// The offset behind it.
    pub offset: i64,
}

impl JournalView {
    /// The epoch of the event before an offset; the first epoch if there is none.
    pub fn epoch_before(&self, offset: i64) -> i32 {
        let before = self.epochs.iter().rev().find(|epoch| epoch.start < offset);
        before.or(self.epochs.first()).map_or(0, |epoch| epoch.epoch)
    }

    /// The offset behind the last event of an epoch, or of the last one before it that the journal has.
    fn end_of(&self, epoch: i32) -> i64 {
        let next = self.epochs.iter().find(|later| later.epoch > epoch);
        next.map_or(self.end, |next| next.start.min(self.end))
    }

    /// Refuses what was received if the journal has it no more.
    ///
    /// # Errors
    /// See the module.
    pub fn check_received(&self, received: &Received) -> Result<(), Refused> {
        if received.journal != self.id {
            return Err(Refused::JournalReplaced { was: received.journal, now: self.id });
        }
        let epoch_end = self.end_of(received.epoch);
        if received.offset > epoch_end {
            return Err(Refused::Diverged { at: epoch_end });
        }
        Ok(())
    }

    /// Refuses to read at an offset that is not there.
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
        let epochs = epochs.iter().map(|&(epoch, start)| Epoch { epoch, start }).collect();
        JournalView { id: id("A"), epochs, start, end }
    }

    fn check(journal: &JournalView, received: &[(&str, i32, i64)], expect: Expect) {
        let line = |&(name, epoch, offset): &(&str, i32, i64)| {
            let received = Received { journal: id(name), epoch, offset };
            let outcome =
                journal.check_received(&received).and_then(|()| journal.check_offset(offset)).map_or_else(
                    |refused| format!("{refused:?}"),
                    |()| format!("goes on, last epoch {}", journal.epoch_before(offset)),
                );
            format!("({name}, {epoch}, {offset}): {outcome}\n")
        };
        expect.assert_eq(&received.iter().map(line).collect::<String>());
    }

    #[test]
    fn a_consumer_goes_on_where_the_journal_still_has_what_it_received() {
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
                (A, 0, 10): goes on, last epoch 0
                (A, 0, 40): goes on, last epoch 0
                (A, 0, 41): Diverged { at: 40 }
                (A, 1, 70): goes on, last epoch 1
                (A, 2, 71): Diverged { at: 70 }
                (A, 3, 100): goes on, last epoch 3
                (A, 3, 101): Diverged { at: 100 }
                (A, 4, 101): Diverged { at: 100 }
                (A, 0, 9): OutOfRange { offset: 9, start: 10, end: 100 }
                (B, 0, 10): JournalReplaced { was: 42000000-0000-0000-0000-000000000000, now: 41000000-0000-0000-0000-000000000000 }
            "#]],
        );
    }

    proptest! {
        /// A journal is appended to, loses its end at a power cut, and is appended to again. Whatever a consumer has received at
        /// any time: it goes on only if all of it is still there.
        #[test]
        fn nothing_that_was_cut_goes_unnoticed(steps in prop::collection::vec((1i64..20, 0i64..10), 1..8)) {
            // The journal as (epoch, number) of each event; what consumers have seen of it at some time.
            let mut events: Vec<(i32, u32)> = Vec::new();
            let mut epochs = vec![Epoch { epoch: 0, start: 0 }];
            let mut seen: Vec<(Received, Vec<(i32, u32)>)> = Vec::new();
            let mut number = 0;
            for (epoch, &(appended, lost)) in (0i32..).zip(&steps) {
                for _ in 0..appended {
                    events.push((epoch, number));
                    number += 1;
                    let view = JournalView { id: id("A"), epochs: epochs.clone(), start: 0, end: events.len() as i64 };
                    let offset = events.len() as i64;
                    let received = Received { journal: id("A"), epoch: view.epoch_before(offset), offset };
                    seen.push((received, events.clone()));
                }
                events.truncate(events.len().saturating_sub(lost as usize));
                epochs.retain(|epoch| epoch.start <= events.len() as i64);
                epochs.push(Epoch { epoch: epoch + 1, start: events.len() as i64 });
            }
            let now = JournalView { id: id("A"), epochs, start: 0, end: events.len() as i64 };
            for (received, had) in seen {
                let is_there = events.get(..had.len()) == Some(&had[..]);
                let goes_on = now.check_received(&received);
                prop_assert_eq!(goes_on.is_ok(), is_there, "{:?} in {:?}: {:?}", received, now, goes_on);
                if let Err(Refused::Diverged { at }) = goes_on {
                    let common = events.iter().zip(&had).take_while(|(one, other)| one == other).count();
                    prop_assert!(at as usize <= had.len());
                    prop_assert!(at as usize >= common, "nothing before {} differs", common);
                }
            }
        }
    }
}
