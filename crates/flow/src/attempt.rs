//! One attempt: decode, handle, and say what came of it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Sleep;
use tracing::Span;

use crate::FaultClass;
use crate::batches::{Batch, Marks};
use crate::cx::Cx;
use crate::fault::Fault;
use crate::handler::Handler;
use crate::letter::Stage;
use crate::message::{Msg, Received};
use crate::payload::{DecodeError, Payload};

/// The messages of a batch behind the first one; none where each is handled alone.
pub(crate) type Others = Option<Box<[Received]>>;

/// An attempt has ended.
pub(crate) struct Ended {
    /// That of its (first) message.
    pub(crate) slot: u16,
    pub(crate) outcome: Result<(), Box<Failure>>,
    /// The context that it was started with.
    pub(crate) cx: Cx,
}

impl Ended {
    /// Returns true if it has succeeded and asks for nothing, and its context is the one at `address`, which can be used again.
    #[inline]
    pub(crate) fn is_plain(&self, address: usize) -> bool {
        self.outcome.is_ok() && self.cx.address() == address && self.cx.is_unused()
    }
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

/// Handles one message.
pub(crate) async fn handle_one<P, H, M>(
    handler: &H,
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
    let is_decoded = AtomicBool::new(false);
    let outcome = {
        // Both in one future: what catches the panics of one catches those of the other.
        let handling = pin!(async {
            let message = Msg::<P>::decode(received).map_err(undecodable)?;
            is_decoded.store(true, Ordering::Relaxed);
            handler.handle(message, &mut cx).await.map_err(|fault| failed(&fault))
        });
        let panicked = |panic: &(dyn Any + Send)| match is_decoded.load(Ordering::Relaxed) {
            true => panicked(panic),
            false => decoding_panicked(panic),
        };
        guarded(handling, span, limit, panicked).await
    };
    Ended { slot, outcome, cx }
}

/// Handles messages together. If one cannot be decoded, all run again alone, which tells them apart.
pub(crate) async fn handle_batch<P, H, M>(
    handler: &H,
    first: Received,
    others: Others,
    mut cx: Cx,
    slot: u16,
    limit: Option<Duration>,
) -> Ended
where
    P: Payload,
    H: Handler<Batch<P>, Cx, M>,
{
    let received = std::iter::once(first).chain(others.map(Vec::from).unwrap_or_default());
    let all = decoded(|| received.map(Msg::<P>::decode).collect::<Result<Vec<_>, _>>());
    let messages = match all {
        Ok(messages) => messages,
        Err(failure) => return Ended { slot, outcome: Err(failure), cx },
    };
    let marks: Marks = Arc::new(Mutex::new(vec![false; messages.len()]));
    let batch = Batch::new(messages, marks.clone());
    let outcome = {
        let handling = pin!(async { handler.handle(batch, &mut cx).await.map_err(|fault| failed(&fault)) });
        guarded(handling, Span::none(), limit, panicked).await
    };
    let outcome = outcome.map_err(|failure| Box::new(Failure { marks: marks.lock().clone(), ..*failure }));
    Ended { slot, outcome, cx }
}

/// Decodes by code that may be a user's: a panic there is a record that cannot be decoded.
fn decoded<T>(decode: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, Box<Failure>> {
    match std::panic::catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded.map_err(undecodable),
        Err(panic) => Err(decoding_panicked(&*panic)),
    }
}

fn undecodable(error: DecodeError) -> Box<Failure> {
    Box::new(Failure::new(Stage::Decode, &Fault::poison(error)))
}

fn decoding_panicked(panic: &(dyn Any + Send)) -> Box<Failure> {
    undecodable(DecodeError::new(format!("decoding panicked: {}", words_of(panic))))
}

/// Polls a handler in its span, takes a panic for a failure, and gives up at its time limit. One that is done at once needs no
/// timer.
async fn guarded(
    mut handling: Pin<&mut impl Future<Output = Result<(), Box<Failure>>>>,
    span: Span,
    limit: Option<Duration>,
    panicked: impl Fn(&(dyn Any + Send)) -> Box<Failure>,
) -> Result<(), Box<Failure>> {
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(|task| {
        let polled = {
            let _entered = span.enter();
            std::panic::catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(task)))
        };
        match polled {
            Ok(Poll::Ready(outcome)) => return Poll::Ready(outcome),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Err(panicked(&*panic))),
        }
        let Some(limit) = limit else { return Poll::Pending };
        let timer = timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(task).map(|()| Err(late(limit)))
    })
    .await
}

fn failed(fault: &Fault) -> Box<Failure> {
    Box::new(Failure::new(Stage::Handle, fault))
}

fn panicked(panic: &(dyn Any + Send)) -> Box<Failure> {
    failed(&Fault::failed(format_args!("the handler panicked: {}", words_of(panic))))
}

fn late(limit: Duration) -> Box<Failure> {
    failed(&Fault::failed(format_args!("the handler took longer than its time limit of {limit:?}")))
}

/// Returns the message of a panic.
pub(crate) fn words_of(panic: &(dyn Any + Send)) -> &str {
    let words = panic.downcast_ref::<&str>().copied();
    words.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("it gave no reason")
}
