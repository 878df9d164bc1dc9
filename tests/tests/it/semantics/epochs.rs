//! Leader epochs: a reader that is ahead of the log gets an error (KIP-320).

use std::fs;
use std::io::Write;
use std::path::Path;

use mainstem_log::segment_record::ACCEPT_LOSS;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{BY_NAME, LATEST, batch, fetch_request, fetch_topic};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::offset_for_leader_epoch_request::{
    OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
};

use crate::semantics::{TOPIC, broker_with_topic};

/// The largest epoch up to `leader_epoch` and its end, for a client that knows the epoch `current`.
fn end_of(client: &mut Client, current: i32, leader_epoch: i32) -> Result<(i32, i64), ErrorCode> {
    let partition = OffsetForLeaderPartition {
        partition: 0,
        current_leader_epoch: current,
        leader_epoch,
        ..Default::default()
    };
    let topic =
        OffsetForLeaderTopic { topic: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    let request = OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let response = client.call(&request, 4);
    let answer = &response.topics[0].partitions[0];
    match answer.error_code {
        0 => Ok((answer.leader_epoch, answer.end_offset)),
        code => Err(ErrorCode::from(code)),
    }
}

#[test]
fn the_leader_epoch_rises_with_a_kill_and_its_end_is_reported() {
    let (mut broker, mut client) = broker_with_topic("epochs", 1, &[]);
    let first = client.leader_epoch(TOPIC, 0).unwrap();
    client.produce(TOPIC, 0, -1, &batch(&[b"a", b"b", b"c"])).unwrap();
    assert_eq!(end_of(&mut client, first, first), Ok((first, 3)));

    broker.kill();
    broker.start_again();
    client = broker.connect();
    let second = client.leader_epoch(TOPIC, 0).unwrap();
    assert!(second > first);
    client.produce(TOPIC, 0, -1, &batch(&[b"d"])).unwrap();
    let epochs: Vec<i32> =
        client.fetch(TOPIC, 0, 0).unwrap().iter().map(|record| record.leader_epoch).collect();
    assert_eq!(epochs, [first, first, first, second]);
    assert_eq!(end_of(&mut client, second, first), Ok((first, 3)));
    assert_eq!(end_of(&mut client, second, second), Ok((second, 4)));
    assert_eq!(end_of(&mut client, second, second + 1), Ok((-1, -1)), "an epoch that is yet to come");
    assert_eq!(end_of(&mut client, first, first), Err(ErrorCode::FENCED_LEADER_EPOCH));
    assert_eq!(end_of(&mut client, second + 1, first), Err(ErrorCode::UNKNOWN_LEADER_EPOCH));
}

#[test]
fn a_fetch_with_an_epoch_of_another_history_is_reported_where_they_part() {
    let (mut broker, mut client) = broker_with_topic("diverging", 1, &[]);
    let first = client.leader_epoch(TOPIC, 0).unwrap();
    client.produce(TOPIC, 0, -1, &batch(&[b"a", b"b"])).unwrap();
    broker.kill();
    broker.start_again();
    client = broker.connect();
    let second = client.leader_epoch(TOPIC, 0).unwrap();
    client.produce(TOPIC, 0, -1, &batch(&[b"c", b"d"])).unwrap();
    let mut fetch = |current: i32, offset: i64, last_fetched_epoch: i32| {
        let mut topic = fetch_topic(TOPIC, 0, offset);
        topic.partitions[0].current_leader_epoch = current;
        topic.partitions[0].last_fetched_epoch = last_fetched_epoch;
        let response = client.call(&fetch_request(vec![topic]), BY_NAME);
        let data = &response.responses[0].partitions[0];
        (ErrorCode::from(data.error_code), data.diverging_epoch.epoch, data.diverging_epoch.end_offset)
    };
    assert_eq!(fetch(second, 2, first), (ErrorCode::NONE, -1, -1));
    assert_eq!(fetch(second, 3, first), (ErrorCode::NONE, first, 2), "read beyond the end of its epoch");
    assert_eq!(fetch(first, 0, -1).0, ErrorCode::FENCED_LEADER_EPOCH);
    assert_eq!(fetch(second + 1, 0, -1).0, ErrorCode::UNKNOWN_LEADER_EPOCH);
}

#[test]
fn a_stop_in_order_keeps_what_readers_know() {
    let (mut broker, mut client) = broker_with_topic("epoch-clean", 1, &[]);
    let before = client.leader_epoch(TOPIC, 0).unwrap();
    client.produce(TOPIC, 0, -1, &batch(&[b"a"])).unwrap();
    broker.stop();
    broker.start_again();
    client = broker.connect();
    let after = client.leader_epoch(TOPIC, 0).unwrap();
    assert!(after >= before);
    assert_eq!(end_of(&mut client, after, before), Ok((before, 1)));
}

/// Changes a segment of a stopped broker, with a batch of two records and one of one record, or its directory. Then
/// the log ends at `end`, and a reader of all three gets an error.
fn check_shorter(name: &str, end: i64, change: impl FnOnce(&Path, u64)) {
    let (mut broker, mut client) = broker_with_topic(name, 1, &[]);
    let first = client.leader_epoch(TOPIC, 0).unwrap();
    client.produce(TOPIC, 0, -1, &batch(&[b"a", b"b"])).unwrap();
    let dir = broker.data_dir().join(format!("{TOPIC}-0"));
    let segment = dir.join("00000000000000000000.log");
    let two_records = fs::metadata(&segment).unwrap().len();
    client.produce(TOPIC, 0, -1, &batch(&[b"c"])).unwrap();
    broker.stop();
    change(&segment, two_records);
    // The operator accepts the loss.
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join(ACCEPT_LOSS), b"").unwrap();
    broker.start_again();
    assert_eq!(broker.ready()["last_stop"], "clean");
    client = broker.connect();
    let second = client.leader_epoch(TOPIC, 0).unwrap();
    assert!(second > first, "{name}: {second} after {first}");
    assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), end, "{name}");
    assert_eq!(end_of(&mut client, second, first).unwrap().1, end, "{name}");
    assert_eq!(end_of(&mut client, first, first), Err(ErrorCode::FENCED_LEADER_EPOCH), "{name}");
    client.produce(TOPIC, 0, -1, &batch(&[b"d", b"e", b"f"])).unwrap();
    let mut topic = fetch_topic(TOPIC, 0, 3);
    topic.partitions[0].last_fetched_epoch = first;
    let response = client.call(&fetch_request(vec![topic]), BY_NAME);
    let diverging = &response.responses[0].partitions[0].diverging_epoch;
    let (epoch, end_offset) = (diverging.epoch, diverging.end_offset);
    assert!(epoch <= first && end_offset == if end == 3 { -1 } else { end }, "{name}: {epoch} {end_offset}");
    broker.stop();
    broker.start_again();
    assert_eq!(broker.connect().leader_epoch(TOPIC, 0).unwrap(), second, "{name}: raised once");
}

#[test]
fn readers_of_a_log_that_was_shortened_while_the_broker_was_stopped_are_reported() {
    check_shorter("shorter", 2, |segment, two_records| {
        fs::OpenOptions::new().write(true).open(segment).unwrap().set_len(two_records).unwrap();
    });
    check_shorter("damaged", 3, |segment, _| {
        fs::OpenOptions::new().append(true).open(segment).unwrap().write_all(&[7; 100]).unwrap();
    });
    // Offsets are never used twice.
    check_shorter("gone", 3, |segment, _| fs::remove_dir_all(segment.parent().unwrap()).unwrap());
}
