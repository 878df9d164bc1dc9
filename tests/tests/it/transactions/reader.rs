//! A reader of committed records, written by the protocol alone: it leaves out what the broker says is aborted.

use std::collections::{BTreeSet, VecDeque};

use mainstem_records::{Batch, EndTransactionMarker, Scratch};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{bytes_of, fetch_request, fetch_topic};
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};

const READ_COMMITTED: i8 = 1;

/// The end for readers of committed records, and for all others.
pub(crate) fn ends(client: &mut Client, topic: &str, partition: i32) -> (i64, i64) {
    let mut end = |isolation_level| {
        let asked = ListOffsetsPartition {
            partition_index: partition,
            current_leader_epoch: -1,
            timestamp: -1,
            ..Default::default()
        };
        let topics =
            vec![ListOffsetsTopic { name: topic.into(), partitions: vec![asked], ..Default::default() }];
        let request = ListOffsetsRequest { replica_id: -1, isolation_level, topics, ..Default::default() };
        let response = client.call(&request, 7);
        let found = &response.topics[0].partitions[0];
        assert_eq!(found.error_code, 0);
        found.offset
    };
    (end(READ_COMMITTED), end(0))
}

/// All committed values of a partition, in the order of the log.
pub(crate) fn read_committed(client: &mut Client, topic: &str, partition: i32) -> Vec<String> {
    let (mut next, mut values) = (0, Vec::new());
    read_on(client, topic, partition, &mut next, &mut values);
    values
}

/// Appends the committed values from an offset on, up to the last stable offset, which becomes the next offset.
pub(crate) fn read_on(
    client: &mut Client,
    topic: &str,
    partition: i32,
    next: &mut i64,
    values: &mut Vec<String>,
) {
    let (stable, _) = ends(client, topic, partition);
    while *next < stable {
        let request = FetchRequest {
            isolation_level: READ_COMMITTED,
            ..fetch_request(vec![fetch_topic(topic, partition, *next)])
        };
        let response = client.call(&request, 12);
        let data = &response.responses[0].partitions[0];
        assert_eq!(data.error_code, 0);
        let aborted = data.aborted_transactions.iter().flatten();
        let mut aborted: Vec<_> = aborted.map(|one| (one.first_offset, one.producer_id)).collect();
        aborted.sort_unstable();
        let from = *next;
        *next = committed_in(bytes_of(&data.records), from, aborted.into(), values);
        assert!(*next > from, "a reader does not get beyond {from} of {stable}");
    }
}

/// Appends the committed values of a fetch. Returns the offset behind it.
fn committed_in(
    mut bytes: &[u8],
    from: i64,
    mut aborted: VecDeque<(i64, i64)>,
    values: &mut Vec<String>,
) -> i64 {
    let (mut next, mut aborting) = (from, BTreeSet::new());
    while let Ok((batch, rest)) = Batch::split_first(bytes) {
        bytes = rest;
        next = batch.next_offset();
        while aborted.front().is_some_and(|(first, _)| *first < next) {
            aborting.insert(aborted.pop_front().expect("it is there").1);
        }
        if batch.attributes().is_control() {
            if EndTransactionMarker::of_batch(&batch).is_some_and(|marker| !marker.committed) {
                aborting.remove(&batch.producer_id());
            }
            continue;
        }
        if batch.attributes().is_transactional() && aborting.contains(&batch.producer_id()) {
            continue;
        }
        let mut buffer = Vec::new();
        for record in batch.records(&mut buffer, 1 << 20, &mut Scratch::new()).expect("records") {
            let record = record.expect("a record");
            if record.offset >= from {
                values.push(String::from_utf8_lossy(record.value.expect("a value")).into_owned());
            }
        }
    }
    next
}
