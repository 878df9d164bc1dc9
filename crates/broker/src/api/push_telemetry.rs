//! PushTelemetry (72), v0: a client's metrics, for `/metrics` (KIP-714).

use std::sync::Arc;

use mainstem_wire::messages::push_telemetry_request::PushTelemetryRequest;
use mainstem_wire::messages::push_telemetry_response::PushTelemetryResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: PushTelemetryRequest<'_> = body(decoder, context.version)?;
    let error_code = broker.telemetry.push(context, &request).err().map_or(0, |error| error.code());
    Ok(respond(context, PushTelemetryResponse { error_code, ..Default::default() }, out))
}
