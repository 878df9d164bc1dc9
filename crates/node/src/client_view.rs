//! The nodes of the cluster as a client of one listener sees them.

use std::sync::Arc;

use mainstem_controller::{BrokerImage, MetadataImage, PartitionImage, TopicImage};
use mainstem_wire::ErrorCode;

use crate::local::Local;
use crate::node::Node;
use mainstem_requests::context::RequestContext;
use mainstem_store::topics::Topic;

/// Kafka's number of a leader that there is not.
const NO_LEADER: i32 = -1;

/// Address at which a client reaches a node.
pub struct Endpoint<'a> {
    /// Its number.
    pub id: i32,
    /// Name or address.
    pub host: &'a str,
    /// Port.
    pub port: i32,
    /// Its rack.
    pub rack: Option<&'a str>,
    /// It takes no part at the moment.
    pub fenced: bool,
}

/// The nodes that have the listener through which the request came.
pub fn nodes<'a>(
    local: &'a Local,
    context: &RequestContext,
    image: &'a MetadataImage,
) -> impl Iterator<Item = Endpoint<'a>> {
    let listener = &local.advertised[context.connection.listener].listener;
    let endpoint = move |node: &'a BrokerImage| {
        let (_, host, port, _) = node.endpoints.iter().find(|(name, ..)| name == listener)?;
        let rack = node.rack.as_deref();
        Some(Endpoint { id: node.id, host, port: i32::from(*port), rack, fenced: node.fenced })
    };
    image.brokers().filter_map(endpoint)
}

/// The nodes that Metadata names to clients: those that take part, as far as this node can know. One that knows of no metadata
/// leader may have been cut off since others came back, so it names all: a client that knew only this node would never find them.
/// DescribeCluster, by which people look at a cluster, says what this node knows.
pub fn nodes_for_clients<'a>(
    node: &'a Node,
    context: &RequestContext,
    image: &'a MetadataImage,
) -> impl Iterator<Item = Endpoint<'a>> {
    let knows_none = node.controller.leader().is_none();
    nodes(&node.local, context, image).filter(move |node| knows_none || !node.fenced)
}

/// Leader of a partition, as clients get it in metadata.
pub struct Leadership {
    /// `LEADER_NOT_AVAILABLE` where no node does, or 0.
    pub error_code: i16,
    /// The leader's number, or -1.
    pub leader_id: i32,
    /// Since which election.
    pub leader_epoch: i32,
    /// The nodes in sync.
    pub isr: Vec<i32>,
    /// Replicas on nodes that take no part at the moment, or whose files cannot be used.
    pub offline_replicas: Vec<i32>,
}

/// Leaders of a topic's partitions, as the metadata says; a partition that is offline on this node has none.
pub struct Leaders<'a> {
    node: &'a Node,
    image: &'a MetadataImage,
    served: Option<Arc<Topic>>,
}

impl<'a> Leaders<'a> {
    /// Those of a topic.
    pub fn of(node: &'a Node, image: &'a MetadataImage, topic: &TopicImage) -> Self {
        Leaders { node, image, served: node.local.store.topics.by_id(&topic.id) }
    }

    /// Leader, epoch and the nodes in sync: in a cluster what the replicas say comes before what the metadata have noted,
    /// and a leader that cannot be reached is none.
    fn known(&self, index: i32, partition: &PartitionImage) -> (i32, i32, Vec<i32>) {
        let noted = (partition.leader, partition.leader_epoch, partition.isr.clone());
        let (Some(cluster), Some(topic)) = (&self.node.cluster, &self.served) else { return noted };
        if !partition.has_group() {
            let is_up = self.image.broker(partition.leader).is_some_and(|node| !node.fenced);
            return if is_up { noted } else { (NO_LEADER, noted.1, noted.2) };
        }
        let here = topic.partition(index).map(|partition| &**partition);
        let Some(leader) = cluster.leader_of((topic.id, index), here) else {
            return (NO_LEADER, noted.1, noted.2);
        };
        let isr = match leader.isr.is_empty() {
            true => noted.2,
            // In the order of the replicas, as Kafka has it.
            false => partition.replicas.iter().copied().filter(|node| leader.isr.contains(node)).collect(),
        };
        match cluster.is_reachable(leader.node) {
            true => (leader.node, leader.epoch.get(), isr),
            false => (NO_LEADER, leader.epoch.get(), isr),
        }
    }

    /// The one of a partition.
    pub fn get(&self, index: i32, partition: &PartitionImage) -> Leadership {
        let own = self.node.local.id;
        let served = self.served.as_ref().and_then(|topic| topic.partition(index));
        let offline_here = served.is_some_and(|partition| partition.is_offline());
        let is_up = |id: i32| self.image.broker(id).is_some_and(|node| !node.fenced);
        let is_offline = |id: &i32| !is_up(*id) || (offline_here && *id == own);
        let (leader, leader_epoch, isr) = self.known(index, partition);
        let leader_id = if offline_here && leader == own { NO_LEADER } else { leader };
        Leadership {
            error_code: if leader_id < 0 { ErrorCode::LEADER_NOT_AVAILABLE.code() } else { 0 },
            leader_id,
            leader_epoch,
            isr,
            offline_replicas: partition.replicas.iter().copied().filter(is_offline).collect(),
        }
    }
}
