//! Tests of administrators' requests beyond topics: features, elections, reassignments, nodes, and replaced configurations. Kafka's
//! messages were copied from the answers of Kafka 4.3.0.

use std::borrow::Cow;

use mainstem_wire::Uuid;
use mainstem_wire::messages::alter_configs_request::{self, AlterConfigsRequest};
use mainstem_wire::messages::alter_partition_reassignments_request::{
    AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic,
};
use mainstem_wire::messages::elect_leaders_request::{ElectLeadersRequest, TopicPartitions};
use mainstem_wire::messages::feature_level_record::FeatureLevelRecord;
use mainstem_wire::messages::register_broker_record::RegisterBrokerRecord;
use mainstem_wire::messages::update_features_request::{FeatureUpdateKey, UpdateFeaturesRequest};
use mainstem_wire::metadata_frame::MetadataRecord;

use super::session::*;
use super::*;
use mainstem_config::alter::Operation::Set;
use mainstem_limits::quotas::{EntityName, QuotaEntity};

const TOPIC: i8 = 2;
const BROKER: i8 = 4;

impl Session {
    fn replace(&mut self, kind: i8, name: &str, values: &[(&str, Option<&str>)]) -> String {
        let configs = values.iter().map(|(name, value)| alter_configs_request::AlterableConfig {
            name: Cow::Borrowed(*name),
            value: value.map(Cow::Borrowed),
            ..Default::default()
        });
        let resource = alter_configs_request::AlterConfigsResource {
            resource_type: kind,
            resource_name: Cow::Borrowed(name),
            configs: configs.collect(),
            ..Default::default()
        };
        let request = AlterConfigsRequest { resources: vec![resource], ..AlterConfigsRequest::default() };
        let decision = self.machine.replace_configs(&self.view, &request);
        let answer = &self.append(decision).responses[0];
        said(answer.error_code, answer.error_message.as_deref())
    }

    pub(super) fn update(&mut self, version: i16, updates: &[(&str, i16, i8)]) -> String {
        let updates = updates.iter().map(|(feature, level, upgrade_type)| FeatureUpdateKey {
            feature: Cow::Borrowed(*feature),
            max_version_level: *level,
            upgrade_type: *upgrade_type,
            ..FeatureUpdateKey::default()
        });
        let request =
            UpdateFeaturesRequest { feature_updates: updates.collect(), ..UpdateFeaturesRequest::default() };
        let decision = self.machine.update_features(&self.view, &request, version);
        let response = self.append(decision);
        let results: Vec<_> = response.results.iter().map(|result| result.feature.to_string()).collect();
        said(response.error_code, response.error_message.as_deref()) + " " + &results.join(",")
    }

    fn elect(&self, kind: i8, topics: Option<&[(&str, &[i32])]>) -> Vec<String> {
        let topic_partitions = topics.map(|topics| {
            let topics = topics.iter().map(|(topic, partitions)| TopicPartitions {
                topic: Cow::Borrowed(*topic),
                partitions: partitions.to_vec(),
                ..TopicPartitions::default()
            });
            topics.collect()
        });
        let request =
            ElectLeadersRequest { election_type: kind, topic_partitions, ..ElectLeadersRequest::default() };
        let response = self.machine.image().elect_leaders(&request);
        let mut lines = vec![said(response.error_code, None)];
        for topic in &response.replica_election_results {
            lines.push(topic.topic.to_string());
            lines.extend(topic.partition_result.iter().map(|result| {
                format!(
                    "{} {}",
                    result.partition_id,
                    said(result.error_code, result.error_message.as_deref())
                )
            }));
        }
        lines
    }

    pub(super) fn reassign(
        &mut self,
        may_resize: bool,
        topic: &str,
        partition: i32,
        to: Option<&[i32]>,
    ) -> String {
        let partition = ReassignablePartition {
            partition_index: partition,
            replicas: to.map(<[i32]>::to_vec),
            ..ReassignablePartition::default()
        };
        let topic = ReassignableTopic {
            name: Cow::Borrowed(topic),
            partitions: vec![partition],
            ..ReassignableTopic::default()
        };
        let request = AlterPartitionReassignmentsRequest {
            allow_replication_factor_change: may_resize,
            topics: vec![topic],
            ..AlterPartitionReassignmentsRequest::default()
        };
        let decision = self.machine.alter_partition_reassignments(&self.view, &request);
        let answer = &self.append(decision).responses[0].partitions[0];
        said(answer.error_code, answer.error_message.as_deref())
    }

