//! Records: the bytes that Kafka writes, and all versions that it reads.

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::coordinator::encode_with_version;
use mainstem_wire::messages::transaction_log_value::{PartitionsSchema, TransactionLogValue};

use crate::transactions::image::{Image, Partitions};
use crate::transactions::records::{self, Record};
use crate::transactions::state::State;

/// Ongoing, with two topics and nothing that has its default.
fn image() -> Image {
    let mut partitions = Partitions::new();
    partitions.entry("t".into()).or_default().extend([1, 0]);
    partitions.entry("u".into()).or_default().insert(258);
    Image {
        producer_id: ProducerId::new(5),
        previous_producer_id: ProducerId::new(4),
        next_producer_id: ProducerId::new(6),
        producer_epoch: ProducerEpoch::new(7),
        last_producer_epoch: ProducerEpoch::NONE,
        timeout_ms: 60_000,
        state: State::Ongoing,
        partitions,
        started_ms: 1_000,
        updated_ms: 2_000,
        client_version: 2,
    }
}

fn value(image: &Image, transaction_version: i16) -> Vec<u8> {
    let record = records::image("id", image, transaction_version);
    assert_eq!(record.key, b"\0\0\0\x02id");
    record.value.expect("no tombstone")
}

fn decoded(image: &Image, transaction_version: i16) -> Image {
    let record = records::image("id", image, transaction_version);
    match records::decode(&record.key, record.value.as_deref()) {
        Record::Transaction { id, image: Some(image) } if id == "id" => image,
        other => panic!("{other:?}"),
    }
}

#[test]
fn transaction_version_0_writes_records_of_version_0() {
    let expected = b"\0\0\0\0\0\0\0\0\0\x05\0\x07\0\0\xea\x60\x01\
        \0\0\0\x02\0\x01t\0\0\0\x02\0\0\0\0\0\0\0\x01\0\x01u\0\0\0\x01\0\0\x01\x02\
        \0\0\0\0\0\0\x07\xd0\0\0\0\0\0\0\x03\xe8";
    assert_eq!(value(&image(), 0), expected);
    let read = decoded(&image(), 0);
    let none = ProducerId::NONE;
    let lost = Image { previous_producer_id: none, next_producer_id: none, client_version: 0, ..image() };
    assert_eq!(read, lost);
}

#[test]
fn later_transaction_versions_write_records_of_version_1() {
    let expected = b"\0\x01\0\0\0\0\0\0\0\x05\0\x07\0\0\xea\x60\x01\
        \x03\x02t\x03\0\0\0\0\0\0\0\x01\0\x02u\x02\0\0\x01\x02\0\
        \0\0\0\0\0\0\x07\xd0\0\0\0\0\0\0\x03\xe8\
        \x03\0\x08\0\0\0\0\0\0\0\x04\x01\x08\0\0\0\0\0\0\0\x06\x02\x02\0\x02";
    assert_eq!(value(&image(), 1), expected);
    assert_eq!(value(&image(), 2), expected);
    assert_eq!(decoded(&image(), 2), image());
}

#[test]
fn an_empty_state_has_no_list_and_others_an_empty_one() {
    let image = Image { partitions: Partitions::new(), ..image() };
    let empty =
        Image { state: State::Empty, next_producer_id: ProducerId::NONE, client_version: 0, ..image.clone() };
    let times = b"\0\0\0\0\0\0\x07\xd0\0\0\0\0\0\0\x03\xe8".as_slice();
    let head = b"\0\x01\0\0\0\0\0\0\0\x05\0\x07\0\0\xea\x60".as_slice();
    let previous = b"\x01\0\x08\0\0\0\0\0\0\0\x04".as_slice();
    assert_eq!(value(&empty, 2), [head, b"\0\0", times, previous].concat());
    let complete = Image { state: State::CompleteCommit, ..empty.clone() };
    assert_eq!(value(&complete, 2), [head, b"\x04\x01", times, previous].concat());
    assert_eq!((decoded(&empty, 2), decoded(&complete, 0).state), (empty, State::CompleteCommit));
    let old = value(&Image { state: State::Empty, ..complete }, 0);
    assert_eq!(&old[17..21], b"\xff\xff\xff\xff", "null");
}

#[test]
fn a_tombstone_has_a_key_alone() {
    let record = records::tombstone("id");
    assert_eq!((record.key.as_slice(), record.value), (b"\0\0\0\x02id".as_slice(), None));
    let gone = Record::Transaction { id: "id".to_owned(), image: None };
    assert_eq!(records::decode(&record.key, None), gone);
}

#[test]
fn what_no_broker_can_have_meant_is_malformed() {
    let sound = TransactionLogValue { producer_id: 1, ..Default::default() };
    let read = |value: &TransactionLogValue<'_>| {
        let bytes = encode_with_version(value, 1).expect("a version that exists");
        records::decode(b"\0\0\0\x01t", Some(&bytes))
    };
    assert!(matches!(read(&sound), Record::Transaction { image: Some(_), .. }));
    for bad in [
        TransactionLogValue { producer_id: -1, ..sound.clone() },
        TransactionLogValue { producer_epoch: -1, ..sound.clone() },
        TransactionLogValue { transaction_status: 6, ..sound.clone() },
        TransactionLogValue { transaction_status: 7, ..sound.clone() },
        TransactionLogValue { transaction_status: 8, ..sound.clone() },
        TransactionLogValue { transaction_status: -1, ..sound.clone() },
    ] {
        assert_eq!(read(&bad), Record::Malformed, "{bad:?}");
    }
    let bytes = encode_with_version(&sound, 1).expect("a version that exists");
    assert_eq!(records::decode(b"\0\0\0\x01t", Some(&bytes[..10])), Record::Malformed);
    assert_eq!(records::decode(b"\0\0\0\x02t", Some(&bytes)), Record::Malformed);
    assert_eq!(records::decode(b"\0\0\0\x01t", Some(b"\0\x02\0\0")), Record::Malformed);
    assert_eq!(records::decode(b"", None), Record::Malformed);
    assert_eq!(records::decode(b"\0\x01\0\x01t", Some(&bytes)), Record::Other);
}

#[test]
fn topics_named_twice_are_one_and_those_without_partitions_none() {
    let topic = |name: &'static str, partition_ids: Vec<i32>| PartitionsSchema {
        topic: name.into(),
        partition_ids,
        ..Default::default()
    };
    let topics = vec![topic("t", vec![1]), topic("u", vec![]), topic("t", vec![0, 1])];
    let value = TransactionLogValue {
        producer_id: 1,
        transaction_status: 1,
        transaction_partitions: Some(topics),
        ..Default::default()
    };
    let bytes = encode_with_version(&value, 0).expect("a version that exists");
    match records::decode(b"\0\0\0\x01t", Some(&bytes)) {
        Record::Transaction { image: Some(image), .. } => {
            assert_eq!(image.partitions, Partitions::from([("t".into(), [0, 1].into())]));
        }
        other => panic!("{other:?}"),
    }
}
