//! Verification of a producer's transaction by its coordinator, before its first batch is written to a partition (KIP-890).
//! Otherwise a late batch of a transaction that has ended would begin one that is never ended.
//!
//! Clients whose transactions have version 2 do not send AddPartitionsToTxn any more: the partition is added here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mainstem_coordination::groups::Producer;
use mainstem_coordination::transactions::{Reply, Request};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};
use tokio::sync::oneshot;

use crate::cluster::calls::{Answer, Answered, Ask, VerifyNote, Who};
use crate::coordinators::origin;
use crate::node::Node;
use mainstem_coordinators::driver::Asked;
use mainstem_coordinators::transactions::TRANSACTIONS_TOPIC;
use mainstem_requests::context::RequestContext;

/// Properties of a client that follow from the version of its request.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Its transactions have version 2: a partition is added, not only looked for.
    pub adds: bool,
    /// It knows TRANSACTION_ABORTABLE.
    knows_abortable: bool,
}

impl Terms {
    /// Properties by the version of Produce.
    pub fn of_produce(version: i16) -> Self {
        Terms { adds: version >= 12, knows_abortable: version >= 11 }
    }

    /// Properties by the version of TxnOffsetCommit.
    pub fn of_offset_commit(version: i16) -> Self {
        Terms { adds: version >= 5, knows_abortable: version >= 4 }
    }

    /// Maps an error of the coordinator to that for the client, like Kafka's AddPartitionsToTxnManager and ReplicaManager.
    fn error(self, error: ErrorCode) -> ErrorCode {
        match error {
            ErrorCode::PRODUCER_FENCED => ErrorCode::INVALID_PRODUCER_EPOCH,
            ErrorCode::TRANSACTION_ABORTABLE if !self.knows_abortable => ErrorCode::INVALID_TXN_STATE,
            // The client tries again, without looking for another leader first.
            ErrorCode::COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode::COORDINATOR_NOT_AVAILABLE
            | ErrorCode::NOT_COORDINATOR => ErrorCode::NOT_ENOUGH_REPLICAS,
            ErrorCode::CONCURRENT_TRANSACTIONS if !self.adds => ErrorCode::NOT_ENOUGH_REPLICAS,
            other => other,
        }
    }
}

/// Partitions that a transaction wants to reach, by topic.
pub type Wanted = BTreeMap<Arc<str>, Vec<i32>>;

/// Errors of the coordinator, by the partitions that it refused.
#[derive(Default)]
pub struct Refusals(HashMap<(String, i32), ErrorCode>);

impl Refusals {
    /// Returns true if nothing was refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the coordinator's error for one partition, if it refused it.
    pub fn of(&self, topic: &str, partition: i32) -> Result<(), ErrorCode> {
        match self.0.is_empty() {
            true => Ok(()),
            false => self.0.get(&(topic.to_owned(), partition)).map_or(Ok(()), |error| Err(*error)),
        }
    }
}

/// The question to the coordinator, on its way.
pub struct Verification {
    terms: Terms,
    asked: Asked<Reply>,
}

impl Verification {
    /// Asks the coordinator of a transactional id whether its producer's transaction may reach these partitions.
    pub fn ask(
        node: &Arc<Node>,
        context: &RequestContext,
        terms: Terms,
        (transactional_id, producer): (&str, Producer),
        wanted: &Wanted,
    ) -> Self {
        let topics = wanted.iter().map(|(name, partitions)| (name.to_string(), partitions.clone()));
        if let Some(asked) = ask_elsewhere(node, context, transactional_id, || VerifyNote {
            who: Who::of(&node.local, context),
            transactional_id: transactional_id.to_owned(),
            producer_id: producer.id.get(),
            producer_epoch: producer.epoch.get(),
            verify_only: !terms.adds,
            topics: topics.clone().collect(),
        }) {
            return Verification { terms, asked };
        }
        let request = AddPartitionsToTxnTransaction {
            transactional_id: transactional_id.into(),
            producer_id: producer.id.get(),
            producer_epoch: producer.epoch.get(),
            verify_only: !terms.adds,
            topics: topics.map(topic_of).collect(),
            ..Default::default()
        };
        Verification { terms, asked: ask_here(node, context, request) }
    }

    /// Returns what the coordinator refused, if it has answered already.
    ///
    /// # Errors
    /// The question itself, to be waited for.
    pub fn now(self) -> Result<Refusals, Self> {
        match self.asked {
            Asked::Now(reply) => Ok(refusals(reply, self.terms)),
            later => Err(Verification { asked: later, ..self }),
        }
    }

    /// Waits for the coordinator, and returns what it refused.
    ///
    /// # Errors
    /// When the broker stops first.
    pub async fn later(self) -> Result<Refusals, ErrorCode> {
        Ok(refusals(self.asked.reply().await?, self.terms))
    }
}

fn topic_of((name, partitions): (String, Vec<i32>)) -> AddPartitionsToTxnTopic<'static> {
    AddPartitionsToTxnTopic { name: name.into(), partitions, ..Default::default() }
}

