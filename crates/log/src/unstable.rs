//! Transactions that keep offsets from being stable. These are open transactions, and those with a marker behind the high
//! watermark: the marker may still be cut off.

use mainstem_records::ProducerId;
use std::collections::BTreeSet;

/// No offset is unstable.
pub(crate) const ALL_STABLE: i64 = i64::MAX;

/// The open and the recently ended transactions of one log.
#[derive(Debug, Clone)]
pub(crate) struct Unstable {
    /// First offset and producer of each open transaction.
    ongoing: BTreeSet<(i64, ProducerId)>,
    /// First offset, and offset of the marker, of each transaction that ended behind the high watermark.
    unreplicated: BTreeSet<(i64, i64)>,
    /// The lowest of their first offsets. Appends and reads look at nothing else.
    first: i64,
}

impl Default for Unstable {
    fn default() -> Unstable {
        Unstable { ongoing: BTreeSet::new(), unreplicated: BTreeSet::new(), first: ALL_STABLE }
    }
}

impl Unstable {
    /// The first offset that is not stable, or [`ALL_STABLE`].
    pub(crate) fn first(&self) -> i64 {
        self.first
    }

    /// First offset and producer of the open transactions, in the order of the offsets.
    pub(crate) fn ongoing(&self) -> impl Iterator<Item = (i64, ProducerId)> + '_ {
        self.ongoing.iter().copied()
    }

    /// The number of open transactions.
    pub(crate) fn ongoing_count(&self) -> usize {
        self.ongoing.len()
    }

    /// A producer's transaction begins.
    pub(crate) fn begin(&mut self, first_offset: i64, producer_id: ProducerId) {
        self.ongoing.insert((first_offset, producer_id));
        self.first = self.first.min(first_offset);
    }

    /// A producer's transaction ends by a marker.
    pub(crate) fn end(&mut self, first_offset: i64, producer_id: ProducerId, marker_offset: i64) {
        self.ongoing.remove(&(first_offset, producer_id));
        self.unreplicated.insert((first_offset, marker_offset));
    }

    /// A transaction is not known any more.
    pub(crate) fn forget(&mut self, first_offset: i64, producer_id: ProducerId) {
        self.ongoing.remove(&(first_offset, producer_id));
        self.update_first();
    }

    /// Markers before an offset are seen by everybody, or gone.
    pub(crate) fn settle_before(&mut self, offset: i64) {
        if !self.unreplicated.is_empty() {
            self.unreplicated.retain(|(_, marker)| *marker >= offset);
            self.update_first();
        }
    }

    /// Takes over from a look further back which transactions ended behind the high watermark.
    pub(crate) fn set_unreplicated(&mut self, other: Unstable) {
        self.unreplicated = other.unreplicated;
        self.update_first();
    }

    fn update_first(&mut self) {
        let ongoing = self.ongoing.first().map(|(first, _)| *first);
        let unreplicated = self.unreplicated.first().map(|(first, _)| *first);
        self.first = ongoing.into_iter().chain(unreplicated).min().unwrap_or(ALL_STABLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A transcript: `3+7` the transaction of producer 7 begins at 3, `3-7@9` it ends by a marker at 9, `<10` markers
    /// before 10 are settled. The answers: the first unstable offset after each, `.` for none.
    fn check(script: &str, expect: &str) {
        let mut unstable = Unstable::default();
        let number = |text: &str| text.parse::<i64>().unwrap();
        let producer_id = |text| ProducerId::new(number(text));
        let answers = script.split_whitespace().map(|word| {
            if let Some(offset) = word.strip_prefix('<') {
                unstable.settle_before(number(offset));
            } else if let Some((first, producer)) = word.split_once('+') {
                unstable.begin(number(first), producer_id(producer));
            } else {
                let (first, rest) = word.split_once('-').expect("first offset and producer");
                let (producer, marker) = rest.split_once('@').expect("producer and marker");
                unstable.end(number(first), producer_id(producer), number(marker));
            }
            match unstable.first() {
                ALL_STABLE => ".".into(),
                first => first.to_string(),
            }
        });
        assert_eq!(answers.collect::<Vec<_>>().join(" "), expect, "{script}");
    }

    #[test]
    fn a_transaction_is_unstable_until_its_marker_is_seen() {
        check("3+7 3-7@9 <9 <10", "3 3 3 .");
        check("3+7 5+8 3-7@9 <10 5-8@11 <12", "3 3 3 5 5 .");
        check("3+7 5+8 5-8@9 <10 3-7@11 <12", "3 3 3 3 3 .");
        check("3+7 3-7@9 10+7 <10 10-7@12 <20", "3 3 3 10 10 .");
        check("<5", ".");
    }
}
