//! SaslHandshake (17), v0-1, where it is refused: on a listener without SASL, or on a connection that is
//! authenticated. Otherwise the connection's authenticator answers it.

use std::sync::Arc;

use mainstem_security::handshake_out_of_place;
use mainstem_wire::messages::sasl_handshake_request::SaslHandshakeRequest;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;

pub(crate) fn serve(
    _broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let _request: SaslHandshakeRequest<'_> = body(decoder, context.version)?;
    Ok(respond(&context, handshake_out_of_place(), out))
}
