//! The transactions of a producer (KIP-98, KIP-890): the calls that each state allows, and the effect of a failure.
//!
//! Pure: calls and answers of brokers go in; requests to the coordinator come out. With version 2 of the protocol the
//! brokers add partitions by themselves, and each end of a transaction gives the producer a new epoch.

use std::collections::BTreeSet;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;

use crate::error::{Error, ErrorClass};
use crate::topic_partition::TopicPartition;

/// Producer id and epoch.
pub(crate) type Name = (ProducerId, ProducerEpoch);

/// The name in an answer.
pub(crate) fn name_of(producer_id: i64, producer_epoch: i16) -> Name {
    (ProducerId::new(producer_id), ProducerEpoch::new(producer_epoch))
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// It has no producer id yet.
    Uninitialized,
    /// Outside of a transaction.
    Ready,
    /// In one.
    Open,
    /// In one that can only be aborted.
    Failed(Error),
    /// One is being committed or aborted.
    Ending { commit: bool },
    /// No call is possible any more; the error, of class [`ErrorClass::Fatal`], is that of every call.
    Fatal(Error),
}

/// The request that is needed to end a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// None: no broker knows of the transaction, or all is done.
    Nothing,
    /// EndTxn; then [`Transactions::end_answered`] is due.
    Ask(Name),
    /// The transaction has ended, and the next one needs another epoch.
    NextEpoch(Name),
}

/// The coordinator's knowledge of the transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Begun {
    /// It was sent no request.
    No,
    /// It was sent a request that it has refused, or has not answered yet, or never will.
    Maybe,
    /// It has acknowledged a request; or with version 2 of the protocol, records were sent.
    Yes,
}

/// The transactions of a producer.
#[derive(Debug)]
pub(crate) struct Transactions {
    state: State,
    name: Option<Name>,
    /// Version 2 of the protocol.
    is_v2: bool,
    /// Partitions that the coordinator has added.
    added: BTreeSet<TopicPartition>,
    /// Partitions that it has to add before batches are sent.
    wanted: BTreeSet<TopicPartition>,
    /// True while the coordinator is asked to add partitions.
    is_adding: bool,
    begun: Begun,
    /// The coordinator was asked to end the transaction in this way, and may have done it.
    is_asked: bool,
    /// It has done it.
    is_ended: bool,
    /// A sequence number is left out for good: the next transaction needs another epoch.
    needs_epoch: bool,
    /// The number of transactions that have ended: two calls that end one may overlap with the beginning of the next.
    term: u64,
    /// True if the last of them was committed.
    was_committed: bool,
}

impl Transactions {
    /// The transactions of a producer without an id.
    pub(crate) fn new() -> Transactions {
        Transactions {
            state: State::Uninitialized,
            name: None,
            is_v2: false,
            added: BTreeSet::new(),
            wanted: BTreeSet::new(),
            is_adding: false,
            begun: Begun::No,
            is_asked: false,
            is_ended: false,
            needs_epoch: false,
            term: 0,
            was_committed: false,
        }
    }

    /// Takes the producer id from the coordinator, which has ended transactions that an earlier producer left open.
    pub(crate) fn initialized(&mut self, name: Name, is_v2: bool) {
        (self.state, self.name, self.is_v2) = (State::Ready, Some(name), is_v2);
    }

    /// Checks that a producer id may be asked for.
    pub(crate) fn check_initialize(&self) -> Result<(), Error> {
        match &self.state {
            State::Uninitialized => Ok(()),
            State::Fatal(error) => Err(error.clone()),
            _ => misused("init_transactions was called before"),
        }
    }

