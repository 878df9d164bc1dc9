//! DescribeUserScramCredentials (50), v0: mechanisms and iterations of users (KIP-554), never the hashes.

use std::sync::Arc;

use mainstem_wire::messages::describe_user_scram_credentials_request::DescribeUserScramCredentialsRequest;
use mainstem_wire::messages::describe_user_scram_credentials_response::{
    DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeUserScramCredentialsRequest<'_> = body(decoder, context.version)?;
    let response = match authorize(context, Operation::Describe, Resource::Cluster) {
        Ok(()) => broker.controller.image().describe_user_scram_credentials(&request),
        Err(error) => DescribeUserScramCredentialsResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            results: request.users.iter().flatten().map(|_| refuse(error)).collect(),
            ..Default::default()
        },
    };
    Ok(respond(context, response, out))
}

/// The refusal of a request. Kafka names no user in it.
fn refuse(error: ErrorCode) -> DescribeUserScramCredentialsResult<'static> {
    DescribeUserScramCredentialsResult {
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    }
}