    /// Registers another node, as in the log of a directory that was copied from a larger cluster.
    fn register_other(&mut self, id: i32) {
        let record = MetadataRecord::RegisterBrokerRecord(Box::new(RegisterBrokerRecord {
            broker_id: id,
            broker_epoch: self.end(),
            ..RegisterBrokerRecord::default()
        }));
        self.replay(record, 4);
    }

    fn replay(&mut self, record: MetadataRecord<'_>, version: i16) {
        let mut value = Vec::new();
        record.encode(&mut value, version).expect("the version has the fields");
        self.machine.replay(self.end(), &value).expect("the record fits");
        self.log.push(value);
    }

    fn own(&self, kind: ResourceKind, name: &str) -> String {
        let values = self.machine.image().configs(&ConfigResource::new(kind, name)).iter();
        values.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
    }
}

#[test]
fn the_older_api_replaces_all_values() {
    let mut session = Session::new("");
    session.create(with_configs("a", &[("retention.ms", Some("5")), ("flush.ms", Some("6"))]));
    session.commit_all();
    assert_eq!(session.replace(TOPIC, "a", &[("segment.ms", Some("7")), ("flush.ms", Some("6"))]), "ok");
    assert_eq!(session.commit_all().len(), 2, "what stays is not written again");
    assert_eq!(session.own(ResourceKind::Topic, "a"), "flush.ms=6 segment.ms=7");
    let mut refused = |name, values: &[(&str, Option<&str>)], expect: &str| {
        assert_eq!(session.replace(TOPIC, name, values), expect);
    };
    refused(
        "a",
        &[("segment.ms", Some("x"))],
        "INVALID_CONFIG: Invalid value x for configuration segment.ms: Not a number of type LONG",
    );
    refused("a", &[("nope", Some("x"))], "INVALID_CONFIG: Unknown topic config name: nope");
    refused("a", &[("segment.ms", None)], "INVALID_REQUEST: Null value not supported for : segment.ms");
    let twice = [("segment.ms", Some("1")), ("segment.ms", Some("2"))];
    refused("a", &twice, "INVALID_REQUEST: Error due to duplicate config keys");
    refused("nope", &[], "UNKNOWN_TOPIC_OR_PARTITION: The topic 'nope' does not exist.");
    refused("", &[], "INVALID_REQUEST: Default topic resources are not allowed.");
    assert_eq!(session.replace(TOPIC, "a", &[]), "ok");
    session.commit_all();
    assert_eq!(session.own(ResourceKind::Topic, "a"), "");
}

#[test]
fn the_older_api_replaces_values_of_the_node_too() {
    let mut session = Session::new("");
    session.alter(BROKER, "1", &[("max.connections", Set, Some("5"))], false);
    assert_eq!(session.replace(BROKER, "1", &[("log.retention.ms", Some("6"))]), "ok");
    assert_eq!(session.replace(BROKER, "", &[("max.connections", Some("7"))]), "ok");
    session.commit_all();
    assert_eq!(session.own(ResourceKind::Broker, "1"), "log.retention.ms=6");
    assert_eq!(session.config().network.max_connections, 7);
    assert_eq!(
        session.replace(BROKER, "1", &[("num.partitions", Some("2"))]),
        "INVALID_REQUEST: Cannot update these configs dynamically: [num.partitions]"
    );
    assert_eq!(
        session.replace(8, "1", &[]),
        "INVALID_REQUEST: Configurations of resource type 8 cannot be altered."
    );
}

