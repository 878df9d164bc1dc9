//! The records of a fetch, and their number.

use mainstem_records::Batch;
use mainstem_tests::kafka::{
    BY_NAME, EARLIEST, LATEST, batch, batch_at, bytes_of, fetch_request, fetch_topic, records_in, refusal,
    wall_ms,
};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::fetch_request::FetchRequest;

use crate::semantics::{TOPIC, broker_with_topic};

#[test]
fn a_fetch_beyond_the_log_end_is_out_of_range() {
    let (_broker, mut client) = broker_with_topic("beyond-end", 1, &[]);
    client.produce(TOPIC, 0, 1, &batch(&[b"a", b"b", b"c"])).unwrap();
    assert_eq!(client.fetch(TOPIC, 0, 3).unwrap(), [], "the end itself is where the next record comes");
    assert_eq!(refusal(client.fetch(TOPIC, 0, 4)), ErrorCode::OFFSET_OUT_OF_RANGE);
    client.delete_records(TOPIC, 0, 2).unwrap();
    assert_eq!(refusal(client.fetch(TOPIC, 0, 1)), ErrorCode::OFFSET_OUT_OF_RANGE);
    // The same for a fetch that would have to wait.
    let request = FetchRequest { max_wait_ms: 60_000, ..fetch_request(vec![fetch_topic(TOPIC, 0, 4)]) };
    let response = client.call(&request, BY_NAME);
    let error = ErrorCode::from(response.responses[0].partitions[0].error_code);
    assert_eq!(error, ErrorCode::OFFSET_OUT_OF_RANGE);
}

#[test]
fn max_bytes_of_the_request_holds_for_all_partitions_together() {
    let (_broker, mut client) = broker_with_topic("max-bytes", 4, &[]);
    let value = vec![b'x'; 10_000];
    for partition in 0..4 {
        for _ in 0..10 {
            client.produce(TOPIC, partition, 1, &batch(&[&value])).unwrap();
        }
    }
    let topics = (0..4).map(|partition| fetch_topic(TOPIC, partition, 0)).collect();
    let response = client.call(&FetchRequest { max_bytes: 150_000, ..fetch_request(topics) }, BY_NAME);
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let sizes: Vec<usize> = partitions.map(|data| bytes_of(&data.records).len()).collect();
    assert_eq!(sizes.len(), 4);
    assert!(sizes.iter().sum::<usize>() <= 150_000, "{sizes:?}");
    assert!(sizes[0] > 100_000 && sizes[1] > 0, "what fits is given: {sizes:?}");
}

#[test]
fn a_first_batch_larger_than_max_bytes_is_given_and_no_other() {
    let (_broker, mut client) = broker_with_topic("first-batch", 3, &[]);
    let large = batch(&[&vec![b'x'; 100_000]]);
    for partition in 1..3 {
        client.produce(TOPIC, partition, 1, &large).unwrap();
        client.produce(TOPIC, partition, 1, &large).unwrap();
    }
    let mut topics: Vec<_> = (0..3).map(|partition| fetch_topic(TOPIC, partition, 0)).collect();
    topics.iter_mut().for_each(|topic| topic.partitions[0].partition_max_bytes = 1_000);
    let response = client.call(&FetchRequest { max_bytes: 2_000, ..fetch_request(topics) }, BY_NAME);
    let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
    let counts: Vec<usize> = partitions.map(|data| records_in(bytes_of(&data.records)).len()).collect();
    assert_eq!(counts, [0, 1, 0], "the first batch that there is, whole, and nothing beyond max_bytes");
}

#[test]
fn a_batch_is_given_whole_from_any_of_its_offsets() {
    let (_broker, mut client) = broker_with_topic("within-batch", 1, &[]);
    for _ in 0..3 {
        client.produce(TOPIC, 0, 1, &batch(&[b"a", b"b", b"c", b"d"])).unwrap();
    }
    for (offset, first) in [(0, 0), (3, 0), (4, 4), (6, 4), (11, 8)] {
        let records = client.fetch(TOPIC, 0, offset).unwrap();
        assert_eq!(records[0].offset, first, "from {offset}");
        assert_eq!(records.last().unwrap().offset, 11);
    }
}

#[test]
fn partition_max_bytes_cuts_between_batches() {
    let (_broker, mut client) = broker_with_topic("partition-max", 1, &[]);
    let one = batch(&[&[b'x'; 500]]);
    for _ in 0..10 {
        client.produce(TOPIC, 0, 1, &one).unwrap();
    }
    let mut topic = fetch_topic(TOPIC, 0, 2);
    topic.partitions[0].partition_max_bytes = i32::try_from(one.len() * 3 + 10).unwrap();
    let response = client.call(&fetch_request(vec![topic]), BY_NAME);
    let bytes = bytes_of(&response.responses[0].partitions[0].records);
    let (first, _) = Batch::split_first(bytes).unwrap();
    assert_eq!((first.base_offset(), records_in(bytes).len()), (2, 3));
}

#[test]
fn list_offsets_finds_ends_and_time_stamps() {
    let (_broker, mut client) = broker_with_topic("list-offsets", 1, &[]);
    let now = wall_ms();
    for (ago, value) in [(5_000, b"a"), (1_000, b"b"), (3_000, b"c"), (2_000, b"d")] {
        client.produce(TOPIC, 0, 1, &batch_at(Default::default(), now - ago, &[value])).unwrap();
    }
    client.delete_records(TOPIC, 0, 1).unwrap();
    const MAX_TIMESTAMP: i64 = -3;
    const EARLIEST_LOCAL: i64 = -4;
    const LATEST_TIERED: i64 = -5;
    let expected = [
        (LATEST, 4),
        (EARLIEST, 1),
        (MAX_TIMESTAMP, 1),
        (EARLIEST_LOCAL, 1),
        (LATEST_TIERED, -1),
        (0, 1),
        (now - 1_000, 1),
        (now - 999, -1),
    ];
    for (timestamp, offset) in expected {
        assert_eq!(client.offset_at(TOPIC, 0, timestamp).unwrap(), offset, "{}", timestamp - now);
    }
    assert_eq!(refusal(client.offset_at(TOPIC, 0, -7)), ErrorCode::UNSUPPORTED_VERSION);
    assert_eq!(refusal(client.offset_at(TOPIC, 1, LATEST)), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
}
