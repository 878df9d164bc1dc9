//! The nodes of the cluster as a client of one listener sees them.

use mainstem_coordination::metadata::{BrokerImage, MetadataImage, PartitionImage};

use crate::broker::Broker;
use crate::context::RequestContext;

/// Where a client reaches a node.
pub(crate) struct Endpoint<'a> {
    /// Its number.
    pub(crate) id: i32,
    /// Name or address.
    pub(crate) host: &'a str,
    /// Port.
    pub(crate) port: i32,
    /// Its rack.
    pub(crate) rack: Option<&'a str>,
    /// It takes no part at the moment.
    pub(crate) fenced: bool,
}

/// The nodes that have the listener through which the request came.
pub(crate) fn nodes<'a>(
    broker: &'a Broker,
    context: &RequestContext,
    image: &'a MetadataImage,
) -> impl Iterator<Item = Endpoint<'a>> {
    let listener = &broker.node.advertised[context.connection.listener].listener;
    let endpoint = move |node: &'a BrokerImage| {
        let (_, host, port, _) = node.endpoints.iter().find(|(name, ..)| name == listener)?;
        let rack = node.rack.as_deref();
        Some(Endpoint { id: node.id, host, port: i32::from(*port), rack, fenced: node.fenced })
    };
    image.brokers().filter_map(endpoint)
}

/// Replicas of a partition on nodes that take no part at the moment.
pub(crate) fn offline_replicas(image: &MetadataImage, partition: &PartitionImage) -> Vec<i32> {
    let is_up = |id: &i32| image.broker(*id).is_some_and(|node| !node.fenced);
    partition.replicas.iter().copied().filter(|replica| !is_up(replica)).collect()
}
