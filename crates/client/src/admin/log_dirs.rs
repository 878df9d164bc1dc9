//! Nodes, and the disk space that partitions occupy on them: DescribeLogDirs (35).

use mainstem_wire::messages::describe_log_dirs_request::DescribeLogDirsRequest;
use mainstem_wire::messages::describe_log_dirs_response::DescribeLogDirsResult;

use super::Admin;
use crate::error::Error;
use crate::reply::Reply;
use crate::topic_partition::TopicPartition;

/// A log directory of a node.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// for node in admin.nodes().await? {
///     for dir in admin.log_dirs(node).await? {
///         assert_eq!(dir.error, None, "{} is online", dir.path);
///         assert!(dir.usable_bytes <= dir.total_bytes);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDir {
    /// Its path there.
    pub path: String,
    /// The reason if it is offline.
    pub error: Option<Error>,
    /// The size in bytes of its volume, if the broker reports it (KIP-827).
    pub total_bytes: Option<i64>,
    /// Bytes of them that are free.
    pub usable_bytes: Option<i64>,
    /// The partitions in it.
    pub replicas: Vec<LogDirReplica>,
}

/// A partition in a log directory.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one")).await?.await?;
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let dirs = admin.log_dirs(admin.nodes().await?[0]).await?;
/// let orders = dirs[0].replicas.iter().find(|one| &*one.partition.topic == "orders").expect("it is there");
/// assert!(orders.size_bytes > 0 && !orders.is_future);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogDirReplica {
    /// The partition.
    pub partition: TopicPartition,
    /// The size of its segments in bytes.
    pub size_bytes: i64,
    /// True if it is moving here from another directory of the node (KIP-113).
    pub is_future: bool,
}

impl LogDir {
    fn from_response(reply: &Reply<DescribeLogDirsRequest<'_>>, dir: &DescribeLogDirsResult<'_>) -> LogDir {
        let path = dir.log_dir.clone().into_owned();
        let known = |bytes: i64| (bytes >= 0).then_some(bytes);
        let replicas = dir.topics.iter().flat_map(|topic| {
            topic.partitions.iter().map(|one| LogDirReplica {
                partition: TopicPartition::new(&*topic.name, one.partition_index),
                size_bytes: one.partition_size,
                is_future: one.is_future_key,
            })
        });
        LogDir {
            error: reply.check(dir.error_code, None, || format!("log directory {path} is offline")).err(),
            total_bytes: known(dir.total_bytes),
            usable_bytes: known(dir.usable_bytes),
            replicas: replicas.collect(),
            path,
        }
    }
}

impl Admin {
    /// The ids of all nodes, ascending.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn nodes(&self) -> Result<Vec<i32>, Error> {
        self.retried("listing nodes", || self.cluster.node_ids()).await
    }

    /// The log directories of a node, with all partitions in them.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the node refuses.
    pub async fn log_dirs(&self, node: i32) -> Result<Vec<LogDir>, Error> {
        self.retried(&format!("describing the log directories of node {node}"), || async {
            let request = DescribeLogDirsRequest { topics: None, ..Default::default() };
            let reply = self.cluster.node(node).await?.call(&request).await?;
            let response = reply.read()?;
            let refused = || format!("cannot describe the log directories of node {node}");
            reply.check(response.error_code, None, refused)?;
            Ok(response.results.iter().map(|dir| LogDir::from_response(&reply, dir)).collect())
        })
        .await
    }
}
