//! ElectLeaders (43), v0-2: has preferred replicas lead again (KIP-460). On one node they do already.

use std::sync::Arc;

use mainstem_wire::messages::elect_leaders_request::ElectLeadersRequest;
use mainstem_wire::messages::elect_leaders_response::{
    ElectLeadersResponse, PartitionResult, ReplicaElectionResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: &RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: ElectLeadersRequest<'_> = body(decoder, context.version)?;
    let mut response = match authorize(context, Operation::Alter, Resource::Cluster) {
        Ok(()) => match &broker.cluster {
            Some(cluster) => cluster.elect(context, &request),
            None => broker.controller.image().elect_leaders(&request),
        },
        Err(error) => refuse_all(&request, error),
    };
    if context.version == 0 {
        // Version 0 has errors of partitions only.
        response.error_code = 0;
    }
    Ok(respond(context, response, out))
}

/// The refusal of a request, for each of its partitions too.
fn refuse_all(request: &ElectLeadersRequest<'_>, error: ErrorCode) -> ElectLeadersResponse<'static> {
    let refuse = |partition_id: &i32| PartitionResult {
        partition_id: *partition_id,
        error_code: error.code(),
        error_message: Some(error.message().into()),
        ..Default::default()
    };
    let topics = request.topic_partitions.iter().flatten().map(|topic| ReplicaElectionResult {
        topic: topic.topic.to_string().into(),
        partition_result: topic.partitions.iter().map(refuse).collect(),
        ..Default::default()
    });
    ElectLeadersResponse {
        error_code: error.code(),
        replica_election_results: topics.collect(),
        ..Default::default()
    }
}
