//! AddPartitionsToTxn (24), v0-5: a producer's transaction is to reach partitions. From version 4 on it comes from the
//! leaders of partitions, for several producers at once (KIP-890).

use std::collections::HashSet;
use std::sync::Arc;

use mainstem_coordination::transactions::add_partitions::{refused, response, transactions_of};
use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResponse, AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
};
use mainstem_wire::{DecodeError, Decoder, ErrorCode};

use crate::api::fenced_error;
use crate::broker::Broker;
use crate::respond::body;
use crate::respond::respond;
use mainstem_coordinators::driver::Asked;
use mainstem_net::handled::Handled;
use mainstem_net::output::ResponseBuffer;
use mainstem_node::coordinators::origin;
use mainstem_requests::context::{Operation, RequestContext, Resource, authorize};

/// Version from which the request comes from other brokers.
const FROM_LEADERS_SINCE: i16 = 4;

/// Version from which clients know PRODUCER_FENCED (KIP-588).
const FENCED_SINCE: i16 = 2;

pub(crate) fn serve(
    broker: &Arc<Broker>,
    context: RequestContext,
    decoder: &mut Decoder<'_>,
    out: &mut ResponseBuffer,
) -> Result<Handled, DecodeError> {
    let request: AddPartitionsToTxnRequest<'_> = body(decoder, context.version)?;
    let mut transactions = transactions_of(request, context.version);
    // A transaction that is named twice is answered once.
    let mut seen = HashSet::new();
    transactions.retain(|transaction| seen.insert(transaction.transactional_id.clone()));
    if context.version >= FROM_LEADERS_SINCE
        && let Err(error) = authorize(&context, Operation::ClusterAction, Resource::Cluster)
    {
        let response = AddPartitionsToTxnResponse { error_code: error.code(), ..Default::default() };
        return Ok(respond(&context, response, out));
    }
    let asked: Vec<_> =
        transactions.into_iter().map(|transaction| ask(broker, &context, transaction)).collect();
    if asked.iter().all(|asked| matches!(asked, Asked::Now(_))) {
        let results = asked.into_iter().filter_map(|asked| match asked {
            Asked::Now(reply) => Some(reply),
            Asked::Later(_) => None,
        });
        let results = results.collect();
        return Ok(answer(&context, results, out));
    }
    let response = Box::pin(async move {
        let mut results = Vec::with_capacity(asked.len());
        for asked in asked {
            results.push(asked.reply().await.map_err(|_| "the coordinator ended".to_owned())?);
        }
        let mut out = ResponseBuffer::pooled();
        answer(&context, results, &mut out);
        Ok(out)
    });
    Ok(Handled::Later { response, holds: true })
}

/// Asks the coordinator about one transaction, if the client may write to it and all its partitions exist.
fn ask(
    broker: &Arc<Broker>,
    context: &RequestContext,
    transaction: AddPartitionsToTxnTransaction<'_>,
) -> Asked<Reply> {
    if context.version < FROM_LEADERS_SINCE {
        let id = Resource::TransactionalId(&transaction.transactional_id);
        if let Err(error) = authorize(context, Operation::Write, id) {
            return Asked::Now(Reply::AddPartitions(refused(&transaction, error)));
        }
    }
    let check = |topic: &str, index| check(broker, context, topic, index);
    let partitions = || {
        let topics = transaction.topics.iter();
        topics.flat_map(|topic| topic.partitions.iter().map(|index| (&*topic.name, *index)))
    };
    if partitions().all(|(topic, index)| check(topic, index).is_ok()) {
        // The answer that partitions are in the transaction comes from memory. Another coordinator may have ended that transaction.
        let refusal = Reply::AddPartitions(refused(&transaction, ErrorCode::NOT_COORDINATOR));
        let key = transaction.transactional_id.to_string();
        let asked = (Request::AddPartitions(transaction), &*key);
        return broker.transactions.ask_confirmed(&origin(context), asked, refusal);
    }
    // All or none: the others were not tried.
    let mut result = refused(&transaction, ErrorCode::OPERATION_NOT_ATTEMPTED);
    for topic in &mut result.topic_results {
        let AddPartitionsToTxnTopicResult { name, results_by_partition, .. } = topic;
        for AddPartitionsToTxnPartitionResult { partition_index, partition_error_code, .. } in
            results_by_partition
        {
            if let Err(error) = check(name, *partition_index) {
                *partition_error_code = error.code();
            }
        }
    }
    Asked::Now(Reply::AddPartitions(result))
}

fn check(broker: &Broker, context: &RequestContext, topic: &str, index: i32) -> Result<(), ErrorCode> {
    if context.version < FROM_LEADERS_SINCE {
        authorize(context, Operation::Write, Resource::Topic(topic))?;
    }
    match broker.store.topics.partition(topic, index) {
        None => Err(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        // An attached queue takes no transactional batches.
        Some(partition) if partition.queue().is_some() => Err(ErrorCode::UNSUPPORTED_FOR_MESSAGE_FORMAT),
        Some(_) => Ok(()),
    }
}

fn answer(context: &RequestContext, replies: Vec<Reply>, out: &mut ResponseBuffer) -> Handled {
    let results = replies.into_iter().map(|reply| match reply {
        Reply::AddPartitions(result) => for_version(context, result),
        other => unreachable!("the coordinator answers in kind, not {other:?}"),
    });
    let response = response(results.collect(), context.version);
    respond(context, response, out)
}

fn for_version(
    context: &RequestContext,
    mut result: AddPartitionsToTxnResult<'static>,
) -> AddPartitionsToTxnResult<'static> {
    for partition in result.topic_results.iter_mut().flat_map(|topic| &mut topic.results_by_partition) {
        partition.partition_error_code =
            fenced_error(partition.partition_error_code, context.version, FENCED_SINCE);
    }
    result
}
