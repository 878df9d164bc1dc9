//! Requests of clients to the coordinators of one node, as the APIs of a broker make them.
//!
//! The coordinators are those of the whole node. Chance decides when one of them makes a decided write, and when it learns the outcome.

use super::calls::Answer;
use crate::node::Node;
use mainstem_coordination::groups::offset_fetch::Fetched;
use mainstem_coordination::groups::{self, Token};
use mainstem_coordination::transactions;
use mainstem_coordinators::driver::{Asked, Coordinator, Driver, RequestOrigin};
use mainstem_log::VerificationGuard;
use mainstem_log::sim::Random;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_response::AddOffsetsToTxnResponse;
use mainstem_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use mainstem_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use mainstem_wire::messages::end_txn_response::EndTxnResponse;
use std::net::Ipv4Addr;
use tokio::sync::oneshot::error::TryRecvError;

/// Each internal topic has one partition.
const PARTITION: i32 = 0;
/// Percent of the turns in which a decided write is made.
const WRITES_AT_ONCE: u64 = 85;
/// Percent of the turns in which a finished write is reported.
const REPORTS_AT_ONCE: u64 = 90;

/// Requests to the coordinators of a node that are not answered yet.
#[derive(Default)]
pub(crate) struct Waiting {
    groups: Vec<(Token, Asked<groups::Reply>)>,
    transactions: Vec<(Token, Asked<transactions::Reply>)>,
}

/// The answers that have come.
type Answers = Vec<(Token, Answer)>;

impl Waiting {
    /// Lets the coordinators of a node do the work that is due. Returns the answers that are ready now.
    pub(crate) fn turn(&mut self, node: &Node, random: &mut Random) -> Answers {
        let Some((node, group)) = node.whole_node() else { return Vec::new() };
        group.act(|| {
            turn(&node.local.groups, random);
            turn(&node.local.transactions, random);
        });
        let mut answers = Vec::new();
        take_replies(&mut self.groups, |token, reply| answers.push((token, Answer::Groups(reply))));
        let to_answer = |token, reply| answers.push((token, Answer::Transactions(reply)));
        take_replies(&mut self.transactions, to_answer);
        answers
    }

    /// Asserts what holds between any two calls of the coordinators of a node.
    pub(crate) fn check(node: &Node) {
        if let Some((node, _)) = node.whole_node() {
            node.local.groups.check();
            node.local.transactions.check();
        }
    }

    /// Asks the coordinator of groups of a node that is in service.
    pub(crate) fn ask_groups(
        &mut self,
        (node, token): (&Node, Token),
        (request, version): (groups::Request<'static>, i16),
        guard: VerificationGuard,
    ) {
        let (node, group) = node.in_service().expect("it is in service");
        let (driver, origin) = (&node.local.groups, origin(version));
        let asked = group.act(|| match &request {
            groups::Request::OffsetFetch { group, .. } => {
                let key = group.group_id.to_string();
                let refused = Fetched::refused(group.clone(), ErrorCode::NOT_COORDINATOR, version);
                driver.ask_confirmed(&origin, (request, &key), groups::Reply::OffsetFetch(refused))
            }
            _ => driver.ask_verified(&origin, request, guard),
        });
        self.groups.push((token, asked));
    }

    /// Asks the coordinator of transactions of a node that is in service.
    pub(crate) fn ask_transactions(
        &mut self,
        (node, token): (&Node, Token),
        (request, version): (transactions::Request<'static>, i16),
    ) {
        let (node, group) = node.in_service().expect("it is in service");
        let (driver, origin) = (&node.local.transactions, origin(version));
        let asked = group.act(|| match refusal(&request) {
            // Its memory may be about an earlier transaction, if another coordinator has begun a newer one.
            Some((key, refusal)) => driver.ask_confirmed(&origin, (request, &key), refusal),
            None => driver.ask(&origin, request),
        });
        self.transactions.push((token, asked));
    }

    /// Clients that wait for an answer. Their connections end with the node.
    pub(crate) fn take_all(&mut self) -> Vec<Token> {
        let of_groups = std::mem::take(&mut self.groups).into_iter().map(|(token, _)| token);
        let of_transactions = std::mem::take(&mut self.transactions).into_iter().map(|(token, _)| token);
        of_groups.chain(of_transactions).collect()
    }
}

/// Makes decided writes, reports finished ones, and fires deadlines. After each of these the driver checks its state machine.
fn turn<C: Coordinator>(driver: &Driver<C>, random: &mut Random) {
    while driver.has_writes(PARTITION) && random.chance(WRITES_AT_ONCE) {
        driver.write_next(PARTITION);
    }
    while driver.has_reports(PARTITION) && random.chance(REPORTS_AT_ONCE) {
        driver.report_next(PARTITION);
    }
    driver.fire_due();
}

/// Takes the replies that have come.
///
/// # Panics
/// If a request was dropped: each is answered while the node runs.
fn take_replies<R>(asked: &mut Vec<(Token, Asked<R>)>, mut take: impl FnMut(Token, R)) {
    for (token, reply) in std::mem::take(asked) {
        match reply {
            Asked::Now(reply) => take(token, reply),
            Asked::Later(mut receiver) => match receiver.try_recv() {
                Ok(reply) => take(token, reply),
                Err(error) => {
                    assert_eq!(error, TryRecvError::Empty, "a request was dropped");
                    asked.push((token, Asked::Later(receiver)));
                }
            },
        }
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
