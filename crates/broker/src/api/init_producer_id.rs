//! InitProducerId (22), v0-5: an id for an idempotent producer, never given twice.

use std::sync::Arc;

use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::init_producer_id_response::InitProducerIdResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::coordinators::transactions;
use crate::net::context::{Operation, RequestContext, Resource, authorize};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

/// Producer id and epoch of a request that has none.
const NONE: i64 = -1;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: InitProducerIdRequest<'_> = body(decoder, context.version)?;
    let response = match producer_id(broker, context, &request) {
        Ok(producer_id) => InitProducerIdResponse { producer_id, producer_epoch: 0, ..Default::default() },
        Err(error) => {
            InitProducerIdResponse { error_code: error.code(), producer_epoch: -1, ..Default::default() }
        }
    };
    Ok(respond(context, response, out))
}

fn producer_id(
    broker: &Broker,
    context: &RequestContext,
    request: &InitProducerIdRequest<'_>,
) -> Result<i64, ErrorCode> {
    if let Some(id) = &request.transactional_id {
        if id.is_empty() {
            return Err(ErrorCode::INVALID_REQUEST);
        }
        authorize(context, Operation::Write, Resource::TransactionalId(id))?;
        return Err(transactions::NOT_SERVED_ERROR);
    }
    authorize(context, Operation::IdempotentWrite, Resource::Cluster)?;
    // KIP-360: a producer names the id and the epoch that it has, or neither.
    if (request.producer_id == NONE) != (i64::from(request.producer_epoch) == NONE) {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    // The first id of a block waits for the disk.
    broker.controller.next_producer_id()
}
