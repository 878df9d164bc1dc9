//! Requests that a coordinator answers, now or later.

use mainstem_coordinators::driver::{Asked, Coordinator, Driver, Keys, Overtaken};

use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::RequestContext;

/// Asks a coordinator and encodes its reply, now or later.
pub(crate) fn answer<C: Coordinator>(
    driver: &Driver<C>,
    context: RequestContext,
    request: C::Request<'_>,
    out: &mut ResponseBuffer,
    encode: impl FnOnce(&RequestContext, C::Reply, &mut ResponseBuffer) -> Handled + Send + 'static,
) -> Handled {
    match driver.ask(&origin(&context), request) {
        Asked::Now(reply) => encode(&context, reply, out),
        later => Handled::Later { response: Box::pin(answer_later(context, later, encode)), holds: true },
    }
}

/// The same for a request about one key. An answer from memory is held until a majority has confirmed that this node
/// coordinates the key. If it does not, `refusal` is the reply.
pub(crate) fn answer_confirmed<C: Coordinator>(
    driver: &Driver<C>,
    context: RequestContext,
    (request, key): (C::Request<'_>, &str),
    refusal: C::Reply,
    out: &mut ResponseBuffer,
    encode: impl FnOnce(&RequestContext, C::Reply, &mut ResponseBuffer) -> Handled + Send + 'static,
) -> Handled {
    match driver.ask_confirmed(&origin(&context), (request, key), refusal) {
        Asked::Now(reply) => encode(&context, reply, out),
        later => Handled::Later { response: Box::pin(answer_later(context, later, encode)), holds: true },
    }
}

/// The same for a request that is answered from memory, in the background: the answer is held until a majority has
/// confirmed that this node leads the partitions of the keys. `encode` gets the partitions without a confirmation.
pub(crate) fn answer_confirmed_here<C: Coordinator>(
    driver: &Driver<C>,
    context: &RequestContext,
    (request, keys): (C::Request<'_>, Keys),
    out: &mut ResponseBuffer,
    encode: impl FnOnce(&RequestContext, C::Reply, &Overtaken, &mut ResponseBuffer) -> Handled,
) -> Handled {
    let ask = |driver: &Driver<C>| driver.ask_here(&origin(context), request);
    let (reply, overtaken) = driver.confirmed_here(keys, ask);
    encode(context, reply, &overtaken, out)
}

/// Waits for a reply and encodes it.
///
/// # Errors
/// When the broker stops first.
pub(crate) async fn answer_later<R>(
    context: RequestContext,
    asked: Asked<R>,
    encode: impl FnOnce(&RequestContext, R, &mut ResponseBuffer) -> Handled,
) -> Result<ResponseBuffer, String> {
    let reply = asked.reply().await.map_err(|_| "the coordinator ended".to_owned())?;
    let mut out = ResponseBuffer::pooled();
    encode(&context, reply, &mut out);
    Ok(out)
}
