//! An administrator's calls to brokers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use mainstem_wire::messages::create_topics_response::{CreatableTopicResult, CreateTopicsResponse};
use mainstem_wire::messages::delete_topics_response::{DeletableTopicResult, DeleteTopicsResponse};
use mainstem_wire::messages::describe_configs_response::{
    DescribeConfigsResourceResult, DescribeConfigsResponse, DescribeConfigsResult,
};
use mainstem_wire::{ApiKey, ErrorCode};
use tokio::task::JoinSet;

use super::*;
use crate::testing::secured::USER;
use crate::testing::{ScriptedBroker, WAIT_TIMEOUT, World, answer, eventually, on_both_brokers};
use crate::{
    ConsumerConfig, GroupConfig, GroupConsumer, Isolation, Position, Producer, ProducerConfig, Record,
};

on_both_brokers!(
    topics_come_grow_and_go,
    settings_are_changed_and_say_where_they_come_from,
    groups_have_settings,
    what_has_settings_is_listed,
    what_does_not_exist_is_reported_at_once,
    replicas_are_reported_page_by_page,
    passwords_of_users_are_reported,
    nodes_are_unregistered,
    groups_are_described_and_their_offsets_moved,
    copies_are_placed_as_asked,
    groups_are_listed_by_state_and_type,
    static_members_are_removed,
    what_a_partition_takes_is_reported,
    records_are_deleted,
    producers_are_reported,
    transactions_are_listed_described_and_ended,
    leaders_and_places_of_partitions_are_asked_for,
    quotas_are_set_and_taken_away,
    the_cluster_is_described,
);

async fn topics_come_grow_and_go(world: World) {
    let admin = world.admin();
    let (t, a) = (&*world.topic, &*world.name("a"));
    let names = async || -> Vec<String> {
        let all = admin.topics().await.unwrap();
        let own =
            all.iter().map(|topic| topic.name.to_string()).filter(|name| [t, a].contains(&name.as_str()));
        own.collect()
    };
    let checked = NewTopic { validate_only: true, ..world.new_topic(t, 1) };
    admin.create_topic(&checked).await.unwrap();
    assert!(names().await.is_empty());
    assert_eq!(admin.find_topic(t).await.unwrap(), None);
    let created = admin.create_topic(&world.new_topic(t, 2)).await.unwrap();
    if created.partitions.is_some() {
        assert_eq!((created.partitions, created.replication_factor), (Some(2), Some(1)));
    }
    admin.create_topic(&world.new_topic(a, 1)).await.unwrap();
    // Kafka's controller answers before its broker knows.
    eventually("both are listed", async || names().await == [t, a]).await;
    assert_eq!(admin.find_topic(t).await.unwrap().unwrap().id, created.id);
    let again = admin.create_topic(&world.new_topic(t, 1)).await.unwrap_err();
    assert_eq!(again.code(), Some(ErrorCode::TOPIC_ALREADY_EXISTS));
    assert!(again.to_string().starts_with(&format!("cannot create topic {t}: ")), "{again}");
    admin.create_partitions(t, 5).await.unwrap();
    eventually("it has grown", async || admin.topic(t).await.unwrap().partitions.len() == 5).await;
    let fewer = admin.create_partitions(t, 3).await.unwrap_err();
    assert_eq!(fewer.code(), Some(ErrorCode::INVALID_PARTITIONS));
    admin.delete_topic(t).await.unwrap();
    eventually("it is gone", async || names().await == [a]).await;
    assert_eq!(admin.delete_topic_if_exists(a).await, Ok(true));
    eventually("there is none any more", async || names().await.is_empty()).await;
    assert_eq!(admin.delete_topic_if_exists(a).await, Ok(false));
    let config = ClientConfig { operation_timeout: Duration::from_secs(2), ..world.client() };
    // On a busy machine there is no answer within that time now and then.
    let gone = Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);
    eventually("it is unknown", async || {
        Admin::new(config.clone()).topic(t).await.unwrap_err().code() == gone
    })
    .await;
}

