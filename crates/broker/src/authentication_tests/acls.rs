//! Operations of users under the rules of the metadata, over connections of their own.

use mainstem_records::{BatchBuilder, BatchOptions};
use mainstem_security::acl::{AclOperation, AclPermissionType, PatternType, ResourceType};
use mainstem_wire::Records;
use mainstem_wire::messages::consumer_group_heartbeat_request::ConsumerGroupHeartbeatRequest;
use mainstem_wire::messages::create_acls_request::{AclCreation, CreateAclsRequest};
use mainstem_wire::messages::create_topics_request::{CreatableTopic, CreateTopicsRequest};
use mainstem_wire::messages::delete_acls_request::{DeleteAclsFilter, DeleteAclsRequest};
use mainstem_wire::messages::delete_topics_request::{DeleteTopicState, DeleteTopicsRequest};
use mainstem_wire::messages::describe_acls_request::DescribeAclsRequest;
use mainstem_wire::messages::describe_cluster_request::DescribeClusterRequest;
use mainstem_wire::messages::describe_user_scram_credentials_request::DescribeUserScramCredentialsRequest;
use mainstem_wire::messages::fetch_request::{FetchPartition, FetchRequest, FetchTopic};
use mainstem_wire::messages::find_coordinator_request::FindCoordinatorRequest;
use mainstem_wire::messages::init_producer_id_request::InitProducerIdRequest;
use mainstem_wire::messages::list_groups_request::ListGroupsRequest;
use mainstem_wire::messages::metadata_request::MetadataRequestTopic;
use mainstem_wire::messages::produce_request::{PartitionProduceData, ProduceRequest, TopicProduceData};

use super::*;

const AUTHORIZER: (&str, &str) =
    ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer");
const USERS: (&str, &str) = (
    "listener.name.sasl_plaintext.plain.sasl.jaas.config",
    "org.apache.kafka.common.security.plain.PlainLoginModule required user_admin=\"p\" user_alice=\"p\" user_eve=\"p\";",
);

fn guarded(settings: &[(&str, &str)]) -> EmbeddedBroker {
    let own = [AUTHORIZER, USERS, ("super.users", "User:root;User:admin")];
    broker(&[&own[..], settings].concat())
}

fn user(broker: &EmbeddedBroker, name: &str) -> Peer {
    let mut peer = Peer::connect(broker);
    assert_eq!(peer.log_in(Mechanism::Plain, name, "p"), Ok(0));
    peer
}

/// A rule on a topic, for `User:NAME`.
fn rule(
    principal: &str,
    permission: AclPermissionType,
    operation: AclOperation,
    (resource, pattern, name): (ResourceType, PatternType, &'static str),
) -> AclCreation<'static> {
    AclCreation {
        resource_type: resource.code(),
        resource_name: name.into(),
        resource_pattern_type: pattern.code(),
        principal: format!("User:{principal}").into(),
        host: "*".into(),
        operation: operation.code(),
        permission_type: permission.code(),
        ..Default::default()
    }
}

fn create(peer: &mut Peer, rules: Vec<AclCreation<'static>>) -> Vec<i16> {
    let request = CreateAclsRequest { creations: rules, ..Default::default() };
    let response = peer.call(&request, 3).unwrap();
    response.results.iter().map(|result| result.error_code).collect()
}

const ALLOW: AclPermissionType = AclPermissionType::Allow;
const DENY: AclPermissionType = AclPermissionType::Deny;

fn topic(name: &'static str) -> (ResourceType, PatternType, &'static str) {
    (ResourceType::Topic, PatternType::Literal, name)
}

fn create_topic(peer: &mut Peer, name: &'static str) -> (i16, i16, i32) {
    let topic =
        CreatableTopic { name: name.into(), num_partitions: 2, replication_factor: 1, ..Default::default() };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    let response = peer.call(&request, 7).unwrap();
    let answer = &response.topics[0];
    (answer.error_code, answer.topic_config_error_code, answer.num_partitions)
}

