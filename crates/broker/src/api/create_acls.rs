//! CreateAcls (30), v1-3.

use std::sync::Arc;

use mainstem_wire::messages::create_acls_request::CreateAclsRequest;
use mainstem_wire::messages::create_acls_response::{AclCreationResult, CreateAclsResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_runtime::random;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: CreateAclsRequest<'_> = body(decoder, context.version)?;
    let mut ids = || u128::from_ne_bytes(random::bytes());
    let created = check(broker, context, Operation::Alter).and_then(|()| {
        let created = broker.controller.decide(|machine| machine.create_acls(&request, &mut ids));
        created.map_err(|error| (error, error.message()))
    });
    let response = created.unwrap_or_else(|(error, message)| {
        let refused = || AclCreationResult {
            error_code: error.code(),
            error_message: Some(message.into()),
            ..Default::default()
        };
        let results = request.creations.iter().map(|_| refused()).collect();
        CreateAclsResponse { results, ..Default::default() }
    });
    Ok(respond(context, response, out))
}

/// Refuses a request if there is no authorizer, or its principal may not see or change rules.
pub(super) fn check(
    broker: &Broker,
    context: &RequestContext,
    operation: Operation,
) -> Result<(), (ErrorCode, &'static str)> {
    if broker.security.authorization().is_none() {
        return Err((ErrorCode::SECURITY_DISABLED, "No Authorizer is configured."));
    }
    authorize(context, operation, Resource::Cluster).map_err(|error| (error, error.message()))
}
