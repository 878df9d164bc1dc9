//! Snapshots of the metadata log against the real binary: their contents survive any stop without the log before
//! them, and Kafka's own DumpLogSegments reads them.
//!
//! The last test needs a JVM and Kafka's jars: in the folder that `MAINSTEM_KAFKA_JARS` names, or in
//! `target/interop/kafka-4.3.0/lib`. Without them it prints that it is skipped; under `CI=true` it fails.

use std::fs;
use std::path::PathBuf;

use mainstem_testkit::java::KafkaJars;
use mainstem_tests::broker::{Broker, Setup};
use mainstem_tests::client::Client;
use mainstem_tests::cluster::replica::batches;
use mainstem_tests::kafka::{batch, idempotent};
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};

/// The setting with which a snapshot is due at each check.
const AT_ONCE: (&str, i64) = ("metadata.log.max.snapshot.interval.ms", 1);

/// The files of the metadata log with this suffix, by name.
fn files(broker: &Broker, ending: &str) -> Vec<PathBuf> {
    let dir = broker.data_dir().join("__cluster_metadata-0");
    let mut found: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.retain(|path| path.to_string_lossy().ends_with(ending));
    found.sort();
    found
}

/// The end offset of the only snapshot.
fn snapshot_end(broker: &Broker) -> Option<i64> {
    match files(broker, ".checkpoint").as_slice() {
        [one] => one.file_name()?.to_str()?.split('-').next()?.parse().ok(),
        _ => None,
    }
}

/// Waits until there is one snapshot that ends above this offset.
fn snapshot_above(broker: &Broker, offset: i64) -> i64 {
    eventually("a snapshot", || snapshot_end(broker).filter(|end| *end > offset))
}

/// Waits until there is one snapshot that ends at the current log end.
fn snapshot_of_all(broker: &Broker) -> i64 {
    let end = eventually("the end of the metadata log", || {
        let path = files(broker, ".log").pop()?;
        let bytes = fs::read(&path).ok()?;
        let base: i64 = path.file_stem()?.to_str()?.parse().ok()?;
        Some(batches(&bytes, &path).last().map_or(base, |batch| batch.last_offset + 1))
    });
    snapshot_above(broker, end - 1)
}

fn set_max_connections(client: &mut Client, value: &'static str) {
    let config =
        AlterableConfig { name: "max.connections".into(), value: Some(value.into()), ..Default::default() };
    let resource = AlterConfigsResource {
        resource_type: 4,
        resource_name: "1".into(),
        configs: vec![config],
        ..Default::default()
    };
    let request = IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(client.call(&request, 1).responses[0].error_code, 0);
}

#[test]
fn what_a_snapshot_holds_survives_without_the_log_before_it() {
    let mut broker = Setup::new("snapshots").set(AT_ONCE.0, AT_ONCE.1).start();
    let mut client = broker.connect();
    let id = client.create_topic("kept", 3, &[("retention.ms", "123456789")]).unwrap();
    client.create_topic("gone", 1, &[]).unwrap();
    client.delete_topic("gone").unwrap();
    let producer_id = client.init_producer_id().unwrap();
    client.produce("kept", 2, -1, &idempotent(producer_id, 0, 0, &[b"a"])).unwrap();
    set_max_connections(&mut client, "77");
    let mut end = snapshot_above(&broker, 10);
    eventually("the log before the snapshot is gone", || {
        files(&broker, ".log").iter().all(|path| !path.ends_with("00000000000000000000.log")).then_some(())
    });
    for clean in [false, true, false] {
        if clean {
            broker.stop()
        } else {
            broker.kill()
        }
        broker.start_again();
        client = broker.connect();
        assert_eq!(client.topics().unwrap(), ["kept"]);
        assert_eq!(client.create_topic("gone", 1, &[]).map(|_| ()).ok(), Some(()), "its name is free");
        client.delete_topic("gone").unwrap();
        assert_eq!(client.fetch("kept", 2, 0).unwrap().len(), 1);
        client.produce("kept", 0, -1, &batch(&[b"b"])).unwrap();
        assert!(client.init_producer_id().unwrap() > producer_id, "no id is handed out twice");
        end = snapshot_above(&broker, end);
    }
    let request =
        mainstem_wire::messages::metadata_request::MetadataRequest { topics: None, ..Default::default() };
    assert_eq!(client.call(&request, 12).topics[0].topic_id, id);
}

#[test]
fn a_snapshot_without_its_log_or_a_damaged_one_is_refused() {
    let mut broker = Setup::new("snapshot-damage").set(AT_ONCE.0, AT_ONCE.1).start();
    broker.connect().create_topic("topic", 1, &[]).unwrap();
    // The stop writes no other snapshot, which would be beside this one.
    assert!(snapshot_of_all(&broker) > 3);
    broker.stop();
    let path = files(&broker, ".checkpoint").pop().unwrap();
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert!(!status.success() && said.contains("the metadata snapshot") && said.contains("backup"), "{said}");
    fs::remove_file(&path).unwrap();
    let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
    assert!(!status.success() && said.contains("what is between is missing"), "{said}");
    fs::write(&path, &whole).unwrap();
    broker.start_again();
    assert_eq!(broker.connect().topics().unwrap(), ["topic"]);
}

#[test]
fn a_metadata_log_that_is_empty_or_damaged_is_refused() {
    let mut broker = Setup::new("metadata-damage").start();
    broker.connect().create_topic("topic", 1, &[]).unwrap();
    broker.stop();
    let path = files(&broker, ".log").pop().unwrap();
    let whole = fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    // In the last record's value.
    let at = flipped.len() - 4;
    flipped[at] ^= 1;
    for (damaged, why) in [(&flipped[..], "is corrupt"), (&[], "is empty")] {
        fs::write(&path, damaged).unwrap();
        let (status, said) = broker.start_another("127.0.0.1:0", &broker.data_dir());
        assert!(!status.success() && said.contains(why) && said.contains("backup"), "{said}");
    }
    fs::write(&path, &whole).unwrap();
    broker.start_again();
    assert_eq!(broker.connect().topics().unwrap(), ["topic"]);
}

#[test]
fn kafka_reads_a_snapshot() {
    let Some(jars) = KafkaJars::or_skip(KafkaJars::NEWEST, "Kafka's DumpLogSegments") else { return };
    let mut broker = Setup::new("snapshot-dump").set(AT_ONCE.0, AT_ONCE.1).start();
    let mut client = broker.connect();
    client.create_topic("dumped", 2, &[("retention.ms", "5")]).unwrap();
    set_max_connections(&mut client, "77");
    snapshot_of_all(&broker);
    broker.stop();
    let file = files(&broker, ".checkpoint").pop().unwrap();
    let output = jars
        .java(512)
        .args(["org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files"])
        .arg(&file)
        .output()
        .expect("java runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    for wanted in [
        "SnapshotHeader",
        "\"type\":\"FEATURE_LEVEL_RECORD\"",
        "\"type\":\"REGISTER_BROKER_RECORD\"",
        "\"type\":\"TOPIC_RECORD\"",
        "\"name\":\"dumped\"",
        "\"type\":\"PARTITION_RECORD\"",
        "\"name\":\"max.connections\",\"value\":\"77\"",
        "SnapshotFooter",
    ] {
        assert!(text.contains(wanted), "no {wanted} in:\n{text}");
    }
    assert!(!text.contains("isvalid: false") && !text.contains("Exception"), "{text}");
}
