//! A partition whose files cannot be used is offline, and no other one is.

use std::fs;
use std::path::PathBuf;

use mainstem_tests::broker::Broker;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{BY_NAME, LATEST, batch, fetch_request, fetch_topic, refusal};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};

use crate::semantics::{TOPIC, broker_with_topic};

const OFFSETS: &str = "__consumer_offsets";

/// The first segment of a partition.
fn segment(broker: &Broker, topic: &str, partition: i32) -> PathBuf {
    broker.data_dir().join(format!("{topic}-{partition}")).join("00000000000000000000.log")
}

/// Overwrites the beginning of a stopped broker's segment with bytes that are no batch. Returns the old contents.
fn damage(broker: &Broker, topic: &str, partition: i32) -> Vec<u8> {
    let path = segment(broker, topic, partition);
    let bytes = fs::read(&path).unwrap();
    let mut damaged = bytes.clone();
    damaged[..64].fill(0xFF);
    fs::write(&path, damaged).unwrap();
    bytes
}

/// The error, leader and offline replicas of a partition of [`TOPIC`], by Metadata.
fn described(client: &mut Client, partition: usize) -> (ErrorCode, i32, Vec<i32>) {
    let topics = vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }];
    let response = client.call(&MetadataRequest { topics: Some(topics), ..Default::default() }, 12);
    let found = &response.topics[0].partitions[partition];
    (ErrorCode::from(found.error_code), found.leader_id, found.offline_replicas.clone())
}

/// The error of a fetch in a version.
fn fetch_error(client: &mut Client, partition: i32, version: i16) -> ErrorCode {
    let response = client.call(&fetch_request(vec![fetch_topic(TOPIC, partition, 0)]), version);
    ErrorCode::from(response.responses[0].partitions[0].error_code)
}

#[test]
fn a_damaged_partition_is_offline_and_the_others_are_served() {
    let (mut broker, mut client) = broker_with_topic("offline", 2, &[]);
    for partition in 0..2 {
        client.produce(TOPIC, partition, -1, &batch(&[b"a", b"b"])).unwrap();
    }
    let (_, node, _) = described(&mut client, 0);
    broker.stop();
    let whole = damage(&broker, TOPIC, 1);
    broker.start_again();
    client = broker.connect();

    assert_eq!(client.fetch(TOPIC, 0, 0).unwrap().len(), 2);
    client.produce(TOPIC, 0, -1, &batch(&[b"c"])).unwrap();
    assert_eq!(described(&mut client, 0), (ErrorCode::NONE, node, vec![]));

    assert_eq!(described(&mut client, 1), (ErrorCode::LEADER_NOT_AVAILABLE, -1, vec![node]));
    let storage = ErrorCode::KAFKA_STORAGE_ERROR;
    assert_eq!(refusal(client.produce(TOPIC, 1, -1, &batch(&[b"c"]))), storage);
    assert_eq!(refusal(client.offset_at(TOPIC, 1, LATEST)), storage);
    assert_eq!(fetch_error(&mut client, 1, BY_NAME), storage);
    assert_eq!(fetch_error(&mut client, 1, 5), ErrorCode::NOT_LEADER_OR_FOLLOWER, "it knows no other error");

    let path = segment(&broker, TOPIC, 1).display().to_string();
    let log = broker.log();
    let line = log.lines().find(|line| line.contains(&path) && line.contains("start again"));
    assert!(line.is_some_and(|line| line.contains("topic-1 cannot be opened")), "{log}");
    assert!(broker.http("/health").contains("topic-1 is offline"), "{}", broker.http("/health"));
    assert!(broker.http("/metrics").contains("mainstem_offline_partitions 1"));

    // After a repair it is checked, whatever the last stop was like.
    broker.stop();
    fs::write(segment(&broker, TOPIC, 1), whole).unwrap();
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "unclean");
    client = broker.connect();
    assert_eq!(client.fetch(TOPIC, 1, 0).unwrap().len(), 2);
    broker.assert_healthy();
    broker.stop();
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean");
}

#[test]
fn a_topic_with_an_offline_partition_can_be_deleted_and_created_again() {
    let (mut broker, mut client) = broker_with_topic("offline-deleted", 1, &[]);
    client.produce(TOPIC, 0, -1, &batch(&[b"a"])).unwrap();
    broker.stop();
    damage(&broker, TOPIC, 0);
    broker.start_again();
    client = broker.connect();
    assert_eq!(refusal(client.produce(TOPIC, 0, -1, &batch(&[b"b"]))), ErrorCode::KAFKA_STORAGE_ERROR);
    client.delete_topic(TOPIC).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"b"])).unwrap(), 0);
    broker.assert_healthy();
    broker.stop();
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean", "what could not be opened is gone");
}

#[test]
fn the_groups_of_an_offline_partition_have_no_coordinator_and_others_have() {
    let (mut broker, mut client) = broker_with_topic("offline-groups", 1, &[]);
    let groups: Vec<String> = (0..16).map(|number| format!("group-{number}")).collect();
    for group in &groups {
        client.find_coordinator(group).unwrap();
        client.commit(group, TOPIC, 0, 7).unwrap();
    }
    broker.stop();
    damage(&broker, OFFSETS, 0);
    broker.start_again();
    client = broker.connect();
    let (mut lost, mut kept) = (0, 0);
    for group in &groups {
        match client.find_coordinator(group) {
            Ok(_) => {
                kept += 1;
                assert_eq!(client.committed(group, TOPIC, 0).unwrap(), 7);
            }
            Err(error) => {
                lost += 1;
                assert_eq!(refusal::<()>(Err(error)), ErrorCode::COORDINATOR_NOT_AVAILABLE);
            }
        }
    }
    assert!(lost > 0 && kept > 0, "{lost} groups are lost, {kept} are served");
}
