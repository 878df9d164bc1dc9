//! The value that Kafka 4.3.0 chooses in an answer where its format allows several: null or empty, one answer or two.

use mainstem_records::{BatchOptions, Compression};
use mainstem_tests::broker::Setup;
use mainstem_tests::kafka::{
    BY_NAME, LATEST, batch, batch_with, fetch_request, fetch_topic, produce_request,
};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::delete_groups_request::DeleteGroupsRequest;
use mainstem_wire::messages::describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
use mainstem_wire::messages::describe_groups_request::DescribeGroupsRequest;
use mainstem_wire::messages::describe_quorum_request::{DescribeQuorumRequest, PartitionData, TopicData};
use mainstem_wire::messages::describe_topic_partitions_request::{
    DescribeTopicPartitionsRequest, TopicRequest,
};
use mainstem_wire::messages::fetch_request::{FetchRequest, ReplicaState};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::list_offsets_request::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic,
};
use mainstem_wire::messages::offset_commit_request::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
};

use crate::semantics::{TOPIC, broker_with_topic};

#[test]
fn what_succeeds_has_the_message_that_kafka_gives_it() {
    let broker = Setup::new("answers-messages").start();
    let mut client = broker.connect();
    let topic =
        CreatableTopic { name: TOPIC.into(), num_partitions: 1, replication_factor: 1, ..Default::default() };
    let create = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    assert_eq!(client.call(&create, 7).topics[0].error_message, None);

    let find = FindCoordinatorRequest { key: "group".into(), ..Default::default() };
    assert_eq!(client.call(&find, 3).error_message.as_deref(), Some("NONE"));

    let resource =
        DescribeConfigsResource { resource_type: 2, resource_name: TOPIC.into(), ..Default::default() };
    let describe = DescribeConfigsRequest { resources: vec![resource], ..Default::default() };
    assert_eq!(client.call(&describe, 4).results[0].error_message.as_deref(), Some(""));

    let partitions = vec![PartitionData::default()];
    let metadata = TopicData { topic_name: "__cluster_metadata".into(), partitions, ..Default::default() };
    let quorum = DescribeQuorumRequest { topics: vec![metadata], ..Default::default() };
    assert_eq!(client.call(&quorum, 2).topics[0].partitions[0].error_message.as_deref(), Some(""));

    let unknown = TopicRequest { name: "unknown".into(), ..Default::default() };
    let describe = DescribeTopicPartitionsRequest {
        topics: vec![unknown],
        response_partition_limit: 10,
        ..Default::default()
    };
    assert_eq!(client.call(&describe, 0).topics[0].topic_authorized_operations, 3576);
}

#[test]
fn aborted_transactions_are_null_for_who_does_not_ask_for_them() {
    let (_broker, mut client) = broker_with_topic("answers-aborted", 1, &[]);
    client.produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
    let mut aborted = |isolation_level| {
        let request = FetchRequest { isolation_level, ..fetch_request(vec![fetch_topic(TOPIC, 0, 0)]) };
        let response = client.call(&request, BY_NAME);
        response.responses[0].partitions[0].aborted_transactions.as_ref().map(Vec::len)
    };
    assert_eq!(aborted(0), None);
    assert_eq!(aborted(1), Some(0));
}

#[test]
fn types_of_groups_are_in_lower_case_and_the_empty_group_can_be_deleted() {
    let (_broker, mut client) = broker_with_topic("answers-groups", 1, &[]);
    client.find_coordinator("").unwrap();
    let partition = OffsetCommitRequestPartition { committed_offset: 3, ..Default::default() };
    let topic =
        OffsetCommitRequestTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
    let commit = OffsetCommitRequest {
        group_id: "".into(),
        generation_id_or_member_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    assert_eq!(client.call(&commit, 8).topics[0].partitions[0].error_code, 0);
    let listed = client.call(&ListGroupsRequest::default(), 5).groups;
    let [group] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&*group.group_id, &*group.group_type), ("", "classic"));
    let delete = DeleteGroupsRequest { groups_names: vec!["".into()], ..Default::default() };
    assert_eq!(client.call(&delete, 2).results[0].error_code, 0);
    assert_eq!(client.call(&ListGroupsRequest::default(), 5).groups, []);
    let describe =
        DescribeGroupsRequest { groups: vec!["a".into(), "b".into(), "a".into()], ..Default::default() };
    let described = client.call(&describe, 5).groups;
    let names: Vec<&str> = described.iter().map(|group| &*group.group_id).collect();
    assert_eq!(names, ["a", "b"], "what is named twice is answered once");
}

