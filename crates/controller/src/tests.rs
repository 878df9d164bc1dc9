//! Answers to requests. Kafka's messages were copied from the answers of Kafka 4.3.0.

use super::create_topics::missing_topic;
use mainstem_records::LeaderEpoch;
use mainstem_wire::Uuid;

use super::session::*;
use super::*;
use mainstem_config::alter::Operation::*;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;

#[test]
fn topics_are_created_with_defaults() {
    let mut session = Session::new("num.partitions=3");
    assert_eq!(session.create(topic("a", 2, 1)), "ok 2x1");
    assert_eq!(session.create(topic("b", -1, -1)), "ok 3x1");
    assert_eq!(session.create(assigned("c", &[(1, &[1]), (0, &[1])])), "ok 2x1");
    assert_eq!(session.machine.image().topics().count(), 0, "nothing is committed yet");
    session.commit_all();
    let image = session.machine.image();
    let names: Vec<_> = image.topics().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let partition = &image.topic("b").expect("created").partitions[2];
    let expect = PartitionImage {
        leader: 1,
        leader_epoch: 0,
        partition_epoch: 0,
        replicas: vec![1],
        isr: vec![1],
        adding: vec![],
        removing: vec![],
        directories: vec![DIR],
        eligible_leader_replicas: vec![],
        last_known_elr: vec![],
        group: None,
    };
    assert_eq!(partition, &expect);
    assert_eq!(image.topics_from("b").count(), 2);
}

#[test]
fn an_image_that_a_reader_has_stays_as_it_is() {
    let mut session = Session::new("");
    session.create_all(vec![topic("a", 1, 1)], false);
    session.commit_all();
    let before = session.machine.shared_image();
    session.create_all(vec![topic("b", 1, 1)], false);
    session.commit_all();
    let after = session.machine.shared_image();
    assert!(before.topic("b").is_none() && after.topic("b").is_some() && after.topic("a").is_some());
    assert!(before.next_offset() < after.next_offset());
}

#[test]
fn answers_say_what_was_created() {
    let mut session = Session::new("log.segment.bytes=2000000");
    let topics = vec![with_configs("a", &[("retention.ms", Some("5"))])];
    let response = session.create_all(topics, false);
    let answer = &response.topics[0];
    assert!(!answer.topic_id.is_zero());
    let configs = answer.configs.as_ref().expect("configurations are answered");
    let shown = |name: &str| {
        let found = configs.iter().find(|config| config.name == name).expect("every key is answered");
        (found.value.as_deref().map(str::to_string), found.config_source, found.read_only)
    };
    assert_eq!(shown("retention.ms"), (Some("5".to_string()), 1, false));
    assert_eq!(shown("segment.bytes"), (Some("2000000".to_string()), 4, false));
    assert_eq!(shown("write.caching"), (Some("false".to_string()), 5, false));
}

#[test]
fn validate_only_creates_nothing() {
    let mut session = Session::new("");
    let response = session.create_all(vec![topic("a", 4, 1)], true);
    assert_eq!(created(&response), ["ok 4x1"]);
    assert!(response.topics[0].topic_id.is_zero(), "there is no topic that the id could be of");
    assert_eq!(session.commit_all(), []);
    assert_eq!(session.machine.ahead().topics().count(), 0);
}

#[test]
fn topics_that_cannot_be_are_refused() {
    let mut session = Session::new("");
    session.create(topic("a", 1, 1));
    session.create(topic("b.c", 1, 1));
    let mut refused = |topic, expect: &str| assert_eq!(session.create(topic), expect);
    refused(topic("a", 1, 1), "TOPIC_ALREADY_EXISTS: Topic 'a' already exists.");
    refused(topic("b_c", 1, 1), "INVALID_TOPIC_EXCEPTION: Topic 'b_c' collides with existing topic: b.c");
    refused(topic(".", 1, 1), "INVALID_TOPIC_EXCEPTION: Topic name is invalid: '.' is not allowed");
    refused(
        topic("p0", 0, 1),
        "INVALID_PARTITIONS: Number of partitions was set to an invalid non-positive value.",
    );
    refused(
        topic("p2", -2, 1),
        "INVALID_PARTITIONS: Number of partitions was set to an invalid non-positive value.",
    );
    for factor in [0, -2] {
        refused(
            topic("r", 1, factor),
            "INVALID_REPLICATION_FACTOR: \
             Replication factor must be larger than 0, or -1 to use the default value.",
        );
    }
    refused(
        topic("r3", 1, 3),
        "INVALID_REPLICATION_FACTOR: Unable to replicate the partition 3 time(s): The target replication \
         factor of 3 cannot be reached because only 1 broker(s) are registered or some brokers have all their log \
         directories cordoned.",
    );
    refused(topic("big", 10_001, 1), "POLICY_VIOLATION: Excessively large number of partitions per request.");
    refused(
        topic("__cluster_metadata", 1, 1),
        "INVALID_REQUEST: Creation of internal topic __cluster_metadata is prohibited.",
    );
    refused(with_configs("x", &[("foo", Some("1"))]), "INVALID_CONFIG: Unknown topic config name: foo");
    refused(
        with_configs("x", &[("retention.ms", None)]),
        "INVALID_CONFIG: Null value not supported for topic configs: retention.ms",
    );
    refused(
        with_configs("x", &[("retention.ms", Some("-2"))]),
        "INVALID_CONFIG: Invalid value -2 for configuration retention.ms: Value must be at least -1",
    );
    assert_eq!(session.machine.ahead().topics().count(), 2);
}