async fn settings_are_changed_and_say_where_they_come_from(world: World) {
    let admin = world.admin();
    world.create(1, &[("segment.ms", "1000")]).await;
    let topic = ConfigResource::Topic(world.topic.to_string());
    let shown = async |resource: &ConfigResource, name: &str| {
        let configs = match admin.configs(resource).await {
            // Kafka's controller answers before its broker knows.
            Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => return None,
            configs => configs.unwrap(),
        };
        let found = configs.into_iter().find(|config| config.name == name);
        found.map(|config| (config.value.unwrap(), config.source))
    };
    let set = |name: &str, value: &str| ConfigChange::Set(name.to_owned(), value.to_owned());
    let becomes = async |resource: &ConfigResource, name: &str, value: &str, source: ConfigSource| {
        let expected = Some((value.to_owned(), source));
        eventually(&format!("{name} is {value}"), async || shown(resource, name).await == expected).await;
    };
    becomes(&topic, "segment.ms", "1000", ConfigSource::Topic).await;
    admin.alter_configs(&topic, &[set("segment.ms", "5")], true).await.unwrap();
    becomes(&topic, "segment.ms", "1000", ConfigSource::Topic).await;
    let append = ConfigChange::Append("cleanup.policy".to_owned(), "compact".to_owned());
    let delete = ConfigChange::Delete("segment.ms".to_owned());
    admin.alter_configs(&topic, &[append, delete], false).await.unwrap();
    becomes(&topic, "cleanup.policy", "delete,compact", ConfigSource::Topic).await;
    assert_eq!(shown(&topic, "segment.ms").await.unwrap().1, ConfigSource::Default);
    let wrong = admin.alter_configs(&topic, &[set("segment.ms", "soon")], false).await.unwrap_err();
    assert_eq!(wrong.code(), Some(ErrorCode::INVALID_CONFIG));
    let node = admin.nodes().await.unwrap()[0];
    assert_eq!(shown(&ConfigResource::Broker(node), "log.dirs").await.unwrap().1, ConfigSource::StaticBroker);
    for (resource, name, value, source) in [
        // The value that it has already: other tests use this broker too.
        (ConfigResource::AllBrokers, "log.retention.ms", "-1", ConfigSource::DynamicDefaultBroker),
        (ConfigResource::ClientMetrics("m".to_owned()), "interval.ms", "1000", ConfigSource::ClientMetrics),
        (ConfigResource::Loggers(node), "root", "WARN", ConfigSource::Logger),
    ] {
        admin.alter_configs(&resource, &[set(name, value)], false).await.unwrap();
        becomes(&resource, name, value, source).await;
    }
}

async fn groups_have_settings(world: World) {
    let admin = world.admin();
    let group = ConfigResource::Group(world.group.to_string());
    let name = "consumer.session.timeout.ms";
    let change = ConfigChange::Set(name.to_owned(), "50000".to_owned());
    admin.alter_configs(&group, &[change], false).await.unwrap();
    eventually("the setting is the group's", async || {
        let configs = admin.configs(&group).await.unwrap();
        let found = configs.into_iter().find(|config| config.name == name).unwrap();
        (found.value.as_deref(), found.source) == (Some("50000"), ConfigSource::Group)
    })
    .await;
}

