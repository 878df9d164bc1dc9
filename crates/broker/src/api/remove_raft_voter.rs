//! RemoveRaftVoter (81), v0: take a node's vote about the metadata (KIP-853); see [`super::add_raft_voter`].

use std::sync::Arc;

use mainstem_wire::messages::remove_raft_voter_request::RemoveRaftVoterRequest;
use mainstem_wire::messages::remove_raft_voter_response::RemoveRaftVoterResponse;
use mainstem_wire::{DecodeError, Decoder};

use super::add_raft_voter::refusal;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: RemoveRaftVoterRequest<'_> = body(decoder, context.version)?;
    let (error_code, error_message) = refusal(broker, &context, request.cluster_id.as_deref(), "removing");
    let response = RemoveRaftVoterResponse { error_code, error_message, ..Default::default() };
    Ok(respond(&context, response, out))
}
