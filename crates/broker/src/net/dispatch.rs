//! From a request frame to the API that serves it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use mainstem_wire::frame::{self, Version};
use mainstem_wire::{ApiKey, DecodeError, Decoder, Request};

use crate::api;
use crate::broker::Broker;
use crate::net::connection::CloseReason;
use crate::net::context::{ConnectionContext, RequestContext};
use crate::net::output::ResponseBuffer;

/// A response that will be there later, or why the connection has to end instead.
pub(crate) type Later = Pin<Box<dyn Future<Output = Result<ResponseBuffer, String>> + Send>>;

/// What became of a request.
pub(crate) enum Handled {
    /// The response is in the buffer.
    Answered,
    /// The response is in the buffer, and the connection has to end when it is sent.
    AnsweredLast(CloseReason),
    /// There is no response (acks=0).
    Silent,
    /// The response comes later.
    Later {
        /// Resolves to it.
        response: Later,
        /// Whether the next request waits until then.
        holds: bool,
    },
    /// The connection has to end.
    Close(CloseReason),
    /// The connection has to end when a last response is sent.
    Last {
        /// Resolves to it.
        response: Later,
        /// Why.
        reason: CloseReason,
    },
}

/// What a connection remembers between requests.
#[derive(Default)]
pub(crate) struct ClientState {
    client_id: Option<Arc<str>>,
    /// The API of the last request.
    pub(crate) api: Option<ApiKey>,
}

impl ClientState {
    /// The client id as a shared string: nearly always the one of the request before.
    fn shared_client_id(&mut self, given: Option<&str>) -> Option<Arc<str>> {
        if self.client_id.as_deref() != given {
            self.client_id = given.map(Arc::from);
        }
        self.client_id.clone()
    }
}

/// Serves one request frame (without its length).
pub(crate) fn handle(
    broker: &Arc<Broker>,
    connection: &Arc<ConnectionContext>,
    client: &mut ClientState,
    request: &[u8],
    response: &mut ResponseBuffer,
) -> Handled {
    let mut open = match frame::open_request(request) {
        Ok(open) if api::is_served(open.api_key) => open,
        Ok(open) => return refuse(format!("{} is not served here", open.api_key.name())),
        Err(error) => return refuse(error.to_string()),
    };
    let api = open.api_key;
    client.api = Some(api);
    broker.metrics.received(api, request.len());
    let Version::Known(version) = open.version else {
        return api::api_versions::unsupported(broker, open.header.correlation_id, response);
    };
    let context = RequestContext {
        connection: connection.clone(),
        api,
        version,
        correlation_id: open.header.correlation_id,
        client_id: client.shared_client_id(open.header.client_id.as_deref()),
        time: broker.quotas.begin_request().map(Arc::new),
    };
    let time = context.time.clone();
    match api::serve(broker, context, &mut open.body, response) {
        Ok(handled) => {
            if let (Handled::Later { .. }, Some(time)) = (&handled, time) {
                time.pause();
            }
            handled
        }
        Err(error) => refuse(format!("a {} request is malformed: {error}", api.name())),
    }
}

/// Decodes the body of a request. Bytes behind it are let pass, as in Kafka.
pub(crate) fn body<'a, R: Request<'a>>(decoder: &mut Decoder<'a>, version: i16) -> Result<R, DecodeError> {
    R::decode(decoder, version)
}

fn refuse(why: String) -> Handled {
    Handled::Close(CloseReason::Refused(why))
}