async fn groups_are_described_and_their_offsets_moved(world: World) {
    let admin = world.admin();
    let (g, other, third) = (&*world.group, &*world.name("other"), &*world.name("third"));
    let producer = Producer::new(ProducerConfig::new(world.client())).unwrap();
    producer.send(Record::new(world.topic.clone(), "a")).await.unwrap().await.unwrap();
    assert_eq!(admin.describe_group(g).await.unwrap(), None);
    let own = GroupConfig {
        start: Position::Beginning,
        instance_id: Some("one".into()),
        ..GroupConfig::new(world.group.clone(), [world.topic.clone()], ConsumerConfig::new(world.client()))
    };
    let mut member = GroupConsumer::new(own).unwrap();
    let _ = member.next().await.unwrap();
    member.commit().await.unwrap();
    let key = world.t(0);
    let group = admin.describe_group(g).await.unwrap().unwrap();
    assert_eq!((group.state.as_str(), group.assignor.as_str()), ("Stable", "cooperative-sticky"));
    assert_eq!(group.members[0].instance_id.as_deref(), Some("one"));
    assert_eq!(group.members[0].assignment, BTreeSet::from([key.clone()]));
    let listed = admin.groups().await.unwrap().into_iter().find(|listed| listed.group_id == *world.group);
    assert_eq!(listed.unwrap().coordinator, admin.coordinator(g).await.unwrap());
    assert_eq!(admin.group_offsets(g).await.unwrap(), BTreeMap::from([(key.clone(), 1)]));
    let busy = admin.delete_group(g).await.unwrap_err();
    assert_eq!(busy.code(), Some(ErrorCode::NON_EMPTY_GROUP));
    assert_eq!(admin.delete_group_if_exists(g).await, Err(busy));
    let moved = BTreeMap::from([(key.clone(), 0)]);
    let refused = admin.set_group_offsets(g, &moved).await.expect_err("its members know better").to_string();
    assert!(refused.starts_with(&format!("cannot set the offset of group {g} in {key}: ")), "{refused}");
    let read = admin.delete_group_offsets(g, &BTreeSet::from([key.clone()])).await.unwrap_err();
    assert_eq!(read.code(), Some(ErrorCode::GROUP_SUBSCRIBED_TO_TOPIC));
    assert!(read.to_string().contains(&key.to_string()), "{read}");
    admin.set_group_offsets(other, &moved).await.unwrap();
    assert_eq!(admin.group_offsets(other).await.unwrap(), moved);
    admin.delete_group_offsets(other, &BTreeSet::from([key.clone()])).await.unwrap();
    assert!(admin.group_offsets(other).await.unwrap().is_empty());
    admin.set_group_offsets(third, &moved).await.unwrap();
    admin.delete_group(third).await.unwrap();
    assert_eq!(admin.delete_group_if_exists(third).await, Ok(false));
    assert_eq!(admin.describe_group(third).await.unwrap(), None);
    let end = admin.offsets([(key.clone(), Position::End)], Isolation::ReadUncommitted).await.unwrap();
    assert_eq!(end, BTreeMap::from([(key, Some(1))]));
}

async fn copies_are_placed_as_asked(world: World) {
    let admin = world.admin();
    let (t, node) = (&*world.topic, admin.nodes().await.unwrap()[0]);
    let nowhere = NewTopic::new(t).replicas([vec![node + 100]]);
    let refused = admin.create_topic(&nowhere).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::INVALID_REPLICA_ASSIGNMENT));
    admin.create_topic(&NewTopic::new(t).replicas([vec![node], vec![node]])).await.unwrap();
    let has = async |count: usize| {
        let topic = admin.find_topic(t).await.unwrap();
        topic.is_some_and(|topic| {
            topic.partitions.len() == count && topic.partitions.iter().all(|one| one.replicas == [node])
        })
    };
    eventually("it has two partitions there", async || has(2).await).await;
    let refused = admin.create_partitions_on(t, 3, &[vec![node + 100]]).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::INVALID_REPLICA_ASSIGNMENT));
    admin.create_partitions_on(t, 4, &[vec![node], vec![node]]).await.unwrap();
    eventually("it has four", async || has(4).await).await;
}

async fn groups_are_listed_by_state_and_type(world: World) {
    world.create(1, &[]).await;
    let admin = world.admin();
    let g = &*world.group;
    admin.set_group_offsets(g, &BTreeMap::from([(world.t(0), 0)])).await.unwrap();
    for (states, types, expected) in [
        (vec![], vec![], true),
        (vec!["Empty"], vec![], true),
        (vec!["Stable", "Empty"], vec!["classic"], true),
        (vec!["Stable"], vec![], false),
        (vec!["Empty"], vec!["consumer"], false),
    ] {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        let filter = GroupFilter { states: words(&states), types: words(&types) };
        let listed = admin.groups_like(&filter).await.unwrap();
        assert_eq!(listed.iter().any(|one| one.group_id == g), expected, "{filter:?}");
    }
}

