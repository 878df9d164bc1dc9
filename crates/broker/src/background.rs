//! Work that waits for the disk and is not on the data path: metadata, deletion, cold indexes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_wire::frame::request_decoder;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::cluster::forward;
use crate::net::buffers::Reservation;
use crate::net::context::RequestContext;
use crate::net::dispatch::Handled;
use crate::net::output::ResponseBuffer;

/// Runs a function of a request on a thread where waiting is allowed, and resolves to what it returns, and how long it
/// took. That is time of the request's client, too.
pub(crate) async fn in_background<T: Send + 'static>(
    context: &RequestContext,
    work: impl FnOnce() -> T + Send + 'static,
) -> (T, Duration) {
    let time = context.time.clone();
    let timed = move || {
        let begun = Instant::now();
        if let Some(time) = &time {
            time.resume();
        }
        let value = work();
        if let Some(time) = &time {
            time.pause();
        }
        (value, begun.elapsed())
    };
    match tokio::task::spawn_blocking(timed).await {
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
        request_decoder(&self.bytes)
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
    let request = context.clone();
    let work = move || {
        let mut out = ResponseBuffer::default();
        let decoder = &mut body.decoder();
        let handled = match &broker.cluster {
            Some(cluster) if forward::is_forwarded(request.api) => {
                forward::serve(&broker, cluster, &request, decoder, &mut out, serve)
            }
            _ => serve(&broker, &request, decoder, &mut out),
        };
        (handled, out)
    };
    let response = Box::pin(async move {
        let ((handled, out), took) = in_background(&context, work).await;
        match handled {
            Ok(Handled::Answered) => Ok(out.worked_for(took)),
            Ok(_) => unreachable!("a request in the background is answered"),
            Err(error) => Err(format!("a {} request is malformed: {error}", context.api.name())),
        }
    });
    Handled::Later { response, holds: true }
}
