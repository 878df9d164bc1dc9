//! The coordinator itself: routes requests, timers and outcomes to the transactional id that they concern.

mod invariants;
mod loading;

use std::collections::{BTreeMap, VecDeque};

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_transactions_response::DescribeTransactionsResponse;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::list_transactions_response::ListTransactionsResponse;

use super::adding::Adding;
use super::api::{Effect, MarkerOutcome, MarkerTicket, ProducerIdTicket, Reply, Request, Ticket};
use super::config::TransactionConfig;
use super::deadlines::Deadlines;
use super::describe::{self, Filter};
use super::init_producer_id::{self, Init};
use super::io::{Asked, Io, Usage, Written};
use super::served::{Partition, PartitionContext};
use super::state::State;
use super::{Token, add_partitions, end_txn, expiry, markers, memory, outcome, replies};
use crate::groups::{append_error, partition_for};
use crate::time::Now;

/// The transaction coordinator of one node. See the [module](super) for the contract.
#[derive(Debug)]
pub struct TransactionCoordinator {
    config: TransactionConfig,
    partitions: BTreeMap<i32, Partition>,
    effects: VecDeque<Effect>,
    deadlines: Deadlines,
    /// Producer ids that were asked for, by their numbers.
    asked: BTreeMap<u64, Asked>,
    tickets: u64,
    usage: Usage,
    /// The latest monotonic time seen.
    mono_ms: u64,
    /// The partition of the last request that was refused because that partition is being loaded.
    wanted: Option<i32>,
}

/// The sizes of the coordinator's state, for metrics.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// Transactional ids of all served partitions.
    pub transactional_ids: usize,
    /// Appends in flight.
    pub pending_appends: usize,
    /// Transactions whose markers are being written.
    pub pending_markers: usize,
    /// Bytes of all of it, as counted against [`memory_bytes_max`](TransactionConfig::memory_bytes_max).
    pub bytes: usize,
}

impl TransactionCoordinator {
    /// A coordinator that serves no partition yet.
    pub fn new(config: TransactionConfig) -> Self {
        Self {
            config,
            partitions: BTreeMap::new(),
            effects: VecDeque::new(),
            deadlines: Deadlines::default(),
            asked: BTreeMap::new(),
            tickets: 0,
            usage: Usage::default(),
            mono_ms: 0,
            wanted: None,
        }
    }

    /// Drains the work for the driver, oldest first.
    pub fn effects(&mut self) -> impl Iterator<Item = Effect> {
        self.effects.drain(..)
    }

