//! Stops in order, and starts that must fail.

use std::fs;
use std::net::TcpListener;
use std::process::ExitStatus;

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::disk_faults::{DiskFaults, Syncs};
use mainstem_tests::kafka::{
    BY_NAME, LATEST, batch, bytes_of, fetch_request, fetch_topic, produce_request, refusal,
};
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
use mainstem_wire::messages::produce_request::ProduceRequest;
use mainstem_wire::{ErrorCode, Uuid};

const TOPIC: &str = "topic";

/// The wait in clients' requests: a stop that waited for it would take longer than any wait of a test.
const AN_HOUR_MS: i32 = 3_600_000;

fn broker_with_topic(name: &str, partitions: i32) -> (Broker, Client) {
    let broker = Setup::new(name).start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, partitions, &[]).unwrap();
    (broker, client)
}

#[test]
fn clients_are_answered_and_let_go_and_nothing_is_recovered() {
    let (mut broker, mut producer) = broker_with_topic("stop", 3);
    assert_eq!(broker.ready()["last_stop"], "new");
    let mut idle = broker.connect();
    let mut poll = broker.connect();
    let waiting = FetchRequest { max_wait_ms: AN_HOUR_MS, ..fetch_request(vec![fetch_topic(TOPIC, 1, 0)]) };
    poll.send(&waiting, BY_NAME).unwrap();
    eventually("the broker to have read the long poll", || poll.is_read().then_some(()));
    let one = batch(&[b"a"]);
    for _ in 0..50 {
        producer.send(&produce_request(TOPIC, 0, -1, &one), BY_NAME).unwrap();
    }
    // One answer shows that the broker handles these requests.
    producer.receive::<ProduceRequest<'_>>(BY_NAME).unwrap();

    broker.ask_to_stop();
    let (_, response) = poll.receive::<FetchRequest<'_>>(BY_NAME).unwrap();
    assert_eq!(bytes_of(&response.responses[0].partitions[0].records), b"", "the long poll is answered");
    let mut acknowledged = 1;
    while let Ok((_, response)) = producer.receive::<ProduceRequest<'_>>(BY_NAME) {
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        acknowledged += 1;
    }
    for client in [&mut idle, &mut poll] {
        client.wait_for_close().unwrap();
    }
    let status = broker.wait_for_end();
    assert!(status.success(), "{status}");

    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean");
    assert!(broker.connect().offset_at(TOPIC, 0, LATEST).unwrap() >= acknowledged);
    broker.kill();
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "unclean");
}

#[test]
fn members_that_wait_in_a_join_are_answered_and_do_not_hold_up_the_stop() {
    let (mut broker, mut member) = broker_with_topic("stop-join", 1);
    member.find_coordinator("group").unwrap();
    let request = JoinGroupRequest {
        group_id: "group".into(),
        session_timeout_ms: 60_000,
        rebalance_timeout_ms: AN_HOUR_MS,
        protocol_type: "consumer".into(),
        protocols: vec![JoinGroupRequestProtocol { name: "range".into(), ..Default::default() }],
        ..Default::default()
    };
    assert_eq!(member.call(&request, 3).error_code, 0);
    let mut second = broker.connect();
    second.send(&request, 3).unwrap();
    eventually("the second member to be known", || {
        let request = mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest {
            groups: vec!["group".into()],
            ..Default::default()
        };
        (member.call(&request, 5).groups[0].members.len() == 2).then_some(())
    });
    broker.ask_to_stop();
    let (_, joined) = second.receive::<JoinGroupRequest<'_>>(3).unwrap();
    assert_eq!(ErrorCode::from(joined.error_code), ErrorCode::NOT_COORDINATOR);
    second.wait_for_close().unwrap();
    member.wait_for_close().unwrap();
    assert!(broker.wait_for_end().success());
}

