//! ConsumerGroupDescribe (69), v0-1: the description of a consumer group.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstem_wire::messages::consumer_group_describe_response::{
    Assignment as Described, DescribedGroup, Member as DescribedMember, TopicPartitions,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::super::config::GroupConfig;
use super::super::group::{Group, Groups, Protocol};
use super::super::member::MemberId;
use super::super::members::Members;
use super::super::shared_map::SharedMap;
use super::group::{ConsumerGroup, State};
use super::member::Member;
use super::partitions::{Assignment as Target, Partition};
use super::topics::ClusterTopics;

/// A member of the classic protocol, as the response calls it.
const CLASSIC_MEMBER: i8 = 0;
/// A member of the consumer protocol.
const CONSUMER_MEMBER: i8 = 1;

/// A group as ConsumerGroupDescribe shows it, at one moment. Members, partitions and topics are shared with the coordinator, so their
/// number does not hold it up: [`response`](ConsumerDescription::response) reads them without the coordinator.
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerDescription(Description);

#[derive(Debug, Clone, PartialEq)]
enum Description {
    Group(Box<Shown>),
    /// The answer if no consumer group can be shown.
    Other(DescribedGroup<'static>),
}

#[derive(Debug, Clone, PartialEq)]
struct Shown {
    id: Arc<str>,
    state: State,
    epoch: i32,
    assignment_epoch: i32,
    assignor: String,
    members: Members<Member>,
    targets: SharedMap<MemberId, Target>,
    topics: SharedMap<Uuid, Arc<str>>,
}

/// One group with its members.
pub(crate) fn describe(
    groups: &Groups,
    topics: &ClusterTopics,
    config: &GroupConfig,
    id: &str,
) -> ConsumerDescription {
    match groups.get(id).filter(|group| group.is_stored()) {
        Some(Group { protocol: Protocol::Consumer(group), .. }) if !group.dead => {
            ConsumerDescription(Description::Group(Box::new(shown(group, topics, config))))
        }
        Some(Group { protocol: Protocol::Classic(_), .. }) => {
            refused(id, ErrorCode::GROUP_ID_NOT_FOUND, format!("Group {id} is not a consumer group."))
        }
        _ => refused(id, ErrorCode::GROUP_ID_NOT_FOUND, format!("Group {id} not found.")),
    }
}

/// The answer for a group that cannot be looked at here.
pub(crate) fn refused(id: &str, error: ErrorCode, message: String) -> ConsumerDescription {
    ConsumerDescription(Description::Other(DescribedGroup {
        group_id: id.to_owned().into(),
        error_code: error.0,
        error_message: Some(message.into()),
        ..Default::default()
    }))
}

fn shown(group: &ConsumerGroup, topics: &ClusterTopics, config: &GroupConfig) -> Shown {
    let preferred = group.counts().preferred_assignor().map(str::to_owned);
    Shown {
        id: group.id.clone(),
        state: group.state(),
        epoch: group.epoch(),
        assignment_epoch: group.assignment_epoch(),
        assignor: preferred.unwrap_or_else(|| config.consumer.default_assignor().name().to_owned()),
        members: group.members().clone(),
        targets: group.targets().clone(),
        topics: topics.names().clone(),
    }
}

impl ConsumerDescription {
    /// The group's part of the response.
    pub fn response(&self) -> DescribedGroup<'static> {
        let group = match &self.0 {
            Description::Group(group) => group,
            Description::Other(answer) => return answer.clone(),
        };
        DescribedGroup {
            group_id: group.id.to_string().into(),
            group_state: group.state.name().into(),
            group_epoch: group.epoch,
            assignment_epoch: group.assignment_epoch,
            assignor_name: group.assignor.clone().into(),
            members: group.members.values().map(|member| group.member(member)).collect(),
            ..Default::default()
        }
    }
}

impl Shown {
    fn member(&self, member: &Member) -> DescribedMember<'static> {
        let profile = &member.profile;
        let text = |text: Option<&str>| text.map(|text| text.to_owned().into());
        let target = self.targets.get(&*member.id).into_iter().flat_map(|target| target.iter());
        DescribedMember {
            member_id: member.id.to_string().into(),
            instance_id: text(profile.instance_id.as_deref()),
            rack_id: text(profile.rack_id.as_deref()),
            member_epoch: member.current.epoch,
            client_id: profile.client_id.to_string().into(),
            client_host: profile.client_host.to_string().into(),
            subscribed_topic_names: profile.topics.iter().map(|topic| topic.to_string().into()).collect(),
            subscribed_topic_regex: Some(profile.regex.as_deref().unwrap_or_default().to_owned().into()),
            assignment: partitions(member.current.held(), &self.topics),
            target_assignment: partitions(target, &self.topics),
            member_type: if member.uses_classic_protocol() { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
            ..Default::default()
        }
    }
}

/// Partitions of topics that are still there.
fn partitions<'p>(
    held: impl Iterator<Item = &'p Partition>,
    topics: &SharedMap<Uuid, Arc<str>>,
) -> Described<'static> {
    let mut by_topic: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
    for (topic, index) in held {
        by_topic.entry(*topic).or_default().push(*index);
    }
    let named = by_topic.into_iter().filter_map(|(topic_id, partitions)| {
        let topic_name = topics.get(&topic_id)?.to_string().into();
        Some(TopicPartitions { topic_id, topic_name, partitions, ..Default::default() })
    });
    Described { topic_partitions: named.collect(), ..Default::default() }
}
