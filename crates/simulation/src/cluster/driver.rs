//! A coordinator on a node, driven as `coordinators::driver` of the broker drives it.
//!
//! What the broker leaves to its threads is left to chance here: when the node notices that it leads or leads no more, when a
//! partition is taken over, when a write that is decided is appended. The order is the broker's: the writes of a partition are
//! appended in the order in which they were decided, in the epoch in which the partition was taken over; they are reported in the
//! order of the log; an answer from memory waits until a majority has confirmed who leads. What a batch has, and what follows from
//! its fate, both drivers take from `mainstem_coordination::writes`.

use super::calls::{Answer, Calls, MarkerCall, Parcel, Transit};
use super::machine::{Effect, Machine};
use super::{Defect, Done};
use crate::node::{Node, read_batches};
use mainstem_coordination::groups::{CoordinatorRecord, LogEntry, Producer, Token, TransactionEnd};
use mainstem_coordination::time::Now;
use mainstem_coordination::transactions::{MarkerOutcome, Markers, ProducerIdTicket};
use mainstem_coordination::writes::{self, Consequence};
use mainstem_log::sim::Random;
use mainstem_log::{AppendError, Log, Origin, TransactionMarker, VerificationGuard, prepare};
use mainstem_records::{
    Batch, BatchOptions, EndTransactionMarker, LeaderEpoch, ProducerEpoch, ProducerId, Scratch,
};
use mainstem_replication::LeaderAppendError;
use mainstem_wire::ErrorCode;
use std::collections::{BTreeSet, VecDeque};

/// How soon a node notices who leads, in ms, mostly.
const NOTICE_MS: u64 = 40;
/// The same where its threads are busy.
const BUSY_MS: u64 = 1_500;
/// A replica is in sync for so long without having caught up (`replica.lag.time.max.ms`).
const LAG_MAX_MS: u64 = 1_500;
/// Percent of the turns in which a decided write is appended.
const WRITES_AT_ONCE: u64 = 85;

/// What a driver works with.
pub(crate) struct Context<'a> {
    pub(crate) now_ms: u64,
    pub(crate) wall_ms: i64,
    pub(crate) delay_max_ms: u64,
    pub(crate) min_insync: usize,
    pub(crate) defect: Option<Defect>,
    /// The node's only thread that takes partitions over and gives them up is at another one.
    pub(crate) is_busy: bool,
    pub(crate) random: &'a mut Random,
    pub(crate) node: &'a mut Node,
    pub(crate) calls: &'a mut Calls,
    pub(crate) done: &'a mut Done,
    /// Markers and producer ids that were asked for.
    pub(crate) work: &'a mut Vec<Work>,
}

impl Context<'_> {
    pub(crate) fn now(&self) -> Now {
        Now { mono_ms: self.now_ms, wall_ms: self.wall_ms }
    }

    pub(crate) fn send(&mut self, parcel: Parcel) {
        let Context { now_ms, delay_max_ms, .. } = *self;
        self.calls.send(Transit { now_ms, delay_max_ms, random: &mut *self.random }, parcel);
    }

    fn answer(&mut self, token: Token, answer: Answer) {
        self.send(Parcel::Answer { token, answer });
    }

    /// What became of what was appended to a partition up to an offset in a term; `None`: it is not known yet.
    pub(crate) fn fate(&self, partition: usize, (upto, term): (i64, u64)) -> Option<Result<(), ErrorCode>> {
        if self.node.log(partition).is_none() {
            return Some(Err(ErrorCode::KAFKA_STORAGE_ERROR));
        }
        if self.node.leads(partition) != Some(term) {
            return Some(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER));
        }
        let acknowledged = self.node.acknowledged_offset(partition, self.min_insync)?;
        if acknowledged >= upto {
            return Some(Ok(()));
        }
        let is_committed = self.node.log(partition)?.ends().high_watermark >= upto;
        let in_sync = || self.node.in_sync(partition, self.now_ms, LAG_MAX_MS).len();
        let is_short = is_committed && in_sync() < self.min_insync;
        is_short.then_some(Err(ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND))
    }

    /// Appends a marker. Returns the end up to which it has to be committed, and the term.
    pub(crate) fn append_marker(
        &mut self,
        partition: usize,
        marker: &TransactionMarker,
    ) -> Result<(i64, u64), ErrorCode> {
        let (wall_ms, now_ms) = (self.wall_ms, self.now_ms);
        let term = self.node.leads(partition).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
        let appended = self
            .node
            .append_with(partition, 100, |log, epoch| log.append_marker(marker, epoch, wall_ms, now_ms));
        appended.map(|appended| (appended.last_offset + 1, term)).map_err(|error| code_of(&error))
    }
}

