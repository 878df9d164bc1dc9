//! FindCoordinator (10), v0-6: the node that coordinates a group or a transactional id.

use std::sync::Arc;

use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::find_coordinator_response::{Coordinator, FindCoordinatorResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::background::serve_in_background;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use crate::turns::Class;
use mainstem_coordinators::groups::OFFSETS_TOPIC;
use mainstem_coordinators::transactions::TRANSACTIONS_TOPIC;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::client_view;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_requests::refused::Refused;

/// `key_type` of groups and of transactions.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;

/// Version from which a request has several keys.
const SEVERAL_KEYS_SINCE: i16 = 4;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request = body(decoder, context.version)?;
    // The first request of a kind creates the coordinator's topic, which waits for the disk.
    if topic_of(&request).is_some_and(|topic| broker.store.topics.by_name(topic).is_none()) {
        return Ok(serve_in_background(broker, context, &behind, Class::Changes, create_and_answer));
    }
    Ok(answer(broker, &context, &request, out))
}

fn create_and_answer(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    Ok(answer(broker, context, &body(decoder, context.version)?, out))
}

/// The topic of the requested coordinator.
fn topic_of(request: &FindCoordinatorRequest<'_>) -> Option<&'static str> {
    match request.key_type {
        GROUP => Some(OFFSETS_TOPIC),
        TRANSACTION => Some(TRANSACTIONS_TOPIC),
        _ => None,
    }
}

fn answer(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &FindCoordinatorRequest<'_>,
    out: &mut ResponseBuffer,
) -> Handled {
    let find = |key: &str| coordinator(broker, context, request.key_type, key);
    if context.version >= SEVERAL_KEYS_SINCE {
        let coordinators = request.coordinator_keys.iter().map(|key| find(key)).collect();
        let response = FindCoordinatorResponse { coordinators, ..Default::default() };
        return respond(context, response, out);
    }
    let found = find(&request.key);
    let response = FindCoordinatorResponse {
        error_code: found.error_code,
        // Kafka uses the error's name if there is no message.
        error_message: match found.error_code {
            0 => Some(ErrorCode::NONE.name().into()),
            _ => found.error_message,
        },
        node_id: found.node_id,
        host: found.host,
        port: found.port,
        ..Default::default()
    };
    respond(context, response, out)
}

fn coordinator(
    broker: &Arc<Broker>,
    context: &RequestContext,
    key_type: i8,
    key: &str,
) -> Coordinator<'static> {
    let key_owned = key.to_owned().into();
    let found = may_coordinate(broker, context, key_type, key)
        .and_then(|(topic, index)| endpoint_of(broker, context, topic, index));
    match found {
        Ok((node_id, host, port)) => {
            Coordinator { key: key_owned, node_id, host: host.into(), port, ..Default::default() }
        }
        Err(refused) => Coordinator {
            key: key_owned,
            node_id: -1,
            host: "".into(),
            port: -1,
            error_code: refused.error.code(),
            error_message: Some(refused.message.into()),
            ..Default::default()
        },
    }
}

/// The node that coordinates a partition, with its address for the client. A node on which the partition is offline
/// does not; another node may still lead it.
fn endpoint_of(
    broker: &Broker,
    context: &RequestContext,
    topic: &str,
    index: i32,
) -> Result<(i32, String, i32), Refused> {
    let is_offline_here =
        broker.store.topics.partition(topic, index).is_some_and(|partition| partition.is_offline());
    let not_available = |message: String| Refused { error: ErrorCode::COORDINATOR_NOT_AVAILABLE, message };
    let Some(cluster) = &broker.cluster else {
        if is_offline_here {
            let message = format!("the partition {topic}-{index}, which has this key, is offline");
            return Err(not_available(message));
        }
        let (host, port) = broker.local.endpoint(context.connection.listener);
        return Ok((broker.local.id, host.to_owned(), port));
    };
    let served = broker.store.topics.by_name(topic);
    let leader = served.as_ref().and_then(|topic| {
        let partition = topic.partition(index)?;
        cluster.leader_of_partition(topic.id, index, partition)
    });
    let image = broker.controller.image();
    let may_lead = |node: i32| cluster.is_reachable(node) && !(is_offline_here && node == broker.local.id);
    let node = leader.filter(|leader| may_lead(leader.node)).and_then(|leader| {
        let mut nodes = client_view::nodes(&broker.local, context, &image);
        nodes.find(|node| node.id == leader.node)
    });
    let no_leader =
        || not_available(format!("the partition {topic}-{index}, which has this key, has no leader now"));
    node.map(|node| (node.id, node.host.to_owned(), node.port)).ok_or_else(no_leader)
}

fn may_coordinate(
    broker: &Arc<Broker>,
    context: &RequestContext,
    key_type: i8,
    key: &str,
) -> Result<(&'static str, i32), Refused> {
    match key_type {
        GROUP => {
            authorize(context, Operation::Describe, Resource::Group(key))?;
            broker.node.ensure_internal_topic(OFFSETS_TOPIC)?;
            let index = broker.groups.partition_for(key);
            Ok((OFFSETS_TOPIC, index))
        }
        TRANSACTION => {
            authorize(context, Operation::Describe, Resource::TransactionalId(key))?;
            broker.node.ensure_internal_topic(TRANSACTIONS_TOPIC)?;
            let index = broker.transactions.partition_for(key);
            Ok((TRANSACTIONS_TOPIC, index))
        }
        other => {
            let message = format!("there is no coordinator of type {other} here");
            Err(Refused { error: ErrorCode::INVALID_REQUEST, message })
        }
    }
}
