//! The requests that every principal sends, one or more for each served API.
//!
//! A request with a list names resources with rules and others, existing and missing ones. A request that changes
//! something can be repeated, or is refused for another reason once it is authorized.

use std::fmt::Debug;
use std::io;
use std::sync::{Arc, Mutex};

use mainstem_records::{BatchOptions, ProducerFields};
use mainstem_tests::client::Client;
use mainstem_tests::kafka::{batch, batch_with};
use mainstem_wire::messages::{
    add_offsets_to_txn_request, add_partitions_to_txn_request, alter_client_quotas_request,
    alter_configs_request, alter_partition_reassignments_request, alter_replica_log_dirs_request,
    alter_user_scram_credentials_request, api_versions_request, consumer_group_describe_request,
    consumer_group_heartbeat_request, create_acls_request, create_partitions_request, create_topics_request,
    delete_acls_request, delete_groups_request, delete_records_request, delete_topics_request,
    describe_acls_request, describe_client_quotas_request, describe_cluster_request,
    describe_configs_request, describe_groups_request, describe_log_dirs_request, describe_producers_request,
    describe_quorum_request, describe_topic_partitions_request, describe_transactions_request,
    describe_user_scram_credentials_request, elect_leaders_request, end_txn_request, fetch_request,
    find_coordinator_request, heartbeat_request, incremental_alter_configs_request, init_producer_id_request,
    join_group_request, leave_group_request, list_config_resources_request, list_groups_request,
    list_offsets_request, list_partition_reassignments_request, list_transactions_request, metadata_request,
    offset_commit_request, offset_delete_request, offset_fetch_request, offset_for_leader_epoch_request,
    produce_request, sasl_authenticate_request, sasl_handshake_request, sync_group_request,
    txn_offset_commit_request, unregister_broker_request, update_features_request, write_txn_markers_request,
};
use mainstem_wire::{ApiKey, Records, Request, Uuid};

use crate::permissions::names::{GROUPS, Ids, NEW_TOPICS, TOPICS, TRANSACTIONS, ensure_topic};

/// Served APIs that are not in the table.
pub(crate) const LEFT_OUT: [(ApiKey, &str); 4] = [
    (
        ApiKey::GetTelemetrySubscriptions,
        "Kafka serves it only with a plug-in that takes metrics; no rule is about it",
    ),
    (ApiKey::PushTelemetry, "as before"),
    (
        ApiKey::AddRaftVoter,
        "the node of Kafka that is asked has voters in its metadata, and would change them",
    ),
    (ApiKey::RemoveRaftVoter, "as before"),
];

const TIMEOUT_MS: i32 = 10_000;
const NODE: i32 = 1;
/// The id of no producer.
const NO_PRODUCER: i64 = 1 << 40;
const RESOURCE_TOPIC: i8 = 2;
const RESOURCE_BROKER: i8 = 4;
const RESOURCE_BROKER_LOGGER: i8 = 8;
const RESOURCE_CLIENT_METRICS: i8 = 16;
const RESOURCE_GROUP: i8 = 32;
const MEMBER: &str = "no-member";
const ANY: i8 = 1;

type Ask = dyn Fn(&mut Client) -> io::Result<String>;

/// One request, in one version.
pub(crate) struct Probe {
    pub(crate) api: i16,
    pub(crate) name: String,
    /// The super user's preparation before each principal asks.
    pub(crate) before: Box<dyn Fn(&mut Client)>,
    pub(crate) ask: Box<Ask>,
}

fn probe<R>(name: &str, version: i16, request: R) -> Probe
where
    R: Request<'static> + Clone + 'static,
    for<'r> R::Response<'r>: Debug,
{
    made(name, version, |_| {}, move || request.clone())
}

/// A probe with a preparation, and a request that depends on it.
fn made<R>(
    name: &str,
    version: i16,
    before: impl Fn(&mut Client) + 'static,
    request: impl Fn() -> R + 'static,
) -> Probe
where
    R: Request<'static>,
    for<'r> R::Response<'r>: Debug,
{
    let api = R::KEY;
    let behind = if name.is_empty() { String::new() } else { format!(": {name}") };
    Probe {
        api: api.key(),
        name: format!("{} v{version}{behind}", api.name()),
        before: Box::new(before),
        ask: Box::new(move |client| Ok(format!("{:?}", client.try_call(&request(), version)?))),
    }
}

/// All probes, in the order of their APIs.
pub(crate) fn all(ids: &Ids) -> Vec<Probe> {
    let mut all = Vec::new();
    all.extend(records(ids));
    all.extend(describing_topics(ids));
    all.extend(changing_topics());
    all.extend(groups(ids));
    all.extend(transactions());
    all.extend(configs());
    all.extend(security());
    all.extend(cluster());
    all.sort_by_key(|probe| probe.api);
    all
}

