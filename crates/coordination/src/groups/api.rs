//! Inputs and outputs of the coordinator: requests, effects and replies.

use mainstem_records::Producer;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::heartbeat_response::HeartbeatResponse;
use mainstem_wire::messages::join_group_request::JoinGroupRequest;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_request::LeaveGroupRequest;
use mainstem_wire::messages::leave_group_response::LeaveGroupResponse;
use mainstem_wire::messages::offset_commit_request::OffsetCommitRequest;
use mainstem_wire::messages::offset_commit_response::OffsetCommitResponse;
use mainstem_wire::messages::offset_delete_request::OffsetDeleteRequest;
use mainstem_wire::messages::offset_delete_response::OffsetDeleteResponse;
use mainstem_wire::messages::sync_group_request::SyncGroupRequest;
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use mainstem_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;
use mainstem_wire::messages::txn_offset_commit_response::TxnOffsetCommitResponse;

use super::consumer::describe::ConsumerDescription;
use super::consumer::patterns::MatchedPatterns;
use super::describe::{ClassicDescription, ListFilter, ListPart, ListPosition};
use super::log::CoordinatorRecord;
use super::offset_fetch::{Fetch, Fetched};
use super::token::{Ticket, Token};

/// One request. The structs may borrow from the frame; what is kept is copied.
#[derive(Debug)]
pub enum Request<'a> {
    /// JoinGroup (11), v0-9.
    JoinGroup {
        /// The request.
        request: JoinGroupRequest<'a>,
        /// 16 random bytes that the driver drew, for the end of a new member id.
        random: [u8; 16],
    },
    /// SyncGroup (14), v0-5.
    SyncGroup(SyncGroupRequest<'a>),
    /// Heartbeat (12), v0-4.
    Heartbeat(HeartbeatRequest<'a>),
    /// LeaveGroup (13), v0-5.
    LeaveGroup(LeaveGroupRequest<'a>),
    /// OffsetCommit (8), v2-10. Every topic has its name; where the client sent ids (v10) the driver has filled the
    /// name in, kept the id, and answered for the ids that it does not know.
    OffsetCommit(OffsetCommitRequest<'a>),
    /// TxnOffsetCommit (28), v0-5. The driver has had the transaction verified by its coordinator (KIP-890), and has
    /// answered for the topics that do not exist.
    TxnOffsetCommit(TxnOffsetCommitRequest<'a>),
    /// One group of an OffsetFetch (9), v1-10; see [`offset_fetch`](super::offset_fetch) for taking a request apart.
    /// Topics have names as in OffsetCommit; `topics: None` asks for all.
    OffsetFetch {
        /// The group, its topics.
        group: Fetch,
        /// KIP-447: wait for commits that are not durable yet, and answer UNSTABLE_OFFSET_COMMIT for offsets that an open transaction may
        /// change.
        require_stable: bool,
    },
    /// A part of a ListGroups (16), v0-5: the driver asks for the next one until there is none, and serves others between them.
    ListGroups {
        /// The filters of the list.
        filter: ListFilter,
        /// The end of the previous part of the list; none for the first part.
        after: Option<ListPosition>,
    },
    /// DescribeGroups (15), v0-6. Authorised operations are left to the driver.
    DescribeGroups(DescribeGroupsRequest<'a>),
    /// One group of a DeleteGroups (42), v0-2.
    DeleteGroup(&'a str),
    /// OffsetDelete (47), v0.
    OffsetDelete(OffsetDeleteRequest<'a>),
    /// ConsumerGroupHeartbeat (68), v0-1.
    ConsumerGroupHeartbeat {
        /// The request.
        request: ConsumerGroupHeartbeatRequest<'a>,
        /// 16 random bytes that the driver drew: the member's id, if it brings none (v0).
        random: [u8; 16],
        /// The matches of the patterns that were due ([`patterns_due`](super::GroupCoordinator::patterns_due)). With None the request
        /// matches them itself, which takes up to about 10 ms.
        patterns: Option<MatchedPatterns>,
    },
    /// ConsumerGroupDescribe (69), v0-1. Authorised operations are left to the driver.
    ConsumerGroupDescribe(ConsumerGroupDescribeRequest<'a>),
}

/// The answer to a [`Request`] of the same name. Large parts are shared with the coordinator and encoded by the driver, so that the
/// coordinator does the same work whatever the size of a group.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// To JoinGroup.
    JoinGroup(JoinGroupResponse<'static>),
    /// To SyncGroup.
    SyncGroup(SyncGroupResponse<'static>),
    /// To Heartbeat.
    Heartbeat(HeartbeatResponse<'static>),
    /// To LeaveGroup.
    LeaveGroup(LeaveGroupResponse<'static>),
    /// To OffsetCommit.
    OffsetCommit(OffsetCommitResponse<'static>),
    /// To TxnOffsetCommit.
    TxnOffsetCommit(TxnOffsetCommitResponse<'static>),
    /// To OffsetFetch, one group.
    OffsetFetch(Fetched),
    /// To a part of a ListGroups.
    ListGroups(ListPart),
    /// To DescribeGroups.
    DescribeGroups(Vec<ClassicDescription>),
    /// To DeleteGroups, one group.
    DeleteGroup(ErrorCode),
    /// To OffsetDelete.
    OffsetDelete(OffsetDeleteResponse<'static>),
    /// To ConsumerGroupHeartbeat.
    ConsumerGroupHeartbeat(ConsumerGroupHeartbeatResponse<'static>),
    /// To ConsumerGroupDescribe.
    ConsumerGroupDescribe(Vec<ConsumerDescription>),
}

/// Work for the driver. Effects come in the order in which they were decided.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Append these records as one batch to partition `ticket.partition` of `__consumer_offsets`, durable as
    /// acks=all, timestamps by `timestamp_ms`; then call
    /// [`appended`](super::GroupCoordinator::appended). Appends to one partition keep their order in the log.
    Append {
        /// To give back with the outcome.
        ticket: Ticket,
        /// The records' timestamp, wall clock milliseconds.
        timestamp_ms: i64,
        /// With `Some`, the batch is a transactional one of this producer. Its sequence number is 0, like that of
        /// every batch that a coordinator writes for a producer; the log does not check it.
        producer: Option<Producer>,
        /// Never empty.
        records: Vec<CoordinatorRecord>,
    },
    /// Answer the request of this token.
    Reply {
        /// The token that the driver gave with the request.
        token: Token,
        /// The answer.
        reply: Reply,
    },
}

/// The error that clients get for an append that failed with `error`, the error of the log or the replicator. Kafka maps the errors of a
/// partition to those of a coordinator so that clients know where to retry.
pub(crate) fn append_error(error: ErrorCode) -> ErrorCode {
    match error {
        ErrorCode::UNKNOWN_TOPIC_OR_PARTITION
        | ErrorCode::NOT_ENOUGH_REPLICAS
        | ErrorCode::NOT_ENOUGH_REPLICAS_AFTER_APPEND
        | ErrorCode::REQUEST_TIMED_OUT => ErrorCode::COORDINATOR_NOT_AVAILABLE,
        ErrorCode::NOT_LEADER_OR_FOLLOWER | ErrorCode::KAFKA_STORAGE_ERROR => ErrorCode::NOT_COORDINATOR,
        ErrorCode::MESSAGE_TOO_LARGE | ErrorCode::RECORD_LIST_TOO_LARGE | ErrorCode::INVALID_FETCH_SIZE => {
            ErrorCode::UNKNOWN_SERVER_ERROR
        }
        other => other,
    }
}
