//! Groups: list, describe, delete, and their offsets.

use std::collections::{BTreeMap, BTreeSet};

use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_describe_response as modern;
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response as classic;
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::offset_delete_request::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};

use super::{Admin, left_out};
use crate::connection::Connection;
use crate::error::Error;
use crate::group::offsets::{
    COMMIT_NAMES_UNTIL, CommittedOffset, FETCH_NAMES_UNTIL, check_commit, commit_request, fetch_request,
    read_committed,
};
use crate::group::protocol::decode_assignment;
use crate::topic_partition::{TopicPartition, by_topic};

/// The state of a classic group that does not exist.
const DEAD: &str = "Dead";

/// A group in a list.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, NewTopic, TopicPartition};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[
/// #     ("group.initial.rebalance.delay.ms", "0"),
/// #     ("offsets.topic.num.partitions", "1"),
/// # ]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let offsets = [(TopicPartition::new("orders", 0), 0)].into();
/// admin.set_group_offsets("billing", &offsets).await?;
/// let groups = admin.groups().await?;
/// assert_eq!((groups[0].group_id.as_str(), groups[0].state.as_str()), ("billing", "Empty"));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupListing {
    /// Its name.
    pub group_id: String,
    /// The kind of its members, such as `consumer`; empty for a group that has only offsets.
    pub protocol_type: String,
    /// Its state, such as `Stable` (KIP-518).
    pub state: String,
    /// Its protocol, such as `classic` or `consumer` (KIP-848).
    pub group_type: String,
    /// The node that coordinates it.
    pub coordinator: i32,
}

/// A choice of groups; all by default. A group has to match both lists, and an empty list matches every group.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, GroupFilter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[("offsets.topic.num.partitions", "1")]);
/// let admin = Admin::new(ClientConfig::new(broker.address())?);
/// let stable = GroupFilter { states: vec!["Stable".to_owned()], ..GroupFilter::default() };
/// assert!(admin.groups_like(&stable).await?.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupFilter {
    /// States, such as `Stable` (KIP-518).
    pub states: Vec<String>,
    /// Protocols, such as `classic` or `consumer` (KIP-848).
    pub types: Vec<String>,
}

/// A group as its coordinator describes it, whichever protocol its members speak.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, NewTopic, TopicPartition};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[
/// #     ("group.initial.rebalance.delay.ms", "0"),
/// #     ("offsets.topic.num.partitions", "1"),
/// # ]);
/// # let address = broker.address();
/// let admin = Admin::new(ClientConfig::new(address)?);
/// admin.create_topic(&NewTopic::new("orders").partitions(2)).await?;
/// let offsets = [(TopicPartition::new("orders", 0), 0)].into();
/// admin.set_group_offsets("billing", &offsets).await?;
/// let group = admin.describe_group("billing").await?.expect("it has offsets");
/// assert!(group.members.is_empty());
/// assert_eq!(admin.describe_group("missing").await?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupDescription {
    /// Its name.
    pub group_id: String,
    /// Its state, such as `Stable`.
    pub state: String,
    /// Its assignor; empty while there is none.
    pub assignor: String,
    /// Its members.
    pub members: Vec<GroupMember>,
}

/// A member of a group.
///
/// ```
/// use mainstem_client::{Admin, ClientConfig, ConsumerConfig, GroupConfig, GroupConsumer, Position};
/// # use mainstem_client::{Producer, ProducerConfig, Record};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), mainstem_client::Error> {
/// # let broker = mainstem_broker::EmbeddedBroker::start(&[
/// #     ("group.initial.rebalance.delay.ms", "0"),
/// #     ("offsets.topic.num.partitions", "1"),
/// # ]);
/// # let address = broker.address();
/// # let producer = Producer::new(ProducerConfig::new(ClientConfig::new(address)?))?;
/// # producer.send(Record::new("orders", "one")).await?.await?;
/// # let config = ConsumerConfig::new(ClientConfig::new(address)?);
/// # let config = GroupConfig { start: Position::Beginning, ..GroupConfig::new("billing", ["orders"], config) };
/// let mut consumer = GroupConsumer::new(config)?;
/// let batch = consumer.next().await?;
/// let admin = Admin::new(ClientConfig::new(address)?);
/// let group = admin.describe_group("billing").await?.expect("it has a member");
/// assert_eq!(group.members[0].client_id, "mainstem-client");
/// assert!(group.members[0].assignment.contains(batch.partition()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupMember {
    /// The coordinator's name for it.
    pub member_id: String,
    /// Its own name if it is a static member (KIP-345).
    pub instance_id: Option<String>,
    /// Its client's name.
    pub client_id: String,
    /// The host of its client, as the coordinator sees it.
    pub host: String,
    /// The partitions that are assigned to it.
    pub assignment: BTreeSet<TopicPartition>,
}