#[test]
fn features_keep_to_what_the_node_can() {
    let mut session = Session::new("");
    assert_eq!(session.update(1, &[("metadata.version", 30, 1)]), "ok metadata.version");
    assert_eq!(session.update(2, &[("metadata.version", 30, 2)]), "ok ");
    assert_eq!(session.update(1, &[]), "ok ");
    assert_eq!(session.commit_all(), [], "nothing has changed");
    const VERSION: &str = "metadata.version";
    let mut refused = |feature, level, upgrade_type, why: &str| {
        let expect = format!(
            "INVALID_UPDATE_VERSION: The update failed for all features since the following feature had an error: \
             Invalid update version {level} for feature {feature}. {why} "
        );
        assert_eq!(session.update(1, &[(feature, level, upgrade_type)]), expect);
    };
    refused(VERSION, 31, 1, "Local controller 1 only supports versions 30-30");
    refused(VERSION, 0, 3, "Local controller 1 only supports versions 30-30");
    refused(VERSION, -1, 3, "A feature version cannot be less than 0.");
    refused(VERSION, 30, 9, "The controller does not support the given upgrade type.");
    refused("nope", 1, 1, "Local controller 1 does not support this feature.");
    refused("nope", 0, 2, "Feature nope not found.");
    assert_eq!(
        session.update(1, &[(VERSION, 30, 1), (VERSION, 30, 1)]),
        "INVALID_REQUEST: Feature metadata.version must appear at most once. "
    );
}

/// A directory that an older release finalised at another level can be raised, and the log keeps that.
#[test]
fn levels_are_kept_in_the_log() {
    let mut session = Session::new("");
    let level = |name: &'static str, feature_level| {
        MetadataRecord::FeatureLevelRecord(Box::new(FeatureLevelRecord {
            name: name.into(),
            feature_level,
            ..FeatureLevelRecord::default()
        }))
    };
    session.replay(level("metadata.version", 29), 0);
    let down = session.update(1, &[("metadata.version", 30, 2)]);
    assert!(down.ends_with("Can't downgrade to a newer version. "), "{down}");
    assert_eq!(session.update(1, &[("metadata.version", 30, 1)]), "ok metadata.version");
    assert_eq!(
        session.commit_all(),
        [MetadataChange::FeatureChanged { name: "metadata.version".to_string() }]
    );
    session.replay(level("metadata.version", 31), 0);
    let down = session.update(1, &[("metadata.version", 30, 1)]);
    assert!(down.contains("Can't downgrade the version of this feature without setting"), "{down}");
    assert_eq!(session.update(1, &[("metadata.version", 30, 2)]), "ok metadata.version");
    session.commit_all();
    let mut again = MetadataStateMachine::default();
    for (offset, record) in (0..).zip(&session.log) {
        again.replay(offset, record).expect("the state machine's own records");
    }
    assert_eq!(again.image().feature("metadata.version"), Some(30));
}

#[test]
fn no_election_is_needed() {
    let mut session = Session::new("");
    session.create(topic("a", 2, 1));
    session.create(topic("b", 1, 1));
    session.commit_all();
    const NOT_NEEDED: &str = "ELECTION_NOT_NEEDED: Leader election not needed for topic partition.";
    for kind in [0, 1] {
        assert_eq!(
            session.elect(kind, Some(&[("a", &[0, 1, 2]), ("nope", &[0])])),
            [
                "ok",
                "a",
                &format!("0 {NOT_NEEDED}"),
                &format!("1 {NOT_NEEDED}"),
                "2 UNKNOWN_TOPIC_OR_PARTITION: No such partition",
                "nope",
                "0 UNKNOWN_TOPIC_OR_PARTITION: No such topic",
            ]
        );
        assert_eq!(session.elect(kind, None), ["ok", "a", "b"]);
    }
    assert_eq!(
        session.elect(2, Some(&[("a", &[0])])),
        ["INVALID_REQUEST: no message", "a", "0 INVALID_REQUEST: Unknown election type 2"]
    );
    assert_eq!(session.elect(2, None), ["INVALID_REQUEST: no message"]);
}

