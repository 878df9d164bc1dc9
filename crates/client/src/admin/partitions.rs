//! Partitions: their first records, their producers, their leaders and their replicas.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use mainstem_wire::messages::alter_replica_log_dirs_request::{
    AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
};
use mainstem_wire::messages::delete_records_request::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic,
};
use mainstem_wire::messages::describe_producers_request::{DescribeProducersRequest, TopicRequest};
use mainstem_wire::messages::describe_producers_response::ProducerState;
use mainstem_wire::messages::elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
use mainstem_wire::messages::list_partition_reassignments_request::ListPartitionReassignmentsRequest;

use super::{Admin, left_out, timeout_ms};
use crate::error::Error;
use crate::topic_partition::{TopicPartition, by_topic};

/// A producer as the leader of a partition remembers it (KIP-664).
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, TopicPartition};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one")).await?.await?;
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let producers = admin.producers(&TopicPartition::new("orders", 0)).await?;
/// assert_eq!((producers.len(), producers[0].last_sequence), (1, 0));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveProducer {
    /// Its id.
    pub producer_id: i64,
    /// The epoch of its id.
    pub producer_epoch: i32,
    /// The number of its last record.
    pub last_sequence: i32,
    /// The time of its last append, in milliseconds since 1970.
    pub last_timestamp_ms: i64,
    /// The first offset of its open transaction, if it has one here.
    pub transaction_start_offset: Option<i64>,
    /// The epoch of the coordinator that ended its last transaction here; none if it has ended none.
    pub coordinator_epoch: Option<i32>,
}

impl ActiveProducer {
    fn from_response(state: &ProducerState<'_>) -> ActiveProducer {
        let start = state.current_txn_start_offset;
        ActiveProducer {
            producer_id: state.producer_id,
            producer_epoch: state.producer_epoch,
            last_sequence: state.last_sequence,
            last_timestamp_ms: state.last_timestamp,
            transaction_start_offset: (start >= 0).then_some(start),
            coordinator_epoch: Some(state.coordinator_epoch).filter(|epoch| *epoch >= 0),
        }
    }
}

/// The way to choose a leader (KIP-460).
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, Election, NewTopic, TopicPartition};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let partitions = [TopicPartition::new("orders", 0)].into();
/// let outcomes = admin.elect_leaders(Election::Preferred, Some(&partitions)).await?;
/// assert!(outcomes.values().all(Election::was_needless));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Election {
    /// The first of the replicas, if it is in sync.
    Preferred,
    /// Any live replica if none is in sync: records may be lost.
    Unclean,
}

/// A partition whose replicas move (KIP-455).
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, Reassignment};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let moving: Vec<Reassignment> = admin.reassignments().await?;
/// assert!(moving.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reassignment {
    /// The partition.
    pub partition: TopicPartition,
    /// All nodes that have a copy or get one.
    pub replicas: Vec<i32>,
    /// Those that get one.
    pub adding: Vec<i32>,
    /// The nodes that lose their copy.
    pub removing: Vec<i32>,
}

impl Admin {
    /// Deletes the records before an offset of each partition, and returns the first offsets that remain. An offset of -1
    /// deletes all records that can be read.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why a leader refuses, such as OFFSET_OUT_OF_RANGE. Other partitions may have been served.
    pub async fn delete_records(
        &self,
        before: &BTreeMap<TopicPartition, i64>,
    ) -> Result<BTreeMap<TopicPartition, i64>, Error> {
        self.retried("deleting records", || async {
            let mut by_leader: BTreeMap<i32, BTreeMap<&str, DeleteRecordsTopic<'_>>> = BTreeMap::new();
            for (key, offset) in before {
                let topics = by_leader.entry(self.cluster.leader(key).await?).or_default();
                let topic = topics.entry(&key.topic).or_insert_with(|| DeleteRecordsTopic {
                    name: (&*key.topic).into(),
                    ..Default::default()
                });
                topic.partitions.push(DeleteRecordsPartition {
                    partition_index: key.partition,
                    offset: *offset,
                    ..Default::default()
                });
            }
            let mut firsts = BTreeMap::new();
            for (leader, topics) in by_leader {
                let timeout_ms = timeout_ms(self.cluster.config());
                let topics = topics.into_values().collect();
                let request = DeleteRecordsRequest { topics, timeout_ms, ..Default::default() };
                let reply = self.cluster.node(leader).await?.call(&request).await?;
                let response = reply.read()?;
                for (topic, one) in response
                    .topics
                    .iter()
                    .flat_map(|topic| topic.partitions.iter().map(move |one| (topic, one)))
                {
                    let key = TopicPartition::new(&*topic.name, one.partition_index);
                    let checked =
                        reply.check(one.error_code, None, || format!("cannot delete records of {key}"));
                    checked.inspect_err(|_| self.cluster.invalidate_topic(&key.topic))?;
                    firsts.insert(key, one.low_watermark);
                }
            }
            Ok(firsts)
        })
        .await
    }