async fn static_members_are_removed(world: World) {
    world.create(1, &[]).await;
    let admin = world.admin();
    let own = GroupConfig {
        instance_id: Some("one".into()),
        ..GroupConfig::new(world.group.clone(), [world.topic.clone()], ConsumerConfig::new(world.client()))
    };
    let member = GroupConsumer::new(own).unwrap();
    let members = async || {
        let group = admin.describe_group(&world.group).await.unwrap();
        group.map_or(0, |group| group.members.len())
    };
    eventually("it is a member", async || members().await == 1).await;
    // The member has gone, and yet its group keeps its offset.
    drop(member);
    assert_eq!(members().await, 1);
    let names = BTreeSet::from(["one".to_owned(), "missing".to_owned()]);
    let removed = admin.remove_members(&world.group, &names).await.unwrap();
    assert_eq!(removed["one"], Ok(()));
    let refused = removed["missing"].clone().unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::UNKNOWN_MEMBER_ID));
    assert!(refused.to_string().starts_with("cannot remove member missing of group "), "{refused}");
    assert_eq!(members().await, 0);
}

async fn what_a_partition_takes_is_reported(world: World) {
    let admin = world.admin();
    let producer = Producer::new(ProducerConfig::new(world.client())).unwrap();
    producer.send(Record::new(world.topic.clone(), vec![b'x'; 5_000])).await.unwrap().await.unwrap();
    let nodes = admin.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1);
    let dirs = admin.log_dirs(nodes[0]).await.unwrap();
    assert_eq!((dirs.len(), &dirs[0].error), (1, &None));
    assert!(dirs[0].usable_bytes.unwrap() <= dirs[0].total_bytes.unwrap());
    let key = world.t(0);
    let replica = dirs[0].replicas.iter().find(|replica| replica.partition == key).unwrap();
    assert!((5_000..6_000).contains(&replica.size_bytes) && !replica.is_future, "{replica:?}");
}

/// Ten records to each of two partitions.
async fn fill(world: &World) {
    world.create(2, &[]).await;
    let producer = Producer::new(ProducerConfig::new(world.client())).unwrap();
    for number in 0..20 {
        let record = Record::new(world.topic.clone(), number.to_string()).partition(number % 2);
        let _ = producer.send(record).await.unwrap();
    }
    producer.close().await;
}

async fn records_are_deleted(world: World) {
    fill(&world).await;
    let admin = world.admin();
    let before = BTreeMap::from([(world.t(0), 4), (world.t(1), -1)]);
    let firsts = admin.delete_records(&before).await.unwrap();
    assert_eq!(firsts, BTreeMap::from([(world.t(0), 4), (world.t(1), 10)]));
    let begin = [(world.t(0), Position::Beginning)];
    let found = admin.offsets(begin, Isolation::ReadUncommitted).await.unwrap();
    assert_eq!(found, BTreeMap::from([(world.t(0), Some(4))]));
    let beyond = admin.delete_records(&BTreeMap::from([(world.t(0), 11)])).await.unwrap_err();
    assert_eq!(beyond.code(), Some(ErrorCode::OFFSET_OUT_OF_RANGE));
}

async fn producers_are_reported(world: World) {
    fill(&world).await;
    let producers = world.admin().producers(&world.t(0)).await.unwrap();
    assert_eq!(producers.len(), 1);
    assert_eq!((producers[0].last_sequence, producers[0].transaction_start_offset), (9, None));
}

