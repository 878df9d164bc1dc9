//! DescribeQuorum (55), v0-2: who keeps the metadata log, and how far it reaches (KIP-595, KIP-836). One node leads and
//! is the only voter.

use std::sync::Arc;

use mainstem_controller::names::CLUSTER_METADATA;
use mainstem_wire::messages::describe_quorum_request::{DescribeQuorumRequest, TopicData};
use mainstem_wire::messages::describe_quorum_response::{
    self, DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Uuid};

use crate::broker::Broker;
use crate::clock::wall_ms;
use crate::net::context::{Operation, RequestContext, Resource, authorize};
use crate::net::dispatch::{Handled, body};
use crate::net::output::ResponseBuffer;
use crate::net::respond::respond;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeQuorumRequest<'_> = body(decoder, context.version)?;
    let response = match authorize(&context, Operation::Describe, Resource::Cluster) {
        Err(error) => DescribeQuorumResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        },
        Ok(()) if is_the_metadata_log(&request.topics) => DescribeQuorumResponse {
            topics: vec![topic(CLUSTER_METADATA, vec![describe(broker, context.version)])],
            nodes: if context.version >= 2 { vec![node(broker)] } else { Vec::new() },
            ..Default::default()
        },
        Ok(()) => DescribeQuorumResponse {
            topics: request.topics.iter().map(unknown).collect(),
            ..Default::default()
        },
    };
    Ok(respond(&context, response, out))
}

/// Anything else in the request, and nothing in it is answered: there is one quorum.
fn is_the_metadata_log(topics: &[TopicData<'_>]) -> bool {
    matches!(topics, [topic] if topic.topic_name == CLUSTER_METADATA
        && matches!(topic.partitions.as_slice(), [partition] if partition.partition_index == 0))
}

fn topic(
    name: &str,
    partitions: Vec<PartitionData<'static>>,
) -> describe_quorum_response::TopicData<'static> {
    describe_quorum_response::TopicData {
        topic_name: name.to_owned().into(),
        partitions,
        ..Default::default()
    }
}

fn unknown(asked: &TopicData<'_>) -> describe_quorum_response::TopicData<'static> {
    let partitions = asked.partitions.iter().map(|partition| PartitionData {
        partition_index: partition.partition_index,
        error_code: ErrorCode::UNKNOWN_TOPIC_OR_PARTITION.code(),
        error_message: None,
        ..Default::default()
    });
    topic(&asked.topic_name, partitions.collect())
}

fn describe(broker: &Broker, version: i16) -> PartitionData<'static> {
    let log = broker.controller.log().with_log(|log| (log.ends(), log.dir().directory_id()));
    let (ends, directory_id) = match log {
        Ok(found) => found,
        // The broker is stopping.
        Err(error) => {
            return PartitionData { error_code: error.code(), error_message: None, ..Default::default() };
        }
    };
    let now = wall_ms();
    let voter = ReplicaState {
        replica_id: broker.node.id,
        // KIP-853: since version 2.
        replica_directory_id: if version >= 2 { Uuid(directory_id) } else { Uuid::ZERO },
        log_end_offset: ends.log_end,
        last_fetch_timestamp: now,
        last_caught_up_timestamp: now,
        ..Default::default()
    };
    PartitionData {
        leader_id: broker.node.id,
        leader_epoch: broker.controller.epoch(),
        high_watermark: ends.high_watermark,
        current_voters: vec![voter],
        ..Default::default()
    }
}

/// The controller has no listener of its own: it is reached through the broker's.
fn node(broker: &Broker) -> Node<'static> {
    let listeners = broker.node.advertised.iter().map(|endpoint| Listener {
        name: endpoint.listener.clone().into(),
        host: endpoint.host.clone().into(),
        port: endpoint.port,
        ..Default::default()
    });
    Node { node_id: broker.node.id, listeners: listeners.collect(), ..Default::default() }
}
