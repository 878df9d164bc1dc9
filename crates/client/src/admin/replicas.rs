//! Replicas of partitions, and which of them could lead: DescribeTopicPartitions (75), of KIP-966.

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::describe_topic_partitions_request::{
    Cursor, DescribeTopicPartitionsRequest, TopicRequest,
};
use mainstem_wire::messages::describe_topic_partitions_response::DescribeTopicPartitionsResponsePartition;

use super::{Admin, left_out, settled};
use crate::cluster::Partition;
use crate::error::Error;

/// The copies of a partition.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// let admin = Admin::new(ClientConfig::new(broker.address())?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let partitions = admin.replicas("orders").await?;
/// assert!(partitions.iter().all(|one| one.partition.leader.is_some() && one.offline.is_empty()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionReplicas {
    /// Its leader, all copies, and those in sync.
    pub partition: Partition,
    /// Copies that are not in sync but have all that was committed, so that they may lead.
    pub eligible: Vec<i32>,
    /// Those that were the last of that kind.
    pub last_known_eligible: Vec<i32>,
    /// Copies that cannot be reached at present.
    pub offline: Vec<i32>,
}

impl PartitionReplicas {
    fn from_response(one: &DescribeTopicPartitionsResponsePartition<'_>) -> PartitionReplicas {
        let has_leader = one.leader_id >= 0 && one.error_code == ErrorCode::NONE.code();
        PartitionReplicas {
            partition: Partition {
                index: one.partition_index,
                leader: has_leader.then_some(one.leader_id),
                leader_epoch: one.leader_epoch,
                replicas: one.replica_nodes.clone(),
                isr: one.isr_nodes.clone(),
            },
            eligible: one.eligible_leader_replicas.clone().unwrap_or_default(),
            last_known_eligible: one.last_known_elr.clone().unwrap_or_default(),
            offline: one.offline_replicas.clone(),
        }
    }
}

impl Admin {
    /// The copies of a topic's partitions, by number. A topic that grows meanwhile may have more by then.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as
    /// UNKNOWN_TOPIC_OR_PARTITION.
    pub async fn replicas(&self, topic: &str) -> Result<Vec<PartitionReplicas>, Error> {
        let mut partitions: Vec<PartitionReplicas> = Vec::new();
        let what = format!("describing the partitions of topic {topic}");
        loop {
            let from = i32::try_from(partitions.len()).unwrap_or(i32::MAX);
            let page = self.retried(&what, || async { settled(self.page_of_replicas(topic, from).await) });
            let (page, has_more) = page.await??;
            // A broker that says there are more, and sends none, would be asked for ever.
            let continues = has_more && !page.is_empty();
            partitions.extend(page);
            if !continues {
                return Ok(partitions);
            }
        }
    }

    /// One page of partitions from a number on, as many as the broker sends at once; true if there are more.
    async fn page_of_replicas(
        &self,
        topic: &str,
        from: i32,
    ) -> Result<(Vec<PartitionReplicas>, bool), Error> {
        let cursor = Cursor { topic_name: topic.into(), partition_index: from, ..Default::default() };
        let request = DescribeTopicPartitionsRequest {
            topics: vec![TopicRequest { name: topic.into(), ..Default::default() }],
            cursor: (from > 0).then(|| Box::new(cursor)),
            ..Default::default()
        };
        let reply = self.cluster.call_any(&request).await?;
        let response = reply.read()?;
        let found = response.topics.first().ok_or_else(|| left_out(&reply, topic))?;
        reply.check(found.error_code, None, || format!("cannot describe the partitions of topic {topic}"))?;
        let page = found.partitions.iter().map(PartitionReplicas::from_response).collect();
        Ok((page, response.next_cursor.is_some()))
    }
}
