//! PushTelemetry (72), v0: a client's metrics, to be read at `/metrics` (KIP-714).

use std::sync::Arc;

use mainstem_wire::messages::push_telemetry_request::PushTelemetryRequest;
use mainstem_wire::messages::push_telemetry_response::PushTelemetryResponse;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::net::context::RequestContext;
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

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
