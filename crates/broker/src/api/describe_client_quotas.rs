//! DescribeClientQuotas (48), v0-1: the quotas of the entities that a filter matches (KIP-546).

use std::sync::Arc;

use mainstem_wire::messages::describe_client_quotas_request::DescribeClientQuotasRequest;
use mainstem_wire::messages::describe_client_quotas_response::DescribeClientQuotasResponse;
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
    let request: DescribeClientQuotasRequest<'_> = body(decoder, context.version)?;
    let refused = |error: ErrorCode, message: String| DescribeClientQuotasResponse {
        error_code: error.code(),
        error_message: Some(message.into()),
        entries: None,
        ..Default::default()
    };
    let response = match authorize(context, Operation::DescribeConfigs, Resource::Cluster) {
        Err(error) => refused(error, error.message().to_owned()),
        Ok(()) => match broker.controller.image().describe_client_quotas(&request) {
            Err(error) => refused(error.code, error.message),
            Ok(entries) => DescribeClientQuotasResponse { entries: Some(entries), ..Default::default() },
        },
    };
    Ok(respond(context, response, out))
}
