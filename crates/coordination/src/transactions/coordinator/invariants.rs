//! Invariants of the coordinator, which hold between any two calls: [`TransactionCoordinator::check`].

use std::collections::BTreeMap;

use mainstem_records::ProducerId;

use super::super::deadlines::Due;
use super::super::image::Image;
use super::super::io::{Asked, Usage, Written};
use super::super::memory;
use super::super::served::Partition;
use super::super::state::State;
use super::super::transaction::{Pending, Transaction};
use super::TransactionCoordinator;

impl TransactionCoordinator {
    /// Asserts what holds between any two calls, whatever clients, time and the log have done. It looks at everything
    /// there is, so tests and simulations call it, and no request does.
    ///
    /// # Panics
    /// If something does not hold.
    pub fn check(&self) {
        self.check_counts();
        self.check_deadlines();
        self.check_asked();
        self.check_producers();
        for partition in self.partitions.values() {
            self.check_appends(partition);
            check_markers(partition);
            for (id, transaction) in &partition.transactions {
                assert_eq!(*id, transaction.id, "a transactional id is found under another one");
                check_transaction(transaction);
                if partition.service.loaded {
                    check_time_out(transaction);
                }
            }
        }
    }

    fn transactions_there(&self) -> impl Iterator<Item = &Transaction> {
        self.partitions.values().flat_map(|partition| partition.transactions.values())
    }

    /// Checks that the totals are right. A total that is too high refuses producers for ever; one that is too low lets clients fill the
    /// memory.
    fn check_counts(&self) {
        assert_eq!(self.usage, self.recounted(), "what is counted, and what is there");
    }

    fn recounted(&self) -> Usage {
        let idempotent = self.asked.values().filter(|asked| matches!(asked, Asked::Idempotent(_))).count();
        let bytes: usize = self.transactions_there().map(memory::transaction).sum();
        Usage {
            transactions: self.transactions_there().count(),
            bytes: bytes + idempotent * memory::PRODUCER_ID,
        }
    }

    /// Checks deadlines and their entries. Without its entry a deadline never fires: a transaction would never time out, or a marker never
    /// be written again. An entry without a deadline has no owner.
    fn check_deadlines(&self) {
        let mut slots = Vec::new();
        for (&partition, served) in &self.partitions {
            let service = &served.service;
            slots.push((service.time_outs_ms, Due::TimeOuts { partition }));
            slots.push((service.expiry_ms, Due::Expiry { partition }));
            let looks = service.time_outs_ms.is_some() && service.expiry_ms.is_some();
            assert_eq!(looks, service.loaded, "no transaction of partition {partition} times out or expires");
            for (id, transaction) in &served.transactions {
                let wait = transaction.waiting.as_ref().and_then(|waiting| waiting.due_ms);
                slots.push((wait, Due::Wait { partition, id: id.clone() }));
                slots.push((transaction.retry_ms, Due::Retry { partition, id: id.clone() }));
            }
        }
        self.deadlines.check(slots.into_iter().filter_map(|(slot, due)| Some((slot?, due))));
    }

    /// Checks that the transactional ids that wait for a producer id are those for which one was requested.
    fn check_asked(&self) {
        let asked = self.asked.iter().filter_map(|(number, asked)| match asked {
            Asked::Transaction { partition, id } => Some((*number, *partition, &**id)),
            Asked::Idempotent(_) => None,
        });
        let mut waiting = Vec::new();
        for (index, partition) in &self.partitions {
            for (id, transaction) in &partition.transactions {
                if let Some(Pending::ProducerId { number, .. }) = transaction.pending {
                    waiting.push((number, *index, &**id));
                }
            }
        }
        waiting.sort_unstable();
        assert_eq!(asked.collect::<Vec<_>>(), waiting, "producer ids that were asked for, and who waits");
        assert!(
            self.asked.keys().all(|number| *number <= self.tickets),
            "a ticket is above {}",
            self.tickets
        );
    }

    /// Checks that no two transactional ids have the same producer id: one would fence the other.
    fn check_producers(&self) {
        let mut owners: BTreeMap<ProducerId, &str> = BTreeMap::new();
        for transaction in self.transactions_there().filter(|transaction| transaction.stored) {
            let other = owners.insert(transaction.image.producer_id, &transaction.id);
            assert_eq!(other, None, "{} has the same producer id: {transaction:?}", transaction.id);
        }
    }

