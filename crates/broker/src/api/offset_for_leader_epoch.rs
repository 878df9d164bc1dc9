//! OffsetForLeaderEpoch (23), v2-4: the end offset of an epoch, by which a reader notices that the log was cut (KIP-320).

use std::sync::Arc;

use mainstem_records::LeaderEpoch;
use mainstem_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition,
};
use mainstem_wire::messages::offset_for_leader_epoch_response::{
    EpochEndOffset, OffsetForLeaderEpochResponse, OffsetForLeaderTopicResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize, permits};

/// Epoch and end of an answer that knows none.
const UNDEFINED: (i32, i64) = (-1, -1);

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: OffsetForLeaderEpochRequest<'_> = body(decoder, context.version)?;
    // Other nodes ask as well, about every topic.
    let is_node = permits(&context, Operation::ClusterAction, Resource::Cluster);
    let topics = request.topics.iter().map(|topic| {
        let allowed = match is_node {
            true => Ok(()),
            false => authorize(&context, Operation::Describe, Resource::Topic(&topic.topic)),
        };
        let partitions = topic.partitions.iter().map(|wanted| {
            let end = allowed.and_then(|()| end_of_epoch(broker, &topic.topic, wanted));
            let (error_code, (leader_epoch, end_offset)) = match end {
                Ok(end) => (0, end),
                Err(error) => (error.code(), UNDEFINED),
            };
            let partition = wanted.partition;
            EpochEndOffset { error_code, partition, leader_epoch, end_offset, ..Default::default() }
        });
        OffsetForLeaderTopicResult {
            topic: topic.topic.clone(),
            partitions: partitions.collect(),
            ..Default::default()
        }
    });
    let response = OffsetForLeaderEpochResponse { topics: topics.collect(), ..Default::default() };
    Ok(respond(&context, response, out))
}

fn end_of_epoch(
    broker: &Broker,
    topic: &str,
    wanted: &OffsetForLeaderPartition<'_>,
) -> Result<(i32, i64), ErrorCode> {
    let partition = broker
        .store
        .topics
        .partition(topic, wanted.partition)
        .ok_or(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)?;
    let end = partition
        .end_of_epoch(LeaderEpoch::new(wanted.current_leader_epoch), LeaderEpoch::new(wanted.leader_epoch))?;
    Ok((end.epoch.get(), end.end_offset))
}
