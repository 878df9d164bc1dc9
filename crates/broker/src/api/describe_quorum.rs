//! DescribeQuorum (55), v0-2: the replicas of the metadata log and their ends (KIP-595, KIP-836). A node without
//! others is leader and only voter.

use std::sync::Arc;

use mainstem_config::Voter;
use mainstem_controller::names::CLUSTER_METADATA;
use mainstem_wire::messages::describe_quorum_request::{DescribeQuorumRequest, TopicData};
use mainstem_wire::messages::describe_quorum_response::{
    self, DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode, Uuid};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::cluster::Cluster;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};
use mainstem_runtime::clock::Now;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeQuorumRequest<'_> = body(decoder, context.version)?;
    let response = match authorize(context, Operation::Describe, Resource::Cluster) {
        Err(error) => DescribeQuorumResponse {
            error_code: error.code(),
            error_message: Some(error.message().into()),
            ..Default::default()
        },
        Ok(()) if is_the_metadata_log(&request.topics) => DescribeQuorumResponse {
            topics: vec![topic(CLUSTER_METADATA, vec![describe(broker, context.version)])],
            nodes: if context.version >= 2 { nodes(broker) } else { Vec::new() },
            ..Default::default()
        },
        Ok(()) => DescribeQuorumResponse {
            topics: request.topics.iter().map(unknown).collect(),
            ..Default::default()
        },
    };
    Ok(respond(context, response, out))
}

/// Returns true if a request names the metadata log alone. Any other topic fails the whole request, as there is one quorum.
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
        ..refused(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION)
    });
    topic(&asked.topic_name, partitions.collect())
}

fn refused(error: ErrorCode) -> PartitionData<'static> {
    PartitionData {
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    }
}

fn describe(broker: &Broker, version: i16) -> PartitionData<'static> {
    let log = broker.controller.log();
    let (ends, directory_id) = match (log.ends(), log.place()) {
        (Ok(ends), Ok((dir, _))) => (ends, dir.directory_id()),
        // The broker is stopping.
        (Err(error), _) | (_, Err(error)) => return refused(error),
    };
    if let Some(cluster) = &broker.cluster {
        return describe_cluster(broker, cluster, ends.high_watermark, version);
    }
    let now = broker.clock.wall_ms();
    let voter = ReplicaState {
        replica_id: broker.local.id,
        // KIP-853: since version 2.
        replica_directory_id: if version >= 2 { Uuid(directory_id) } else { Uuid::ZERO },
        log_end_offset: ends.log_end,
        last_fetch_timestamp: now,
        last_caught_up_timestamp: now,
        ..Default::default()
    };
    PartitionData {
        leader_id: broker.local.id,
        leader_epoch: broker.controller.epoch(),
        high_watermark: ends.high_watermark,
        current_voters: vec![voter],
        ..Default::default()
    }
}

/// The progress of each voter and observer, by the leader of the metadata log. Another node answers only who leads.
fn describe_cluster(
    broker: &Broker,
    cluster: &Cluster,
    high_watermark: i64,
    version: i16,
) -> PartitionData<'static> {
    let log = broker.controller.log();
    let Some((matched, last)) = log.matched() else {
        let leader = broker.controller.leader();
        // Kafka's voters answer so, too: the client asks the leader.
        let mut answer = refused(ErrorCode::NOT_LEADER_OR_FOLLOWER);
        if leader.is_none() {
            answer.error_message = Some(cluster.missing_majority().into());
        }
        answer.leader_id = leader.unwrap_or(-1);
        answer.leader_epoch = broker.controller.epoch();
        return answer;
    };
    let Now { wall_ms: now, mono_ms } = broker.clock.now();
    let log_end = log.ends().map_or(0, |ends| ends.log_end);
    let in_sync = log.in_sync();
    let state = |id: i32| {
        let behind = matched.iter().find(|(node, _)| *node == id).map_or(last, |(_, index)| last - index);
        let behind = if id == broker.local.id { 0 } else { i64::try_from(behind).unwrap_or(i64::MAX) };
        // Entries are counted, and a batch is one entry, so that this is the least of its end.
        let log_end_offset = log_end.saturating_sub(behind).max(0);
        let directory = cluster.directory(id).filter(|_| version >= 2);
        let caught_up = if in_sync.contains(&id) { now } else { -1 };
        let silent_ms = cluster.silent_ms(id, mono_ms);
        let fetched = silent_ms.map_or(-1, |ms| now.saturating_sub_unsigned(ms));
        ReplicaState {
            replica_id: id,
            // KIP-853: since version 2.
            replica_directory_id: directory.unwrap_or(Uuid::ZERO),
            log_end_offset,
            // Replicas do not fetch. Their messages over the links count as the fetches of Kafka's followers.
            last_fetch_timestamp: fetched,
            last_caught_up_timestamp: caught_up,
            ..Default::default()
        }
    };
    PartitionData {
        leader_id: broker.local.id,
        leader_epoch: broker.controller.epoch(),
        high_watermark,
        current_voters: cluster.voters().into_iter().map(&state).collect(),
        observers: cluster.observers().into_iter().map(&state).collect(),
        ..Default::default()
    }
}

fn nodes(broker: &Broker) -> Vec<Node<'static>> {
    let Some(cluster) = &broker.cluster else { return vec![node(broker)] };
    let config = broker.config();
    let name = config.listeners.controller.as_ref().map_or("CONTROLLER", |endpoint| &endpoint.listener);
    let node = |voter: &Voter| Node {
        node_id: voter.id,
        listeners: vec![Listener {
            name: name.to_owned().into(),
            host: voter.host.clone().into(),
            port: voter.port,
            ..Default::default()
        }],
        ..Default::default()
    };
    cluster.nodes().iter().map(node).collect()
}

/// The controller has no listener of its own: it is reached through the broker's.
fn node(broker: &Broker) -> Node<'static> {
    let listeners = broker.local.advertised.iter().map(|endpoint| Listener {
        name: endpoint.listener.clone().into(),
        host: endpoint.host.clone().into(),
        port: endpoint.port,
        ..Default::default()
    });
    Node { node_id: broker.local.id, listeners: listeners.collect(), ..Default::default() }
}
