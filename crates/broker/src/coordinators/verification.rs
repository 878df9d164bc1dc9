//! Whether a producer's transaction may reach a partition: what its coordinator says before the first batch is written
//! there (KIP-890). Otherwise a late batch of a transaction that has ended would begin one that nobody ends.
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

use crate::broker::Broker;
use crate::coordinators::driver::Asked;
use crate::net::context::RequestContext;

/// What the version of a request says of its client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    /// Its transactions have version 2: a partition is added, not only looked for.
    pub(crate) adds: bool,
    /// It knows TRANSACTION_ABORTABLE.
    knows_abortable: bool,
}

impl Terms {
    /// Of Produce.
    pub(crate) fn of_produce(version: i16) -> Self {
        Terms { adds: version >= 12, knows_abortable: version >= 11 }
    }

    /// Of TxnOffsetCommit.
    pub(crate) fn of_offset_commit(version: i16) -> Self {
        Terms { adds: version >= 5, knows_abortable: version >= 4 }
    }

    /// What the client gets for an error of the coordinator, as from Kafka's AddPartitionsToTxnManager and
    /// ReplicaManager.
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
pub(crate) type Wanted = BTreeMap<Arc<str>, Vec<i32>>;

/// What the coordinator said of each partition that it refused.
#[derive(Default)]
pub(crate) struct Refusals(HashMap<(String, i32), ErrorCode>);

impl Refusals {
    /// Whether nothing was refused.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of one partition.
    pub(crate) fn of(&self, topic: &str, partition: i32) -> Result<(), ErrorCode> {
        match self.0.is_empty() {
            true => Ok(()),
            false => self.0.get(&(topic.to_owned(), partition)).map_or(Ok(()), |error| Err(*error)),
        }
    }
}

/// The question to the coordinator, on its way.
pub(crate) struct Verification {
    terms: Terms,
    asked: Asked<Reply>,
}

impl Verification {
    /// Asks the coordinator of a transactional id whether its producer's transaction may reach these partitions.
    pub(crate) fn ask(
        broker: &Arc<Broker>,
        context: &RequestContext,
        terms: Terms,
        (transactional_id, producer): (&str, Producer),
        wanted: &Wanted,
    ) -> Self {
        let topics = wanted.iter().map(|(name, partitions)| AddPartitionsToTxnTopic {
            name: name.to_string().into(),
            partitions: partitions.clone(),
            ..Default::default()
        });
        let request = Request::AddPartitions(AddPartitionsToTxnTransaction {
            transactional_id: transactional_id.into(),
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            verify_only: !terms.adds,
            topics: topics.collect(),
            ..Default::default()
        });
        Verification { terms, asked: broker.transactions.ask(broker, context, request) }
    }

    /// What the coordinator refused, if it has answered already.
    ///
    /// # Errors
    /// The question itself, to be waited for.
    pub(crate) fn now(self) -> Result<Refusals, Self> {
        match self.asked {
            Asked::Now(reply) => Ok(refusals(reply, self.terms)),
            later => Err(Verification { asked: later, ..self }),
        }
    }

    /// What the coordinator refused.
    ///
    /// # Errors
    /// When the broker stops first.
    pub(crate) async fn later(self) -> Result<Refusals, ErrorCode> {
        Ok(refusals(self.asked.reply().await?, self.terms))
    }
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
