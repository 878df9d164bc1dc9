//! DescribeAcls (29), v1-3.

use std::sync::Arc;

use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;
use mainstem_wire::messages::describe_acls_response::DescribeAclsResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::api::create_acls::check;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeAclsRequest<'_> = body(decoder, context.version)?;
    let response = match check(broker, context, Operation::Describe) {
        Ok(()) => broker.controller.image().describe_acls(&request),
        Err((error, message)) => DescribeAclsResponse {
            error_code: error.code(),
            error_message: Some(message.into()),
            ..Default::default()
        },
    };
    Ok(respond(context, response, out))
}