async fn transactions_are_listed_described_and_ended(world: World) {
    world.create(1, &[]).await;
    let (admin, id) = (world.admin(), world.name("tx"));
    let config = ProducerConfig::new(world.client()).transactional_id(id.as_str());
    let producer = Producer::new(config).unwrap();
    assert_eq!(admin.describe_transaction(&id).await.unwrap(), None);
    producer.init_transactions().await.unwrap();
    producer.begin_transaction().unwrap();
    producer.send(Record::new(world.topic.clone(), "open")).await.unwrap().await.unwrap();
    let described = admin.describe_transaction(&id).await.unwrap().unwrap();
    assert_eq!((&*described.state, &described.partitions), ("Ongoing", &BTreeSet::from([world.t(0)])));
    assert!(described.start_time_ms.is_some(), "{described:?}");
    let states = async |filter: TransactionFilter| -> Vec<String> {
        let found = admin.transactions(&filter).await.unwrap();
        found.into_iter().filter(|one| one.transactional_id == id).map(|one| one.state).collect()
    };
    let of_state = |state: &str| TransactionFilter { states: vec![state.to_owned()], ..Default::default() };
    let of_producer = |id| TransactionFilter { producer_ids: vec![id], ..Default::default() };
    assert_eq!(states(TransactionFilter::default()).await, ["Ongoing"]);
    assert_eq!(states(of_state("Ongoing")).await, ["Ongoing"]);
    assert_eq!(states(of_producer(described.producer_id)).await, ["Ongoing"]);
    assert!(states(of_state("CompleteCommit")).await.is_empty());
    assert!(states(of_producer(described.producer_id + 1000)).await.is_empty());
    let unknown = admin.transactions(&of_state("Odd")).await.unwrap_err();
    assert_eq!(unknown, Error::Invalid("transactions have no state Odd".to_owned()));
    let hanging = HangingTransaction {
        partition: world.t(0),
        producer_id: described.producer_id,
        producer_epoch: described.producer_epoch,
        coordinator_epoch: 0,
    };
    admin.abort_hanging(&hanging).await.unwrap();
    let producers = admin.producers(&world.t(0)).await.unwrap();
    assert_eq!((producers[0].transaction_start_offset, producers[0].coordinator_epoch), (None, Some(0)));
    let earlier = HangingTransaction { producer_epoch: -2, ..hanging };
    let refused = admin.abort_hanging(&earlier).await.unwrap_err();
    assert!(refused.to_string().starts_with("cannot abort the transaction of producer"), "{refused}");
}

async fn leaders_and_places_of_partitions_are_asked_for(world: World) {
    world.create(1, &[]).await;
    let admin = world.admin();
    let wanted = BTreeSet::from([world.t(0)]);
    let elected = admin.elect_leaders(Election::Preferred, Some(&wanted)).await.unwrap();
    assert!(Election::was_needless(&elected[&world.t(0)]), "{elected:?}");
    let missing = BTreeSet::from([world.t(7)]);
    let elected = admin.elect_leaders(Election::Preferred, Some(&missing)).await.unwrap();
    let refused = elected[&world.t(7)].clone().unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    let node = admin.nodes().await.unwrap()[0];
    admin.reassign(&BTreeMap::from([(world.t(0), Some(vec![node]))])).await.unwrap();
    eventually("nothing moves", async || {
        let moves = admin.reassignments().await.unwrap();
        moves.iter().all(|one| one.partition != world.t(0))
    })
    .await;
    let nowhere = BTreeMap::from([(world.t(0), Some(vec![node + 100]))]);
    let refused = admin.reassign(&nowhere).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::INVALID_REPLICA_ASSIGNMENT));
    let dirs = admin.log_dirs(node).await.unwrap();
    let here = BTreeMap::from([(world.t(0), dirs[0].path.clone())]);
    admin.move_to_log_dirs(node, &here).await.unwrap();
    let nowhere = BTreeMap::from([(world.t(0), "/no/such/directory".to_owned())]);
    let refused = admin.move_to_log_dirs(node, &nowhere).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::LOG_DIR_NOT_FOUND));
}

