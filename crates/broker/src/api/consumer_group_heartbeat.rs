//! ConsumerGroupHeartbeat (68), v0-1: join, stay in or leave a consumer group (KIP-848).

use std::sync::Arc;

use mainstem_coordination::groups::{DuePatterns, MatchedPatterns, Reply, Request, VisibleTopics};
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::consumer_group_heartbeat_response::ConsumerGroupHeartbeatResponse;
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::coordinated::{self, answer_later};
use crate::background::OwnedBody;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use crate::turns::in_background;
use mainstem_coordinators::groups::Asked;
use mainstem_coordinators::tailers;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};
use mainstem_runtime::random;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request: ConsumerGroupHeartbeatRequest<'_> = body(decoder, context.version)?;
    if let Err(error) = may_read(&context, &request) {
        let response = ConsumerGroupHeartbeatResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        };
        return Ok(respond(&context, response, out));
    }
    if let Err(error) = tailers::check_join(&broker.store, &request.group_id) {
        return Ok(respond(&context, tailers::refused_heartbeat(error), out));
    }
    if let Some(due) = broker.groups.patterns_due(&request) {
        let response =
            Box::pin(match_and_ask(broker.clone(), context, OwnedBody::copy(broker, &behind), due));
        return Ok(Handled::Later { response, holds: true });
    }
    Ok(coordinated::answer(&broker.groups, context, asked(request, MatchedPatterns::default()), out, encode))
}

/// Matches topic patterns in the background, since that would hold up the event loop, then asks the coordinator.
async fn match_and_ask(
    broker: Arc<Broker>,
    context: RequestContext,
    body: OwnedBody,
    due: DuePatterns,
) -> Result<ResponseBuffer, String> {
    let turn = broker.pattern_matching.turn().await;
    let sender = context.clone();
    let matching = move || {
        let _turn = turn;
        match_patterns(&sender, due)
    };
    let (patterns, took) = in_background(&context, matching).await;
    let reply = ask_again(&broker, &context, &body, patterns).map_err(|error| error.to_string())?;
    Ok(answer_later(context, reply, encode).await?.worked_for(took))
}

fn ask_again(
    broker: &Arc<Broker>,
    context: &RequestContext,
    owned: &OwnedBody,
    patterns: MatchedPatterns,
) -> Result<Asked, DecodeError> {
    let request = body(&mut owned.decoder(), context.version)?;
    Ok(broker.groups.ask(&origin(context), asked(request, patterns)))
}

fn asked(request: ConsumerGroupHeartbeatRequest<'_>, patterns: MatchedPatterns) -> Request<'_> {
    Request::ConsumerGroupHeartbeat { request, random: random::bytes(), patterns: Some(patterns) }
}

fn encode(context: &RequestContext, reply: Reply, out: &mut ResponseBuffer) -> Handled {
    match reply {
        Reply::ConsumerGroupHeartbeat(response) => respond(context, response, out),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    }
}

/// Authorizes Read of the group, and Describe of every named topic.
fn may_read(context: &RequestContext, request: &ConsumerGroupHeartbeatRequest<'_>) -> Result<(), ErrorCode> {
    authorize(context, Operation::Read, Resource::Group(&request.group_id))?;
    for topic in request.subscribed_topic_names.iter().flatten() {
        authorize(context, Operation::Describe, Resource::Topic(topic))?;
    }
    Ok(())
}

/// Matches patterns against the topics that the sender of a request may describe. It runs in the background.
fn match_patterns(context: &RequestContext, due: DuePatterns) -> MatchedPatterns {
    let may_describe = |topic: &str| permits(context, Operation::Describe, Resource::Topic(topic));
    due.matched(match context.connection.authorization {
        Some(_) => VisibleTopics::by(&may_describe),
        None => VisibleTopics::ALL,
    })
}
