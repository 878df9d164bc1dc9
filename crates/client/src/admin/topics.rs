//! Topics: list, describe, create, grow, delete.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstem_wire::messages::create_partitions_request::{
    CreatePartitionsAssignment, CreatePartitionsRequest, CreatePartitionsTopic,
};
use mainstem_wire::messages::create_topics_request::{
    CreatableReplicaAssignment, CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_wire::messages::create_topics_response::CreatableTopicResult;
use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_wire::{ErrorCode, Uuid};

use super::{Admin, ConfigResource, left_out, may_have_succeeded, settled, timeout_ms};
use crate::cluster::Topic;
use crate::consumer::{Isolation, Position};
use crate::error::Error;
use crate::offsets::list_offsets;
use crate::topic_partition::TopicPartition;

/// A count that is the broker's to choose (KIP-464).
const BROKERS_CHOICE: i16 = -1;

/// A topic to be created.
///
/// ```
/// use mainstem_client::NewTopic;
///
/// let topic = NewTopic::new("orders").partitions(6).config("cleanup.policy", "compact");
/// assert_eq!(topic.replication_factor, None);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewTopic {
    /// Its name.
    pub name: Arc<str>,
    /// The number of partitions; none for the brokers' default.
    pub partitions: Option<i32>,
    /// The number of copies of each partition; none for the brokers' default.
    pub replication_factor: Option<i16>,
    /// The nodes with a copy of each partition, in the order in which they are to lead. Brokers choose them if this is empty;
    /// otherwise neither of the two numbers may be given.
    pub replicas: Vec<Vec<i32>>,
    /// Settings of its own, by Kafka's names.
    pub configs: BTreeMap<String, String>,
    /// True to only check if it could be created.
    pub validate_only: bool,
}

/// A topic that was created, as far as brokers report it.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, NewTopic};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let created = admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// assert_eq!((created.partitions, created.replication_factor), (Some(2), Some(1)));
/// assert_eq!(admin.topic("orders").await?.id, created.id);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedTopic {
    /// The id that it has for life; zero after a check only.
    pub id: Uuid,
    /// The number of partitions; none if the client may not describe the topic's settings (KIP-525).
    pub partitions: Option<i32>,
    /// The number of copies of each partition; none if the client may not describe the topic's settings.
    pub replication_factor: Option<i16>,
}

impl CreatedTopic {
    fn from_response(result: &CreatableTopicResult<'_>) -> CreatedTopic {
        CreatedTopic {
            id: result.topic_id,
            partitions: Some(result.num_partitions).filter(|count| *count > 0),
            replication_factor: Some(result.replication_factor).filter(|count| *count > 0),
        }
    }
}

impl NewTopic {
    /// A topic as the brokers are configured to make them.
    pub fn new(name: impl Into<Arc<str>>) -> NewTopic {
        NewTopic {
            name: name.into(),
            partitions: None,
            replication_factor: None,
            replicas: Vec::new(),
            configs: BTreeMap::new(),
            validate_only: false,
        }
    }

    /// The same with so many partitions.
    pub fn partitions(mut self, partitions: i32) -> NewTopic {
        self.partitions = Some(partitions);
        self
    }

    /// The same with the nodes that have a copy of each partition.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig, NewTopic};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// let node = admin.nodes().await?[0];
    /// let created = admin.create_topic(&NewTopic::new("orders").replicas([vec![node], vec![node]])).await?;
    /// assert_eq!(created.partitions, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    pub fn replicas(mut self, of_partitions: impl IntoIterator<Item = Vec<i32>>) -> NewTopic {
        self.replicas = of_partitions.into_iter().collect();
        self
    }

    /// The same with a setting.
    pub fn config(mut self, name: impl Into<String>, value: impl Into<String>) -> NewTopic {
        self.configs.insert(name.into(), value.into());
        self
    }

    fn request(&self, timeout_ms: i32) -> CreateTopicsRequest<'_> {
        let config = |(name, value): (&'_ String, &'_ String)| CreatableTopicConfig {
            name: Cow::Owned(name.clone()),
            value: Some(Cow::Owned(value.clone())),
            ..Default::default()
        };
        let assignment = |(partition_index, nodes): (i32, &Vec<i32>)| CreatableReplicaAssignment {
            partition_index,
            broker_ids: nodes.clone(),
            ..Default::default()
        };
        let topic = CreatableTopic {
            name: Cow::Borrowed(&self.name),
            num_partitions: self.partitions.unwrap_or(BROKERS_CHOICE.into()),
            replication_factor: self.replication_factor.unwrap_or(BROKERS_CHOICE),
            assignments: (0..).zip(&self.replicas).map(assignment).collect(),
            configs: self.configs.iter().map(config).collect(),
            ..Default::default()
        };
        let validate_only = self.validate_only;
        CreateTopicsRequest { topics: vec![topic], timeout_ms, validate_only, ..Default::default() }
    }
}