#[test]
fn assignments_that_cannot_be_are_refused() {
    let mut session = Session::new("");
    let mut refused = |topic, expect: &str| assert_eq!(session.create(topic), expect);
    const CODE: &str = "INVALID_REPLICA_ASSIGNMENT";
    const MANUAL: &str = "INVALID_REPLICA_ASSIGNMENT: The manual partition assignment includes";
    let gap = format!("{CODE}: partitions should be a consecutive 0-based integer sequence");
    refused(assigned("a", &[(0, &[1]), (2, &[1])]), &gap);
    refused(assigned("a", &[(1, &[1])]), &gap);
    refused(
        assigned("a", &[(0, &[1]), (0, &[1])]),
        &format!("{CODE}: Found multiple manual partition assignments for partition 0"),
    );
    refused(assigned("a", &[(0, &[2])]), &format!("{MANUAL} broker 2, but no such broker is registered."));
    refused(assigned("a", &[(0, &[-1])]), &format!("{MANUAL} broker -1, but no such broker is registered."));
    refused(assigned("a", &[(0, &[1, 1])]), &format!("{MANUAL} the broker 1 more than once."));
    refused(assigned("a", &[(0, &[])]), &format!("{MANUAL} an empty replica list."));
    let mut both = assigned("a", &[(0, &[1])]);
    both.num_partitions = 1;
    refused(
        both,
        "INVALID_REQUEST: A manual partition assignment was specified, but numPartitions was not set to -1.",
    );
    let mut both = assigned("a", &[(0, &[1])]);
    both.replication_factor = 1;
    refused(
        both,
        "INVALID_REQUEST: \
         A manual partition assignment was specified, but replication factor was not set to -1.",
    );
}

#[test]
fn a_request_is_answered_topic_by_topic() {
    let mut session = Session::new("");
    let topics =
        vec![topic("d", 1, 1), topic("a", 1, 1), topic("d", 2, 1), topic("x.y", 1, 1), topic("x_y", 1, 1)];
    assert_eq!(
        created(&session.create_all(topics, false)),
        [
            "INVALID_REQUEST: Duplicate topic name.",
            "ok 1x1",
            "ok 1x1",
            "INVALID_TOPIC_EXCEPTION: Topic 'x_y' collides with existing topic: x.y",
        ]
    );
    let topics = vec![topic("e", 6_000, 1), topic("f", 6_000, 1)];
    let excessive = "POLICY_VIOLATION: Excessively large number of partitions per request.";
    assert_eq!(created(&session.create_all(topics, false)), [excessive, excessive]);
}

#[test]
fn a_refusal_waits_for_what_it_rests_on() {
    let mut session = Session::new("");
    let first = session.end();
    session.create(topic("a", 1, 1));
    let request = mainstem_wire::messages::create_topics_request::CreateTopicsRequest {
        topics: vec![topic("a", 1, 1)],
        ..Default::default()
    };
    let refusal = session.machine.create_topics(&session.view, &request, &mut || 7, &mut |_| true);
    assert_eq!(refusal.records, Vec::<Vec<u8>>::new());
    assert_eq!(
        (first, refusal.reply_at),
        (session.end() - 2, session.end()),
        "after the topic's two records"
    );
}

#[test]
fn missing_topics_are_created_as_the_broker_says() {
    let mut session = Session::new("num.partitions=2\noffsets.topic.segment.bytes=100");
    let created = session.create_missing(&["a", "__consumer_offsets", "__transaction_state", "b/c"]);
    assert_eq!(created[..3], ["ok 2x1", "ok 50x1", "ok 50x1"]);
    assert!(created[3].starts_with("INVALID_TOPIC_EXCEPTION"), "{}", created[3]);
    session.commit_all();
    let configs = |name| {
        let resource = ConfigResource::new(ResourceKind::Topic, name);
        let values = session.machine.image().configs(&resource).iter();
        values.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        configs("__consumer_offsets"),
        "cleanup.policy=compact compression.type=producer segment.bytes=1048576"
    );
    assert_eq!(
        configs("__transaction_state"),
        "cleanup.policy=compact compression.type=uncompressed min.insync.replicas=1 \
         segment.bytes=104857600 unclean.leader.election.enable=false"
    );
    assert_eq!(session.create_missing(&["a"]), ["TOPIC_ALREADY_EXISTS: Topic 'a' already exists."]);
    for replicas in [1, 3] {
        let file = format!(
            "write.caching.default=true
offsets.topic.replication.factor={replicas}"
        );
        let topic = missing_topic("__consumer_offsets", &Session::new(&file).config());
        let own = topic.configs.iter().find(|config| config.name == "write.caching");
        assert_eq!(own.and_then(|config| config.value.as_deref()), (replicas == 3).then_some("false"));
    }
    let mut session = Session::new("offsets.topic.replication.factor=3");
    let refused = session.create_missing(&["__consumer_offsets"]);
    assert!(refused[0].starts_with("INVALID_REPLICATION_FACTOR"), "{}", refused[0]);
}

