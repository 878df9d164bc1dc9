//! AddRaftVoter (80), v0-1: a node is to have a vote about the metadata (KIP-853). Voters are those of the configuration
//! here, so that the answer is the one of Kafka's controllers with `controller.quorum.voters` (`kraft.version` 0).

use std::borrow::Cow;
use std::sync::Arc;

use mainstem_wire::messages::add_raft_voter_request::AddRaftVoterRequest;
use mainstem_wire::messages::add_raft_voter_response::AddRaftVoterResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_requests::refused::Refused;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: AddRaftVoterRequest<'_> = body(decoder, context.version)?;
    let (error_code, error_message) = refusal(broker, &context, request.cluster_id.as_deref(), "adding");
    let response = AddRaftVoterResponse { error_code, error_message, ..Default::default() };
    Ok(respond(&context, response, out))
}

/// Why the voters stay as they are, as code and message of the answer, in Kafka's words; `change` is "adding" or "removing".
pub(super) fn refusal(
    broker: &Broker,
    context: &RequestContext,
    cluster_id: Option<&str>,
    change: &str,
) -> (i16, Option<Cow<'static, str>>) {
    let is_other = cluster_id.is_some_and(|id| id != broker.local.cluster_id);
    let refused = match authorize(context, Operation::Alter, Resource::Cluster) {
        Err(error) => error.into(),
        Ok(()) if is_other => ErrorCode::INCONSISTENT_CLUSTER_ID.into(),
        Ok(()) => Refused {
            error: ErrorCode::UNSUPPORTED_VERSION,
            message: format!("Cluster doesn't support {change} voter because the kraft.version feature is 0"),
        },
    };
    (refused.error.code(), Some(refused.message.into()))
}