fn fetch(peer: &mut Peer, name: &'static str) -> i16 {
    let partition = FetchPartition { partition: 0, partition_max_bytes: 1000, ..Default::default() };
    let topic = FetchTopic { topic: name.into(), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest { max_bytes: 1000, topics: vec![topic], ..Default::default() };
    let response = peer.call(&request, 11).unwrap();
    response.responses[0].partitions[0].error_code
}

fn produce(peer: &mut Peer, name: &'static str) -> i16 {
    let partition = PartitionProduceData { index: 0, ..Default::default() };
    let topic = TopicProduceData { name: name.into(), partition_data: vec![partition], ..Default::default() };
    let request = ProduceRequest { acks: 1, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() };
    let response = peer.call(&request, 9).unwrap();
    response.responses[0].partition_responses[0].error_code
}

fn named(name: &'static str) -> MetadataRequest<'static> {
    let topic = MetadataRequestTopic { name: Some(name.into()), ..Default::default() };
    MetadataRequest { topics: Some(vec![topic]), allow_auto_topic_creation: true, ..Default::default() }
}

fn describe(peer: &mut Peer, name: &'static str) -> i16 {
    peer.call(&named(name), 12).unwrap().topics[0].error_code
}

/// One more than the length, as an unsigned varint.
fn compact_length(length: usize) -> Vec<u8> {
    let (mut left, mut bytes) = (length + 1, Vec::new());
    while left >= 0x80 {
        bytes.push(left as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

fn code(error: ErrorCode) -> i16 {
    error.code()
}

const TOPIC_DENIED: ErrorCode = ErrorCode::TOPIC_AUTHORIZATION_FAILED;
const CLUSTER_DENIED: ErrorCode = ErrorCode::CLUSTER_AUTHORIZATION_FAILED;

#[test]
fn users_may_do_what_rules_allow_and_super_users_everything() {
    let broker = guarded(&[]);
    let (mut admin, mut alice, mut eve) =
        (user(&broker, "admin"), user(&broker, "alice"), user(&broker, "eve"));
    assert_eq!(create_topic(&mut admin, "orders"), (0, 0, 2));
    assert_eq!(create_topic(&mut alice, "mine").0, code(TOPIC_DENIED));
    // Existing and missing topics look alike.
    for name in ["orders", "missing"] {
        assert_eq!(describe(&mut alice, name), code(TOPIC_DENIED), "{name}");
        assert_eq!(fetch(&mut alice, name), code(TOPIC_DENIED), "{name}");
        assert_eq!(produce(&mut alice, name), code(TOPIC_DENIED), "{name}");
    }
    let rules = vec![
        rule("alice", ALLOW, AclOperation::Read, topic("orders")),
        rule("eve", ALLOW, AclOperation::All, (ResourceType::Topic, PatternType::Prefixed, "ord")),
        rule("eve", DENY, AclOperation::Write, topic("orders")),
    ];
    assert_eq!(create(&mut admin, rules), [0, 0, 0]);
    assert_eq!(fetch(&mut alice, "orders"), 0);
    assert_eq!(describe(&mut alice, "orders"), 0, "Read implies Describe");
    assert_eq!(produce(&mut alice, "orders"), code(TOPIC_DENIED));
    assert_eq!(fetch(&mut eve, "orders"), 0);
    assert_eq!(produce(&mut eve, "orders"), code(TOPIC_DENIED), "deny wins");
    let all = MetadataRequest { topics: None, ..Default::default() };
    assert_eq!(alice.call(&all, 12).unwrap().topics.len(), 1);
    assert_eq!(user(&broker, "admin").call(&all, 12).unwrap().topics.len(), 1);
    let asked = ["request", "allowed", "denied"]
        .map(|what| count(&broker, &format!("kafka_server_authorizer_metrics_authorization_{what}_total")));
    assert!(asked[1] >= 5 && asked[2] >= 8 && asked[0] == asked[1] + asked[2], "{asked:?}");
    assert_eq!(count(&broker, "kafka_server_authorizer_metrics_acls_total_count"), 3);
}

#[test]
fn equal_denials_are_one_line_and_a_count() {
    let broker = guarded(&[]);
    let mut alice = user(&broker, "alice");
    let authorization = broker.broker().security.authorization().expect("it is configured");
    let begin = Instant::now();
    assert!((0..5).all(|_| fetch(&mut alice, "orders") == code(TOPIC_DENIED)));
    assert_eq!(fetch(&mut alice, "a\nforged"), code(TOPIC_DENIED));
    let again = authorization.repeated(begin + Duration::from_secs(3600));
    let [(line, repeated)] = &again[..] else { panic!("{again:?}") };
    assert_eq!(*repeated, 4);
    assert!(line.contains("Principal = User:alice is Denied operation = READ"), "{line}");
    assert!(line.contains("Topic:LITERAL:orders for request = Fetch"), "{line}");
}

#[test]
fn a_rule_that_goes_is_felt_by_connections_that_are_open() {
    let broker = guarded(&[]);
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    create_topic(&mut admin, "orders");
    assert_eq!(create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Read, topic("orders"))]), [0]);
    assert_eq!(fetch(&mut alice, "orders"), 0);
    let filter = DeleteAclsFilter {
        resource_type_filter: ResourceType::Topic.code(),
        resource_name_filter: Some("orders".into()),
        pattern_type_filter: 1,
        principal_filter: None,
        host_filter: None,
        operation: 1,
        permission_type: 1,
        ..Default::default()
    };
    let request = DeleteAclsRequest { filters: vec![filter], ..Default::default() };
    assert_eq!(alice.call(&request, 3).unwrap().filter_results[0].error_code, code(CLUSTER_DENIED));
    assert_eq!(admin.call(&request, 3).unwrap().filter_results[0].matching_acls.len(), 1);
    assert_eq!(fetch(&mut alice, "orders"), code(TOPIC_DENIED));
}

#[test]
fn a_rule_that_goes_is_felt_within_a_fetch_session() {
    let broker = guarded(&[]);
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    create_topic(&mut admin, "orders");
    let allowed = || vec![rule("alice", ALLOW, AclOperation::Read, topic("orders"))];
    assert_eq!(create(&mut admin, allowed()), [0]);
    let partition = FetchPartition { partition: 0, partition_max_bytes: 1000, ..Default::default() };
    let whole =
        vec![FetchTopic { topic: "orders".into(), partitions: vec![partition], ..Default::default() }];
    // Sends a fetch. Returns the session's id, and the error of each partition in the answer.
    let ask = |peer: &mut Peer, session: (i32, i32), topics: &[FetchTopic<'static>]| {
        let request = FetchRequest {
            max_bytes: 1000,
            session_id: session.0,
            session_epoch: session.1,
            topics: topics.to_vec(),
            ..Default::default()
        };
        let response = peer.call(&request, 11).unwrap();
        assert_eq!(response.error_code, 0);
        let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
        (response.session_id, partitions.map(|partition| partition.error_code).collect::<Vec<_>>())
    };
    let (id, errors) = ask(&mut alice, (0, 0), &whole);
    assert!(id != 0 && errors == [0], "{id} {errors:?}");
    assert_eq!(ask(&mut alice, (id, 1), &[]).1, [0; 0], "nothing is new");
    let filter = DeleteAclsFilter {
        resource_type_filter: ResourceType::Topic.code(),
        resource_name_filter: None,
        pattern_type_filter: 1,
        principal_filter: None,
        host_filter: None,
        operation: 1,
        permission_type: 1,
        ..Default::default()
    };
    let request = DeleteAclsRequest { filters: vec![filter], ..Default::default() };
    assert_eq!(admin.call(&request, 3).unwrap().filter_results[0].matching_acls.len(), 1);
    for epoch in 2..4 {
        assert_eq!(
            ask(&mut alice, (id, epoch), &[]).1,
            [code(TOPIC_DENIED)],
            "though it is asked for no topic"
        );
    }
    assert_eq!(create(&mut admin, allowed()), [0]);
    let after = ask(&mut alice, (id, 4), &[]).1;
    assert!(after.iter().all(|error| *error == 0), "{after:?}");
}

/// A rule about all topics includes the broker's own, as far as clients have to do with them. Clients cannot use the
/// metadata as a topic, and only the broker writes committed offsets.
#[test]
fn internal_topics_under_a_rule_for_all_topics() {
    const OFFSETS: &str = "__consumer_offsets";
    const METADATA: &str = "__cluster_metadata";
    let broker = guarded(&[("offsets.topic.num.partitions", "1")]);
    let (mut admin, mut alice, mut eve) =
        (user(&broker, "admin"), user(&broker, "alice"), user(&broker, "eve"));
    let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
    let began = Instant::now();
    while admin.call(&find, 6).unwrap().coordinators[0].error_code != 0 {
        assert!(began.elapsed() < TIMEOUT, "the topic of groups is created");
    }
    assert_eq!(create(&mut admin, vec![rule("alice", ALLOW, AclOperation::All, topic("*"))]), [0]);
    assert_eq!((fetch(&mut alice, OFFSETS), fetch(&mut eve, OFFSETS)), (0, code(TOPIC_DENIED)));
    let invalid = code(ErrorCode::INVALID_TOPIC_EXCEPTION);
    assert_eq!((produce(&mut alice, OFFSETS), produce(&mut eve, OFFSETS)), (invalid, code(TOPIC_DENIED)));
    let unknown = code(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    for peer in [&mut alice, &mut admin] {
        assert_eq!(fetch(peer, METADATA), unknown, "keys of users are in it");
        assert_ne!(produce(peer, METADATA), 0);
        let all = MetadataRequest { topics: None, ..Default::default() };
        let response = peer.call(&all, 12).unwrap();
        let names: Vec<&str> = response.topics.iter().filter_map(|topic| topic.name.as_deref()).collect();
        assert_eq!(names, [OFFSETS]);
    }
    assert_eq!(fetch(&mut eve, METADATA), code(TOPIC_DENIED));
}

#[test]
fn rules_survive_a_restart_and_are_described_to_who_may_see_them() {
    let listeners = format!("SASL_PLAINTEXT://127.0.0.1:{}", mainstem_testkit::port());
    let mut broker = guarded(&[("listeners", &listeners)]);
    let mut admin = user(&broker, "admin");
    create_topic(&mut admin, "orders");
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Write, topic("orders"))]);
    drop(admin);
    broker.start_again();
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    assert_ne!(produce(&mut alice, "orders"), code(TOPIC_DENIED));
    let request = DescribeAclsRequest {
        resource_type_filter: 1,
        resource_name_filter: None,
        pattern_type_filter: 1,
        principal_filter: None,
        host_filter: None,
        operation: 1,
        permission_type: 1,
        ..Default::default()
    };
    assert_eq!(alice.call(&request, 3).unwrap().error_code, code(CLUSTER_DENIED));
    let described = admin.call(&request, 3).unwrap();
    let rules: Vec<_> = described.resources.iter().flat_map(|one| &one.acls).collect();
    assert_eq!((rules.len(), &*rules[0].principal), (1, "User:alice"));
}

