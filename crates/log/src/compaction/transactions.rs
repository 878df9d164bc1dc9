//! Transactions as a compaction meets them while it walks over a log from its start. From here it knows which batches
//! belong to aborted transactions, and when the marker of one may be removed.

use crate::transaction_index::AbortedTransaction;
use mainstem_records::{ControlRecordType, ProducerId};
use std::collections::{HashMap, HashSet};

/// The transactions on the way through a log.
#[derive(Debug, Default)]
pub(crate) struct Transactions {
    /// By first offset, the last one first: transactions that the walk has not reached.
    ahead: Vec<AbortedTransaction>,
    /// Producers of committed transactions. The walk has met a batch of each.
    committed: HashSet<ProducerId>,
    /// By producer; true: the walk has met a batch of the transaction.
    aborted: HashMap<ProducerId, (AbortedTransaction, bool)>,
}

/// The meaning of a marker for the compaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marker {
    /// Nothing of its transaction is left, so that it may go when its time has come.
    pub(crate) can_go: bool,
    /// The aborted transaction that answers to readers still have to name.
    pub(crate) aborted: Option<AbortedTransaction>,
}

impl Transactions {
    /// Before the first batch; `aborted` are the transactions in the log's transaction indexes.
    pub(crate) fn new(mut aborted: Vec<AbortedTransaction>) -> Transactions {
        aborted.sort_unstable_by_key(|transaction| std::cmp::Reverse(transaction.first_offset));
        Transactions { ahead: aborted, ..Transactions::default() }
    }

    /// A batch of records: whether it belongs to an aborted transaction, so that no reader may have it.
    pub(crate) fn on_batch(
        &mut self,
        producer_id: ProducerId,
        is_transactional: bool,
        last_offset: i64,
    ) -> bool {
        self.reach(last_offset);
        if !is_transactional {
            return false;
        }
        match self.aborted.get_mut(&producer_id) {
            Some((_, met)) => {
                *met = true;
                true
            }
            None => {
                self.committed.insert(producer_id);
                false
            }
        }
    }

    /// Takes a control batch; `kind` is `None` if its record was left out before.
    ///
    /// An abort marker that is not in the indexes stays as long as a batch of its producer does. Without it the records would
    /// count as committed when the indexes are rebuilt.
    pub(crate) fn on_marker(
        &mut self,
        producer_id: ProducerId,
        kind: Option<ControlRecordType>,
        last_offset: i64,
    ) -> Marker {
        self.reach(last_offset);
        let (can_go, aborted) = match kind {
            Some(ControlRecordType::Abort) => {
                let met = self.aborted.remove(&producer_id).filter(|(_, met)| *met);
                let unknown = self.committed.remove(&producer_id);
                (met.is_none() && !unknown, met.map(|(transaction, _)| transaction))
            }
            Some(ControlRecordType::Commit) => (!self.committed.remove(&producer_id), None),
            Some(_) => (false, None),
            None => (true, None),
        };
        Marker { can_go, aborted }
    }

    fn reach(&mut self, offset: i64) {
        while let Some(next) = self.ahead.pop_if(|next| next.first_offset <= offset) {
            self.aborted.entry(next.producer_id).or_insert((next, false));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn aborted(producer: i64, first_offset: i64, last_offset: i64) -> AbortedTransaction {
        let producer_id = ProducerId::new(producer);
        AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset: last_offset + 1 }
    }

    /// A transcript: `p1@5` a batch of producer 1 ending at 5, `t1@5` within a transaction, `C1@6` commit, `A1@6` abort,
    /// `E1@6` a marker without its record. The answers: `drop` or `keep`, for a marker `go` or `stay`, with `!` when its
    /// transaction stays in the index.
    fn check(index: &[AbortedTransaction], script: &str, expect: &str) {
        let mut transactions = Transactions::new(index.to_vec());
        let answers = script.split_whitespace().map(|word| {
            let (producer, offset) = word[1..].split_once('@').expect("kind, producer, @, offset");
            let (producer, offset) = (ProducerId::new(producer.parse().unwrap()), offset.parse().unwrap());
            let kind = match &word[..1] {
                "p" | "t" => {
                    let dropped = transactions.on_batch(producer, word.starts_with('t'), offset);
                    return if dropped { "drop" } else { "keep" };
                }
                "C" => Some(ControlRecordType::Commit),
                "A" => Some(ControlRecordType::Abort),
                _ => None,
            };
            match transactions.on_marker(producer, kind, offset) {
                Marker { can_go: true, aborted: None } => "go",
                Marker { can_go: false, aborted: None } => "stay",
                Marker { can_go: false, aborted: Some(_) } => "stay!",
                Marker { can_go: true, aborted: Some(_) } => "lost",
            }
        });
        assert_eq!(answers.collect::<Vec<_>>().join(" "), expect, "{script}");
    }

    #[test]
    fn a_marker_stays_as_long_as_a_batch_of_its_transaction() {
        check(&[], "p1@0 t1@1 t2@2 C1@3 C1@4 C2@5 C3@6", "keep keep keep stay go stay go");
    }

    #[test]
    fn aborted_batches_go_and_their_marker_follows_in_the_next_round() {
        let index = [aborted(1, 10, 20), aborted(2, 12, 22)];
        check(
            &index,
            "t1@5 C1@6 t1@10 p1@11 t2@12 A1@20 t1@21 A2@22 C1@23",
            "keep stay drop keep drop stay! keep stay! stay",
        );
        check(&index, "A1@20 A2@22", "go go");
    }

    #[test]
    fn an_abort_that_no_index_knows_keeps_its_marker() {
        check(&[], "t1@5 A1@6 A1@7", "keep stay go");
    }

    #[test]
    fn a_marker_without_its_record_has_done_its_duty() {
        check(&[], "t1@5 E1@6", "keep go");
    }
}
