//! Transactional producers. Some write to several partitions and commit or abort. One consumes records, produces results, and commits
//! its offsets in the same transaction. They die with open transactions, and their successors fence them.

use super::calls::{Answer, Calls, Request};
use super::reading::fetch;
use super::{Cluster, DATA_PARTITIONS, OFFSETS, OFFSETS_TOPIC, TOPIC, TRANSACTIONS};
use crate::clients::{At, batch_of};
use crate::node::{Accepted, Fate};
use crate::world::World;
use mainstem_coordination::groups::{self, Token};
use mainstem_coordination::transactions;
use mainstem_log::{Origin, VerificationGuard, VerificationRequest};
use mainstem_records::{BatchOptions, NO_SEQUENCE, ProducerEpoch, ProducerFields, ProducerId};
use mainstem_replication::history::{NO_PARTITION, Operation, Outcome};
use mainstem_store::partition::Refused;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequestGroup, OffsetFetchRequestTopics};
use mainstem_wire::messages::txn_offset_commit_request::{
    TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Transactional ids: the first ones write, the last one processes.
const IDS: u64 = 3;
/// The number of the group of the producer that processes.
const GROUP: u64 = 3;
const GROUP_NAME: &str = "processor";
/// The partition that it reads, and the one to which it writes.
const SOURCE: usize = 0;
const SINK: usize = 1;
/// The process of the first producer; each life of one is another process.
const FIRST_PROCESS: i32 = 100;
/// First number of a transaction in the history, above all values and group numbers.
const FIRST_TRANSACTION: u64 = 1_000_000_000;
/// `transaction.timeout.ms`.
const TRANSACTION_TIMEOUT_MS: i32 = 2_500;
/// Timeout of a request, in ms.
const ANSWER_MAX_MS: u64 = 1_200;
const BACKOFF_MS: u64 = 40;
/// Turns between two deaths of a producer, on average. It may get a successor while it still lives.
const LIFE_TURNS: u64 = 700;
const AWAY_MAX_MS: u64 = 2_000;

/// A step of a transaction.
#[derive(Debug, Clone)]
enum Step {
    /// AddPartitionsToTxn, of transactions of version 1.
    AddPartitions(Vec<usize>),
    /// AddOffsetsToTxn, of transactions of version 1.
    AddOffsets,
    Write {
        partition: usize,
        values: Vec<u64>,
    },
    CommitOffset(i64),
    End {
        commit: bool,
    },
}

/// The outcome that a producer waits for.
#[derive(Debug)]
enum Waits {
    /// A coordinator's answer.
    Answer { token: Token, until_ms: u64, to: Asked },
    /// The commit of a batch.
    Commit(Appending),
}

/// A batch that was appended and is perhaps not committed yet.
#[derive(Debug, Clone)]
struct Appending {
    node: usize,
    term: u64,
    base_offset: i64,
    until_ms: u64,
    fate: Fate,
}

/// Kind of a request.
#[derive(Debug, Clone, Copy)]
enum Asked {
    Init,
    Offset,
    Step,
    /// Verification of the transaction in a partition, for the leader at one of its starts (KIP-890).
    Verify {
        node: (usize, u64),
        guard: VerificationGuard,
    },
}

/// Stage of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Init,
    /// It fetches the committed offset of its group.
    Offset,
    Idle,
    InTransaction,
    Away {
        until_ms: u64,
    },
    /// It was fenced by its successor.
    Gone,
}

/// Meaning of an answer.
enum Verdict {
    Done,
    Again,
    Abort,
    Fenced,
}

/// A transactional producer.
#[derive(Debug)]
struct TransactionalProducer {
    process: i32,
    id: u64,
    /// Its transactions have version 2 (KIP-890).
    is_new: bool,
    stage: Stage,
    identity: (i64, i16),
    sequences: BTreeMap<usize, i32>,
    waits: Option<Waits>,
    pause_until_ms: u64,
    transaction: u64,
    steps: VecDeque<Step>,
    /// The first step was begun. `is_uncertain`: its outcome may be unknown.
    is_begun: bool,
    is_uncertain: bool,
    /// Next offset to read, of the producer that processes.
    position: i64,
    /// It has a successor.
    is_replaced: bool,
    /// Its sequence numbers are uncertain: after this transaction it gets another epoch.
    needs_new_epoch: bool,
}

