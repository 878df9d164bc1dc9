//! Log directories that fail for real: writes that the system refuses, and a directory that cannot be read.

use std::fs;
use std::path::PathBuf;

use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{Failure, batch, refusal};
use mainstem_tests::wait::eventually;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};

use super::{TOPIC, broker_with_topic, logged, partitions_in, place, produce};

const STORAGE: ErrorCode = ErrorCode::KAFKA_STORAGE_ERROR;

/// The leader and the offline replicas of a partition of [`TOPIC`], by Metadata.
fn leader_and_offline(client: &mut Client, partition: usize) -> (i32, Vec<i32>) {
    let topics = vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }];
    let response = client.call(&MetadataRequest { topics: Some(topics), ..Default::default() }, 12);
    let found = &response.topics[0].partitions[partition];
    (found.leader_id, found.offline_replicas.clone())
}

/// Writes to a partition until the broker refuses, which it does for good. Returns the number of records written.
fn write_until_refused(client: &mut Client, partition: i32) -> usize {
    let mut written = 0;
    let error = loop {
        match client.produce(TOPIC, partition, -1, &batch(&[&[b'x'; 1000]])) {
            Ok(_) => written += 1,
            Err(Failure::Refused(error)) => break error,
            Err(Failure::Connection(error)) => panic!("{error}"),
        }
        assert!(written < 1000, "the limit is not in force");
    };
    assert_eq!(error, STORAGE);
    written
}

#[test]
fn a_directory_that_cannot_be_written_to_is_offline_and_the_other_serves() {
    let (mut broker, mut client) = broker_with_topic("dirs-write", 4);
    let dirs = client.log_dirs().unwrap();
    // The metadata log is in the first one, and short.
    let (kept, lost) = (partitions_in(&dirs[0]), partitions_in(&dirs[1]));
    (0..4).for_each(|partition| produce(&mut client, partition, 100));
    for _ in 0..300 {
        produce(&mut client, lost[0], 1000);
    }
    let (node, none) = (leader_and_offline(&mut client, 0).0, vec![]);
    broker.limit_files(310_000);
    let written = 300 + write_until_refused(&mut client, lost[0]);

    for partition in &lost {
        eventually("it has no leader", || {
            (leader_and_offline(&mut client, *partition as usize).0 == -1).then_some(())
        });
        assert_eq!(leader_and_offline(&mut client, *partition as usize), (-1, vec![node]));
        assert_eq!(refusal(client.produce(TOPIC, *partition, 1, &batch(&[b"x"]))), STORAGE);
        assert_eq!(refusal(client.fetch(TOPIC, *partition, 0)), STORAGE);
    }
    for partition in &kept {
        assert_eq!(leader_and_offline(&mut client, *partition as usize), (node, none.clone()));
        produce(&mut client, *partition, 100);
        assert_eq!(client.read_all(TOPIC, *partition, 0).unwrap().len(), 2);
    }
    let dirs = client.log_dirs().unwrap();
    assert_eq!([dirs[0].error, dirs[1].error], [ErrorCode::NONE, STORAGE]);
    assert_eq!(dirs[1].replicas, []);
    assert_eq!(refusal(client.move_partition(TOPIC, kept[0], &broker.log_dir(1))), STORAGE);
    let path = broker.log_dir(1).display().to_string();
    assert!(logged(&broker, &[&path, "goes offline", "started again"]), "{}", broker.log());
    assert!(broker.http("/health").contains(&path), "{}", broker.http("/health"));
    assert!(broker.http("/metrics").contains("kafka_log_logmanager_offlinelogdirectorycount 1"));
    client.create_topic("other", 3, &[]).unwrap();
    assert_eq!(client.log_dirs().unwrap()[0].replicas.len(), 5, "new partitions go where it works");

    // After a repair all records are there.
    broker.stop();
    assert!(!broker.log_dir(1).join(".kafka_cleanshutdown").exists());
    assert!(broker.log_dir(0).join(".kafka_cleanshutdown").exists(), "the other one was left in order");
    broker.start_again();
    client = broker.connect();
    assert_eq!(client.read_all(TOPIC, lost[0], 0).unwrap().len(), written + 1);
    for partition in 0..4 {
        produce(&mut client, partition, 100);
    }
    assert!(client.log_dirs().unwrap().iter().all(|dir| dir.error == ErrorCode::NONE));
    broker.assert_healthy();
}