/// Requests that a node forwards for a client. Only nodes can make them, not even a super user.
#[test]
fn a_forged_envelope_is_not_opened() {
    const ENVELOPE: i16 = 58;
    let broker = guarded(&[]);
    let topic = CreatableTopic {
        name: "forged".into(),
        num_partitions: 1,
        replication_factor: 1,
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 1000, ..Default::default() };
    let within = Peer::encode(&request, 7);
    for sender in [None, Some("alice"), Some("admin")] {
        let mut peer = sender.map_or_else(|| Peer::connect(&broker), |name| user(&broker, name));
        // Header (key, version, correlation id, no client id, tags), request, principal, address, tags.
        let mut body = ENVELOPE.to_be_bytes().to_vec();
        body.extend([0, 0, 0, 0, 0, 7, 255, 255, 0]);
        let mut bytes = |field: &[u8]| {
            body.extend(compact_length(field.len()));
            body.extend(field);
        };
        bytes(&within[4..]);
        bytes(b"\0\0\x05User\x05root\0\0");
        bytes(&[127, 0, 0, 1]);
        body.push(0);
        peer.stream.write_all(&(body.len() as i32).to_be_bytes()).unwrap();
        peer.stream.write_all(&body).unwrap();
        assert!(peer.is_closed(), "{sender:?}");
    }
    assert_eq!(
        describe(&mut user(&broker, "admin"), "other"),
        0,
        "the broker continues, and makes what it may"
    );
    let image = broker.broker().controller.image();
    assert!(image.topic("forged").is_none());
}

