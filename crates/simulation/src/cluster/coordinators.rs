//! The coordinators of a node: the broker's drivers ([`mainstem_coordinators::driver`]), with chance in the place of its threads.
//!
//! Chance decides when a node notices that it gained or lost leadership, when it reads a partition that it takes over, and when it
//! appends a decided write. All else is the driver's.

use super::calls::{Answer, MarkerCall};
use super::loading::Loading;
use mainstem_coordination::groups::offset_fetch::Fetched;
use mainstem_coordination::groups::{self, GroupCoordinator, Token};
use mainstem_coordination::transactions::{self, MarkerOutcome, TransactionCoordinator};
use mainstem_coordinators::driver::{Asked, Coordinator, Driver, RequestOrigin};
use mainstem_coordinators::markers;
use mainstem_coordinators::transactions::Work;
use mainstem_log::VerificationGuard;
use mainstem_log::sim::Random;
use mainstem_records::LeaderEpoch;
use mainstem_runtime::clock::Clock;
use mainstem_store::partition::RoleChange;
use mainstem_store::topics::Topics;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_response::AddOffsetsToTxnResponse;
use mainstem_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use mainstem_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use mainstem_wire::messages::end_txn_response::EndTxnResponse;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use tokio::sync::oneshot::error::TryRecvError;

/// Each internal topic has one partition.
const PARTITION: i32 = 0;
/// Usual time in which a node notices a change of leaders, in ms.
const NOTICE_MS: u64 = 40;
/// The same when its threads are busy.
const BUSY_MS: u64 = 1_500;
/// Percent of the turns in which a decided write is appended.
const WRITES_AT_ONCE: u64 = 85;
/// Percent of the turns in which a finished write is reported.
const REPORTS_AT_ONCE: u64 = 90;

/// The coordinators of a node that runs.
pub(crate) struct Coordinators {
    pub(crate) groups: Coordinated<GroupCoordinator>,
    pub(crate) transactions: Coordinated<TransactionCoordinator>,
    loading: Loading,
    /// Markers and producer ids that the coordinator of transactions asks for.
    work: Arc<Mutex<Vec<Work>>>,
    markers: MarkersHere,
}

/// The markers that a node writes for coordinators.
#[derive(Default)]
struct MarkersHere {
    last: u64,
    /// Markers whose outcome is not known yet.
    waiting: BTreeMap<u64, MarkerCall>,
    marked: Arc<Mutex<Vec<(u64, MarkerOutcome)>>>,
}

/// A coordinator, and its requests that are not answered yet.
pub(crate) struct Coordinated<C: Coordinator> {
    pub(crate) driver: Arc<Driver<C>>,
    topics: Arc<Topics>,
    /// Leader epoch in which this coordinator last saw the node lead; `None` once it has seen that the node does not lead.
    led: Option<LeaderEpoch>,
    look_at_ms: u64,
    asked: Vec<(Token, Asked<C::Reply>)>,
}

/// The answers that have come.
type Answers = Vec<(Token, Answer)>;

/// A reply as clients get it.
pub(crate) trait IntoAnswer {
    /// The answer that carries it.
    fn into_answer(self) -> Answer;
}

impl IntoAnswer for groups::Reply {
    fn into_answer(self) -> Answer {
        Answer::Groups(self)
    }
}

impl IntoAnswer for transactions::Reply {
    fn into_answer(self) -> Answer {
        Answer::Transactions(self)
    }
}

impl Coordinators {
    /// The coordinators of a node that has just been started.
    pub(crate) fn new(
        (groups, transactions): (GroupCoordinator, TransactionCoordinator),
        clock: &Clock,
        topics: &Arc<Topics>,
    ) -> Coordinators {
        let (groups, transactions) =
            (Coordinated::new(groups, clock, topics), Coordinated::new(transactions, clock, topics));
        let work = Arc::<Mutex<Vec<Work>>>::default();
        let asked_for = work.clone();
        transactions.driver.set_perform(Box::new(move |work| asked_for.lock().push(work)));
        Coordinators {
            groups,
            transactions,
            loading: Loading::default(),
            work,
            markers: MarkersHere::default(),
        }
    }

