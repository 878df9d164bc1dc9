//! The transaction coordinator on the [driver](crate::driver): its records go into `__transaction_state`.

use mainstem_config::BrokerConfig;
use mainstem_controller::MetadataImage;
use mainstem_controller::features::TRANSACTION_VERSION;
use mainstem_coordination::groups::LogEntry;
use mainstem_coordination::transactions::{
    self, Markers, ProducerIdTicket, Reply, Request, Ticket, Token, TransactionConfig, TransactionCoordinator,
};
use mainstem_records::{BatchOptions, LeaderEpoch, ProducerId};
use mainstem_wire::ErrorCode;

use mainstem_runtime::clock::Now;

use crate::driver::{Coordinator, Driver, Effect, RequestOrigin};

/// The topic of transactional ids and their transactions.
pub const TRANSACTIONS_TOPIC: &str = "__transaction_state";

/// The coordinator of all transactional ids on this node.
pub type Transactions = Driver<TransactionCoordinator>;

/// Work that the coordinator asks for besides appends and replies.
pub enum Work {
    /// Write the markers of a transaction.
    Markers(Markers),
    /// Draw a producer id.
    ProducerId(ProducerIdTicket),
}

impl Coordinator for TransactionCoordinator {
    type Request<'a> = Request<'a>;
    type Reply = Reply;
    type Ticket = Ticket;
    type Other = Work;

    const TOPIC: &'static str = TRANSACTIONS_TOPIC;

    fn step(&mut self, now: Now, token: Token, origin: &RequestOrigin<'_>, request: Request<'_>) {
        TransactionCoordinator::step(self, now, token, origin.version, request);
    }

    fn effects(&mut self) -> Vec<Effect<Self>> {
        let effects = TransactionCoordinator::effects(self).map(|effect| match effect {
            transactions::Effect::Reply { token, reply } => Effect::Reply { token, reply },
            transactions::Effect::Append { ticket, timestamp_ms, records } => {
                Effect::Append { ticket, timestamp_ms, batch: BatchOptions::default(), records }
            }
            transactions::Effect::WriteMarkers(markers) => Effect::Other(Work::Markers(markers)),
            transactions::Effect::NewProducerId { ticket } => Effect::Other(Work::ProducerId(ticket)),
        });
        effects.collect()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        TransactionCoordinator::next_deadline_ms(self)
    }

    fn tick(&mut self, now: Now) {
        TransactionCoordinator::tick(self, now);
    }

    fn appended(&mut self, now: Now, ticket: Ticket, outcome: Result<(), ErrorCode>) {
        TransactionCoordinator::appended(self, now, ticket, outcome);
    }

    fn partition_of(ticket: Ticket) -> i32 {
        ticket.partition
    }

    fn partition_for(&self, key: &str) -> i32 {
        TransactionCoordinator::partition_for(self, key)
    }

    fn set_partition_count(&mut self, count: i32) {
        TransactionCoordinator::set_partition_count(self, count);
    }

    fn begin_load(&mut self, partition: i32, leader_epoch: LeaderEpoch) -> Self {
        TransactionCoordinator::begin_load(self, partition, leader_epoch)
    }

    fn load(&mut self, now: Now, partition: i32, entry: LogEntry<'_>) -> u64 {
        match entry {
            LogEntry::Record { key, value, .. } => {
                TransactionCoordinator::load(self, now, partition, [(key, value)]).malformed
            }
            // No client writes to this topic within a transaction.
            LogEntry::End(_) => 1,
        }
    }

    fn finish_load(&mut self, now: Now, partition: i32, loader: Self) {
        TransactionCoordinator::finish_load(self, now, partition, loader);
    }

    fn take_wanted(&mut self) -> Option<i32> {
        TransactionCoordinator::take_wanted(self)
    }

    fn unload(&mut self, now: Now, partition: i32) {
        TransactionCoordinator::unload(self, now, partition);
    }

    fn check(&self) {
        TransactionCoordinator::check(self);
    }
}

impl Transactions {
    /// Gives the coordinator the producer id that it has asked for.
    pub fn give_producer_id(&self, ticket: ProducerIdTicket, outcome: Result<i64, ErrorCode>) {
        self.change(|coordinator, now| coordinator.producer_id(now, ticket, outcome.map(ProducerId::new)));
    }

    /// Applies the level of `transaction.version` of the metadata.
    pub fn set_version(&self, image: &MetadataImage) {
        let level = image.feature(TRANSACTION_VERSION.name).unwrap_or(0);
        self.set(|coordinator| coordinator.set_transaction_version(level));
    }
}

/// The configuration of the coordinator.
pub fn config(config: &BrokerConfig) -> TransactionConfig {
    let transactions = &config.transactions;
    TransactionConfig {
        transaction_state_log_num_partitions: transactions.topic_num_partitions,
        offsets_topic_num_partitions: config.offsets.topic_num_partitions,
        transaction_max_timeout_ms: transactions.max_timeout_ms,
        abort_timed_out_interval_ms: transactions.abort_timed_out_interval_ms,
        transactional_id_expiration_ms: transactions.id_expiration_ms,
        remove_expired_interval_ms: transactions.remove_expired_interval_ms,
        ..TransactionConfig::default()
    }
}