impl Admin {
    /// All groups of all brokers, by name.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why a broker refuses.
    pub async fn groups(&self) -> Result<Vec<GroupListing>, Error> {
        self.groups_like(&GroupFilter::default()).await
    }

    /// The groups of all brokers that meet a filter, by name.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why a broker refuses.
    pub async fn groups_like(&self, filter: &GroupFilter) -> Result<Vec<GroupListing>, Error> {
        let words = |list: &[String]| list.iter().map(|word| word.clone().into()).collect();
        self.retried("listing groups", || async {
            let mut groups = Vec::new();
            for node in self.cluster.node_ids().await? {
                let request = ListGroupsRequest {
                    states_filter: words(&filter.states),
                    types_filter: words(&filter.types),
                    ..Default::default()
                };
                let reply = self.cluster.node(node).await?.call(&request).await?;
                let response = reply.read()?;
                reply.check(response.error_code, None, || "cannot list groups".to_owned())?;
                groups.extend(response.groups.iter().map(|group| GroupListing {
                    group_id: group.group_id.clone().into_owned(),
                    protocol_type: group.protocol_type.clone().into_owned(),
                    state: group.group_state.clone().into_owned(),
                    group_type: group.group_type.clone().into_owned(),
                    coordinator: node,
                }));
            }
            groups.sort();
            Ok(groups)
        })
        .await
    }

    /// The node that coordinates a group, whether the group exists or not.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[("offsets.topic.num.partitions", "1")]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// assert!(admin.nodes().await?.contains(&admin.coordinator("billing").await?));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the cluster refuses.
    pub async fn coordinator(&self, group: &str) -> Result<i32, Error> {
        let what = format!("finding the coordinator of group {group}");
        self.retried(&what, || self.cluster.coordinator_id(group)).await
    }