/// The disk hangs until the second signal is handled.
#[test]
fn a_second_signal_skips_the_syncing_and_loses_nothing() {
    const PARTITIONS: i32 = 8;
    /// The time of a sync afterwards: far longer than the broker needs to handle the second signal.
    const SYNC_MS: u64 = 500;
    let home = tempfile::tempdir().unwrap();
    let faults = DiskFaults::build(home.path());
    let mut broker = Setup::new("hurry").environment(faults.environment()).start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, PARTITIONS, &[]).unwrap();
    faults.set(Syncs::Hang, &broker.data_dir());
    for partition in 0..PARTITIONS {
        client.produce(TOPIC, partition, 1, &batch(&[b"a"])).unwrap();
    }
    let begin = broker.log().len();
    broker.ask_to_stop();
    eventually("the first signal to be taken", || broker.log()[begin..].contains("stopping").then_some(()));
    broker.ask_to_stop();
    eventually("the second signal to be taken", || (!broker.is_asked_to_stop()).then_some(()));
    faults.set(Syncs::Slow(SYNC_MS), &broker.data_dir());
    assert!(broker.wait_for_end().success());
    assert!(broker.log()[begin..].contains("without syncing"), "{}", broker.log());
    faults.set(Syncs::Work, &broker.data_dir());
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "unclean");
    let mut client = broker.connect();
    for partition in 0..PARTITIONS {
        assert_eq!(client.read_all(TOPIC, partition, 0).unwrap().len(), 1);
    }
}

#[test]
fn large_answers_do_not_hold_up_the_stop() {
    let (mut broker, mut client) = broker_with_topic("stop-large", 1);
    client.produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
    let describe = |groups: usize| DescribeConfigsRequest {
        resources: (0..groups)
            .map(|number| DescribeConfigsResource {
                resource_type: 32,
                resource_name: format!("group-{number}").into(),
                ..Default::default()
            })
            .collect(),
        include_synonyms: true,
        include_documentation: true,
        ..Default::default()
    };
    // An answer of tens of MiB that is not read, and one that is not put together yet.
    let (mut silent, mut asking) = (broker.connect(), broker.connect());
    silent.send(&describe(5_000), 4).unwrap();
    silent.stream().peek(&mut [0]).unwrap();
    asking.send(&describe(10_000), 4).unwrap();
    broker.ask_to_stop();
    client.wait_for_close().unwrap();
    let status = broker.wait_for_end();
    assert!(status.success(), "{status}");
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean");
    assert_eq!(broker.connect().read_all(TOPIC, 0, 0).unwrap().len(), 1);
}