/// All transactional producers.
pub(crate) struct Producers {
    producers: Vec<TransactionalProducer>,
    processes: i32,
    transactions: u64,
    is_stopped: bool,
}

impl Producers {
    pub(crate) fn new() -> Producers {
        let mut all = Producers {
            producers: Vec::new(),
            processes: FIRST_PROCESS,
            transactions: FIRST_TRANSACTION,
            is_stopped: false,
        };
        (0..IDS).for_each(|id| all.add(id, id % 2 == 0));
        all
    }

    fn add(&mut self, id: u64, is_new: bool) {
        let process = self.new_process();
        self.producers.push(TransactionalProducer::new(process, id, is_new));
    }

    fn new_process(&mut self) -> i32 {
        self.processes += 1;
        self.processes
    }

    /// Lets them end their transactions and begin no other.
    pub(crate) fn stop(&mut self) {
        self.is_stopped = true;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns true if each transactional id has committed something.
    pub(crate) fn are_served(&self, served: &BTreeSet<(&'static str, u64)>) -> bool {
        (0..IDS).all(|id| served.contains(&("transaction committed", id)))
    }

    /// Returns true if no producer has anything to do.
    pub(crate) fn have_ended(&self) -> bool {
        self.producers.iter().all(|producer| matches!(producer.stage, Stage::Idle | Stage::Gone))
    }
}

impl TransactionalProducer {
    fn new(process: i32, id: u64, is_new: bool) -> TransactionalProducer {
        TransactionalProducer {
            process,
            id,
            is_new,
            stage: Stage::Init,
            identity: (-1, -1),
            sequences: BTreeMap::new(),
            waits: None,
            pause_until_ms: 0,
            transaction: 0,
            steps: VecDeque::new(),
            is_begun: false,
            is_uncertain: false,
            position: 0,
            is_replaced: false,
            needs_new_epoch: false,
        }
    }

    fn name(&self) -> String {
        format!("producer-{}", self.id)
    }

    fn processes(&self) -> bool {
        self.id == IDS - 1
    }

    fn pause(&mut self, now_ms: u64) {
        self.pause_until_ms = now_ms + BACKOFF_MS;
    }

    /// Ends a producer that was fenced or died. Its transaction is aborted, unless it has already asked for the commit.
    fn end_life(&mut self, world: &mut World) {
        let has_asked = self.is_begun && matches!(self.steps.front(), Some(Step::End { commit: true }));
        if self.stage == Stage::InTransaction && !has_asked {
            self.note_end(world, false, Outcome::Ok);
        }
        (self.waits, self.is_begun, self.is_uncertain) = (None, false, false);
        self.steps.clear();
        self.sequences.clear();
    }

    fn note_end(&self, world: &mut World, commit: bool, outcome: Outcome) {
        let operation = if commit { Operation::CommitTransaction } else { Operation::AbortTransaction };
        let at = At { partition: NO_PARTITION, offset: -1, value: self.transaction };
        world.note(self.process, operation, outcome, at);
    }

    fn note_values(&self, world: &mut World, outcome: Outcome, base_offset: i64) {
        let Some(Step::Write { partition, values }) = self.steps.front() else { return };
        for (rank, value) in values.iter().enumerate() {
            let offset = if base_offset < 0 { -1 } else { base_offset + rank as i64 };
            world.note(self.process, Operation::Append, outcome, At::new(*partition, offset, *value));
        }
    }

    fn note_offset(&self, world: &mut World, outcome: Outcome, offset: i64) {
        world.note(self.process, Operation::Commit, outcome, At::new(SOURCE, offset, GROUP));
    }

    /// Moves on after a step is done.
    fn step_done(&mut self) {
        self.steps.pop_front();
        (self.is_begun, self.is_uncertain, self.waits) = (false, false, None);
    }

    /// Turns to the abort of its transaction.
    fn abort(&mut self) {
        self.needs_new_epoch = true;
        self.steps = [Step::End { commit: false }].into();
        (self.is_begun, self.is_uncertain, self.waits) = (false, false, None);
    }

    /// Begins a transaction, unless there is nothing to process.
    fn begin(&mut self, world: &mut World, transaction: u64) {
        let (mut read, mut position) = (Vec::new(), self.position);
        if self.processes() {
            let Some(leader) = world.leader(SOURCE) else { return };
            self.position = world.position_at(leader, self.process, SOURCE, self.position);
            let fetched = world.nodes[leader].with_log(SOURCE, |log| fetch(log, self.position, true));
            let Some(fetched) = fetched else { return };
            (read, position) = (fetched.records, fetched.next);
            if read.is_empty() {
                self.position = position;
                return;
            }
        }
        self.transaction = transaction;
        self.stage = Stage::InTransaction;
        let at = At { partition: NO_PARTITION, offset: -1, value: transaction };
        world.note(self.process, Operation::Begin, Outcome::Ok, at);
        for (offset, value) in &read {
            world.note(self.process, Operation::ReadCommitted, Outcome::Ok, At::new(SOURCE, *offset, *value));
        }
        self.plan(world, read.len(), position);
    }

    fn plan(&mut self, world: &mut World, read: usize, position: i64) {
        let processes = self.processes();
        let mut writes = Vec::new();
        for partition in 0..DATA_PARTITIONS {
            let count = match processes {
                true if partition == SINK => read as u64,
                true => 0,
                // A transaction without records has nothing to end.
                false => world.random.below(4).max(u64::from(partition == 0)),
            };
            if count > 0 {
                let values = (world.next_value..world.next_value + count).collect();
                world.next_value += count;
                writes.push(Step::Write { partition, values });
            }
        }
        let mut steps = VecDeque::new();
        if !self.is_new && !writes.is_empty() {
            let reached = writes.iter().filter_map(|write| match write {
                Step::Write { partition, .. } => Some(*partition),
                _ => None,
            });
            steps.push_back(Step::AddPartitions(reached.collect()));
        }
        steps.extend(writes);
        if processes {
            steps.extend((!self.is_new).then_some(Step::AddOffsets));
            steps.push_back(Step::CommitOffset(position));
            self.position = position;
        }
        steps.push_back(Step::End { commit: world.random.chance(70) });
        (self.steps, self.is_begun, self.is_uncertain) = (steps, false, false);
    }

    fn request(&self, step: &Step) -> Request {
        let (producer_id, producer_epoch) = self.identity;
        let (request, version) = match step {
            Step::AddPartitions(partitions) => (self.add_partitions(TOPIC, partitions, false), 3),
            Step::AddOffsets => {
                let request = AddOffsetsToTxnRequest {
                    transactional_id: self.name().into(),
                    producer_id,
                    producer_epoch,
                    group_id: GROUP_NAME.into(),
                    ..Default::default()
                };
                (transactions::Request::AddOffsets(request), 3)
            }
            Step::End { commit } => {
                let request = EndTxnRequest {
                    transactional_id: self.name().into(),
                    producer_id,
                    producer_epoch,
                    committed: *commit,
                    ..Default::default()
                };
                (transactions::Request::EndTxn(request), if self.is_new { 5 } else { 3 })
            }
            Step::Write { .. } | Step::CommitOffset(_) => {
                unreachable!("no request of a coordinator of transactions")
            }
        };
        Request::Transactions { request, version }
    }

    fn add_partitions(
        &self,
        topic: &'static str,
        partitions: &[usize],
        verify_only: bool,
    ) -> transactions::Request<'static> {
        let index = |partition: &usize| if topic == OFFSETS_TOPIC { 0 } else { *partition as i32 };
        let partitions = partitions.iter().map(index).collect();
        let topic = AddPartitionsToTxnTopic { name: topic.into(), partitions, ..Default::default() };
        transactions::Request::AddPartitions(AddPartitionsToTxnTransaction {
            transactional_id: self.name().into(),
            producer_id: self.identity.0,
            producer_epoch: self.identity.1,
            verify_only,
            topics: vec![topic],
            ..Default::default()
        })
    }

    fn init(&self) -> Request {
        let request = InitProducerIdRequest {
            transactional_id: Some(self.name().into()),
            transaction_timeout_ms: TRANSACTION_TIMEOUT_MS,
            ..Default::default()
        };
        let request =
            transactions::Request::InitProducerId { request, enable_2pc: false, keep_prepared_txn: false };
        Request::Transactions { request, version: 5 }
    }

    fn offset_fetch() -> Request {
        let topic = OffsetFetchRequestTopics {
            name: TOPIC.into(),
            partition_indexes: vec![SOURCE as i32],
            ..Default::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: GROUP_NAME.into(),
            member_epoch: -1,
            topics: Some(vec![topic]),
            ..Default::default()
        };
        let request = groups::Request::OffsetFetch { group, require_stable: true };
        Request::Groups { request, version: 9, guard: VerificationGuard::NONE }
    }

    fn offset_commit(&self, offset: i64, guard: VerificationGuard) -> Request {
        let partition = TxnOffsetCommitRequestPartition {
            partition_index: SOURCE as i32,
            committed_offset: offset,
            ..Default::default()
        };
        let topic = TxnOffsetCommitRequestTopic {
            name: TOPIC.into(),
            partitions: vec![partition],
            ..Default::default()
        };
        let request = groups::Request::TxnOffsetCommit(TxnOffsetCommitRequest {
            transactional_id: self.name().into(),
            group_id: GROUP_NAME.into(),
            producer_id: self.identity.0,
            producer_epoch: self.identity.1,
            generation_id: -1,
            topics: vec![topic],
            ..Default::default()
        });
        Request::Groups { request, version: if self.is_new { 5 } else { 4 }, guard }
    }

    fn ask(
        &mut self,
        (world, calls): (&mut World, &mut Calls),
        node: Option<usize>,
        request: Request,
        to: Asked,
    ) {
        let Some(node) = node else { return };
        let until_ms = world.now_ms + ANSWER_MAX_MS;
        let token = calls.ask(world.transit(), node, request);
        self.waits = Some(Waits::Answer { token, until_ms, to });
    }

    /// Begins the verification of the transaction in a partition. Returns the guard for the append if none is needed, since the partition
    /// is already part of the transaction.
    fn verify(
        &mut self,
        (world, calls): (&mut World, &mut Calls),
        (partition, base_sequence): (usize, i32),
    ) -> Option<VerificationGuard> {
        let now_ms = world.now_ms;
        self.pause(now_ms);
        let node = world.leader(partition)?;
        let start = world.nodes[node].started()?;
        let first = VerificationRequest {
            producer_id: ProducerId::new(self.identity.0),
            producer_epoch: ProducerEpoch::new(self.identity.1),
            base_sequence,
            supports_epoch_bump: self.is_new,
        };
        match world.nodes[node].begin_verification(partition, &first)? {
            Ok(None) => Some(VerificationGuard::NONE),
            Ok(Some(guard)) => {
                let (topic, indexes) =
                    if partition == OFFSETS { (OFFSETS_TOPIC, [0]) } else { (TOPIC, [partition]) };
                let request = self.add_partitions(topic, &indexes, !self.is_new);
                let request = Request::Transactions { request, version: 5 };
                let coordinator = world.leader(TRANSACTIONS);
                let to = Asked::Verify { node: (node, start), guard };
                self.ask((world, calls), coordinator, request, to);
                None
            }
            // The leader changes.
            Err(Refused::NotLeader | Refused::NoLog(_)) => None,
            Err(_) => {
                self.fence(world);
                None
            }
        }
    }

    fn fence(&mut self, world: &mut World) {
        self.end_life(world);
        self.stage = match self.is_replaced {
            true => Stage::Gone,
            false => Stage::Away { until_ms: world.now_ms + BACKOFF_MS },
        };
    }

    /// Appends the batch of the first step.
    fn append(&mut self, world: &mut World, node: usize, guard: VerificationGuard) {
        let Some(Step::Write { partition, values }) = self.steps.front() else { return };
        let partition = *partition;
        let base_sequence = self.sequences.get(&partition).copied().unwrap_or(0);
        let (producer_id, producer_epoch) = self.identity;
        let producer = ProducerFields { producer_id, producer_epoch, base_sequence };
        let bytes =
            batch_of(BatchOptions { producer, is_transactional: true, ..BatchOptions::default() }, values);
        let now_ms = world.now_ms;
        self.pause(now_ms);
        match world.nodes[node].append(partition, &bytes, Origin::Client, guard) {
            Ok(Accepted { appended, term, fate }) => {
                let (base_offset, until_ms) = (appended.base_offset, now_ms + ANSWER_MAX_MS);
                self.waits = Some(Waits::Commit(Appending { node, term, base_offset, until_ms, fate }));
            }
            Err(refused) if refused.code() == ErrorCode::INVALID_PRODUCER_EPOCH => self.fence(world),
            // The leader changes, the guard is void, or the previous batch is not in this log.
            Err(_) => {}
        }
    }

    fn look_for_commit(&mut self, world: &mut World, appending: Appending) {
        let Appending { node, term, base_offset, until_ms, fate } = appending.clone();
        self.waits = Some(Waits::Commit(appending));
        let Some(Step::Write { partition, values }) = self.steps.front() else { return };
        let (partition, count) = (*partition, values.len() as i32);
        let leads = world.nodes[node].leads(partition) == Some(term);
        if fate.is_good() {
            self.note_values(world, Outcome::Ok, base_offset);
            *self.sequences.entry(partition).or_default() += count;
            self.step_done();
        } else if !leads || fate.outcome().is_some() || world.now_ms >= until_ms {
            self.note_values(world, Outcome::Info, -1);
            self.waits = None;
        }
    }
}

/// Reaction of a producer to an error.
fn verdict_of(error: ErrorCode) -> Verdict {
    match error {
        ErrorCode::NONE => Verdict::Done,
        ErrorCode::PRODUCER_FENCED
        | ErrorCode::INVALID_PRODUCER_EPOCH
        | ErrorCode::INVALID_PRODUCER_ID_MAPPING => Verdict::Fenced,
        ErrorCode::INVALID_TXN_STATE | ErrorCode::TRANSACTION_ABORTABLE => Verdict::Abort,
        _ => Verdict::Again,
    }
}

/// The error code of an answer; `None`: the outcome is unknown.
pub(super) fn error_of(answer: &Answer) -> Option<ErrorCode> {
    let code = match answer {
        Answer::Gone => return None,
        Answer::Transactions(transactions::Reply::InitProducerId(response)) => response.error_code,
        Answer::Transactions(transactions::Reply::AddOffsets(response)) => response.error_code,
        Answer::Transactions(transactions::Reply::EndTxn(response)) => response.error_code,
        Answer::Transactions(transactions::Reply::AddPartitions(result)) => {
            let results = result.topic_results.iter().flat_map(|topic| &topic.results_by_partition);
            results.map(|result| result.partition_error_code).find(|code| *code != 0).unwrap_or(0)
        }
        Answer::Groups(groups::Reply::TxnOffsetCommit(response)) => {
            let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            partitions.map(|partition| partition.error_code).find(|code| *code != 0).unwrap_or(0)
        }
        Answer::Groups(groups::Reply::OffsetFetch(answer)) => {
            let response = answer.response();
            let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
            let code = partitions.map(|partition| partition.error_code).find(|code| *code != 0).unwrap_or(0);
            if response.error_code == 0 { code } else { response.error_code }
        }
        other => unreachable!("no request is answered by {other:?}"),
    };
    Some(ErrorCode(code))
}

impl Cluster {
    pub(crate) fn turn_producers(&mut self) {
        for number in 0..self.producers.producers.len() {
            self.turn_producer(number);
        }
        self.producers.producers.retain(|producer| producer.stage != Stage::Gone);
    }

