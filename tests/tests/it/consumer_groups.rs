//! Consumer groups (KIP-848) over the raw protocol: the state that the coordinator keeps, its answers, and the end of members.

mod member;

use std::time::Duration;

use mainstem_broker::ManualClock;
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::hostile::victim::Victim;
use mainstem_tests::machine::SimulatedBroker;
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::consumer_group_describe_request::ConsumerGroupDescribeRequest;
use mainstem_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;

use member::Member;

const TOPIC: &str = "topic";
const GROUP: &str = "group";

/// A broker with [`TOPIC`] and a coordinator that computes targets without a delay.
fn broker(setup: Setup) -> Broker {
    let broker = setup.set("group.consumer.assignment.interval.ms", 0).start();
    prepare(&mut broker.connect());
    broker
}

/// Creates the topic, and waits for the coordinator.
fn prepare(client: &mut Client) {
    client.create_topic(TOPIC, 4, &[]).unwrap();
    client.find_coordinator(GROUP).unwrap();
}

/// Sends heartbeats of the members until each has `count` partitions and none of them is another's.
fn share_out(members: &mut [&mut Member], count: usize) {
    eventually("every member has its share", || {
        members.iter_mut().for_each(|member| member.beat());
        let mut all: Vec<i32> = members.iter().flat_map(|member| member.partitions.clone()).collect();
        let total = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), total, "a partition has two readers");
        members.iter().all(|member| member.partitions.len() == count).then_some(())
    });
}

/// State and epoch of the group, and its members' ids.
fn describe(client: &mut Client) -> (String, i32, Vec<String>) {
    let request = ConsumerGroupDescribeRequest { group_ids: vec![GROUP.into()], ..Default::default() };
    let response = client.call(&request, 1);
    let group = &response.groups[0];
    assert_eq!(group.error_code, 0, "{:?}", group.error_message);
    let members = group.members.iter().map(|member| member.member_id.to_string()).collect();
    (group.group_state.to_string(), group.group_epoch, members)
}

#[test]
fn members_share_out_a_topic_that_grows_and_goes() {
    let broker = broker(Setup::new("consumers"));
    let mut a = Member::new(&broker, GROUP, "a");
    share_out(&mut [&mut a], 4);
    let mut b = Member::new(&broker, GROUP, "b");
    share_out(&mut [&mut a, &mut b], 2);
    let topic =
        CreatePartitionsTopic { name: TOPIC.into(), count: 6, assignments: None, ..Default::default() };
    let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 5_000, ..Default::default() };
    let mut client = broker.connect();
    assert_eq!(client.call(&request, 3).results[0].error_code, 0);
    share_out(&mut [&mut a, &mut b], 3);
    b.leave();
    share_out(&mut [&mut a], 6);
    assert_eq!(describe(&mut client).0, "Stable");
    client.delete_topic(TOPIC).unwrap();
    share_out(&mut [&mut a], 0);
    client.create_topic(TOPIC, 2, &[]).unwrap();
    share_out(&mut [&mut a], 2);
}

#[test]
fn a_group_survives_the_death_of_its_broker() {
    let mut broker = broker(Setup::new("consumers-killed"));
    let (mut a, mut b) = (Member::new(&broker, GROUP, "a"), Member::new(&broker, GROUP, "b"));
    share_out(&mut [&mut a, &mut b], 2);
    let mut client = broker.connect();
    let before = describe(&mut client);
    broker.kill();
    broker.start_again();
    a.reconnect(&broker);
    b.reconnect(&broker);
    assert_eq!(describe(&mut broker.connect()), before);
    let had = (a.partitions.clone(), b.partitions.clone());
    share_out(&mut [&mut a, &mut b], 2);
    assert_eq!((a.partitions.clone(), b.partitions.clone()), had, "no member gave anything up");
    assert_eq!(describe(&mut broker.connect()), before);
}

#[test]
fn a_silent_member_is_out_when_its_session_ends() {
    /// Kafka's default (`group.consumer.session.timeout.ms`).
    const SESSION: Duration = Duration::from_secs(45);
    const PART: Duration = Duration::from_secs(44);
    let clock = ManualClock::new();
    let settings = [("group.consumer.assignment.interval.ms", "0"), ("offsets.topic.num.partitions", "4")];
    let broker = SimulatedBroker::start_at(&clock, &settings);
    prepare(&mut broker.connect());
    let (mut a, mut b) = (Member::new(&broker, GROUP, "a"), Member::new(&broker, GROUP, "b"));
    share_out(&mut [&mut a, &mut b], 2);
    clock.advance(PART);
    share_out(&mut [&mut a], 2);
    b.beat();
    assert_eq!(b.error, ErrorCode::NONE, "its session was not over");
    // One member keeps its session by a heartbeat in between.
    clock.advance(PART);
    share_out(&mut [&mut a], 2);
    clock.advance(SESSION - PART);
    share_out(&mut [&mut a], 4);
    b.beat();
    assert_eq!(b.error, ErrorCode::UNKNOWN_MEMBER_ID);
}

#[test]
fn a_group_has_the_times_that_are_set_for_it() {
    let broker = broker(Setup::new("consumers-configured"));
    let mut a = Member::new(&broker, GROUP, "a");
    a.beat();
    assert_eq!(a.heartbeat_interval, Duration::from_secs(5));
    let config = AlterableConfig {
        name: "consumer.heartbeat.interval.ms".into(),
        value: Some("7000".into()),
        ..Default::default()
    };
    let resource = AlterConfigsResource {
        resource_type: 32,
        resource_name: GROUP.into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    let response_error = broker.connect().call(&request, 1).responses[0].error_code;
    assert_eq!(response_error, 0);
    a.beat();
    assert_eq!(a.heartbeat_interval, Duration::from_secs(7));
}

#[test]
fn a_thousand_idle_groups_cost_less_than_4_mib() {
    let victim = Victim::start(&[]);
    let mut client = Client::connect(&victim.address.to_string()).unwrap();
    client.create_topic(TOPIC, 4, &[]).unwrap();
    client.find_coordinator(GROUP).unwrap();
    let join = |client: &mut Client, group: &str| {
        let response = client.call(&member::join(group, "member-of-this-group"), 1);
        assert_eq!((response.error_code, response.member_epoch), (0, 2), "{group}");
    };
    // The first ones allocate what all share.
    (0..20).for_each(|n| join(&mut client, &format!("warm-{n}")));
    let before = victim.memory_kib("VmRSS");
    (0..1_000).for_each(|n| join(&mut client, &format!("idle-group-{n}")));
    let grown = victim.memory_kib("VmRSS") - before;
    println!("1,000 idle groups: {grown} KiB");
    let listed = client.call(&ListGroupsRequest::default(), 5).groups.len();
    assert_eq!(listed, 1_020);
    assert!(grown < 4 << 10, "{grown} KiB");
}
