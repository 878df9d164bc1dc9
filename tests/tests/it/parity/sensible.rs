//! A request that succeeds, for every API but those of group members.

use std::cell::RefCell;

use mainstem_tests::client::Client;
use mainstem_tests::kafka::{batch, bytes_of, records_in};
use mainstem_wire::messages::{
    alter_replica_log_dirs_request, api_versions_request, create_partitions_request, create_topics_request,
    delete_groups_request, delete_records_request, delete_topics_request, describe_cluster_request,
    describe_configs_request, describe_log_dirs_request, describe_topic_partitions_request, fetch_request,
    find_coordinator_request, incremental_alter_configs_request, init_producer_id_request,
    list_offsets_request, metadata_request, offset_commit_request, offset_delete_request,
    offset_fetch_request, offset_for_leader_epoch_request, produce_request, sasl_authenticate_request,
    sasl_handshake_request,
};
use mainstem_wire::{ApiKey, ErrorCode, Records, Request, Uuid};

const TOPIC: &str = "topic";
const GROUP: &str = "offsets";
const TIMEOUT_MS: i32 = 10_000;

/// Sends a request in every version of its API and checks each response.
pub(crate) fn in_every_version<'q, R: Request<'q>>(
    client: &mut Client,
    request: impl Fn(i16) -> R,
    judge: impl Fn(&R::Response<'_>, i16),
) -> ApiKey {
    for version in R::KEY.versions() {
        let response = client.call(&request(version), version);
        judge(&response, version);
    }
    R::KEY
}

/// Checks all and returns their keys.
pub(crate) fn check_all(client: &mut Client) -> Vec<ApiKey> {
    let create = create_topics(client);
    let id = client.create_topic(TOPIC, 3, &[]).unwrap();
    let mut checked = vec![create, find_coordinator(client), init_producer_id(client)];
    checked.extend(records(client, id));
    checked.extend(offsets(client, id));
    checked.extend(cluster(client, id));
    checked.extend(deleted_groups(client));
    checked.extend(configs(client));
    checked.extend(log_dirs(client));
    checked.extend(changes(client));
    checked.extend(authentication(client));
    checked
}

fn create_topics(client: &mut Client) -> ApiKey {
    use create_topics_request::{CreatableTopic, CreateTopicsRequest};
    let request = |version: i16| CreateTopicsRequest {
        topics: vec![CreatableTopic {
            name: format!("created-{version}").into(),
            num_partitions: 2,
            replication_factor: 1,
            ..Default::default()
        }],
        timeout_ms: TIMEOUT_MS,
        ..Default::default()
    };
    in_every_version(client, request, |response, version| {
        let topic = &response.topics[0];
        assert_eq!((topic.error_code, &*topic.name), (0, &*format!("created-{version}")));
        assert!(version < 5 || topic.num_partitions == 2);
        assert!(version < 7 || !topic.topic_id.is_zero());
    })
}

fn find_coordinator(client: &mut Client) -> ApiKey {
    use find_coordinator_request::FindCoordinatorRequest;
    let request = |version: i16| match version {
        0..4 => FindCoordinatorRequest { key: GROUP.into(), ..Default::default() },
        _ => FindCoordinatorRequest {
            coordinator_keys: vec![GROUP.into(), "other".into()],
            ..Default::default()
        },
    };
    in_every_version(client, request, |response, version| {
        let errors: Vec<i16> = response.coordinators.iter().map(|found| found.error_code).collect();
        assert_eq!(errors, if version < 4 { vec![] } else { vec![0, 0] });
        assert!(version >= 4 || (response.error_code, response.port > 0) == (0, true));
    })
}

fn init_producer_id(client: &mut Client) -> ApiKey {
    use init_producer_id_request::InitProducerIdRequest;
    let request = |_| InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    in_every_version(client, request, |response, _| {
        assert_eq!((response.error_code, response.producer_epoch), (0, 0));
        assert!(response.producer_id >= 0);
    })
}

fn records(client: &mut Client, id: Uuid) -> [ApiKey; 5] {
    let one = batch(&[b"a", b"b"]);
    let produce = |_| {
        use produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
        let records = Some(Records::Bytes(one.as_slice().into()));
        let partition = PartitionProduceData { index: 0, records, ..Default::default() };
        let topic = TopicProduceData {
            name: TOPIC.into(),
            topic_id: id,
            partition_data: vec![partition],
            ..Default::default()
        };
        ProduceRequest { acks: -1, timeout_ms: TIMEOUT_MS, topic_data: vec![topic], ..Default::default() }
    };
    let produced = in_every_version(client, produce, |response, version| {
        let answer = &response.responses[0].partition_responses[0];
        assert_eq!((answer.error_code, answer.base_offset), (0, i64::from(version - 3) * 2));
    });
    let fetch = |_| {
        use fetch_request::{FetchPartition, FetchRequest, FetchTopic};
        let partition = FetchPartition { partition: 0, partition_max_bytes: 10_000, ..Default::default() };
        let topic = FetchTopic {
            topic: TOPIC.into(),
            topic_id: id,
            partitions: vec![partition],
            ..Default::default()
        };
        FetchRequest { topics: vec![topic], min_bytes: 1, max_wait_ms: 1000, ..Default::default() }
    };
    let fetched = in_every_version(client, fetch, |response, version| {
        let data = &response.responses[0].partitions[0];
        assert_eq!((response.error_code, data.error_code, data.high_watermark), (0, 0, 22), "v{version}");
        assert_eq!(records_in(bytes_of(&data.records)).len(), 22);
    });
    let list = |_| {
        use list_offsets_request::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
        let partition = ListOffsetsPartition { partition_index: 0, timestamp: -1, ..Default::default() };
        let topic =
            ListOffsetsTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
        ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() }
    };
    let listed = in_every_version(client, list, |response, _| {
        let found = &response.topics[0].partitions[0];
        assert_eq!((found.error_code, found.offset), (0, 22));
    });
    let of_epoch = |_| {
        use offset_for_leader_epoch_request::{
            OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
        };
        let partition = OffsetForLeaderPartition { partition: 0, leader_epoch: 0, ..Default::default() };
        let topic =
            OffsetForLeaderTopic { topic: TOPIC.into(), partitions: vec![partition], ..Default::default() };
        OffsetForLeaderEpochRequest { topics: vec![topic], ..Default::default() }
    };
    let of_epoch = in_every_version(client, of_epoch, |response, _| {
        let found = &response.topics[0].partitions[0];
        assert_eq!((found.error_code, found.leader_epoch, found.end_offset), (0, 0, 22));
    });
    let delete = |version: i16| {
        use delete_records_request::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
        let offset = i64::from(version) + 1;
        let partition = DeleteRecordsPartition { partition_index: 0, offset, ..Default::default() };
        let topic =
            DeleteRecordsTopic { name: TOPIC.into(), partitions: vec![partition], ..Default::default() };
        DeleteRecordsRequest { topics: vec![topic], timeout_ms: TIMEOUT_MS, ..Default::default() }
    };
    let deleted = in_every_version(client, delete, |response, version| {
        let answer = &response.topics[0].partitions[0];
        assert_eq!((answer.error_code, answer.low_watermark), (0, i64::from(version) + 1));
    });
    [produced, fetched, listed, of_epoch, deleted]
}