    fn turn_producer(&mut self, number: usize) {
        if self.producers.producers[number].stage == Stage::Gone || self.dies(number) {
            return;
        }
        let (world, calls) = (&mut self.world, &mut self.calls);
        let producer = &mut self.producers.producers[number];
        match producer.waits.take() {
            None => {}
            Some(Waits::Commit(appending)) => return producer.look_for_commit(world, appending),
            Some(Waits::Answer { token, until_ms, to }) => {
                let answer = calls.take(token).or_else(|| {
                    (world.now_ms >= until_ms).then(|| {
                        calls.forget(token);
                        Answer::Gone
                    })
                });
                match answer {
                    Some(answer) => self.answer_producer(number, to, answer),
                    None => producer.waits = Some(Waits::Answer { token, until_ms, to }),
                }
                return;
            }
        }
        if self.world.now_ms >= self.producers.producers[number].pause_until_ms {
            self.go_on(number);
        }
    }

    /// Lets a producer die now and then and come back as another process, or get a successor that fences it.
    fn dies(&mut self, number: usize) -> bool {
        let (world, done) = (&mut self.world, &mut self.done);
        let producer = &mut self.producers.producers[number];
        if let Stage::Away { until_ms } = producer.stage {
            if world.now_ms >= until_ms {
                (producer.stage, producer.identity) = (Stage::Init, (-1, -1));
                let process = self.producers.new_process();
                self.producers.producers[number].process = process;
            }
            return true;
        }
        if self.producers.is_stopped || world.random.below(LIFE_TURNS) != 0 {
            return false;
        }
        if world.random.chance(60) || producer.is_replaced {
            done.add("producer died");
            producer.end_life(world);
            let until_ms = world.now_ms + 50 + world.random.below(AWAY_MAX_MS);
            producer.stage = if producer.is_replaced { Stage::Gone } else { Stage::Away { until_ms } };
            return true;
        }
        done.add("producer replaced");
        producer.is_replaced = true;
        let (id, is_new) = (producer.id, producer.is_new);
        // The checker finds double processing by committed offsets alone. Reads of a zombie are as good as those of its successor.
        self.producers.add(id, is_new);
        false
    }

