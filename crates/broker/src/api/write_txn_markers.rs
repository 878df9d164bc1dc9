//! WriteTxnMarkers (27), v1-2: ends producers' transactions in partitions. Coordinators send it to other brokers, and
//! administrators to end a transaction that its coordinator has lost (KIP-664).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use mainstem_coordination::transactions::MarkerOutcome;
use mainstem_log::TransactionMarker;
use mainstem_records::{CoordinatorEpoch, ProducerEpoch, ProducerId};
use mainstem_wire::messages::write_txn_markers_request::{WritableTxnMarker, WriteTxnMarkersRequest};
use mainstem_wire::messages::write_txn_markers_response::{
    WritableTxnMarkerPartitionResult, WritableTxnMarkerResult, WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};
use tokio::sync::oneshot;

use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::markers;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// The pending markers of one producer, by topic and partition.
struct Marked {
    producer_id: ProducerId,
    topics: BTreeMap<String, Vec<(i32, oneshot::Receiver<MarkerOutcome>)>>,
}

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: WriteTxnMarkersRequest<'_> = body(decoder, context.version)?;
    let allowed = authorize(&context, Operation::ClusterAction, Resource::Cluster)
        .or_else(|_| authorize(&context, Operation::Alter, Resource::Cluster));
    let mut named = BTreeSet::new();
    let (mut marked, mut ranks) = (Vec::new(), HashMap::new());
    for marker in &request.markers {
        // A producer is answered once, as in Kafka: clients find the answer by its id.
        let producer_id = ProducerId::new(marker.producer_id);
        let rank = *ranks.entry(producer_id).or_insert(marked.len());
        if rank == marked.len() {
            marked.push(Marked { producer_id, topics: BTreeMap::new() });
        }
        write(broker, marker, allowed, &mut named, &mut marked[rank]);
    }
    if marked.iter().all(|marked| marked.topics.is_empty()) {
        let markers = marked.into_iter().map(|marked| result(marked.producer_id, Vec::new())).collect();
        return Ok(respond(&context, WriteTxnMarkersResponse { markers, ..Default::default() }, out));
    }
    let response = Box::pin(async move {
        let mut markers = Vec::with_capacity(marked.len());
        for marked in marked {
            markers.push(outcome(marked).await);
        }
        let mut out = ResponseBuffer::pooled();
        respond(&context, WriteTxnMarkersResponse { markers, ..Default::default() }, &mut out);
        Ok(out)
    });
    Ok(Handled::Later { response, holds: true })
}

/// Writes the markers of a request, each partition once for a producer, however often it is named.
fn write(
    broker: &Arc<Broker>,
    asked: &WritableTxnMarker<'_>,
    allowed: Result<(), ErrorCode>,
    named: &mut BTreeSet<(ProducerId, String, i32)>,
    marked: &mut Marked,
) {
    let marker = TransactionMarker {
        producer_id: marked.producer_id,
        producer_epoch: ProducerEpoch::new(asked.producer_epoch),
        coordinator_epoch: CoordinatorEpoch::new(asked.coordinator_epoch),
        committed: asked.transaction_result,
        transaction_version: asked.transaction_version.into(),
    };
    for topic in &asked.topics {
        for index in &topic.partition_indexes {
            if !named.insert((marked.producer_id, topic.name.to_string(), *index)) {
                continue;
            }
            let (sender, outcome) = oneshot::channel();
            // The connection may be gone.
            let on_written = move |outcome| _ = sender.send(outcome);
            match allowed {
                Ok(()) => markers::write(&broker.node, &topic.name, *index, marker, Box::new(on_written)),
                Err(error) => on_written(MarkerOutcome::Failed(error)),
            }
            marked.topics.entry(topic.name.to_string()).or_default().push((*index, outcome));
        }
    }
}

async fn outcome(marked: Marked) -> WritableTxnMarkerResult<'static> {
    let mut topics = Vec::new();
    for (name, outcomes) in marked.topics {
        let mut partitions = Vec::with_capacity(outcomes.len());
        for (partition_index, outcome) in outcomes {
            let error = match outcome.await {
                Ok(MarkerOutcome::Written) => ErrorCode::NONE,
                Ok(MarkerOutcome::Gone) => ErrorCode::UNKNOWN_TOPIC_OR_PARTITION,
                Ok(MarkerOutcome::Failed(error)) => error,
                Err(_) => ErrorCode::NOT_LEADER_OR_FOLLOWER,
            };
            let error_code = error.code();
            partitions.push(WritableTxnMarkerPartitionResult {
                partition_index,
                error_code,
                ..Default::default()
            });
        }
        topics.push(WritableTxnMarkerTopicResult { name: name.into(), partitions, ..Default::default() });
    }
    result(marked.producer_id, topics)
}

fn result(
    producer_id: ProducerId,
    topics: Vec<WritableTxnMarkerTopicResult<'static>>,
) -> WritableTxnMarkerResult<'static> {
    WritableTxnMarkerResult { producer_id: producer_id.get(), topics, ..Default::default() }
}