    /// Checks that each change that waits for a record has one append, and that each append has a change. Otherwise the change would never
    /// be made, or the outcome would meet another one.
    fn check_appends(&self, partition: &Partition) {
        let mut appended: Vec<(&str, &str)> = Vec::new();
        for written in partition.outstanding.appends.values() {
            match written {
                Written::Image(id) => appended.push((id, "record")),
                Written::Tombstones(ids) => appended.extend(ids.iter().map(|id| (&**id, "tombstone"))),
            }
        }
        appended.sort_unstable();
        let waiting =
            partition.transactions.iter().filter_map(|(id, transaction)| match transaction.pending {
                Some(Pending::Record { .. }) => Some((&**id, "record")),
                Some(Pending::Tombstone) => Some((&**id, "tombstone")),
                Some(Pending::ProducerId { .. }) | None => None,
            });
        assert_eq!(appended, waiting.collect::<Vec<_>>(), "records on their way, and who waits for them");
        let last = partition.outstanding.appends.last_key_value().map(|(number, _)| *number);
        assert!(last.is_none_or(|last| last <= self.tickets), "an append is above {}", self.tickets);
    }
}

/// Checks that markers in flight belong to transactions that wait for them: other outcomes are ignored.
fn check_markers(partition: &Partition) {
    let written: BTreeMap<u64, &str> =
        partition.outstanding.markers.iter().map(|(number, id)| (*number, &**id)).collect();
    let sending = partition.transactions.iter().filter_map(|(id, transaction)| {
        let sending = transaction.sending.as_ref()?;
        Some((sending.number, &**id))
    });
    assert_eq!(written, sending.collect::<BTreeMap<_, _>>(), "markers on their way, and whose they are");
}

fn check_transaction(transaction: &Transaction) {
    let image = &transaction.image;
    if !transaction.stored {
        // Nothing would ever remove it.
        assert!(transaction.pending.is_some(), "no record knows of it, and none will: {transaction:?}");
        assert_eq!(*image, Image::unwritten(), "no record says so of {}", transaction.id);
    }
    // They would get the markers of the next transaction.
    let has_left = image.state.is_idle() && !image.partitions.is_empty();
    assert!(!has_left, "a transaction that is over has partitions: {transaction:?}");
    check_end(transaction);
    if let Some(Pending::Record { target, .. }) = &transaction.pending {
        check_change(image, target);
    }
}

/// Checks that waiting requests, retries and markers exist only while a transaction ends.
fn check_end(transaction: &Transaction) {
    let image = &transaction.image;
    let is_ending = image.state.is_ending();
    assert!(transaction.waiting.is_none() || is_ending, "a request waits for nothing: {transaction:?}");
    assert!(transaction.retry_ms.is_none() || is_ending, "nothing is to be tried again: {transaction:?}");
    let Some(sending) = &transaction.sending else { return };
    let has_markers = is_ending && transaction.pending.is_none() && !image.partitions.is_empty();
    assert!(has_markers, "there are no markers to write: {transaction:?}");
    // The last stable offset of these partitions would stay where it is.
    let is_retried = sending.again.is_empty() || transaction.retry_ms.is_some();
    assert!(is_retried, "markers are not written again: {transaction:?}");
}

/// Checks that a producer's epoch never decreases: otherwise a fenced producer could write again.
fn check_change(image: &Image, target: &Image) {
    let follows = image.state.may_become(target.state);
    assert!(follows, "{:?} does not become {:?}", image.state, target.state);
    let is_later = target.producer_id != image.producer_id || target.producer_epoch >= image.producer_epoch;
    assert!(is_later, "the epoch goes back: {image:?} becomes {target:?}");
}

