//! Work off the event loops. Some of it waits for the disk and is not on the data path: metadata, deletion, cold indexes.
//! Other work would hold up a loop: long requests and answers, the matching of patterns. The threads for it have shares
//! (`turns.rs`).

use std::sync::Arc;

use mainstem_wire::frame::request_decoder;
use mainstem_wire::{DecodeError, Decoder};

use crate::broker::Broker;
use crate::forward;
use crate::turns::{Class, in_background};
use mainstem_net::buffers::Reservation;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::RequestContext;
use mainstem_runtime::heap;

#[cfg(test)]
mod hanging_directory;
#[cfg(test)]
mod tests;

/// Decodes a request's body, acts, waits, and encodes the response.
pub(crate) type Blocking =
    fn(&Arc<Broker>, &RequestContext, &mut Decoder<'_>, &mut ResponseBuffer) -> Result<Handled, DecodeError>;

/// A copy of a request's body, since the buffer of the frame is used for the next request. It counts against
/// `queued.max.request.bytes` as the frame did.
pub(crate) struct OwnedBody {
    bytes: Vec<u8>,
    _reservation: Reservation,
}

impl OwnedBody {
    /// Copies the bytes that a decoder has left.
    pub(crate) fn copy(broker: &Broker, body: &Decoder<'_>) -> Self {
        let bytes = body.rest().to_vec();
        OwnedBody { _reservation: broker.net.request_memory.take(bytes.len()), bytes }
    }

    /// A decoder from the beginning of the copy.
    pub(crate) fn decoder(&self) -> Decoder<'_> {
        request_decoder(&self.bytes)
    }
}

/// Serves a request on a thread where waiting is allowed.
pub(crate) fn serve_in_background(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &Decoder<'_>,
    class: Class,
    serve: Blocking,
) -> Handled {
    in_turn(broker, context, decoder, class, move |broker, request, decoder, out| match &broker.cluster {
        Some(cluster) if forward::is_forwarded(request.api) => {
            forward::serve(broker, cluster, request, decoder, out, serve)
        }
        _ => serve(broker, request, decoder, out),
    })
}

/// Serves a request without waiting for anything: the answer is there now or a future.
pub(crate) type OnLoop =
    fn(&Arc<Broker>, RequestContext, &mut Decoder<'_>, &mut ResponseBuffer) -> Result<Handled, DecodeError>;

/// Serves a request that would hold up an event loop by the same function on another thread. If its answer has to
/// wait, that wait is on the loop.
pub(crate) fn serve_off_loop(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &Decoder<'_>,
    serve: OnLoop,
) -> Handled {
    in_turn(broker, context, decoder, Class::Data, move |broker, request, decoder, out| {
        serve(broker, request.clone(), decoder, out)
    })
}

/// Serves a copy of a request's body in the background, when it is the turn of its class.
fn in_turn(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &Decoder<'_>,
    class: Class,
    serve: impl FnOnce(
        &Arc<Broker>,
        &RequestContext,
        &mut Decoder<'_>,
        &mut ResponseBuffer,
    ) -> Result<Handled, DecodeError>
    + Send
    + 'static,
) -> Handled {
    let (broker, body) = (broker.clone(), OwnedBody::copy(broker, decoder));
    let response = Box::pin(async move {
        let turn = broker.background.turn(class).await;
        let request = context.clone();
        let work = move || {
            // The time is counted before the next one has its turn: the loop may take the answer much later.
            let _turn = turn;
            let mut out = ResponseBuffer::default();
            let handled = serve(&broker, &request, &mut body.decoder(), &mut out);
            let bytes = out.backlog();
            let counted = out.count(&broker.net.answers);
            heap::put_together(bytes);
            (handled, counted.map(|()| out))
        };
        let ((handled, out), took) = in_background(&context, work).await;
        match handled {
            Ok(Handled::Answered | Handled::AnsweredLast(_)) => out.map(|out| out.worked_for(took)),
            Ok(Handled::Later { response, .. }) => response.await.map(|out| out.worked_for(took)),
            Ok(Handled::Close(reason)) => Err(reason.to_string()),
            Ok(Handled::Silent | Handled::Last { .. }) => {
                unreachable!("a request in the background is answered")
            }
            Err(error) => Err(format!("a {} request is malformed: {error}", context.api.name())),
        }
    });
    Handled::Later { response, holds: true }
}
