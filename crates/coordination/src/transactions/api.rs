//! Inputs and outputs of the coordinator: requests, effects and replies.

use std::sync::Arc;

use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_offsets_to_txn_response::AddOffsetsToTxnResponse;
use mainstem_wire::messages::add_partitions_to_txn_request::AddPartitionsToTxnTransaction;
use mainstem_wire::messages::add_partitions_to_txn_response::AddPartitionsToTxnResult;
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_transactions_response::DescribeTransactionsResponse;
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::end_txn_response::EndTxnResponse;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::init_producer_id_response::InitProducerIdResponse;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::list_transactions_response::ListTransactionsResponse;

use super::{CoordinatorRecord, Token};

/// The coordinator's name for one append; the driver gives it back with the append's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket {
    /// The partition of `__transaction_state` that the records belong to.
    pub partition: i32,
    /// Ascending over the coordinator's life.
    pub(crate) number: u64,
}

/// The coordinator's name for the markers of one transaction; the driver gives it back with each partition's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MarkerTicket {
    /// The partition of `__transaction_state` that the transactional id belongs to. When it is unloaded, its
    /// markers need not be written any more.
    pub partition: i32,
    pub(crate) number: u64,
}

/// The coordinator's name for a producer id that it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerIdTicket(pub(crate) u64);

/// One request. The structs may borrow from the frame; what is kept is copied.
#[derive(Debug)]
pub enum Request<'a> {
    /// InitProducerId (22), v0-5. The two flags are those of v6 (KIP-939), which is not offered: false.
    InitProducerId {
        /// The request.
        request: InitProducerIdRequest<'a>,
        /// `Enable2Pc`; refused as by a Kafka with `transaction.two.phase.commit.enable=false`.
        enable_2pc: bool,
        /// `KeepPreparedTxn`; refused, as Kafka 4.3 does.
        keep_prepared_txn: bool,
    },
    /// One transaction of an AddPartitionsToTxn (24), v0-5; see [`add_partitions`](super::add_partitions) for taking a
    /// request apart. Topics and partitions exist, and the client may write to them.
    AddPartitions(AddPartitionsToTxnTransaction<'a>),
    /// AddOffsetsToTxn (25), v0-4.
    AddOffsets(AddOffsetsToTxnRequest<'a>),
    /// EndTxn (26), v0-5.
    EndTxn(EndTxnRequest<'a>),
    /// DescribeTransactions (65), v0. The driver filters the topics that the client may see.
    DescribeTransactions(DescribeTransactionsRequest<'a>),
    /// ListTransactions (66), v0-2. The driver filters the transactional ids that the client may see.
    ListTransactions(ListTransactionsRequest<'a>),
}

/// The answer to a [`Request`] of the same name.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To InitProducerId.
    InitProducerId(InitProducerIdResponse<'static>),
    /// To AddPartitionsToTxn, one transaction.
    AddPartitions(AddPartitionsToTxnResult<'static>),
    /// To AddOffsetsToTxn.
    AddOffsets(AddOffsetsToTxnResponse<'static>),
    /// To EndTxn.
    EndTxn(EndTxnResponse<'static>),
    /// To DescribeTransactions.
    DescribeTransactions(DescribeTransactionsResponse<'static>),
    /// To ListTransactions.
    ListTransactions(ListTransactionsResponse<'static>),
}

/// The markers of one transaction: a control batch for each partition (WriteTxnMarkers (27)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Markers {
    /// To give back with each partition's outcome.
    pub ticket: MarkerTicket,
    /// The transactional id of the transaction.
    pub transactional_id: Arc<str>,
    /// The producer id that wrote the transaction.
    pub producer_id: ProducerId,
    /// The epoch that the markers carry: that of the transaction, or the one after it (KIP-890).
    pub producer_epoch: ProducerEpoch,
    /// The coordinator's epoch: partitions refuse the markers of older coordinators.
    pub coordinator_epoch: CoordinatorEpoch,
    /// Commit, or abort.
    pub committed: bool,
    /// The version of the transaction (KIP-1228): from 2 on the epoch must be above that of the transaction's records.
    pub transaction_version: i8,
    /// Never empty.
    pub topics: Vec<MarkerTopic>,
}

/// The partitions of one topic that get a marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkerTopic {
    /// The topic's name.
    pub name: Arc<str>,
    /// Never empty.
    pub partitions: Vec<i32>,
}

/// The outcome of the marker of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkerOutcome {
    /// It is in the log, as durable as acks=all.
    Written,
    /// The partition was deleted: it has no transaction to end.
    Gone,
    /// The partition refused it, or its leader could not be reached.
    Failed(ErrorCode),
}

impl MarkerOutcome {
    /// From the answer of the coordinator of groups about the marker in a partition of `__consumer_offsets`. Codes for a coordinator that
    /// is not available become the code of any partition that is not, as in Kafka.
    pub fn of_groups(written: Result<(), ErrorCode>) -> MarkerOutcome {
        match written {
            Ok(()) => MarkerOutcome::Written,
            Err(
                ErrorCode::NOT_COORDINATOR
                | ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
                | ErrorCode::COORDINATOR_NOT_AVAILABLE,
            ) => MarkerOutcome::Failed(ErrorCode::NOT_LEADER_OR_FOLLOWER),
            Err(other) => MarkerOutcome::Failed(other),
        }
    }
}

/// Work for the driver. Effects come in the order in which they were decided.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Append these records as one batch to partition `ticket.partition` of `__transaction_state`, durable as acks=all,
    /// timestamps by `timestamp_ms`; then call [`appended`](super::TransactionCoordinator::appended).
    Append {
        /// To give back with the outcome.
        ticket: Ticket,
        /// The records' timestamp, wall clock milliseconds.
        timestamp_ms: i64,
        /// Never empty.
        records: Vec<CoordinatorRecord>,
    },
    /// Write these markers; then call [`marked`](super::TransactionCoordinator::marked) for each partition.
    WriteMarkers(Markers),
    /// Find a producer id that no other has; then call [`producer_id`](super::TransactionCoordinator::producer_id).
    NewProducerId {
        /// To give back with the id.
        ticket: ProducerIdTicket,
    },
    /// Answer the request of this token.
    Reply {
        /// The token that the driver gave with the request.
        token: Token,
        /// The answer.
        reply: Reply,
    },
}