async fn quotas_are_set_and_taken_away(world: World) {
    let admin = world.admin();
    let name = world.name("client");
    let entity = QuotaEntity::from([("client-id".to_owned(), Some(name.clone()))]);
    let rate = |value: Option<f64>| BTreeMap::from([("producer_byte_rate".to_owned(), value)]);
    let filter = [QuotaFilter::Name("client-id".to_owned(), name)];
    admin.alter_quotas(&entity, &rate(Some(5.0)), true).await.unwrap();
    assert!(admin.quotas(&filter, true).await.unwrap().is_empty(), "it was only tried");
    admin.alter_quotas(&entity, &rate(Some(1e6)), false).await.unwrap();
    let expected =
        BTreeMap::from([(entity.clone(), BTreeMap::from([("producer_byte_rate".to_owned(), 1e6)]))]);
    eventually("the quota is described", async || admin.quotas(&filter, true).await.unwrap() == expected)
        .await;
    let any = [QuotaFilter::Any("client-id".to_owned())];
    assert!(admin.quotas(&any, false).await.unwrap().contains_key(&entity));
    admin.alter_quotas(&entity, &rate(None), false).await.unwrap();
    eventually("it is gone", async || admin.quotas(&filter, true).await.unwrap().is_empty()).await;
    let unknown = BTreeMap::from([("byte_rate_of_dreams".to_owned(), Some(1.0))]);
    let refused = admin.alter_quotas(&entity, &unknown, false).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::INVALID_REQUEST));
    let whose = format!("cannot change the quotas of client-id {}: ", world.name("client"));
    assert!(refused.to_string().starts_with(&whose), "{refused}");
}

async fn the_cluster_is_described(world: World) {
    world.create(1, &[]).await;
    let admin = world.admin();
    let cluster = admin.cluster().await.unwrap();
    let node = admin.nodes().await.unwrap()[0];
    assert!(!cluster.cluster_id.is_empty());
    assert_eq!((cluster.controller, cluster.brokers.len()), (Some(node), 1));
    assert_eq!(format!("{}:{}", cluster.brokers[&node].host, cluster.brokers[&node].port), world.address());
    let with_fenced = admin.cluster_with_fenced().await.unwrap();
    assert_eq!(with_fenced, cluster);
    assert!(cluster.brokers[&node].is_fenced.is_none_or(|is_fenced| !is_fenced));
    let quorum = admin.quorum().await.unwrap();
    assert_eq!((quorum.leader, quorum.voters.len()), (node, 1));
    assert!(quorum.voters[0].last_fetch_ms.is_none_or(|ms| ms > 0), "{quorum:?}");
    assert!(quorum.high_watermark > 0 && quorum.voters[0].log_end_offset >= Some(quorum.high_watermark));
    let features = admin.features().await.unwrap();
    let version = &features["metadata.version"];
    assert!(version.supported.contains(&version.level), "{version:?}");
    let name = "metadata.version";
    let refused =
        admin.update_feature(name, version.supported.end() + 1, FeatureUpgrade::Upgrade, true).await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::INVALID_UPDATE_VERSION));
}

async fn what_has_settings_is_listed(world: World) {
    world.create(1, &[]).await;
    let admin = world.admin();
    let node = admin.nodes().await.unwrap()[0];
    eventually("all that has settings is listed", async || {
        let resources = admin.config_resources().await.unwrap();
        resources.contains(&ConfigResource::Topic(world.topic.to_string()))
            && resources.contains(&ConfigResource::Broker(node))
    })
    .await;
}

/// The time of an operation is long enough for the test to fail if they are tried again.
async fn what_does_not_exist_is_reported_at_once(world: World) {
    let config = ClientConfig { operation_timeout: Duration::from_secs(600), ..world.client() };
    let admin = Admin::new(config);
    let missing = &*world.name("missing");
    let resource = ConfigResource::Topic(missing.to_owned());
    let change = [ConfigChange::Set("retention.ms".to_owned(), "1".to_owned())];
    let calls = async {
        [
            admin.delete_topic(missing).await,
            admin.create_partitions(missing, 2).await,
            admin.configs(&resource).await.map(drop),
            admin.alter_configs(&resource, &change, false).await,
        ]
    };
    let outcomes = tokio::time::timeout(WAIT_TIMEOUT, calls).await.expect("nothing is tried again");
    for (what, outcome) in ["delete", "grow", "read", "change"].iter().zip(outcomes) {
        assert_eq!(outcome.unwrap_err().code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION), "{what}");
    }
}

