//! Records that were known to be committed, and the look whether they are still there.

use crate::journal::{EntryKind, InternalEntry, Start};

/// The records before an offset, which were committed, and the entries that their terms begin with: these say what came in the place of
/// records that are gone.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) offset: i64,
    /// The start of the entries: which terms begin before is not known.
    start: Start,
    begins: Vec<Begin>,
}

/// The first entry of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Begin {
    index: u64,
    term: u64,
    offset: i64,
}

impl Known {
    /// All records before an offset, of a group that begins at `start` and has these internal entries.
    pub(super) fn of(offset: i64, start: Start, entries: &[InternalEntry]) -> Known {
        Known { offset, start, begins: begins_before(offset, entries).collect() }
    }

    /// The offset from which on records are gone, as far as these internal entries say, in a group with entries from the `first` to the
    /// `last` index; `None`: none is.
    pub(super) fn gone_from(&self, entries: &[InternalEntry], (first, last): (u64, u64)) -> Option<i64> {
        let here: Vec<_> = begins_before(self.offset, entries).collect();
        let is_here = |begin: &&Begin| (first..=last).contains(&begin.index);
        let missing = self.begins.iter().filter(is_here).filter(|begin| !here.contains(begin));
        let may_precede = |begin: &Begin| begin.index <= self.start.index && begin.term <= self.start.term;
        let others = here.iter().filter(|begin| !self.begins.contains(begin) && !may_precede(begin));
        missing.chain(others).map(|begin| begin.offset).min()
    }
}

/// The beginnings of terms of which there are records before an offset.
fn begins_before(offset: i64, entries: &[InternalEntry]) -> impl Iterator<Item = Begin> {
    let is_before = move |entry: &&InternalEntry| entry.kind == EntryKind::NoOp && entry.offset < offset;
    entries.iter().filter(is_before).map(|entry| Begin {
        index: entry.index,
        term: entry.term,
        offset: entry.offset,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The entry that a term begins with may be in no log any more: others are in the place of the records behind it.
    #[test]
    fn records_are_gone_from_where_their_term_began() {
        let begin = |index, term, offset| InternalEntry {
            index,
            term,
            offset,
            kind: EntryKind::NoOp,
            data: Vec::new(),
        };
        let gone_from = |before: &[InternalEntry], here: &[InternalEntry], last| {
            Known::of(100, Start::default(), before).gone_from(here, (1, last))
        };
        let before = [begin(1, 1, 0), begin(52, 3, 50), begin(153, 4, 150)];
        assert_eq!(gone_from(&before, &before[..1], 40), None, "it has less");
        assert_eq!(gone_from(&before, &before[..2], 90), None);
        assert_eq!(
            gone_from(&before, &[before[0].clone(), before[1].clone(), begin(130, 5, 127)], 140),
            None
        );
        assert_eq!(
            gone_from(&before, &[before[0].clone(), before[1].clone(), begin(92, 5, 90)], 140),
            Some(90)
        );
        assert_eq!(gone_from(&before, &[before[0].clone(), begin(32, 5, 30)], 32), Some(30));
        // The next leader had records of the first term there.
        assert_eq!(gone_from(&before, &[before[0].clone(), begin(62, 5, 60)], 62), Some(50));
        assert_eq!(gone_from(&before, &before[..1], 52), Some(50));
        // What retention has removed is not gone.
        assert_eq!(Known::of(100, Start::default(), &before).gone_from(&before[1..2], (60, 101)), None);
        // Nor do terms that came before what was here say anything, where all is sent again.
        let start = Start { index: 160, term: 4, offset: 157 };
        let of_start = |here: &[InternalEntry]| Known::of(190, start, &[]).gone_from(here, (1, 200));
        assert_eq!(of_start(&before), None);
        assert_eq!(of_start(&[before[0].clone(), begin(92, 5, 90)]), Some(90));
    }
}
