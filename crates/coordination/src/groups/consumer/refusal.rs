//! The refusal of a request of a consumer group, with a message for the client.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;

use super::super::api::Reply;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) error: ErrorCode,
    /// The message for the client: what happened, to what, and what to do.
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(error: ErrorCode, message: impl Into<String>) -> Self {
        Self { error, message: message.into() }
    }
}

/// The answer to a ConsumerGroupHeartbeat with an error.
pub(crate) fn refused(refusal: Refusal) -> Reply {
    Reply::ConsumerGroupHeartbeat(ConsumerGroupHeartbeatResponse {
        error_code: refusal.error.0,
        error_message: Some(refusal.message.into()),
        ..Default::default()
    })
}