/// What a coordinator asks for besides appends and replies.
pub(crate) enum Work {
    Markers(Markers),
    ProducerId(ProducerIdTicket),
}

/// A write that is decided and not made yet.
struct Write<T> {
    ticket: T,
    /// The term in which the partition was taken over when it was decided.
    term: Option<u64>,
    content: Content,
}

enum Content {
    Records {
        timestamp_ms: i64,
        batch: BatchOptions,
        guard: VerificationGuard,
        records: Vec<CoordinatorRecord>,
    },
    Marker(Box<MarkerCall>),
}

/// A write whose fate is not known.
struct CommitWait<T> {
    ticket: T,
    upto: i64,
    term: u64,
    marker: Option<Box<MarkerCall>>,
}

/// What the thread that follows leadership has to do.
enum Job {
    GiveUp,
    TakeOver,
}

/// A partition that is being taken over.
struct Loading {
    term: Option<u64>,
    read_at_ms: u64,
    /// Where the log ended when it was read.
    upto: Option<i64>,
}

/// An answer from memory that is not confirmed.
struct Held {
    token: Token,
    term: u64,
    answer: Answer,
}

/// A coordinator of one partition.
pub(crate) struct Driver<M: Machine> {
    pub(crate) machine: M,
    partition: usize,
    /// The term in which the node was last seen to lead, and has not been seen to lead no more.
    led: Option<u64>,
    /// The term in which the partition was taken over last.
    term: Option<u64>,
    jobs: VecDeque<Job>,
    loading: Option<Loading>,
    look_at_ms: u64,
    writes: VecDeque<Write<M::Ticket>>,
    commit_waits: VecDeque<CommitWait<M::Ticket>>,
    waiting: BTreeSet<Token>,
    confirmations: u64,
    asked: Vec<Held>,
    next: Vec<Held>,
}

impl<M: Machine> Driver<M> {
    pub(crate) fn new(machine: M, partition: usize) -> Driver<M> {
        Driver {
            machine,
            partition,
            led: None,
            term: None,
            jobs: VecDeque::new(),
            loading: None,
            look_at_ms: 0,
            writes: VecDeque::new(),
            commit_waits: VecDeque::new(),
            waiting: BTreeSet::new(),
            confirmations: 0,
            asked: Vec::new(),
            next: Vec::new(),
        }
    }

    /// Everybody who waits for an answer, and the markers that are not reported; their connections end with the node.
    pub(crate) fn into_waiting(self) -> (Vec<Token>, Vec<MarkerCall>) {
        let held = self.asked.into_iter().chain(self.next).map(|held| held.token);
        let queued = self.writes.into_iter().filter_map(|write| write.content.marker());
        let markers = queued.chain(self.commit_waits.into_iter().filter_map(|wait| wait.marker));
        (self.waiting.into_iter().chain(held).collect(), markers.map(|marker| *marker).collect())
    }

    /// Takes a request. An answer that follows at once is made from memory: where `confirms`, it is held until it is known that
    /// the node leads.
    pub(crate) fn ask(
        &mut self,
        context: &mut Context<'_>,
        token: Token,
        (request, version): (M::Request, i16),
        guard: VerificationGuard,
        confirms: bool,
    ) {
        let lease = self.term.filter(|_| confirms).map(|term| (token, term));
        self.waiting.insert(token);
        self.machine.step(context.now(), token, version, request);
        self.carry_out(context, guard, lease);
    }

    /// Changes the state machine, and carries out what follows from that.
    pub(crate) fn change(&mut self, context: &mut Context<'_>, change: impl FnOnce(&mut M, Now)) {
        change(&mut self.machine, context.now());
        self.carry_out(context, VerificationGuard::NONE, None);
    }

