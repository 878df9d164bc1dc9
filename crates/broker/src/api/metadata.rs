//! Metadata (3), v0-13: topics and the leaders of their partitions. Creates topics that are named and missing.

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_controller::{MetadataImage, TopicImage, names};
use mainstem_lines::OneLine;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};
use mainstem_wire::messages::metadata_response::{
    MetadataResponse, MetadataResponseBroker, MetadataResponsePartition, MetadataResponseTopic,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::background::serve_in_background;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use crate::turns::Class;
use mainstem_net::connection::CloseReason;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::client_view::{self, Leaders};
use mainstem_requests::context::may_create;
use mainstem_requests::context::{
    Operation, RequestContext, Resource, authorize, authorized_operations, cluster_operations, permits,
};

/// The most topics and partitions of an answer on its event loop; more would hold up other connections.
const INLINE_ENTRIES_MAX: usize = 5000;

/// Kafka's number of a node that is not known.
const NO_NODE: i32 = -1;

/// The quota on created partitions holds for every version of the request: Kafka asks its controller for the topics
/// by the latest CreateTopics, in the name of the client.
const STRICT_ALWAYS: i16 = 0;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let behind = decoder.clone();
    let request = decode(decoder, context.version)?;
    if !missing(broker, &context, &request).is_empty() {
        return Ok(serve_in_background(broker, context, &behind, Class::Changes, create_and_answer));
    }
    if is_large(broker, &context, &request) {
        return Ok(serve_in_background(broker, context, &behind, Class::Data, create_and_answer));
    }
    Ok(answer(broker, &context, &request, out))
}

/// Decodes a request, with each topic once: its topics are a set, as in Kafka.
fn decode<'a>(decoder: &mut Decoder<'a>, version: i16) -> Result<MetadataRequest<'a>, DecodeError> {
    let mut request: MetadataRequest<'a> = body(decoder, version)?;
    if let Some(topics) = request.topics.as_mut().filter(|topics| topics.len() > 1) {
        let mut seen = HashSet::with_capacity(topics.len());
        topics.retain(|topic| seen.insert((topic.topic_id, topic.name.clone())));
    }
    Ok(request)
}

/// Returns true if the answer is too large for the event loop.
fn is_large(broker: &Broker, context: &RequestContext, request: &MetadataRequest<'_>) -> bool {
    let image = broker.controller.image();
    let entries = |topic: &TopicImage| 1 + topic.partitions.len();
    let entries = match named(request, context.version) {
        Some(topics) => {
            topics.iter().map(|wanted| find(context, &image, wanted, false).map_or(1, entries)).sum::<usize>()
        }
        None => image.topics().map(entries).sum::<usize>(),
    };
    entries > INLINE_ENTRIES_MAX
}

/// The topics asked for; none means all of them. Before version 1 an empty list means all topics; from then on null
/// does.
fn named<'r, 'a>(
    request: &'r MetadataRequest<'a>,
    version: i16,
) -> Option<&'r Vec<MetadataRequestTopic<'a>>> {
    request.topics.as_ref().filter(|topics| version > 0 || !topics.is_empty())
}

fn create_and_answer(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request = decode(decoder, context.version)?;
    let missing = missing(broker, context, &request);
    // KIP-599: to a client over its quota of partitions the topic does not exist, so that it asks again.
    let mut mutations = broker.quotas.mutations(context, STRICT_ALWAYS);
    let mut permit = |count| mutations.permit(count);
    let created = match &broker.cluster {
        _ if missing.is_empty() => Vec::new(),
        Some(cluster) => cluster.create_missing_topics(&missing, Some(context)),
        None => broker.controller.create_missing_topics(&missing, &mut permit),
    };
    for result in created {
        let (name, error) = (&result.name, ErrorCode::from(result.error_code));
        match error {
            ErrorCode::NONE | ErrorCode::TOPIC_ALREADY_EXISTS => {}
            ErrorCode::THROTTLING_QUOTA_EXCEEDED => {
                tracing::debug!(topic = %OneLine(name), "not created automatically yet: {error}");
            }
            error => {
                tracing::warn!(topic = %OneLine(name), "the topic could not be created automatically: {error}")
            }
        }
    }
    Ok(answer(broker, context, &request, out))
}

/// Returns true if missing topics that a request names are to be created.
fn creates(broker: &Broker, context: &RequestContext, request: &MetadataRequest<'_>) -> bool {
    let wanted = context.version < 4 || request.allow_auto_topic_creation;
    wanted && broker.config().topics.auto_create_enable
}

