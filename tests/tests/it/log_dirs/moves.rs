//! Partitions that move between log directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstem_tests::broker::Broker;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{
    BY_NAME, ReadRecord, batch, bytes_of, fetch_request, fetch_topic, records_in, refusal,
};
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::fetch_request::FetchRequest;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

use super::{TOPIC, broker_with_topic, logged, place, produce};

const RATE: &str = "replica.alter.log.dirs.io.max.bytes.per.second";
/// The rate of moves that are observed on their way: they take far longer than a busy machine delays a look.
const SLOW: &str = "250000";

/// Moves under a writer and a reader.
const MOVES: usize = 12;

/// Moves a partition, and waits until it is there.
pub(crate) fn move_to(client: &mut Client, broker: &Broker, partition: i32, rank: usize) {
    client.move_partition(TOPIC, partition, &broker.log_dir(rank)).unwrap();
    wait_for_move(client, partition, rank);
}

fn wait_for_move(client: &mut Client, partition: i32, rank: usize) {
    eventually("the end of a move", || {
        let dirs = client.log_dirs().unwrap();
        let copies = dirs.iter().filter(|dir| dir.future(TOPIC, partition).is_some()).count();
        (copies == 0 && place(&dirs, partition) == rank).then_some(())
    });
}

/// Directories of a partition, under any name.
fn names(dir: &Path, partition: i32) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    entries.filter(|name| name.starts_with(&format!("{TOPIC}-{partition}"))).collect()
}

/// The broker's configuration for all nodes.
fn alter_rate(client: &mut Client, rate: Option<&str>) {
    const BROKER: i8 = 4;
    let config = AlterableConfig {
        name: RATE.into(),
        config_operation: if rate.is_some() { 0 } else { 1 },
        value: rate.map(Into::into),
        ..Default::default()
    };
    let resource =
        AlterConfigsResource { resource_type: BROKER, configs: vec![config], ..Default::default() };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(client.call(&request, 1).responses[0].error_code, 0);
}

#[test]
fn a_partition_moves_with_all_that_is_in_it() {
    let (mut broker, mut client) = broker_with_topic("moves", 2);
    for _ in 0..50 {
        produce(&mut client, 0, 1000);
    }
    client.delete_records(TOPIC, 0, 7).unwrap();
    let before = client.read_all(TOPIC, 0, 7).unwrap();
    let from = place(&client.log_dirs().unwrap(), 0);
    move_to(&mut client, &broker, 0, 1 - from);
    eventually("the old files are removed", || names(&broker.log_dir(from), 0).is_empty().then_some(()));
    assert_eq!(client.read_all(TOPIC, 0, 7).unwrap(), before);
    assert_eq!(refusal(client.fetch(TOPIC, 0, 6)), ErrorCode::OFFSET_OUT_OF_RANGE);
    produce(&mut client, 0, 10);
    broker.stop();
    broker.start_again();
    client = broker.connect();
    assert_eq!(place(&client.log_dirs().unwrap(), 0), 1 - from);
    let after = client.read_all(TOPIC, 0, 7).unwrap();
    assert_eq!((&after[..43], after.len()), (&before[..], 44));
    assert_eq!(refusal(client.fetch(TOPIC, 0, 6)), ErrorCode::OFFSET_OUT_OF_RANGE);
    broker.assert_healthy();
}

#[test]
fn nothing_stands_still_while_a_partition_moves() {
    let (mut broker, mut client) = broker_with_topic("moves-load", 1);
    let over = AtomicBool::new(false);
    let (written, read) = std::thread::scope(|scope| {
        let writers: Vec<_> = [-1, 1]
            .map(|acks| {
                scope.spawn({
                    let (broker, over) = (&broker, &over);
                    move || write(&mut broker.connect(), acks, over)
                })
            })
            .into();
        let reader = scope.spawn(|| read(&mut broker.connect(), &over));
        let from = place(&client.log_dirs().unwrap(), 0);
        for round in 1..=MOVES {
            move_to(&mut client, &broker, 0, (from + round) % 2);
        }
        over.store(true, Ordering::Release);
        let written: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
        (written, reader.join().unwrap())
    });
    assert!(written > 100, "{written} records were written");
    let all = client.read_all(TOPIC, 0, 0).unwrap();
    assert_eq!(all.len(), written);
    assert_eq!(all[..read.len()], read[..], "what was read on the way");
    broker.assert_healthy();
}

/// Writes until `over`. Returns the number of records; each is acknowledged at the first attempt. So a move on a slow
/// disk gets to the end of what is written meanwhile.
fn write(client: &mut Client, acks: i16, over: &AtomicBool) -> usize {
    let (mut count, mut last) = (0, -1);
    while !over.load(Ordering::Acquire) {
        if count % 10 == 9 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let offset = client.produce(TOPIC, 0, acks, &batch(&[&[b'x'; 500]])).unwrap();
        assert!(offset > last, "{offset} after {last}");
        (count, last) = (count + 1, offset);
    }
    count
}