fn offsets(client: &mut Client, id: Uuid) -> [ApiKey; 2] {
    let commit = |version: i16| {
        use offset_commit_request::{
            OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
        };
        let partition = OffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: i64::from(version),
            committed_metadata: Some("noted".into()),
            ..Default::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: TOPIC.into(),
            topic_id: id,
            partitions: vec![partition],
            ..Default::default()
        };
        OffsetCommitRequest { group_id: GROUP.into(), topics: vec![topic], ..Default::default() }
    };
    let committed = in_every_version(client, commit, |response, _| {
        assert_eq!(response.topics[0].partitions[0].error_code, 0);
    });
    let newest = i64::from(*committed.versions().end());
    let fetch = |version: i16| {
        use offset_fetch_request::{
            OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
        };
        if version < 8 {
            let topic = OffsetFetchRequestTopic {
                name: TOPIC.into(),
                partition_indexes: vec![0],
                ..Default::default()
            };
            let topics = Some(vec![topic]);
            return OffsetFetchRequest { group_id: GROUP.into(), topics, ..Default::default() };
        }
        let topic = OffsetFetchRequestTopics {
            name: TOPIC.into(),
            topic_id: id,
            partition_indexes: vec![0],
            ..Default::default()
        };
        let group = OffsetFetchRequestGroup {
            group_id: GROUP.into(),
            topics: Some(vec![topic]),
            ..Default::default()
        };
        OffsetFetchRequest { topics: Some(Vec::new()), groups: vec![group], ..Default::default() }
    };
    let fetched = in_every_version(client, fetch, |response, version| {
        if version < 8 {
            let found = &response.topics[0].partitions[0];
            let metadata = found.metadata.as_deref();
            assert_eq!((found.error_code, found.committed_offset, metadata), (0, newest, Some("noted")));
        } else {
            let topic = &response.groups[0].topics[0];
            assert!(version < 10 || topic.topic_id == id);
            let found = &topic.partitions[0];
            let metadata = found.metadata.as_deref();
            assert_eq!((found.error_code, found.committed_offset, metadata), (0, newest, Some("noted")));
        }
    });
    [committed, fetched]
}