    fn go_on(&mut self, number: usize) {
        let (world, calls) = (&mut self.world, &mut self.calls);
        let producer = &mut self.producers.producers[number];
        match producer.stage {
            Stage::Init => {
                let (node, request) = (world.leader(TRANSACTIONS), producer.init());
                producer.ask((world, calls), node, request, Asked::Init);
            }
            Stage::Offset => {
                let at = At::new(SOURCE, -1, GROUP);
                world.note(producer.process, Operation::Committed, Outcome::Invoke, at);
                let node = world.leader(OFFSETS);
                producer.ask((world, calls), node, TransactionalProducer::offset_fetch(), Asked::Offset);
            }
            Stage::Idle if self.producers.is_stopped || !world.random.chance(10) => {}
            Stage::Idle => {
                self.producers.transactions += 1;
                let transaction = self.producers.transactions;
                self.producers.producers[number].begin(world, transaction);
            }
            Stage::InTransaction => self.go_on_in_transaction(number),
            Stage::Away { .. } | Stage::Gone => {}
        }
    }

    fn go_on_in_transaction(&mut self, number: usize) {
        let (world, calls) = (&mut self.world, &mut self.calls);
        let producer = &mut self.producers.producers[number];
        let Some(step) = producer.steps.front().cloned() else { return };
        let is_first = !std::mem::replace(&mut producer.is_begun, true);
        match step {
            Step::Write { partition, .. } => {
                if is_first {
                    producer.note_values(world, Outcome::Invoke, -1);
                }
                let sequence = producer.sequences.get(&partition).copied().unwrap_or(0);
                let guard = producer.verify((&mut *world, calls), (partition, sequence));
                if let (Some(guard), Some(node)) = (guard, world.leader(partition)) {
                    producer.append(world, node, guard);
                }
            }
            Step::CommitOffset(offset) => {
                if is_first {
                    producer.note_offset(world, Outcome::Invoke, offset);
                }
                let guard = producer.verify((&mut *world, &mut *calls), (OFFSETS, NO_SEQUENCE));
                if let Some(guard) = guard {
                    let (node, request) = (world.leader(OFFSETS), producer.offset_commit(offset, guard));
                    producer.ask((world, calls), node, request, Asked::Step);
                }
            }
            Step::End { commit } => {
                if is_first {
                    producer.note_end(world, commit, Outcome::Invoke);
                }
                let (node, request) = (world.leader(TRANSACTIONS), producer.request(&step));
                producer.ask((world, calls), node, request, Asked::Step);
            }
            Step::AddPartitions(_) | Step::AddOffsets => {
                let (node, request) = (world.leader(TRANSACTIONS), producer.request(&step));
                producer.ask((world, calls), node, request, Asked::Step);
            }
        }
    }

