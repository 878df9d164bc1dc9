//! Records: the versions that Kafka writes, and all those that it reads.

use mainstem_records::{ProducerEpoch, ProducerId};
use mainstem_wire::coordinator::encode_with_version;
use mainstem_wire::messages::group_metadata_value::{GroupMetadataValue, MemberMetadata};
use mainstem_wire::messages::offset_commit_value::OffsetCommitValue;
use mainstem_wire::messages::txn_offset_commit_request::TxnOffsetCommitRequest;

use super::cluster::{Cluster, PARTITION};
use super::script::{self, Words};
use super::transcript::{answer, config};
use crate::groups::{Effect, LogEntry, Producer, Request, TransactionEnd};

/// The records of one request.
fn records_of(words: &str) -> Records {
    append_of(words).1
}

/// Keys and values.
type Records = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The append of one request: its producer, and its records.
fn append_of(words: &str) -> (Option<Producer>, Records) {
    let mut cluster = Cluster::new(config());
    let words = Words::parse(words);
    match words.verb {
        "commit" => cluster.send(9, "c", Request::OffsetCommit(script::commit(&words))),
        "txn" => {
            let request = script::transactional_commit(&words);
            let request = TxnOffsetCommitRequest { producer_epoch: 3, ..request };
            cluster.send(5, "c", Request::TxnOffsetCommit(request))
        }
        _ => cluster.send(9, "c", Request::JoinGroup { request: script::join(&words), random: [1; 16] }),
    };
    let mut effects = cluster.effects();
    match effects.pop() {
        Some(Effect::Append { producer, records, .. }) => {
            (producer, records.into_iter().map(|record| (record.key, record.value)).collect())
        }
        other => panic!("no append but {other:?}"),
    }
}

#[test]
fn an_offset_is_written_in_version_4_and_with_an_expiry_in_version_1() {
    let key = b"\0\x01\0\x01g\0\x01t\0\0\0\x03".to_vec();
    let v4 = b"\0\x04\0\0\0\0\0\0\0\x05\xff\xff\xff\xff\x02m\0\0\0\0\0\x0f\x42\x40\0".to_vec();
    assert_eq!(records_of("commit A t-3=5:m"), [(key.clone(), Some(v4))]);
    let v4_with_id =
        [b"\0\x04\0\0\0\0\0\0\0\x05\0\0\0\x02\x01\0\0\0\0\0\x0f\x42\x40\x01\0\x10".as_slice(), &[7; 16]]
            .concat();
    assert_eq!(records_of("commit A topicid=7 epoch=2 t-3=5"), [(key.clone(), Some(v4_with_id))]);
    let v1 = b"\0\x01\0\0\0\0\0\0\0\x05\0\x01m\0\0\0\0\0\x0f\x42\x40\0\0\0\0\0\x0f\x42\x4a".to_vec();
    assert_eq!(records_of("commit A retention=10 t-3=5:m"), [(key, Some(v1))]);
}

#[test]
fn an_offset_of_a_transaction_is_written_as_any_other_one_and_by_its_producer() {
    let (producer, records) = append_of("txn A pid=7 t-3=5:m");
    assert_eq!(producer, Some(Producer { id: ProducerId::new(7), epoch: ProducerEpoch::new(3) }));
    assert_eq!(records, records_of("commit A t-3=5:m"));
    assert_eq!(append_of("commit A t-3=5:m").0, None);
}

#[test]
fn a_group_is_written_in_version_3() {
    let key = b"\0\x02\0\x01g".to_vec();
    let value = b"\0\x03\0\0\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\x0f\x42\x40\0\0\0\0".to_vec();
    assert_eq!(records_of("join A"), [(key, Some(value))]);
}

/// A coordinator that has loaded these records.
fn loaded(records: &[(&[u8], Option<&[u8]>)]) -> (Cluster, crate::groups::Replayed) {
    let entries = records.iter().map(|&(key, value)| LogEntry::Record { key, value, producer: None });
    loaded_entries(&entries.collect::<Vec<_>>())
}

