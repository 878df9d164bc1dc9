//! InitProducerId (22), v0-5: a unique id for an idempotent producer. For a transactional one it also fences its
//! predecessors.

use std::sync::Arc;

use mainstem_coordination::transactions::{Reply, Request};
use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::init_producer_id_response::InitProducerIdResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::coordinated;
use crate::api::fenced_error;
use crate::background::serve_in_background;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use crate::turns::Class;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits_any_topic};

/// Version from which clients know PRODUCER_FENCED (KIP-588).
const FENCED_SINCE: i16 = 4;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request: InitProducerIdRequest<'_> = body(decoder, context.version)?;
    let Some(id) = &request.transactional_id else {
        // The first id of a block waits for the disk.
        return Ok(serve_in_background(broker, context, &behind, Class::ProducerIds, serve_idempotent));
    };
    if let Err(error) = authorize(&context, Operation::Write, Resource::TransactionalId(id)) {
        return Ok(respond(&context, refused(error), out));
    }
    let request = Request::InitProducerId { request, enable_2pc: false, keep_prepared_txn: false };
    Ok(coordinated::answer(&broker.transactions, context, request, out, |context, reply, out| {
        let Reply::InitProducerId(mut response) = reply else {
            unreachable!("the coordinator answers in kind, not {reply:?}")
        };
        response.error_code = fenced_error(response.error_code, context.version, FENCED_SINCE);
        respond(context, response, out)
    }))
}

fn serve_idempotent(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: InitProducerIdRequest<'_> = body(decoder, context.version)?;
    let response = match producer_id(broker, context, &request) {
        Ok(producer_id) => {
            let producer_epoch = ProducerEpoch::ZERO.get();
            InitProducerIdResponse { producer_id, producer_epoch, ..Default::default() }
        }
        Err(error) => refused(error),
    };
    Ok(respond(context, response, out))
}

fn refused(error: ErrorCode) -> InitProducerIdResponse<'static> {
    let producer_epoch = ProducerEpoch::NONE.get();
    InitProducerIdResponse { error_code: error.code(), producer_epoch, ..Default::default() }
}

fn producer_id(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &InitProducerIdRequest<'_>,
) -> Result<i64, ErrorCode> {
    if !permits_any_topic(context) {
        authorize(context, Operation::IdempotentWrite, Resource::Cluster)?;
    }
    // KIP-360: a producer names the id and the epoch that it has, or neither.
    let has_id = request.producer_id != ProducerId::NONE.get();
    if has_id != (request.producer_epoch != ProducerEpoch::NONE.get()) {
        return Err(ErrorCode::INVALID_REQUEST);
    }
    broker.node.next_producer_id()
}
