//! The topics of a cluster, created by its metadata leader before any client uses them.

use super::{DATA_PARTITIONS, KEYED_TOPIC, OFFSETS_TOPIC, TOPIC, TRANSACTIONS_TOPIC};
use crate::world::World;
use mainstem_node::node::Node as BrokerNode;
use mainstem_wire::Uuid;
use mainstem_wire::messages::create_topics_request::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest,
};
use mainstem_wire::messages::incremental_alter_configs_request::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest,
};
use std::sync::Arc;

/// Time in which the topics are created and served, at most, in ms. There is no fault yet.
const CREATED_MAX_MS: u64 = 10_000;
/// Interval between two attempts, in ms.
const RETRY_MS: u64 = 500;
/// Size of segments of data, small so that there are many.
const SEGMENT_BYTES: &str = "3000";

/// The same of the coordinators' topics, whose batches are larger.
const INTERNAL_SEGMENT_BYTES: &str = "8000";
/// The type of a resource that is a topic.
const TOPIC_RESOURCE: i8 = 2;

/// Creates the topics, and runs until all nodes serve all partitions. Returns the id of the topic of data.
///
/// # Panics
/// If it takes too long.
pub(super) fn create(world: &mut World, log_append_time: bool) -> Uuid {
    let since_ms = world.now_ms;
    let mut ask_at_ms = since_ms;
    loop {
        assert!(world.now_ms < since_ms + CREATED_MAX_MS, "the topics are not created");
        if world.now_ms >= ask_at_ms {
            ask_at_ms = world.now_ms + RETRY_MS;
            ask(world, log_append_time);
        }
        world.turn();
        if world.serves_all()
            && let Some((node, _)) = world.nodes[0].in_service()
            && let Some(topic) = node.controller.image().topic(TOPIC)
        {
            return topic.id;
        }
    }
}

/// Has the metadata leader create what is missing.
fn ask(world: &World, log_append_time: bool) {
    let serving = world.nodes.iter().filter_map(|node| node.in_service());
    let Some((node, group)) = serving.into_iter().find(|(node, _)| node.controller.decides()) else { return };
    let (node, replicas) = (Arc::clone(node), world.nodes.len());
    group.spawn("topics", move || create_at(&node, replicas, log_append_time)).expect("a thread");
}

fn create_at(node: &BrokerNode, replicas: usize, log_append_time: bool) {
    let config = |name: &'static str, value: &'static str| CreatableTopicConfig {
        name: name.into(),
        value: Some(value.into()),
        ..Default::default()
    };
    let append_time = log_append_time.then(|| config("message.timestamp.type", "LogAppendTime"));
    let segments = config("internal.segment.bytes", SEGMENT_BYTES);
    let topic = CreatableTopic {
        name: TOPIC.into(),
        num_partitions: DATA_PARTITIONS as i32,
        replication_factor: i16::try_from(replicas).expect("a few nodes"),
        configs: append_time.into_iter().chain([segments]).collect(),
        ..Default::default()
    };
    let keyed = CreatableTopic {
        name: KEYED_TOPIC.into(),
        num_partitions: 1,
        replication_factor: topic.replication_factor,
        configs: vec![
            config("cleanup.policy", "compact"),
            config("internal.segment.bytes", SEGMENT_BYTES),
            config("min.cleanable.dirty.ratio", "0.1"),
            config("delete.retention.ms", "500"),
        ],
        ..Default::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic, keyed], ..Default::default() };
    let created = node.controller.create_topics(&request, &mut |_| true);
    let internal = [OFFSETS_TOPIC, TRANSACTIONS_TOPIC];
    let of_coordinators = node.controller.create_missing_topics(&internal, &mut |_| true);
    let resources = internal.map(with_small_segments).into();
    let altered =
        node.controller.alter_configs(&IncrementalAlterConfigsRequest { resources, ..Default::default() });
    tracing::debug!(?created, ?of_coordinators, ?altered, "topics");
}

/// The change that makes segments of a coordinator's topic small.
fn with_small_segments(topic: &'static str) -> AlterConfigsResource<'static> {
    let config = AlterableConfig {
        name: "internal.segment.bytes".into(),
        value: Some(INTERNAL_SEGMENT_BYTES.into()),
        ..Default::default()
    };
    AlterConfigsResource {
        resource_type: TOPIC_RESOURCE,
        resource_name: topic.into(),
        configs: vec![config],
        ..Default::default()
    }
}