    /// Does the work that is due. Returns the answers that are ready now.
    pub(crate) fn turn(&mut self, now_ms: u64, random: &mut Random) -> Answers {
        self.groups.follow_role((now_ms, random), &self.loading);
        self.transactions.follow_role((now_ms, random), &self.loading);
        self.loading.pass_time(now_ms, random);
        let mut answers = self.groups.turn(random);
        answers.extend(self.transactions.turn(random));
        answers
    }

    /// Takes the work that the coordinator of transactions has asked for.
    pub(crate) fn take_work(&self) -> Vec<Work> {
        std::mem::take(&mut *self.work.lock())
    }

    /// Number of partitions that were taken over since the last call.
    pub(crate) fn take_loaded(&mut self) -> usize {
        self.loading.take_loaded()
    }

    /// Asks the coordinator of groups.
    pub(crate) fn ask_groups(
        &mut self,
        token: Token,
        (request, version): (groups::Request<'static>, i16),
        guard: VerificationGuard,
    ) {
        let (driver, origin) = (&self.groups.driver, origin(version));
        let asked = match &request {
            groups::Request::OffsetFetch { group, .. } => {
                let key = group.group_id.to_string();
                let refused = Fetched::refused(group.clone(), ErrorCode::NOT_COORDINATOR, version);
                driver.ask_confirmed(&origin, (request, &key), groups::Reply::OffsetFetch(refused))
            }
            _ => driver.ask_verified(&origin, request, guard),
        };
        self.groups.asked.push((token, asked));
    }

    /// Asks the coordinator of transactions.
    pub(crate) fn ask_transactions(
        &mut self,
        token: Token,
        (request, version): (transactions::Request<'static>, i16),
    ) {
        let (driver, origin) = (&self.transactions.driver, origin(version));
        let asked = match refusal(&request) {
            // Its memory may be about an earlier transaction, if another coordinator has begun a newer one.
            Some((key, refusal)) => driver.ask_confirmed(&origin, (request, &key), refusal),
            None => driver.ask(&origin, request),
        };
        self.transactions.asked.push((token, asked));
    }

    /// Writes a marker into a partition that this node leads, as far as the sender knows.
    pub(crate) fn write_marker(&mut self, call: MarkerCall) {
        let MarkersHere { last, waiting, marked } = &mut self.markers;
        *last += 1;
        let (number, marked) = (*last, marked.clone());
        let (topic, index, marker) = (call.topic.clone(), call.index, call.marker);
        waiting.insert(number, call);
        let on_marked = move |outcome| marked.lock().push((number, outcome));
        markers::write(&self.groups.driver, (&topic, index), marker, Box::new(on_marked));
    }

    /// Takes the markers whose outcomes have become known since the last call.
    pub(crate) fn take_marked(&mut self) -> Vec<(MarkerCall, MarkerOutcome)> {
        let marked = std::mem::take(&mut *self.markers.marked.lock());
        let waiting = &mut self.markers.waiting;
        let taken = |(number, outcome)| (waiting.remove(&number).expect("it is called once"), outcome);
        marked.into_iter().map(taken).collect()
    }

    /// Clients that wait for an answer, and markers that are not reported yet. Their connections end with the node.
    pub(crate) fn into_waiting(self) -> (Vec<Token>, Vec<MarkerCall>) {
        let of_groups = self.groups.asked.into_iter().map(|(token, _)| token);
        let of_transactions = self.transactions.asked.into_iter().map(|(token, _)| token);
        (of_groups.chain(of_transactions).collect(), self.markers.waiting.into_values().collect())
    }
}

impl<C: Coordinator> Coordinated<C>
where
    C::Reply: IntoAnswer,
{
    fn new(machine: C, clock: &Clock, topics: &Arc<Topics>) -> Coordinated<C> {
        let driver = Driver::by_hand(machine, clock.clone(), topics.clone());
        Coordinated { driver, topics: topics.clone(), led: None, look_at_ms: 0, asked: Vec::new() }
    }

    /// Follows leadership like the broker's thread for it: unloads a lost partition, and loads one that was gained in a new epoch.
    fn follow_role(&mut self, (now_ms, random): (u64, &mut Random), loading: &Loading) {
        if now_ms < self.look_at_ms {
            return;
        }
        let wait_ms = if random.chance(4) { BUSY_MS } else { NOTICE_MS };
        self.look_at_ms = now_ms + 1 + random.below(wait_ms);
        let Some(partition) = self.topics.partition(C::TOPIC, PARTITION) else { return };
        match partition.leadership().change_from(self.led) {
            RoleChange::None | RoleChange::Unsettled => {}
            RoleChange::Lost => {
                self.led = None;
                loading.unload(&self.driver, &partition);
            }
            RoleChange::Gained { epoch, had_before } => {
                self.led = Some(epoch);
                if had_before {
                    loading.unload(&self.driver, &partition);
                }
                loading.take_over(&self.driver, &partition);
            }
        }
    }

    fn turn(&mut self, random: &mut Random) -> Answers {
        while self.driver.has_writes(PARTITION) && random.chance(WRITES_AT_ONCE) {
            self.driver.write_next(PARTITION);
        }
        while self.driver.has_reports(PARTITION) && random.chance(REPORTS_AT_ONCE) {
            self.driver.report_next(PARTITION);
        }
        self.driver.fire_due();
        self.driver.check();
        let mut answers = Vec::new();
        for (token, asked) in std::mem::take(&mut self.asked) {
            match asked {
                Asked::Now(reply) => answers.push((token, reply.into_answer())),
                Asked::Later(mut receiver) => match receiver.try_recv() {
                    Ok(reply) => answers.push((token, reply.into_answer())),
                    Err(error) => {
                        // Every request is answered while the node runs.
                        assert_eq!(error, TryRecvError::Empty, "{}", C::TOPIC);
                        self.asked.push((token, Asked::Later(receiver)));
                    }
                },
            }
        }
        answers
    }
}

fn origin(version: i16) -> RequestOrigin<'static> {
    RequestOrigin { version, client_id: "simulated", address: Ipv4Addr::LOCALHOST.into() }
}

/// The key of a request that is answered from memory, and the answer of a node that is not the leader any more. Both are those of a
/// broker's APIs.
fn refusal(request: &transactions::Request<'_>) -> Option<(String, transactions::Reply)> {
    let error_code = ErrorCode::NOT_COORDINATOR.code();
    match request {
        transactions::Request::AddPartitions(request) => {
            Some((request.transactional_id.to_string(), transactions::Reply::AddPartitions(refused(request))))
        }
        transactions::Request::AddOffsets(request) => {
            let response = AddOffsetsToTxnResponse { error_code, ..Default::default() };
            Some((request.transactional_id.to_string(), transactions::Reply::AddOffsets(response)))
        }
        transactions::Request::EndTxn(request) => {
            let response = EndTxnResponse { error_code, ..Default::default() };
            Some((request.transactional_id.to_string(), transactions::Reply::EndTxn(response)))
        }
        _ => None,
    }
}

fn refused(transaction: &AddPartitionsToTxnTransaction<'_>) -> AddPartitionsToTxnResult<'static> {
    let of_partition = |partition_index: &i32| AddPartitionsToTxnPartitionResult {
        partition_index: *partition_index,
        partition_error_code: ErrorCode::NOT_COORDINATOR.code(),
        ..Default::default()
    };
    let of_topic = |name: &str, partitions: &[i32]| AddPartitionsToTxnTopicResult {
        name: name.to_owned().into(),
        results_by_partition: partitions.iter().map(of_partition).collect(),
        ..Default::default()
    };
    let topics = transaction.topics.iter().map(|topic| of_topic(&topic.name, &topic.partitions));
    AddPartitionsToTxnResult {
        transactional_id: transaction.transactional_id.to_string().into(),
        topic_results: topics.collect(),
        ..Default::default()
    }
}
