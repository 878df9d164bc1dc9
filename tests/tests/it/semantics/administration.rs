//! Requests of an administrator to one node, and their effects after a restart.

use mainstem_tests::broker::Setup;
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{batch, idempotent};
use mainstem_wire::ErrorCode;
use mainstem_wire::messages::alter_configs_request::{
    AlterConfigsRequest, AlterConfigsResource, AlterableConfig,
};
use mainstem_wire::messages::describe_producers_request::{DescribeProducersRequest, TopicRequest};
use mainstem_wire::messages::describe_quorum_request::{DescribeQuorumRequest, PartitionData, TopicData};
use mainstem_wire::messages::list_config_resources_request::ListConfigResourcesRequest;
use mainstem_wire::messages::unregister_broker_request::UnregisterBrokerRequest;
use mainstem_wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};

use crate::semantics::configs::{RESOURCE_TOPIC, TOPIC_CONFIG, describe};
use crate::semantics::{TOPIC, broker_with_topic};

fn replace(client: &mut Client, values: &[(&str, &str)], validate_only: bool) -> ErrorCode {
    let configs = values.iter().map(|(name, value)| AlterableConfig {
        name: (*name).into(),
        value: Some((*value).into()),
        ..Default::default()
    });
    let resource = AlterConfigsResource {
        resource_type: RESOURCE_TOPIC,
        resource_name: TOPIC.into(),
        configs: configs.collect(),
        ..Default::default()
    };
    let request = AlterConfigsRequest { resources: vec![resource], validate_only, ..Default::default() };
    ErrorCode::from(client.call(&request, 2).responses[0].error_code)
}

#[test]
fn the_older_alter_configs_replaces_what_is_there() {
    let configs = [("max.message.bytes", "1000"), ("flush.ms", "6")];
    let (mut broker, mut client) = broker_with_topic("replace-configs", 1, &configs);
    let large = batch(&[&[b'x'; 2_000]]);
    assert_eq!(replace(&mut client, &[("segment.ms", "70000")], true), ErrorCode::NONE);
    assert!(client.produce(TOPIC, 0, 1, &large).is_err(), "it was only to be validated");
    assert_eq!(replace(&mut client, &[("segment.ms", "x")], false), ErrorCode::INVALID_CONFIG);
    assert_eq!(replace(&mut client, &[("segment.ms", "70000")], false), ErrorCode::NONE);
    client.produce(TOPIC, 0, 1, &large).expect("the limit is the default again");
    broker.kill();
    broker.start_again();
    client = broker.connect();
    assert_eq!(describe(&mut client, "segment.ms"), ("70000".to_owned(), TOPIC_CONFIG));
    assert_ne!(describe(&mut client, "flush.ms").1, TOPIC_CONFIG);
}

/// High watermark and log end of the metadata log.
fn quorum_ends(client: &mut Client) -> (i64, i64) {
    let topic = TopicData {
        topic_name: "__cluster_metadata".into(),
        partitions: vec![PartitionData::default()],
        ..Default::default()
    };
    let request = DescribeQuorumRequest { topics: vec![topic], ..Default::default() };
    let response = client.call(&request, 2);
    let found = &response.topics[0].partitions[0];
    assert_eq!((response.error_code, found.error_code), (0, 0));
    (found.high_watermark, found.current_voters[0].log_end_offset)
}

#[test]
fn the_quorum_is_where_the_metadata_log_is() {
    let (_broker, mut client) = broker_with_topic("quorum", 1, &[]);
    let (before, end) = quorum_ends(&mut client);
    assert_eq!(before, end);
    client.create_topic("three-records", 2, &[]).unwrap();
    assert_eq!(quorum_ends(&mut client), (before + 3, end + 3), "a topic and two partitions");
    let topic = |name: &'static str, partitions: &[i32]| {
        let partitions =
            partitions.iter().map(|index| PartitionData { partition_index: *index, ..Default::default() });
        TopicData { topic_name: name.into(), partitions: partitions.collect(), ..Default::default() }
    };
    for topics in [
        vec![topic(TOPIC, &[0])],
        vec![topic("__cluster_metadata", &[1])],
        vec![topic("__cluster_metadata", &[0, 1])],
        vec![topic("__cluster_metadata", &[0]), topic(TOPIC, &[0])],
    ] {
        let response = client.call(&DescribeQuorumRequest { topics, ..Default::default() }, 2);
        let partitions = response.topics.iter().flat_map(|topic| &topic.partitions);
        let errors: Vec<_> = partitions.map(|partition| ErrorCode::from(partition.error_code)).collect();
        assert!(errors.iter().all(|error| *error == ErrorCode::UNKNOWN_TOPIC_OR_PARTITION), "{errors:?}");
    }
}