    /// Whether a partition is being taken over.
    pub(crate) fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Lets everything happen that is due.
    pub(crate) fn turn(&mut self, context: &mut Context<'_>) {
        self.follow_role(context);
        self.run_jobs(context);
        self.load(context);
        self.write_some(context);
        self.look_for_commits(context);
        self.confirm(context);
        if self.machine.next_deadline_ms().is_some_and(|at_ms| at_ms <= context.now_ms) {
            self.change(context, |machine, now| machine.tick(now));
        }
    }

    /// As `follow_role` of the broker's cluster: what a node leads in another term is given up and taken over.
    fn follow_role(&mut self, context: &mut Context<'_>) {
        if context.now_ms < self.look_at_ms {
            return;
        }
        let wait_ms = if context.random.chance(4) { BUSY_MS } else { NOTICE_MS };
        self.look_at_ms = context.now_ms + 1 + context.random.below(wait_ms);
        if context.node.leads(self.partition).is_none() {
            self.jobs.extend(self.led.take().map(|_| Job::GiveUp));
            return;
        }
        let Some(term) = context.node.leads_settled(self.partition) else { return };
        if self.led != Some(term) {
            self.jobs.extend(self.led.replace(term).map(|_| Job::GiveUp));
            self.jobs.push_back(Job::TakeOver);
        }
    }

    fn run_jobs(&mut self, context: &mut Context<'_>) {
        while self.loading.is_none()
            && !context.is_busy
            && !self.jobs.is_empty()
            && context.random.chance(60)
            && let Some(job) = self.jobs.pop_front()
        {
            match job {
                Job::GiveUp => self.change(context, |machine, now| machine.unload(now)),
                Job::TakeOver => self.take_over(context),
            }
        }
    }

    fn take_over(&mut self, context: &mut Context<'_>) {
        let term = context.node.leads(self.partition);
        self.machine.begin_load(LeaderEpoch::new(term.unwrap_or(0) as i32));
        self.term = Some(term.unwrap_or(0));
        let read_at_ms = context.now_ms + context.random.below(20);
        self.loading = Some(Loading { term, read_at_ms, upto: None });
        context.done.add("coordinator loaded");
    }