fn records(ids: &Ids) -> Vec<Probe> {
    use delete_records_request::{DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic};
    use fetch_request::{FetchPartition, FetchRequest, FetchTopic};
    use produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};
    let produce_as = |name: &'static str, topic_id: Uuid, records: Vec<u8>| TopicProduceData {
        name: name.into(),
        topic_id,
        partition_data: vec![PartitionProduceData {
            index: 0,
            records: Some(Records::Bytes(records.into())),
            ..Default::default()
        }],
        ..Default::default()
    };
    let produce = |name, topic_id| produce_as(name, topic_id, batch(&[b"more"]));
    let produced = |topic_data, transactional_id: Option<&'static str>| ProduceRequest {
        acks: 1,
        timeout_ms: TIMEOUT_MS,
        transactional_id: transactional_id.map(Into::into),
        topic_data,
        ..Default::default()
    };
    let by_name: Vec<_> = TOPICS.iter().map(|name| produce(name, Uuid::default())).collect();
    let by_id: Vec<_> = ids.asked().map(|id| produce("", id)).collect();
    let fetch = |name: &'static str, topic_id: Uuid| FetchTopic {
        topic: name.into(),
        topic_id,
        partitions: vec![FetchPartition {
            partition: 0,
            partition_max_bytes: 1000,
            current_leader_epoch: -1,
            ..Default::default()
        }],
        ..Default::default()
    };
    let fetched = |topics, replica_id: i32| FetchRequest {
        replica_id,
        max_bytes: 1 << 20,
        session_epoch: -1,
        topics,
        ..Default::default()
    };
    let fetch_names = || TOPICS.iter().map(|name| fetch(name, Uuid::default())).collect::<Vec<_>>();
    let fetch_ids: Vec<_> = ids.asked().map(|id| fetch("", id)).collect();
    let deletions = TOPICS.iter().map(|name| DeleteRecordsTopic {
        name: (*name).into(),
        partitions: vec![DeleteRecordsPartition { partition_index: 0, offset: 0, ..Default::default() }],
        ..Default::default()
    });
    let delete =
        DeleteRecordsRequest { topics: deletions.collect(), timeout_ms: TIMEOUT_MS, ..Default::default() };
    // No such transaction is open; the principal's own ids have no part in it.
    let producer = ProducerFields { producer_id: NO_PRODUCER, producer_epoch: 0, base_sequence: 0 };
    let transactional = BatchOptions { producer, is_transactional: true, ..Default::default() };
    let in_a_transaction =
        || vec![produce_as("t-mine", Uuid::default(), batch_with(transactional.clone(), &[b"more"]))];
    let outside = vec![produce("t-mine", Uuid::default())];
    vec![
        probe("names", 12, produced(by_name, None)),
        probe("ids", 13, produced(by_id, None)),
        probe("x-mine", 11, produced(in_a_transaction(), Some("x-mine"))),
        probe("x-other", 11, produced(in_a_transaction(), Some("x-other"))),
        probe("x-other, not transactional", 12, produced(outside, Some("x-other"))),
        probe("names", 12, fetched(fetch_names(), -1)),
        probe("ids", 17, fetched(fetch_ids, -1)),
        probe("a follower", 12, fetched(fetch_names(), 9)),
        probe("", 2, delete),
    ]
}

