//! Offsets: all of a group, of several groups at once, and those whose time is over.

use mainstem_tests::broker::Setup;
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestGroup};

use crate::{GROUP, TOPIC, broker};

#[test]
fn all_offsets_of_a_group_are_told_in_every_version() {
    let broker = broker(Setup::new("all-offsets"));
    let mut client = broker.connect();
    client.create_topic("other", 1, &[]).unwrap();
    client.commit(GROUP, TOPIC, 0, 10).unwrap();
    client.commit(GROUP, TOPIC, 3, 13).unwrap();
    client.commit(GROUP, "other", 0, 20).unwrap();
    client.commit("another group", TOPIC, 0, 30).unwrap();
    for version in 2..8 {
        let request = OffsetFetchRequest { group_id: GROUP.into(), topics: None, ..Default::default() };
        let response = client.call(&request, version);
        let mut found: Vec<(String, i32, i64)> = Vec::new();
        for topic in &response.topics {
            let partitions = topic.partitions.iter();
            found.extend(
                partitions.map(|one| (topic.name.to_string(), one.partition_index, one.committed_offset)),
            );
        }
        found.sort();
        let expected = [("other", 0, 20), (TOPIC, 0, 10), (TOPIC, 3, 13)];
        assert_eq!(
            found,
            expected.map(|(name, index, offset)| (name.to_owned(), index, offset)),
            "v{version}"
        );
    }
    for version in 8..=10 {
        let groups = [GROUP, "another group", "no such group"].map(|group_id| OffsetFetchRequestGroup {
            group_id: group_id.into(),
            topics: None,
            ..Default::default()
        });
        let request = OffsetFetchRequest {
            topics: Some(Vec::new()),
            groups: groups.to_vec(),
            require_stable: true,
            ..Default::default()
        };
        let response = client.call(&request, version);
        let counts = response.groups.iter().map(|group| {
            assert_eq!(group.error_code, 0);
            group.topics.iter().map(|topic| topic.partitions.len()).sum::<usize>()
        });
        assert_eq!(counts.collect::<Vec<_>>(), [3, 1, 0], "v{version}");
    }
}

/// A commit of versions 2 to 4 may say how long it is to be kept.
#[test]
fn an_offset_goes_when_its_time_is_over() {
    let mut broker = broker(Setup::new("expiry").set("offsets.retention.check.interval.ms", 50));
    let mut client = broker.connect();
    client.commit(GROUP, TOPIC, 1, 5).unwrap();
    let partition = OffsetCommitRequestPartition {
        partition_index: 0,
        committed_offset: 7,
        committed_metadata: Some("".into()),
        ..Default::default()
    };
    let topic =
        OffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: GROUP.into(),
        retention_time_ms: 1_500,
        topics: vec![topic],
        ..Default::default()
    };
    assert_eq!(client.call(&request, 4).topics[0].partitions[0].error_code, 0);
    assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), 7);
    eventually("the offset to expire", || (client.committed(GROUP, TOPIC, 0).unwrap() == -1).then_some(()));
    assert_eq!(client.committed(GROUP, TOPIC, 1).unwrap(), 5, "the other one stays");
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), -1, "and it stays away");
    assert_eq!(client.committed(GROUP, TOPIC, 1).unwrap(), 5);
}