    /// The producers that the leader of a partition remembers.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the leader refuses.
    pub async fn producers(&self, partition: &TopicPartition) -> Result<Vec<ActiveProducer>, Error> {
        self.retried(&format!("describing the producers of {partition}"), || async {
            let topic = TopicRequest {
                name: (&*partition.topic).into(),
                partition_indexes: vec![partition.partition],
                ..Default::default()
            };
            let request = DescribeProducersRequest { topics: vec![topic], ..Default::default() };
            let leader = self.cluster.leader(partition).await?;
            let reply = self.cluster.node(leader).await?.call(&request).await?;
            let response = reply.read()?;
            let found = response.topics.first().and_then(|topic| topic.partitions.first());
            let found = found.ok_or_else(|| left_out(&reply, &partition.to_string()))?;
            let what = || format!("cannot describe the producers of {partition}");
            let checked = reply.check(found.error_code, found.error_message.as_deref(), what);
            checked.inspect_err(|_| self.cluster.invalidate_topic(&partition.topic))?;
            Ok(found.active_producers.iter().map(ActiveProducer::from_response).collect())
        })
        .await
    }

    /// Elects leaders of these partitions, or of all, and returns the outcome for each partition that the controller looked at.
    /// ELECTION_NOT_NEEDED means that the leader is the right one.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn elect_leaders(
        &self,
        election: Election,
        partitions: Option<&BTreeSet<TopicPartition>>,
    ) -> Result<BTreeMap<TopicPartition, Result<(), Error>>, Error> {
        self.retried("electing leaders", || async {
            let topics = partitions.map(|partitions| {
                let topics = by_topic(partitions).into_iter();
                let topic = |(topic, partitions): (&'_ str, _)| TopicPartitions {
                    topic: topic.to_owned().into(),
                    partitions,
                    ..Default::default()
                };
                topics.map(topic).collect()
            });
            let request = ElectLeadersRequest {
                election_type: if election == Election::Preferred { 0 } else { 1 },
                topic_partitions: topics,
                timeout_ms: timeout_ms(self.cluster.config()),
                ..Default::default()
            };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            reply.check(response.error_code, None, || "cannot elect leaders".to_owned())?;
            let results = response.replica_election_results.iter();
            let one = |topic: &str, partition: i32, code: i16, message: Option<&str>| {
                let key = TopicPartition::new(topic, partition);
                let outcome = reply.check(code, message, || format!("cannot elect a leader of {key}"));
                (key, outcome)
            };
            let each = results.flat_map(|topic| {
                topic.partition_result.iter().map(|result| {
                    one(&topic.topic, result.partition_id, result.error_code, result.error_message.as_deref())
                })
            });
            Ok(each.collect())
        })
        .await
    }

    /// Moves partitions to other nodes, in the order in which they are to lead; none cancels a move that runs.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses a partition, such as INVALID_REPLICA_ASSIGNMENT. Others may have
    /// been begun.
    pub async fn reassign(&self, replicas: &BTreeMap<TopicPartition, Option<Vec<i32>>>) -> Result<(), Error> {
        self.retried("reassigning partitions", || async {
            let mut topics: BTreeMap<&str, ReassignableTopic<'_>> = BTreeMap::new();
            for (key, replicas) in replicas {
                let topic = topics.entry(&key.topic).or_insert_with(|| ReassignableTopic {
                    name: (&*key.topic).into(),
                    ..Default::default()
                });
                topic.partitions.push(ReassignablePartition {
                    partition_index: key.partition,
                    replicas: replicas.clone(),
                    ..Default::default()
                });
            }
            let request = AlterPartitionReassignmentsRequest {
                timeout_ms: timeout_ms(self.cluster.config()),
                topics: topics.into_values().collect(),
                ..Default::default()
            };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            let message = response.error_message.as_deref();
            reply.check(response.error_code, message, || "cannot reassign partitions".to_owned())?;
            for topic in &response.responses {
                for one in &topic.partitions {
                    let what = || format!("cannot reassign {}-{}", topic.name, one.partition_index);
                    reply.check(one.error_code, one.error_message.as_deref(), what)?;
                }
            }
            Ok(())
        })
        .await
    }

    /// All partitions whose replicas move at present.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn reassignments(&self) -> Result<Vec<Reassignment>, Error> {
        self.retried("listing reassignments", || async {
            let request = ListPartitionReassignmentsRequest {
                timeout_ms: timeout_ms(self.cluster.config()),
                topics: None,
                ..Default::default()
            };
            let reply = self.cluster.call_controller(&request).await?;
            let response = reply.read()?;
            let message = response.error_message.as_deref();
            reply.check(response.error_code, message, || "cannot list reassignments".to_owned())?;
            let moves = response.topics.iter().flat_map(|topic| {
                topic.partitions.iter().map(|one| Reassignment {
                    partition: TopicPartition::new(&*topic.name, one.partition_index),
                    replicas: one.replicas.clone(),
                    adding: one.adding_replicas.clone(),
                    removing: one.removing_replicas.clone(),
                })
            });
            Ok(moves.collect())
        })
        .await
    }

    /// Moves a node's copies of partitions to other log directories of it, given by their paths (KIP-113). It returns when
    /// the moves have begun; [`Admin::log_dirs`] shows them.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the node refuses a partition, such as LOG_DIR_NOT_FOUND. Others may have been begun.
    pub async fn move_to_log_dirs(
        &self,
        node: i32,
        paths: &BTreeMap<TopicPartition, String>,
    ) -> Result<(), Error> {
        self.retried(&format!("moving partitions between log directories of node {node}"), || async {
            let mut by_path: BTreeMap<&str, BTreeSet<&TopicPartition>> = BTreeMap::new();
            for (key, path) in paths {
                by_path.entry(path).or_default().insert(key);
            }
            let dir = |(path, keys): (&'_ str, BTreeSet<&TopicPartition>)| {
                let topic = |(name, partitions): (&'_ str, _)| AlterReplicaLogDirTopic {
                    name: name.to_owned().into(),
                    partitions,
                    ..Default::default()
                };
                let topics = by_topic(keys).into_iter().map(topic).collect();
                AlterReplicaLogDir { path: path.to_owned().into(), topics, ..Default::default() }
            };
            let dirs = by_path.into_iter().map(dir).collect();
            let request = AlterReplicaLogDirsRequest { dirs, ..Default::default() };
            let reply = self.cluster.node(node).await?.call(&request).await?;
            let response = reply.read()?;
            for topic in &response.results {
                for one in &topic.partitions {
                    let what = || format!("cannot move {}-{}", topic.topic_name, one.partition_index);
                    reply.check(one.error_code, None, what)?;
                }
            }
            Ok(())
        })
        .await
    }
}

impl Election {
    /// Returns true if an outcome of [`Admin::elect_leaders`] says that the leader is the right one already.
    pub fn was_needless(outcome: &Result<(), Error>) -> bool {
        matches!(outcome, Err(error) if error.code() == Some(ErrorCode::ELECTION_NOT_NEEDED))
    }
}