#[test]
fn topics_are_deleted_by_name_and_by_id() {
    let mut session = Session::new("");
    for name in ["a", "b", "c"] {
        session.create(with_configs(name, &[("retention.ms", Some("5"))]));
    }
    session.commit_all();
    let (b, c) = (session.id("b"), session.id("c"));
    let unknown = Uuid::from_u128(12345);
    assert_eq!(
        session.delete(&[
            (Some("a"), Uuid::ZERO),
            (None, b),
            (Some("nope"), Uuid::ZERO),
            (None, unknown),
            (None, Uuid::ZERO),
            (Some("c"), c),
        ]),
        [
            "ok",
            "ok",
            "UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.",
            "UNKNOWN_TOPIC_ID: This server does not host this topic ID.",
            "INVALID_REQUEST: Neither topic name nor id were specified.",
            "INVALID_REQUEST: You may not specify both topic name and topic id.",
        ]
    );
    assert_eq!(
        session.delete(&[(Some("c"), Uuid::ZERO), (Some("c"), Uuid::ZERO)]),
        ["INVALID_REQUEST: Duplicate topic name."]
    );
    assert_eq!(
        session.delete(&[(Some("c"), Uuid::ZERO), (None, c)]),
        ["ok", "INVALID_REQUEST: The provided topic name maps to an ID that was already supplied."]
    );
    let deleted = session.commit_all().into_iter().filter_map(|change| match change {
        MetadataChange::TopicDeleted { topic } => Some(topic.name),
        _ => None,
    });
    assert_eq!(deleted.collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(session.machine.image().configured(ResourceKind::Topic).count(), 0);
}

#[test]
fn a_topic_of_an_old_name_is_a_new_topic() {
    let mut session = Session::new("");
    session.create(with_configs("a.b", &[("retention.ms", Some("5"))]));
    session.commit_all();
    let old = session.id("a.b");
    session.delete(&[(Some("a.b"), Uuid::ZERO)]);
    assert_eq!(session.create(topic("a_b", 1, 1)), "ok 1x1", "nothing is left to collide with");
    session.delete(&[(Some("a_b"), Uuid::ZERO)]);
    session.create(topic("a.b", 1, 1));
    session.commit_all();
    assert_ne!(session.id("a.b"), old);
    assert_eq!(session.machine.image().topic_by_id(old), None);
    assert!(session.machine.image().configs(&ConfigResource::new(ResourceKind::Topic, "a.b")).is_empty());
}

#[test]
fn deletion_can_be_switched_off() {
    let mut session = Session::new("delete.topic.enable=false");
    session.create(topic("a", 1, 1));
    assert_eq!(
        session.delete(&[(Some("a"), Uuid::ZERO)]),
        ["TOPIC_DELETION_DISABLED: Topic deletion is disabled."]
    );
    let request = mainstem_wire::messages::delete_topics_request::DeleteTopicsRequest {
        topic_names: vec!["a".into()],
        ..Default::default()
    };
    let decision = session.machine.delete_topics(&session.view, &request, 2, &mut |_| true);
    let answer = &session.append(decision).responses[0];
    assert_eq!(
        said(answer.error_code, answer.error_message.as_deref()),
        "INVALID_REQUEST: Topic deletion is disabled.",
        "before v3 there is no code for it"
    );
}

#[test]
fn topics_grow() {
    let mut session = Session::new("");
    session.create(topic("a", 1, 1));
    session.create(topic("__consumer_offsets", 50, 1));
    assert_eq!(session.grow("a", 3, None), "ok");
    assert_eq!(session.grow("a", 4, Some(&[&[1]])), "ok");
    session.commit_all();
    assert_eq!(session.machine.image().topic("a").expect("created").partitions.len(), 4);
    let mut refused = |name, count, assignments, expect: &str| {
        assert_eq!(session.grow(name, count, assignments), expect);
    };
    refused("a", 4, None, "INVALID_PARTITIONS: Topic already has 4 partition(s).");
    for count in [2, 0, -1] {
        refused(
            "a",
            count,
            None,
            &format!(
                "INVALID_PARTITIONS: The topic a currently has 4 partition(s); {count} would not be an increase."
            ),
        );
    }
    refused("nope", 2, None, "UNKNOWN_TOPIC_OR_PARTITION: This server does not host this topic-partition.");
    refused(
        "__consumer_offsets",
        51,
        None,
        "INVALID_PARTITIONS: The number of partitions of __consumer_offsets cannot be changed.",
    );
    refused("a", 20_000, None, "POLICY_VIOLATION: Excessively large number of partitions per request.");
    refused(
        "a",
        6,
        Some(&[&[1]]),
        "INVALID_REPLICA_ASSIGNMENT: \
         Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
    );
    const MANUAL: &str = "INVALID_REPLICA_ASSIGNMENT: The manual partition assignment includes";
    refused("a", 5, Some(&[&[7]]), &format!("{MANUAL} broker 7, but no such broker is registered."));
    refused("a", 5, Some(&[&[1, 1]]), &format!("{MANUAL} the broker 1 more than once."));
    refused("a", 5, Some(&[&[]]), &format!("{MANUAL} an empty replica list."));
}

#[test]
fn configurations_change_all_or_none() {
    let mut session = Session::new("");
    session.create(topic("a", 1, 1));
    session.commit_all();
    let values = |session: &Session, kind, name| {
        let resource = ConfigResource::new(kind, name);
        let values = session.machine.image().configs(&resource).iter();
        values.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(session.alter(TOPIC, "a", &[("retention.ms", Set, Some("5"))], false), "ok");
    assert_eq!(session.alter(TOPIC, "a", &[("retention.ms", Set, Some("6"))], true), "ok", "validate only");
    let bad = [("retention.ms", Set, Some("7")), ("foo", Set, Some("1"))];
    assert_eq!(session.alter(TOPIC, "a", &bad, false), "INVALID_CONFIG: Unknown topic config name: foo");
    assert_eq!(session.commit_all().len(), 1);
    assert_eq!(values(&session, ResourceKind::Topic, "a"), "retention.ms=5");
    assert_eq!(session.alter(TOPIC, "a", &[("retention.ms", Delete, None)], false), "ok");
    assert_eq!(session.alter(GROUP, "g", &[("share.session.timeout.ms", Set, Some("46000"))], false), "ok");
    session.commit_all();
    assert_eq!(values(&session, ResourceKind::Topic, "a"), "");
    assert_eq!(values(&session, ResourceKind::Group, "g"), "share.session.timeout.ms=46000");
    session.alter(GROUP, "g", &[("consumer.session.timeout.ms", Set, Some("50000"))], false);
    session.commit_all();
    let session_timeout = |group| {
        let broker = session.config();
        session.machine.image().group_config(group, &broker.values).consumer_session_timeout_ms
    };
    assert_eq!((session_timeout("g"), session_timeout("another")), (50_000, 45_000));
}

#[test]
fn values_of_the_node_count_before_the_clusters() {
    let mut session = Session::new("max.connections=10");
    let set = |value| [("max.connections", Set, Some(value))];
    assert_eq!(session.alter(BROKER, "", &set("20"), false), "ok");
    assert_eq!(session.config().network.max_connections, 10, "not committed");
    session.commit_all();
    assert_eq!(session.config().network.max_connections, 20);
    assert_eq!(session.alter(BROKER, "1", &set("30"), false), "ok");
    session.commit_all();
    assert_eq!(session.config().network.max_connections, 30);
    // A topic created from now on is checked and described under the values that were set.
    session.alter(BROKER, "", &[("log.segment.bytes", Set, Some("3000000"))], false);
    let response = session.create_all(vec![topic("a", 1, 1)], false);
    let configs = response.topics[0].configs.as_ref().expect("configurations are answered");
    let segment = configs.iter().find(|config| config.name == "segment.bytes").expect("a topic key");
    assert_eq!((segment.value.as_deref(), segment.config_source), (Some("3000000"), 3));
    // A restart under another file finds them in the log.
    let (mut again, view) = (MetadataStateMachine::default(), view("max.connections=99"));
    for (offset, record) in (0..).zip(&session.log) {
        again.replay(offset, record).expect("the state machine's own records");
    }
    assert_eq!(view.config(again.image()).network.max_connections, 30);
}

#[test]
fn configurations_that_no_client_has_are_refused() {
    let mut session = Session::new("");
    let mut refused = |kind, name, expect: &str| {
        assert_eq!(session.alter(kind, name, &[("retention.ms", Set, Some("5"))], false), expect);
    };
    refused(TOPIC, "nope", "UNKNOWN_TOPIC_OR_PARTITION: The topic 'nope' does not exist.");
    refused(TOPIC, "", "INVALID_REQUEST: Default topic resources are not allowed.");
    refused(GROUP, "", "INVALID_REQUEST: Default group resources are not allowed.");
    refused(BROKER, "2", "INVALID_REQUEST: Unexpected broker id, expected 1 or empty string, but received 2");
    refused(BROKER, "x", "INVALID_REQUEST: Node id must be an integer, but it is: x");
    refused(8, "m", "INVALID_REQUEST: Configurations of resource type 8 cannot be altered.");
    refused(16, "", "INVALID_REQUEST: Subscription name can't be empty");
    refused(16, "m", "INVALID_REQUEST: Unknown client metrics configuration: retention.ms");
}

#[test]
fn the_number_of_configured_groups_is_bounded() {
    let mut session = Session::new("");
    let set = [("share.session.timeout.ms", Set, Some("46000"))];
    let names: Vec<String> = (0..CONFIGURED_GROUPS_MAX).map(|number| format!("g{number}")).collect();
    let refused = session.alter_all(GROUP, names.iter().map(String::as_str), &set);
    assert!(refused.is_empty(), "{refused:?}");
    let refused = session.alter_all(GROUP, ["one", "more"].into_iter(), &set);
    assert_eq!(refused.len(), 2);
    assert!(refused[0].starts_with("POLICY_VIOLATION: 10000 groups have configurations"), "{refused:?}");
    assert_eq!(session.alter(GROUP, "g0", &[("share.session.timeout.ms", Delete, None)], false), "ok");
    let refused = session.alter_all(GROUP, ["one", "more"].into_iter(), &set);
    assert_eq!(refused.len(), 1, "only one of them fits");
    let long = "g".repeat(CONFIGURED_GROUP_NAME_BYTES_MAX + 1);
    let expect = "INVALID_REQUEST: A group's name may have 4096 bytes.";
    assert_eq!(session.alter(GROUP, &long, &set, false), expect);
}

#[test]
fn an_unclean_stop_raises_the_epochs_of_what_it_may_have_cut() {
    let mut session = Session::new("");
    let both = [DIR, OTHER_DIR];
    let first = session.start(&node_start(2, &both, &[]));
    session.create(topic("a", 4, 1));
    session.commit_all();
    let epochs = |session: &Session| {
        let partitions = &session.machine.image().topic("a").expect("created").partitions;
        partitions
            .iter()
            .map(|p| (p.directories[0] == DIR, p.leader_epoch, p.partition_epoch))
            .collect::<Vec<_>>()
    };
    assert_eq!(epochs(&session), [(true, 0, 0), (false, 0, 0), (true, 0, 0), (false, 0, 0)], "spread evenly");
    let second = session.start(&node_start(3, &both, &[OTHER_DIR]));
    assert!(second > first, "each start has a higher broker epoch");
    assert_eq!(epochs(&session), [(true, 0, 0), (false, 1, 1), (true, 0, 0), (false, 1, 1)]);
    session.start(&node_start(4, &both, &[]));
    assert_eq!(epochs(&session), [(true, 0, 0), (false, 1, 1), (true, 0, 0), (false, 1, 1)]);
    let topic = session.machine.image().topic("a").expect("created").id;
    let decision = session.machine.raise_leader_epochs(
        &session.view,
        1,
        &[(topic, 0), (topic, 9), (Uuid::from_u128(404), 0)],
    );
    session.append(decision);
    session.commit_all();
    assert_eq!(
        epochs(&session)[..2],
        [(true, 1, 1), (false, 1, 1)],
        "one of its own, and none that is not there"
    );
    let broker = session.machine.image().broker(1).expect("registered");
    assert_eq!((broker.incarnation_id, broker.log_dirs.as_slice()), (Uuid::from_u128(4), both.as_slice()));
    assert_eq!(
        session.machine.image().features().collect::<Vec<_>>(),
        [("group.version", 1), ("metadata.version", 30), ("transaction.version", 2)]
    );
    assert_eq!(session.machine.image().unsupported_feature(&session.view), None);
}

#[test]
fn partitions_move_between_directories_and_stay_led() {
    let mut session = Session::new("");
    let both = [DIR, OTHER_DIR];
    session.start(&node_start(2, &both, &[]));
    session.create(topic("a", 2, 1));
    session.commit_all();
    let topic_id = session.id("a");
    let to = |partition, directory| DirectoryAssignment { topic_id, partition, directory };
    let gone = DirectoryAssignment { topic_id: Uuid::from_u128(9), partition: 0, directory: DIR };
    // A known leader, or one of a deleted topic, makes no record.
    let decision =
        session.machine.assign_directories(1, &[to(0, OTHER_DIR), to(1, OTHER_DIR), to(7, DIR), gone]);
    assert_eq!(decision.records.len(), 1);
    session.append(decision);
    let changes = session.commit_all();
    assert_eq!(changes, [MetadataChange::PartitionChanged { topic_id, partition: 0 }]);
    let partition = &session.machine.image().topic("a").expect("created").partitions[0];
    assert_eq!(
        (
            partition.directories.as_slice(),
            partition.leader,
            partition.leader_epoch,
            partition.partition_epoch
        ),
        ([OTHER_DIR].as_slice(), 1, 0, 1)
    );
}

#[test]
fn new_partitions_go_where_a_directory_is_online() {
    let mut session = Session::new("");
    session.start(&node_start(2, &[DIR, OTHER_DIR], &[]));
    for expected in [1, 0] {
        let decision = session.machine.directories_online(1, &[OTHER_DIR]);
        assert_eq!(decision.records.len(), expected, "the second time nothing is new");
        session.append(decision);
    }
    session.commit_all();
    session.create(topic("a", 3, 1));
    session.commit_all();
    let partitions = &session.machine.image().topic("a").expect("created").partitions;
    assert!(partitions.iter().all(|partition| partition.directories == [OTHER_DIR]), "{partitions:?}");
}

#[test]
fn new_partitions_go_where_no_directory_is_cordoned() {
    const NONE_OPEN: &str = "INVALID_REPLICATION_FACTOR: Unable to replicate the partition 1 time(s): All brokers are \
                             currently fenced, or have all their log directories cordoned.";
    let mut session = Session::new("");
    let start = NodeStart { cordoned_dirs: vec![DIR], ..node_start(2, &[DIR, OTHER_DIR], &[]) };
    session.start(&start);
    session.create(topic("a", 3, 1));
    for expected in [1, 0] {
        let decision = session.machine.directories_cordoned(1, &[DIR, OTHER_DIR]);
        assert_eq!(decision.records.len(), expected, "the second time nothing is new");
        session.append(decision);
    }
    assert_eq!(session.create(topic("b", 1, 1)), NONE_OPEN);
    assert_eq!(session.grow("a", 4, None), NONE_OPEN);
    let decision = session.machine.directories_cordoned(1, &[OTHER_DIR]);
    session.append(decision);
    assert_eq!(session.create(topic("b", 3, 1)), "ok 3x1");
    session.commit_all();
    let places = |name| {
        let partitions = &session.machine.image().topic(name).expect("created").partitions;
        partitions.iter().flat_map(|partition| partition.directories.clone()).collect::<Vec<_>>()
    };
    assert_eq!((places("a"), places("b")), (vec![OTHER_DIR; 3], vec![DIR; 3]));
    let snapshot = session.machine.image().broker(1).expect("registered").cordoned_log_dirs.clone();
    assert_eq!(snapshot, [OTHER_DIR]);
}

#[test]
fn producer_ids_are_taken_before_they_are_used() {
    let mut session = Session::new("");
    let decision = session.machine.allocate_producer_ids(1);
    assert_eq!(session.append(decision), Ok(0..1000));
    let decision = session.machine.allocate_producer_ids(1);
    assert_eq!(session.append(decision), Ok(1000..2000), "although the first is not committed");
    session.machine.committed(session.end() - 1);
    // After a crash only committed records are left.
    let end = session.machine.rollback();
    session.log.truncate(usize::try_from(end).expect("a short log"));
    let mut again = MetadataStateMachine::default();
    for (offset, record) in (0..).zip(&session.log) {
        again.replay(offset, record).expect("the state machine's own records");
    }
    assert_eq!(again.allocate_producer_ids(1).reply, Ok(1000..2000));
}

#[test]
fn producer_ids_need_a_registered_node() {
    let mut machine = MetadataStateMachine::default();
    let decision = machine.allocate_producer_ids(1);
    assert_eq!(decision.reply.map_err(|error| error.message), Err("Broker 1 is not registered.".to_string()));
}

#[test]
fn records_that_contradict_the_log_are_refused() {
    let mut session = Session::new("");
    session.create(topic("a", 1, 1));
    session.commit_all();
    let log = session.log.clone();
    let end = session.end();
    let replay = |machine: &mut MetadataStateMachine, offset, record: &[u8]| {
        machine.replay(offset, record).expect_err("the record does not fit").to_string()
    };
    let (topic_record, partition_record) = (&log[log.len() - 2], &log[log.len() - 1]);
    let machine = &mut session.machine;
    assert_eq!(
        replay(machine, end, topic_record),
        format!(
            "metadata record at offset {end}: topic a with id {} exists or cannot exist",
            machine.image().topic("a").expect("created").id
        )
    );
    let id = machine.image().topic("a").expect("created").id;
    assert_eq!(
        replay(machine, end, partition_record),
        format!(
            "metadata record at offset {end}: partition 0 does not follow the 1 partitions of topic id {id}"
        )
    );
    assert_eq!(
        replay(machine, 0, topic_record),
        format!("metadata record at offset 0: offset {end} or above was expected")
    );
    assert!(replay(machine, end, b"\x02").starts_with(&format!("metadata record at offset {end}: ")));
    assert_eq!(machine.image().next_offset(), end);
}

#[test]
fn control_records_leave_gaps_in_the_offsets() {
    let mut session = Session::new("");
    session.create(topic("a", 1, 1));
    let mut machine = MetadataStateMachine::default();
    for (offset, record) in (0..).zip(&session.log) {
        machine.replay(offset * 2 + 1, record).expect("offsets rise");
    }
    assert_eq!(machine.image().next_offset(), session.end() * 2);
    machine.skip_to(100);
    assert_eq!(machine.register_node(&session.view, &node_start(2, &[DIR], &[])).base_offset, 100);
}

/// A node of a cluster that has three.
fn cluster() -> Session {
    let mut session = Session::new(
        "node.id=1\nprocess.roles=broker,controller\ncontroller.listener.names=CONTROLLER\n\
         listeners=PLAINTEXT://:9092,CONTROLLER://127.0.0.1:9093\ncontroller.quorum.voters=1@a:1,2@b:1,3@c:1",
    );
    for node_id in [2, 3] {
        let dir = Uuid::from_u128(0xd0 + u128::try_from(node_id).expect("a small number") * 256);
        session.start(&NodeStart { node_id, ..node_start(1, &[dir], &[]) });
    }
    session
}

#[test]
fn replicas_are_on_as_many_nodes_as_there_are() {
    let mut session = cluster();
    assert_eq!(session.create(topic("a", 3, 3)), "ok 3x3");
    assert!(session.create(topic("b", 1, 4)).starts_with("INVALID_REPLICATION_FACTOR"));
    assert_eq!(session.create_missing(&["__consumer_offsets"]), ["ok 50x3"], "Kafka's default");
    session.commit_all();
    let image = session.machine.image().topic("a").expect("created");
    let replicas: Vec<_> = image.partitions.iter().map(|partition| partition.replicas.clone()).collect();
    assert_eq!(replicas, [[1, 2, 3], [2, 3, 1], [3, 1, 2]].map(|nodes| nodes.to_vec()));
    assert!(image.partitions.iter().all(|partition| partition.leader == -1 && partition.isr.len() == 3));
    assert_eq!(session.grow("a", 4, None), "ok");
    session.commit_all();
    let grown = &session.machine.image().topic("a").expect("it is there").partitions[3];
    assert_eq!(grown.replicas, [1, 3, 2]);
}

fn fence(session: &mut Session, node: i32, epoch: i64, fenced: bool) -> usize {
    let decision = session.machine.set_fenced(node, epoch, fenced);
    let records = decision.records.len();
    session.append(decision);
    session.commit_all();
    records
}

fn epoch(session: &Session, node: i32) -> i64 {
    session.machine.image().broker(node).expect("registered").epoch
}

#[test]
fn a_node_is_fenced_once_and_never_for_a_registration_before() {
    let mut session = cluster();
    let epoch = epoch(&session, 3);
    assert_eq!(fence(&mut session, 3, epoch - 1, true), 0, "it has registered again since");
    assert_eq!((fence(&mut session, 3, epoch, true), fence(&mut session, 3, epoch, true)), (1, 0));
    assert_eq!(fence(&mut session, 3, epoch, false), 1);
}

#[test]
fn a_topic_is_created_while_a_node_is_fenced() {
    let mut session = cluster();
    let epoch = epoch(&session, 3);
    fence(&mut session, 3, epoch, true);
    assert_eq!(session.create(topic("a", 4, 3)), "ok 4x3");
    assert_eq!(session.create(topic("two", 4, 2)), "ok 4x2");
    assert!(session.create(topic("four", 1, 4)).starts_with("INVALID_REPLICATION_FACTOR"));
    session.commit_all();
    assert_eq!(session.grow("a", 5, None), "ok");
    session.commit_all();
    let partitions = |name: &str| &session.machine.image().topic(name).expect("created").partitions;
    assert_eq!((partitions("a").len(), partitions("two").len()), (5, 4));
    for partition in partitions("a") {
        assert_eq!(partition.replicas[2], 3, "it does not come first: {partition:?}");
        assert_eq!(partition.isr, partition.replicas[..2], "it is not in sync: {partition:?}");
    }
    for partition in partitions("two") {
        assert!(!partition.replicas.contains(&3), "the others are enough: {partition:?}");
    }
}

#[test]
fn nothing_is_created_that_could_elect_no_leader() {
    let mut session = cluster();
    for node in [2, 3] {
        let epoch = epoch(&session, node);
        fence(&mut session, node, epoch, true);
    }
    assert_eq!(session.create(topic("one", 1, 1)), "ok 1x1");
    for factor in [2, 3] {
        let refused = session.create(topic("a", 1, factor));
        let expected = format!(
            "INVALID_REPLICATION_FACTOR: Unable to replicate the partition {factor} time(s): Only 1 broker(s) are not \
             fenced, and 2 are needed to elect a leader."
        );
        assert_eq!(refused, expected);
    }
}

#[test]
fn nothing_is_created_where_all_nodes_are_fenced() {
    let mut session = cluster();
    session.create(topic("there", 1, 1));
    for node in [1, 2, 3] {
        let epoch = epoch(&session, node);
        fence(&mut session, node, epoch, true);
    }
    let refused = session.create(topic("a", 1, 1));
    assert_eq!(
        refused,
        "INVALID_REPLICATION_FACTOR: Unable to replicate the partition 1 time(s): All brokers are currently fenced, or \
         have all their log directories cordoned."
    );
    let assigned = "INVALID_REPLICA_ASSIGNMENT: All brokers specified in the manual partition assignment for partition \
                    1 are fenced or in controlled shutdown.";
    assert_eq!(session.grow("there", 2, Some(&[&[2]])), assigned);
    let epoch = epoch(&session, 2);
    fence(&mut session, 2, epoch, false);
    assert_eq!(session.grow("there", 2, Some(&[&[2]])), "ok");
}

#[test]
fn leaders_are_noted_once_and_never_older_ones() {
    let mut session = cluster();
    session.create(topic("a", 1, 3));
    session.create(topic("one", 1, 1));
    session.commit_all();
    let (id, one) = (session.id("a"), session.id("one"));
    let note = |topic_id, leader, leader_epoch, isr: &[i32]| LeaderNote {
        topic_id,
        partition: 0,
        leader,
        leader_epoch: LeaderEpoch::new(leader_epoch),
        isr: isr.to_vec(),
    };
    let mut noted = |note: LeaderNote| {
        let decision = session.machine.note_leaders(&session.view, &[note]);
        let records = decision.records.len();
        session.append(decision);
        session.commit_all();
        records
    };
    assert_eq!(noted(note(id, 2, 5, &[3, 2])), 1);
    assert_eq!(noted(note(id, 2, 5, &[2, 3])), 0, "known");
    assert_eq!(noted(note(id, 3, 4, &[3])), 0, "older");
    assert_eq!(noted(note(id, 9, 6, &[9])), 0, "no replica");
    assert_eq!(noted(note(one, 1, 6, &[1])), 0, "it has no election");
    assert_eq!(noted(note(id, 2, 5, &[1, 2, 3])), 1);
    let partition = &session.machine.image().topic("a").expect("there").partitions[0];
    assert_eq!((partition.leader, partition.leader_epoch, partition.partition_epoch), (2, 5, 2));
    assert_eq!((partition.isr.len(), partition.replicas.len(), partition.directories.len()), (3, 3, 3));
}

#[test]
fn attached_queues_are_topics_for_as_long_as_they_are_attached_and_stay_as_they_are() {
    let attached = |name: &str, id: u128, leader_epoch: i32| AttachedTopic {
        name: name.to_string(),
        id: Uuid::from_u128(id),
        leader_epoch,
        configs: [("segment.bytes".to_string(), "67108864".to_string())].into(),
    };
    let mut session = Session::new("");
    session.create(topic("a", 1, 1));
    session.commit_all();
    let attach = |session: &mut Session, queues: &[AttachedTopic]| {
        let decision = session.machine.attach_topics(&session.view, queues);
        let records = decision.records.len();
        let reply = session.append(decision);
        session.commit_all();
        reply.map(|()| records).map_err(|error| error.message)
    };
    assert_eq!(attach(&mut session, &[attached("trades", 1 << 70, 0)]), Ok(3));
    let image = session.machine.image().topic("trades").expect("it is attached").clone();
    assert!(image.is_attached() && !session.machine.image().topic("a").expect("it stays").is_attached());
    assert_eq!(attach(&mut session, &[attached("trades", 1 << 70, 0)]), Ok(0), "nothing has changed");
    assert_eq!(attach(&mut session, &[attached("trades", 1 << 70, 3)]), Ok(4));
    let partition = &session.machine.image().topic("trades").expect("it is attached").partitions[0];
    assert_eq!((partition.leader_epoch, &partition.replicas), (3, &vec![1]));
    for (queues, why) in [
        (vec![attached("a", 1 << 71, 0)], "is in the log directories already"),
        (vec![attached("__consumer_offsets", 1 << 71, 0)], "of the broker's own"),
        (vec![attached("b", 1 << 71, 0), attached("c", 1 << 71, 0)], "cannot both be attached"),
        (vec![attached("b", 17, 0)], "which is no topic's"),
    ] {
        let refused = attach(&mut session, &queues).expect_err("it is refused");
        assert!(refused.contains(why), "{refused}");
    }
    let growth = session.grow("trades", 2, None);
    let deleted = session.delete(&[(Some("trades"), Uuid::ZERO)]);
    assert!(deleted[0].contains("its directory stays a queue"), "{deleted:?}");
    let altered = session.alter(TOPIC, "trades", &[("retention.ms", Set, Some("5"))], false);
    assert!(altered.contains("its rules are those"), "{altered}");
    assert!(growth.starts_with("POLICY_VIOLATION: Topic trades is an embedded queue"), "{growth}");
    assert_eq!(attach(&mut session, &[]), Ok(1));
    assert!(session.machine.image().topic("trades").is_none());
}
