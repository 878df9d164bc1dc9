//! Transcripts: calls and answers of brokers, and their effect.

use super::*;

fn t(partition: i32) -> TopicPartition {
    TopicPartition::new("t", partition)
}

fn refusal(code: ErrorCode) -> Error {
    Error::Broker { code, message: String::new(), what: String::new(), broker: String::new() }
}

fn ready(is_v2: bool) -> Transactions {
    let mut transactions = Transactions::new();
    transactions.initialized(name_of(7, 0), is_v2);
    transactions
}

fn open(is_v2: bool) -> Transactions {
    let mut transactions = ready(is_v2);
    transactions.begin().unwrap();
    transactions
}

/// Checks the outcome of a call in each state: the words of its error, or `ok`.
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
fn with_version_1_partitions_are_added_first() {
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
    assert_eq!(transactions.end(true), Ok(End::Ask(name_of(7, 0))));
    transactions.end_answered(Ok(None)).unwrap();
    assert_eq!(transactions.end(true), Ok(End::Nothing));
    transactions.ended(None).unwrap();
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
    assert_eq!(transactions.end(true), Ok(End::Ask(name_of(7, 0))));
    transactions.end_answered(Ok(Some(name_of(7, 1)))).unwrap();
    assert_eq!(transactions.end(true), Ok(End::Nothing));
    transactions.ended(None).unwrap();
    assert_eq!(transactions.name(), Some(name_of(7, 1)));
}

#[test]
fn a_transaction_of_which_no_broker_has_heard_needs_no_end() {
    for is_v2 in [false, true] {
        let mut transactions = open(is_v2);
        transactions.begin_commit().unwrap();
        assert_eq!(transactions.end(true), Ok(End::Nothing));
        transactions.ended(None).unwrap();
        transactions.begin().unwrap();
        transactions.touch();
        transactions.begin_abort().unwrap();
        assert!(matches!(transactions.end(false), Ok(End::Ask(_))), "offsets were sent");
    }
}

#[test]
fn after_a_failure_it_can_only_be_aborted() {
    for (is_v2, next) in [(false, End::NextEpoch(name_of(7, 0))), (true, End::Nothing)] {
        let mut transactions = open(is_v2);
        transactions.touch();
        transactions.batch_failed(&refusal(ErrorCode::INVALID_RECORD));
        assert!(!transactions.may_send(&t(0)));
        let refused = transactions.begin_commit().unwrap_err();
        assert_eq!(refused.class(), ErrorClass::Abortable);
        transactions.begin_abort().unwrap();
        assert_eq!(transactions.end(false), Ok(End::Ask(name_of(7, 0))));
        transactions.end_answered(Ok(None)).unwrap();
        assert_eq!(transactions.end(false), Ok(next));
        transactions.ended(Some(name_of(7, 1))).unwrap();
        transactions.begin().unwrap();
        assert_eq!(transactions.check_open(), Ok(()));
    }
}

#[test]
fn what_fails_while_it_is_committed_is_reported() {
    let mut transactions = open(true);
    transactions.begin_commit().unwrap();
    transactions.batch_failed(&refusal(ErrorCode::MESSAGE_TOO_LARGE));
    assert_eq!(transactions.end(true).unwrap_err().class(), ErrorClass::Abortable);
    transactions.begin_abort().unwrap();
    transactions.batch_failed(&refusal(ErrorCode::MESSAGE_TOO_LARGE));
    assert!(matches!(transactions.end(false), Ok(End::Nothing)), "what is aborted cannot fail");
}

#[test]
fn who_is_fenced_is_done() {
    let mut transactions = open(true);
    transactions.failed(&refusal(ErrorCode::INVALID_PRODUCER_EPOCH));
    assert_eq!(transactions.check_open().unwrap_err().class(), ErrorClass::Abortable, "it may be its own");
    transactions.failed(&refusal(ErrorCode::PRODUCER_FENCED));
    assert_eq!(transactions.begin_abort().unwrap_err().class(), ErrorClass::Fatal);
}

#[test]
fn what_was_refused_before_anything_began_can_be_aborted() {
    let refused = || refusal(ErrorCode::TOPIC_AUTHORIZATION_FAILED);
    let unheard_of = || Err(refusal(ErrorCode::INVALID_TXN_STATE));
    let adding_is_refused = |one: &mut Transactions| {
        one.may_send(&t(0));
        let partitions = one.begin_adding().unwrap();
        one.was_added(partitions, Err(refused()));
    };
    let offsets_are_refused = |one: &mut Transactions| {
        one.touch();
        one.failed(&refused());
    };
    // The caller has dropped the future, so that the outcome is not known.
    let offsets_have_no_answer = Transactions::touch;
    let ways: [&dyn Fn(&mut Transactions); 3] =
        [&adding_is_refused, &offsets_are_refused, &offsets_have_no_answer];
    for begin in ways {
        let mut transactions = open(false);
        begin(&mut transactions);
        transactions.begin_abort().unwrap();
        assert_eq!(
            transactions.end(false),
            Ok(End::Ask(name_of(7, 0))),
            "the answer may have been another before it was lost"
        );
        transactions.end_answered(unheard_of()).unwrap();
        assert_eq!(transactions.end(false), Ok(End::Nothing));
        transactions.ended(None).unwrap();
        transactions.begin().unwrap();
    }
}