    /// Reads the log, and waits until what was read is committed.
    fn load(&mut self, context: &mut Context<'_>) {
        let Some(Loading { term, read_at_ms, upto }) = self.loading else { return };
        let unread = context.defect == Some(Defect::AnswersBeforeReplay);
        if upto.is_none() && context.now_ms >= read_at_ms {
            let end = context.node.log(self.partition).map(|log| {
                let (now, machine) = (context.now(), &mut self.machine);
                if !unread {
                    replay(log, |entry| assert_eq!(machine.load(now, entry), 0, "a record of ours"));
                }
                log.ends().log_end
            });
            self.loading = Some(Loading { term, read_at_ms, upto: Some(end.unwrap_or(i64::MAX)) });
            return;
        }
        let fate = match (term, upto) {
            (_, None) => return,
            (None, _) => Some(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
            (Some(_), Some(_)) if unread => Some(Ok(())),
            (Some(term), Some(upto)) => {
                context.fate(self.partition, (upto, term)).map(|fate| of_log(fate, context.defect))
            }
        };
        let Some(fate) = fate else { return };
        self.loading = None;
        self.change(context, |machine, now| match fate {
            Ok(()) => machine.finish_load(now),
            Err(_) => machine.unload(now),
        });
    }

    fn carry_out(
        &mut self,
        context: &mut Context<'_>,
        guard: VerificationGuard,
        lease: Option<(Token, u64)>,
    ) {
        self.machine.check();
        for effect in self.machine.effects() {
            match effect {
                Effect::Reply { token, answer } => self.reply(context, token, answer, lease),
                Effect::Append { ticket, timestamp_ms, batch, records } => {
                    let guard = if batch.is_transactional { guard } else { VerificationGuard::NONE };
                    let content = Content::Records { timestamp_ms, batch, guard, records };
                    self.writes.push_back(Write { ticket, term: self.term, content });
                }
                Effect::Markers(markers) => context.work.push(Work::Markers(markers)),
                Effect::ProducerId(ticket) => context.work.push(Work::ProducerId(ticket)),
            }
        }
    }

    fn reply(
        &mut self,
        context: &mut Context<'_>,
        token: Token,
        answer: Answer,
        lease: Option<(Token, u64)>,
    ) {
        if !self.waiting.remove(&token) {
            return;
        }
        match lease.filter(|(of, _)| *of == token) {
            None => context.answer(token, answer),
            Some((_, term)) if context.node.leads(self.partition) == Some(term) => {
                self.next.push(Held { token, term, answer });
            }
            Some(_) => context.answer(token, Answer::Refused(ErrorCode::NOT_COORDINATOR)),
        }
    }

    /// Puts a marker behind the writes that were decided before, if it may be written now.
    pub(crate) fn write_marker(
        &mut self,
        context: &mut Context<'_>,
        call: MarkerCall,
        begin: impl FnOnce(&mut M, Now, TransactionEnd) -> Result<M::Ticket, ErrorCode>,
    ) {
        let producer = Producer { id: call.marker.producer_id, epoch: call.marker.producer_epoch };
        let end = TransactionEnd { producer, committed: call.marker.committed };
        match begin(&mut self.machine, context.now(), end) {
            Ok(ticket) => {
                let content = Content::Marker(Box::new(call));
                self.writes.push_back(Write { ticket, term: self.term, content });
                self.carry_out(context, VerificationGuard::NONE, None);
            }
            Err(error) => context.marked(call, Err(error)),
        }
    }

    fn write_some(&mut self, context: &mut Context<'_>) {
        while !self.writes.is_empty()
            && context.random.chance(WRITES_AT_ONCE)
            && let Some(write) = self.writes.pop_front()
        {
            self.write(context, write);
        }
    }

    fn write(&mut self, context: &mut Context<'_>, write: Write<M::Ticket>) {
        let Write { ticket, term, content } = write;
        let leads_in = context.node.leads(self.partition);
        // What was decided in another term is not true any more.
        let may_write = leads_in == term || context.defect == Some(Defect::WritesInAnotherTerm);
        let (appended, marker) = match (content, may_write) {
            (content, false) => (Err(ErrorCode::NOT_LEADER_OR_FOLLOWER), content.marker()),
            (Content::Marker(call), true) => {
                (context.append_marker(self.partition, &call.marker), Some(call))
            }
            (Content::Records { timestamp_ms, batch, guard, records }, true) => {
                let bytes = writes::batch_of(batch, timestamp_ms, &records).expect("a small batch");
                (self.append(context, &bytes, guard), None)
            }
        };
        match appended {
            Ok(_) if context.defect == Some(Defect::AnswersBeforeCommit) => {
                self.report(context, ticket, Ok(()), marker);
            }
            Ok((upto, term)) => self.commit_waits.push_back(CommitWait { ticket, upto, term, marker }),
            Err(error) => self.report(context, ticket, Err(error), marker),
        }
    }

    fn append(
        &self,
        context: &mut Context<'_>,
        bytes: &[u8],
        guard: VerificationGuard,
    ) -> Result<(i64, u64), ErrorCode> {
        let (wall_ms, now_ms) = (context.wall_ms, context.now_ms);
        let partition = self.partition;
        let term = context.node.leads(partition).ok_or(ErrorCode::NOT_LEADER_OR_FOLLOWER)?;
        let config = context.node.log(partition).ok_or(ErrorCode::KAFKA_STORAGE_ERROR)?.config().clone();
        let (mut scratch, mut out) = (Scratch::new(), Vec::new());
        let prepared = prepare(bytes, &config, wall_ms, Origin::Coordinator, &mut scratch, &mut out);
        let prepared = prepared.expect("a batch of ours").verified_by(guard);
        let appended = context
            .node
            .append_with(partition, bytes.len(), |log, epoch| log.append(&prepared, epoch, now_ms));
        appended.map(|appended| (appended.last_offset + 1, term)).map_err(|error| code_of(&error))
    }

    /// A write was not made.
    fn report(
        &mut self,
        context: &mut Context<'_>,
        ticket: M::Ticket,
        outcome: Result<(), ErrorCode>,
        marker: Option<Box<MarkerCall>>,
    ) {
        self.change(context, |machine, now| machine.appended(now, ticket, outcome));
        marker.into_iter().for_each(|call| context.marked(*call, outcome));
    }

    /// Writes are committed in the order of the log; where the fate of one stays unknown the partition is given up.
    fn look_for_commits(&mut self, context: &mut Context<'_>) {
        while let Some(first) = self.commit_waits.front()
            && let Some(fate) = context.fate(self.partition, (first.upto, first.term))
            && let Some(CommitWait { ticket, term, marker, .. }) = self.commit_waits.pop_front()
        {
            let fate = of_log(fate, context.defect);
            match Consequence::of(fate, Some(term), self.term) {
                Consequence::Report => {
                    self.change(context, |machine, now| machine.appended(now, ticket, Ok(())));
                }
                Consequence::GiveUp => self.change(context, |machine, now| machine.unload(now)),
                Consequence::Nothing => {}
            }
            marker.into_iter().for_each(|call| context.marked(*call, fate));
        }
    }

    /// Answers from memory leave when a majority has confirmed that the node has led since.
    fn confirm(&mut self, context: &mut Context<'_>) {
        if context.node.take_confirmed(self.partition).contains(&self.confirmations) {
            self.asked.drain(..).for_each(|held| context.answer(held.token, held.answer));
        }
        let term = context.node.leads(self.partition);
        for list in [&mut self.asked, &mut self.next] {
            for held in list.extract_if(.., |held| Some(held.term) != term) {
                context.answer(held.token, Answer::Refused(ErrorCode::NOT_COORDINATOR));
            }
        }
        let is_due = self.asked.is_empty() && !self.next.is_empty();
        if is_due && context.node.confirm(self.partition, self.confirmations + 1) {
            self.confirmations += 1;
            self.asked = std::mem::take(&mut self.next);
        }
    }
}

impl Content {
    fn marker(self) -> Option<Box<MarkerCall>> {
        match self {
            Content::Marker(call) => Some(call),
            Content::Records { .. } => None,
        }
    }
}

impl Context<'_> {
    /// Says what became of a marker in a partition of groups.
    fn marked(&mut self, call: MarkerCall, outcome: Result<(), ErrorCode>) {
        let outcome = MarkerOutcome::of_groups(outcome);
        let by = (self.node.id().node() - 1) as usize;
        self.send(Parcel::Marked { by, call, outcome });
    }
}