/// Asserts that a start failed with a message that has `why`.
fn assert_refused((status, said): (ExitStatus, String), why: &[&str]) {
    assert!(!status.success());
    for part in why {
        assert!(said.contains(part), "{part:?} is not in: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn a_taken_port_is_reported() {
    let (mut broker, mut client) = broker_with_topic("port-taken", 1);
    let elsewhere = broker.data_dir().with_file_name("elsewhere");
    let address = broker.address();
    assert_refused(broker.start_another(&address, &elsewhere), &["cannot listen on", &address]);
    // A port that another program has is refused, too.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    assert_refused(broker.start_another(&address, &elsewhere), &["cannot listen on", &address]);
    assert!(!elsewhere.exists(), "nothing was touched");
    client.produce(TOPIC, 0, -1, &batch(&[b"a"])).unwrap();
    broker.assert_healthy();
}

#[test]
fn a_taken_data_directory_is_reported() {
    let (mut broker, mut client) = broker_with_topic("dir-taken", 1);
    let dir = broker.data_dir();
    let refused = broker.start_another("127.0.0.1:0", &dir);
    assert_refused(refused, &[&dir.display().to_string(), "in use"]);
    client.produce(TOPIC, 0, -1, &batch(&[b"a"])).unwrap();
    broker.assert_healthy();
    // A lock file without an owner does not matter.
    broker.kill();
    broker.start_again();
}

#[test]
fn more_partitions_than_descriptors_are_reported() {
    let (mut broker, mut client) = broker_with_topic("few-descriptors", 300);
    for partition in 0..300 {
        client.produce(TOPIC, partition, 1, &batch(&[b"a"])).unwrap();
    }
    broker.kill();
    broker.limit_descriptors(Some((256, 256)));
    let refused = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert_refused(refused, &["cannot be opened", "Too many open files", "ulimit -n"]);
    broker.limit_descriptors(None);
    broker.start_again();
    let mut client = broker.connect();
    for partition in 0..300 {
        assert_eq!(client.offset_at(TOPIC, partition, LATEST).unwrap(), 1);
    }
}

#[test]
fn what_a_start_would_refuse_a_creation_refuses() {
    const DESCRIPTORS: u64 = 600;
    // Three descriptors each, beside a quarter for closed segments and 64 for others.
    const PARTITIONS: i32 = 128;
    let mut broker = Setup::new("descriptor-budget").limit_descriptors(DESCRIPTORS, DESCRIPTORS).start();
    let mut client = broker.connect();
    let refused = |result| assert_eq!(refusal::<Uuid>(result), ErrorCode::POLICY_VIOLATION);
    refused(client.create_topic(TOPIC, 1_000, &[]));
    refused(client.create_topic(TOPIC, PARTITIONS + 1, &[]));
    client.create_topic(TOPIC, PARTITIONS - 1, &[]).unwrap();
    refused(client.create_topic("two", 2, &[]));
    client.create_topic("one", 1, &[]).unwrap();
    for clean in [false, true, false] {
        for partition in 0..PARTITIONS - 1 {
            client.produce(TOPIC, partition, 1, &batch(&[b"a"])).unwrap();
        }
        match clean {
            true => broker.stop(),
            false => broker.kill(),
        }
        broker.start_again();
        client = broker.connect();
        assert!(client.offset_at(TOPIC, PARTITIONS - 2, LATEST).unwrap() > 0);
    }
    client.delete_topic("one").unwrap();
    client.create_topic("another", 1, &[]).unwrap();
    broker.assert_healthy();
}

#[test]
fn a_partition_that_is_not_used_holds_one_file_after_a_kill() {
    const PARTITIONS: usize = 300;
    let (mut broker, _) = broker_with_topic("one-file", PARTITIONS as i32);
    broker.kill();
    broker.start_again();
    eventually("files to be closed that were open to be synced", || {
        (broker.descriptors() < PARTITIONS + 100).then_some(())
    });
}

#[test]
fn a_directory_of_a_newer_release_is_reported_and_left_alone() {
    let (mut broker, _) = broker_with_topic("newer-format", 1);
    broker.stop();
    let file = broker.data_dir().join("meta.properties");
    let ours = fs::read_to_string(&file).unwrap();
    let newer = ours.replace("version=1", "version=2");
    assert_ne!(ours, newer);
    fs::write(&file, &newer).unwrap();
    let refused = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert_refused(refused, &["meta.properties", "newer"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), newer);
    fs::write(&file, &ours).unwrap();
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean");
}

#[test]
fn a_setting_that_cannot_be_is_reported() {
    let (mut broker, _) = broker_with_topic("bad-setting", 1);
    broker.stop();
    broker.set("log.retention.ms", "soon");
    assert_refused(broker.start_another("127.0.0.1:0", &broker.data_dir()), &["log.retention.ms", "soon"]);
}

#[test]
fn a_file_in_place_of_the_data_directory_is_reported() {
    let (broker, _) = broker_with_topic("no-dir", 1);
    let file = broker.data_dir().with_file_name("a-file");
    fs::write(&file, "text").unwrap();
    assert_refused(broker.start_another("127.0.0.1:0", &file), &[&file.display().to_string()]);
}

#[test]
fn a_start_that_would_be_open_where_protection_is_asked_for_is_refused() {
    let (mut broker, _) = broker_with_topic("no-protection", 1);
    broker.stop();
    for (key, value) in [
        ("authorizer.class.name", "com.example.Authorizer"),
        ("super.users", "User:admin"),
        ("ssl.engine.factory.class", "com.example.Engine"),
        ("listener.name.plaintext.oauthbearer.sasl.jaas.config", "OAuthBearerLoginModule required;"),
        ("principal.builder.class", "com.example.Builder"),
        ("delegation.token.secret.key", "secret"),
    ] {
        broker.set(key, value);
        let refused = broker.start_another("127.0.0.1:0", &broker.data_dir());
        assert_refused(refused, &[key, "does not have", "Remove the key"]);
        broker.unset(key);
    }
    broker.start_again();
}