#[test]
fn without_an_authorizer_there_are_no_rules() {
    let broker = broker(&[USERS]);
    let mut alice = user(&broker, "alice");
    let rules = vec![rule("alice", ALLOW, AclOperation::Read, topic("orders"))];
    assert_eq!(create(&mut alice, rules), [code(ErrorCode::SECURITY_DISABLED)]);
    assert_eq!(create_topic(&mut alice, "orders"), (0, 0, 2));
}

#[test]
fn what_concerns_the_cluster_needs_rules_of_its_own() {
    let broker = guarded(&[]);
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    let cluster = (ResourceType::Cluster, PatternType::Literal, "kafka-cluster");
    let operations = |peer: &mut Peer| {
        let request =
            DescribeClusterRequest { include_cluster_authorized_operations: true, ..Default::default() };
        peer.call(&request, 2).unwrap().cluster_authorized_operations
    };
    let init = |peer: &mut Peer| {
        let request = InitProducerIdRequest {
            transactional_id: None,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        };
        peer.call(&request, 4).unwrap().error_code
    };
    let users =
        |peer: &mut Peer| peer.call(&DescribeUserScramCredentialsRequest::default(), 0).unwrap().error_code;
    assert_eq!((operations(&mut alice), init(&mut alice)), (0, code(CLUSTER_DENIED)));
    assert_eq!((users(&mut alice), users(&mut admin)), (code(CLUSTER_DENIED), 0));
    assert_ne!(operations(&mut admin), 0);
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Write, topic("any"))]);
    assert_eq!(init(&mut alice), 0, "Write on a topic implies IdempotentWrite (KIP-679)");
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Describe, cluster)]);
    assert_eq!(operations(&mut alice), 1 << AclOperation::Describe.code());
    assert_eq!(alice.call(&ListGroupsRequest::default(), 4).unwrap().error_code, 0);
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Create, cluster)]);
    let hidden = (0, code(TOPIC_DENIED), -1);
    assert_eq!(create_topic(&mut alice, "made"), hidden, "its configuration is another question");
    let state = DeleteTopicState { name: Some("made".into()), ..Default::default() };
    let request = DeleteTopicsRequest { topics: vec![state], timeout_ms: 1000, ..Default::default() };
    assert_eq!(alice.call(&request, 6).unwrap().responses[0].error_code, code(TOPIC_DENIED));
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Delete, cluster)]);
    assert_eq!(alice.call(&request, 6).unwrap().responses[0].error_code, 0);
}