fn describing_topics(ids: &Ids) -> Vec<Probe> {
    use describe_producers_request::{DescribeProducersRequest, TopicRequest};
    use describe_topic_partitions_request::DescribeTopicPartitionsRequest;
    use list_offsets_request::{ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic};
    use metadata_request::{MetadataRequest, MetadataRequestTopic};
    use offset_for_leader_epoch_request::{
        OffsetForLeaderEpochRequest, OffsetForLeaderPartition, OffsetForLeaderTopic,
    };
    let named = |names: &[&'static str]| {
        let named = names
            .iter()
            .map(|name| MetadataRequestTopic { name: Some((*name).into()), ..Default::default() });
        Some(named.collect::<Vec<_>>())
    };
    let metadata = |topics, allow_auto_topic_creation, operations| MetadataRequest {
        topics,
        allow_auto_topic_creation,
        include_topic_authorized_operations: operations,
        ..Default::default()
    };
    let by_id =
        ids.asked().map(|topic_id| MetadataRequestTopic { topic_id, name: None, ..Default::default() });
    let on_the_cluster =
        MetadataRequest { include_cluster_authorized_operations: true, ..metadata(named(&[]), false, false) };
    let offsets = TOPICS.iter().map(|name| ListOffsetsTopic {
        name: (*name).into(),
        partitions: vec![ListOffsetsPartition {
            partition_index: 0,
            current_leader_epoch: -1,
            timestamp: -1,
            ..Default::default()
        }],
        ..Default::default()
    });
    let offsets = ListOffsetsRequest { replica_id: -1, topics: offsets.collect(), ..Default::default() };
    let epochs = TOPICS.iter().map(|name| OffsetForLeaderTopic {
        topic: (*name).into(),
        partitions: vec![OffsetForLeaderPartition {
            partition: 0,
            current_leader_epoch: -1,
            leader_epoch: 0,
            ..Default::default()
        }],
        ..Default::default()
    });
    let epochs = OffsetForLeaderEpochRequest { topics: epochs.collect(), ..Default::default() };
    let producers = TOPICS.iter().map(|name| TopicRequest {
        name: (*name).into(),
        partition_indexes: vec![0],
        ..Default::default()
    });
    let producers = DescribeProducersRequest { topics: producers.collect(), ..Default::default() };
    let pages = |names: &[&'static str]| DescribeTopicPartitionsRequest {
        topics: names
            .iter()
            .map(|name| describe_topic_partitions_request::TopicRequest {
                name: (*name).into(),
                ..Default::default()
            })
            .collect(),
        response_partition_limit: 100,
        ..Default::default()
    };
    vec![
        probe("names", 12, metadata(named(&TOPICS), false, false)),
        probe("names and operations", 12, metadata(named(&TOPICS), false, true)),
        probe("names, old", 1, metadata(named(&TOPICS), true, false)),
        probe("names that may be created", 12, metadata(named(&TOPICS), true, false)),
        probe("all", 12, metadata(None, false, true)),
        probe("ids", 12, metadata(Some(by_id.collect()), false, true)),
        probe("operations on the cluster", 8, on_the_cluster),
        probe("", 9, offsets),
        probe("", 4, epochs),
        probe("", 0, producers),
        probe("names", 0, pages(&TOPICS)),
        probe("all", 0, pages(&[])),
    ]
}

fn changing_topics() -> Vec<Probe> {
    use create_partitions_request::{CreatePartitionsRequest, CreatePartitionsTopic};
    use create_topics_request::{CreatableTopic, CreateTopicsRequest};
    use delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
    let create = |names: &[&'static str]| CreateTopicsRequest {
        topics: names
            .iter()
            .map(|name| CreatableTopic {
                name: (*name).into(),
                num_partitions: 1,
                replication_factor: 1,
                ..Default::default()
            })
            .collect(),
        timeout_ms: TIMEOUT_MS,
        validate_only: true,
        ..Default::default()
    };
    let grow = TOPICS.iter().map(|name| CreatePartitionsTopic {
        name: (*name).into(),
        count: 2,
        assignments: None,
        ..Default::default()
    });
    let grow = CreatePartitionsRequest {
        topics: grow.collect(),
        timeout_ms: TIMEOUT_MS,
        validate_only: true,
        ..Default::default()
    };
    let delete = || DeleteTopicsRequest { timeout_ms: TIMEOUT_MS, ..Default::default() };
    let missing = ["t-mine-missing", "t-other-missing"];
    let doomed: Vec<&'static str> = [NEW_TOPICS, missing].concat();
    let by_name = doomed.clone();
    let ids: Arc<Mutex<Vec<(String, Uuid)>>> = Arc::default();
    let asked = ids.clone();
    vec![
        probe("", 7, create(&[TOPICS.as_slice(), &NEW_TOPICS].concat())),
        probe("", 3, grow),
        made("names", 5, ensure_new_topics, move || DeleteTopicsRequest {
            topic_names: doomed.iter().map(|name| (*name).into()).collect(),
            ..delete()
        }),
        made("names", 6, ensure_new_topics, move || DeleteTopicsRequest {
            topics: by_name
                .iter()
                .map(|name| DeleteTopicState { name: Some((*name).into()), ..Default::default() })
                .collect(),
            ..delete()
        }),
        made(
            "ids",
            6,
            move |root| {
                ensure_new_topics(root);
                *ids.lock().unwrap() =
                    NEW_TOPICS.iter().map(|name| ((*name).to_owned(), id_of(root, name))).collect();
            },
            move || {
                let ids = asked.lock().unwrap();
                let ids = ids.iter().map(|(_, id)| *id).chain([crate::permissions::names::NO_TOPIC]);
                let topics =
                    ids.map(|topic_id| DeleteTopicState { name: None, topic_id, ..Default::default() });
                DeleteTopicsRequest { topics: topics.collect(), ..delete() }
            },
        ),
    ]
}

