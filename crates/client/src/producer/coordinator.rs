//! The requests of a transactional producer to the coordinator of its transactions.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::messages::add_offsets_to_txn_request::AddOffsetsToTxnRequest;
use mainstem_wire::messages::add_partitions_to_txn_request::{
    AddPartitionsToTxnRequest, AddPartitionsToTxnTopic,
};
use mainstem_wire::messages::end_txn_request::EndTxnRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::{ErrorCode, Request};

use super::transaction::{Name, name_of};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::reply::Reply;
use crate::retry::retrying;
use crate::topic_partition::{TopicPartition, by_topic};

/// The feature whose level is the version of the transaction protocol (KIP-890).
const FEATURE: &str = "transaction.version";
/// The last version of AddPartitionsToTxn that is for clients.
const ADD_PARTITIONS_UNTIL: i16 = 3;
/// The last version of EndTxn without new epochs.
const END_V1_UNTIL: i16 = 4;

/// The coordinator of a producer's transactions, on whichever node it is.
#[derive(Debug, Clone)]
pub(crate) struct Coordinator {
    pub(crate) cluster: Cluster,
    pub(crate) transactional_id: Arc<str>,
    /// The time after which the coordinator aborts an open transaction.
    pub(crate) transaction_timeout: Duration,
    /// The time limit for a call with its retries.
    pub(crate) limit: Duration,
}

impl Coordinator {
    fn failed(&self, what: &str) -> String {
        format!("cannot {what} of {}", self.transactional_id)
    }

    /// Tries until it succeeds, fails for good, or the time is over.
    async fn retried<T, F: Future<Output = Result<T, Error>>>(
        &self,
        what: &str,
        attempt: impl Fn() -> F,
    ) -> Result<T, Error> {
        retrying(
            self.cluster.config(),
            self.limit,
            &format!("{what} of {}", self.transactional_id),
            || async {
                attempt().await.inspect_err(|error| {
                    if error.is_retriable() && error.code() != Some(ErrorCode::CONCURRENT_TRANSACTIONS) {
                        self.cluster.forget_transaction_coordinator(&self.transactional_id);
                    }
                })
            },
        )
        .await
    }

    async fn call<'q, R: Request<'q>>(&self, request: &R, newest: i16) -> Result<Reply<R>, Error> {
        let coordinator = self.cluster.transaction_coordinator(&self.transactional_id).await?;
        coordinator.call_up_to(request, newest).await
    }

    /// InitProducerId (22): an id and epoch for the producer, or after `current` its next epoch. The coordinator aborts transactions
    /// that an earlier producer of this transactional id has left open, and fences that producer. Also returns true if the
    /// cluster has version 2 of the protocol.
    pub(crate) async fn init(&self, current: Option<Name>) -> Result<(Name, bool), Error> {
        let (id, epoch) = current.unwrap_or((ProducerId::NONE, ProducerEpoch::NONE));
        self.retried("initializing the transactions", || async {
            let request = InitProducerIdRequest {
                transactional_id: Some(Cow::Borrowed(&self.transactional_id)),
                transaction_timeout_ms: i32::try_from(self.transaction_timeout.as_millis())
                    .expect("the configuration was checked"),
                producer_id: id.get(),
                producer_epoch: epoch.get(),
                ..Default::default()
            };
            let coordinator = self.cluster.transaction_coordinator(&self.transactional_id).await?;
            let is_v2 = coordinator.feature(FEATURE) >= 2;
            let reply = coordinator.call(&request).await?;
            let response = reply.read()?;
            reply.check(response.error_code, None, || self.failed("initialize the transactions"))?;
            Ok((name_of(response.producer_id, response.producer_epoch), is_v2))
        })
        .await
    }

    /// AddPartitionsToTxn (24), with version 1 of the protocol: all or none.
    pub(crate) async fn add_partitions(
        &self,
        name: Name,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<(), Error> {
        self.retried("adding partitions to a transaction", || async {
            let topics = by_topic(partitions).into_iter().map(|(name, partitions)| AddPartitionsToTxnTopic {
                name: Cow::Borrowed(name),
                partitions,
                ..Default::default()
            });
            let request = AddPartitionsToTxnRequest {
                v3_and_below_transactional_id: Cow::Borrowed(&self.transactional_id),
                v3_and_below_producer_id: name.0.get(),
                v3_and_below_producer_epoch: name.1.get(),
                v3_and_below_topics: topics.collect(),
                ..Default::default()
            };
            let reply = self.call(&request, ADD_PARTITIONS_UNTIL).await?;
            let response = reply.read()?;
            let results = response.results_by_topic_v3_and_below.iter();
            let codes =
                results.flat_map(|topic| &topic.results_by_partition).map(|one| one.partition_error_code);
            // Partitions beside a refused one are not even tried.
            let mut codes = codes.filter(|code| *code != ErrorCode::OPERATION_NOT_ATTEMPTED.code());
            let what = || self.failed("add partitions to a transaction");
            codes.try_for_each(|code| reply.check(code, None, what))
        })
        .await
    }

    /// AddOffsetsToTxn (25), with version 1 of the protocol: offsets of a group are about to be committed.
    pub(crate) async fn add_offsets(&self, name: Name, group: &str) -> Result<(), Error> {
        self.retried("adding offsets to a transaction", || async {
            let request = AddOffsetsToTxnRequest {
                transactional_id: Cow::Borrowed(&self.transactional_id),
                producer_id: name.0.get(),
                producer_epoch: name.1.get(),
                group_id: Cow::Borrowed(group),
                ..Default::default()
            };
            let reply = self.call(&request, i16::MAX).await?;
            let response = reply.read()?;
            reply.check(response.error_code, None, || self.failed("add offsets to a transaction"))
        })
        .await
    }

    /// EndTxn (26). With version 2 of the protocol also the name for the next transaction.
    pub(crate) async fn end(&self, name: Name, committed: bool, is_v2: bool) -> Result<Option<Name>, Error> {
        let (doing, what) = match committed {
            true => ("committing a transaction", "commit a transaction"),
            false => ("aborting a transaction", "abort a transaction"),
        };
        self.retried(doing, || async {
            let request = EndTxnRequest {
                transactional_id: Cow::Borrowed(&self.transactional_id),
                producer_id: name.0.get(),
                producer_epoch: name.1.get(),
                committed,
                ..Default::default()
            };
            let reply = self.call(&request, if is_v2 { i16::MAX } else { END_V1_UNTIL }).await?;
            let response = reply.read()?;
            reply.check(response.error_code, None, || self.failed(what))?;
            let next = name_of(response.producer_id, response.producer_epoch);
            Ok((is_v2 && next.0 > ProducerId::NONE).then_some(next))
        })
        .await
    }
}
