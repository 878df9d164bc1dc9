//! The registration of a node at each start.

use std::borrow::Cow;

use mainstem_wire::messages::feature_level_record::FeatureLevelRecord;
use mainstem_wire::messages::partition_change_record::PartitionChangeRecord;
use mainstem_wire::messages::register_broker_record::{BrokerEndpoint, BrokerFeature, RegisterBrokerRecord};
use mainstem_wire::metadata_frame::MetadataRecord;
use mainstem_wire::{ErrorCode, Uuid};

use super::features::{
    FEATURES, Feature, MAINSTEM_VERSION, METADATA_VERSION, are_sound, ranges_of_unnamed, works_at,
};
use super::image::{BrokerImage, FeatureRanges, PartitionImage};
use super::node_view::NodeView;
use super::state_machine::{Decision, MetadataStateMachine};
use mainstem_config::Endpoint;

/// A start of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeStart {
    /// The node.
    pub node_id: i32,
    /// Its rack.
    pub rack: Option<String>,
    /// Random, new with each start.
    pub incarnation_id: Uuid,
    /// The addresses that clients are to connect to, hosts and ports filled in.
    pub endpoints: Vec<Endpoint>,
    /// The ids of its log directories, in the order of `log.dirs`.
    pub log_dirs: Vec<Uuid>,
    /// Those of them that take no new partitions.
    pub cordoned_dirs: Vec<Uuid>,
    /// Those of them that did not stop cleanly.
    pub unclean_dirs: Vec<Uuid>,
    /// The levels of features at which it can work; empty for a node of Mainstem 0.1, which does not say.
    pub features: FeatureRanges,
}

impl MetadataStateMachine {
    /// Registers the node, and raises the leader epoch of each partition whose directory stopped uncleanly. Its log may have lost its end,
    /// and by the epoch a reader that is ahead notices that (KIP-320). The reply is the broker epoch.
    ///
    /// The features of a new cluster are finalised first. On a single node the `metadata.version` of an older release is raised.
    /// Partitions that Kafka left without a leader when it stopped are led again. In a cluster that concerns those with one
    /// replica: the others elect their leader themselves.
    ///
    /// # Errors
    /// The reply is UNSUPPORTED_VERSION if the node cannot work at the level of [`MAINSTEM_VERSION`] that is finalised, or is then;
    /// INVALID_REGISTRATION if its features make no sense.
    pub fn register_node(&mut self, view: &NodeView, start: &NodeStart) -> Decision<Result<i64, ErrorCode>> {
        let metadata_version = self.ahead().feature(METADATA_VERSION.name);
        let level = match metadata_version {
            None if view.has_several_nodes() => view.first_mainstem_version,
            _ => self.ahead().mainstem_version(),
        };
        if !are_sound(&start.features) {
            return self.decide(vec![], Err(ErrorCode::INVALID_REGISTRATION));
        }
        if !works_at(&start.features, level) {
            return self.decide(vec![], Err(ErrorCode::UNSUPPORTED_VERSION));
        }
        let mut records = match metadata_version {
            None => first_features(view),
            // Of several nodes each has to know it, which an operator is to say.
            Some(known) if known < METADATA_VERSION.max && !view.has_several_nodes() => {
                vec![finalised(&METADATA_VERSION)]
            }
            Some(_) => Vec::new(),
        };
        let position = i64::try_from(records.len()).expect("a few features");
        let epoch = self.ahead().next_offset() + position;
        records.push(registration_record(&start.broker(epoch)));
        records.extend(self.led_from_now(view, start.node_id, &start.unclean_dirs));
        self.decide(records, Ok(epoch))
    }

    /// Returns the records for partitions that do not elect their leader: the node leads again those that it leads in these directories,
    /// and becomes leader of those without one.
    fn led_from_now(&self, view: &NodeView, node: i32, unclean: &[Uuid]) -> Vec<MetadataRecord<'static>> {
        let mut records = Vec::new();
        for topic in self.ahead().topics() {
            let partitions = (0i32..).zip(&topic.partitions);
            for (number, partition) in partitions.filter(|(_, partition)| !view.replicas_elect(partition)) {
                let mut held = partition.replicas.iter().zip(&partition.directories);
                let was_cut = held.any(|(replica, dir)| *replica == node && unclean.contains(dir));
                if was_cut && partition.leader == node {
                    records.push(led_again(topic.id, number, node));
                } else if partition.leader < 0 && partition.may_lead(node) {
                    records.push(elected(topic.id, (number, partition), node));
                }
            }
        }
        records
    }

    /// Raises the leader epochs of partitions whose directory was stopped in order, but whose logs prove to be shorter than they were. A
    /// reader that is ahead must notice that too (KIP-320). Partitions that the node does not lead, or that elect their leader themselves,
    /// do not change.
    pub fn raise_leader_epochs(
        &mut self,
        view: &NodeView,
        node: i32,
        partitions: &[(Uuid, i32)],
    ) -> Decision<()> {
        let is_led = |(topic, number): &&(Uuid, i32)| {
            let topic = self.ahead().topic_by_id(*topic);
            let index = usize::try_from(*number).ok();
            let partition = topic.zip(index).and_then(|(topic, index)| topic.partitions.get(index));
            partition.is_some_and(|partition| partition.leader == node && !view.replicas_elect(partition))
        };
        let led = partitions.iter().filter(is_led);
        let records = led.map(|(topic, number)| led_again(*topic, *number, node)).collect();
        self.decide(records, ())
    }
}

