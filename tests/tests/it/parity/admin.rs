//! A request that succeeds for the APIs of administrators, beyond those of topics.

use mainstem_tests::client::Client;
use mainstem_tests::kafka::idempotent;
use mainstem_wire::ApiKey;
use mainstem_wire::messages::{
    add_raft_voter_request, alter_configs_request, alter_partition_reassignments_request,
    describe_producers_request, describe_quorum_request, elect_leaders_request,
    list_config_resources_request, list_partition_reassignments_request, remove_raft_voter_request,
    unregister_broker_request, update_features_request,
};

use super::sensible::in_every_version;

const TOPIC: &str = "admin";
const NODE: i32 = 1;
const RESOURCE_TOPIC: i8 = 2;
const RESOURCE_CLIENT_METRICS: i8 = 16;
const ELECTION_NOT_NEEDED: i16 = 84;
const NO_REASSIGNMENT_IN_PROGRESS: i16 = 85;
const BROKER_ID_NOT_REGISTERED: i16 = 102;
const UNSUPPORTED_VERSION: i16 = 35;
const INCONSISTENT_CLUSTER_ID: i16 = 104;

/// Checks all and returns their keys.
pub(crate) fn check_all(client: &mut Client) -> Vec<ApiKey> {
    client.create_topic(TOPIC, 2, &[]).unwrap();
    vec![
        alter_configs(client),
        list_config_resources(client),
        describe_producers(client),
        update_features(client),
        describe_quorum(client),
        elect_leaders(client),
        alter_partition_reassignments(client),
        list_partition_reassignments(client),
        unregister_broker(client),
        add_raft_voter(client),
        remove_raft_voter(client),
    ]
}