/// Topics that are named and missing, and may be created now.
fn missing<'r>(broker: &Broker, context: &RequestContext, request: &'r MetadataRequest<'_>) -> Vec<&'r str> {
    if !creates(broker, context, request) {
        return Vec::new();
    }
    let image = broker.controller.image();
    let named = request.topics.iter().flatten().filter(|topic| topic.topic_id.is_zero());
    let mut missing: Vec<&str> = named
        .filter_map(|topic| topic.name.as_deref())
        .filter(|name| image.topic(name).is_none() && names::check(name).is_ok())
        .filter(|name| permits(context, Operation::Describe, Resource::Topic(name)))
        .filter(|name| may_create(context, name))
        .collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

fn answer(
    broker: &Arc<Broker>,
    context: &RequestContext,
    request: &MetadataRequest<'_>,
    out: &mut ResponseBuffer,
) -> Handled {
    let image = broker.controller.image();
    let brokers =
        client_view::nodes_for_clients(&broker.node, context, &image).map(|node| MetadataResponseBroker {
            node_id: node.id,
            host: node.host.into(),
            port: node.port,
            rack: node.rack.map(Into::into),
            ..Default::default()
        });
    let with_operations = request.include_topic_authorized_operations;
    let creates = creates(broker, context, request);
    let topics = match named(request, context.version) {
        Some(topics) => topics
            .iter()
            .map(|wanted| match find(context, &image, wanted, creates) {
                Ok(topic) => describe(broker, context, &image, topic, with_operations),
                Err(error) => refuse(context, wanted, error, with_operations),
            })
            .collect(),
        None => image
            .topics()
            .filter(|topic| permits(context, Operation::Describe, Resource::Topic(&topic.name)))
            .map(|topic| describe(broker, context, &image, topic, with_operations))
            .collect(),
    };
    let cluster_authorized_operations = match request.include_cluster_authorized_operations {
        true => cluster_operations(context),
        false => i32::MIN,
    };
    let response = MetadataResponse {
        brokers: brokers.collect(),
        cluster_id: Some(broker.local.cluster_id.as_str().into()),
        controller_id: broker.controller.leader().unwrap_or(NO_NODE),
        topics,
        cluster_authorized_operations,
        ..Default::default()
    };
    let handled = respond(context, response, out);
    match broker.cluster.as_ref().is_some_and(|cluster| cluster.is_cut_off()) {
        // librdkafka asks the same node again as long as the connection to it is open.
        true if matches!(handled, Handled::Answered) => Handled::AnsweredLast(CloseReason::CutOff),
        _ => handled,
    }
}

fn find<'i>(
    context: &RequestContext,
    image: &'i MetadataImage,
    wanted: &MetadataRequestTopic<'_>,
    creates: bool,
) -> Result<&'i TopicImage, ErrorCode> {
    let topic = match &wanted.name {
        Some(name) if wanted.topic_id.is_zero() => {
            authorize(context, Operation::Describe, Resource::Topic(name))?;
            names::check(name).map_err(|_| ErrorCode::INVALID_TOPIC_EXCEPTION)?;
            return image.topic(name).ok_or_else(|| match creates && !may_create(context, name) {
                true => ErrorCode::TOPIC_AUTHORIZATION_FAILED,
                false => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
            });
        }
        _ => image.topic_by_id(wanted.topic_id).ok_or(ErrorCode::UNKNOWN_TOPIC_ID)?,
    };
    authorize(context, Operation::Describe, Resource::Topic(&topic.name))?;
    Ok(topic)
}

fn describe<'i>(
    broker: &Broker,
    context: &RequestContext,
    image: &MetadataImage,
    topic: &'i TopicImage,
    with_operations: bool,
) -> MetadataResponseTopic<'i> {
    let leaders = Leaders::of(&broker.node, image, topic);
    let partitions = topic.partitions.iter().enumerate().map(|(index, partition)| {
        let leadership = leaders.get(index as i32, partition);
        MetadataResponsePartition {
            error_code: leadership.error_code,
            partition_index: index as i32,
            leader_id: leadership.leader_id,
            leader_epoch: leadership.leader_epoch,
            replica_nodes: partition.replicas.clone(),
            isr_nodes: leadership.isr,
            offline_replicas: leadership.offline_replicas,
            ..Default::default()
        }
    });
    let topic_authorized_operations = match with_operations {
        true => authorized_operations(context, Resource::Topic(&topic.name)),
        false => i32::MIN,
    };
    MetadataResponseTopic {
        name: Some(topic.name.as_str().into()),
        topic_id: topic.id,
        is_internal: names::is_internal(&topic.name),
        partitions: partitions.collect(),
        topic_authorized_operations,
        ..Default::default()
    }
}

fn refuse<'r>(
    context: &RequestContext,
    wanted: &MetadataRequestTopic<'r>,
    error: ErrorCode,
    with_operations: bool,
) -> MetadataResponseTopic<'r> {
    // Kafka adds them for each name that may be described, whether there is such a topic or not.
    let may_describe =
        matches!(error, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION | ErrorCode::INVALID_TOPIC_EXCEPTION);
    let topic_authorized_operations = match &wanted.name {
        Some(name) if with_operations && may_describe => {
            authorized_operations(context, Resource::Topic(name))
        }
        _ => i32::MIN,
    };
    // Null names came with version 12.
    let name = match &wanted.name {
        None if context.version < 12 => Some("".into()),
        name => name.clone(),
    };
    MetadataResponseTopic {
        error_code: error.code(),
        name,
        topic_id: wanted.topic_id,
        topic_authorized_operations,
        ..Default::default()
    }
}
