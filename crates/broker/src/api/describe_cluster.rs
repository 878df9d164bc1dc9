//! DescribeCluster (60), v0-2: the nodes of the cluster.

use std::sync::Arc;

use mainstem_wire::messages::describe_cluster_request::DescribeClusterRequest;
use mainstem_wire::messages::describe_cluster_response::{DescribeClusterBroker, DescribeClusterResponse};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::client_view;
use mainstem_requests::context::{RequestContext, cluster_operations};

/// `endpoint_type` of brokers (KIP-919).
const BROKERS: i8 = 1;

/// `endpoint_type` of controllers.
const CONTROLLERS: i8 = 2;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: DescribeClusterRequest<'_> = body(decoder, context.version)?;
    if request.endpoint_type != BROKERS {
        return Ok(respond(&context, refused(request.endpoint_type), out));
    }
    let image = broker.controller.image();
    let nodes = client_view::nodes(&broker.local, &context, &image);
    let brokers = nodes.filter(|node| request.include_fenced_brokers || !node.fenced);
    let brokers = brokers.map(|node| DescribeClusterBroker {
        broker_id: node.id,
        host: node.host.into(),
        port: node.port,
        rack: node.rack.map(Into::into),
        is_fenced: node.fenced,
        ..Default::default()
    });
    let cluster_authorized_operations = match request.include_cluster_authorized_operations {
        true => cluster_operations(&context),
        false => i32::MIN,
    };
    let response = DescribeClusterResponse {
        endpoint_type: BROKERS,
        cluster_id: broker.local.cluster_id.as_str().into(),
        controller_id: broker.controller.leader().unwrap_or(-1),
        brokers: brokers.collect(),
        cluster_authorized_operations,
        ..Default::default()
    };
    Ok(respond(&context, response, out))
}

/// The refusal of a request for other nodes than brokers.
fn refused(endpoint_type: i8) -> DescribeClusterResponse<'static> {
    let (error, message) = match endpoint_type {
        CONTROLLERS => (
            ErrorCode::MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of brokers.".to_owned(),
        ),
        other => (ErrorCode::UNSUPPORTED_ENDPOINT_TYPE, format!("Unsupported endpoint type {other}")),
    };
    DescribeClusterResponse {
        error_code: error.code(),
        error_message: Some(message.into()),
        ..Default::default()
    }
}
