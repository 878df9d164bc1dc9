//! AlterUserScramCredentials (51), v0: sets and removes passwords of users, hashed by the client (KIP-554).

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_wire::messages::alter_user_scram_credentials_request::AlterUserScramCredentialsRequest;
use mainstem_wire::messages::alter_user_scram_credentials_response::{
    AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
};
use mainstem_wire::{DecodeError, Decoder};

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
    let request: AlterUserScramCredentialsRequest<'_> = body(decoder, context.version)?;
    let altered = authorize(context, Operation::Alter, Resource::Cluster)
        .and_then(|()| broker.controller.decide(|machine| machine.alter_user_scram_credentials(&request)));
    let response = altered.unwrap_or_else(|error| {
        let deleted = request.deletions.iter().map(|deletion| &*deletion.name);
        let named: BTreeSet<&str> =
            deleted.chain(request.upsertions.iter().map(|upsertion| &*upsertion.name)).collect();
        let results = named.into_iter().map(|user| AlterUserScramCredentialsResult {
            user: user.to_owned().into(),
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        });
        AlterUserScramCredentialsResponse { results: results.collect(), ..Default::default() }
    });
    Ok(respond(context, response, out))
}
