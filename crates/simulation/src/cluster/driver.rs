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
use crate::node::{Accepted, Fate, Node, epoch_of};
use mainstem_coordination::groups::{CoordinatorRecord, LogEntry, Producer, Token, TransactionEnd};
use mainstem_coordination::time::Now;
use mainstem_coordination::transactions::{MarkerOutcome, Markers, ProducerIdTicket};
use mainstem_coordination::writes::{self, Consequence};
use mainstem_log::sim::Random;
use mainstem_log::{Origin, TransactionMarker, VerificationGuard};
use mainstem_records::{BatchOptions, LeaderEpoch};
use mainstem_store::replay::{Checksums, Entry};
use mainstem_wire::ErrorCode;
use std::collections::{BTreeSet, VecDeque};

/// How soon a node notices who leads, in ms, mostly.
const NOTICE_MS: u64 = 40;
/// The same where its threads are busy.
const BUSY_MS: u64 = 1_500;
/// Percent of the turns in which a decided write is appended.
const WRITES_AT_ONCE: u64 = 85;

/// What a driver works with.
pub(crate) struct Context<'a> {
    pub(crate) now_ms: u64,
    pub(crate) wall_ms: i64,
    pub(crate) delay_max_ms: u64,
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

    /// Appends a marker, in one epoch or in any.
    ///
    /// # Errors
    /// Kafka's code.
    pub(crate) fn append_marker(
        &mut self,
        partition: usize,
        marker: &TransactionMarker,
        epoch: Option<LeaderEpoch>,
    ) -> Result<Accepted, ErrorCode> {
        self.node.append_marker(partition, marker, epoch).map_err(|refused| refused.code())
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
    term: u64,
    fate: Fate,
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
    /// That of all that was read.
    fate: Option<Fate>,
}

/// An answer from memory that is not confirmed.
struct Held {
    token: Token,
    answer: Answer,
    /// That of the question whether the node leads.
    fate: Fate,
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
    held: Vec<Held>,
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
            held: Vec::new(),
        }
    }

    /// Everybody who waits for an answer, and the markers that are not reported; their connections end with the node.
    pub(crate) fn into_waiting(self) -> (Vec<Token>, Vec<MarkerCall>) {
        let held = self.held.into_iter().map(|held| held.token);
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
        self.loading = Some(Loading { term, read_at_ms, fate: None });
        context.done.add("coordinator loaded");
    }

    /// Reads the log, and waits until what was read is committed.
    fn load(&mut self, context: &mut Context<'_>) {
        let Some(Loading { term, read_at_ms, fate }) = &self.loading else { return };
        let unread = context.defect == Some(Defect::AnswersBeforeReplay);
        let fate = match (*term, fate) {
            (_, None) if context.now_ms < *read_at_ms => return,
            (term, None) => {
                if !unread {
                    self.replay(context);
                }
                let fate = context.node.when_all_committed(self.partition, term.unwrap_or(0));
                self.loading.iter_mut().for_each(|loading| loading.fate = Some(fate.clone()));
                return;
            }
            (None, _) => Some(Err(ErrorCode::NOT_LEADER_OR_FOLLOWER)),
            (Some(_), Some(_)) if unread => Some(Ok(())),
            (Some(_), Some(fate)) => fate.outcome().map(|fate| of_log(fate, context.defect)),
        };
        let Some(fate) = fate else { return };
        self.loading = None;
        self.change(context, |machine, now| match fate {
            Ok(()) => machine.finish_load(now),
            Err(_) => machine.unload(now),
        });
    }

    /// Reads the log as the broker does.
    fn replay(&mut self, context: &Context<'_>) {
        let Some(partition) = context.node.partition(self.partition) else { return };
        let (now, machine) = (context.now(), &mut self.machine);
        let replayed = partition.replay(Checksums::Unread, |entry| {
            if let Some(entry) = keyed(entry) {
                assert_eq!(machine.load(now, entry), 0, "a record of ours");
            }
        });
        // A log that is gone by now is not loaded either.
        if let Ok(replayed) = replayed {
            replayed.expect("a log that can be read");
        }
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
            Some((_, term)) => {
                let fate = context.node.confirm(self.partition, term);
                self.held.push(Held { token, answer, fate });
            }
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
        // What was decided in another term is not true any more.
        let epoch =
            Some(epoch_of(term.unwrap_or(0))).filter(|_| context.defect != Some(Defect::WritesInAnotherTerm));
        let (appended, marker) = match content {
            Content::Marker(call) => (context.append_marker(self.partition, &call.marker, epoch), Some(call)),
            Content::Records { timestamp_ms, batch, guard, records } => {
                let bytes = writes::batch_of(batch, timestamp_ms, &records).expect("a small batch");
                let appended =
                    context.node.append(self.partition, &bytes, Origin::Coordinator, (guard, epoch));
                (appended.map_err(|refused| refused.code()), None)
            }
        };
        match appended {
            Ok(_) if context.defect == Some(Defect::AnswersBeforeCommit) => {
                self.report(context, ticket, Ok(()), marker);
            }
            Ok(Accepted { term, fate, .. }) => {
                self.commit_waits.push_back(CommitWait { ticket, term, fate, marker });
            }
            Err(error) => self.report(context, ticket, Err(error), marker),
        }
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
            && let Some(fate) = first.fate.outcome()
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
        for Held { token, answer, fate } in std::mem::take(&mut self.held) {
            match fate.outcome() {
                None => self.held.push(Held { token, answer, fate }),
                Some(Ok(())) => context.answer(token, answer),
                Some(Err(_)) => context.answer(token, Answer::Refused(ErrorCode::NOT_COORDINATOR)),
            }
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

/// The entry as the state machines of coordinators read it: their records have a key.
fn keyed(entry: Entry<'_>) -> Option<LogEntry<'_>> {
    match entry {
        Entry::Record { record, producer } => {
            let value = record.value;
            record.key.map(|key| LogEntry::Record { key, value, producer })
        }
        Entry::End(end) => Some(LogEntry::End(end)),
        Entry::Control { .. } => None,
    }
}