#[test]
fn a_topic_is_created_by_naming_it_where_that_is_allowed() {
    let broker = guarded(&[]);
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Describe, topic("auto"))]);
    assert_eq!(describe(&mut alice, "auto"), code(TOPIC_DENIED), "it may be described, if it were there");
    create(&mut admin, vec![rule("alice", ALLOW, AclOperation::Create, topic("auto"))]);
    describe(&mut alice, "auto");
    let began = Instant::now();
    while describe(&mut alice, "auto") != 0 {
        assert!(began.elapsed() < TIMEOUT, "it is created");
    }
}

#[test]
fn what_no_rule_concerns_may_be_open() {
    let broker = guarded(&[("allow.everyone.if.no.acl.found", "true")]);
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    create_topic(&mut admin, "orders");
    assert_eq!(fetch(&mut alice, "orders"), 0);
    create(&mut admin, vec![rule("eve", ALLOW, AclOperation::Read, topic("orders"))]);
    assert_eq!(fetch(&mut alice, "orders"), code(TOPIC_DENIED));
}

#[test]
fn a_pattern_of_topics_matches_what_the_member_may_describe() {
    let broker = guarded(&[]);
    let mut admin = user(&broker, "admin");
    for name in ["orders", "secrets"] {
        assert_eq!(create_topic(&mut admin, name).0, 0);
    }
    let group = (ResourceType::Group, PatternType::Literal, "g");
    let rules = vec![
        rule("alice", ALLOW, AclOperation::Read, topic("orders")),
        rule("alice", ALLOW, AclOperation::Read, group),
    ];
    assert_eq!(create(&mut admin, rules), [0, 0]);
    let mut alice = user(&broker, "alice");
    let request = ConsumerGroupHeartbeatRequest {
        group_id: "g".into(),
        member_id: "a-member".into(),
        rebalance_timeout_ms: 10_000,
        subscribed_topic_regex: Some(".*".into()),
        topic_partitions: Some(Vec::new()),
        ..Default::default()
    };
    let assigned = |peer: &mut Peer, member: &'static str| {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            // The offsets topic is created when a client looks for its coordinator.
            let find = FindCoordinatorRequest { coordinator_keys: vec!["g".into()], ..Default::default() };
            peer.call(&find, 6).unwrap();
            let request = ConsumerGroupHeartbeatRequest { member_id: member.into(), ..request.clone() };
            let response = peer.call(&request, 1).unwrap();
            if response.error_code == 0 {
                let assignment = response.assignment.expect("a member that joins gets one");
                return assignment
                    .topic_partitions
                    .iter()
                    .map(|topic| topic.partitions.len())
                    .collect::<Vec<_>>();
            }
            assert!(Instant::now() < deadline, "{response:?}");
        }
    };
    assert_eq!(assigned(&mut alice, "a-member"), [2], "the partitions of one topic");
}