    /// A group, if it exists.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why its coordinator refuses.
    pub async fn describe_group(&self, group: &str) -> Result<Option<GroupDescription>, Error> {
        self.of_group(group, &format!("describing group {group}"), |coordinator| async move {
            let is_missing = |error: &Error| error.code() == Some(ErrorCode::GROUP_ID_NOT_FOUND);
            match describe_classic(&coordinator, group).await {
                Ok(found) if found.state != DEAD => return Ok(Some(found)),
                Err(error) if !is_missing(&error) => return Err(error),
                _ => {}
            }
            if coordinator.version::<ConsumerGroupDescribeRequest<'_>>().is_err() {
                return Ok(None);
            }
            match describe_modern(&coordinator, group).await {
                Err(error) if is_missing(&error) => Ok(None),
                found => found.map(Some),
            }
        })
        .await
    }

    /// Deletes a group without members, with its offsets.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why its coordinator refuses, such as NON_EMPTY_GROUP.
    pub async fn delete_group(&self, group: &str) -> Result<(), Error> {
        let what = format!("deleting group {group}");
        self.deleting(&what, ErrorCode::GROUP_ID_NOT_FOUND, || self.try_to_delete_group(group)).await?
    }

    /// Deletes a group without members, with its offsets, and returns true if it existed.
    ///
    /// ```
    /// use mainstem_client::{Admin, ClientConfig};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[("offsets.topic.num.partitions", "1")]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// assert!(!admin.delete_group_if_exists("billing").await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why its coordinator refuses, such as NON_EMPTY_GROUP.
    pub async fn delete_group_if_exists(&self, group: &str) -> Result<bool, Error> {
        let what = format!("deleting group {group}");
        self.if_exists(&what, ErrorCode::GROUP_ID_NOT_FOUND, || self.try_to_delete_group(group)).await
    }

    async fn try_to_delete_group(&self, group: &str) -> Result<(), Error> {
        self.at_coordinator(group, |coordinator| async move {
            let request = DeleteGroupsRequest { groups_names: vec![group.into()], ..Default::default() };
            let reply = coordinator.call(&request).await?;
            let response = reply.read()?;
            let result = response.results.first().ok_or_else(|| left_out(&reply, group))?;
            reply.check(result.error_code, None, || format!("cannot delete group {group}"))
        })
        .await
    }

    /// Removes static members, given by their own names, from a group (KIP-345), and returns the outcome for each.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why the coordinator refuses.
    pub async fn remove_members(
        &self,
        group: &str,
        instance_ids: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, Result<(), Error>>, Error> {
        let what = format!("removing members of group {group}");
        self.of_group(group, &what, |coordinator| async move {
            let member = |id: &String| MemberIdentity {
                group_instance_id: Some(id.clone().into()),
                ..Default::default()
            };
            let members = instance_ids.iter().map(member).collect();
            let request = LeaveGroupRequest { group_id: group.into(), members, ..Default::default() };
            let reply = coordinator.call(&request).await?;
            let response = reply.read()?;
            let refused = || format!("cannot remove members of group {group}");
            reply.check(response.error_code, None, refused)?;
            let outcome = |id: &String| {
                let found = response.members.iter().find(|one| one.group_instance_id.as_deref() == Some(id));
                let found = found.ok_or_else(|| left_out(&reply, id))?;
                let refused = || format!("cannot remove member {id} of group {group}");
                Ok((id.clone(), reply.check(found.error_code, None, refused)))
            };
            instance_ids.iter().map(outcome).collect()
        })
        .await
    }

    /// All offsets that a group has committed.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why its coordinator refuses.
    pub async fn group_offsets(&self, group: &str) -> Result<BTreeMap<TopicPartition, i64>, Error> {
        let committed = self.group_offsets_with_metadata(group).await?;
        Ok(committed.into_iter().map(|(key, committed)| (key, committed.offset)).collect())
    }

    /// The same with the metadata that is committed beside the offsets.
    ///
    /// # Errors
    /// As [`Admin::group_offsets`].
    pub async fn group_offsets_with_metadata(
        &self,
        group: &str,
    ) -> Result<BTreeMap<TopicPartition, CommittedOffset>, Error> {
        self.read_offsets(group, None).await
    }

    /// The offsets that a group has committed for some partitions, including those of a transaction that is being committed: the
    /// call waits for its end (KIP-447). [`Admin::group_offsets`] returns the offsets from before that transaction, even for a
    /// moment after the producer was answered.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    ///
    /// use mainstem_client::{Admin, ClientConfig, NewTopic, TopicPartition};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), mainstem_client::Error> {
    /// # let broker = mainstem_broker::EmbeddedBroker::start(&[]);
    /// let admin = Admin::new(ClientConfig::new(broker.address())?);
    /// admin.create_topic(&NewTopic::new("orders").partitions(1)).await?;
    /// let wanted = BTreeSet::from([TopicPartition::new("orders", 0)]);
    /// assert!(admin.stable_group_offsets("billing", &wanted).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Admin::group_offsets`]; [`Error::TimedOut`] too where a transaction stays open.
    pub async fn stable_group_offsets(
        &self,
        group: &str,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<BTreeMap<TopicPartition, CommittedOffset>, Error> {
        self.read_offsets(group, Some(partitions)).await
    }

    /// The offsets of a group: all of them, or those of some partitions after the end of a pending transaction.
    async fn read_offsets(
        &self,
        group: &str,
        partitions: Option<&BTreeSet<TopicPartition>>,
    ) -> Result<BTreeMap<TopicPartition, CommittedOffset>, Error> {
        let what = format!("reading the offsets of group {group}");
        self.of_group(group, &what, |coordinator| async move {
            let request = fetch_request(group, partitions);
            let reply = coordinator.call_up_to(&request, FETCH_NAMES_UNTIL).await?;
            read_committed(&reply, group)
        })
        .await
    }

    /// Commits offsets for a group without members.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why its coordinator refuses, such as UNKNOWN_MEMBER_ID while it has members.
    pub async fn set_group_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<TopicPartition, i64>,
    ) -> Result<(), Error> {
        let what = format!("committing offsets of group {group}");
        let place = |(key, offset): (&TopicPartition, &i64)| (key.clone(), CommittedOffset::from(*offset));
        let offsets: &BTreeMap<_, _> = &offsets.iter().map(place).collect();
        self.of_group(group, &what, |coordinator| async move {
            let request = commit_request(group, offsets);
            check_commit(&coordinator.call_up_to(&request, COMMIT_NAMES_UNTIL).await?, group)
        })
        .await
    }

    /// Deletes the committed offsets of a group in some partitions.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or why its coordinator refuses, such as GROUP_SUBSCRIBED_TO_TOPIC while members read the topic.
    pub async fn delete_group_offsets(
        &self,
        group: &str,
        partitions: &BTreeSet<TopicPartition>,
    ) -> Result<(), Error> {
        let what = format!("deleting offsets of group {group}");
        self.of_group(group, &what, |coordinator| async move {
            let partition = |partition_index| OffsetDeleteRequestPartition { partition_index };
            let topic = |(name, partitions): (&'_ str, Vec<i32>)| OffsetDeleteRequestTopic {
                name: name.to_owned().into(),
                partitions: partitions.into_iter().map(partition).collect(),
            };
            let topics = by_topic(partitions).into_iter().map(topic).collect();
            let request = OffsetDeleteRequest { group_id: group.into(), topics };
            let reply = coordinator.call(&request).await?;
            let response = reply.read()?;
            let refused = || format!("cannot delete offsets of group {group}");
            reply.check(response.error_code, None, refused)?;
            for topic in &response.topics {
                for one in &topic.partitions {
                    let key = TopicPartition::new(&*topic.name, one.partition_index);
                    let refused = || format!("cannot delete the offset of group {group} in {key}");
                    reply.check(one.error_code, None, refused)?;
                }
            }
            Ok(())
        })
        .await
    }
}

