//! Offsets: all of a group, of several groups at once, and expired ones.

use std::time::Duration;

use mainstem_broker::ManualClock;
use mainstem_log::sim::Random;
use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_tests::machine::Death;
use mainstem_tests::wait::eventually;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};
use mainstem_wire::messages::offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestGroup};

use crate::groups::{GROUP, TOPIC, broker, broker_at};

#[test]
fn all_offsets_of_a_group_are_reported_in_every_version() {
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

const KEPT_MS: i64 = 5_000;
const KEPT: Duration = Duration::from_millis(KEPT_MS as u64);

/// The time for at least one check for expired offsets (`offsets.retention.check.interval.ms`).
const LOOK: Duration = Duration::from_millis(100);

/// Commits an offset of partition 0 with a retention time, which versions 2 to 4 have.
fn commit_for(client: &mut Client, group: &str, retention_time_ms: i64) {
    let partition = OffsetCommitRequestPartition {
        partition_index: 0,
        committed_offset: 7,
        committed_metadata: Some("".into()),
        ..Default::default()
    };
    let topic =
        OffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    let request = OffsetCommitRequest {
        group_id: group.into(),
        retention_time_ms,
        topics: vec![topic],
        ..Default::default()
    };
    assert_eq!(client.call(&request, 4).topics[0].partitions[0].error_code, 0);
}

#[test]
fn an_offset_goes_when_its_time_is_over() {
    let clock = ManualClock::new();
    let mut broker = broker_at(&clock);
    let mut client = broker.connect();
    client.commit(GROUP, TOPIC, 1, 5).unwrap();
    commit_for(&mut client, GROUP, KEPT_MS);
    clock.advance(KEPT - LOOK);
    assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), 7);
    clock.advance(LOOK);
    eventually("the offset to expire", || {
        clock.advance(LOOK);
        (client.committed(GROUP, TOPIC, 0).unwrap() == -1).then_some(())
    });
    assert_eq!(client.committed(GROUP, TOPIC, 1).unwrap(), 5, "the other one stays");
    broker.die(Death::Kill, &mut Random::new(1));
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), -1, "and it stays away");
    assert_eq!(client.committed(GROUP, TOPIC, 1).unwrap(), 5);
}

#[test]
fn a_group_goes_with_its_last_offset() {
    let clock = ManualClock::new();
    let mut broker = broker_at(&clock);
    let mut client = broker.connect();
    client.commit(GROUP, TOPIC, 1, 5).unwrap();
    commit_for(&mut client, "doomed", KEPT_MS);
    let mut both = listed(&mut client);
    both.sort();
    assert_eq!(both, ["doomed", GROUP]);
    clock.advance(KEPT);
    eventually("the group to go", || {
        clock.advance(LOOK);
        (listed(&mut client) == [GROUP]).then_some(())
    });
    broker.die(Death::Kill, &mut Random::new(1));
    broker.start_again();
    assert_eq!(listed(&mut broker.connect()), [GROUP], "and it stays away");
}

fn listed(client: &mut Client) -> Vec<String> {
    let response = client.call(&ListGroupsRequest::default(), 5);
    response.groups.iter().map(|group| group.group_id.to_string()).collect()
}