    fn answer_producer(&mut self, number: usize, to: Asked, answer: Answer) {
        let error = error_of(&answer);
        let producer = &mut self.producers.producers[number];
        producer.pause(self.world.now_ms);
        let verdict = error.map_or(Verdict::Again, verdict_of);
        // The write may have been made whatever the error: a coordinator that loses its leadership does not report it.
        producer.is_uncertain |= matches!(verdict, Verdict::Again);
        match (to, verdict) {
            (_, Verdict::Again) => {}
            (Asked::Init, Verdict::Done) => {
                let Answer::Transactions(transactions::Reply::InitProducerId(response)) = answer else {
                    return;
                };
                producer.identity = (response.producer_id, response.producer_epoch);
                producer.sequences.clear();
                producer.needs_new_epoch = false;
                producer.stage = if producer.processes() { Stage::Offset } else { Stage::Idle };
            }
            // Another producer was faster.
            (Asked::Init, _) => producer.fence(&mut self.world),
            (Asked::Offset, Verdict::Done) => producer.take_offset(&mut self.world, &answer),
            (Asked::Offset, _) => {}
            (Asked::Verify { node, guard }, Verdict::Done) => self.go_on_verified(number, node, guard),
            (Asked::Step, Verdict::Done) => self.step_done(number, &answer),
            (Asked::Step | Asked::Verify { .. }, verdict) => self.step_refused(number, &verdict),
        }
    }

