//! DeleteAcls (31), v1-3.

use std::sync::Arc;

use mainstem_wire::messages::delete_acls_request::DeleteAclsRequest;
use mainstem_wire::messages::delete_acls_response::{DeleteAclsFilterResult, DeleteAclsResponse};
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
    let request: DeleteAclsRequest<'_> = body(decoder, context.version)?;
    let deleted = check(broker, context, Operation::Alter).and_then(|()| {
        let deleted = broker.controller.decide(|machine| machine.delete_acls(&request));
        deleted.map_err(|error| (error, error.message()))
    });
    let response = deleted.unwrap_or_else(|(error, message)| {
        let refused = || DeleteAclsFilterResult {
            error_code: error.code(),
            error_message: Some(message.into()),
            ..Default::default()
        };
        let filter_results = request.filters.iter().map(|_| refused()).collect();
        DeleteAclsResponse { filter_results, ..Default::default() }
    });
    Ok(respond(context, response, out))
}