fn ensure_new_topics(root: &mut Client) {
    NEW_TOPICS.iter().for_each(|name| ensure_topic(root, name));
}

fn id_of(root: &mut Client, name: &str) -> Uuid {
    use metadata_request::{MetadataRequest, MetadataRequestTopic};
    mainstem_tests::wait::eventually("the id of a topic", || {
        let topics = Some(vec![MetadataRequestTopic { name: Some(name.into()), ..Default::default() }]);
        let request = MetadataRequest { topics, allow_auto_topic_creation: false, ..Default::default() };
        let response = root.call(&request, 12);
        (response.topics[0].error_code == 0).then_some(response.topics[0].topic_id)
    })
}

fn groups(ids: &Ids) -> Vec<Probe> {
    let mut all = vec![
        find_coordinators("groups", 0, &GROUPS),
        find_coordinators("transactional ids", 1, &TRANSACTIONS),
        find_coordinator("a group", 0, "g-mine"),
        find_coordinator("a transactional id", 1, "x-mine"),
    ];
    for group in ["g-mine", "g-other"] {
        all.extend(members(group));
        all.extend(offsets(group, ids));
    }
    all.extend(of_many_groups());
    all
}

fn find_coordinators(name: &str, key_type: i8, keys: &[&'static str]) -> Probe {
    use find_coordinator_request::FindCoordinatorRequest;
    let coordinator_keys = keys.iter().map(|key| (*key).into()).collect();
    probe(name, 6, FindCoordinatorRequest { key_type, coordinator_keys, ..Default::default() })
}

fn find_coordinator(name: &str, key_type: i8, key: &'static str) -> Probe {
    use find_coordinator_request::FindCoordinatorRequest;
    probe(name, 3, FindCoordinatorRequest { key_type, key: key.into(), ..Default::default() })
}

fn members(group: &'static str) -> Vec<Probe> {
    use consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
    use heartbeat_request::HeartbeatRequest;
    use join_group_request::{JoinGroupRequest, JoinGroupRequestProtocol};
    use leave_group_request::{LeaveGroupRequest, MemberIdentity};
    use sync_group_request::SyncGroupRequest;
    let protocol = JoinGroupRequestProtocol { name: "range".into(), ..Default::default() };
    let join = JoinGroupRequest {
        group_id: group.into(),
        session_timeout_ms: 10_000,
        rebalance_timeout_ms: 10_000,
        member_id: MEMBER.into(),
        protocol_type: "consumer".into(),
        protocols: vec![protocol],
        ..Default::default()
    };
    let heartbeat = HeartbeatRequest {
        group_id: group.into(),
        generation_id: 3,
        member_id: MEMBER.into(),
        ..Default::default()
    };
    let member = MemberIdentity { member_id: MEMBER.into(), ..Default::default() };
    let leave = LeaveGroupRequest { group_id: group.into(), members: vec![member], ..Default::default() };
    let sync = SyncGroupRequest {
        group_id: group.into(),
        generation_id: 3,
        member_id: MEMBER.into(),
        ..Default::default()
    };
    let beat = |topics: Option<&[&'static str]>| ConsumerGroupHeartbeatRequest {
        group_id: group.into(),
        member_id: MEMBER.into(),
        member_epoch: 3,
        subscribed_topic_names: topics.map(|topics| topics.iter().map(|topic| (*topic).into()).collect()),
        ..Default::default()
    };
    vec![
        probe(group, 9, join),
        probe(group, 4, heartbeat),
        probe(group, 5, leave),
        probe(&format!("{group}, no protocol"), 5, sync.clone()),
        probe(
            group,
            5,
            SyncGroupRequest {
                protocol_type: Some("consumer".into()),
                protocol_name: Some("range".into()),
                ..sync
            },
        ),
        probe(group, 1, beat(None)),
        probe(&format!("{group}, a topic"), 1, beat(Some(&["t-mine"]))),
        probe(&format!("{group}, topics"), 1, beat(Some(&TOPICS))),
    ]
}

fn offsets(group: &'static str, ids: &Ids) -> Vec<Probe> {
    use offset_commit_request::{
        OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic,
    };
    use offset_delete_request::{
        OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic,
    };
    use offset_fetch_request::{
        OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics,
    };
    let commit = |name: &'static str, topic_id: Uuid| OffsetCommitRequestTopic {
        name: name.into(),
        topic_id,
        partitions: vec![OffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: 1,
            committed_metadata: Some("".into()),
            ..Default::default()
        }],
        ..Default::default()
    };
    let commits = |topics| OffsetCommitRequest { group_id: group.into(), topics, ..Default::default() };
    let by_name = TOPICS.iter().map(|name| commit(name, Uuid::default())).collect();
    let by_id = ids.asked().map(|id| commit("", id)).collect();
    let delete = TOPICS.iter().map(|name| OffsetDeleteRequestTopic {
        name: (*name).into(),
        partitions: vec![OffsetDeleteRequestPartition { partition_index: 3 }],
    });
    let delete = OffsetDeleteRequest { group_id: group.into(), topics: delete.collect() };
    let old = |names: Option<&[&'static str]>| OffsetFetchRequest {
        group_id: group.into(),
        topics: names.map(|names| {
            let topic = |name: &&'static str| OffsetFetchRequestTopic {
                name: (*name).into(),
                partition_indexes: vec![0],
                ..Default::default()
            };
            names.iter().map(topic).collect()
        }),
        ..Default::default()
    };
    let topic = |name: &'static str, topic_id: Uuid| OffsetFetchRequestTopics {
        name: name.into(),
        topic_id,
        partition_indexes: vec![0],
        ..Default::default()
    };
    let fetch = |topics: Option<Vec<_>>| OffsetFetchRequest {
        groups: vec![OffsetFetchRequestGroup { group_id: group.into(), topics, ..Default::default() }],
        ..Default::default()
    };
    let of_names = || TOPICS.iter().map(|name| topic(name, Uuid::default())).collect();
    let of_ids = || ids.asked().map(|id| topic("", id)).collect();
    vec![
        probe(&format!("{group}, names"), 9, commits(by_name)),
        probe(&format!("{group}, ids"), 10, commits(by_id)),
        probe(group, 0, delete),
        probe(&format!("{group}, names"), 7, old(Some(&TOPICS))),
        probe(&format!("{group}, all"), 7, old(None)),
        probe(&format!("{group}, names"), 9, fetch(Some(of_names()))),
        probe(&format!("{group}, all"), 9, fetch(None)),
        probe(&format!("{group}, ids"), 10, fetch(Some(of_ids()))),
        probe(&format!("{group}, all"), 10, fetch(None)),
    ]
}