fn alter_configs(client: &mut Client) -> ApiKey {
    use alter_configs_request::{AlterConfigsRequest, AlterConfigsResource, AlterableConfig};
    let request = |version: i16| {
        let value = format!("{}", 60_000 + i64::from(version));
        let config =
            AlterableConfig { name: "retention.ms".into(), value: Some(value.into()), ..Default::default() };
        let resource = AlterConfigsResource {
            resource_type: RESOURCE_TOPIC,
            resource_name: TOPIC.into(),
            configs: vec![config],
            ..Default::default()
        };
        AlterConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    in_every_version(client, request, |response, _| {
        assert_eq!((response.responses[0].error_code, &*response.responses[0].resource_name), (0, TOPIC));
    })
}

fn list_config_resources(client: &mut Client) -> ApiKey {
    use list_config_resources_request::ListConfigResourcesRequest;
    let request = |_| ListConfigResourcesRequest::default();
    in_every_version(client, request, |response, version| {
        assert_eq!(response.error_code, 0);
        let has_topic = response.config_resources.iter().any(|found| found.resource_name == TOPIC);
        assert_eq!(has_topic, version > 0);
        let only_metrics =
            response.config_resources.iter().all(|found| found.resource_type == RESOURCE_CLIENT_METRICS);
        assert_eq!(only_metrics, version == 0);
    })
}

fn describe_producers(client: &mut Client) -> ApiKey {
    use describe_producers_request::{DescribeProducersRequest, TopicRequest};
    let producer_id = client.init_producer_id().unwrap();
    client.produce(TOPIC, 0, -1, &idempotent(producer_id, 0, 0, &[b"a", b"b"])).unwrap();
    let request = |_| {
        let topic =
            TopicRequest { name: TOPIC.into(), partition_indexes: vec![0, 1, 2], ..Default::default() };
        DescribeProducersRequest { topics: vec![topic], ..Default::default() }
    };
    in_every_version(client, request, |response, _| {
        let partitions = &response.topics[0].partitions;
        let errors: Vec<_> = partitions.iter().map(|partition| partition.error_code).collect();
        assert_eq!(errors, [0, 0, 3]);
        let [producer] = partitions[0].active_producers.as_slice() else {
            panic!("one producer: {partitions:?}")
        };
        assert_eq!(
            (producer.producer_id, producer.producer_epoch, producer.last_sequence),
            (producer_id, 0, 1)
        );
        assert_eq!((producer.coordinator_epoch, producer.current_txn_start_offset), (-1, -1));
        assert!(producer.last_timestamp > 0);
    })
}

fn update_features(client: &mut Client) -> ApiKey {
    use update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
    let request = |_| {
        let update = FeatureUpdateKey {
            feature: "metadata.version".into(),
            max_version_level: 30,
            ..Default::default()
        };
        UpdateFeaturesRequest { feature_updates: vec![update], ..Default::default() }
    };
    in_every_version(client, request, |response, version| {
        assert_eq!((response.error_code, response.results.len()), (0, usize::from(version < 2)));
    })
}

fn describe_quorum(client: &mut Client) -> ApiKey {
    use describe_quorum_request::{DescribeQuorumRequest, PartitionData, TopicData};
    let request = |_| {
        let partitions = vec![PartitionData::default()];
        let topic = TopicData { topic_name: "__cluster_metadata".into(), partitions, ..Default::default() };
        DescribeQuorumRequest { topics: vec![topic], ..Default::default() }
    };
    in_every_version(client, request, |response, version| {
        let found = &response.topics[0].partitions[0];
        assert_eq!((response.error_code, found.error_code, found.leader_id), (0, 0, NODE));
        let [voter] = found.current_voters.as_slice() else { panic!("one voter: {found:?}") };
        assert_eq!((voter.replica_id, voter.log_end_offset), (NODE, found.high_watermark));
        assert!(found.high_watermark > 3, "features, the node, topics: {found:?}");
        assert_eq!(voter.replica_directory_id.is_zero(), version < 2);
        assert_eq!(voter.last_caught_up_timestamp > 0, version > 0);
        assert_eq!(response.nodes.len(), usize::from(version >= 2));
    })
}

fn elect_leaders(client: &mut Client) -> ApiKey {
    use elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
    let request = |_| {
        let topic = TopicPartitions { topic: TOPIC.into(), partitions: vec![0, 1], ..Default::default() };
        ElectLeadersRequest { topic_partitions: Some(vec![topic]), ..Default::default() }
    };
    in_every_version(client, request, |response, _| {
        let errors = response.replica_election_results[0].partition_result.iter();
        let errors: Vec<_> = errors.map(|result| result.error_code).collect();
        assert_eq!((response.error_code, errors), (0, vec![ELECTION_NOT_NEEDED; 2]));
    })
}

fn alter_partition_reassignments(client: &mut Client) -> ApiKey {
    use alter_partition_reassignments_request::{
        AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
    };
    let request = |_| {
        let stay = ReassignablePartition { replicas: Some(vec![NODE]), ..Default::default() };
        let cancel = ReassignablePartition { partition_index: 1, replicas: None, ..Default::default() };
        let topic =
            ReassignableTopic { name: TOPIC.into(), partitions: vec![stay, cancel], ..Default::default() };
        AlterPartitionReassignmentsRequest { topics: vec![topic], ..Default::default() }
    };
    in_every_version(client, request, |response, _| {
        let errors = response.responses[0].partitions.iter().map(|partition| partition.error_code);
        assert_eq!(response.error_code, 0);
        assert_eq!(errors.collect::<Vec<_>>(), [0, NO_REASSIGNMENT_IN_PROGRESS]);
    })
}

fn list_partition_reassignments(client: &mut Client) -> ApiKey {
    use list_partition_reassignments_request::ListPartitionReassignmentsRequest;
    let request = |_| ListPartitionReassignmentsRequest::default();
    in_every_version(client, request, |response, _| {
        assert_eq!((response.error_code, response.topics.len()), (0, 0));
    })
}

/// No other node exists that could be unregistered.
fn unregister_broker(client: &mut Client) -> ApiKey {
    use unregister_broker_request::UnregisterBrokerRequest;
    let request = |_| UnregisterBrokerRequest { broker_id: 7, ..Default::default() };
    in_every_version(client, request, |response, _| {
        assert_eq!(response.error_code, BROKER_ID_NOT_REGISTERED);
    })
}

/// Voters are configured, and stay as they are: Kafka answers so with `controller.quorum.voters`.
fn add_raft_voter(client: &mut Client) -> ApiKey {
    use add_raft_voter_request::{AddRaftVoterRequest, Listener};
    let request = |cluster_id: Option<&'static str>| {
        let listener =
            Listener { name: "CONTROLLER".into(), host: "host".into(), port: 1, ..Default::default() };
        let listeners = vec![listener];
        let cluster_id = cluster_id.map(Into::into);
        AddRaftVoterRequest { cluster_id, voter_id: 2, listeners, ..Default::default() }
    };
    let other = client.call(&request(Some("another cluster")), 1);
    assert_eq!(other.error_code, INCONSISTENT_CLUSTER_ID);
    in_every_version(
        client,
        |_| request(None),
        |response, _| {
            assert_eq!(response.error_code, UNSUPPORTED_VERSION);
            let message = response.error_message.as_deref().unwrap();
            assert_eq!(
                message,
                "Cluster doesn't support adding voter because the kraft.version feature is 0"
            );
        },
    )
}

fn remove_raft_voter(client: &mut Client) -> ApiKey {
    use remove_raft_voter_request::RemoveRaftVoterRequest;
    let request = |_| RemoveRaftVoterRequest { cluster_id: None, voter_id: NODE, ..Default::default() };
    in_every_version(client, request, |response, _| {
        assert_eq!(response.error_code, UNSUPPORTED_VERSION);
        let message = response.error_message.as_deref().unwrap();
        assert_eq!(message, "Cluster doesn't support removing voter because the kraft.version feature is 0");
    })
}