/// Rules also apply to a fetch that waits for long.
#[test]
fn a_fetch_that_waits_gets_nothing_that_is_denied_meanwhile() {
    let broker = guarded(&[]);
    let (mut admin, mut alice) = (user(&broker, "admin"), user(&broker, "alice"));
    create_topic(&mut admin, "quiet");
    let read = |permission| rule("alice", permission, AclOperation::Read, topic("quiet"));
    assert_eq!(create(&mut admin, vec![read(ALLOW)]), [0]);
    let partition = FetchPartition { partition: 0, partition_max_bytes: 1000, ..Default::default() };
    let topic = FetchTopic { topic: "quiet".into(), partitions: vec![partition], ..Default::default() };
    let request = FetchRequest {
        max_wait_ms: i32::MAX,
        min_bytes: 1,
        max_bytes: 1000,
        session_epoch: -1,
        topics: vec![topic],
        ..Default::default()
    };
    alice.send(&request, 11).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let partition = broker.broker().store.topics.partition("quiet", 0).unwrap();
    while !partition.has_waiting_fetch() {
        assert!(Instant::now() < deadline, "the fetch does not wait");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(create(&mut admin, vec![read(DENY)]), [0]);
    let mut secret = BatchBuilder::new(BatchOptions::default());
    secret.append(0, None, Some(b"a secret"), &[]).unwrap();
    let records = Some(Records::Bytes(secret.build().unwrap().into()));
    let data = PartitionProduceData { index: 0, records, ..Default::default() };
    let topic = TopicProduceData { name: "quiet".into(), partition_data: vec![data], ..Default::default() };
    let produce = ProduceRequest { acks: 1, timeout_ms: 1000, topic_data: vec![topic], ..Default::default() };
    assert_eq!(admin.call(&produce, 9).unwrap().responses[0].partition_responses[0].error_code, 0);
    let response = alice.answer::<FetchRequest<'_>>(11).unwrap();
    let answer = &response.responses[0].partitions[0];
    assert_eq!(answer.error_code, code(TOPIC_DENIED));
    assert_eq!(answer.records.as_ref().map_or(0, Records::len), 0);
}
