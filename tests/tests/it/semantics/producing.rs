//! Answers to produces, and the stored records.

use mainstem_records::{Batch, BatchOptions, Compression};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{
    BY_NAME, Failure, LATEST, batch, batch_at, batch_with, bytes_of, fetch_request, fetch_topic, idempotent,
    produce_request, refusal, wall_ms,
};
use mainstem_wire::ErrorCode;

use crate::semantics::{TOPIC, broker_with_topic};

#[test]
fn the_last_five_batches_of_a_producer_are_remembered() {
    let (mut broker, mut client) = broker_with_topic("window", 1, &[]);
    let id = client.init_producer_id().unwrap();
    let send = |client: &mut Client, sequence: i32| {
        client.produce(TOPIC, 0, -1, &idempotent(id, 0, sequence, &[b"a", b"b"]))
    };
    for rank in 0..7 {
        assert_eq!(send(&mut client, rank * 2).unwrap(), i64::from(rank) * 2);
    }
    let check_window = |client: &mut Client| {
        for rank in 2..7 {
            assert_eq!(send(client, rank * 2).unwrap(), i64::from(rank) * 2, "the original offset");
        }
        assert_eq!(refusal(send(client, 2)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "out of the window");
        assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), 14, "nothing was written twice");
    };
    check_window(&mut client);
    broker.kill();
    broker.start_again();
    check_window(&mut broker.connect());
    broker.stop();
    broker.start_again();
    check_window(&mut broker.connect());
}

#[test]
fn gaps_and_stale_epochs_of_a_producer_are_refused() {
    let (_broker, mut client) = broker_with_topic("sequences", 1, &[]);
    let id = client.init_producer_id().unwrap();
    let mut send = |epoch: i16, sequence: i32| -> Result<i64, Failure> {
        client.produce(TOPIC, 0, 1, &idempotent(id, epoch, sequence, &[b"a", b"b"]))
    };
    assert_eq!(send(0, 0).unwrap(), 0);
    assert_eq!(refusal(send(0, 3)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "a gap");
    assert_eq!(send(0, 2).unwrap(), 2);
    assert_eq!(refusal(send(1, 4)), ErrorCode::OUT_OF_ORDER_SEQUENCE_NUMBER, "a new epoch begins at 0");
    assert_eq!(send(1, 0).unwrap(), 4);
    assert_eq!(refusal(send(0, 4)), ErrorCode::INVALID_PRODUCER_EPOCH, "an old epoch");
    assert_eq!(send(1, 2).unwrap(), 6);
}

#[test]
fn a_topic_with_log_append_time_stamps_records_itself() {
    let (_broker, mut client) =
        broker_with_topic("append-time", 1, &[("message.timestamp.type", "LogAppendTime")]);
    let before = wall_ms();
    let old = batch_at(BatchOptions::default(), 1_000, &[b"a", b"b"]);
    let response = client.call(&produce_request(TOPIC, 0, 1, &old), BY_NAME);
    let stamped = response.responses[0].partition_responses[0].log_append_time_ms;
    assert!((before..=wall_ms()).contains(&stamped), "{stamped}");
    let records = client.fetch(TOPIC, 0, 0).unwrap();
    assert_eq!(records.iter().map(|record| record.timestamp).collect::<Vec<_>>(), [stamped, stamped]);
}

#[test]
fn records_are_stored_in_the_compression_that_the_topic_wants() {
    let (_broker, mut client) = broker_with_topic("compression", 1, &[]);
    let values: [&[u8]; 3] = [&[b'a'; 500], &[b'b'; 500], b"c"];
    for (name, expected) in [
        ("uncompressed", Compression::None),
        ("gzip", Compression::Gzip),
        ("snappy", Compression::Snappy),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd),
        ("producer", Compression::Lz4),
    ] {
        client.create_topic(name, 1, &[("compression.type", name)]).unwrap();
        let options = BatchOptions { compression: Compression::Lz4, ..BatchOptions::default() };
        client.produce(name, 0, 1, &batch_with(options, &values)).unwrap();
        let response = client.call(&fetch_request(vec![fetch_topic(name, 0, 0)]), BY_NAME);
        let (stored, _) = Batch::split_first(bytes_of(&response.responses[0].partitions[0].records)).unwrap();
        assert_eq!(stored.attributes().compression(), Ok(expected), "{name}");
        let read = client.fetch(name, 0, 0).unwrap();
        assert!(read.iter().map(|record| record.value.as_slice()).eq(values), "{name}");
    }
}

#[test]
fn what_is_no_batch_is_refused_and_nothing_is_written() {
    let (_broker, mut client) = broker_with_topic("no-batch", 1, &[]);
    let good = batch(&[b"a value"]);
    let mut corrupt = good.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    let mut old_magic = good.clone();
    old_magic[16] = 1;
    let twice = [good.clone(), good.clone()].concat();
    let cases: [(&str, &[u8], ErrorCode); 5] = [
        ("damaged", &corrupt, ErrorCode::CORRUPT_MESSAGE),
        ("format v1", &old_magic, ErrorCode::INVALID_RECORD),
        ("two batches", &twice, ErrorCode::INVALID_RECORD),
        ("nothing", &[], ErrorCode::INVALID_RECORD),
        ("no whole batch", &good[..good.len() - 1], ErrorCode::INVALID_RECORD),
    ];
    for (what, bytes, expected) in cases {
        assert_eq!(refusal(client.produce(TOPIC, 0, 1, bytes)), expected, "{what}");
    }
    assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), 0);
}
