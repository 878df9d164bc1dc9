//! Produce (0): batches of several partitions of one broker, and the outcome of each.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
use mainstem_wire::messages::produce_response::{PartitionProduceResponse, ProduceResponse};
use mainstem_wire::{Records, Uuid};

use super::queue::{Sendable, Written};
use crate::cluster::Topic;
use crate::connection::Connection;
use crate::error::Error;
use crate::reply::Reply;

/// The first version that names topics by id (KIP-516).
const BY_ID_SINCE: i16 = 13;

/// The last version for which the producer itself has to add partitions to its transaction (KIP-890).
pub(crate) const TRANSACTIONS_V1_UNTIL: i16 = 11;

/// A batch that goes with a request.
#[derive(Debug)]
pub(crate) struct Load {
    /// The queue that it came from.
    pub(crate) queue: usize,
    pub(crate) topic: Arc<Topic>,
    pub(crate) partition: i32,
    pub(crate) batch: Sendable,
}

/// The version to speak, up to `newest`: topics by id only where all have one.
///
/// # Errors
/// [`Error::Unsupported`] if there is no common version.
pub(crate) fn version(connection: &Connection, loads: &[Load], newest: i16) -> Result<i16, Error> {
    let has_ids = loads.iter().all(|load| load.topic.id != Uuid::default());
    connection.version_up_to::<ProduceRequest<'_>>(if has_ids { newest } else { newest.min(BY_ID_SINCE - 1) })
}

/// The request for the batches.
pub(crate) fn request(loads: &[Load], acks: i16, timeout_ms: i32) -> ProduceRequest<'_> {
    let mut topics: BTreeMap<&str, TopicProduceData<'_>> = BTreeMap::new();
    for load in loads {
        let topic = topics.entry(&load.topic.name).or_insert_with(|| TopicProduceData {
            name: Cow::Borrowed(&load.topic.name),
            topic_id: load.topic.id,
            ..Default::default()
        });
        topic.partition_data.push(PartitionProduceData {
            index: load.partition,
            records: Some(Records::Bytes(Cow::Borrowed(&load.batch.bytes))),
            ..Default::default()
        });
    }
    ProduceRequest { acks, timeout_ms, topic_data: topics.into_values().collect(), ..Default::default() }
}

/// The outcome of each batch, in their order; the error of all if the answer cannot be read.
pub(crate) fn outcomes(
    loads: &[Load],
    reply: &Reply<ProduceRequest<'static>>,
) -> Result<Vec<Result<Written, Error>>, Error> {
    let response = reply.read()?;
    Ok(loads.iter().map(|load| outcome(load, reply, &response)).collect())
}

fn outcome(
    load: &Load,
    reply: &Reply<ProduceRequest<'static>>,
    response: &ProduceResponse<'_>,
) -> Result<Written, Error> {
    let name = &load.topic.name;
    let answer = find(load, reply.version(), response).ok_or_else(|| Error::Malformed {
        broker: reply.broker().to_string(),
        api: "Produce",
        reason: format!("it says nothing of {name}-{}", load.partition),
    })?;
    let message = answer.error_message.as_deref();
    reply.check(answer.error_code, message, || format!("cannot write to {name}-{}", load.partition))?;
    let known = |number: i64| (number >= 0).then_some(number);
    Ok(Written { base_offset: known(answer.base_offset), append_time_ms: known(answer.log_append_time_ms) })
}

fn find<'a, 'r>(
    load: &Load,
    version: i16,
    response: &'a ProduceResponse<'r>,
) -> Option<&'a PartitionProduceResponse<'r>> {
    let topic = response.responses.iter().find(|topic| match version >= BY_ID_SINCE {
        true => topic.topic_id == load.topic.id,
        false => *topic.name == *load.topic.name,
    })?;
    topic.partition_responses.iter().find(|partition| partition.index == load.partition)
}