fn deleted_groups(client: &mut Client) -> [ApiKey; 2] {
    use delete_groups_request::DeleteGroupsRequest;
    use offset_delete_request::{
        OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
    };
    let offset = |_| {
        let partitions = vec![OffsetDeleteRequestPartition { partition_index: 0 }];
        let topics = vec![OffsetDeleteRequestTopic { name: TOPIC.into(), partitions }];
        OffsetDeleteRequest { group_id: GROUP.into(), topics }
    };
    let offset = in_every_version(client, offset, |response, _| {
        assert_eq!((response.error_code, response.topics[0].partitions[0].error_code), (0, 0));
    });
    assert_eq!(client.committed(GROUP, TOPIC, 0).unwrap(), -1);
    for version in ApiKey::DeleteGroups.versions() {
        client.commit(&format!("doomed-{version}"), TOPIC, 0, 1).unwrap();
    }
    let group = |version: i16| DeleteGroupsRequest {
        groups_names: vec![format!("doomed-{version}").into()],
        ..Default::default()
    };
    let group = in_every_version(client, group, |response, version| {
        let result = &response.results[0];
        assert_eq!((result.error_code, &*result.group_id), (0, &*format!("doomed-{version}")));
    });
    [offset, group]
}

fn cluster(client: &mut Client, id: Uuid) -> [ApiKey; 4] {
    use api_versions_request::ApiVersionsRequest;
    use describe_cluster_request::DescribeClusterRequest;
    use describe_topic_partitions_request::{DescribeTopicPartitionsRequest, TopicRequest};
    use metadata_request::{MetadataRequest, MetadataRequestTopic};
    let versions = |_| ApiVersionsRequest {
        client_software_name: "tests".into(),
        client_software_version: "1".into(),
        ..Default::default()
    };
    let versions = in_every_version(client, versions, |response, version| {
        let produce = &response.api_keys[0];
        assert_eq!((response.error_code, produce.api_key, produce.min_version), (0, 0, 0));
        assert!(version < 3 || !response.finalized_features.is_empty());
    });
    let metadata = |_| MetadataRequest {
        topics: Some(vec![MetadataRequestTopic { name: Some(TOPIC.into()), ..Default::default() }]),
        allow_auto_topic_creation: true,
        ..Default::default()
    };
    let metadata = in_every_version(client, metadata, |response, version| {
        let topic = &response.topics[0];
        assert_eq!((topic.error_code, topic.partitions.len(), response.brokers.len()), (0, 3, 1));
        assert!(version < 10 || topic.topic_id == id);
    });
    let described = in_every_version(
        client,
        |_| DescribeClusterRequest::default(),
        |response, _| {
            assert_eq!((response.error_code, response.brokers.len()), (0, 1));
        },
    );
    let pages = |_| DescribeTopicPartitionsRequest {
        topics: vec![TopicRequest { name: TOPIC.into(), ..Default::default() }],
        response_partition_limit: 100,
        ..Default::default()
    };
    let pages = in_every_version(client, pages, |response, _| {
        assert_eq!((response.topics[0].error_code, response.topics[0].partitions.len()), (0, 3));
    });
    [versions, metadata, described, pages]
}