fn of_many_groups() -> Vec<Probe> {
    use consumer_group_describe_request::ConsumerGroupDescribeRequest;
    use delete_groups_request::DeleteGroupsRequest;
    use describe_groups_request::DescribeGroupsRequest;
    use list_groups_request::ListGroupsRequest;
    use offset_fetch_request::{OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics};
    let groups = || GROUPS.iter().map(|group| (*group).into()).collect::<Vec<_>>();
    let fetch = GROUPS.iter().map(|group| OffsetFetchRequestGroup {
        group_id: (*group).into(),
        topics: Some(vec![OffsetFetchRequestTopics {
            name: "t-mine".into(),
            partition_indexes: vec![0],
            ..Default::default()
        }]),
        ..Default::default()
    });
    let missing = ["g-mine-missing", "g-other-missing"].map(Into::into).to_vec();
    vec![
        probe(
            "",
            6,
            DescribeGroupsRequest {
                groups: groups(),
                include_authorized_operations: true,
                ..Default::default()
            },
        ),
        probe(
            "",
            1,
            ConsumerGroupDescribeRequest {
                group_ids: groups(),
                include_authorized_operations: true,
                ..Default::default()
            },
        ),
        probe("", 5, ListGroupsRequest::default()),
        probe("groups", 9, OffsetFetchRequest { groups: fetch.collect(), ..Default::default() }),
        probe("missing ones", 2, DeleteGroupsRequest { groups_names: missing, ..Default::default() }),
        made("", 2, ensure_doomed_groups, || DeleteGroupsRequest {
            groups_names: vec!["g-mine".into(), "g-other".into()],
            ..Default::default()
        }),
    ]
}

/// Makes sure that the groups exist that a probe deletes. All other probes ask for them too, so that this probe is the last.
pub(crate) fn ensure_doomed_groups(root: &mut Client) {
    for group in ["g-mine", "g-other"] {
        for topic in ["t-mine", "t-other"] {
            root.commit(group, topic, 0, 1).unwrap();
        }
    }
}

