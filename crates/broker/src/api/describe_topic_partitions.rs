//! DescribeTopicPartitions (75), v0: topics page by page (KIP-966).

use std::sync::Arc;

use mainstem_controller::{MetadataImage, TopicImage, names};
use mainstem_wire::messages::describe_topic_partitions_request::DescribeTopicPartitionsRequest;
use mainstem_wire::messages::describe_topic_partitions_response::{
    Cursor, DescribeTopicPartitionsResponse, DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::client_view::Leaders;
use mainstem_requests::context::{
    Operation, RequestContext, Resource, authorize, authorized_operations, permits,
};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeTopicPartitionsRequest<'_> = body(decoder, context.version)?;
    let image = broker.controller.image();
    let limit = usize::try_from(request.response_partition_limit).unwrap_or(0).max(1);
    let mut page = Page {
        broker,
        context,
        image: &image,
        left: limit.min(broker.limits.describe_partitions_max),
        response: DescribeTopicPartitionsResponse::default(),
    };
    let cursor = request.cursor.as_deref().map(|cursor| (&*cursor.topic_name, cursor.partition_index));
    for name in wanted(context, &request, &image, cursor.map_or("", |(name, _)| name)) {
        let first = cursor.filter(|(topic, _)| *topic == name).map_or(0, |(_, partition)| partition);
        if !page.add(&name, usize::try_from(first).unwrap_or(0)) {
            break;
        }
    }
    let response = page.response;
    Ok(respond(context, response, out))
}

/// The names from the cursor on, in order. Without names these are all topics that the principal may describe.
fn wanted(
    context: &RequestContext,
    request: &DescribeTopicPartitionsRequest<'_>,
    image: &MetadataImage,
    from: &str,
) -> Vec<String> {
    if request.topics.is_empty() {
        let may = |name: &String| permits(context, Operation::Describe, Resource::Topic(name));
        return image.topics_from(from).map(|topic| topic.name.clone()).filter(may).collect();
    }
    let mut names: Vec<String> = request.topics.iter().map(|topic| topic.name.to_string()).collect();
    names.retain(|name| name.as_str() >= from);
    names.sort_unstable();
    names.dedup();
    names
}

/// A response to be filled.
struct Page<'a> {
    broker: &'a Broker,
    context: &'a RequestContext,
    image: &'a MetadataImage,
    /// The number of partitions that still fit.
    left: usize,
    response: DescribeTopicPartitionsResponse<'static>,
}

impl Page<'_> {
    /// Adds a topic, from one of its partitions on. Returns true if there is space for more.
    fn add(&mut self, name: &str, first: usize) -> bool {
        if self.left == 0 {
            self.response.next_cursor = Some(Box::new(cursor(name, first)));
            return false;
        }
        let allowed = authorize(self.context, Operation::Describe, Resource::Topic(name));
        let found = allowed.and_then(|()| {
            names::check(name).map_err(|_| ErrorCode::INVALID_TOPIC_EXCEPTION)?;
            self.image.topic(name).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
        });
        let topic = match found {
            Ok(topic) => topic,
            Err(error) => {
                self.response.topics.push(DescribeTopicPartitionsResponseTopic {
                    error_code: error.code(),
                    name: Some(name.to_owned().into()),
                    // Kafka adds them for each topic that may be described, whether it exists or not.
                    topic_authorized_operations: match allowed {
                        Ok(()) => authorized_operations(self.context, Resource::Topic(name)),
                        Err(_) => i32::MIN,
                    },
                    ..Default::default()
                });
                return true;
            }
        };
        let end = topic.partitions.len().min(first.saturating_add(self.left));
        let described = self.describe(topic, first.min(end)..end);
        self.left -= described.partitions.len();
        self.response.topics.push(described);
        if end < topic.partitions.len() {
            self.response.next_cursor = Some(Box::new(cursor(name, end)));
        }
        end == topic.partitions.len()
    }

    fn describe(
        &self,
        topic: &TopicImage,
        range: std::ops::Range<usize>,
    ) -> DescribeTopicPartitionsResponseTopic<'static> {
        let start = range.start;
        let leaders = Leaders::of(&self.broker.node, self.image, topic);
        let partitions = topic.partitions[range].iter().enumerate().map(|(rank, partition)| {
            let index = (start + rank) as i32;
            let leadership = leaders.get(index, partition);
            DescribeTopicPartitionsResponsePartition {
                error_code: leadership.error_code,
                partition_index: index,
                leader_id: leadership.leader_id,
                leader_epoch: leadership.leader_epoch,
                replica_nodes: partition.replicas.clone(),
                isr_nodes: leadership.isr,
                eligible_leader_replicas: Some(Vec::new()),
                last_known_elr: Some(Vec::new()),
                offline_replicas: leadership.offline_replicas,
                ..Default::default()
            }
        });
        DescribeTopicPartitionsResponseTopic {
            name: Some(topic.name.clone().into()),
            topic_id: topic.id,
            is_internal: names::is_internal(&topic.name),
            partitions: partitions.collect(),
            topic_authorized_operations: authorized_operations(self.context, Resource::Topic(&topic.name)),
            ..Default::default()
        }
    }
}

fn cursor(name: &str, partition: usize) -> Cursor<'static> {
    Cursor { topic_name: name.to_owned().into(), partition_index: partition as i32, ..Default::default() }
}