async fn describe_classic(coordinator: &Connection, group: &str) -> Result<GroupDescription, Error> {
    let request = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
    let reply = coordinator.call(&request).await?;
    let response = reply.read()?;
    let found = response.groups.first().ok_or_else(|| left_out(&reply, group))?;
    reply.check(found.error_code, found.error_message.as_deref(), || {
        format!("cannot describe group {group}")
    })?;
    let is_consumer = found.protocol_type == "consumer";
    Ok(GroupDescription {
        group_id: group.to_owned(),
        state: found.group_state.clone().into_owned(),
        assignor: found.protocol_data.clone().into_owned(),
        members: found.members.iter().map(|member| GroupMember::from_classic(member, is_consumer)).collect(),
    })
}

async fn describe_modern(coordinator: &Connection, group: &str) -> Result<GroupDescription, Error> {
    let request = ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let reply = coordinator.call(&request).await?;
    let response = reply.read()?;
    let found = response.groups.first().ok_or_else(|| left_out(&reply, group))?;
    reply.check(found.error_code, found.error_message.as_deref(), || {
        format!("cannot describe group {group}")
    })?;
    Ok(GroupDescription {
        group_id: group.to_owned(),
        state: found.group_state.clone().into_owned(),
        assignor: found.assignor_name.clone().into_owned(),
        members: found.members.iter().map(GroupMember::from_modern).collect(),
    })
}

impl GroupMember {
    /// Members that are no consumers have assignments that only they understand.
    fn from_classic(member: &classic::DescribedGroupMember<'_>, is_consumer: bool) -> GroupMember {
        let assignment = is_consumer.then(|| decode_assignment(&member.member_assignment).ok()).flatten();
        GroupMember {
            member_id: member.member_id.clone().into_owned(),
            instance_id: member.group_instance_id.as_deref().map(str::to_owned),
            client_id: member.client_id.clone().into_owned(),
            host: member.client_host.clone().into_owned(),
            assignment: assignment.unwrap_or_default(),
        }
    }

    fn from_modern(member: &modern::Member<'_>) -> GroupMember {
        let topics = member.assignment.topic_partitions.iter();
        let keys = topics.flat_map(|topic| {
            topic.partitions.iter().map(|partition| TopicPartition::new(&*topic.topic_name, *partition))
        });
        GroupMember {
            member_id: member.member_id.clone().into_owned(),
            instance_id: member.instance_id.as_deref().map(str::to_owned),
            client_id: member.client_id.clone().into_owned(),
            host: member.client_host.clone().into_owned(),
            assignment: keys.collect(),
        }
    }
}
