//! Transactions: list, describe, and end what their coordinator has lost (KIP-664).

use std::collections::BTreeSet;
use std::time::Duration;

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_transactions_request::DescribeTransactionsRequest;
use mainstem_wire::messages::describe_transactions_response::TransactionState;
use mainstem_wire::messages::list_transactions_request::ListTransactionsRequest;
use mainstem_wire::messages::write_txn_markers_request::{
    WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest,
};

use super::{Admin, left_out};
use crate::error::Error;
use crate::topic_partition::TopicPartition;

/// The duration filter of transactions of any age.
const ANY_DURATION: i64 = -1;

/// A transactional id in a list of a cluster's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TransactionListing {
    /// The transactional id.
    pub transactional_id: String,
    /// The node that coordinates it.
    pub coordinator: i32,
    /// Id of its producer.
    pub producer_id: i64,
    /// State of its transaction, such as `Ongoing` or `CompleteCommit`.
    pub state: String,
}

/// A choice of transactional ids; an empty list chooses all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TransactionFilter {
    /// States of transactions, as [`TransactionListing::state`] names them.
    pub states: Vec<String>,
    /// Ids of producers.
    pub producer_ids: Vec<i64>,
    /// Only transactions that are open for longer than this (KIP-994, Kafka 3.8).
    pub longer_than: Option<Duration>,
}

/// A transactional id, as its coordinator describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionDescription {
    /// The node that coordinates it.
    pub coordinator: i32,
    /// State of its transaction.
    pub state: String,
    /// Id of its producer.
    pub producer_id: i64,
    /// Epoch of its producer.
    pub producer_epoch: i16,
    /// The time after which the coordinator aborts a transaction, in milliseconds.
    pub timeout_ms: i32,
    /// The start of the open transaction, in milliseconds since 1970; none if there is none.
    pub start_time_ms: Option<i64>,
    /// The partitions that the open transaction has written to.
    pub partitions: BTreeSet<TopicPartition>,
}

/// A producer's transaction in one partition, which is to be aborted there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HangingTransaction {
    /// The partition.
    pub partition: TopicPartition,
    /// Id of the producer.
    pub producer_id: i64,
    /// Epoch of the producer.
    pub producer_epoch: i16,
    /// Epoch of the coordinator that wrote the producer's last marker there; 0 if none did.
    pub coordinator_epoch: i32,
}

impl Admin {
    /// The transactional ids of all coordinators that a filter chooses, by name.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig, TransactionFilter};
    /// # use mainstem_client::{Producer, ProducerConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// # let address = broker.address();
    /// # let config = ProducerConfig::new(ClientConfig::new(address)?).transactional_id("billing");
    /// # Producer::new(config)?.init_transactions().await?;
    /// let admin = Admin::new(ClientConfig::new(address)?);
    /// let all = admin.transactions(&TransactionFilter::default()).await?;
    /// assert_eq!((&*all[0].transactional_id, &*all[0].state), ("billing", "Empty"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], [`Error::Invalid`] if a broker does not know a state, or why the cluster refuses.
    pub async fn transactions(&self, filter: &TransactionFilter) -> Result<Vec<TransactionListing>, Error> {
        let duration = filter.longer_than.map(|time| i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        self.retried("listing transactions", || async {
            let mut found = Vec::new();
            for node in self.cluster.node_ids().await? {
                let request = ListTransactionsRequest {
                    state_filters: filter.states.iter().map(|state| state.as_str().into()).collect(),
                    producer_id_filters: filter.producer_ids.clone(),
                    duration_filter: duration.unwrap_or(ANY_DURATION),
                    ..Default::default()
                };
                let reply = self.cluster.node(node).await?.call(&request).await?;
                let response = reply.read()?;
                reply.check(response.error_code, None, || "cannot list transactions".to_owned())?;
                if let Some(unknown) = response.unknown_state_filters.first() {
                    return Err(Error::Invalid(format!("transactions have no state {unknown}")));
                }
                found.extend(response.transaction_states.iter().map(|listed| TransactionListing {
                    transactional_id: listed.transactional_id.to_string(),
                    coordinator: node,
                    producer_id: listed.producer_id,
                    state: listed.transaction_state.to_string(),
                }));
            }
            found.sort();
            Ok(found)
        })
        .await
    }

    /// A transactional id with its transaction; none if its coordinator does not know it.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn describe_transaction(
        &self,
        transactional_id: &str,
    ) -> Result<Option<TransactionDescription>, Error> {
        let what = format!("describing the transaction of {transactional_id}");
        self.retried(&what, || async {
            self.try_to_describe(transactional_id).await.inspect_err(|error| {
                if error.is_retriable() {
                    self.cluster.forget_transaction_coordinator(transactional_id);
                }
            })
        })
        .await
    }