fn transactions() -> Vec<Probe> {
    use describe_transactions_request::DescribeTransactionsRequest;
    use init_producer_id_request::InitProducerIdRequest;
    use list_transactions_request::ListTransactionsRequest;
    use write_txn_markers_request::{WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest};
    let producer = |id: Option<&'static str>| InitProducerIdRequest {
        transactional_id: id.map(Into::into),
        transaction_timeout_ms: 60_000,
        ..Default::default()
    };
    let marked = TOPICS.iter().map(|name| WritableTxnMarkerTopic {
        name: (*name).into(),
        partition_indexes: vec![9],
        ..Default::default()
    });
    let marker =
        WritableTxnMarker { producer_id: NO_PRODUCER, topics: marked.collect(), ..Default::default() };
    let ids = || TRANSACTIONS.iter().map(|id| (*id).into()).collect::<Vec<_>>();
    let mut all = vec![
        probe("no transactional id", 5, producer(None)),
        probe("", 1, WriteTxnMarkersRequest { markers: vec![marker], ..Default::default() }),
        probe("", 0, DescribeTransactionsRequest { transactional_ids: ids(), ..Default::default() }),
        probe("", 1, ListTransactionsRequest::default()),
        add_partitions_of_many(),
    ];
    for id in ["x-mine", "x-other"] {
        all.push(probe(id, 5, producer(Some(id))));
        all.extend(of_one_transaction(id));
    }
    all
}

fn of_one_transaction(id: &'static str) -> Vec<Probe> {
    use add_offsets_to_txn_request::AddOffsetsToTxnRequest;
    use add_partitions_to_txn_request::{AddPartitionsToTxnRequest, AddPartitionsToTxnTopic};
    use end_txn_request::EndTxnRequest;
    use txn_offset_commit_request::{
        TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitRequestTopic,
    };
    let topics = |names: &[&'static str]| {
        let topic = |name: &&'static str| AddPartitionsToTxnTopic {
            name: (*name).into(),
            partitions: vec![0],
            ..Default::default()
        };
        names.iter().map(topic).collect::<Vec<_>>()
    };
    let partitions = |names: &[&'static str]| AddPartitionsToTxnRequest {
        v3_and_below_transactional_id: id.into(),
        v3_and_below_producer_id: NO_PRODUCER,
        v3_and_below_topics: topics(names),
        ..Default::default()
    };
    let offsets = |group: &'static str| AddOffsetsToTxnRequest {
        transactional_id: id.into(),
        producer_id: NO_PRODUCER,
        group_id: group.into(),
        ..Default::default()
    };
    let committed = |name: &&'static str| TxnOffsetCommitRequestTopic {
        name: (*name).into(),
        partitions: vec![TxnOffsetCommitRequestPartition {
            partition_index: 0,
            committed_offset: 1,
            committed_metadata: Some("".into()),
            ..Default::default()
        }],
        ..Default::default()
    };
    let commit = |group: &'static str| TxnOffsetCommitRequest {
        transactional_id: id.into(),
        group_id: group.into(),
        producer_id: NO_PRODUCER,
        generation_id: 3,
        member_id: MEMBER.into(),
        topics: TOPICS.iter().map(committed).collect(),
        ..Default::default()
    };
    let end = EndTxnRequest { transactional_id: id.into(), producer_id: NO_PRODUCER, ..Default::default() };
    vec![
        probe(&format!("{id}, a topic"), 3, partitions(&["t-mine"])),
        probe(&format!("{id}, topics"), 3, partitions(&TOPICS)),
        probe(&format!("{id}, g-mine"), 4, offsets("g-mine")),
        probe(&format!("{id}, g-other"), 4, offsets("g-other")),
        probe(&format!("{id}, g-mine"), 3, commit("g-mine")),
        probe(&format!("{id}, g-other"), 3, commit("g-other")),
        probe(id, 4, end),
    ]
}

