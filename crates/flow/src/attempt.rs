//! One attempt: decode, handle, and say what came of it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use tracing::Instrument as _;

use crate::FaultClass;
use crate::batches::{Batch, Marks};
use crate::cx::Cx;
use crate::fault::Fault;
use crate::handler::Handler;
use crate::letter::Stage;
use crate::message::{Msg, Received};
use crate::payload::{DecodeError, Payload};

/// An attempt has ended.
pub(crate) struct Ended {
    /// That of its (first) message.
    pub(crate) slot: u16,
    pub(crate) outcome: Result<(), Failure>,
}

/// Why an attempt has failed.
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) class: FaultClass,
    pub(crate) cause: String,
    /// Those of its messages that are done all the same, by their place among them.
    pub(crate) marks: Vec<bool>,
}

impl Failure {
    pub(crate) fn new(stage: Stage, fault: &Fault) -> Failure {
        Failure { stage, class: fault.class(), cause: fault.cause().to_owned(), marks: Vec::new() }
    }
}

/// Handles one message. Written flat: what a future holds is moved into each that it is wrapped in.
pub(crate) async fn handle_one<P, H, M>(
    handler: Arc<H>,
    received: Received,
    mut cx: Cx,
    slot: u16,
    limit: Option<Duration>,
) -> Ended
where
    P: Payload,
    H: Handler<Msg<P>, Cx, M>,
{
    let span = received.span();
    let message = match span.in_scope(|| decoded(|| Msg::<P>::decode(received))) {
        Ok(message) => message,
        Err(failure) => return Ended { slot, outcome: Err(failure) },
    };
    let handling = AssertUnwindSafe(handler.handle(message, &mut cx)).catch_unwind().instrument(span);
    let outcome = match limit {
        None => judged(handling.await),
        Some(limit) => match tokio::time::timeout(limit, handling).await {
            Ok(ended) => judged(ended),
            Err(_) => Err(late(limit)),
        },
    };
    Ended { slot, outcome }
}

/// Handles messages together. If one cannot be decoded, all run again alone, which tells them apart.
pub(crate) async fn handle_batch<P, H, M>(
    handler: Arc<H>,
    received: Vec<Received>,
    mut cx: Cx,
    slot: u16,
    limit: Option<Duration>,
) -> Ended
where
    P: Payload,
    H: Handler<Batch<P>, Cx, M>,
{
    let marks: Marks = Arc::new(Mutex::new(vec![false; received.len()]));
    let all = decoded(|| received.into_iter().map(Msg::<P>::decode).collect::<Result<Vec<_>, _>>());
    let messages = match all {
        Ok(messages) => messages,
        Err(failure) => return Ended { slot, outcome: Err(failure) },
    };
    let batch = Batch::new(messages, marks.clone());
    let handling = AssertUnwindSafe(handler.handle(batch, &mut cx)).catch_unwind();
    let outcome = match limit {
        None => judged(handling.await),
        Some(limit) => match tokio::time::timeout(limit, handling).await {
            Ok(ended) => judged(ended),
            Err(_) => Err(late(limit)),
        },
    };
    Ended { slot, outcome: outcome.map_err(|failure| Failure { marks: marks.lock().clone(), ..failure }) }
}

/// Decodes by code that may be a user's: a panic there is a record that cannot be decoded.
fn decoded<T>(decode: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, Failure> {
    let decoded = std::panic::catch_unwind(AssertUnwindSafe(decode));
    let decoded = decoded
        .unwrap_or_else(|panic| Err(DecodeError::new(format!("decoding panicked: {}", words_of(&*panic)))));
    decoded.map_err(|error| Failure::new(Stage::Decode, &Fault::poison(error)))
}

/// Takes a panic for a failure.
fn judged(ended: Result<Result<(), Fault>, Box<dyn Any + Send>>) -> Result<(), Failure> {
    let ended = ended.unwrap_or_else(|panic| {
        Err(Fault::failed(format_args!("the handler panicked: {}", words_of(&*panic))))
    });
    ended.map_err(|fault| Failure::new(Stage::Handle, &fault))
}

fn late(limit: Duration) -> Failure {
    let late = Fault::failed(format_args!("the handler took longer than its time limit of {limit:?}"));
    Failure::new(Stage::Handle, &late)
}

fn words_of(panic: &(dyn Any + Send)) -> &str {
    let words = panic.downcast_ref::<&str>().copied();
    words.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it gave no reason")
}
