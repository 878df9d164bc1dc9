//! The calls by which a producer writes in transactions.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::transaction::{End, Transactions};
use super::{Producer, Shared, State};
use crate::error::Error;
use crate::group::{GroupOffsets, Transaction};
use crate::producer::coordinator::Coordinator;
use crate::topic_partition::TopicPartition;

impl Producer {
    /// Gets the producer id for transactions. Open transactions of an earlier producer of the same transactional id are aborted,
    /// and that producer can write no more (it is fenced). It is called once, before the first transaction.
    ///
    /// ```no_run
    /// use mainstem_client::{ClientConfig, ErrorClass, Producer, ProducerConfig, Record};
    ///
    /// # async fn run() -> Result<(), mainstem_client::Error> {
    /// let config = ProducerConfig::new(ClientConfig::new("127.0.0.1:9092")?).transactional_id("billing-1");
    /// let producer = Producer::new(config)?;
    /// producer.init_transactions().await?;
    /// producer.begin_transaction()?;
    /// let _ = producer.send(Record::new("invoices", "one")).await?;
    /// match producer.commit_transaction().await {
    ///     Err(error) if error.class() == ErrorClass::Abortable => producer.abort_transaction().await?,
    ///     committed => committed?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ProducerConfig::max_block`](crate::ProducerConfig::max_block), [`Error::Invalid`] if
    /// the producer has no transactional id, or why the cluster refuses.
    pub async fn init_transactions(&self) -> Result<(), Error> {
        let shared = &self.owner.shared;
        shared.transactions(|one| one.check_initialize())?;
        let (name, is_v2) = shared.coordinator()?.init(None).await.map_err(|error| shared.note(&error))?;
        shared.transactions(|one| {
            one.initialized(name, is_v2);
            Ok(())
        })
    }

    /// Begins a transaction. Consumers of committed records ([`Isolation::ReadCommitted`](crate::Isolation::ReadCommitted)) see
    /// all records that are sent from now on together, or none.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no transaction can begin now, or why the producer cannot continue.
    pub fn begin_transaction(&self) -> Result<(), Error> {
        self.owner.shared.transactions(Transactions::begin)
    }

    /// Commits offsets of the group that the records came from, together with the transaction. The group's own commits have to
    /// be off (`auto_commit: None`).
    ///
    /// # Errors
    /// [`Error::TransactionFailed`] says why the group or the coordinator of the transaction refuses, or that the time is
    /// over: the transaction has to be aborted. [`Error::Invalid`] outside of a transaction, or why the producer cannot
    /// continue.
    pub async fn send_offsets(
        &self,
        offsets: &BTreeMap<TopicPartition, i64>,
        group: &GroupOffsets,
    ) -> Result<(), Error> {
        let shared = &self.owner.shared;
        shared.transactions(|one| one.check_open())?;
        if offsets.is_empty() {
            return Ok(());
        }
        let coordinator = shared.coordinator()?;
        let (name, is_v2) = shared.transactions(|one| {
            one.touch();
            Ok((one.name().expect("an open transaction has a name"), one.is_v2()))
        })?;
        let sent = async {
            if !is_v2 {
                coordinator.add_offsets(name, group.group_id()).await?;
                shared.transactions(Transactions::touched)?;
            }
            let transaction = Transaction {
                id: &coordinator.transactional_id,
                producer_id: name.0,
                producer_epoch: name.1,
                is_v2,
            };
            group.commit_in_transaction(offsets, &transaction).await?;
            shared.transactions(Transactions::touched)
        };
        sent.await.map_err(|error: Error| shared.note(&error))
    }

    /// Sends waiting records, and commits the transaction. When this future is dropped, or the time is over, the outcome is not
    /// known: call it again. The transaction can be aborted only as long as its coordinator was not asked to commit it.
    ///
    /// # Errors
    /// [`Error::TransactionFailed`] if a part of it was not written: abort it. [`Error::TimedOut`] after
    /// [`ProducerConfig::max_block`](crate::ProducerConfig::max_block); [`Error::Closed`] if another clone closes the
    /// producer; or why the cluster refuses.
    pub async fn commit_transaction(&self) -> Result<(), Error> {
        let shared = &self.owner.shared;
        let term = shared.transactions(|one| one.begin_commit().map(|()| one.term()))?;
        self.flush().await;
        // A call that closes the producer aborts a transaction that its coordinator was not asked to commit.
        shared.check_taking()?;
        self.end_transaction(term, true).await
    }

    /// Aborts the transaction. Records that were not sent yet fail; consumers of committed records never see those that were
    /// written. When this future is dropped, or the time is over, call it again.
    ///
    /// # Errors
    /// [`Error::TimedOut`] after [`ProducerConfig::max_block`](crate::ProducerConfig::max_block); [`Error::Invalid`] if
    /// it may be committed already, by a call of [`Producer::commit_transaction`] whose outcome is not known;
    /// [`Error::Closed`] if another clone closes the producer; or why the cluster refuses, after which the producer cannot be
    /// used any more.
    pub async fn abort_transaction(&self) -> Result<(), Error> {
        let shared = &self.owner.shared;
        let term = shared.transactions(|one| one.begin_abort().map(|()| one.term()))?;
        shared.discard(term).await?;
        self.end_transaction(term, false).await
    }

    /// Aborts the transaction of a producer that is being closed, unless there is none or its coordinator was asked to
    /// commit it.
    pub(super) async fn abort_what_is_open(&self) {
        let begun = self.owner.shared.transactions(|one| one.begin_abort().map(|()| one.term()));
        let Ok(term) = begun else { return };
        let aborted = async {
            self.owner.shared.discard(term).await?;
            self.end_transaction(term, false).await
        };
        if let Err(error) = aborted.await {
            tracing::warn!("a transaction stays open until its time-out: {error}");
        }
    }

