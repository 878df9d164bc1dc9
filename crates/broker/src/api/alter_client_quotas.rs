//! AlterClientQuotas (49), v0-1: set and remove quotas of users, client ids and addresses (KIP-546, KIP-612).

use std::sync::Arc;

use mainstem_wire::messages::alter_client_quotas_request::{AlterClientQuotasRequest, EntryData};
use mainstem_wire::messages::alter_client_quotas_response::{
    AlterClientQuotasResponse, EntityData as AnsweredEntity, EntryData as Answer,
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
    let request: AlterClientQuotasRequest<'_> = body(decoder, context.version)?;
    let altered = authorize(context, Operation::AlterConfigs, Resource::Cluster)
        .and_then(|()| broker.controller.alter_client_quotas(&request));
    let entries = match altered {
        Ok(entries) => entries,
        Err(error) => request.entries.iter().map(|entry| refuse(entry, error)).collect(),
    };
    Ok(respond(context, AlterClientQuotasResponse { entries, ..Default::default() }, out))
}

fn refuse(entry: &EntryData<'_>, error: ErrorCode) -> Answer<'static> {
    let entity = entry.entity.iter().map(|part| AnsweredEntity {
        entity_type: part.entity_type.to_string().into(),
        entity_name: part.entity_name.as_ref().map(|name| name.to_string().into()),
        ..Default::default()
    });
    Answer {
        error_code: error.code(),
        error_message: Some(error.message().into()),
        entity: entity.collect(),
        ..Default::default()
    }
}
