//! DescribeProducers (61), v0: the producer state of partitions (KIP-664).

use std::sync::Arc;

use mainstem_controller::names;
use mainstem_log::ProducerState as KnownProducers;
use mainstem_records::LeaderEpoch;
use mainstem_wire::messages::describe_producers_request::{DescribeProducersRequest, TopicRequest};
use mainstem_wire::messages::describe_producers_response::{
    DescribeProducersResponse, PartitionResponse, ProducerState, TopicResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// Producers in one answer, about 50 bytes each; a partition has 10,000 at most.
const PRODUCERS_MAX: usize = 100_000;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeProducersRequest<'_> = body(decoder, context.version)?;
    let mut left = PRODUCERS_MAX;
    let topics = request.topics.iter().map(|topic| TopicResponse {
        name: topic.name.clone(),
        partitions: describe_topic(broker, context, topic, &mut left),
        ..Default::default()
    });
    let topics = topics.collect();
    Ok(respond(context, DescribeProducersResponse { topics, ..Default::default() }, out))
}

fn describe_topic(
    broker: &Broker,
    context: &RequestContext,
    topic: &TopicRequest<'_>,
    left: &mut usize,
) -> Vec<PartitionResponse<'static>> {
    let allowed = authorize(context, Operation::Read, Resource::Topic(&topic.name))
        .and_then(|()| names::check(&topic.name).map_err(|_| ErrorCode::INVALID_TOPIC_EXCEPTION));
    let described = topic.partition_indexes.iter().map(|index| {
        let producers = allowed.and_then(|()| producers(broker, &topic.name, *index, *left));
        let error = producers.as_ref().err().copied();
        let active_producers = producers.unwrap_or_default();
        *left -= active_producers.len();
        PartitionResponse {
            partition_index: *index,
            error_code: error.map_or(0, ErrorCode::code),
            error_message: error.map(|error| error.message().into()),
            active_producers,
            ..Default::default()
        }
    });
    described.collect()
}

/// # Errors
/// `POLICY_VIOLATION` where the answer would be too long: fewer partitions can be asked for.
fn producers(
    broker: &Broker,
    topic: &str,
    index: i32,
    most: usize,
) -> Result<Vec<ProducerState<'static>>, ErrorCode> {
    let partition =
        broker.store.topics.partition(topic, index).ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    partition.lead(LeaderEpoch::NONE)?;
    let describe = |known: &KnownProducers| {
        if known.len() > most {
            return Err(ErrorCode::POLICY_VIOLATION);
        }
        let states = known.iter().map(|(producer_id, producer)| ProducerState {
            producer_id: producer_id.get(),
            producer_epoch: producer.epoch.get().into(),
            last_sequence: producer.last_sequence(),
            last_timestamp: producer.last_timestamp,
            coordinator_epoch: producer.coordinator_epoch.get(),
            current_txn_start_offset: producer.transaction_first_offset.unwrap_or(-1),
            ..Default::default()
        });
        Ok(states.collect())
    };
    partition.with_producers(describe)?
}
