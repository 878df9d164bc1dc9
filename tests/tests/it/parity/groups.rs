//! One group with one member for each version of JoinGroup; the other APIs of members in the version nearest to it.

use mainstem_tests::client::Client;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::heartbeat_request::HeartbeatRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::sync_group_request::{SyncGroupRequest, SyncGroupRequestAssignment};
use mainstem_wire::{ApiKey, ErrorCode};

/// The version of an API with fewer versions than JoinGroup.
fn nearest(api: ApiKey, version: i16) -> i16 {
    version.min(*api.versions().end())
}

/// Checks all and returns their keys.
pub(crate) fn check_all(client: &mut Client) -> [ApiKey; 8] {
    for version in ApiKey::JoinGroup.versions() {
        check(client, &format!("group-{version}"), version);
    }
    for version in ApiKey::ConsumerGroupHeartbeat.versions() {
        check_consumer(client, &format!("consumers-{version}"), version);
    }
    use ApiKey::*;
    [
        JoinGroup,
        SyncGroup,
        Heartbeat,
        LeaveGroup,
        DescribeGroups,
        ListGroups,
        ConsumerGroupHeartbeat,
        ConsumerGroupDescribe,
    ]
}

/// A consumer group of one member, which subscribes to a topic that does not exist.
fn check_consumer(client: &mut Client, group: &str, version: i16) {
    let mut request = ConsumerGroupHeartbeatRequest {
        group_id: group.into(),
        member_id: if version == 0 { "" } else { "me" }.into(),
        rebalance_timeout_ms: 10_000,
        subscribed_topic_names: Some(vec!["nothing".into()]),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let response = client.call(&request, version);
    assert_eq!((response.error_code, response.heartbeat_interval_ms), (0, 5_000), "v{version}");
    assert_eq!(response.assignment.as_ref().map(|assignment| assignment.topic_partitions.len()), Some(0));
    let (member, epoch) = (response.member_id.as_deref().unwrap().to_owned(), response.member_epoch);
    assert!(version == 0 || member == "me");

    let describe = ConsumerGroupDescribeRequest { group_ids: vec![group.into()], ..Default::default() };
    let response = client.call(&describe, version);
    let described = &response.groups[0];
    assert_eq!((described.error_code, &*described.group_state), (0, "Stable"), "v{version}");
    assert_eq!((&*described.members[0].member_id, described.members[0].member_epoch), (&*member, epoch));
    assert_eq!(described.members[0].member_type, if version == 0 { -1 } else { 1 });

    request.member_id = member.into();
    request.member_epoch = -1;
    assert_eq!(client.call(&request, version).error_code, 0);
}

fn check(client: &mut Client, group: &str, version: i16) {
    let (member, generation) = join(client, group, version);
    sync(client, group, &member, generation, nearest(ApiKey::SyncGroup, version));
    let beat = HeartbeatRequest {
        group_id: group.into(),
        generation_id: generation,
        member_id: member.as_str().into(),
        ..Default::default()
    };
    assert_eq!(client.call(&beat, nearest(ApiKey::Heartbeat, version)).error_code, 0);

    let describe = DescribeGroupsRequest { groups: vec![group.into()], ..Default::default() };
    let response = client.call(&describe, nearest(ApiKey::DescribeGroups, version));
    let described = &response.groups[0];
    assert_eq!((described.error_code, &*described.group_state), (0, "Stable"), "v{version}");
    assert_eq!(described.members[0].member_assignment, b"mine".as_slice());

    let response = client.call(&ListGroupsRequest::default(), nearest(ApiKey::ListGroups, version));
    assert_eq!(response.error_code, 0);
    assert!(response.groups.iter().any(|listed| listed.group_id == group));
    leave(client, group, &member, nearest(ApiKey::LeaveGroup, version));
}

/// Joins as the only member. Returns its id and the generation.
fn join(client: &mut Client, group: &str, version: i16) -> (String, i32) {
    let mut member = String::new();
    loop {
        let protocol = JoinGroupRequestProtocol {
            name: "range".into(),
            metadata: b"me"[..].into(),
            ..Default::default()
        };
        let request = JoinGroupRequest {
            group_id: group.into(),
            session_timeout_ms: 10_000,
            rebalance_timeout_ms: 10_000,
            member_id: member.clone().into(),
            protocol_type: "consumer".into(),
            protocols: vec![protocol],
            ..Default::default()
        };
        let response = client.call(&request, version);
        let error = ErrorCode::from(response.error_code);
        if error == ErrorCode::MEMBER_ID_REQUIRED {
            assert!(version >= 4 && member.is_empty(), "asked for a member id in v{version}");
            member = response.member_id.to_string();
            continue;
        }
        assert_eq!((error, response.generation_id), (ErrorCode::NONE, 1), "v{version}");
        assert_eq!((response.members.len(), &response.leader), (1, &response.member_id));
        assert!(version < 7 || response.protocol_type.as_deref() == Some("consumer"));
        return (response.member_id.to_string(), response.generation_id);
    }
}

fn sync(client: &mut Client, group: &str, member: &str, generation: i32, version: i16) {
    let assignment = SyncGroupRequestAssignment {
        member_id: member.into(),
        assignment: b"mine"[..].into(),
        ..Default::default()
    };
    let of_version_5 = |text: &'static str| (version >= 5).then(|| text.into());
    let request = SyncGroupRequest {
        group_id: group.into(),
        generation_id: generation,
        member_id: member.into(),
        protocol_type: of_version_5("consumer"),
        protocol_name: of_version_5("range"),
        assignments: vec![assignment],
        ..Default::default()
    };
    let response = client.call(&request, version);
    assert_eq!((response.error_code, &*response.assignment), (0, b"mine".as_slice()), "v{version}");
}

fn leave(client: &mut Client, group: &str, member: &str, version: i16) {
    let mut request = LeaveGroupRequest { group_id: group.into(), ..Default::default() };
    match version {
        ..3 => request.member_id = member.into(),
        _ => request.members.push(MemberIdentity { member_id: member.into(), ..Default::default() }),
    }
    let response = client.call(&request, version);
    assert_eq!(response.error_code, 0);
    assert!(response.members.iter().all(|left| left.error_code == 0));
}
