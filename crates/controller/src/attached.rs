//! Topics that are embedded queues outside of the log directories, attached to this node for as long as it runs.
//!
//! Their metadata come from their directories at each start. The directory id of their partitions is [`ATTACHED_DIRECTORY`], which Kafka
//! reserves. A queue that is not attached any more is no topic.

use std::borrow::Cow;
use std::collections::BTreeMap;

use mainstem_wire::messages::config_record::ConfigRecord;
use mainstem_wire::messages::partition_record::PartitionRecord;
use mainstem_wire::messages::remove_topic_record::RemoveTopicRecord;
use mainstem_wire::messages::topic_record::TopicRecord;
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::error::ApiError;
use super::image::{ConfigResource, ResourceKind, TopicImage};
use super::names;
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};

/// The directory id of every attached queue. Ids below 100 are reserved (KIP-858).
pub const ATTACHED_DIRECTORY: Uuid = Uuid::from_u128(17);

/// A queue that is to be a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedTopic {
    /// The topic's name.
    pub name: String,
    /// The id in the queue's directory.
    pub id: Uuid,
    /// The leader epoch there.
    pub leader_epoch: i32,
    /// The rules of the queue as Kafka's topic configurations.
    pub configs: BTreeMap<String, String>,
}

impl TopicImage {
    /// Returns true if the topic is an attached queue.
    pub fn is_attached(&self) -> bool {
        self.partitions.iter().any(|partition| partition.directories.contains(&ATTACHED_DIRECTORY))
    }
}

impl MetadataStateMachine {
    /// Makes these queues, and no others, topics of a node. To be called at its start, before anything is served.
    ///
    /// # Errors
    /// The name or id that cannot be a topic's, with the reason. Then nothing is decided.
    pub fn attach_topics(
        &mut self,
        view: &NodeView,
        attached: &[AttachedTopic],
    ) -> Decision<Result<(), ApiError>> {
        let node = view.node_id();
        let is_same = |topic: &TopicImage| attached.iter().any(|one| self.is_unchanged(node, topic, one));
        let gone: Vec<Uuid> = self
            .ahead()
            .topics()
            .filter(|topic| topic.is_attached() && !is_same(topic))
            .map(|topic| topic.id)
            .collect();
        let new: Vec<&AttachedTopic> = attached
            .iter()
            .filter(|one| {
                !self.ahead().topic_by_id(one.id).is_some_and(|topic| self.is_unchanged(node, topic, one))
            })
            .collect();
        for (at, one) in new.iter().enumerate() {
            if let Err(error) = self.check_attached(one, &gone, &new[..at]) {
                return self.decide(Vec::new(), Err(error));
            }
        }
        let removed = gone.into_iter().map(|topic_id| {
            MetadataRecord::RemoveTopicRecord(Box::new(RemoveTopicRecord { topic_id, ..Default::default() }))
        });
        let records = removed.chain(new.into_iter().flat_map(|one| records(one, node))).collect();
        self.decide(records, Ok(()))
    }

    fn is_unchanged(&self, node: i32, topic: &TopicImage, attached: &AttachedTopic) -> bool {
        let [partition] = topic.partitions.as_slice() else { return false };
        let configs = self.ahead().configs(&ConfigResource::new(ResourceKind::Topic, &*topic.name));
        topic.is_attached()
            && (topic.id, &topic.name) == (attached.id, &attached.name)
            && partition.leader_epoch == attached.leader_epoch
            && partition.replicas == [node]
            && *configs == attached.configs
    }

    fn check_attached(
        &self,
        attached: &AttachedTopic,
        gone: &[Uuid],
        before: &[&AttachedTopic],
    ) -> Result<(), ApiError> {
        let name = &attached.name;
        let invalid = |why: String| Err(ApiError::new(ErrorCode::INVALID_TOPIC_EXCEPTION, why));
        if let Err(why) = names::check(name) {
            return invalid(format!("a queue cannot be attached as topic {name}: {why}"));
        }
        if names::is_internal(name) || name == names::CLUSTER_METADATA {
            return invalid(format!(
                "a queue cannot be attached as {name}, which is a topic of the broker's own"
            ));
        }
        if !names::is_topic_id(attached.id) {
            return invalid(format!(
                "the queue for topic {name} has the id {}, which is no topic's",
                attached.id
            ));
        }
        let stays = |topic: &&TopicImage| !gone.contains(&topic.id);
        if self.ahead().topic(name).filter(stays).is_some() {
            return invalid(format!(
                "topic {name} is in the log directories already; attach the queue under another name, or delete the topic first"
            ));
        }
        if let Some(other) = self.ahead().topic_by_id(attached.id).filter(stays) {
            return invalid(format!("the queue for topic {name} has the id of topic {}", other.name));
        }
        let unified = names::unified(name);
        let collides =
            |other: &&AttachedTopic| names::unified(&other.name) == unified || other.id == attached.id;
        if let Some(other) = before.iter().copied().find(collides) {
            return invalid(format!(
                "the queues for topics {name} and {} cannot both be attached",
                other.name
            ));
        }
        let colliding = self.ahead().colliding(name).and_then(|other| self.ahead().topic(other));
        if let Some(other) = colliding.filter(stays) {
            return invalid(format!("a queue attached as {name} collides with topic {}", other.name));
        }
        Ok(())
    }

    /// Refuses a change of a topic that is an attached queue.
    ///
    /// # Errors
    /// POLICY_VIOLATION, with advice.
    pub(super) fn check_not_attached(&self, topic: &TopicImage, change: &str) -> Result<(), ApiError> {
        if !topic.is_attached() {
            return Ok(());
        }
        let message =
            format!("Topic {} is an embedded queue that is attached to the broker: {change}", topic.name);
        Err(ApiError::new(ErrorCode::POLICY_VIOLATION, message))
    }
}

fn records(attached: &AttachedTopic, node: i32) -> Vec<MetadataRecord<'static>> {
    let topic = MetadataRecord::TopicRecord(Box::new(TopicRecord {
        name: Cow::Owned(attached.name.clone()),
        topic_id: attached.id,
        ..TopicRecord::default()
    }));
    let partition = MetadataRecord::PartitionRecord(Box::new(PartitionRecord {
        partition_id: 0,
        topic_id: attached.id,
        replicas: vec![node],
        isr: vec![node],
        leader: node,
        leader_epoch: attached.leader_epoch,
        partition_epoch: 0,
        directories: vec![ATTACHED_DIRECTORY],
        ..PartitionRecord::default()
    }));
    let configs = attached.configs.iter().map(|(name, value)| {
        MetadataRecord::ConfigRecord(Box::new(ConfigRecord {
            resource_type: ResourceKind::Topic as i8,
            resource_name: Cow::Owned(attached.name.clone()),
            name: Cow::Owned(name.clone()),
            value: Some(Cow::Owned(value.clone())),
            ..ConfigRecord::default()
        }))
    });
    [topic, partition].into_iter().chain(configs).collect()
}
