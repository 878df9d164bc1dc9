//! Deleted topics and records stay deleted, also when a name is used again.

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{
    BY_NAME, EARLIEST, FETCH_BY_ID, LATEST, PRODUCE_BY_ID, batch, bytes_of, fetch_request, fetch_topic,
    produce_request, records_in, refusal,
};
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::fetch_request::{FetchRequest, FetchTopic};
use mainstem_wire::{ErrorCode, Uuid};

use crate::semantics::{TOPIC, broker_with_topic};

fn by_id(id: Uuid) -> FetchTopic<'static> {
    FetchTopic { topic_id: id, topic: "".into(), ..fetch_topic("", 0, 0) }
}

fn fetch_by_id(client: &mut Client, id: Uuid) -> (ErrorCode, usize) {
    let response = client.call(&fetch_request(vec![by_id(id)]), FETCH_BY_ID);
    let data = &response.responses[0].partitions[0];
    (ErrorCode::from(data.error_code), records_in(bytes_of(&data.records)).len())
}

#[test]
fn a_topic_of_the_same_name_is_another_topic() {
    let (mut broker, mut client) = broker_with_topic("recreated", 1, &[]);
    client.delete_topic(TOPIC).unwrap();
    let old = client.create_topic(TOPIC, 1, &[]).unwrap();
    client.produce(TOPIC, 0, -1, &batch(&[b"old"])).unwrap();
    assert_eq!(fetch_by_id(&mut client, old), (ErrorCode::NONE, 1));
    let session = FetchRequest { session_epoch: 0, ..fetch_request(vec![by_id(old)]) };
    let session_id = client.call(&session, FETCH_BY_ID).session_id;

    client.delete_topic(TOPIC).unwrap();
    let new = client.create_topic(TOPIC, 1, &[]).unwrap();
    assert_ne!(old, new);
    let check = |client: &mut Client, records: usize| {
        assert_eq!(fetch_by_id(client, old), (ErrorCode::UNKNOWN_TOPIC_ID, 0), "by the old id");
        assert_eq!(fetch_by_id(client, new), (ErrorCode::NONE, records), "by the new id");
        assert_eq!(client.fetch(TOPIC, 0, 0).unwrap().len(), records, "by name");
    };
    check(&mut client, 0);
    let resumed = FetchRequest { session_id, session_epoch: 1, ..fetch_request(vec![]) };
    let response = client.call(&resumed, FETCH_BY_ID);
    let error = ErrorCode::from(response.responses[0].partitions[0].error_code);
    assert_eq!(error, ErrorCode::UNKNOWN_TOPIC_ID, "the old session");

    let one = batch(&[b"new"]);
    for (id, expected) in [(old, ErrorCode::UNKNOWN_TOPIC_ID), (new, ErrorCode::NONE)] {
        let mut request = produce_request("", 0, -1, &one);
        request.topic_data[0].topic_id = id;
        let response = client.call(&request, PRODUCE_BY_ID);
        assert_eq!(ErrorCode::from(response.responses[0].partition_responses[0].error_code), expected);
    }
    check(&mut client, 1);
    broker.kill();
    broker.start_again();
    check(&mut broker.connect(), 1);
}

#[test]
fn offsets_and_groups_of_a_deleted_topic_are_forgotten() {
    let (_broker, mut client) = broker_with_topic("offsets-deleted", 1, &[]);
    client.find_coordinator("group").unwrap();
    client.commit("group", TOPIC, 0, 5).unwrap();
    assert_eq!(client.committed("group", TOPIC, 0).unwrap(), 5);
    client.delete_topic(TOPIC).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    eventually("the offset to go with its topic", || {
        (client.committed("group", TOPIC, 0).unwrap() == -1).then_some(())
    });
}

#[test]
fn deleted_records_stay_deleted() {
    let (mut broker, mut client) = broker_with_topic("delete-records", 2, &[]);
    for _ in 0..10 {
        client.produce(TOPIC, 0, -1, &batch(&[b"a", b"b"])).unwrap();
    }
    assert_eq!(client.delete_records(TOPIC, 0, 7).unwrap(), 7);
    assert_eq!(client.delete_records(TOPIC, 0, 3).unwrap(), 7, "it never goes back");
    assert_eq!(refusal(client.delete_records(TOPIC, 0, 21)), ErrorCode::OFFSET_OUT_OF_RANGE);
    let check = |client: &mut Client, log_start: i64| {
        assert_eq!(client.offset_at(TOPIC, 0, EARLIEST).unwrap(), log_start);
        assert_eq!(refusal(client.fetch(TOPIC, 0, log_start - 1)), ErrorCode::OFFSET_OUT_OF_RANGE);
    };
    check(&mut client, 7);
    broker.kill();
    broker.start_again();
    client = broker.connect();
    check(&mut client, 7);
    const HIGH_WATERMARK: i64 = -1;
    assert_eq!(client.delete_records(TOPIC, 0, HIGH_WATERMARK).unwrap(), 20);
    broker.stop();
    broker.start_again();
    client = broker.connect();
    check(&mut client, 20);
    assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), 20);
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"c"])).unwrap(), 20);
    assert_eq!(
        client.call(&fetch_request(vec![fetch_topic(TOPIC, 0, 20)]), BY_NAME).responses[0].partitions[0]
            .log_start_offset,
        20
    );
}

#[test]
fn an_acknowledged_offset_commit_survives_a_kill() {
    let (mut broker, mut client) = broker_with_topic("commit", 1, &[]);
    client.find_coordinator("group").unwrap();
    for offset in 1..=20 {
        client.commit("group", TOPIC, 0, offset).unwrap();
        if offset % 10 == 0 {
            broker.kill();
            broker.start_again();
            client = broker.connect();
        }
        assert_eq!(client.committed("group", TOPIC, 0).unwrap(), offset);
    }
}

#[test]
fn a_producer_id_is_not_given_twice() {
    let (mut broker, mut client) = broker_with_topic("producer-ids", 1, &[]);
    let mut last = -1;
    for round in 0..6 {
        for _ in 0..3 {
            let id = client.init_producer_id().unwrap();
            assert!(id > last, "{id} after {last}");
            last = id;
        }
        if round % 2 == 0 {
            broker.kill()
        } else {
            broker.stop()
        }
        broker.start_again();
        client = broker.connect();
    }
}
