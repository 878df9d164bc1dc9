//! Answers that are errors, for whole requests and for those whose append failed or took too long.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::join_group_response::JoinGroupResponse;
use mainstem_wire::messages::leave_group_response::LeaveGroupResponse;
use mainstem_wire::messages::offset_commit_response::OffsetCommitResponse;
use mainstem_wire::messages::offset_delete_response::OffsetDeleteResponse;
use mainstem_wire::messages::sync_group_response::SyncGroupResponse;
use mainstem_wire::messages::txn_offset_commit_response::TxnOffsetCommitResponse;

use super::api::Reply;
use super::consumer::refusal::{Refusal, refused};

/// The error for the whole of a request of the same kind.
pub(crate) fn with_error(reply: Reply, error: ErrorCode) -> Reply {
    match reply {
        Reply::OffsetCommit(response) => offset_commit(response, error),
        Reply::TxnOffsetCommit(response) => txn_offset_commit(response, error),
        Reply::LeaveGroup(_) => leave(error),
        Reply::JoinGroup(response) => join(&response.member_id, error),
        Reply::SyncGroup(_) => sync(error),
        Reply::ConsumerGroupHeartbeat(_) => refused(Refusal::new(error, error.message())),
        Reply::DeleteGroup(_) => Reply::DeleteGroup(error),
        Reply::OffsetDelete(_) => offset_delete(error),
        other => unreachable!("{other:?} does not wait for an append in this way"),
    }
}

/// The answer to a JoinGroup with an error. The driver encodes the missing protocol as the version requires (KIP-559).
pub(crate) fn join(member_id: &str, error: ErrorCode) -> Reply {
    let member_id = member_id.to_string().into();
    Reply::JoinGroup(JoinGroupResponse { member_id, error_code: error.0, ..Default::default() })
}

/// The answer to a SyncGroup with an error.
pub(crate) fn sync(error: ErrorCode) -> Reply {
    Reply::SyncGroup(SyncGroupResponse { error_code: error.0, ..Default::default() })
}

/// The answer to a LeaveGroup with an error for the whole request.
pub(crate) fn leave(error: ErrorCode) -> Reply {
    Reply::LeaveGroup(LeaveGroupResponse { error_code: error.0, ..Default::default() })
}

/// The answer to an OffsetCommit whose append failed, or took too long.
pub(crate) fn offset_commit(mut response: OffsetCommitResponse<'static>, error: ErrorCode) -> Reply {
    for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        partition.error_code = error.0;
    }
    Reply::OffsetCommit(response)
}

/// The answer to a TxnOffsetCommit that could not be written, or took too long.
pub(crate) fn txn_offset_commit(mut response: TxnOffsetCommitResponse<'static>, error: ErrorCode) -> Reply {
    for partition in response.topics.iter_mut().flat_map(|topic| &mut topic.partitions) {
        partition.error_code = error.0;
    }
    Reply::TxnOffsetCommit(response)
}

/// The answer to OffsetDelete with an error for the whole request.
pub(crate) fn offset_delete(error: ErrorCode) -> Reply {
    Reply::OffsetDelete(OffsetDeleteResponse { error_code: error.0, ..Default::default() })
}
