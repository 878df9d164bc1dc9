//! A request to add partitions to a transaction, and the answer to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_offsets_to_txn_response::AddOffsetsToTxnResponse;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
};
use mainstem_wire::messages::add_partitions_to_txn_response::{
    AddPartitionsToTxnPartitionResult, AddPartitionsToTxnResult, AddPartitionsToTxnTopicResult,
};

use super::Token;
use super::api::Reply;
use super::image::{EPOCH_BUMP_VERSION, Partitions};
use crate::groups::partition_for;

/// Before this version a request has one transaction, and comes from a client. Since then it comes from the leaders of
/// partitions, on behalf of clients whose transactions have version 2 (KIP-890).
pub(super) const FROM_LEADERS_SINCE: i16 = 4;
/// The topic of committed offsets.
const OFFSETS_TOPIC: &str = "__consumer_offsets";

/// A request to add partitions, kept while it waits.
#[derive(Debug)]
pub(crate) struct Adding {
    token: Token,
    api: Api,
    pub(super) producer_id: ProducerId,
    pub(super) producer_epoch: ProducerEpoch,
    /// The version of transactions that the client speaks.
    pub(super) client_version: i16,
    /// No topic of it is without partitions.
    pub(crate) partitions: Partitions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Api {
    Partitions,
    Offsets,
}

impl Adding {
    /// From an AddPartitionsToTxn.
    pub(crate) fn of_partitions(
        token: Token,
        api_version: i16,
        request: &AddPartitionsToTxnTransaction<'_>,
    ) -> Self {
        Self {
            token,
            api: Api::Partitions,
            producer_id: ProducerId::new(request.producer_id),
            producer_epoch: ProducerEpoch::new(request.producer_epoch),
            client_version: if api_version >= FROM_LEADERS_SINCE { EPOCH_BUMP_VERSION } else { 0 },
            partitions: partitions_of(&request.topics),
        }
    }

    /// From an AddOffsetsToTxn: it adds the partition of its group. Clients whose transactions have version 2 do not send it.
    pub(crate) fn of_offsets(
        token: Token,
        offsets_partitions: i32,
        request: &AddOffsetsToTxnRequest<'_>,
    ) -> Self {
        let partition = partition_for(&request.group_id, offsets_partitions);
        Self {
            token,
            api: Api::Offsets,
            producer_id: ProducerId::new(request.producer_id),
            producer_epoch: ProducerEpoch::new(request.producer_epoch),
            client_version: 0,
            partitions: Partitions::from([(OFFSETS_TOPIC.into(), BTreeSet::from([partition]))]),
        }
    }

    /// The answer, with this error for every partition.
    pub(crate) fn reply(self, id: &str, error: ErrorCode) -> (Token, Reply) {
        let reply = match self.api {
            Api::Partitions => Reply::AddPartitions(result(id, &self.partitions, |_, _| error)),
            Api::Offsets => {
                Reply::AddOffsets(AddOffsetsToTxnResponse { error_code: error.0, ..Default::default() })
            }
        };
        (self.token, reply)
    }
}

/// The partitions of a request, by topic. A topic without partitions counts for nothing.
pub(super) fn partitions_of(topics: &[AddPartitionsToTxnTopic<'_>]) -> Partitions {
    let mut partitions = Partitions::new();
    for topic in topics.iter().filter(|topic| !topic.partitions.is_empty()) {
        let name: Arc<str> = (&*topic.name).into();
        partitions.entry(name).or_default().extend(&topic.partitions);
    }
    partitions
}

/// The answer for a transaction, with the error that `error` gives each of its partitions.
pub(super) fn result(
    id: &str,
    partitions: &Partitions,
    error: impl Fn(&str, i32) -> ErrorCode,
) -> AddPartitionsToTxnResult<'static> {
    let topic = |(name, indexes): (&Arc<str>, &BTreeSet<i32>)| {
        let partition = |index: &i32| AddPartitionsToTxnPartitionResult {
            partition_index: *index,
            partition_error_code: error(name, *index).0,
            ..Default::default()
        };
        AddPartitionsToTxnTopicResult {
            name: name.to_string().into(),
            results_by_partition: indexes.iter().map(partition).collect(),
            ..Default::default()
        }
    };
    AddPartitionsToTxnResult {
        transactional_id: id.to_owned().into(),
        topic_results: partitions.iter().map(topic).collect(),
        ..Default::default()
    }
}