/// The same with transactions.
fn loaded_entries(entries: &[LogEntry<'_>]) -> (Cluster, crate::groups::Replayed) {
    let mut cluster = Cluster::new(config());
    cluster.coordinator.unload(cluster.now, PARTITION);
    let mut loader = cluster.coordinator.begin_load(PARTITION);
    let replayed = loader.load(cluster.now, PARTITION, entries.iter().copied());
    cluster.coordinator.finish_load(cluster.now, PARTITION, loader);
    (cluster, replayed)
}

fn fetch_all(cluster: &mut Cluster) -> String {
    let group = script::fetch(&Words::parse("fetch F"));
    cluster.send(9, "c", Request::OffsetFetch { group, require_stable: false });
    let effects = cluster.effects();
    answer(cluster, super::cluster::replies(&effects).next().expect("an answer").1)
}

#[test]
fn every_version_of_an_offset_is_read() {
    let value =
        OffsetCommitValue { offset: 5, metadata: "m".into(), commit_timestamp: 1, ..Default::default() };
    for version in 0..=4 {
        let bytes = encode_with_version(&value, version).expect("a version that exists");
        let (mut cluster, replayed) = loaded(&[(b"\0\x01\0\x01g\0\x01t\0\0\0\x03", Some(&bytes))]);
        assert_eq!(
            (replayed.applied, fetch_all(&mut cluster).as_str()),
            (1, "offsets [t-3=5:m]"),
            "v{version}"
        );
    }
    // The first type of keys, of Kafka 0.8.
    let legacy = b"\0\0\0\0\0\0\0\0\0\x05\0\x01m\0\0\0\0\0\0\0\x01";
    let (mut cluster, _) = loaded(&[(b"\0\0\0\x01g\0\x01t\0\0\0\x03", Some(legacy))]);
    assert_eq!(fetch_all(&mut cluster), "offsets [t-3=5:m]");
}

#[test]
fn every_version_of_a_group_is_read() {
    let member = MemberMetadata {
        member_id: "m".into(),
        client_id: "c".into(),
        client_host: "/h".into(),
        session_timeout: 10_000,
        rebalance_timeout: 20_000,
        subscription: b"s".to_vec().into(),
        assignment: b"a".to_vec().into(),
        ..Default::default()
    };
    let value = GroupMetadataValue {
        protocol_type: "consumer".into(),
        generation: 7,
        protocol: Some("range".into()),
        leader: Some("m".into()),
        current_state_timestamp: 1,
        members: vec![member],
        ..Default::default()
    };
    for version in 0..=4 {
        let bytes = encode_with_version(&value, version).expect("a version that exists");
        let (mut cluster, _) = loaded(&[(b"\0\x02\0\x01g", Some(&bytes))]);
        let request = script::sync(&Words::parse("sync A id=m gen=7"));
        cluster.send(5, "c", Request::SyncGroup(request));
        let effects = cluster.effects();
        let reply = answer(&cluster, super::cluster::replies(&effects).next().expect("an answer").1);
        assert_eq!(reply, "synced consumer range: \"a\"", "v{version}");
    }
}

#[test]
fn records_that_are_not_ours_or_do_not_decode_are_left_out() {
    let offset = b"\0\x04\0\0\0\0\0\0\0\x05\xff\xff\xff\xff\x01\0\0\0\0\0\0\0\x01\0".as_slice();
    let key = b"\0\x01\0\x01g\0\x01t\0\0\0\x03".as_slice();
    let (mut cluster, replayed) = loaded(&[
        (b"\0\x0b\0\x01g", Some(b"\0\0\0\0\0\x01")), // ShareGroupMetadata
        (b"\x7f\xff", None),
        (b"\0", None),
        (b"", Some(b"")),
        (key, Some(b"\0\x05\0\0")), // a version to come
        (key, Some(b"\0\x04\0\0")),
        (&key[..key.len() - 1], Some(offset)),
        (b"\0\x02\0\x01h", Some(b"")),
        (key, Some(offset)),
    ]);
    assert_eq!((replayed.applied, replayed.skipped, replayed.malformed), (1, 2, 6));
    assert_eq!(fetch_all(&mut cluster), "offsets [t-3=5]");
}

#[test]
fn the_last_record_of_a_key_counts() {
    let key = b"\0\x01\0\x01g\0\x01t\0\0\0\x03".as_slice();
    let offset = |at: u8| {
        let value = OffsetCommitValue { offset: i64::from(at), ..Default::default() };
        encode_with_version(&value, 4).expect("a version that exists")
    };
    let (mut cluster, _) = loaded(&[(key, Some(&offset(1))), (key, Some(&offset(2)))]);
    assert_eq!(fetch_all(&mut cluster), "offsets [t-3=2]");
    let (cluster, _) = loaded(&[(key, Some(&offset(1))), (key, None), (key, None)]);
    assert_eq!((cluster.coordinator.stats().groups, cluster.coordinator.stats().offsets), (0, 0));
    // A group without its own record stays as long as there are offsets.
    let (mut cluster, _) = loaded(&[(key, Some(&offset(1))), (b"\0\x02\0\x01g", None)]);
    assert_eq!(fetch_all(&mut cluster), "offsets [t-3=1]");
}

#[test]
fn records_of_transactions_count_with_the_end_of_theirs() {
    let key = b"\0\x01\0\x01g\0\x01t\0\0\0\x03".as_slice();
    let values: Vec<Vec<u8>> = (0..4)
        .map(|offset| {
            let value = OffsetCommitValue { offset, ..Default::default() };
            encode_with_version(&value, 4).expect("a version that exists")
        })
        .collect();
    let producer = |id, epoch| Producer { id: ProducerId::new(id), epoch: ProducerEpoch::new(epoch) };
    let record = |at: usize, id: Option<i64>| LogEntry::Record {
        key,
        value: Some(&values[at]),
        producer: id.map(|id| producer(id, 3)),
    };
    // From the second version of the protocol on, a marker has the epoch after that of the records (KIP-890).
    let end = |id, committed| LogEntry::End(TransactionEnd { producer: producer(id, 4), committed });
    let after = |entries: &[LogEntry<'_>]| {
        let (mut cluster, replayed) = loaded_entries(entries);
        assert_eq!(replayed.applied, entries.len() as u64);
        (fetch_all(&mut cluster), cluster.coordinator.stats().pending_offsets)
    };
    let nothing = || "offsets []".to_owned();
    let offset = |at: i64| format!("offsets [t-3={at}]");
    assert_eq!(after(&[record(1, Some(7))]), (nothing(), 1));
    assert_eq!(after(&[record(1, Some(7)), end(8, true)]), (nothing(), 1));
    assert_eq!(after(&[record(1, Some(7)), end(7, false)]), (nothing(), 0));
    assert_eq!(after(&[record(1, Some(7)), end(7, true), end(7, false)]), (offset(1), 0));
    assert_eq!(after(&[record(1, Some(7)), record(2, None), end(7, true)]), (offset(2), 0));
    assert_eq!(after(&[record(2, None), record(1, Some(7)), end(7, true)]), (offset(1), 0));
    let crossing = [record(1, Some(7)), record(2, Some(8)), end(8, true), end(7, true)];
    assert_eq!(after(&crossing), (offset(2), 0));
    let again = [record(1, Some(7)), record(2, None), record(3, Some(7)), end(7, true)];
    assert_eq!(after(&again), (offset(3), 0));
    let tombstone = LogEntry::Record { key, value: None, producer: None };
    assert_eq!(after(&[record(1, Some(7)), tombstone, end(7, true)]), (nothing(), 0));
}
