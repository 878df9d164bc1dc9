//! Deletion of groups and offsets: allowed ones stay deleted over a restart, and others are refused with a reason.

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;
use mainstem_wire::messages::offset_delete_request::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
};

use crate::groups::member::Member;
use crate::groups::{GROUP, TOPIC, broker};

fn delete(client: &mut Client, groups: &[&str]) -> Vec<(String, ErrorCode)> {
    let groups_names = groups.iter().map(|group| (*group).into()).collect();
    let response = client.call(&DeleteGroupsRequest { groups_names, ..Default::default() }, 2);
    let results = response.results.iter();
    results.map(|result| (result.group_id.to_string(), ErrorCode::from(result.error_code))).collect()
}

/// The group's error, and those of the partitions in the order of the answer.
fn delete_offsets(
    client: &mut Client,
    topics: &[(&str, &[i32])],
) -> (ErrorCode, Vec<(String, i32, ErrorCode)>) {
    let topics = topics.iter().map(|(name, indexes)| OffsetDeleteRequestTopic {
        name: (*name).into(),
        partitions: indexes
            .iter()
            .map(|partition_index| OffsetDeleteRequestPartition { partition_index: *partition_index })
            .collect(),
    });
    let request = OffsetDeleteRequest { group_id: GROUP.into(), topics: topics.collect() };
    let response = client.call(&request, 0);
    let partitions = response.topics.iter().flat_map(|topic| {
        let name = topic.name.to_string();
        topic
            .partitions
            .iter()
            .map(move |one| (name.clone(), one.partition_index, ErrorCode::from(one.error_code)))
    });
    (ErrorCode::from(response.error_code), partitions.collect())
}

#[test]
fn empty_groups_go_for_good_and_others_say_why_they_stay() {
    let mut broker = broker(Setup::new("delete-groups"));
    let mut client = broker.connect();
    client.commit("idle", TOPIC, 0, 7).unwrap();
    client.commit("kept", TOPIC, 0, 8).unwrap();
    let mut member = Member::new(&broker);
    let joined = member.join();
    member.send_sync(&joined.members);
    let expected = [
        ("idle", ErrorCode::NONE),
        (GROUP, ErrorCode::NON_EMPTY_GROUP),
        ("no such group", ErrorCode::GROUP_ID_NOT_FOUND),
        ("", ErrorCode::GROUP_ID_NOT_FOUND),
    ];
    let expected = expected.map(|(group, error)| (group.to_owned(), error));
    // A group that is named twice is deleted and answered once.
    assert_eq!(delete(&mut client, &["idle", GROUP, "idle", "no such group", ""]), expected);
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.committed("idle", TOPIC, 0).unwrap(), -1);
    assert_eq!(client.committed("kept", TOPIC, 0).unwrap(), 8);
}

#[test]
fn offsets_that_no_client_reads_go_and_others_say_why_they_stay() {
    let mut broker = broker(Setup::new("delete-offsets"));
    let mut client = broker.connect();
    assert_eq!(delete_offsets(&mut client, &[(TOPIC, &[0])]), (ErrorCode::GROUP_ID_NOT_FOUND, Vec::new()));
    client.commit(GROUP, TOPIC, 0, 10).unwrap();
    client.commit(GROUP, TOPIC, 1, 11).unwrap();
    let (error, partitions) = delete_offsets(&mut client, &[(TOPIC, &[0, 0, 2, 9]), ("nowhere", &[0])]);
    let expected = [
        (TOPIC, 0, ErrorCode::NONE),
        (TOPIC, 0, ErrorCode::NONE),
        (TOPIC, 2, ErrorCode::NONE),
        (TOPIC, 9, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
        ("nowhere", 0, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION),
    ];
    let expected = expected.map(|(topic, index, error)| (topic.to_owned(), index, error));
    assert_eq!((error, partitions.as_slice()), (ErrorCode::NONE, expected.as_slice()));
    broker.kill();
    broker.start_again();
    let mut client = broker.connect();
    assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), -1);
    assert_eq!(client.committed(GROUP, TOPIC, 1).unwrap(), 11);
    // Only unknown partitions, of an existing group.
    let (error, partitions) = delete_offsets(&mut client, &[("nowhere", &[3])]);
    let unknown = ("nowhere".to_owned(), 3, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert_eq!((error, partitions), (ErrorCode::NONE, vec![unknown]));
}
