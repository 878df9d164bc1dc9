//! Topics as clients see them: created on demand, grown, described page by page.

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{Failure, batch, refusal};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
use mainstem_wire::messages::describe_cluster_request::DescribeClusterRequest;
use mainstem_wire::messages::describe_topic_partitions_request::{
    Cursor, DescribeTopicPartitionsRequest, TopicRequest,
};
use mainstem_wire::messages::metadata_request::{MetadataRequest, MetadataRequestTopic};

use crate::semantics::{TOPIC, broker_with_topic};

/// The value of `authorized_operations` that were not asked for.
const NOT_ASKED: i32 = i32::MIN;

fn grow(client: &mut Client, topic: &str, count: i32) -> ErrorCode {
    let topic = CreatePartitionsTopic { name: topic.into(), count, assignments: None, ..Default::default() };
    let request = CreatePartitionsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    ErrorCode::from(client.call(&request, 3).results[0].error_code)
}

#[test]
fn partitions_are_added_and_never_taken_away() {
    let (mut broker, mut client) = broker_with_topic("grow", 2, &[]);
    assert_eq!(refusal(client.produce(TOPIC, 3, 1, &batch(&[b"a"]))), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    client.produce(TOPIC, 1, -1, &batch(&[b"before"])).unwrap();
    assert_eq!(grow(&mut client, TOPIC, 4), ErrorCode::NONE);
    assert_eq!(client.produce(TOPIC, 3, -1, &batch(&[b"a"])).unwrap(), 0, "usable when it is answered");
    for count in [4, 3, 0] {
        assert_eq!(grow(&mut client, TOPIC, count), ErrorCode::INVALID_PARTITIONS, "{count}");
    }
    assert_eq!(grow(&mut client, "no-such-topic", 5), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    broker.kill();
    broker.start_again();
    client = broker.connect();
    for (partition, records) in [(1, 1), (2, 0), (3, 1)] {
        assert_eq!(client.fetch(TOPIC, partition, 0).unwrap().len(), records, "{partition}");
    }
}

#[test]
fn a_topic_is_created_when_a_client_that_may_asks_for_it() {
    let (_broker, mut client) = broker_with_topic("auto-create", 1, &[]);
    let ask = |client: &mut Client, name: &str, allow_auto_topic_creation: bool| {
        let topics = vec![MetadataRequestTopic { name: Some(name.to_owned().into()), ..Default::default() }];
        let request =
            MetadataRequest { topics: Some(topics), allow_auto_topic_creation, ..Default::default() };
        ErrorCode::from(client.call(&request, 12).topics[0].error_code)
    };
    assert_eq!(ask(&mut client, "asked", false), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    let mut first = ask(&mut client, "asked", true);
    if first != ErrorCode::NONE {
        // Kafka answers so while the topic is being created.
        assert_eq!(first, ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
        first = ask(&mut client, "asked", true);
    }
    assert_eq!(first, ErrorCode::NONE);
    client.produce("asked", 0, 1, &batch(&[b"a"])).unwrap();
    for name in ["no spaces", "", ".."] {
        assert_eq!(ask(&mut client, name, true), ErrorCode::INVALID_TOPIC_EXCEPTION, "{name:?}");
    }
    assert_eq!(refusal(client.create_topic(TOPIC, 1, &[])), ErrorCode::TOPIC_ALREADY_EXISTS);
    assert_eq!(refusal(client.delete_topic("no-such-topic")), ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    assert!(matches!(client.create_topic("none", 0, &[]), Err(Failure::Refused(_))));
}

#[test]
fn topics_are_described_page_by_page() {
    let (_broker, mut client) = broker_with_topic("pages", 5, &[]);
    client.create_topic("another", 4, &[]).unwrap();
    let mut cursor: Option<(String, i32)> = None;
    let mut seen = Vec::new();
    for page in 0.. {
        let names = [TOPIC, "another"];
        let topics = names.iter().map(|name| TopicRequest { name: (*name).into(), ..Default::default() });
        let request = DescribeTopicPartitionsRequest {
            topics: topics.collect(),
            response_partition_limit: 2,
            cursor: cursor.take().map(|(topic_name, partition_index)| {
                Box::new(Cursor { topic_name: topic_name.into(), partition_index, ..Default::default() })
            }),
            ..Default::default()
        };
        let response = client.call(&request, 0);
        let before = seen.len();
        for topic in &response.topics {
            let name = topic.name.as_deref().unwrap_or_default();
            seen.extend(topic.partitions.iter().map(|found| (name.to_owned(), found.partition_index)));
        }
        assert!(seen.len() - before <= 2, "page {page} has more than two partitions");
        cursor = response.next_cursor.map(|next| (next.topic_name.to_string(), next.partition_index));
        if cursor.is_none() {
            break;
        }
        assert!(page < 10, "the pages do not end");
    }
    let expected = (0..4).map(|index| ("another".to_owned(), index));
    let expected: Vec<_> = expected.chain((0..5).map(|index| (TOPIC.to_owned(), index))).collect();
    assert_eq!(seen, expected);
}

#[test]
fn authorized_operations_are_reported_to_those_who_ask() {
    let (_broker, mut client) = broker_with_topic("operations", 1, &[]);
    for asks in [false, true] {
        let topics = vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }];
        let request = MetadataRequest {
            topics: Some(topics),
            include_topic_authorized_operations: asks,
            ..Default::default()
        };
        let of_topic = client.call(&request, 12).topics[0].topic_authorized_operations;
        let request =
            DescribeClusterRequest { include_cluster_authorized_operations: asks, ..Default::default() };
        let of_cluster = client.call(&request, 1).cluster_authorized_operations;
        for operations in [of_topic, of_cluster] {
            assert_eq!(operations != NOT_ASKED, asks);
            assert!(!asks || operations > 0);
        }
    }
}
