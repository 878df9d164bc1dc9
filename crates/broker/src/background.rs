//! Work that waits for the disk and is not on the data path: metadata, deletion, cold indexes. And work that would hold an
//! event loop up: large answers, the matching of patterns.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstem_wire::frame::request_decoder;
use mainstem_wire::{DecodeError, Decoder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::broker::Broker;
use crate::cluster::forward;
use crate::net::answers::AnswerShare;
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

/// Work of a kind that takes a processor for long: of all connections one piece is done at a time, in the order in which they
/// come, so that it takes one thread and its memory has one bound.
pub(crate) struct OneAtATime(Arc<Semaphore>);

impl OneAtATime {
    pub(crate) fn new() -> OneAtATime {
        OneAtATime(Arc::new(Semaphore::new(1)))
    }

    /// Waits for a turn, which ends when it is dropped. It belongs to the thread that works: a client that goes away does not
    /// make room for the next one before that is done.
    pub(crate) async fn turn(&self) -> OwnedSemaphorePermit {
        self.0.clone().acquire_owned().await.expect("it is never closed")
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

/// Decodes a request's body and encodes an answer to it that may be large, within a share of the memory for answers.
pub(crate) type Large = fn(
    &Arc<Broker>,
    &RequestContext,
    &mut Decoder<'_>,
    &mut AnswerShare,
    &mut ResponseBuffer,
) -> Result<Handled, DecodeError>;

/// Puts an answer together that would hold up an event loop, one of all connections at a time. Its share of the memory for
/// answers is held until its connection counts it.
pub(crate) fn answer_in_background(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &Decoder<'_>,
    answer: Large,
) -> Handled {
    let (broker, body) = (broker.clone(), OwnedBody::copy(broker, decoder));
    let response = Box::pin(async move {
        let turn = broker.large_answers.turn().await;
        let request = context.clone();
        let work = move || {
            let (mut share, mut out) = (broker.answers.begin(), ResponseBuffer::default());
            let handled = answer(&broker, &request, &mut body.decoder(), &mut share, &mut out);
            // Of what it was put together from nothing is left. More than that was not taken: its connection tries.
            share.set(out.backlog().min(share.bytes() as usize));
            (handled, out, (share, turn))
        };
        let ((handled, out, _held), took) = in_background(&context, work).await;
        match handled {
            Ok(_) => Ok(out.worked_for(took)),
            Err(error) => Err(format!("a {} request is malformed: {error}", context.api.name())),
        }
    });
    Handled::Later { response, holds: true }
}
