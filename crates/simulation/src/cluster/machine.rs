//! The coordinators' state machines as their driver sees them: the same calls as in the broker's.

use super::calls::Answer;
use mainstem_coordination::groups::{
    self, CoordinatorRecord, GroupCoordinator, LogEntry, RequestContext, Token, VisibleTopics,
};
use mainstem_coordination::time::Now;
use mainstem_coordination::transactions::{self, Markers, ProducerIdTicket, TransactionCoordinator};
use mainstem_coordination::writes;
use mainstem_records::{BatchOptions, LeaderEpoch};
use mainstem_wire::ErrorCode;

/// Each internal topic has one partition.
const PARTITION: i32 = 0;

/// What a coordinator asks of its driver.
pub(crate) enum Effect<M: Machine> {
    Reply { token: Token, answer: Answer },
    Append { ticket: M::Ticket, timestamp_ms: i64, batch: BatchOptions, records: Vec<CoordinatorRecord> },
    Markers(Markers),
    ProducerId(ProducerIdTicket),
}

/// A coordinator's state machine.
pub(crate) trait Machine: Sized {
    type Request;
    type Ticket: Copy;

    fn step(&mut self, now: Now, token: Token, version: i16, request: Self::Request);
    fn effects(&mut self) -> Vec<Effect<Self>>;
    fn next_deadline_ms(&self) -> Option<u64>;
    fn tick(&mut self, now: Now);
    fn appended(&mut self, now: Now, ticket: Self::Ticket, outcome: Result<(), ErrorCode>);
    fn begin_load(&mut self, epoch: LeaderEpoch);
    /// Returns the number of records that do not decode.
    fn load(&mut self, now: Now, entry: LogEntry<'_>) -> u64;
    fn finish_load(&mut self, now: Now);
    fn unload(&mut self, now: Now);
    /// Asserts what holds between any two calls.
    fn check(&self);
}

impl Machine for GroupCoordinator {
    type Request = groups::Request<'static>;
    type Ticket = groups::Ticket;

    fn step(&mut self, now: Now, token: Token, version: i16, request: Self::Request) {
        let context = RequestContext {
            api_version: version,
            client_id: "simulated",
            client_host: "/127.0.0.1",
            visible: VisibleTopics::ALL,
        };
        GroupCoordinator::step(self, now, token, context, request);
    }

    fn effects(&mut self) -> Vec<Effect<Self>> {
        let effects = GroupCoordinator::effects(self).map(|effect| match effect {
            groups::Effect::Reply { token, reply } => Effect::Reply { token, answer: Answer::Groups(reply) },
            groups::Effect::Append { ticket, timestamp_ms, producer, records } => {
                Effect::Append { ticket, timestamp_ms, batch: writes::options_of(producer), records }
            }
        });
        effects.collect()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        GroupCoordinator::next_deadline_ms(self)
    }

    fn tick(&mut self, now: Now) {
        GroupCoordinator::tick(self, now);
    }

    fn appended(&mut self, now: Now, ticket: groups::Ticket, outcome: Result<(), ErrorCode>) {
        GroupCoordinator::appended(self, now, ticket, outcome);
    }

    fn begin_load(&mut self, _: LeaderEpoch) {
        GroupCoordinator::begin_load(self, PARTITION);
    }

    fn load(&mut self, now: Now, entry: LogEntry<'_>) -> u64 {
        GroupCoordinator::load(self, now, PARTITION, Some(entry)).malformed
    }

    fn finish_load(&mut self, now: Now) {
        GroupCoordinator::finish_load(self, now, PARTITION);
    }

    fn unload(&mut self, now: Now) {
        GroupCoordinator::unload(self, now, PARTITION);
    }

    fn check(&self) {
        GroupCoordinator::check(self);
    }
}

impl Machine for TransactionCoordinator {
    type Request = transactions::Request<'static>;
    type Ticket = transactions::Ticket;

    fn step(&mut self, now: Now, token: Token, version: i16, request: Self::Request) {
        TransactionCoordinator::step(self, now, token, version, request);
    }

    fn effects(&mut self) -> Vec<Effect<Self>> {
        let effects = TransactionCoordinator::effects(self).map(|effect| match effect {
            transactions::Effect::Reply { token, reply } => {
                Effect::Reply { token, answer: Answer::Transactions(reply) }
            }
            transactions::Effect::Append { ticket, timestamp_ms, records } => {
                Effect::Append { ticket, timestamp_ms, batch: BatchOptions::default(), records }
            }
            transactions::Effect::WriteMarkers(markers) => Effect::Markers(markers),
            transactions::Effect::NewProducerId { ticket } => Effect::ProducerId(ticket),
        });
        effects.collect()
    }

    fn next_deadline_ms(&self) -> Option<u64> {
        TransactionCoordinator::next_deadline_ms(self)
    }

    fn tick(&mut self, now: Now) {
        TransactionCoordinator::tick(self, now);
    }

    fn appended(&mut self, now: Now, ticket: transactions::Ticket, outcome: Result<(), ErrorCode>) {
        TransactionCoordinator::appended(self, now, ticket, outcome);
    }

    fn begin_load(&mut self, epoch: LeaderEpoch) {
        TransactionCoordinator::begin_load(self, PARTITION, epoch);
    }

    fn load(&mut self, now: Now, entry: LogEntry<'_>) -> u64 {
        match entry {
            LogEntry::Record { key, value, .. } => {
                TransactionCoordinator::load(self, now, PARTITION, [(key, value)]).malformed
            }
            LogEntry::End(_) => 1,
        }
    }

    fn finish_load(&mut self, now: Now) {
        TransactionCoordinator::finish_load(self, now, PARTITION);
    }

    fn unload(&mut self, now: Now) {
        TransactionCoordinator::unload(self, now, PARTITION);
    }

    fn check(&self) {
        TransactionCoordinator::check(self);
    }
}
