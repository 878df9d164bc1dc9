//! Joining and leaving.

use mainstem_tests::broker::Setup;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::leave_group_request::{LeaveGroupRequest, MemberIdentity};

use crate::groups::member::{Member, assemble, describe, wait_until_known};
use crate::groups::{GROUP, broker};

#[test]
fn a_follower_waits_for_the_leaders_assignment() {
    let broker = broker(Setup::new("sync"));
    let (mut leader, mut follower) = (Member::new(&broker), Member::new(&broker));
    leader.join();
    follower.ask_for_id();
    follower.send_join();
    wait_until_known(&mut leader, 2);
    assert_eq!(leader.heartbeat(), ErrorCode::REBALANCE_IN_PROGRESS);
    let all = leader.join().members;
    let joined = follower.joined();
    assert_eq!((joined.leader, joined.members), (leader.id.clone(), vec![]), "only the leader gets them");
    assert_eq!(follower.generation, leader.generation);
    follower.send_sync(&[]);
    assert_eq!(leader.sync(&all), Ok(leader.id.clone()));
    assert_eq!(follower.synced(), Ok(follower.id.clone()));
    assert_eq!(describe(&mut leader.client).0, "Stable");
}

#[test]
fn members_of_another_kind_or_time_are_refused() {
    let broker = broker(Setup::new("kinds"));
    let mut members = [Member::new(&broker), Member::new(&broker)];
    assemble(&mut members);
    let mut other = Member { protocol: "another", ..Member::new(&broker) };
    other.send_join();
    assert_eq!(other.joined().error, ErrorCode::INCONSISTENT_GROUP_PROTOCOL);
    for session_timeout_ms in [1, 100_000_000] {
        let mut other = Member { session_timeout_ms, ..Member::new(&broker) };
        other.send_join();
        assert_eq!(other.joined().error, ErrorCode::INVALID_SESSION_TIMEOUT, "{session_timeout_ms}");
    }
    let mut unknown = Member { id: "missing".to_owned(), ..Member::new(&broker) };
    unknown.send_join();
    assert_eq!(unknown.joined().error, ErrorCode::UNKNOWN_MEMBER_ID);
    assert!(
        members.iter_mut().all(|member| member.heartbeat() == ErrorCode::NONE),
        "no member was disturbed"
    );
}

#[test]
fn a_full_group_takes_no_member() {
    let broker = broker(Setup::new("full").set("group.max.size", 2));
    let mut members = [Member::new(&broker), Member::new(&broker)];
    assemble(&mut members);
    let mut third = Member::new(&broker);
    third.send_join();
    assert_eq!(third.joined().error, ErrorCode::GROUP_MAX_SIZE_REACHED);
    assert!(
        members.iter_mut().all(|member| member.heartbeat() == ErrorCode::NONE),
        "no member was disturbed"
    );
}

#[test]
fn commits_and_heartbeats_are_fenced_by_member_and_generation() {
    let broker = broker(Setup::new("fencing"));
    let mut members = [Member::new(&broker)];
    assemble(&mut members);
    let [member] = &mut members;
    assert_eq!(member.commit(1), ErrorCode::NONE);
    let (id, generation) = (member.id.clone(), member.generation);
    member.generation = generation + 1;
    assert_eq!(
        (member.commit(2), member.heartbeat()),
        (ErrorCode::ILLEGAL_GENERATION, ErrorCode::ILLEGAL_GENERATION)
    );
    (member.generation, member.id) = (generation, "missing".to_owned());
    assert_eq!(
        (member.commit(2), member.heartbeat()),
        (ErrorCode::UNKNOWN_MEMBER_ID, ErrorCode::UNKNOWN_MEMBER_ID)
    );
    member.id = id;
    let mut outsider = broker.connect();
    let refused = mainstem_tests::kafka::refusal(outsider.commit(GROUP, crate::groups::TOPIC, 0, 2));
    assert_eq!(refused, ErrorCode::UNKNOWN_MEMBER_ID, "no commits from outside while there are members");
    assert_eq!(outsider.committed(GROUP, crate::groups::TOPIC, 0).unwrap(), 1);
    assert_eq!(member.heartbeat(), ErrorCode::NONE);
}

#[test]
fn several_members_leave_by_one_request() {
    let broker = broker(Setup::new("leave"));
    let mut members =
        [Member::new(&broker), Member::with_instance(&broker, "one"), Member::with_instance(&broker, "two")];
    assemble(&mut members);
    let [first, second, _] = &mut members;
    let by_instance = |instance: &'static str| MemberIdentity {
        group_instance_id: Some(instance.into()),
        ..Default::default()
    };
    let by_id = |id: &str| MemberIdentity { member_id: id.to_owned().into(), ..Default::default() };
    let request = LeaveGroupRequest {
        group_id: GROUP.into(),
        members: vec![by_instance("one"), by_instance("missing"), by_id(&first.id), by_id("missing")],
        ..Default::default()
    };
    let response = second.client.call(&request, 5);
    assert_eq!(response.error_code, 0);
    let errors: Vec<ErrorCode> =
        response.members.iter().map(|member| ErrorCode::from(member.error_code)).collect();
    let unknown = ErrorCode::UNKNOWN_MEMBER_ID;
    assert_eq!(errors, [ErrorCode::NONE, unknown, ErrorCode::NONE, unknown]);
    let [first, second, third] = &mut members;
    assert_eq!((first.heartbeat(), second.heartbeat()), (unknown, unknown));
    assert_eq!(third.heartbeat(), ErrorCode::REBALANCE_IN_PROGRESS);
    let joined = third.join();
    assert_eq!((joined.leader, joined.members.len()), (third.id.clone(), 1));
}