#[test]
fn a_directory_that_cannot_be_opened_is_offline_until_it_can() {
    let (mut broker, mut client) = broker_with_topic("dirs-open", 4);
    (0..4).for_each(|partition| produce(&mut client, partition, 100));
    let lost = partitions_in(&client.log_dirs().unwrap()[1]);
    broker.stop();
    let (dir, away) = (broker.log_dir(1), broker.log_dir(9));
    fs::rename(&dir, &away).unwrap();
    fs::write(&dir, "a file where a directory should be").unwrap();
    broker.start_again();
    client = broker.connect();
    for partition in 0..4 {
        let is_lost = lost.contains(&partition);
        let result = client.produce(TOPIC, partition, -1, &batch(&[b"x"]));
        assert_eq!(result.is_err(), is_lost, "partition {partition}: {result:?}");
        assert_eq!(leader_and_offline(&mut client, partition as usize).0 == -1, is_lost);
    }
    let dirs = client.log_dirs().unwrap();
    assert_eq!((dirs.len(), dirs[1].error, &dirs[1].path), (2, STORAGE, &dir));
    assert!(logged(&broker, &[&dir.display().to_string(), "cannot be used", "started again"]));
    client.create_topic("other", 2, &[]).unwrap();
    assert_eq!(client.log_dirs().unwrap()[0].replicas.len(), 4);
    broker.stop();
    fs::remove_file(&dir).unwrap();
    fs::rename(&away, &dir).unwrap();
    broker.start_again();
    client = broker.connect();
    assert_eq!((0..4).map(|partition| place(&client.log_dirs().unwrap(), partition)).max(), Some(1));
    for partition in 0..4 {
        let records = client.read_all(TOPIC, partition, 0).unwrap().len();
        assert_eq!(records, if lost.contains(&partition) { 1 } else { 2 });
    }
    broker.assert_healthy();
}

/// Starts a broker that has to refuse. Returns its message.
fn refused(broker: &Broker) -> String {
    let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert!(!status.success());
    said
}

#[test]
fn no_broker_starts_without_the_metadata_or_on_a_directory_twice() {
    let (mut broker, _) = broker_with_topic("dirs-refused", 2);
    broker.stop();
    let [first, second] = [0, 1].map(|rank| broker.log_dir(rank));
    let replace = |dir: &PathBuf| {
        fs::rename(dir, broker.log_dir(9)).unwrap();
        fs::write(dir, "a file").unwrap();
    };
    let restore = |dir: &PathBuf| {
        fs::remove_file(dir).unwrap();
        fs::rename(broker.log_dir(9), dir).unwrap();
    };
    replace(&first);
    let said = refused(&broker);
    assert!(said.contains(&first.display().to_string()) && said.contains("log.dirs"), "{said}");
    restore(&first);
    // A copy of a directory counts as the same one.
    let properties = fs::read(second.join("meta.properties")).unwrap();
    fs::copy(first.join("meta.properties"), second.join("meta.properties")).unwrap();
    let said = refused(&broker);
    assert!(said.contains("have the same directory.id"), "{said}");
    fs::write(second.join("meta.properties"), properties).unwrap();
    broker.start_again();
    broker.assert_healthy();
}

#[test]
fn a_broker_whose_metadata_cannot_be_written_stops_and_says_why() {
    let mut broker = Setup::new("dirs-fatal").log_dirs(2).start();
    let mut client = broker.connect();
    client.create_topic(TOPIC, 600, &[]).unwrap();
    let metadata = broker.log_dir(0).join("__cluster_metadata-0/00000000000000000000.log");
    broker.limit_files(fs::metadata(&metadata).unwrap().len());
    // The broker may be gone before it has answered.
    let refused = client.create_topic("other", 1, &[]);
    assert!(matches!(refused, Err(Failure::Refused(STORAGE) | Failure::Connection(_))), "{refused:?}");
    let status = broker.wait_for_end();
    assert!(!status.success(), "{status}");
    let dir = broker.log_dir(0).display().to_string();
    assert!(logged(&broker, &["had to stop", &dir, "metadata log", "start again"]), "{}", broker.log());
    broker.start_again();
    let mut client = broker.connect();
    client.create_topic("other", 1, &[]).unwrap();
    broker.assert_healthy();
}