    fn go_on_verified(&mut self, number: usize, (node, start): (usize, u64), guard: VerificationGuard) {
        let (world, calls) = (&mut self.world, &mut self.calls);
        let producer = &mut self.producers.producers[number];
        if world.nodes[node].started() != Some(start) {
            return;
        }
        match producer.steps.front().cloned() {
            Some(Step::Write { .. }) => producer.append(world, node, guard),
            Some(Step::CommitOffset(offset)) => {
                let request = producer.offset_commit(offset, guard);
                producer.ask((world, calls), Some(node), request, Asked::Step);
            }
            _ => {}
        }
    }

    fn step_done(&mut self, number: usize, answer: &Answer) {
        let producer = &mut self.producers.producers[number];
        match producer.steps.front().cloned() {
            Some(Step::CommitOffset(offset)) => producer.note_offset(&mut self.world, Outcome::Ok, offset),
            Some(Step::End { commit }) => {
                let ended = producer.identity.0;
                producer.note_end(&mut self.world, commit, Outcome::Ok);
                producer.take_end(answer);
                let (id, is_processing) = (producer.id, producer.processes());
                // Aborted records are processed again.
                producer.stage = match is_processing && !commit {
                    _ if producer.needs_new_epoch => Stage::Init,
                    true => Stage::Offset,
                    false => Stage::Idle,
                };
                match commit {
                    true => self.serve("transaction committed", id),
                    false => self.done.add("transaction aborted"),
                }
                self.note_ended_transaction(ended, commit);
            }
            _ => {}
        }
        self.producers.producers[number].step_done();
    }