impl NodeStart {
    /// The node as it is registered by this start.
    fn broker(&self, epoch: i64) -> BrokerImage {
        let endpoint = |endpoint: &Endpoint| {
            (endpoint.listener.clone(), endpoint.host.clone(), endpoint.port, endpoint.protocol.code())
        };
        BrokerImage {
            id: self.node_id,
            epoch,
            incarnation_id: self.incarnation_id,
            endpoints: self.endpoints.iter().map(endpoint).collect(),
            rack: self.rack.clone(),
            log_dirs: self.log_dirs.clone(),
            cordoned_log_dirs: self.cordoned_dirs.clone(),
            fenced: false,
            features: if self.features.is_empty() { ranges_of_unnamed() } else { self.features.clone() },
        }
    }
}

/// The record of a node's registration.
pub(super) fn registration_record(broker: &BrokerImage) -> MetadataRecord<'static> {
    let end_points = broker.endpoints.iter().map(|(name, host, port, protocol)| BrokerEndpoint {
        name: Cow::Owned(name.clone()),
        host: Cow::Owned(host.clone()),
        port: *port,
        security_protocol: *protocol,
        ..BrokerEndpoint::default()
    });
    let features = broker.features.iter().map(|(name, (min, max))| BrokerFeature {
        name: Cow::Owned(name.clone()),
        min_supported_version: *min,
        max_supported_version: *max,
        ..BrokerFeature::default()
    });
    let cordoned = &broker.cordoned_log_dirs;
    MetadataRecord::RegisterBrokerRecord(Box::new(RegisterBrokerRecord {
        broker_id: broker.id,
        incarnation_id: broker.incarnation_id,
        broker_epoch: broker.epoch,
        end_points: end_points.collect(),
        features: features.collect(),
        rack: broker.rack.clone().map(Cow::Owned),
        fenced: broker.fenced,
        log_dirs: broker.log_dirs.clone(),
        cordoned_log_dirs: (!cordoned.is_empty()).then(|| cordoned.clone()),
        ..RegisterBrokerRecord::default()
    }))
}

/// The levels at which a new cluster begins.
fn first_features(view: &NodeView) -> Vec<MetadataRecord<'static>> {
    let mainstem = Feature { max: view.first_mainstem_version, ..MAINSTEM_VERSION };
    // Level 1 has no record: a release that knows no other one would not start with it.
    let is_named = view.has_several_nodes() && mainstem.max > mainstem.min;
    FEATURES.iter().chain(is_named.then_some(&mainstem)).map(finalised).collect()
}

/// A change that names the leader again raises its epoch and leaves everything else.
fn led_again(topic_id: Uuid, partition_id: i32, leader: i32) -> MetadataRecord<'static> {
    MetadataRecord::PartitionChangeRecord(Box::new(PartitionChangeRecord {
        partition_id,
        topic_id,
        leader,
        ..PartitionChangeRecord::default()
    }))
}

impl PartitionImage {
    /// Returns true if this node has every committed record as far as is known: it is in sync, eligible (KIP-966), or the only replica.
    fn may_lead(&self, node: i32) -> bool {
        self.isr.contains(&node) || self.eligible_leader_replicas.contains(&node) || self.replicas == [node]
    }
}

/// Elects a node that may lead: a stop of Kafka's broker leaves its partitions without a leader (KIP-631), and with
/// `eligible.leader.replicas.version` 1 without a replica in sync.
fn elected(
    topic_id: Uuid,
    (partition_id, partition): (i32, &PartitionImage),
    leader: i32,
) -> MetadataRecord<'static> {
    let emptied = |replicas: &[i32]| (!replicas.is_empty()).then(Vec::new);
    MetadataRecord::PartitionChangeRecord(Box::new(PartitionChangeRecord {
        partition_id,
        topic_id,
        leader,
        isr: (!partition.isr.contains(&leader)).then(|| vec![leader]),
        eligible_leader_replicas: emptied(&partition.eligible_leader_replicas),
        last_known_elr: emptied(&partition.last_known_elr),
        ..PartitionChangeRecord::default()
    }))
}

fn finalised(feature: &Feature) -> MetadataRecord<'static> {
    MetadataRecord::FeatureLevelRecord(Box::new(FeatureLevelRecord {
        name: Cow::Borrowed(feature.name),
        feature_level: feature.max,
        ..FeatureLevelRecord::default()
    }))
}