#[test]
fn producers_are_described_and_many_of_them_are_not() {
    let (_broker, mut client) = broker_with_topic("producers", 1, &[]);
    let mut ids: Vec<i64> = (0..3).map(|_| client.init_producer_id().unwrap()).collect();
    for (id, sequence) in [(0, 0), (1, 0), (1, 1), (2, 7)] {
        client.produce(TOPIC, 0, 1, &idempotent(ids[id], 0, sequence, &[b"a"])).unwrap();
    }
    let topic = TopicRequest { name: TOPIC.into(), partition_indexes: vec![0], ..Default::default() };
    let response = client.call(&DescribeProducersRequest { topics: vec![topic], ..Default::default() }, 0);
    let producers = response.topics[0].partitions[0].active_producers.iter();
    let mut found: Vec<_> = producers.map(|found| (found.producer_id, found.last_sequence)).collect();
    found.sort_unstable();
    ids.sort_unstable();
    assert_eq!(found, [(ids[0], 0), (ids[1], 1), (ids[2], 7)]);
    // The answer to a short request with the same partition many times has a bound.
    let topic = TopicRequest { name: TOPIC.into(), partition_indexes: vec![0; 50_000], ..Default::default() };
    let response = client.call(&DescribeProducersRequest { topics: vec![topic], ..Default::default() }, 0);
    let partitions = &response.topics[0].partitions;
    let listed: usize = partitions.iter().map(|partition| partition.active_producers.len()).sum();
    assert_eq!((partitions.len(), listed), (50_000, 99_999));
    assert_eq!(ErrorCode::from(partitions[49_999].error_code), ErrorCode::POLICY_VIOLATION);
}

#[test]
fn the_node_that_runs_stays_registered() {
    let mut broker = Setup::new("unregister").start();
    let mut client = broker.connect();
    let request = UnregisterBrokerRequest { broker_id: 1, ..Default::default() };
    let response = client.call(&request, 0);
    assert_eq!(ErrorCode::from(response.error_code), ErrorCode::INVALID_REQUEST);
    assert!(response.error_message.as_deref().is_some_and(|message| message.contains("stop it before")));
    client.create_topic(TOPIC, 1, &[]).expect("it serves as before");
    broker.assert_healthy();
}

#[test]
fn resources_are_listed_by_type() {
    let (_broker, mut client) = broker_with_topic("resources", 1, &[]);
    let mut list = |resource_types: &[i8]| {
        let request =
            ListConfigResourcesRequest { resource_types: resource_types.to_vec(), ..Default::default() };
        let response = client.call(&request, 1);
        let found = response.config_resources.iter();
        let found: Vec<_> =
            found.map(|found| (found.resource_type, found.resource_name.to_string())).collect();
        (ErrorCode::from(response.error_code), found)
    };
    let (topic, broker, logger) = ((2, TOPIC.to_owned()), (4, "1".to_owned()), (8, "1".to_owned()));
    assert_eq!(list(&[]), (ErrorCode::NONE, vec![logger.clone(), broker.clone(), topic.clone()]));
    assert_eq!(list(&[2, 2]), (ErrorCode::NONE, vec![topic]));
    assert_eq!(list(&[4, 8]), (ErrorCode::NONE, vec![logger, broker]));
    assert_eq!(list(&[16]), (ErrorCode::NONE, vec![]));
    for unknown in [0, 1, 99] {
        assert_eq!(list(&[2, unknown]), (ErrorCode::UNSUPPORTED_VERSION, vec![]));
    }
}

#[test]
fn features_that_are_not_there_are_not_finalised() {
    let mut broker = Setup::new("features").start();
    let mut client = broker.connect();
    let mut update = |feature: &'static str, max_version_level| {
        let update = FeatureUpdateKey { feature: feature.into(), max_version_level, ..Default::default() };
        let request = UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() };
        ErrorCode::from(client.call(&request, 2).error_code)
    };
    assert_eq!(update("metadata.version", 30), ErrorCode::NONE);
    assert_eq!(update("metadata.version", 31), ErrorCode::INVALID_UPDATE_VERSION);
    assert_eq!(update("no.such.feature", 1), ErrorCode::INVALID_UPDATE_VERSION);
    broker.kill();
    broker.start_again();
    broker.assert_healthy();
}