    /// Handles a step that was refused: the transaction is aborted, or the producer is fenced.
    fn step_refused(&mut self, number: usize, verdict: &Verdict) {
        let producer = &mut self.producers.producers[number];
        let is_fenced = matches!(verdict, Verdict::Fenced);
        match producer.steps.front() {
            Some(Step::End { commit }) => {
                let (commit, is_certain) = (*commit, !producer.is_uncertain);
                let outcome = if is_certain && commit { Outcome::Fail } else { Outcome::Info };
                producer.note_end(&mut self.world, commit, outcome);
                self.done.add("producer fenced");
                producer.fence(&mut self.world);
            }
            _ if is_fenced => {
                self.done.add("producer fenced");
                producer.fence(&mut self.world);
            }
            _ => producer.abort(),
        }
    }
}

impl TransactionalProducer {
    fn take_offset(&mut self, world: &mut World, answer: &Answer) {
        let Answer::Groups(groups::Reply::OffsetFetch(answer)) = answer else { return };
        let response = answer.response();
        let found = response.topics.iter().flat_map(|topic| &topic.partitions).next();
        let offset = found.map_or(-1, |found| found.committed_offset);
        world.note(self.process, Operation::Committed, Outcome::Ok, At::new(SOURCE, offset, GROUP));
        self.position = offset.max(0);
        self.stage = Stage::Idle;
        // The position is its own and not the group's: a successor may have committed meanwhile.
        let at = At::new(SOURCE, self.position, 0);
        world.note(self.process, Operation::Assign, Outcome::Ok, at);
    }

    /// Takes the answer to EndTxn. In version 2 the producer continues with the epoch, or the id, of the answer (KIP-890).
    fn take_end(&mut self, answer: &Answer) {
        let Answer::Transactions(transactions::Reply::EndTxn(response)) = answer else { return };
        if self.is_new {
            self.identity = (response.producer_id, response.producer_epoch);
            self.sequences.clear();
        }
    }
}