impl Admin {
    /// All topics, by name.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn topics(&self) -> Result<Vec<Arc<Topic>>, Error> {
        self.retried("listing topics", || self.cluster.topics()).await
    }

    /// A topic with its partitions, asked for now.
    ///
    /// # Errors
    /// [`Error::TimedOut`], also while the topic does not exist; or why the cluster refuses.
    pub async fn topic(&self, name: &str) -> Result<Arc<Topic>, Error> {
        self.cluster.invalidate_topic(name);
        self.retried(&format!("finding topic {name}"), || self.cluster.topic(name, false)).await
    }

    /// A topic with its partitions, asked for now; none if the broker that is asked does not know it.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// assert_eq!(admin.find_topic("orders").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn find_topic(&self, name: &str) -> Result<Option<Arc<Topic>>, Error> {
        self.cluster.invalidate_topic(name);
        self.retried(&format!("finding topic {name}"), || async {
            match self.cluster.topic(name, false).await {
                Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => Ok(None),
                found => found.map(Some),
            }
        })
        .await
    }

    /// Creates a topic, or only checks if it could be created.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as TOPIC_ALREADY_EXISTS. If the answer to an earlier attempt was
    /// lost, and the topic exists as it was to be created, that attempt is taken to have created it.
    pub async fn create_topic(&self, topic: &NewTopic) -> Result<CreatedTopic, Error> {
        let what = format!("creating topic {}", topic.name);
        let may_be_done = AtomicBool::new(false);
        let attempt = || async {
            let outcome = self.try_to_create(topic).await;
            let is_ambiguous = outcome.as_ref().is_err_and(may_have_succeeded);
            may_be_done.fetch_or(is_ambiguous, Ordering::Relaxed);
            outcome
        };
        let refused = match self.retried(&what, attempt).await {
            Err(error) if error.code() == Some(ErrorCode::TOPIC_ALREADY_EXISTS) => error,
            outcome => return outcome,
        };
        if topic.validate_only || !may_be_done.into_inner() {
            return Err(refused);
        }
        // Whatever keeps it from being found, such as a missing right to describe it: the cluster's answer stays the error.
        self.found_as_wanted(topic).await.ok().flatten().ok_or(refused)
    }

    /// One attempt of it.
    async fn try_to_create(&self, topic: &NewTopic) -> Result<CreatedTopic, Error> {
        let request = topic.request(timeout_ms(self.cluster.config()));
        let controller = self.cluster.controller().await?;
        let reply = controller.call(&request).await?;
        let response = reply.read()?;
        let result = response.topics.first().ok_or_else(|| left_out(&reply, &topic.name))?;
        let refused = || format!("cannot create topic {}", topic.name);
        reply.check(result.error_code, result.error_message.as_deref(), refused)?;
        Ok(CreatedTopic::from_response(result))
    }

    /// The topic of this name, if it matches the one that was to be created.
    async fn found_as_wanted(&self, wanted: &NewTopic) -> Result<Option<CreatedTopic>, Error> {
        // The broker that is asked may not know the topic yet.
        let found = self.topic(&wanted.name).await?;
        let partitions = i32::try_from(found.partitions.len()).unwrap_or(i32::MAX);
        let factor = found.partitions.first().map(|partition| partition.replicas.len());
        let factor = factor.and_then(|count| i16::try_from(count).ok());
        let replicas = found.partitions.iter().map(|partition| &partition.replicas);
        let is_placed = wanted.replicas.is_empty() || wanted.replicas.iter().eq(replicas);
        let is_counted = wanted.partitions.is_none_or(|count| count == partitions)
            && wanted.replication_factor.is_none_or(|count| Some(count) == factor);
        if !is_placed || !is_counted || !self.has_configs(wanted).await? {
            return Ok(None);
        }
        let id = found.id;
        Ok(Some(CreatedTopic { id, partitions: Some(partitions), replication_factor: factor }))
    }

    async fn has_configs(&self, wanted: &NewTopic) -> Result<bool, Error> {
        if wanted.configs.is_empty() {
            return Ok(true);
        }
        let found = self.configs(&ConfigResource::Topic(wanted.name.to_string())).await?;
        let is_set = |(name, value): (&String, &String)| {
            found.iter().any(|config| config.name == *name && config.value.as_ref() == Some(value))
        };
        Ok(wanted.configs.iter().all(is_set))
    }

    /// Raises the number of partitions of a topic to `count`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as UNKNOWN_TOPIC_OR_PARTITION, or INVALID_PARTITIONS if it has as
    /// many. If the answer to an earlier attempt was lost, that attempt may have added them.
    pub async fn create_partitions(&self, name: &str, count: i32) -> Result<(), Error> {
        let what = format!("adding partitions to topic {name}");
        self.retried(&what, || async { settled(self.try_to_grow(name, count, None).await) }).await?
    }

    /// The same with the nodes that have a copy of each partition that is added, in the order in which they are to lead.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig, NewTopic};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// let node = admin.nodes().await?[0];
    /// admin.create_topic(&NewTopic::new("orders").partitions(1)).await?;
    /// admin.create_partitions_on("orders", 3, &[vec![node], vec![node]]).await?;
    /// assert_eq!(admin.topic("orders").await?.partitions.len(), 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Admin::create_partitions`]; also INVALID_REPLICA_ASSIGNMENT.
    pub async fn create_partitions_on(
        &self,
        name: &str,
        count: i32,
        replicas: &[Vec<i32>],
    ) -> Result<(), Error> {
        let what = format!("adding partitions to topic {name}");
        self.retried(&what, || async { settled(self.try_to_grow(name, count, Some(replicas)).await) }).await?
    }

    async fn try_to_grow(&self, name: &str, count: i32, replicas: Option<&[Vec<i32>]>) -> Result<(), Error> {
        let assignment =
            |nodes: &Vec<i32>| CreatePartitionsAssignment { broker_ids: nodes.clone(), ..Default::default() };
        let assignments = replicas.map(|replicas| replicas.iter().map(assignment).collect());
        let topic = CreatePartitionsTopic { name: name.into(), count, assignments, ..Default::default() };
        let request = CreatePartitionsRequest {
            topics: vec![topic],
            timeout_ms: timeout_ms(self.cluster.config()),
            ..Default::default()
        };
        let reply = self.cluster.call_controller(&request).await?;
        let response = reply.read()?;
        let result = response.results.first().ok_or_else(|| left_out(&reply, name))?;
        let refused = || format!("cannot add partitions to topic {name}");
        reply.check(result.error_code, result.error_message.as_deref(), refused)
    }

    /// Deletes a topic with all of its records.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses, such as UNKNOWN_TOPIC_OR_PARTITION.
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let what = format!("deleting topic {name}");
        self.deleting(&what, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, || self.try_to_delete(name)).await?
    }

    /// Deletes a topic with all of its records, and returns true if it existed.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig, NewTopic};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// admin.create_topic(&NewTopic::new("orders")).await?;
    /// assert!(admin.delete_topic_if_exists("orders").await?);
    /// assert!(!admin.delete_topic_if_exists("orders").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn delete_topic_if_exists(&self, name: &str) -> Result<bool, Error> {
        let what = format!("deleting topic {name}");
        self.if_exists(&what, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION, || self.try_to_delete(name)).await
    }

    async fn try_to_delete(&self, name: &str) -> Result<(), Error> {
        let connection = self.cluster.controller().await?;
        let timeout_ms = timeout_ms(self.cluster.config());
        let topics = vec![DeleteTopicState { name: Some(name.into()), ..Default::default() }];
        let request = DeleteTopicsRequest { topics, timeout_ms, ..Default::default() };
        let reply = connection.call(&request).await?;
        let response = reply.read()?;
        let result = response.responses.first().ok_or_else(|| left_out(&reply, name))?;
        let refused = || format!("cannot delete topic {name}");
        reply.check(result.error_code, result.error_message.as_deref(), refused)
    }

    /// The offsets of positions in partitions; none for a time after all records. [`Position::Offset`] is its own answer.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses a partition.
    pub async fn offsets(
        &self,
        positions: impl IntoIterator<Item = (TopicPartition, Position)>,
        isolation: Isolation,
    ) -> Result<BTreeMap<TopicPartition, Option<i64>>, Error> {
        let (sought, mut found) = Position::sort(positions);
        found.extend(
            self.retried("finding offsets", || list_offsets(&self.cluster, isolation, &sought)).await?,
        );
        Ok(found)
    }
}