fn configs(client: &mut Client) -> [ApiKey; 2] {
    use describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
    use incremental_alter_configs_request::{
        AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
    };
    const RESOURCE_TOPIC: i8 = 2;
    let alter = |_| {
        let config = AlterableConfig {
            name: "retention.ms".into(),
            config_operation: 0,
            value: Some("12345".into()),
            ..Default::default()
        };
        let resource = AlterConfigsResource {
            resource_type: RESOURCE_TOPIC,
            resource_name: TOPIC.into(),
            configs: vec![config],
            ..Default::default()
        };
        IncrementalAlterConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    let altered = in_every_version(client, alter, |response, _| {
        assert_eq!(response.responses[0].error_code, 0);
    });
    let describe = |_| {
        let resource = DescribeConfigsResource {
            resource_type: RESOURCE_TOPIC,
            resource_name: TOPIC.into(),
            configuration_keys: None,
            ..Default::default()
        };
        DescribeConfigsRequest { resources: vec![resource], ..Default::default() }
    };
    let described = in_every_version(client, describe, |response, _| {
        let mut configs = response.results[0].configs.iter();
        let found = configs.find(|config| config.name == "retention.ms").unwrap();
        assert_eq!((response.results[0].error_code, found.value.as_deref()), (0, Some("12345")));
    });
    [altered, described]
}

fn log_dirs(client: &mut Client) -> [ApiKey; 2] {
    use alter_replica_log_dirs_request::{
        AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
    };
    use describe_log_dirs_request::{DescribableLogDirTopic, DescribeLogDirsRequest};
    let describe = |_| {
        let topic =
            DescribableLogDirTopic { topic: TOPIC.into(), partitions: vec![0, 2], ..Default::default() };
        DescribeLogDirsRequest { topics: Some(vec![topic]), ..Default::default() }
    };
    let path = RefCell::new(String::new());
    let described = in_every_version(client, describe, |response, version| {
        let dir = &response.results[0];
        let partitions = dir.topics[0].partitions.len();
        assert_eq!((response.error_code, dir.error_code, dir.topics.len(), partitions), (0, 0, 1, 2));
        assert_eq!(dir.total_bytes > 0, version >= 4);
        *path.borrow_mut() = dir.log_dir.to_string();
    });
    let alter = |_| {
        let topic =
            AlterReplicaLogDirTopic { name: TOPIC.into(), partitions: vec![0, 9], ..Default::default() };
        let path = path.borrow().clone().into();
        let dirs = vec![AlterReplicaLogDir { path, topics: vec![topic], ..Default::default() }];
        AlterReplicaLogDirsRequest { dirs, ..Default::default() }
    };
    let altered = in_every_version(client, alter, |response, _| {
        let errors: Vec<_> = response.results[0].partitions.iter().map(|one| one.error_code).collect();
        assert_eq!(errors, [0, 3], "it is there already, and unknown");
    });
    [altered, described]
}

fn changes(client: &mut Client) -> [ApiKey; 2] {
    use create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
    use delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
    let grow = |version: i16| {
        let (name, count) = ("created-2".into(), i32::from(version) + 3);
        let topic = CreatePartitionsTopic { name, count, assignments: None, ..Default::default() };
        CreatePartitionsRequest { topics: vec![topic], timeout_ms: TIMEOUT_MS, ..Default::default() }
    };
    let grown = in_every_version(client, grow, |response, _| assert_eq!(response.results[0].error_code, 0));
    let delete = |version: i16| {
        let name = format!("created-{}", version.max(2));
        let recreated = DeleteTopicsRequest { timeout_ms: TIMEOUT_MS, ..Default::default() };
        match version {
            ..6 => DeleteTopicsRequest { topic_names: vec![name.into()], ..recreated },
            _ => {
                let topic = DeleteTopicState { name: Some(name.into()), ..Default::default() };
                DeleteTopicsRequest { topics: vec![topic], ..recreated }
            }
        }
    };
    // Version 1 has deleted the topic of version 2.
    let deleted = in_every_version(client, delete, |response, version| {
        let expected = if version == 2 { 3 } else { 0 };
        assert_eq!(response.responses[0].error_code, expected, "v{version}");
    });
    [grown, deleted]
}

/// Requests of SASL, which a listener without SASL refuses.
fn authentication(client: &mut Client) -> [ApiKey; 2] {
    use sasl_authenticate_request::SaslAuthenticateRequest;
    use sasl_handshake_request::SaslHandshakeRequest;
    let handshake = |_| SaslHandshakeRequest { mechanism: "PLAIN".into() };
    let authenticate =
        |_| SaslAuthenticateRequest { auth_bytes: b"\0a\0b".as_slice().into(), ..Default::default() };
    let illegal = ErrorCode::ILLEGAL_SASL_STATE.code();
    [
        in_every_version(client, handshake, |response, _| assert_eq!(response.error_code, illegal)),
        in_every_version(client, authenticate, |response, _| assert_eq!(response.error_code, illegal)),
    ]
}