/// Asks the coordinator on this node. What it says from memory has to be confirmed: another one may have ended the transaction
/// since, and a batch that is let through then begins one that no producer ends.
fn ask_here(
    node: &Arc<Node>,
    context: &RequestContext,
    request: AddPartitionsToTxnTransaction<'_>,
) -> Asked<Reply> {
    let code = ErrorCode::NOT_COORDINATOR.code();
    let all = request
        .topics
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(move |index| (topic.name.to_string(), *index, code)));
    let refusal = Reply::AddPartitions(result_of(all.collect()));
    let key = request.transactional_id.to_string();
    let asked = (Request::AddPartitions(request), &*key);
    node.local.transactions.ask_confirmed(&origin(context), asked, refusal)
}

/// Asks the coordinator on another node, if the transactional id has one there.
fn ask_elsewhere(
    node: &Arc<Node>,
    context: &RequestContext,
    transactional_id: &str,
    note: impl FnOnce() -> VerifyNote,
) -> Option<Asked<Reply>> {
    let cluster = node.cluster.as_ref()?;
    let _ = context;
    let topic = node.local.store.topics.by_name(TRANSACTIONS_TOPIC)?;
    let index = node.local.transactions.partition_for(transactional_id);
    let partition = topic.partition(index)?;
    let leader = cluster.leader_of_partition(topic.id, index, partition)?;
    if leader.node == node.local.id {
        return None;
    }
    let (sender, receiver) = oneshot::channel();
    let note = note();
    let topics = note.topics.clone();
    cluster.ask_then(leader.node, &Ask::Verify(note), move |answered| {
        let results = match answered {
            Answered::Is { answer: Answer::Verified(results), .. } => results,
            _ => {
                let code = ErrorCode::NOT_COORDINATOR.code();
                let all = topics.into_iter().flat_map(|(name, partitions)| {
                    partitions.into_iter().map(move |index| (name.clone(), index, code))
                });
                all.collect()
            }
        };
        // The producer may be gone.
        let _ = sender.send(Reply::AddPartitions(result_of(results)));
    });
    Some(Asked::Later(receiver))
}

fn result_of(results: Vec<(String, i32, i16)>) -> AddPartitionsToTxnResult<'static> {
    let mut topics: BTreeMap<String, Vec<AddPartitionsToTxnPartitionResult>> = BTreeMap::new();
    for (name, partition_index, partition_error_code) in results {
        topics.entry(name).or_default().push(AddPartitionsToTxnPartitionResult {
            partition_index,
            partition_error_code,
            ..Default::default()
        });
    }
    let topic_results = topics.into_iter().map(|(name, results_by_partition)| {
        AddPartitionsToTxnTopicResult { name: name.into(), results_by_partition, ..Default::default() }
    });
    AddPartitionsToTxnResult { topic_results: topic_results.collect(), ..Default::default() }
}

/// Answers the leader of partitions on another node.
///
/// # Errors
/// When the question is malformed, or this node stops.
pub(crate) fn answer(node: &Arc<Node>, note: &VerifyNote) -> Result<Vec<(String, i32, i16)>, ErrorCode> {
    let context = note.who.context(&node.local)?;
    let request = AddPartitionsToTxnTransaction {
        transactional_id: note.transactional_id.as_str().into(),
        producer_id: note.producer_id,
        producer_epoch: note.producer_epoch,
        verify_only: note.verify_only,
        topics: note.topics.iter().cloned().map(topic_of).collect(),
        ..Default::default()
    };
    let Reply::AddPartitions(result) = ask_here(node, &context, request).wait()? else {
        return Err(ErrorCode::UNKNOWN_SERVER_ERROR);
    };
    let results = result.topic_results.into_iter().flat_map(|topic| {
        let name = topic.name.to_string();
        topic
            .results_by_partition
            .into_iter()
            .map(move |partition| (name.clone(), partition.partition_index, partition.partition_error_code))
    });
    Ok(results.collect())
}

fn refusals(reply: Reply, terms: Terms) -> Refusals {
    let Reply::AddPartitions(result) = reply else {
        unreachable!("the coordinator answers in kind, not {reply:?}")
    };
    let mut refused = HashMap::new();
    for topic in result.topic_results {
        for partition in &topic.results_by_partition {
            if partition.partition_error_code != 0 {
                let error = terms.error(partition.partition_error_code.into());
                refused.insert((topic.name.to_string(), partition.partition_index), error);
            }
        }
    }
    Refusals(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_those_that_the_client_knows() {
        let (old, newer, newest) = (Terms::of_produce(9), Terms::of_produce(11), Terms::of_produce(12));
        for (terms, error, expected) in [
            (old, ErrorCode::TRANSACTION_ABORTABLE, ErrorCode::INVALID_TXN_STATE),
            (newer, ErrorCode::TRANSACTION_ABORTABLE, ErrorCode::TRANSACTION_ABORTABLE),
            (newer, ErrorCode::CONCURRENT_TRANSACTIONS, ErrorCode::NOT_ENOUGH_REPLICAS),
            (newest, ErrorCode::CONCURRENT_TRANSACTIONS, ErrorCode::CONCURRENT_TRANSACTIONS),
            (newest, ErrorCode::PRODUCER_FENCED, ErrorCode::INVALID_PRODUCER_EPOCH),
            (newest, ErrorCode::NOT_COORDINATOR, ErrorCode::NOT_ENOUGH_REPLICAS),
        ] {
            assert_eq!(terms.error(error), expected, "{terms:?} {error}");
        }
    }
}
