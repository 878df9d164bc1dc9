//! Work that waits for the disk and is not on the data path: metadata, deletion, cold indexes.

use std::sync::Arc;

use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::buffers::Reservation;
use crate::context::RequestContext;
use crate::dispatch::Handled;
use crate::output::ResponseBuffer;

/// Runs a function on a thread where waiting is allowed, and resolves to what it returns.
pub(crate) async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Decodes a request's body, acts, waits, and encodes the response.
pub(crate) type Blocking =
    fn(&Arc<Broker>, &RequestContext, &mut Decoder<'_>, &mut ResponseBuffer) -> Result<Handled, DecodeError>;

/// A copy of a request's body, since the frame's buffer goes on to the next request. It counts against
/// `queued.max.request.bytes` as the frame did.
pub(crate) struct OwnedBody {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

impl OwnedBody {
    /// Copies what a decoder has before it.
    pub(crate) fn copy(broker: &Broker, body: &Decoder<'_>) -> Self {
        let bytes = body.rest().to_vec();
        OwnedBody { _reservation: broker.request_memory.take(bytes.len()), bytes }
    }

    /// Decodes it from its beginning.
    pub(crate) fn decoder(&self) -> Decoder<'_> {
        Decoder::new(&self.bytes)
    }
}

/// Serves a request on a thread where waiting is allowed.
pub(crate) fn serve_in_background(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &Decoder<'_>,
    serve: Blocking,
) -> Handled {
    let (broker, body) = (broker.clone(), OwnedBody::copy(broker, decoder));
    let work = move || {
        let mut out = ResponseBuffer::default();
        let handled = serve(&broker, &context, &mut body.decoder(), &mut out);
        (handled, out, context)
    };
    let response = Box::pin(async move {
        let (handled, out, context) = in_background(work).await;
        match handled {
            Ok(Handled::Answered) => Ok(out),
            Ok(_) => unreachable!("a request in the background is answered"),
            Err(error) => Err(format!("a {} request is malformed: {error}", context.api.name())),
        }
    });
    Handled::Later { response, holds: true }
}