/// More partitions than are described at once, by our broker as by Kafka's.
async fn replicas_are_reported_page_by_page(world: World) {
    const PARTITIONS: i32 = 2_100;
    // A slow machine needs time for so many directories.
    let minutes = Duration::from_secs(600);
    let admin =
        Admin::new(ClientConfig { operation_timeout: minutes, request_timeout: minutes, ..world.client() });
    admin.create_topic(&world.new_topic(world.topic.clone(), PARTITIONS)).await.unwrap();
    let node = admin.nodes().await.unwrap()[0];
    let all = async || match admin.replicas(&world.topic).await {
        Err(error) if error.code() == Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION) => Vec::new(),
        other => other.unwrap(),
    };
    eventually("each has its leader", async || {
        let found = all().await;
        found.len() == PARTITIONS as usize && found.iter().all(|one| one.partition.leader == Some(node))
    })
    .await;
    for (index, one) in all().await.iter().enumerate() {
        assert_eq!(one.partition.index as usize, index);
        assert_eq!((&one.partition.replicas, &one.partition.isr), (&vec![node], &vec![node]));
        assert!(one.eligible.is_empty() && one.last_known_eligible.is_empty() && one.offline.is_empty());
    }
    let missing = world.admin().replicas(&world.name("missing")).await.unwrap_err();
    assert_eq!(missing.code(), Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION));
    admin.delete_topic(&world.topic).await.unwrap();
}

async fn passwords_of_users_are_reported(world: World) {
    let admin = world.admin();
    let mut users = admin.scram_credentials(None).await.unwrap();
    // Other tests have credentials at a broker that they share.
    users.remove(USER.0);
    assert_eq!(users, BTreeMap::new());
    let credentials = admin.scram_credentials(Some(&["missing"])).await.unwrap();
    let refused = credentials["missing"].as_ref().unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::RESOURCE_NOT_FOUND));
    assert!(refused.to_string().starts_with("cannot describe the passwords of user missing: "), "{refused}");
}

async fn nodes_are_unregistered(world: World) {
    let refused = world.admin().unregister_broker(4711).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::BROKER_ID_NOT_REGISTERED));
}

/// An answer that has not come within this is lost: long enough for one that is given, also where the machine stands still.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// A broker that gives these answers to requests to delete topics, one after the other; none where there is no code.
fn deletes_topics(codes: &'static [Option<ErrorCode>]) -> ScriptedBroker {
    let mut codes = codes.iter();
    ScriptedBroker::start(1, move |asked| {
        assert_eq!(asked.api_key, ApiKey::DeleteTopics);
        let code = (*codes.next().expect("it is not asked more often"))?;
        let result =
            DeletableTopicResult { name: Some("t".into()), error_code: code.code(), ..Default::default() };
        answer(asked, &DeleteTopicsResponse { responses: vec![result], ..Default::default() })
    })
}

const GONE: Option<ErrorCode> = Some(ErrorCode::UNKNOWN_TOPIC_OR_PARTITION);

async fn delete_topics(codes: &'static [Option<ErrorCode>], is_deleted: bool) {
    let admin = |broker: &ScriptedBroker| {
        Admin::new(ClientConfig { request_timeout: ANSWER_WITHIN, ..broker.client() })
    };
    let (one, other) = (deletes_topics(codes), deletes_topics(codes));
    let (of_one, of_other) = (admin(&one), admin(&other));
    let (deleted, if_exists) = tokio::join!(of_one.delete_topic("t"), of_other.delete_topic_if_exists("t"));
    match is_deleted {
        true => assert_eq!(deleted, Ok(()), "{codes:?}"),
        false => assert_eq!(deleted.unwrap_err().code(), GONE, "{codes:?}"),
    }
    assert_eq!(if_exists, Ok(is_deleted), "{codes:?}");
}