#[test]
fn a_transaction_that_has_begun_cannot_be_unheard_of() {
    let mut transactions = open(false);
    transactions.may_send(&t(0));
    let partitions = transactions.begin_adding().unwrap();
    transactions.was_added(partitions, Ok(()));
    transactions.begin_commit().unwrap();
    assert_eq!(transactions.end(true), Ok(End::Ask(name_of(7, 0))));
    let unheard_of = refusal(ErrorCode::INVALID_TXN_STATE);
    let expected = Error::ProducerFailed { reason: Box::new(unheard_of.clone()) };
    assert_eq!(transactions.end_answered(Err(unheard_of)), Err(expected.clone()));
    assert_eq!(transactions.begin_abort(), Err(expected), "asking again would be answered alike");
}

#[test]
fn whether_it_is_committed_is_asked_until_it_is_known() {
    for answer in [None, Some(Err(late()))] {
        let mut transactions = open(true);
        transactions.may_send(&t(0));
        transactions.begin_commit().unwrap();
        assert_eq!(transactions.end(true), Ok(End::Ask(name_of(7, 0))));
        // None: the caller has dropped the future.
        if let Some(answer) = answer {
            transactions.end_answered(answer).unwrap_err();
        }
        let misused = transactions.begin_abort().unwrap_err();
        assert!(misused.to_string().contains("call commit_transaction again"), "{misused}");
        transactions.begin_commit().unwrap();
        assert_eq!(transactions.end(true), Ok(End::Ask(name_of(7, 0))));
        transactions.end_answered(Ok(Some(name_of(7, 1)))).unwrap();
        transactions.ended(None).unwrap();
        transactions.begin().unwrap();
    }
}

#[test]
fn a_commit_that_asked_for_nothing_yet_can_be_aborted_and_so_can_one_that_was_refused() {
    let mut transactions = open(true);
    transactions.may_send(&t(0));
    transactions.begin_commit().unwrap();
    transactions.begin_abort().unwrap();
    let misused = transactions.begin_commit().unwrap_err();
    assert!(misused.to_string().contains("call abort_transaction again"), "{misused}");
    let mut transactions = open(true);
    transactions.may_send(&t(0));
    transactions.begin_commit().unwrap();
    assert_eq!(transactions.end(true), Ok(End::Ask(name_of(7, 0))));
    transactions.end_answered(Err(refusal(ErrorCode::TRANSACTION_ABORTABLE))).unwrap_err();
    transactions.begin_abort().unwrap();
    assert_eq!(transactions.end(false), Ok(End::Ask(name_of(7, 0))));
}

#[test]
fn what_another_call_aborts_is_not_taken_for_committed() {
    let mut transactions = open(true);
    let term = transactions.term();
    transactions.may_send(&t(0));
    transactions.begin_commit().unwrap();
    transactions.begin_abort().unwrap();
    let lost = transactions.end(true).unwrap_err();
    assert!(lost.to_string().contains("another call"), "{lost}");
    assert_eq!(transactions.end(false), Ok(End::Ask(name_of(7, 0))));
    transactions.end_answered(Ok(Some(name_of(7, 1)))).unwrap();
    transactions.ended(None).unwrap();
    assert_eq!(transactions.end(true), Err(lost.clone()), "it is over");
    assert_eq!(transactions.ended_since(term, true), Some(Err(lost.clone())));
    assert_eq!(transactions.ended_since(term, false), Some(Ok(())), "it is aborted, by whatever");
    transactions.begin().unwrap();
    assert_eq!(transactions.end(false), Err(lost.clone()), "the next one is not its");
    assert_eq!(transactions.ended_since(term, false), Some(Ok(())));
    assert_eq!(transactions.ended_since(transactions.term(), true), None);
    transactions.begin_commit().unwrap();
    assert_eq!(transactions.end(true), Ok(End::Nothing));
    transactions.ended(None).unwrap();
    assert_eq!(transactions.ended_since(term + 1, true), Some(Ok(())));
    assert_eq!(transactions.ended_since(term, false), Some(Err(lost)), "which of them is not known any more");
}

