//! One attempt: decode, handle, and say what came of it.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;

use crate::FaultClass;
use crate::batches::{Batch, Marks};
use crate::cx::Cx;
use crate::fault::Fault;
use crate::handler::Handler;
use crate::letter::Stage;
use crate::message::{Msg, Received};
use crate::payload::Payload;

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

/// Handles one message.
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
    let handling = async {
        let message =
            Msg::<P>::decode(received).map_err(|error| Failure::new(Stage::Decode, &Fault::poison(error)))?;
        handler.handle(message, &mut cx).await.map_err(|fault| Failure::new(Stage::Handle, &fault))
    };
    Ended { slot, outcome: guarded(handling, limit).await }
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
    let own = marks.clone();
    let handling = async {
        let messages: Result<Vec<_>, _> = received.into_iter().map(Msg::<P>::decode).collect();
        let messages = messages.map_err(|error| Failure::new(Stage::Decode, &Fault::poison(error)))?;
        let batch = Batch::new(messages, own);
        handler.handle(batch, &mut cx).await.map_err(|fault| Failure::new(Stage::Handle, &fault))
    };
    let outcome = guarded(handling, limit).await;
    Ended { slot, outcome: outcome.map_err(|failure| Failure { marks: marks.lock().clone(), ..failure }) }
}

/// Takes a panic, and the end of a time limit, for failures.
async fn guarded(
    handling: impl Future<Output = Result<(), Failure>>,
    limit: Option<Duration>,
) -> Result<(), Failure> {
    let handling = AssertUnwindSafe(handling).catch_unwind();
    let ended = match limit {
        None => handling.await,
        Some(limit) => match tokio::time::timeout(limit, handling).await {
            Ok(ended) => ended,
            Err(_) => {
                let late =
                    Fault::failed(format_args!("the handler took longer than its time limit of {limit:?}"));
                return Err(Failure::new(Stage::Handle, &late));
            }
        },
    };
    ended.unwrap_or_else(|panic| Err(Failure::new(Stage::Handle, &Fault::failed(words_of(&*panic)))))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let words =
        panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", words.unwrap_or("it gave no reason"))
}
