//! DescribeUserScramCredentials (50), v0 (KIP-554): there are none. Kafka's tools ask when they show a user's quotas.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_wire::messages::describe_user_scram_credentials_request::DescribeUserScramCredentialsRequest;
use mainstem_wire::messages::describe_user_scram_credentials_response::{
    DescribeUserScramCredentialsResponse, DescribeUserScramCredentialsResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::net::context::{Operation, RequestContext, Resource, authorize};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

pub(crate) fn serve(
    _broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeUserScramCredentialsRequest<'_> = body(decoder, context.version)?;
    if let Err(error) = authorize(&context, Operation::Describe, Resource::Cluster) {
        let response = DescribeUserScramCredentialsResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        };
        return Ok(respond(&context, response, out));
    }
    let users = request.users.as_deref().unwrap_or_default();
    let (mut seen, mut twice) = (HashSet::new(), HashSet::new());
    twice.extend(users.iter().map(|user| &*user.name).filter(|name| !seen.insert(*name)));
    // One answer per name.
    let results = users.iter().filter(|user| seen.remove(&*user.name)).map(|user| {
        let name = &user.name;
        let (error, message) = match twice.contains(&**name) {
            true => (
                ErrorCode::DUPLICATE_RESOURCE,
                format!(
                    "Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
                ),
            ),
            false => (
                ErrorCode::RESOURCE_NOT_FOUND,
                format!("Attempt to describe a user credential that does not exist: {name}"),
            ),
        };
        DescribeUserScramCredentialsResult {
            user: name.clone(),
            error_code: error.code(),
            error_message: Some(message.into()),
            ..Default::default()
        }
    });
    let response = DescribeUserScramCredentialsResponse { results: results.collect(), ..Default::default() };
    Ok(respond(&context, response, out))
}
