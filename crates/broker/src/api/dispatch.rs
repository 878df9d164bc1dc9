//! From a request frame to the API that serves it.

use std::sync::Arc;

use mainstem_wire::frame::{self, Version};

use crate::api;
use crate::broker::Broker;
use mainstem_net::connection::CloseReason;
use mainstem_net::handled::{ClientState, Handled};
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{ConnectionContext, RequestContext};

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
    broker.net.counters.received(api, request.len());
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

fn refuse(why: String) -> Handled {
    Handled::Close(CloseReason::Refused(why))
}