    /// The monotonic time, in milliseconds, before which [`tick`](Self::tick) has nothing to do.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.deadlines.next_ms()
    }

    /// Returns the sizes of the coordinator's state.
    pub fn stats(&self) -> Stats {
        let outstanding = || self.partitions.values().map(|partition| &partition.outstanding);
        Stats {
            transactional_ids: self.usage.transactions,
            pending_appends: outstanding().map(|outstanding| outstanding.appends.len()).sum(),
            pending_markers: outstanding().map(|outstanding| outstanding.markers.len()).sum(),
            bytes: self.usage.bytes,
        }
    }

    /// Durable transactional ids by state.
    pub fn count_by_state(&self) -> BTreeMap<State, usize> {
        let mut counts = BTreeMap::new();
        for transaction in self.partitions.values().flat_map(|partition| partition.transactions.values()) {
            if transaction.stored {
                *counts.entry(transaction.image.state).or_default() += 1;
            }
        }
        counts
    }

    /// The partition of `__transaction_state` of a transactional id: by Java's hash, like that of a group.
    pub fn partition_for(&self, transactional_id: &str) -> i32 {
        partition_for(transactional_id, self.config.transaction_state_log_num_partitions)
    }

    /// Sets the real number of partitions of `__transaction_state`.
    ///
    /// # Panics
    /// If it is another number, and a partition is being served: its transactional ids would be looked for elsewhere.
    pub fn set_partition_count(&mut self, count: i32) {
        if self.config.transaction_state_log_num_partitions == count {
            return;
        }
        assert!(self.partitions.is_empty(), "{} partitions are served already", self.partitions.len());
        self.config.transaction_state_log_num_partitions = count;
    }

    /// Sets the real number of partitions of `__consumer_offsets`.
    pub fn set_offsets_partition_count(&mut self, count: i32) {
        self.config.offsets_topic_num_partitions = count;
    }

    /// Sets the `transaction.version` of the cluster.
    pub fn set_transaction_version(&mut self, level: i16) {
        self.config.transaction_version = level;
    }

    /// Serves a request in the version of the client. The one answer carries `token`.
    pub fn step(&mut self, now: Now, token: Token, api_version: i16, request: Request<'_>) {
        match request {
            Request::InitProducerId { request, enable_2pc, keep_prepared_txn } => {
                self.init_producer_id(now, token, &request, (enable_2pc, keep_prepared_txn));
            }
            Request::AddPartitions(request) => self.add_partitions(now, token, api_version, &request),
            Request::AddOffsets(request) => self.add_offsets(now, token, &request),
            Request::EndTxn(request) => self.end_txn(now, token, api_version, &request),
            Request::DescribeTransactions(request) => self.describe_transactions(token, &request),
            Request::ListTransactions(request) => self.list_transactions(now, token, &request),
        }
    }

    /// Takes the outcome of an append. An error is what the log or the replicator said.
    pub fn appended(&mut self, now: Now, ticket: Ticket, outcome: Result<(), ErrorCode>) {
        let Some(PartitionContext { transactions, mut io, .. }) =
            self.partition_context(now, ticket.partition)
        else {
            return;
        };
        let outcome = outcome.map_err(append_error);
        match io.outstanding.appends.remove(&ticket.number) {
            Some(Written::Image(id)) => outcome::written(transactions, &mut io, &id, outcome),
            Some(Written::Tombstones(ids)) => {
                expiry::tombstones_written(transactions, &mut io, &ids, outcome)
            }
            // It is of an earlier time in which this node served the partition.
            None => {}
        }
    }

    /// Takes the outcome of the marker of one partition.
    pub fn marked(
        &mut self,
        now: Now,
        ticket: MarkerTicket,
        topic: &str,
        partition: i32,
        outcome: MarkerOutcome,
    ) {
        if let Some(PartitionContext { transactions, mut io, .. }) =
            self.partition_context(now, ticket.partition)
        {
            markers::marked(transactions, &mut io, ticket.number, (topic, partition), outcome);
        }
    }

    /// Takes a producer id that was asked for, or the error, which clients see.
    pub fn producer_id(
        &mut self,
        now: Now,
        ticket: ProducerIdTicket,
        outcome: Result<ProducerId, ErrorCode>,
    ) {
        match self.asked.remove(&ticket.0) {
            Some(Asked::Idempotent(token)) => {
                self.usage.bytes -= memory::PRODUCER_ID;
                let reply = match outcome {
                    Ok(producer_id) => replies::initialised(producer_id, ProducerEpoch::ZERO),
                    Err(error) => replies::not_initialised(error),
                };
                self.reply(token, reply);
            }
            Some(Asked::Transaction { partition, id }) => {
                let context = self
                    .partition_context(now, partition)
                    .expect("an unloaded partition has no open requests");
                let PartitionContext { transactions, mut io, .. } = context;
                outcome::producer_id(transactions, &mut io, &id, outcome);
            }
            None => {}
        }
    }

    /// Handles every deadline that is due.
    pub fn tick(&mut self, now: Now) {
        self.mono_ms = self.mono_ms.max(now.mono_ms);
        while let Some((_, due)) = self.deadlines.pop(self.mono_ms) {
            let mut context =
                self.partition_context(now, due.partition()).expect("an unloaded partition has no deadlines");
            context.fire(&due);
        }
    }

    /// The transactional ids of a partition, for tests.
    #[cfg(test)]
    pub(super) fn transactions(&self, partition: i32) -> &super::transaction::Transactions {
        &self.partitions[&partition].transactions
    }

    /// Deadlines that are set, and producer ids that were asked for, for tests.
    #[cfg(test)]
    pub(super) fn waits(&self) -> (usize, usize) {
        (self.deadlines.len(), self.asked.len())
    }

    fn init_producer_id(
        &mut self,
        now: Now,
        token: Token,
        request: &InitProducerIdRequest<'_>,
        two_phase: (bool, bool),
    ) {
        let Some(id) = request.transactional_id.as_deref() else {
            return self.idempotent(token, request);
        };
        let init = Init::validate(token, id, request, two_phase, &self.config);
        let context = init.and_then(|init| self.owner(now, id).map(|context| (init, context)));
        match context {
            Ok((init, PartitionContext { transactions, mut io, .. })) => {
                init_producer_id::serve(transactions, &mut io, &init);
            }
            Err(error) => self.reply(token, replies::not_initialised(error)),
        }
    }

    /// Serves a producer without transactions: it gets a new id.
    fn idempotent(&mut self, token: Token, request: &InitProducerIdRequest<'_>) {
        let has_memory = self.usage.bytes + memory::PRODUCER_ID <= self.config.memory_bytes_max;
        match init_producer_id::expected(request) {
            Ok(_) if has_memory => {
                self.tickets += 1;
                self.usage.bytes += memory::PRODUCER_ID;
                self.asked.insert(self.tickets, Asked::Idempotent(token));
                let ticket = ProducerIdTicket(self.tickets);
                self.effects.push_back(Effect::NewProducerId { ticket });
            }
            Ok(_) => {
                let error = ErrorCode::COORDINATOR_LOAD_IN_PROGRESS;
                self.reply(token, replies::not_initialised(error));
            }
            Err(error) => self.reply(token, replies::not_initialised(error)),
        }
    }

    fn add_partitions(
        &mut self,
        now: Now,
        token: Token,
        api_version: i16,
        request: &AddPartitionsToTxnTransaction<'_>,
    ) {
        let id = &*request.transactional_id;
        if !request.verify_only {
            return self.add(now, id, Adding::of_partitions(token, api_version, request));
        }
        let result = match named(id).and_then(|id| self.served(id)) {
            Ok(partition) => add_partitions::verify(&self.partitions[&partition].transactions, request),
            Err(error) => add_partitions::refused(request, error),
        };
        self.reply(token, Reply::AddPartitions(result));
    }

    fn add_offsets(&mut self, now: Now, token: Token, request: &AddOffsetsToTxnRequest<'_>) {
        let adding = Adding::of_offsets(token, self.config.offsets_topic_num_partitions, request);
        self.add(now, &request.transactional_id, adding);
    }

    fn add(&mut self, now: Now, id: &str, adding: Adding) {
        match named(id).and_then(|id| self.owner(now, id)) {
            Ok(PartitionContext { transactions, mut io, .. }) => {
                add_partitions::serve(transactions, &mut io, id, adding);
            }
            Err(error) => {
                let (token, reply) = adding.reply(id, error);
                self.reply(token, reply);
            }
        }
    }

    fn end_txn(&mut self, now: Now, token: Token, api_version: i16, request: &EndTxnRequest<'_>) {
        match named(&request.transactional_id).and_then(|id| self.owner(now, id)) {
            Ok(PartitionContext { transactions, mut io, .. }) => {
                end_txn::serve(transactions, &mut io, token, api_version, request);
            }
            Err(error) => self.reply(token, replies::not_ended(error)),
        }
    }

    fn describe_transactions(&mut self, token: Token, request: &DescribeTransactionsRequest<'_>) {
        let describe = |id: &str| match named(id).and_then(|id| self.served(id)) {
            Ok(partition) => describe::describe(&self.partitions[&partition].transactions, id),
            Err(error) => describe::refused(id, error),
        };
        let transaction_states = request.transactional_ids.iter().map(|id| describe(id)).collect();
        let response = DescribeTransactionsResponse { transaction_states, ..Default::default() };
        self.reply(token, Reply::DescribeTransactions(response));
    }

    fn list_transactions(&mut self, now: Now, token: Token, request: &ListTransactionsRequest<'_>) {
        let response = match Filter::new(request, now.wall_ms) {
            _ if self.partitions.values().any(|partition| !partition.service.loaded) => {
                describe::no_list(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS)
            }
            Ok(filter) => {
                let mut response = ListTransactionsResponse {
                    unknown_state_filters: filter.unknown_states().map(Into::into).collect(),
                    ..Default::default()
                };
                for partition in self.partitions.values() {
                    filter.list(&partition.transactions, &mut response.transaction_states);
                }
                response
            }
            Err(error) => describe::no_list(error),
        };
        self.reply(token, Reply::ListTransactions(response));
    }

    fn reply(&mut self, token: Token, reply: Reply) {
        self.effects.push_back(Effect::Reply { token, reply });
    }

    /// The partition of a transactional id, if it is ours and loaded.
    fn served(&self, transactional_id: &str) -> Result<i32, ErrorCode> {
        let id = self.partition_for(transactional_id);
        match self.partitions.get(&id) {
            Some(partition) if partition.service.loaded => Ok(id),
            Some(_) => Err(ErrorCode::COORDINATOR_LOAD_IN_PROGRESS),
            None => Err(ErrorCode::NOT_COORDINATOR),
        }
    }

    /// The partition of a transactional id, for a request that may change it.
    fn owner(&mut self, now: Now, transactional_id: &str) -> Result<PartitionContext<'_>, ErrorCode> {
        let partition = self.served(transactional_id).inspect_err(|error| {
            if *error == ErrorCode::COORDINATOR_LOAD_IN_PROGRESS {
                self.wanted = Some(self.partition_for(transactional_id));
            }
        })?;
        Ok(self.partition_context(now, partition).expect("it is served"))
    }

    /// A partition's transactional ids, and beside them everything that a handler needs.
    fn partition_context(&mut self, now: Now, partition: i32) -> Option<PartitionContext<'_>> {
        self.mono_ms = self.mono_ms.max(now.mono_ms);
        let Partition { service, transactions, outstanding } = self.partitions.get_mut(&partition)?;
        let io = Io {
            now: Now { mono_ms: self.mono_ms, ..now },
            partition,
            coordinator_epoch: service.coordinator_epoch,
            config: &self.config,
            effects: &mut self.effects,
            deadlines: &mut self.deadlines,
            outstanding,
            asked: &mut self.asked,
            tickets: &mut self.tickets,
            usage: &mut self.usage,
        };
        Some(PartitionContext { service, transactions, io })
    }
}

/// Transactions must have a name.
fn named(transactional_id: &str) -> Result<&str, ErrorCode> {
    if transactional_id.is_empty() { Err(ErrorCode::INVALID_REQUEST) } else { Ok(transactional_id) }
}
