//! The outcome of a request, for its connection.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use mainstem_wire::ApiKey;

use crate::connection::CloseReason;
use crate::output::ResponseBuffer;

/// A response that will be there later, or why the connection has to end instead.
pub type Later = Pin<Box<dyn Future<Output = Result<ResponseBuffer, String>> + Send>>;

/// The outcome of a request.
pub enum Handled {
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
        /// True if the next request waits until then.
        holds: bool,
    },
    /// The connection has to end.
    Close(CloseReason),
    /// The connection has to end when a last response is sent.
    Last {
        /// Resolves to it.
        response: Later,
        /// The reason.
        reason: CloseReason,
    },
}

/// State of a client between the requests of its connection.
#[derive(Default)]
pub struct ClientState {
    client_id: Option<Arc<str>>,
    /// The API of the last request.
    pub api: Option<ApiKey>,
}

impl ClientState {
    /// The client id as a shared string: nearly always the one of the request before.
    pub fn shared_client_id(&mut self, given: Option<&str>) -> Option<Arc<str>> {
        if self.client_id.as_deref() != given {
            self.client_id = given.map(Arc::from);
        }
        self.client_id.clone()
    }
}