    /// Takes the remaining steps, so that it can be called again after any of them. One call runs at a time: a second one would
    /// take the answer for one about the next transaction.
    async fn end_transaction(&self, term: u64, commit: bool) -> Result<(), Error> {
        let shared = &self.owner.shared;
        let coordinator = shared.coordinator()?;
        let _only = shared.ending.lock().await;
        if let Some(ended) = shared.transactions(|one| Ok(one.ended_since(term, commit)))? {
            return ended;
        }
        loop {
            // The error of records that were abandoned then must not be lost.
            if !shared.transactions(|one| Ok(one.is_ended()))? {
                shared.check_alive()?;
            }
            let (end, is_v2) = shared.transactions(|one| Ok((one.end(commit)?, one.is_v2())))?;
            match end {
                End::Nothing => return shared.transactions(|one| one.ended(None)),
                End::Ask(name) => {
                    let answer = coordinator.end(name, commit, is_v2).await;
                    let noted = shared.transactions(|one| one.end_answered(answer));
                    noted.inspect_err(|_| shared.work.notify_one())?;
                }
                End::NextEpoch(name) => {
                    let init = coordinator.init(Some(name)).await;
                    let (name, _) = init.map_err(|error| shared.note_end(&error))?;
                    return shared.transactions(|one| one.ended(Some(name)));
                }
            }
        }
    }
}

impl State {
    /// Checks that the sender has not ended.
    fn check_alive(&self) -> Result<(), Error> {
        match self.has_ended {
            true => Err(self.refusal.clone().unwrap_or(Error::Closed)),
            false => Ok(()),
        }
    }

    /// Reports failed batches to the transaction, and fails waiting batches of a transaction that can only be aborted. Returns the
    /// bytes of memory that are free now.
    #[must_use]
    pub(super) fn note_failures(&mut self) -> usize {
        let failure = self.queues.take_failure();
        let Some(transactions) = &mut self.transactions else { return 0 };
        if let Some(error) = failure {
            transactions.batch_failed(&error);
        }
        transactions.failure().map_or(0, |error| self.queues.discard(&error))
    }
}

impl Shared {
    /// Checks that a record may be written now.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        match &self.config.transactional_id {
            Some(_) => self.transactions(|one| one.check_open()),
            None => Ok(()),
        }
    }

    /// Calls a function with the state of the transactions.
    fn transactions<T>(
        &self,
        change: impl FnOnce(&mut Transactions) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.state.lock();
        self.memory.add_permits(state.note_failures());
        state.transactions.as_mut().map_or_else(|| Err(not_transactional()), change)
    }

    fn check_alive(&self) -> Result<(), Error> {
        self.state.lock().check_alive()
    }

    /// Checks that records are still taken.
    fn check_taking(&self) -> Result<(), Error> {
        self.state.lock().refusal.clone().map_or(Ok(()), Err)
    }

    fn coordinator(&self) -> Result<Coordinator, Error> {
        let config = &self.config;
        let transactional_id = config.transactional_id.clone().ok_or_else(not_transactional)?;
        Ok(Coordinator {
            cluster: self.cluster.clone(),
            transactional_id,
            transaction_timeout: config.transaction_timeout,
            limit: config.max_block,
        })
    }

    /// Notes that a call of a transaction has failed. Returns the error for the caller.
    fn note(&self, error: &Error) -> Error {
        // There is a state, since it was asked before.
        let failure = self.transactions(|one| Ok(one.failed(error)));
        self.work.notify_one();
        failure.unwrap_or_else(|needless| needless)
    }

    /// Notes that the end of a transaction has failed. Returns the error for the caller.
    fn note_end(&self, error: &Error) -> Error {
        let failure = self.transactions(|one| Ok(one.end_failed(error)));
        self.work.notify_one();
        failure.unwrap_or_else(|needless| needless)
    }

    /// Fails waiting batches of the transaction of a term, and waits for those under way, so that none of them is written after its
    /// end.
    async fn discard(&self, term: u64) -> Result<(), Error> {
        loop {
            let settled = self.settled.notified();
            let mut settled = std::pin::pin!(settled);
            // Registered before the look, so that what settles between the two is not missed.
            settled.as_mut().enable();
            {
                let mut state = self.state.lock();
                if state.transactions.as_ref().is_none_or(|one| one.term() != term) {
                    // Another call has ended it; waiting batches are those of the next one.
                    return Ok(());
                }
                self.memory.add_permits(state.queues.discard(&Error::Aborted));
                // A partition that is added after the end would begin another transaction.
                let is_adding = state.transactions.as_ref().is_some_and(Transactions::is_adding);
                // A request that was under way then may still arrive.
                state.check_alive()?;
                if state.queues.is_idle() && !is_adding {
                    return Ok(());
                }
            }
            settled.await;
        }
    }

    /// Asks the coordinator to add partitions, which it has to do before batches are sent there.
    pub(super) fn add_partitions(
        self: &Arc<Self>,
        transactions: &mut Transactions,
    ) -> Option<impl Future<Output = ()> + use<>> {
        let (partitions, name) = (transactions.begin_adding()?, transactions.name()?);
        let shared = self.clone();
        Some(async move {
            let added = match shared.coordinator() {
                Ok(coordinator) => coordinator.add_partitions(name, &partitions).await,
                Err(error) => Err(error),
            };
            let _ = shared.transactions(|one| {
                one.was_added(partitions, added);
                Ok(())
            });
        })
    }
}

fn not_transactional() -> Error {
    Error::Invalid("the producer has no transactional_id, which transactions need".to_owned())
}

#[cfg(test)]
#[path = "transactional/tests.rs"]
mod tests;