/// Checks that an ongoing transaction with a time-out has a deadline. Without one, `read_committed` readers of its partitions would stop
/// at it for ever.
fn check_time_out(transaction: &Transaction) {
    let image = &transaction.image;
    let has_end = image.state == State::Ongoing && image.time_ms().is_some();
    assert_eq!(transaction.times_out_ms.is_some(), has_end, "the time of the transaction: {transaction:?}");
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use mainstem_records::ProducerEpoch;

    use super::*;
    use crate::transactions::tests::transcript::played;
    use crate::transactions::transaction::Transactions;

    /// The state holds an ongoing transaction; an ending one, of whose two markers one has failed; a transactional id whose first record is
    /// in flight; one that waits for a producer id; and a producer without transactions that waits for an id.
    const SCRIPT: &str = "
        init A id=going
        add B id=going t-0 t-1
        init C id=ending
        add D id=ending pid=1001 t-0 t-1
        hold-markers
        end E id=ending pid=1001 commit
        mark 8 t-0 NOT_LEADER_OR_FOLLOWER
        hold
        init F id=writing
        hold-ids
        init G id=asking
        init H idempotent
    ";

    /// Returns the panic message of `check` after `break_it`. Totals are corrected before, so that they do not reveal the fault.
    fn verdict(break_it: impl FnOnce(&mut TransactionCoordinator)) -> Option<String> {
        let mut coordinator = played(SCRIPT);
        coordinator.check();
        break_it(&mut coordinator);
        coordinator.usage = coordinator.recounted();
        said(&coordinator)
    }

    fn said(coordinator: &TransactionCoordinator) -> Option<String> {
        let panic = catch_unwind(AssertUnwindSafe(|| coordinator.check())).err()?;
        Some(*panic.downcast::<String>().expect("the message has values in it"))
    }

    #[track_caller]
    fn assert_found(expect: &str, break_it: impl FnOnce(&mut TransactionCoordinator)) {
        let found = verdict(break_it);
        assert!(found.as_ref().is_some_and(|found| found.contains(expect)), "{expect:?}: {found:?}");
    }

    fn served(coordinator: &mut TransactionCoordinator) -> &mut Partition {
        coordinator.partitions.get_mut(&0).expect("it is served")
    }

    fn transactions(coordinator: &mut TransactionCoordinator) -> &mut Transactions {
        &mut served(coordinator).transactions
    }

    fn transaction<'c>(coordinator: &'c mut TransactionCoordinator, id: &str) -> &'c mut Transaction {
        transactions(coordinator).get_mut(id).expect("it is there")
    }

    fn target(coordinator: &mut TransactionCoordinator) -> &mut Image {
        match &mut transaction(coordinator, "writing").pending {
            Some(Pending::Record { target, .. }) => target,
            other => panic!("its record is on its way: {other:?}"),
        }
    }

    #[test]
    fn a_sound_coordinator_has_no_fault() {
        assert_eq!(verdict(|_| {}), None);
    }

    #[test]
    fn counts_that_drift_are_found() {
        let breaks: [fn(&mut TransactionCoordinator); 2] =
            [|coordinator| coordinator.usage.transactions += 1, |coordinator| coordinator.usage.bytes -= 1];
        for break_it in breaks {
            let mut coordinator = played(SCRIPT);
            break_it(&mut coordinator);
            let found = said(&coordinator).expect("it is found");
            assert!(found.contains("what is counted, and what is there"), "{found}");
        }
    }

    #[test]
    fn deadlines_that_are_lost_are_found() {
        assert_found(
            "deadlines that are set",
            |coordinator| {
                while coordinator.deadlines.pop(u64::MAX).is_some() {}
            },
        );
        assert_found("times out or expires", |coordinator| served(coordinator).service.expiry_ms = None);
        assert_found("markers are not written again", |coordinator| {
            let mut retry_ms = transaction(coordinator, "ending").retry_ms.take();
            let due = Due::Retry { partition: 0, id: "ending".into() };
            coordinator.deadlines.cancel(&mut retry_ms, due);
        });
        assert_found("the time of the transaction", |coordinator| {
            transaction(coordinator, "going").times_out_ms = None;
        });
    }

    #[test]
    fn what_was_never_asked_for_is_found() {
        assert_found("producer ids that were asked for", |coordinator| coordinator.asked.clear());
        assert_found("records on their way", |coordinator| {
            served(coordinator).outstanding.appends.clear();
        });
        assert_found("markers on their way", |coordinator| {
            served(coordinator).outstanding.markers.clear();
        });
        assert_found("and none will", |coordinator| {
            served(coordinator).outstanding.appends.clear();
            transaction(coordinator, "writing").pending = None;
        });
    }

    #[test]
    fn producers_that_fence_each_other_are_found() {
        assert_found("has the same producer id", |coordinator| {
            let other = transaction(coordinator, "ending").image.producer_id;
            transaction(coordinator, "going").image.producer_id = other;
        });
    }

    #[test]
    fn states_that_do_not_fit_are_found() {
        assert_found("that is over has partitions", |coordinator| {
            transaction(coordinator, "going").image.state = State::CompleteCommit;
        });
        assert_found("nothing is to be tried again", |coordinator| {
            transaction(coordinator, "ending").image.state = State::Ongoing;
        });
        assert_found("there are no markers to write", |coordinator| {
            transaction(coordinator, "ending").image.partitions.clear();
        });
    }

    #[test]
    fn changes_that_do_not_follow_are_found() {
        assert_found("does not become", |coordinator| target(coordinator).state = State::CompleteCommit);
        assert_found("the epoch goes back", |coordinator| {
            let image = Image::unwritten();
            let target = target(coordinator);
            target.producer_id = image.producer_id;
            target.producer_epoch = ProducerEpoch::new(image.producer_epoch.get() - 1);
        });
    }

    #[test]
    fn a_transactional_id_under_another_one_is_found() {
        assert_found("found under another one", |coordinator| {
            let transaction = transactions(coordinator).remove("going").expect("it is there");
            transactions(coordinator).insert("renamed".into(), transaction);
        });
    }
}
