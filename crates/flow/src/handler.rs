//! Handlers of messages: types and closures.

use crate::batches::Batch;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::message::Msg;
use crate::payload::Payload;

/// The input of a handler: a message, or a batch of them.
pub trait Input: Send + 'static {}

impl<P: Payload> Input for Msg<P> {}
impl<P: Payload> Input for Batch<P> {}

/// Handles messages. `M` tells closures of one and two arguments from types, and is `()` for those.
///
/// ```
/// use mainstem_flow::{Cx, Fault, Handler, Msg, Text};
///
/// struct Shout;
///
/// impl Handler<Msg<Text>> for Shout {
///     async fn handle(&self, line: Msg<Text>, cx: &mut Cx) -> Result<(), Fault> {
///         cx.send("shouts", line.key(), &Text(line.to_uppercase()))
///     }
/// }
/// ```
pub trait Handler<I: Input, C = Cx, M = ()>: Send + Sync + 'static {
    /// Handles one input.
    fn handle(&self, input: I, cx: &mut C) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The result of a closure: nothing, or a `Result`.
pub trait Outcome: Send {
    /// As handlers return it.
    ///
    /// # Errors
    /// The closure's.
    fn into_result(self) -> Result<(), Fault>;
}

impl Outcome for () {
    fn into_result(self) -> Result<(), Fault> {
        Ok(())
    }
}

impl<E: Into<Fault> + Send> Outcome for Result<(), E> {
    fn into_result(self) -> Result<(), Fault> {
        self.map_err(Into::into)
    }
}

/// Marks closures that take the input alone.
#[derive(Debug)]
pub struct OneArgument;

/// Marks closures that take the input and a [`Cx`] of their own. Rust cannot express yet that the future of a closure which borrows from an
/// argument can be sent to another thread.
#[derive(Debug)]
pub struct TwoArguments;

impl<I, F, T> Handler<I, Cx, OneArgument> for F
where
    I: Input,
    F: Fn(I) -> T + Send + Sync + 'static,
    T: Future<Output: Outcome> + Send,
{
    async fn handle(&self, input: I, _: &mut Cx) -> Result<(), Fault> {
        self(input).await.into_result()
    }
}

impl<I, F, T> Handler<I, Cx, TwoArguments> for F
where
    I: Input,
    F: Fn(I, Cx) -> T + Send + Sync + 'static,
    T: Future<Output: Outcome> + Send,
{
    async fn handle(&self, input: I, cx: &mut Cx) -> Result<(), Fault> {
        self(input, cx.clone()).await.into_result()
    }
}
