//! The interface of a handler to all but its own transactional id: effects, deadlines, tickets, the count of bytes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mainstem_records::CoordinatorEpoch;
use mainstem_wire::ErrorCode;

use super::api::{Effect, ProducerIdTicket, Reply, Ticket};
use super::config::TransactionConfig;
use super::deadlines::{Deadlines, Due};
use super::image::Image;
use super::transaction::{Pending, Plan, Transaction, Transactions};
use super::waiter::Waiter;
use super::{Token, memory, records};
use crate::time::Now;

/// The amounts that [`TransactionConfig`] limits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) transactions: usize,
    /// Bytes as [`memory`](super::memory) counts them.
    pub(crate) bytes: usize,
}

/// The contents of an append.
#[derive(Debug)]
pub(crate) enum Written {
    /// The next image of a transactional id.
    Image(Arc<str>),
    /// The tombstones of transactional ids that expire.
    Tombstones(Vec<Arc<str>>),
}

/// The origin of a request for a producer id.
#[derive(Debug)]
pub(crate) enum Asked {
    /// An InitProducerId without a transactional id.
    Idempotent(Token),
    /// A transactional id.
    Transaction { partition: i32, id: Arc<str> },
}

/// Requests to the driver without an outcome, for one partition.
#[derive(Debug, Default)]
pub(crate) struct Outstanding {
    /// Appends by their numbers.
    pub(crate) appends: BTreeMap<u64, Written>,
    /// The transactional ids whose markers are being written, by the number of the request.
    pub(crate) markers: BTreeMap<u64, Arc<str>>,
}

/// The coordinator without its transactional ids: the context of one handler.
pub(crate) struct Io<'a> {
    pub(crate) now: Now,
    pub(crate) partition: i32,
    pub(crate) coordinator_epoch: CoordinatorEpoch,
    pub(crate) config: &'a TransactionConfig,
    pub(crate) effects: &'a mut VecDeque<Effect>,
    pub(crate) deadlines: &'a mut Deadlines,
    pub(crate) outstanding: &'a mut Outstanding,
    pub(crate) asked: &'a mut BTreeMap<u64, Asked>,
    pub(crate) tickets: &'a mut u64,
    pub(crate) usage: &'a mut Usage,
}

impl Io<'_> {
    /// Answers a request.
    pub(crate) fn reply(&mut self, token: Token, reply: Reply) {
        self.effects.push_back(Effect::Reply { token, reply });
    }

    /// Answers the request that waits for a change.
    pub(crate) fn answer(&mut self, id: &str, waiter: Waiter, outcome: Result<&Image, ErrorCode>) {
        if let Some((token, reply)) = waiter.reply(id, outcome) {
            self.reply(token, reply);
        }
    }

    /// A new number for a ticket.
    pub(crate) fn number(&mut self) -> u64 {
        *self.tickets += 1;
        *self.tickets
    }

    /// Writes the next image of a transactional id, which becomes valid when the record is durable.
    pub(crate) fn write(&mut self, transaction: &mut Transaction, target: Image, waiter: Waiter) {
        assert!(transaction.pending.is_none(), "two changes at once: {transaction:?}");
        let number = self.number();
        self.outstanding.appends.insert(number, Written::Image(transaction.id.clone()));
        self.effects.push_back(Effect::Append {
            ticket: Ticket { partition: self.partition, number },
            timestamp_ms: self.now.wall_ms,
            records: vec![records::image(&transaction.id, &target, self.config.transaction_version)],
        });
        transaction.pending = Some(Pending::Record { target: Box::new(target), waiter });
        self.recount(transaction);
    }

    /// Asks for a producer id; `plan` is carried out when it is known.
    pub(crate) fn ask(&mut self, transaction: &mut Transaction, plan: Plan, waiter: Waiter) {
        assert!(transaction.pending.is_none(), "two changes at once: {transaction:?}");
        let number = self.number();
        let asked = Asked::Transaction { partition: self.partition, id: transaction.id.clone() };
        self.asked.insert(number, asked);
        self.effects.push_back(Effect::NewProducerId { ticket: ProducerIdTicket(number) });
        transaction.pending = Some(Pending::ProducerId { number, plan, waiter });
        self.recount(transaction);
    }

    /// Returns true if so many bytes more may be kept.
    pub(crate) fn has_memory_for(&self, growth: usize) -> bool {
        growth <= self.config.memory_bytes_max.saturating_sub(self.usage.bytes)
    }

    /// Counts a transactional id as it is now.
    pub(crate) fn recount(&mut self, transaction: &mut Transaction) {
        let bytes = memory::transaction(transaction);
        self.usage.bytes = self.usage.bytes - transaction.counted + bytes;
        transaction.counted = bytes;
    }

    /// Removes a transactional id with its deadlines.
    pub(crate) fn remove(&mut self, transactions: &mut Transactions, id: &str) {
        if let Some(mut transaction) = transactions.remove(id) {
            self.cancel_all(&mut transaction);
            self.usage.bytes -= transaction.counted;
            self.usage.transactions -= 1;
        }
    }

    /// Cancels the deadlines of a transactional id.
    pub(crate) fn cancel_all(&mut self, transaction: &mut Transaction) {
        self.cancel_retry(transaction);
        let due = self.wait_of(transaction);
        if let Some(waiting) = &mut transaction.waiting {
            self.deadlines.cancel(&mut waiting.due_ms, due);
        }
    }

    /// Tries markers, or the record of the end, again after a while.
    pub(crate) fn retry_later(&mut self, transaction: &mut Transaction) {
        let due_ms = self.now.mono_ms.saturating_add(self.config.retry_backoff_ms.max(1));
        let due = Due::Retry { partition: self.partition, id: transaction.id.clone() };
        self.deadlines.set(&mut transaction.retry_ms, due_ms, due);
    }

    /// Cancels the retry.
    pub(crate) fn cancel_retry(&mut self, transaction: &mut Transaction) {
        let due = Due::Retry { partition: self.partition, id: transaction.id.clone() };
        self.deadlines.cancel(&mut transaction.retry_ms, due);
    }

    /// Returns the deadline that ends the wait of a request.
    pub(crate) fn wait_of(&self, transaction: &Transaction) -> Due {
        Due::Wait { partition: self.partition, id: transaction.id.clone() }
    }
}