#[test]
fn a_partition_that_a_request_names_twice_counts_once() {
    let (_broker, mut client) = broker_with_topic("answers-twice", 2, &[]);
    let (first, second) = (batch(&[b"first"]), batch(&[b"second", b"third"]));
    let mut produce = produce_request(TOPIC, 0, 1, &first);
    let again = produce_request(TOPIC, 0, 1, &second).topic_data.remove(0).partition_data.remove(0);
    let other = produce_request(TOPIC, 1, 1, &first).topic_data.remove(0).partition_data.remove(0);
    produce.topic_data[0].partition_data.extend([other, again]);
    let response = client.call(&produce, BY_NAME.min(12));
    let answered: Vec<_> = response.responses[0]
        .partition_responses
        .iter()
        .map(|partition| (partition.index, partition.error_code, partition.base_offset))
        .collect();
    assert_eq!(answered, [(1, 0, 0), (0, 0, 0)]);
    assert_eq!(client.offset_at(TOPIC, 0, LATEST).unwrap(), 2, "the last one counts");

    let wanted =
        |partition_index| ListOffsetsPartition { partition_index, timestamp: LATEST, ..Default::default() };
    let partitions = vec![wanted(0), wanted(1), wanted(0)];
    let topic = ListOffsetsTopic { name: TOPIC.into(), partitions, ..Default::default() };
    let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
    let response = client.call(&request, 7);
    let answered: Vec<_> = response.topics[0]
        .partitions
        .iter()
        .map(|partition| (partition.partition_index, ErrorCode::from(partition.error_code)))
        .collect();
    assert_eq!(answered, [(0, ErrorCode::INVALID_REQUEST), (1, ErrorCode::NONE)]);
}

#[test]
fn fetches_that_this_leader_cannot_follow_are_refused() {
    let (_broker, mut client) = broker_with_topic("answers-fetch", 1, &[]);
    client.produce(TOPIC, 0, 1, &batch(&[b"a"])).unwrap();
    let mut error = |request: FetchRequest<'_>| {
        ErrorCode::from(client.call(&request, 15.min(BY_NAME.max(12))).responses[0].partitions[0].error_code)
    };
    let mut topics = vec![fetch_topic(TOPIC, 0, 1)];
    let plain = fetch_request(topics.clone());
    let state = ReplicaState { replica_id: 2, ..Default::default() };
    let follower = FetchRequest { replica_id: 2, replica_state: state, ..plain };
    assert_eq!(
        error(FetchRequest { replica_state: ReplicaState::default(), ..follower }),
        ErrorCode::NOT_LEADER_OR_FOLLOWER
    );
    topics[0].partitions[0].last_fetched_epoch = 1_000;
    assert_eq!(error(fetch_request(topics)), ErrorCode::OFFSET_OUT_OF_RANGE);
}

#[test]
fn zstd_needs_a_version_of_produce_that_knows_it() {
    let (_broker, mut client) = broker_with_topic("answers-zstd", 1, &[]);
    let zstd =
        batch_with(BatchOptions { compression: Compression::Zstd, ..Default::default() }, &[&[b'x'; 100]]);
    let mut error = |version| {
        let response = client.call(&produce_request(TOPIC, 0, 1, &zstd), version);
        ErrorCode::from(response.responses[0].partition_responses[0].error_code)
    };
    assert_eq!(error(3), ErrorCode::UNSUPPORTED_COMPRESSION_TYPE);
    assert_eq!(error(7), ErrorCode::NONE);
}

#[test]
fn half_an_identity_of_a_producer_is_refused() {
    let broker = Setup::new("answers-identity").start();
    let mut client = broker.connect();
    let mut error = |producer_id, producer_epoch| {
        let request = InitProducerIdRequest {
            transactional_id: None,
            producer_id,
            producer_epoch,
            ..Default::default()
        };
        ErrorCode::from(client.call(&request, 4).error_code)
    };
    assert_eq!(error(5, -1), ErrorCode::INVALID_REQUEST);
    assert_eq!(error(-1, 5), ErrorCode::INVALID_REQUEST);
    assert_eq!(error(-1, -1), ErrorCode::NONE);
}

#[test]
fn records_of_a_topic_that_keeps_everything_can_be_deleted() {
    let (_broker, mut client) = broker_with_topic("answers-keeps", 1, &[("cleanup.policy", "")]);
    client.produce(TOPIC, 0, 1, &batch(&[b"a", b"b"])).unwrap();
    assert_eq!(client.delete_records(TOPIC, 0, 1).unwrap(), 1);
}

#[test]
fn a_name_that_is_not_utf8_is_answered() {
    let broker = Setup::new("answers-utf8").start();
    let mut client = broker.connect();
    // Metadata v1 of one topic, whose name is a byte that is not UTF-8.
    client.send_body(3, 1, 1, b"\0\0\0\x01\0\x01\xff").unwrap();
    assert!(!client.receive_frame().unwrap().is_empty());
    assert_eq!(
        client.topics().unwrap(),
        Vec::<String>::new(),
        "the connection stays open, and nothing was created"
    );
}
