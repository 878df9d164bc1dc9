//! Transcripts: what callers want and brokers answer, and what comes of it.

use super::*;

fn t(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn refusal(code: ErrorCode) -> Error {
    Error::Broker { code, message: String::new(), what: String::new(), broker: String::new() }
}

fn ready(is_v2: bool) -> Transactions {
    let mut transactions = Transactions::new();
    transactions.initialized((7, 0), is_v2);
    transactions
}

fn open(is_v2: bool) -> Transactions {
    let mut transactions = ready(is_v2);
    transactions.begin().unwrap();
    transactions
}

/// What a call does in each state: the words of its error, or `ok`.
fn check(call: impl Fn(&mut Transactions) -> Result<(), Error>, expected: [&str; 6]) {
    let failed = refusal(ErrorCode::INVALID_RECORD);
    let fenced = refusal(ErrorCode::PRODUCER_FENCED);
    let states = [
        State::Uninitialized,
        State::Ready,
        State::Open,
        State::Failed(failed),
        State::Ending { commit: true },
        State::Fatal(fenced),
    ];
    for (state, expected) in states.into_iter().zip(expected) {
        let mut transactions = Transactions { state: state.clone(), ..ready(true) };
        let outcome = call(&mut transactions).map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        assert!(outcome.contains(expected), "{state:?}: {outcome}");
    }
}

#[test]
fn each_call_has_its_time() {
    check(|one| one.check_initialize(), ["ok", "before", "before", "before", "before", "FENCED"]);
    check(
        Transactions::begin,
        ["init_transactions", "ok", "before the next", "before the next", "before", "FENCED"],
    );
    check(|one| one.check_open(), ["begin a", "begin a", "ok", "has to be aborted", "being ended", "FENCED"]);
    check(Transactions::begin_commit, ["begin a", "begin a", "ok", "has to be aborted", "ok", "FENCED"]);
    check(Transactions::begin_abort, ["no transaction", "no transaction", "ok", "ok", "ok", "FENCED"]);
}

#[test]
fn with_version_1_the_coordinator_hears_of_partitions_first() {
    let mut transactions = open(false);
    assert!(!transactions.may_send(&t(0)) && !transactions.may_send(&t(1)));
    let first = transactions.begin_adding().unwrap();
    assert_eq!(first, BTreeSet::from([t(0), t(1)]));
    assert!(!transactions.may_send(&t(2)));
    assert_eq!(transactions.begin_adding(), None, "one at a time");
    transactions.was_added(first, Ok(()));
    assert!(transactions.may_send(&t(0)));
    assert_eq!(transactions.begin_adding(), Some(BTreeSet::from([t(2)])));
    transactions.begin_commit().unwrap();
    assert_eq!(transactions.end(), Ok(End::Ask { name: (7, 0), needs_epoch: false }));
    transactions.ended(None);
    transactions.begin().unwrap();
    assert!(!transactions.may_send(&t(0)), "the next transaction knows no partition");
}

#[test]
fn with_version_2_each_end_gives_a_new_epoch() {
    let mut transactions = open(true);
    assert!(transactions.may_send(&t(0)));
    assert_eq!(transactions.begin_adding(), None);
    transactions.begin_commit().unwrap();
    assert!(transactions.may_send(&t(0)), "what waits is sent first");
    assert!(transactions.check_open().is_err(), "but nothing more is taken");
    assert_eq!(transactions.end(), Ok(End::Ask { name: (7, 0), needs_epoch: false }));
    transactions.ended(Some((7, 1)));
    assert_eq!(transactions.name(), Some((7, 1)));
}

#[test]
fn a_transaction_of_which_nobody_has_heard_needs_no_end() {
    for is_v2 in [false, true] {
        let mut transactions = open(is_v2);
        transactions.begin_commit().unwrap();
        assert_eq!(transactions.end(), Ok(End::Nothing));
        transactions.ended(None);
        transactions.begin().unwrap();
        transactions.touch();
        transactions.begin_abort().unwrap();
        assert!(matches!(transactions.end(), Ok(End::Ask { .. })), "offsets were sent");
    }
}

#[test]
fn after_a_failure_it_can_only_be_aborted() {
    for (is_v2, needs_epoch) in [(false, true), (true, false)] {
        let mut transactions = open(is_v2);
        transactions.touch();
        transactions.batch_failed(&refusal(ErrorCode::INVALID_RECORD));
        assert!(!transactions.may_send(&t(0)));
        let refused = transactions.begin_commit().unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Abortable);
        transactions.begin_abort().unwrap();
        assert_eq!(transactions.end(), Ok(End::Ask { name: (7, 0), needs_epoch }));
        transactions.ended(Some((7, 1)));
        transactions.begin().unwrap();
        assert_eq!(transactions.check_open(), Ok(()));
    }
}

#[test]
fn what_fails_while_it_is_committed_is_told() {
    let mut transactions = open(true);
    transactions.begin_commit().unwrap();
    transactions.batch_failed(&refusal(ErrorCode::MESSAGE_TOO_LARGE));
    assert_eq!(transactions.end().unwrap_err().class(), ErrorClass::Abortable);
    transactions.begin_abort().unwrap();
    transactions.batch_failed(&refusal(ErrorCode::MESSAGE_TOO_LARGE));
    assert!(matches!(transactions.end(), Ok(End::Nothing)), "what is aborted cannot fail");
}

#[test]
fn who_is_fenced_is_done() {
    let mut transactions = open(true);
    transactions.failed(&refusal(ErrorCode::INVALID_PRODUCER_EPOCH));
    assert_eq!(transactions.check_open().unwrap_err().class(), ErrorClass::Abortable, "it may be its own");
    transactions.failed(&refusal(ErrorCode::PRODUCER_FENCED));
    assert_eq!(transactions.begin_abort().unwrap_err().class(), ErrorClass::Fatal);
}