/// What a coordinator goes by, where nothing is wrong with that.
fn of_log(fate: Result<(), ErrorCode>, defect: Option<Defect>) -> Result<(), ErrorCode> {
    match defect {
        Some(Defect::GivesUpWhatIsCommitted) => fate,
        _ => writes::without_min_insync(fate),
    }
}

/// The error code of a refused append, as the broker has it.
pub(crate) fn code_of(error: &LeaderAppendError) -> ErrorCode {
    match error {
        LeaderAppendError::NotLeader { .. } => ErrorCode::NOT_LEADER_OR_FOLLOWER,
        LeaderAppendError::Append(AppendError::InvalidProducerEpoch { .. }) => {
            ErrorCode::INVALID_PRODUCER_EPOCH
        }
        LeaderAppendError::Append(AppendError::CoordinatorFenced { .. }) => {
            ErrorCode::TRANSACTION_COORDINATOR_FENCED
        }
        LeaderAppendError::Append(
            AppendError::InvalidTransactionState { .. } | AppendError::TransactionNotVerified { .. },
        ) => ErrorCode::INVALID_TXN_STATE,
        LeaderAppendError::Append(AppendError::OutOfOrderSequence { .. }) => {
            ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER
        }
        LeaderAppendError::Append(_) | LeaderAppendError::Replica(_) => ErrorCode::KAFKA_STORAGE_ERROR,
    }
}

/// Calls `each` with every record and every end of a transaction of a log, in order.
fn replay(log: &Log, mut each: impl FnMut(LogEntry<'_>)) {
    let ends = log.ends();
    let bytes = read_batches(log, ends.log_start..ends.log_end);
    let mut rest = &bytes[..];
    while let Ok((batch, behind)) = Batch::split_first(rest) {
        let attributes = batch.attributes();
        let producer = Producer {
            id: ProducerId::new(batch.producer_id()),
            epoch: ProducerEpoch::new(batch.producer_epoch()),
        };
        if let Some(EndTransactionMarker { committed, .. }) = EndTransactionMarker::of_batch(&batch) {
            each(LogEntry::End(TransactionEnd { producer, committed }));
        } else {
            let producer = attributes.is_transactional().then_some(producer);
            let mut buffer = Vec::new();
            for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
                let record = record.expect("a record");
                let key = record.key.expect("a key");
                each(LogEntry::Record { key, value: record.value, producer });
            }
        }
        rest = behind;
    }
}
