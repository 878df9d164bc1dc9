//! One partition of `__transaction_state` with its transactional ids: deadlines, and unloading.

use mainstem_records::CoordinatorEpoch;
use mainstem_wire::ErrorCode;

use super::deadlines::Due;
use super::io::{Io, Outstanding};
use super::transaction::{Pending, Transactions};
use super::{add_partitions, expiry, markers, time_outs};

/// One partition of `__transaction_state` that this node serves.
#[derive(Debug)]
pub(super) struct Partition {
    pub(super) service: Service,
    pub(super) transactions: Transactions,
    pub(super) outstanding: Outstanding,
}

#[derive(Debug)]
pub(super) struct Service {
    /// The epoch of this coordinator.
    pub(super) coordinator_epoch: CoordinatorEpoch,
    /// All records are loaded.
    pub(super) loaded: bool,
    /// The next search for transactions that have timed out, monotonic milliseconds.
    pub(super) time_outs_ms: Option<u64>,
    /// The next search for transactional ids that have expired, monotonic milliseconds.
    pub(super) expiry_ms: Option<u64>,
}

impl Partition {
    /// A partition before the replay of its records.
    pub(super) fn new(coordinator_epoch: CoordinatorEpoch) -> Partition {
        Partition {
            service: Service { coordinator_epoch, loaded: false, time_outs_ms: None, expiry_ms: None },
            transactions: Transactions::default(),
            outstanding: Outstanding::default(),
        }
    }
}

/// A partition with the context of its handlers.
pub(super) struct PartitionContext<'a> {
    pub(super) service: &'a mut Service,
    pub(super) transactions: &'a mut Transactions,
    pub(super) io: Io<'a>,
}

impl PartitionContext<'_> {
    /// Sets the next search for transactions that have timed out.
    pub(super) fn schedule_time_outs(&mut self) {
        let Io { now, partition, config, .. } = self.io;
        let due_ms = now.mono_ms.saturating_add(config.abort_timed_out_interval_ms.max(1));
        self.io.deadlines.set(&mut self.service.time_outs_ms, due_ms, Due::TimeOuts { partition });
    }

    /// Sets the next search for transactional ids that have expired.
    pub(super) fn schedule_expiry(&mut self) {
        let Io { now, partition, config, .. } = self.io;
        let due_ms = now.mono_ms.saturating_add(config.remove_expired_interval_ms.max(1));
        self.io.deadlines.set(&mut self.service.expiry_ms, due_ms, Due::Expiry { partition });
    }

    /// Handles a deadline that has come up.
    pub(super) fn fire(&mut self, due: &Due) {
        match due {
            Due::TimeOuts { .. } => {
                self.service.time_outs_ms = None;
                time_outs::abort_overdue(self.transactions, &mut self.io);
                self.schedule_time_outs();
            }
            Due::Expiry { .. } => {
                self.service.expiry_ms = None;
                expiry::expire(self.transactions, &mut self.io);
                self.schedule_expiry();
            }
            Due::Wait { id, .. } => {
                let transaction = self.transactions.get_mut(id).expect("a request of it waits");
                add_partitions::time_out(transaction, &mut self.io);
            }
            Due::Retry { id, .. } => {
                let transaction = self.transactions.get_mut(id).expect("it is ending");
                markers::retry(transaction, &mut self.io);
            }
        }
    }

    /// Answers all waiting requests, and drops everything of this partition.
    pub(super) fn unload(mut self) {
        let error = ErrorCode::NOT_COORDINATOR;
        for mut transaction in std::mem::take(self.transactions).into_values() {
            self.io.cancel_all(&mut transaction);
            match transaction.pending.take() {
                Some(Pending::ProducerId { number, waiter, .. }) => {
                    self.io.asked.remove(&number);
                    self.io.answer(&transaction.id, waiter, Err(error));
                }
                Some(Pending::Record { waiter, .. }) => self.io.answer(&transaction.id, waiter, Err(error)),
                Some(Pending::Tombstone) | None => {}
            }
            if let Some(waiting) = transaction.waiting.take() {
                let (token, reply) = waiting.adding.reply(&transaction.id, error);
                self.io.reply(token, reply);
            }
            self.io.usage.transactions -= 1;
            self.io.usage.bytes -= transaction.counted;
        }
        let partition = self.io.partition;
        self.io.deadlines.cancel(&mut self.service.time_outs_ms, Due::TimeOuts { partition });
        self.io.deadlines.cancel(&mut self.service.expiry_ms, Due::Expiry { partition });
    }
}