#[test]
fn replicas_stay_where_they_are() {
    let mut session = Session::new("");
    session.create(topic("a", 2, 1));
    session.commit_all();
    assert_eq!(session.reassign(false, "a", 0, Some(&[1])), "ok");
    let mut refused = |may_resize, partition, to: Option<&[i32]>, expect: &str| {
        assert_eq!(session.reassign(may_resize, "a", partition, to), expect);
    };
    refused(true, 0, None, "NO_REASSIGNMENT_IN_PROGRESS: No partition reassignment is in progress.");
    refused(true, 2, Some(&[1]), "UNKNOWN_TOPIC_OR_PARTITION: Unable to find this partition of the topic.");
    const MANUAL: &str = "INVALID_REPLICA_ASSIGNMENT: The manual partition assignment includes";
    refused(true, 0, Some(&[1, 2]), &format!("{MANUAL} broker 2, but no such broker is registered."));
    refused(false, 0, Some(&[1, 1]), &format!("{MANUAL} the broker 1 more than once."));
    refused(false, 0, Some(&[]), &format!("{MANUAL} an empty replica list."));
    refused(false, 0, Some(&[-1]), &format!("{MANUAL} broker -1, but no such broker is registered."));
    session.register_other(2);
    let mut refused = |may_resize, to: &[i32], expect: &str| {
        assert_eq!(session.reassign(may_resize, "a", 0, Some(to)), expect);
    };
    refused(false, &[1, 2], "INVALID_REPLICATION_FACTOR: The replication factor is changed from 1 to 2.");
    let stays = "INVALID_REPLICA_ASSIGNMENT: This broker is no cluster: partition a-0 stays on [1]. Replicas move between the \
                 nodes of a cluster.";
    refused(true, &[1, 2], stays);
    refused(false, &[2], stays);
    assert_eq!(session.commit_all(), []);
}

/// A snapshot has every kind of state that an image has.
#[test]
fn a_snapshot_makes_the_same_image() {
    let mut session = Session::new("");
    session.register_other(2);
    session.create(with_configs("a.b", &[("retention.ms", Some("5"))]));
    session.create(topic("gone", 3, 1));
    session.delete(&[(Some("gone"), Uuid::ZERO)]);
    session.alter(BROKER, "", &[("max.connections", Set, Some("5"))], false);
    session.alter(32, "g", &[("share.session.timeout.ms", Set, Some("46000"))], false);
    let decision = session.machine.allocate_producer_ids(1);
    session.append(decision).expect("the node is registered");
    session.commit_all();
    let entity = QuotaEntity { user: Some(EntityName::Default), ..QuotaEntity::default() };
    session.replay(client_quotas::record(&entity, "producer_byte_rate", Some(1.5)), 0);
    let image = session.machine.image();
    let mut loaded = MetadataStateMachine::default();
    let values: Vec<_> = image.snapshot().collect();
    assert!(values.len() < session.log.len(), "what was undone is left out");
    for value in &values {
        loaded.load(image.next_offset(), value).expect("what the image adds up from");
    }
    assert_eq!(loaded.image(), image);
    loaded.replay(session.end(), &session.log[0].clone()).expect("the next record of the log follows");
    let late = loaded.load(session.end(), &values[0]).expect_err("the log was replayed already");
    assert!(late.to_string().contains("was expected"), "{late}");
}

#[test]
fn nodes_that_are_gone_are_forgotten() {
    let mut session = Session::new("");
    session.register_other(2);
    let mut forget = |id| {
        let decision = session.machine.unregister_broker(&session.view, id);
        session.append(decision).map_err(|error| said(error.code.0, Some(&error.message)))
    };
    assert_eq!(forget(2), Ok(()));
    assert_eq!(
        forget(2),
        Err("BROKER_ID_NOT_REGISTERED: Broker ID 2 is not currently registered".to_string())
    );
    assert_eq!(
        forget(1),
        Err("INVALID_REQUEST: Broker 1 is running: stop it before it is unregistered.".to_string())
    );
    assert_eq!(session.commit_all(), [MetadataChange::BrokerChanged { id: 2 }]);
    assert!(session.machine.image().broker(2).is_none() && session.machine.image().broker(1).is_some());
}

/// A voter stays a voter, whatever the registrations say.
#[test]
fn voters_are_not_forgotten() {
    let mut session = Session::new(
        "controller.quorum.voters=1@a:1,2@b:2\nlisteners=IN://:9092,CONTROLLER://:9093\n\
         listener.security.protocol.map=IN:PLAINTEXT,CONTROLLER:PLAINTEXT\ncontroller.listener.names=CONTROLLER\n\
         inter.broker.listener.name=IN\nmainstem.unauthenticated.nodes=true",
    );
    session.register_other(2);
    session.register_other(3);
    let mut forget = |id| {
        let decision = session.machine.unregister_broker(&session.view, id);
        session.append(decision).map_err(|error| said(error.code.0, Some(&error.message)))
    };
    let refused = forget(2).expect_err("it votes");
    assert!(refused.starts_with("INVALID_REQUEST: Broker 2 is a voter"), "{refused}");
    assert_eq!(forget(3), Ok(()));
}