    /// Begins a transaction.
    pub(crate) fn begin(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ready => {
                self.state = State::Open;
                Ok(())
            }
            State::Uninitialized => misused("call init_transactions before the first transaction"),
            State::Open | State::Failed(_) | State::Ending { .. } => {
                misused("commit or abort the transaction before the next one begins")
            }
            State::Fatal(error) => Err(error.clone()),
        }
    }

    /// Checks that records may be written now.
    pub(crate) fn check_open(&self) -> Result<(), Error> {
        match &self.state {
            State::Open => Ok(()),
            State::Ending { .. } => misused("the transaction is being ended; begin another one"),
            State::Uninitialized | State::Ready => misused("begin a transaction before writing"),
            State::Failed(_) | State::Fatal(_) => self.failure().map_or(Ok(()), Err),
        }
    }

    /// The producer id and epoch under which batches are numbered.
    pub(crate) fn name(&self) -> Option<Name> {
        self.name
    }

    /// The number of the present transaction.
    pub(crate) fn term(&self) -> u64 {
        self.term
    }

    /// The outcome for a call that began to end the transaction of a term, if another call has ended it since.
    pub(crate) fn ended_since(&self, term: u64, commit: bool) -> Option<Result<(), Error>> {
        if self.term == term {
            return None;
        }
        let is_as_asked = self.term == term + 1 && self.was_committed == commit;
        Some(if is_as_asked { Ok(()) } else { Err(ended_by_another()) })
    }

    /// Returns true if the coordinator has ended the transaction.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Returns true with version 2 of the protocol.
    pub(crate) fn is_v2(&self) -> bool {
        self.is_v2
    }

    /// Returns true if a batch for a partition may be sent now. If the coordinator has to add the partition first,
    /// [`Transactions::begin_adding`] returns it.
    pub(crate) fn may_send(&mut self, partition: &TopicPartition) -> bool {
        if !matches!(self.state, State::Open | State::Ending { commit: true }) {
            return false;
        }
        if self.is_v2 || self.added.contains(partition) {
            self.begun = Begun::Yes;
            return true;
        }
        self.wanted.insert(partition.clone());
        false
    }

    /// The partitions to add at the coordinator now, unless it is being asked already; then [`Transactions::was_added`] is due.
    pub(crate) fn begin_adding(&mut self) -> Option<BTreeSet<TopicPartition>> {
        if self.wanted.is_empty() || self.is_adding {
            return None;
        }
        (self.is_adding, self.begun) = (true, self.begun.max(Begun::Maybe));
        Some(self.wanted.clone())
    }

    /// Returns true while the coordinator is asked to add partitions.
    pub(crate) fn is_adding(&self) -> bool {
        self.is_adding
    }

    /// Takes the coordinator's answer about added partitions.
    pub(crate) fn was_added(&mut self, partitions: BTreeSet<TopicPartition>, outcome: Result<(), Error>) {
        self.is_adding = false;
        self.wanted.retain(|one| !partitions.contains(one));
        match outcome {
            Ok(()) => {
                self.begun = Begun::Yes;
                self.added.extend(partitions);
            }
            Err(error) => drop(self.failed(&error)),
        }
    }

    /// Notes that offsets are about to be committed with the transaction.
    pub(crate) fn touch(&mut self) {
        self.begun = self.begun.max(Begun::Maybe);
    }

    /// Notes that the coordinator has acknowledged them.
    pub(crate) fn touched(&mut self) -> Result<(), Error> {
        if !matches!(self.state, State::Uninitialized | State::Ready) {
            self.begun = Begun::Yes;
        }
        Ok(())
    }

    /// Fails the transaction after a failed batch, whose sequence number is left out.
    pub(crate) fn batch_failed(&mut self, error: &Error) {
        self.needs_epoch = true;
        let _ = self.failed(error);
    }

    /// The error if nothing of the transaction can be sent any more.
    pub(crate) fn failure(&self) -> Option<Error> {
        match &self.state {
            State::Failed(error) => Some(has_failed(error)),
            State::Fatal(error) => Some(error.clone()),
            _ => None,
        }
    }

    /// Takes the coordinator's answer to the end of the transaction; with version 2 of the protocol also the next epoch.
    ///
    /// # Errors
    /// The error, if the transaction has not ended as far as is known.
    pub(crate) fn end_answered(&mut self, answer: Result<Option<Name>, Error>) -> Result<(), Error> {
        let is_unheard_of =
            |error: &Error| matches!(error, Error::Broker { code: ErrorCode::INVALID_TXN_STATE, .. });
        match answer {
            Ok(next) => self.name = next.or(self.name),
            // The request that may have begun it was refused or never arrived.
            Err(error) if self.begun == Begun::Maybe && is_unheard_of(&error) => {}
            Err(error) => return Err(self.end_failed(&error)),
        }
        self.is_ended = true;
        Ok(())
    }

    /// Handles a failure to end the transaction: the coordinator refuses, cannot be asked, or lacks a feature for the next
    /// transaction. After an error that may pass, the caller tries again. Returns the caller's error, as [`Transactions::failed`].
    pub(crate) fn end_failed(&mut self, error: &Error) -> Error {
        match (error.class(), error) {
            // A call that aborts already can do nothing else.
            (ErrorClass::Abortable, _) if !matches!(self.state, State::Ending { commit: false }) => {
                self.is_asked = false;
                return self.failed(error);
            }
            (ErrorClass::Retriable, _) => {}
            // Another request would be answered alike.
            (ErrorClass::Fatal, _) | (_, Error::Broker { .. } | Error::Unsupported { .. }) => {
                self.state = State::Fatal(has_failed_for_good(error));
            }
            _ => {}
        }
        self.failure().unwrap_or_else(|| error.clone())
    }

    /// Fails the transaction for good. Returns the error for the caller, which is that of the next call, so that its class says
    /// what can be done now.
    pub(crate) fn failed(&mut self, error: &Error) -> Error {
        match &self.state {
            State::Fatal(_) => {}
            _ if is_fatal(error) => self.state = State::Fatal(error.clone()),
            // A late failure does not undo a commit that has begun.
            State::Ending { commit: true } if self.is_asked => {}
            State::Open | State::Ending { commit: true } => self.state = State::Failed(error.clone()),
            _ => {}
        }
        self.failure().unwrap_or_else(|| error.clone())
    }

    /// Begins to commit: nothing more is written. Called again, it continues.
    pub(crate) fn begin_commit(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ending { commit: true } => Ok(()),
            State::Ending { commit: false } => {
                misused("the transaction is being aborted; call abort_transaction again")
            }
            _ => {
                self.check_open()?;
                self.state = State::Ending { commit: true };
                Ok(())
            }
        }
    }

    /// Begins to abort. Called again, it continues.
    pub(crate) fn begin_abort(&mut self) -> Result<(), Error> {
        match &self.state {
            State::Ending { commit: true } if self.is_asked => misused(
                "whether the transaction was committed is not known; call commit_transaction again until it is",
            ),
            State::Open | State::Failed(_) | State::Ending { .. } => {
                self.state = State::Ending { commit: false };
                self.wanted.clear();
                Ok(())
            }
            State::Fatal(error) => Err(error.clone()),
            State::Uninitialized | State::Ready => misused("there is no transaction to abort"),
        }
    }

    /// The next request to the coordinator, after all batches have come back.
    ///
    /// # Errors
    /// A failure of the transaction that was to be committed, or the error that another call has aborted it.
    pub(crate) fn end(&mut self, commit: bool) -> Result<End, Error> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        match self.state {
            State::Ending { commit: asked } if asked == commit => {}
            _ => return Err(ended_by_another()),
        }
        let name = self.name.expect("a transaction needs a name");
        if self.is_ended {
            let needs_epoch = self.needs_epoch && !self.is_v2;
            return Ok(if needs_epoch { End::NextEpoch(name) } else { End::Nothing });
        }
        self.is_asked = self.begun != Begun::No;
        Ok(if self.is_asked { End::Ask(name) } else { End::Nothing })
    }

    /// Ends the transaction; the producer may have another id or epoch from now on.
    pub(crate) fn ended(&mut self, name: Option<Name>) -> Result<(), Error> {
        self.name = name.or(self.name);
        self.term += 1;
        self.was_committed = matches!(self.state, State::Ending { commit: true });
        self.state = State::Ready;
        self.added.clear();
        self.wanted.clear();
        (self.begun, self.is_asked, self.is_ended, self.needs_epoch) = (Begun::No, false, false, false);
        Ok(())
    }
}