    async fn try_to_describe(&self, id: &str) -> Result<Option<TransactionDescription>, Error> {
        let coordinator = self.cluster.transaction_coordinator_id(id).await?;
        let request =
            DescribeTransactionsRequest { transactional_ids: vec![id.into()], ..Default::default() };
        let reply = self.cluster.node(coordinator).await?.call(&request).await?;
        let response = reply.read()?;
        let found = response.transaction_states.first().ok_or_else(|| left_out(&reply, id))?;
        if found.error_code == ErrorCode::TRANSACTIONAL_ID_NOT_FOUND.code() {
            return Ok(None);
        }
        let refused = || format!("cannot describe the transaction of {id}");
        reply.check(found.error_code, None, refused)?;
        Ok(Some(TransactionDescription::from_response(coordinator, found)))
    }

    /// Ends a producer's transaction in a partition by a marker that aborts it, whatever its coordinator knows of it. It is meant
    /// for hanging transactions: if the transaction is still open in other partitions, its records here are lost.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as INVALID_PRODUCER_EPOCH if the producer has gone on.
    pub async fn abort_hanging(&self, hanging: &HangingTransaction) -> Result<(), Error> {
        let key = &hanging.partition;
        self.retried(&format!("aborting a transaction in {key}"), || async {
            let topic = WritableTxnMarkerTopic {
                name: (&*key.topic).into(),
                partition_indexes: vec![key.partition],
                ..Default::default()
            };
            let marker = WritableTxnMarker {
                producer_id: hanging.producer_id,
                producer_epoch: hanging.producer_epoch,
                transaction_result: false,
                topics: vec![topic],
                coordinator_epoch: hanging.coordinator_epoch,
                ..Default::default()
            };
            let request = WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() };
            let leader = self.cluster.leader(key).await?;
            let reply = self.cluster.node(leader).await?.call(&request).await?;
            let response = reply.read()?;
            let topics = response.markers.iter().flat_map(|marker| &marker.topics);
            let found = topics.flat_map(|topic| &topic.partitions).next();
            let found = found.ok_or_else(|| left_out(&reply, &key.to_string()))?;
            let refused =
                || format!("cannot abort the transaction of producer {} in {key}", hanging.producer_id);
            let checked = reply.check(found.error_code, None, refused);
            checked.inspect_err(|_| self.cluster.invalidate_topic(&key.topic))
        })
        .await
    }
}

impl TransactionDescription {
    fn from_response(coordinator: i32, state: &TransactionState<'_>) -> TransactionDescription {
        let partitions = state.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|partition| TopicPartition::new(&*topic.topic, *partition))
        });
        let start = state.transaction_start_time_ms;
        TransactionDescription {
            coordinator,
            state: state.transaction_state.to_string(),
            producer_id: state.producer_id,
            producer_epoch: state.producer_epoch,
            timeout_ms: state.transaction_timeout_ms,
            start_time_ms: (start >= 0).then_some(start),
            partitions: partitions.collect(),
        }
    }
}
