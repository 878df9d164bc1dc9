//! A group as its coordinator describes it, whichever protocol its members speak.

use anyhow::{Context, Result};
use mainstem_wire::ErrorCode;
use mainstem_wire::coordinator::decode_with_version_or_newer;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_describe_response as modern;
use mainstem_wire::messages::consumer_protocol_assignment::ConsumerProtocolAssignment;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_groups_response as classic;
use serde_json::{Value, json};

use crate::assignor::Assignment;
use crate::client::{check_message, code_of};
use crate::cluster::Cluster;

/// The state of a group that does not exist.
const DEAD: &str = "Dead";

/// A group as its coordinator describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) state: String,
    pub(super) assignor: String,
    pub(super) members: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) id: String,
    pub(super) instance_id: Option<String>,
    pub(super) client_id: String,
    pub(super) host: String,
    pub(super) assignment: Assignment,
}

/// The group, if it exists. Asks by the classic protocol, then for a group of the new one (KIP-848).
pub(super) fn find_group(cluster: &mut Cluster, coordinator: i32, name: &str) -> Result<Option<Group>> {
    match describe_classic(cluster, coordinator, name) {
        Ok(group) if group.state != DEAD => return Ok(Some(group)),
        Err(error) if code_of(&error) != Some(ErrorCode::GROUP_ID_NOT_FOUND) => return Err(error),
        _ => {}
    }
    if !cluster.node(coordinator)?.serves::<ConsumerGroupDescribeRequest<'_>>() {
        return Ok(None);
    }
    match describe_modern(cluster, coordinator, name) {
        Ok(group) => Ok(Some(group)),
        Err(error) if code_of(&error) == Some(ErrorCode::GROUP_ID_NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

fn describe_classic(cluster: &mut Cluster, coordinator: i32, name: &str) -> Result<Group> {
    let request = DescribeGroupsRequest { groups: vec![name.into()], ..Default::default() };
    let response = cluster.node(coordinator)?.call(&request)?;
    let group = response.groups.into_iter().next().context("the broker left out the group")?;
    check_message(group.error_code, group.error_message.as_deref(), || format!("group {name}"))?;
    let members = group.members.iter().map(Member::from_classic).collect::<Result<_>>()?;
    Ok(Group { state: group.group_state.to_string(), assignor: group.protocol_data.to_string(), members })
}

fn describe_modern(cluster: &mut Cluster, coordinator: i32, name: &str) -> Result<Group> {
    let request = ConsumerGroupDescribeRequest { group_ids: vec![name.into()], ..Default::default() };
    let response = cluster.node(coordinator)?.call(&request)?;
    let group = response.groups.into_iter().next().context("the broker left out the group")?;
    check_message(group.error_code, group.error_message.as_deref(), || format!("group {name}"))?;
    let members = group.members.iter().map(Member::from_modern).collect();
    Ok(Group { state: group.group_state.to_string(), assignor: group.assignor_name.to_string(), members })
}

impl Member {
    fn from_classic(member: &classic::DescribedGroupMember<'_>) -> Result<Member> {
        let mut assignment = Assignment::new();
        if !member.member_assignment.is_empty() {
            let (decoded, _) =
                decode_with_version_or_newer::<ConsumerProtocolAssignment<'_>>(&member.member_assignment)
                    .with_context(|| format!("the assignment of member {}", member.member_id))?;
            for topic in decoded.assigned_partitions {
                assignment.insert(topic.topic.into_owned(), topic.partitions);
            }
        }
        Ok(Member {
            id: member.member_id.to_string(),
            instance_id: member.group_instance_id.as_deref().map(str::to_owned),
            client_id: member.client_id.to_string(),
            host: member.client_host.to_string(),
            assignment,
        })
    }

    fn from_modern(member: &modern::Member<'_>) -> Member {
        let topics = &member.assignment.topic_partitions;
        Member {
            id: member.member_id.to_string(),
            instance_id: member.instance_id.as_deref().map(str::to_owned),
            client_id: member.client_id.to_string(),
            host: member.client_host.to_string(),
            assignment: topics.iter().map(|t| (t.topic_name.to_string(), t.partitions.clone())).collect(),
        }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "member": self.id,
            "instance_id": self.instance_id,
            "client_id": self.client_id,
            "host": self.host,
            "assignment": self.assignment,
        })
    }
}