#[test]
fn an_abort_that_is_refused_has_nothing_left_to_try() {
    let mut transactions = open(true);
    transactions.may_send(&t(0));
    transactions.begin_abort().unwrap();
    assert_eq!(transactions.end(false), Ok(End::Ask(name_of(7, 0))));
    let error = transactions.end_answered(Err(refusal(ErrorCode::TRANSACTION_ABORTABLE))).unwrap_err();
    check_class(&mut transactions, &error, ErrorClass::Fatal, false);
}

#[test]
fn the_next_epoch_is_asked_for_again_after_the_end() {
    let mut transactions = open(false);
    transactions.touch();
    transactions.batch_failed(&refusal(ErrorCode::INVALID_RECORD));
    transactions.begin_abort().unwrap();
    assert_eq!(transactions.end(false), Ok(End::Ask(name_of(7, 0))));
    transactions.end_answered(Ok(None)).unwrap();
    assert_eq!(transactions.end(false), Ok(End::NextEpoch(name_of(7, 0))));
    transactions.begin_abort().unwrap();
    assert_eq!(
        transactions.end(false),
        Ok(End::NextEpoch(name_of(7, 0))),
        "the coordinator does not know the old name any more"
    );
}

fn late() -> Error {
    Error::TimedOut { what: String::new(), after: std::time::Duration::ZERO, last: None }
}

fn unsupported() -> Error {
    Error::Unsupported { broker: String::new(), reason: String::new() }
}

/// Checks that the next calls allow what the class of an error says.
fn check_class(transactions: &mut Transactions, error: &Error, class: ErrorClass, commit: bool) {
    assert_eq!(error.class(), class, "{error}");
    match class {
        ErrorClass::Abortable => {
            assert_eq!(transactions.begin_commit().as_ref(), Err(error));
            assert_eq!(transactions.begin_abort(), Ok(()), "{error}");
        }
        ErrorClass::Fatal => {
            for again in [transactions.begin(), transactions.begin_commit(), transactions.begin_abort()] {
                assert_eq!(again.as_ref(), Err(error));
            }
        }
        ErrorClass::Retriable if commit => assert_eq!(transactions.begin_commit(), Ok(()), "{error}"),
        ErrorClass::Retriable => assert_eq!(transactions.begin_abort(), Ok(()), "{error}"),
        ErrorClass::Permanent => panic!("nothing of a transaction fails alone: {error}"),
    }
}

#[test]
fn what_fails_in_a_transaction_is_of_the_class_of_what_comes_next() {
    for (error, class) in [
        (refusal(ErrorCode::ILLEGAL_GENERATION), ErrorClass::Abortable),
        (refusal(ErrorCode::TOPIC_AUTHORIZATION_FAILED), ErrorClass::Abortable),
        (refusal(ErrorCode::FENCED_INSTANCE_ID), ErrorClass::Abortable),
        (refusal(ErrorCode::INVALID_PRODUCER_EPOCH), ErrorClass::Abortable),
        (refusal(ErrorCode::UNSUPPORTED_VERSION), ErrorClass::Abortable),
        (unsupported(), ErrorClass::Abortable),
        (late(), ErrorClass::Abortable),
        (refusal(ErrorCode::PRODUCER_FENCED), ErrorClass::Fatal),
        (refusal(ErrorCode::TRANSACTIONAL_ID_AUTHORIZATION_FAILED), ErrorClass::Fatal),
    ] {
        let mut transactions = open(true);
        let failure = transactions.failed(&error);
        assert_eq!(failure, of_record(&error), "the record has the same error");
        check_class(&mut transactions, &failure, class, true);
    }
}

#[test]
fn what_keeps_a_transaction_from_its_end_is_of_the_class_of_what_comes_next() {
    for (error, class) in [
        (late(), ErrorClass::Retriable),
        (refusal(ErrorCode::PRODUCER_FENCED), ErrorClass::Fatal),
        (refusal(ErrorCode::INVALID_PRODUCER_EPOCH), ErrorClass::Fatal),
        (refusal(ErrorCode::INVALID_TXN_STATE), ErrorClass::Fatal),
        (refusal(ErrorCode::UNSUPPORTED_VERSION), ErrorClass::Fatal),
        (unsupported(), ErrorClass::Fatal),
        (refusal(ErrorCode::TRANSACTION_ABORTABLE), ErrorClass::Abortable),
    ] {
        for commit in [true, false] {
            let mut transactions = open(true);
            transactions.may_send(&t(0));
            if commit {
                transactions.begin_commit().unwrap();
            } else {
                transactions.begin_abort().unwrap();
            }
            transactions.end(commit).unwrap();
            let failure = transactions.end_answered(Err(error.clone())).unwrap_err();
            if commit || class != ErrorClass::Abortable {
                check_class(&mut transactions, &failure, class, commit);
            }
        }
    }
}