/// A topic counts as deleted only if an earlier attempt may have deleted it.
#[tokio::test]
async fn what_is_gone_after_a_lost_answer_is_deleted() {
    let table: [(&'static [Option<ErrorCode>], bool); 5] = [
        (&[GONE], false),
        (&[None, GONE], true),
        (&[Some(ErrorCode::REQUEST_TIMED_OUT), GONE], true),
        (&[Some(ErrorCode::NOT_CONTROLLER), GONE], false),
        (&[None, Some(ErrorCode::NOT_CONTROLLER), GONE], true),
    ];
    let mut played = JoinSet::new();
    for (codes, is_deleted) in table {
        played.spawn(delete_topics(codes, is_deleted));
    }
    played.join_all().await;
}

/// A broker with topic `t`, of one partition on node 1, that gives these answers to requests to create topics; none where
/// there is no code. Its `retention.ms` is 5.
fn creates_topics(codes: &'static [Option<ErrorCode>]) -> ScriptedBroker {
    let mut codes = codes.iter();
    ScriptedBroker::start(1, move |asked| match asked.api_key {
        ApiKey::CreateTopics => {
            let code = (*codes.next().expect("it is not asked more often"))?;
            let result =
                CreatableTopicResult { name: "t".into(), error_code: code.code(), ..Default::default() };
            answer(asked, &CreateTopicsResponse { topics: vec![result], ..Default::default() })
        }
        ApiKey::DescribeConfigs => {
            let config = DescribeConfigsResourceResult {
                name: "retention.ms".into(),
                value: Some("5".into()),
                ..Default::default()
            };
            let result = DescribeConfigsResult {
                resource_type: 2,
                resource_name: "t".into(),
                configs: vec![config],
                ..Default::default()
            };
            answer(asked, &DescribeConfigsResponse { results: vec![result], ..Default::default() })
        }
        other => panic!("{other:?} is not expected"),
    })
}

const THERE: Option<ErrorCode> = Some(ErrorCode::TOPIC_ALREADY_EXISTS);

async fn create_topic(codes: &'static [Option<ErrorCode>], topic: NewTopic, is_created: bool) {
    let broker = creates_topics(codes);
    let config = ClientConfig { request_timeout: ANSWER_WITHIN, ..broker.client() };
    let created = Admin::new(config).create_topic(&topic).await;
    match is_created {
        true => assert_eq!(created.unwrap().partitions, Some(1), "{codes:?}, {topic:?}"),
        false => assert_eq!(created.unwrap_err().code(), THERE, "{codes:?}, {topic:?}"),
    }
}

/// A topic counts as created only if an earlier attempt may have created it, with the same settings.
#[tokio::test]
async fn what_is_there_after_a_lost_answer_was_created() {
    const LOST: &[Option<ErrorCode>] = &[None, THERE];
    let wanted = NewTopic::new("t").partitions(1).config("retention.ms", "5");
    let others = [
        wanted.clone().partitions(2),
        wanted.clone().config("retention.ms", "6"),
        NewTopic { replication_factor: Some(3), ..wanted.clone() },
        NewTopic::new("t").replicas([vec![2]]),
    ];
    let mut table = vec![
        (&[THERE] as &[_], wanted.clone(), false),
        (LOST, wanted.clone(), true),
        (&[Some(ErrorCode::REQUEST_TIMED_OUT), THERE], wanted.clone(), true),
        (&[Some(ErrorCode::NOT_CONTROLLER), THERE], wanted, false),
    ];
    table.extend(others.map(|other| (LOST, other, false)));
    table.push((LOST, NewTopic { validate_only: true, ..NewTopic::new("t") }, false));
    let mut played = JoinSet::new();
    for (codes, topic, is_created) in table {
        played.spawn(create_topic(codes, topic, is_created));
    }
    played.join_all().await;
}