/// Returns true for errors that only a new producer can repair. A stale epoch may be this producer's own, after a time-out of its
/// transaction: the coordinator says so when the transaction is aborted. A fenced member of a group is no error of the producer.
fn is_fatal(error: &Error) -> bool {
    let is_mendable = [ErrorCode::INVALID_PRODUCER_EPOCH, ErrorCode::FENCED_INSTANCE_ID];
    error.class() == ErrorClass::Fatal && error.code().is_none_or(|code| !is_mendable.contains(&code))
}

fn has_failed(error: &Error) -> Error {
    Error::TransactionFailed { reason: Box::new(error.clone()) }
}

fn has_failed_for_good(error: &Error) -> Error {
    match error.class() {
        ErrorClass::Fatal => error.clone(),
        _ => Error::ProducerFailed { reason: Box::new(error.clone()) },
    }
}

/// The error of a record that was sent in a transaction, which it fails.
pub(crate) fn of_record(error: &Error) -> Error {
    if is_fatal(error) { error.clone() } else { has_failed(error) }
}

fn ended_by_another() -> Error {
    Error::Invalid("another call has ended the transaction".to_owned())
}

fn misused(what: &str) -> Result<(), Error> {
    Err(Error::Invalid(what.to_owned()))
}

#[cfg(test)]
#[path = "transaction/tests.rs"]
mod tests;