/// The request as brokers send it.
fn add_partitions_of_many() -> Probe {
    use add_partitions_to_txn_request::{
        AddPartitionsToTxnRequest, AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction,
    };
    let transactions = TRANSACTIONS.iter().map(|id| AddPartitionsToTxnTransaction {
        transactional_id: (*id).into(),
        producer_id: NO_PRODUCER,
        topics: TOPICS
            .iter()
            .map(|name| AddPartitionsToTxnTopic {
                name: (*name).into(),
                partitions: vec![0],
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    });
    let transactions = transactions.collect();
    probe("of brokers", 5, AddPartitionsToTxnRequest { transactions, ..Default::default() })
}

/// Resources with configurations: type and name.
const CONFIGURED: [(i8, &str); 13] = [
    (RESOURCE_TOPIC, "t-mine"),
    (RESOURCE_TOPIC, "t-other"),
    (RESOURCE_TOPIC, "t-public"),
    (RESOURCE_TOPIC, "t-mine-missing"),
    (RESOURCE_TOPIC, "t-other-missing"),
    (RESOURCE_BROKER, "1"),
    (RESOURCE_BROKER, ""),
    (RESOURCE_BROKER_LOGGER, "1"),
    (RESOURCE_CLIENT_METRICS, "m-mine"),
    (RESOURCE_GROUP, "g-mine"),
    (RESOURCE_GROUP, "g-other"),
    (RESOURCE_GROUP, "g-mine-missing"),
    (RESOURCE_GROUP, "g-other-missing"),
];

fn configs() -> Vec<Probe> {
    use describe_configs_request::{DescribeConfigsRequest, DescribeConfigsResource};
    use list_config_resources_request::ListConfigResourcesRequest;
    let describe = CONFIGURED.iter().map(|(resource_type, name)| DescribeConfigsResource {
        resource_type: *resource_type,
        resource_name: (*name).into(),
        configuration_keys: None,
        ..Default::default()
    });
    let describe = DescribeConfigsRequest { resources: describe.collect(), ..Default::default() };
    let list =
        |types: &[i8]| ListConfigResourcesRequest { resource_types: types.to_vec(), ..Default::default() };
    vec![
        probe("", 4, describe),
        alter_configs(),
        incremental_alter_configs(),
        probe("client metrics", 0, list(&[])),
        probe("topics and groups", 1, list(&[RESOURCE_TOPIC, RESOURCE_GROUP])),
    ]
}

/// A key for each type of resource, with a valid value.
fn setting(resource_type: i8) -> (&'static str, &'static str) {
    match resource_type {
        RESOURCE_TOPIC => ("retention.ms", "600000"),
        RESOURCE_BROKER => ("message.max.bytes", "1000000"),
        RESOURCE_BROKER_LOGGER => ("root", "INFO"),
        RESOURCE_CLIENT_METRICS => ("interval.ms", "60000"),
        _ => ("consumer.session.timeout.ms", "50000"),
    }
}

fn alter_configs() -> Probe {
    use alter_configs_request::{AlterConfigsRequest, AlterConfigsResource, AlterableConfig};
    let resources = CONFIGURED.iter().filter(|(kind, _)| *kind != RESOURCE_BROKER_LOGGER);
    let resources = resources.map(|(kind, name)| AlterConfigsResource {
        resource_type: *kind,
        resource_name: (*name).into(),
        configs: vec![AlterableConfig {
            name: setting(*kind).0.into(),
            value: Some(setting(*kind).1.into()),
            ..Default::default()
        }],
        ..Default::default()
    });
    let request =
        AlterConfigsRequest { resources: resources.collect(), validate_only: true, ..Default::default() };
    probe("", 2, request)
}

fn incremental_alter_configs() -> Probe {
    use incremental_alter_configs_request::{
        AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
    };
    let resources = CONFIGURED.iter().map(|(kind, name)| AlterConfigsResource {
        resource_type: *kind,
        resource_name: (*name).into(),
        configs: vec![AlterableConfig {
            name: setting(*kind).0.into(),
            value: Some(setting(*kind).1.into()),
            ..Default::default()
        }],
        ..Default::default()
    });
    let request = IncrementalAlterConfigsRequest {
        resources: resources.collect(),
        validate_only: true,
        ..Default::default()
    };
    probe("", 1, request)
}

fn security() -> Vec<Probe> {
    use alter_user_scram_credentials_request::{AlterUserScramCredentialsRequest, ScramCredentialDeletion};
    use api_versions_request::ApiVersionsRequest;
    use create_acls_request::{AclCreation, CreateAclsRequest};
    use delete_acls_request::{DeleteAclsFilter, DeleteAclsRequest};
    use describe_acls_request::DescribeAclsRequest;
    use describe_user_scram_credentials_request::{DescribeUserScramCredentialsRequest, UserName};
    use sasl_authenticate_request::SaslAuthenticateRequest;
    use sasl_handshake_request::SaslHandshakeRequest;
    let principal = "User:unrelated";
    let describe = DescribeAclsRequest {
        resource_type_filter: ANY,
        resource_name_filter: None,
        host_filter: None,
        pattern_type_filter: ANY,
        principal_filter: Some("User:*".into()),
        operation: ANY,
        permission_type: ANY,
        ..Default::default()
    };
    let create = CreateAclsRequest {
        creations: vec![AclCreation {
            resource_type: 2,
            resource_name: "t-mine".into(),
            resource_pattern_type: 3,
            principal: principal.into(),
            host: "*".into(),
            operation: 3,
            permission_type: 3,
            ..Default::default()
        }],
        ..Default::default()
    };
    let delete = DeleteAclsRequest {
        filters: vec![DeleteAclsFilter {
            resource_type_filter: ANY,
            resource_name_filter: None,
            host_filter: None,
            pattern_type_filter: ANY,
            principal_filter: Some("User:missing".into()),
            operation: ANY,
            permission_type: ANY,
            ..Default::default()
        }],
        ..Default::default()
    };
    let user = UserName { name: "missing".into(), ..Default::default() };
    let deletion = ScramCredentialDeletion { name: "missing".into(), mechanism: 1, ..Default::default() };
    vec![
        probe("", 3, describe),
        probe("", 3, create),
        probe("", 3, delete),
        probe("", 0, DescribeUserScramCredentialsRequest { users: Some(vec![user]), ..Default::default() }),
        probe("", 0, AlterUserScramCredentialsRequest { deletions: vec![deletion], ..Default::default() }),
        probe("", 0, ApiVersionsRequest::default()),
        probe("while logged in", 1, SaslHandshakeRequest { mechanism: "SCRAM-SHA-256".into() }),
        probe("while logged in", 2, SaslAuthenticateRequest::default()),
    ]
}

fn cluster() -> Vec<Probe> {
    use describe_client_quotas_request::DescribeClientQuotasRequest;
    use describe_cluster_request::DescribeClusterRequest;
    use describe_log_dirs_request::{DescribableLogDirTopic, DescribeLogDirsRequest};
    use describe_quorum_request::{DescribeQuorumRequest, PartitionData, TopicData};
    use elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
    use list_partition_reassignments_request::ListPartitionReassignmentsRequest;
    use unregister_broker_request::UnregisterBrokerRequest;
    use update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
    let topics = TOPICS.iter().map(|name| DescribableLogDirTopic {
        topic: (*name).into(),
        partitions: vec![0],
        ..Default::default()
    });
    let log_dirs = DescribeLogDirsRequest { topics: Some(topics.collect()), ..Default::default() };
    let quorum = TopicData {
        topic_name: "__cluster_metadata".into(),
        partitions: vec![PartitionData::default()],
        ..Default::default()
    };
    let elected = TOPICS.iter().map(|name| TopicPartitions {
        topic: (*name).into(),
        partitions: vec![0],
        ..Default::default()
    });
    let elect = ElectLeadersRequest { topic_partitions: Some(elected.collect()), ..Default::default() };
    let update =
        FeatureUpdateKey { feature: "metadata.version".into(), max_version_level: 30, ..Default::default() };
    let features =
        UpdateFeaturesRequest { feature_updates: vec![update], validate_only: true, ..Default::default() };
    let operations =
        DescribeClusterRequest { include_cluster_authorized_operations: true, ..Default::default() };
    vec![
        probe("", 4, log_dirs),
        alter_log_dirs(),
        probe("", 2, DescribeQuorumRequest { topics: vec![quorum], ..Default::default() }),
        probe("", 2, elect),
        probe("", 1, features),
        probe("", 2, operations),
        alter_reassignments(),
        probe("", 0, ListPartitionReassignmentsRequest::default()),
        probe("", 1, DescribeClientQuotasRequest::default()),
        alter_quotas(),
        probe("", 0, UnregisterBrokerRequest { broker_id: NODE + 98, ..Default::default() }),
    ]
}

fn alter_log_dirs() -> Probe {
    use alter_replica_log_dirs_request::{
        AlterReplicaLogDir, AlterReplicaLogDirTopic, AlterReplicaLogDirsRequest,
    };
    let topics = TOPICS.iter().map(|name| AlterReplicaLogDirTopic {
        name: (*name).into(),
        partitions: vec![0],
        ..Default::default()
    });
    let dir = AlterReplicaLogDir {
        path: "/a/missing/directory".into(),
        topics: topics.collect(),
        ..Default::default()
    };
    probe("", 2, AlterReplicaLogDirsRequest { dirs: vec![dir], ..Default::default() })
}

fn alter_reassignments() -> Probe {
    use alter_partition_reassignments_request::{
        AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
    };
    let topics = TOPICS.iter().map(|name| ReassignableTopic {
        name: (*name).into(),
        partitions: vec![ReassignablePartition { replicas: None, ..Default::default() }],
        ..Default::default()
    });
    probe("", 1, AlterPartitionReassignmentsRequest { topics: topics.collect(), ..Default::default() })
}

fn alter_quotas() -> Probe {
    use alter_client_quotas_request::{AlterClientQuotasRequest, EntityData, EntryData, OpData};
    let entity = EntityData {
        entity_type: "user".into(),
        entity_name: Some("unrelated".into()),
        ..Default::default()
    };
    let op = OpData { key: "producer_byte_rate".into(), value: 1e9, ..Default::default() };
    let entry = EntryData { entity: vec![entity], ops: vec![op], ..Default::default() };
    probe("", 1, AlterClientQuotasRequest { entries: vec![entry], validate_only: true, ..Default::default() })
}