/// Reads until `over`, by long polls.
fn read(client: &mut Client, over: &AtomicBool) -> Vec<ReadRecord> {
    let mut read: Vec<ReadRecord> = Vec::new();
    while !over.load(Ordering::Acquire) {
        let next = read.last().map_or(0, |record| record.offset + 1);
        let wanted = vec![fetch_topic(TOPIC, 0, next)];
        let request = FetchRequest { max_wait_ms: 200, ..fetch_request(wanted) };
        let response = client.call(&request, BY_NAME);
        let data = &response.responses[0].partitions[0];
        assert_eq!(data.error_code, 0);
        for record in records_in(bytes_of(&data.records)).into_iter().filter(|record| record.offset >= next) {
            assert_eq!(record.offset, read.len() as i64, "no record is missed");
            read.push(record);
        }
    }
    read
}

#[test]
fn a_move_can_be_watched_taken_back_and_survives_a_kill() {
    let (mut broker, mut client) = broker_with_topic("moves-slow", 1);
    for _ in 0..40 {
        produce(&mut client, 0, 100_000);
    }
    alter_rate(&mut client, Some(SLOW));
    let from = place(&client.log_dirs().unwrap(), 0);
    let begin = |client: &mut Client, to: PathBuf| {
        client.move_partition(TOPIC, 0, &to).unwrap();
        eventually("a copy that has begun", || {
            let dirs = client.log_dirs().unwrap();
            assert_eq!(place(&dirs, 0), from, "it is not there yet");
            let copy = dirs[1 - from].future(TOPIC, 0)?;
            (copy.size > 0 && copy.lag < 40).then_some((copy.size, copy.lag))
        })
    };
    let (size, lag) = begin(&mut client, broker.log_dir(1 - from));
    assert!(size < 4_000_000 && lag > 0, "{size} bytes, {lag} behind");
    // Back to the directory where it is.
    client.move_partition(TOPIC, 0, &broker.log_dir(from)).unwrap();
    eventually("the copy is gone", || names(&broker.log_dir(1 - from), 0).is_empty().then_some(()));
    assert_eq!(place(&client.log_dirs().unwrap(), 0), from);
    // A kill on the way: the move begins again.
    begin(&mut client, broker.log_dir(1 - from));
    broker.kill();
    broker.start_again();
    client = broker.connect();
    eventually("it is taken up again", || client.log_dirs().unwrap()[1 - from].future(TOPIC, 0).cloned());
    assert_eq!(client.read_all(TOPIC, 0, 0).unwrap().len(), 40);
    alter_rate(&mut client, None);
    wait_for_move(&mut client, 0, 1 - from);
    assert!(logged(&broker, &["topic-0", "moved from"]), "{}", broker.log());
    assert_eq!(client.read_all(TOPIC, 0, 0).unwrap().len(), 40);
    broker.assert_healthy();
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let (broker, mut client) = broker_with_topic("moves-refused", 1);
    let dir = broker.log_dir(1);
    let mut check = |topic: &str, partition, to: &Path, expected| {
        assert_eq!(
            refusal(client.move_partition(topic, partition, to)),
            expected,
            "{topic}-{partition} to {to:?}"
        );
    };
    check(TOPIC, 0, Path::new("/no/such/directory"), ErrorCode::LOG_DIR_NOT_FOUND);
    check(TOPIC, 1, &dir, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    check(TOPIC, -1, &dir, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    check("unknown", 0, &dir, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    check("__cluster_metadata", 0, &dir, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let mut client = broker.connect();
    client.move_partition(TOPIC, 0, &dir.join("")).unwrap();
}

#[test]
fn a_topic_can_be_deleted_while_it_moves() {
    let (mut broker, mut client) = broker_with_topic("moves-deleted", 1);
    for _ in 0..20 {
        produce(&mut client, 0, 100_000);
    }
    alter_rate(&mut client, Some(SLOW));
    let from = place(&client.log_dirs().unwrap(), 0);
    client.move_partition(TOPIC, 0, &broker.log_dir(1 - from)).unwrap();
    client.delete_topic(TOPIC).unwrap();
    client.create_topic(TOPIC, 1, &[]).unwrap();
    alter_rate(&mut client, None);
    assert_eq!(client.produce(TOPIC, 0, -1, &batch(&[b"new"])).unwrap(), 0);
    eventually("only the new one is left", || {
        let all: Vec<_> = (0..2).flat_map(|rank| names(&broker.log_dir(rank), 0)).collect();
        (all == [format!("{TOPIC}-0")]).then_some(())
    });
    broker.assert_healthy();
}
