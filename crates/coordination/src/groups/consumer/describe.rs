//! ConsumerGroupDescribe (69), v0-1: what administrators see of a consumer group.

use std::collections::BTreeMap;

use mainstem_wire::messages::consumer_group_describe_response::{
    Assignment as Described, DescribedGroup, Member as DescribedMember, TopicPartitions,
};
use mainstem_wire::{ErrorCode, Uuid};

use super::super::config::GroupConfig;
use super::super::group::{Group, Groups, Protocol};
use super::group::ConsumerGroup;
use super::member::Member;
use super::partitions::Partition;
use super::topics::ClusterTopics;

/// A member of the classic protocol, as the response calls it.
const CLASSIC_MEMBER: i8 = 0;
/// A member of the consumer protocol.
const CONSUMER_MEMBER: i8 = 1;

/// One group with its members.
pub(crate) fn describe(
    groups: &Groups,
    topics: &ClusterTopics,
    config: &GroupConfig,
    id: &str,
) -> DescribedGroup<'static> {
    match groups.get(id).filter(|group| group.is_stored()) {
        Some(Group { protocol: Protocol::Consumer(group), .. }) if !group.dead => {
            described(group, topics, config)
        }
        Some(Group { protocol: Protocol::Classic(_), .. }) => {
            refused(id, ErrorCode::GROUP_ID_NOT_FOUND, format!("Group {id} is not a consumer group."))
        }
        _ => refused(id, ErrorCode::GROUP_ID_NOT_FOUND, format!("Group {id} not found.")),
    }
}

/// The answer for a group that cannot be looked at here.
pub(crate) fn refused(id: &str, error: ErrorCode, message: String) -> DescribedGroup<'static> {
    DescribedGroup {
        group_id: id.to_owned().into(),
        error_code: error.0,
        error_message: Some(message.into()),
        ..Default::default()
    }
}

fn described(group: &ConsumerGroup, topics: &ClusterTopics, config: &GroupConfig) -> DescribedGroup<'static> {
    let preferred = group.counts().preferred_assignor().map(str::to_owned);
    let assignor = preferred.unwrap_or_else(|| config.consumer.default_assignor().name().to_owned());
    DescribedGroup {
        group_id: group.id.to_string().into(),
        group_state: group.state().name().into(),
        group_epoch: group.epoch(),
        assignment_epoch: group.assignment_epoch(),
        assignor_name: assignor.into(),
        members: group.members().values().map(|member| described_member(group, topics, member)).collect(),
        ..Default::default()
    }
}

fn described_member(
    group: &ConsumerGroup,
    topics: &ClusterTopics,
    member: &Member,
) -> DescribedMember<'static> {
    let profile = &member.profile;
    let text = |text: Option<&str>| text.map(|text| text.to_owned().into());
    let target = group.target(&member.id).into_iter().flat_map(|target| target.iter());
    DescribedMember {
        member_id: member.id.to_string().into(),
        instance_id: text(profile.instance_id.as_deref()),
        rack_id: text(profile.rack_id.as_deref()),
        member_epoch: member.current.epoch,
        client_id: profile.client_id.to_string().into(),
        client_host: profile.client_host.to_string().into(),
        subscribed_topic_names: profile.topics.iter().map(|topic| topic.to_string().into()).collect(),
        subscribed_topic_regex: Some(profile.regex.as_deref().unwrap_or_default().to_owned().into()),
        assignment: partitions(member.current.held(), topics),
        target_assignment: partitions(target, topics),
        member_type: if member.uses_classic_protocol() { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
        ..Default::default()
    }
}

/// Partitions of topics that are still there.
fn partitions<'p>(held: impl Iterator<Item = &'p Partition>, topics: &ClusterTopics) -> Described<'static> {
    let mut by_topic: BTreeMap<Uuid, Vec<i32>> = BTreeMap::new();
    for (topic, index) in held {
        by_topic.entry(*topic).or_default().push(*index);
    }
    let named = by_topic.into_iter().filter_map(|(topic_id, partitions)| {
        let topic_name = topics.name(&topic_id)?.to_string().into();
        Some(TopicPartitions { topic_id, topic_name, partitions, ..Default::default() })
    });
    Described { topic_partitions: named.collect(), ..Default::default() }
}
