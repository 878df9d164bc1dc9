//! SaslAuthenticate (36), v0-2, where it is refused: on a listener without SASL, or on a connection that is
//! authenticated. Otherwise the connection's authenticator answers it.

use std::sync::Arc;

use mainstem_security::authenticate_out_of_place;
use mainstem_wire::messages::sasl_authenticate_request::SaslAuthenticateRequest;
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
    let _request: SaslAuthenticateRequest<'_> = body(decoder, context.version)?;
    Ok(respond(&context, authenticate_out_of_place(), out))
}
